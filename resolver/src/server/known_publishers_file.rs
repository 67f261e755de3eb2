//! The one file of a replica: the publishers that it knows. It is read at start and written outside
//! the server loop.
//!
//! It is written whole beside the old file, which it then replaces by a rename, so that a crash
//! leaves one or the other. Its modification time is set each second: from it the next run computes
//! the downtime, without a write for each heartbeat.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
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
/// More than a replica ever writes: 32,768 publishers of at most 1.2 KB, and 131,072 declared paths
/// of 1 KiB.
const BYTES_MAX: u64 = 192 * 1024 * 1024;
/// How often the file's time is set.
const TOUCH_EVERY: Duration = Duration::from_secs(1);
/// The period in which write failures are logged at most once.
const FAILURE_LOG_PERIOD: Duration = Duration::from_secs(10);
/// A downtime of at most so many of the shortest waits between attempts counts as short: of the
/// publishers, one in 27 has failed three times by then and tries again only half a `writer_ttl`
/// later.
const SHORT_DOWNTIME_WAITS: u32 = 5;

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct KnownPublishers {
    pub(super) publishers: Vec<KnownPublisher>,
    /// Every publisher was known.
    pub(super) all: bool,
}

/// The content as an earlier run left it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct RestoredPublishers {
    pub(super) known: KnownPublishers,
    /// How long ago the replica last ran, by the wall clock.
    pub(super) downtime: Duration,
}

/// The open file of a running replica. No other process has it.
#[derive(Debug)]
pub(super) struct KnownPublishersFile {
    path: PathBuf,
    _lock: File,
}

/// How long a replica waits for its publishers after a downtime. After a short one, at most until
/// each has tried again. After a longer one, at most until the degraded ones have; and at least
/// until each has tried again: some may be unknown to it.
pub(super) fn wait(timing: &ResolverTiming, downtime: Duration) -> Wait {
    let late = timing.heartbeat();
    let next_attempt = late.min(timing.retry_wait_max + timing.connect_timeout);
    match downtime <= SHORT_DOWNTIME_WAITS * timing.retry_wait_min {
        true => Wait { least: Duration::ZERO, most: next_attempt },
        false => Wait { least: next_attempt, most: late },
    }
}

/// Creates a file that only this replica's user can read, whatever the umask.
fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

impl KnownPublishersFile {
    /// Locks the directory for this replica, creating it if missing, and loads the file in it, if
    /// there is one. A damaged file is renamed, and so is that of another cluster, if this one is
    /// `fresh`.
    pub(super) fn open(
        folder: &Path,
        fresh: bool,
    ) -> io::Result<(KnownPublishersFile, Option<RestoredPublishers>)> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = create(&folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = "another replica uses it; each replica needs a directory of its own";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let file = KnownPublishersFile { path: folder.join(NAME), _lock: lock };
        let restored = if fresh { file.set_aside("before-fresh")? } else { file.load()? };
        Ok((file, restored))
    }

    fn set_aside(&self, why: &str) -> io::Result<Option<RestoredPublishers>> {
        match fs::rename(&self.path, self.path.with_extension(why)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            renamed => renamed.map(|()| None),
        }
    }

    fn load(&self) -> io::Result<Option<RestoredPublishers>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let touched = file.metadata()?.modified()?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        match decode(&bytes, SystemTime::now(), touched) {
            Ok(restored) => Ok(Some(restored)),
            Err(why) => {
                let aside = format!("damaged-{}", millis(SystemTime::now()));
                tracing::error!(
                    file = %self.path.display(), set_aside = aside, %why,
                    "the file of known publishers is damaged; the replica starts without them"
                );
                self.set_aside(&aside)
            }
        }
    }

    fn write(&self, known: &KnownPublishers) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = create(&new)?;
        file.write_all(&encode(known, SystemTime::now()))?;
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

/// Writes the newest content, and sets the file's time each second, until the sender is dropped.
pub(super) async fn run_writer(
    file: KnownPublishersFile,
    mut newest: watch::Receiver<KnownPublishers>,
) {
    let file = Arc::new(file);
    let mut failures = LogLimit::new(1, FAILURE_LOG_PERIOD);
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
        let (file, to_write, newest) = (file.clone(), unwritten.clone(), newest.clone());
        let done = tokio::task::spawn_blocking(move || match to_write {
            // A failed write is retried in a second. Until then the old file would be outdated:
            // publishers that came since would be neither waited for nor reported as missing. So
            // remove it; even a full disk allows that.
            Some(known) => file.write(&known).inspect_err(|_| drop(fs::remove_file(&file.path))),
            // Somebody may have removed the file.
            None if written => file.touch().or_else(|_| {
                let known = newest.borrow().clone();
                file.write(&known)
            }),
            None => Ok(()),
        });
        match done.await {
            Ok(Ok(())) => written |= unwritten.take().is_some(),
            Ok(Err(error)) => {
                if let Some(left_out) = failures.admit(now()) {
                    tracing::warn!(
                        %error, left_out,
                        "the replica cannot write its known publishers"
                    );
                }
            }
            Err(error) => tracing::error!(%error, "writing known publishers failed"),
        }
        if ended {
            return;
        }
    }
}

fn encode(known: &KnownPublishers, now: SystemTime) -> Vec<u8> {
    let mut out = FrameWriter::new();
    out.u64(millis(now));
    out.bool(known.all);
    known.publishers.encode(&mut out);
    let body = out.into_body();
    [&MAGIC[..], &crc32c::crc32c(&body).to_le_bytes(), &body[..]].concat()
}

