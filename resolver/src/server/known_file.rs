//! The one file of a replica: the publishers that it knows. Read at the start, written off the
//! replica's own loop.
//!
//! It is written whole, beside the old one, and moved over it, so that a crash leaves one or the
//! other. Its modification time is set each second: by that the next run knows how long the replica
//! was away, without a write for each heartbeat.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_protocol::ResolverTiming;
use longshore_protocol::codec::{Encode, Reader, WireError};
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::limits::RESOLVER_PUBLISHERS_MAX;
use longshore_protocol::messages::resolver::{Departure, KnownPublisher};
use longshore_transport::LogLimit;
use tokio::sync::watch;

use crate::directory::Wait;
use crate::replica_link::now;

/// The file's name in the replica's directory.
const NAME: &str = "known-publishers";
/// Its first bytes, with the number of its format.
const MAGIC: &[u8; 8] = b"LSKNOWN1";
/// More than a replica writes: 32,768 publishers of at most 1.2 KB, and 131,072 declared paths of 1
/// KiB.
const BYTES_MAX: u64 = 192 * 1024 * 1024;
/// How often the file's time is set.
const TOUCH_EVERY: Duration = Duration::from_secs(1);
/// One line of the log about failures to write it in this time, at most.
const FAILURES_LOGGED: Duration = Duration::from_secs(10);
/// A replica that was away for no more than so many of the shortest waits between tries was away
/// for a short time: of the publishers, one in 27 has failed three times by then and tries again
/// only half a `writer_ttl` later.
const SHORT_OUTAGE_WAITS: u32 = 5;

/// What is written down.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Knowledge {
    pub(super) publishers: Vec<KnownPublisher>,
    /// No publisher was unknown.
    pub(super) all: bool,
}

/// What an earlier run has written down.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Recalled {
    pub(super) knowledge: Knowledge,
    /// How long ago the replica last ran, by the wall clock.
    pub(super) away: Duration,
}

/// The file of a replica that runs. No other process has it.
#[derive(Debug)]
pub(super) struct KnownFile {
    path: PathBuf,
    _lock: File,
}

/// How long a replica that was away for so long waits for its publishers. After a short time, at
/// most until each has tried again. After a longer one, at most until those that are degraded have;
/// and at least for as long as each takes to try again: there may be some that it never knew.
pub(super) fn wait(timing: &ResolverTiming, away: Duration) -> Wait {
    let late = timing.heartbeat();
    let next_try = late.min(timing.retry_wait_max + timing.connect_timeout);
    match away <= SHORT_OUTAGE_WAITS * timing.retry_wait_min {
        true => Wait { least: Duration::ZERO, most: next_try },
        false => Wait { least: next_try, most: late },
    }
}

impl KnownFile {
    /// Takes the directory, made if need be, for this replica alone; and what the file in it says,
    /// if there is one. One that is damaged is set aside, and so is that of another cluster, if
    /// this one is `fresh`.
    pub(super) fn open(folder: &Path, fresh: bool) -> io::Result<(KnownFile, Option<Recalled>)> {
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = "another replica uses it; each replica needs a directory of its own";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let file = KnownFile { path: folder.join(NAME), _lock: lock };
        let recalled = if fresh { file.set_aside("before-fresh")? } else { file.recall()? };
        Ok((file, recalled))
    }

    fn set_aside(&self, why: &str) -> io::Result<Option<Recalled>> {
        match fs::rename(&self.path, self.path.with_extension(why)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            renamed => renamed.map(|()| None),
        }
    }

    fn recall(&self) -> io::Result<Option<Recalled>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let touched = file.metadata()?.modified()?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        match decode(&bytes, SystemTime::now(), touched) {
            Ok(recalled) => Ok(Some(recalled)),
            Err(why) => {
                let aside = format!("damaged-{}", millis(SystemTime::now()));
                tracing::error!(
                    file = %self.path.display(), set_aside = aside, %why,
                    "what the replica knew of publishers is damaged; it starts as one that never knew any"
                );
                self.set_aside(&aside)
            }
        }
    }

    fn write(&self, knowledge: &Knowledge) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&encode(knowledge, SystemTime::now()))?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        match self.path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    fn touch(&self) -> io::Result<()> {
        File::options().write(true).open(&self.path)?.set_modified(SystemTime::now())
    }
}

/// Writes down the newest knowledge, and sets the file's time each second, until no more can come.
pub(super) async fn keep(file: KnownFile, mut newest: watch::Receiver<Knowledge>) {
    let (path, file) = (file.path.clone(), Arc::new(file));
    let mut failures = LogLimit::new(1, FAILURES_LOGGED);
    let (mut unwritten, mut written) = (None, false);
    loop {
        let ended = match tokio::time::timeout(TOUCH_EVERY, newest.changed()).await {
            Ok(Ok(())) => {
                unwritten = Some(newest.borrow_and_update().clone());
                false
            }
            Ok(Err(_)) => true,
            Err(_) => false,
        };
        let (file, to_write) = (file.clone(), unwritten.clone());
        let done = tokio::task::spawn_blocking(move || match to_write {
            Some(knowledge) => file.write(&knowledge),
            None if written => file.touch(),
            None => Ok(()),
        });
        match done.await {
            Ok(Ok(())) => written |= unwritten.take().is_some(),
            // What could not be written is tried again in a second. Until then the old file would
            // name all that there were, and those that have come since would be neither waited for
            // nor missing: a full disk has room to remove it.
            Ok(Err(error)) => {
                if unwritten.is_some() {
                    written &= std::fs::remove_file(&path).is_err();
                }
                if let Some(left_out) = failures.admit(now()) {
                    tracing::warn!(%error, left_out, "the replica cannot write down which publishers it knows");
                }
            }
            Err(error) => tracing::error!(%error, "writing down known publishers failed"),
        }
        if ended {
            return;
        }
    }
}