/// `touched` is when the file's time was last set.
fn decode(
    bytes: &[u8],
    now: SystemTime,
    touched: SystemTime,
) -> Result<RestoredPublishers, String> {
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
    let read = |r: &mut Reader| -> Result<(u64, KnownPublishers), WireError> {
        let (at, all) = (r.u64()?, r.bool()?);
        let publishers = r.list("known publishers", 2 * RESOLVER_PUBLISHERS_MAX)?;
        Ok((at, KnownPublishers { publishers, all }))
    };
    let (written_at, mut known) = read(&mut r).map_err(|error| error.to_string())?;
    let since_written = millis(now).saturating_sub(written_at);
    // If the clock was set back, use the time since the write.
    let downtime = now.duration_since(touched).map_or(since_written, |downtime| {
        u64::try_from(downtime.as_millis()).unwrap_or(u64::MAX).min(since_written)
    });
    for one in &mut known.publishers {
        // A publisher that was present was heard while the replica ran.
        let there = matches!(one.departure, None | Some(Departure::NotBack));
        let more = if there { downtime } else { since_written };
        one.silent_ms = one.silent_ms.saturating_add(more);
    }
    Ok(RestoredPublishers { known, downtime: Duration::from_millis(downtime) })
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

    fn known() -> KnownPublishers {
        let one = |n: u8, departure| KnownPublisher {
            info: PublisherInfo::new(
                PublisherId([n; 16]),
                Epoch(1),
                format!("p{n}"),
                [([127, 0, 0, 1], 4780)],
            ),
            registrations: 7,
            silent_ms: 1_000,
            departure,
            declared: Declared {
                defaults: vec![longshore_protocol::Path::root()],
                ..Declared::default()
            },
        };
        KnownPublishers {
            publishers: vec![one(1, None), one(2, Some(Departure::Silent))],
            all: true,
        }
    }

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[test]
    fn the_next_run_knows_the_publishers_and_the_downtime() {
        let bytes = encode(&known(), at(1_000));
        let restored = decode(&bytes, at(1_060), at(1_050)).unwrap();
        assert_eq!(restored.downtime, Duration::from_secs(10));
        assert!(restored.known.all);
        let silent: Vec<u64> = restored.known.publishers.iter().map(|one| one.silent_ms).collect();
        assert_eq!(silent, [11_000, 61_000], "a present one was heard until the end");
        assert_eq!(restored.known.publishers[1].departure, Some(Departure::Silent));
    }

    #[test]
    fn a_clock_that_was_set_back_yields_no_downtime() {
        let bytes = encode(&known(), at(1_000));
        let restored = decode(&bytes, at(900), at(1_050)).unwrap();
        assert_eq!(restored.downtime, Duration::ZERO);
    }

    #[test]
    fn every_damaged_byte_and_every_truncation_is_detected() {
        let bytes_written = encode(&known(), at(1_000));
        for offset in 0..bytes_written.len() {
            let mut bytes = bytes_written.clone();
            bytes[offset] ^= 1;
            assert!(decode(&bytes, at(1_001), at(1_001)).is_err(), "byte {offset}");
            assert!(
                decode(&bytes_written[..offset], at(1_001), at(1_001)).is_err(),
                "cut at {offset}"
            );
        }
    }

    #[test]
    fn a_damaged_file_is_renamed_and_a_second_replica_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, none) = KnownPublishersFile::open(folder.path(), false).unwrap();
        assert_eq!(none, None);
        file.write(&known()).unwrap();
        let refused = KnownPublishersFile::open(folder.path(), false).unwrap_err();
        assert!(refused.to_string().contains("another replica"), "{refused}");
        drop(file);

        let (file, restored) = KnownPublishersFile::open(folder.path(), false).unwrap();
        assert_eq!(restored.unwrap().known.publishers.len(), 2);
        fs::write(folder.path().join(NAME), b"LSKNOWN1 and nothing of it").unwrap();
        drop(file);
        let (_file, none) = KnownPublishersFile::open(folder.path(), false).unwrap();
        assert_eq!(none, None);
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let aside = |name: std::ffi::OsString| name.to_string_lossy().contains(".damaged-");
        assert_eq!(names.filter(|name| aside(name.clone())).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_somebody_removed_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = KnownPublishersFile::open(folder.path(), false).unwrap();
        let (path, (newest, received)) = (file.path.clone(), watch::channel(Default::default()));
        let writer = tokio::spawn(run_writer(file, received));
        newest.send_replace(known());
        for _ in 0..2 {
            let written = async {
                while !path.exists() {
                    tokio::time::sleep(TOUCH_EVERY).await;
                }
            };
            tokio::time::timeout(100 * TOUCH_EVERY, written).await.unwrap();
            fs::remove_file(&path).unwrap();
        }
        drop(newest);
        writer.await.unwrap();
        let (_, restored) = KnownPublishersFile::open(folder.path(), false).unwrap();
        assert_eq!(restored.unwrap().known.publishers.len(), 2);
    }

    #[test]
    fn after_a_short_downtime_the_replica_waits_for_one_attempt_of_each_publisher() {
        let timing = ResolverTiming::default();
        let [next_attempt, late] = [15, 60].map(Duration::from_secs);
        let short = Wait { least: Duration::ZERO, most: next_attempt };
        assert_eq!(wait(&timing, Duration::from_secs(5)), short);
        assert_eq!(wait(&timing, Duration::from_secs(6)), Wait { least: next_attempt, most: late });
    }
}