fn encode(knowledge: &Knowledge, now: SystemTime) -> Vec<u8> {
    let mut out = FrameWriter::new();
    out.u64(millis(now));
    out.bool(knowledge.all);
    knowledge.publishers.encode(&mut out);
    let body = out.into_body();
    [&MAGIC[..], &crc32c::crc32c(&body).to_le_bytes(), &body[..]].concat()
}

/// `touched` is when the file's time was last set.
fn decode(bytes: &[u8], now: SystemTime, touched: SystemTime) -> Result<Recalled, String> {
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(String::from("it ends too early"));
    };
    let Some((sum, body)) = rest.split_first_chunk::<4>().filter(|_| magic == MAGIC) else {
        return Err(String::from("it is of another format"));
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(String::from("its checksum does not match"));
    }
    let mut r = Reader::new(body.to_vec().into());
    let read = |r: &mut Reader| -> Result<(u64, Knowledge), WireError> {
        let (at, all) = (r.u64()?, r.bool()?);
        let publishers = r.list("known publishers", 2 * RESOLVER_PUBLISHERS_MAX)?;
        Ok((at, Knowledge { publishers, all }))
    };
    let (written_at, mut knowledge) = read(&mut r).map_err(|error| error.to_string())?;
    let since_written = millis(now).saturating_sub(written_at);
    // A clock that was set back: as long as can be told.
    let away = now.duration_since(touched).map_or(since_written, |away| {
        u64::try_from(away.as_millis()).unwrap_or(u64::MAX).min(since_written)
    });
    for one in &mut knowledge.publishers {
        // One that was there was heard of while the replica ran.
        let there = matches!(one.departure, None | Some(Departure::NotBack));
        let more = if there { away } else { since_written };
        one.silent_ms = one.silent_ms.saturating_add(more);
    }
    Ok(Recalled { knowledge, away: Duration::from_millis(away) })
}

fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::resolver::Declared;
    use longshore_protocol::{Epoch, PublisherId, PublisherInfo};

    use super::*;

    fn knowledge() -> Knowledge {
        let one = |n: u8, departure| KnownPublisher {
            info: PublisherInfo::new(
                PublisherId([n; 16]),
                Epoch(1),
                format!("p{n}"),
                [([127, 0, 0, 1], 4780)],
            ),
            held: 7,
            silent_ms: 1_000,
            departure,
            declared: Declared {
                defaults: vec![longshore_protocol::Path::root()],
                ..Declared::default()
            },
        };
        Knowledge { publishers: vec![one(1, None), one(2, Some(Departure::Silent))], all: true }
    }

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[test]
    fn a_next_run_knows_who_was_there_and_how_long_it_was_away() {
        let bytes = encode(&knowledge(), at(1_000));
        let recalled = decode(&bytes, at(1_060), at(1_050)).unwrap();
        assert_eq!(recalled.away, Duration::from_secs(10));
        assert!(recalled.knowledge.all);
        let silent: Vec<u64> =
            recalled.knowledge.publishers.iter().map(|one| one.silent_ms).collect();
        assert_eq!(silent, [11_000, 61_000], "one that was there was heard of until the end");
        assert_eq!(recalled.knowledge.publishers[1].departure, Some(Departure::Silent));
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_make_the_replica_older_than_its_file() {
        let bytes = encode(&knowledge(), at(1_000));
        let recalled = decode(&bytes, at(900), at(1_050)).unwrap();
        assert_eq!(recalled.away, Duration::ZERO);
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        let whole = encode(&knowledge(), at(1_000));
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            assert!(decode(&bytes, at(1_001), at(1_001)).is_err(), "byte {place}");
            assert!(decode(&whole[..place], at(1_001), at(1_001)).is_err(), "cut at {place}");
        }
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_a_second_replica_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, none) = KnownFile::open(folder.path(), false).unwrap();
        assert_eq!(none, None);
        file.write(&knowledge()).unwrap();
        let refused = KnownFile::open(folder.path(), false).unwrap_err();
        assert!(refused.to_string().contains("another replica"), "{refused}");
        drop(file);

        let (file, recalled) = KnownFile::open(folder.path(), false).unwrap();
        assert_eq!(recalled.unwrap().knowledge.publishers.len(), 2);
        fs::write(folder.path().join(NAME), b"LSKNOWN1 and nothing of it").unwrap();
        drop(file);
        let (_file, none) = KnownFile::open(folder.path(), false).unwrap();
        assert_eq!(none, None);
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let aside = |name: std::ffi::OsString| name.to_string_lossy().contains(".damaged-");
        assert_eq!(names.filter(|name| aside(name.clone())).count(), 1);
    }

    #[test]
    fn a_short_outage_is_waited_for_until_each_publisher_has_tried_again() {
        let timing = ResolverTiming::default();
        let [next_try, late] = [15, 60].map(Duration::from_secs);
        let short = Wait { least: Duration::ZERO, most: next_try };
        assert_eq!(wait(&timing, Duration::from_secs(5)), short);
        assert_eq!(wait(&timing, Duration::from_secs(6)), Wait { least: next_try, most: late });
    }
}
