//! Opening a directory: its lock, its ids, its commit watermark, and recovery. No thread runs yet.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::files::{self, Files, LockError};
use super::{JournalOpenError, JournalOptions, Recovered, recovery};
use crate::journal::compaction::compactor::{Compactor, CycleMetrics, Fallback, SizedFile};
use crate::journal::files::directory::{Directory, LOST_DIR, SEGMENTS_DIR, SNAPSHOTS_DIR, Segment};
use crate::journal::files::identity::{self, Identity, IdentityError};
use crate::journal::files::pin::{PIN_FILE, Pin};
use crate::journal::space::ballast::BALLAST_FILE;
use crate::journal::space::budget::Budget;
use crate::journal::wal::commit_watermark::{CommitWatermark, StoredWatermark, WATERMARK_FILE};
use crate::journal::wal::progress::CommitProgress;
use crate::journal::wal::records::JournalRecords;
use crate::log::Rebuild;

/// A journal's parts before its threads run.
pub(super) struct Parts {
    pub(super) directory: Arc<Directory>,
    pub(super) records: Arc<JournalRecords>,
    pub(super) progress: Arc<CommitProgress>,
    pub(super) watermark: Arc<CommitWatermark>,
    pub(super) segment: Option<Segment>,
    pub(super) fallback: Option<Fallback>,
    /// Files that the start did not remove because the directory is being copied.
    pub(super) obsolete: Vec<SizedFile>,
    pub(super) recovered: Recovered,
    pub(super) lock: Box<dyn Send + Sync>,
}

impl Parts {
    pub(super) fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        options: JournalOptions,
        rebuild: &mut dyn Rebuild,
    ) -> Result<Parts, JournalOpenError> {
        files.create_dir(dir).map_err(|error| JournalOpenError::io("making", dir, error))?;
        check_new(&*files, dir, options.segment_bytes)?;
        let lock = files.lock(dir).map_err(|error| match error {
            LockError::InUse(holder) => JournalOpenError::InUse { dir: dir.to_owned(), holder },
            LockError::Io(error) => {
                JournalOpenError::io("locking", &dir.join(files::LOCK_FILE), error)
            }
        })?;
        // So that a copy by another user does not make it.
        let pin = Pin::to_delete(&*files, dir);
        drop(pin.map_err(|error| JournalOpenError::io("pinning", dir, error))?);
        let segments_dir = dir.join(SEGMENTS_DIR);
        for dir in [&segments_dir, &dir.join(SNAPSHOTS_DIR)] {
            files.create_dir(dir).map_err(|error| JournalOpenError::io("making", dir, error))?;
        }
        let new =
            Identity { journal: options.new_journal, publisher: options.new_publisher, losses: 0 };
        let identity = identify(&*files, dir, &segments_dir, new)?;
        let directory = Arc::new(Directory::new(
            Arc::clone(&files),
            dir.to_owned(),
            identity.journal,
            options.segment_bytes,
        ));
        let (watermark, read) = open_watermark(&directory, options.accept_loss)?;
        let committed = read.index.unwrap_or(0);
        let found = recovery::recover(&directory, committed, options.accept_loss, rebuild)?;
        let io = |error| JournalOpenError::io("syncing", &watermark.path, error);
        if found.dropped.is_some() {
            // Last: until then, the commit watermark proves that something is missing.
            watermark.reset(found.last_index).map_err(io)?;
        } else if read.has_unreadable_slot {
            tracing::warn!(file = ?watermark.path, "writing unreadable sectors again");
            watermark.reset(found.last_index).map_err(io)?;
        } else if found.last_index > committed {
            watermark.write_durable(found.last_index).map_err(io)?;
        }
        let recovered = Recovered {
            publisher: identity.publisher,
            journal: identity.journal,
            last_index: found.last_index,
            snapshot: found.snapshot,
            records: found.records,
            bytes: found.bytes,
            cut: found.cut,
            dropped: found.dropped,
            lost_payloads: found.lost_payloads,
            losses: identify(&*files, dir, &segments_dir, new)?.losses,
        };
        let records = Arc::new(JournalRecords::new(Arc::clone(&directory), found.locations));
        let progress = Arc::new(CommitProgress::new(found.last_index));
        let (segment, fallback, obsolete) = (found.segment, found.fallback, found.obsolete);
        let watermark = Arc::new(watermark);
        Ok(Parts {
            directory,
            records,
            progress,
            watermark,
            segment,
            fallback,
            obsolete,
            recovered,
            lock,
        })
    }

    /// Opens the ballast, and creates the compactor from the recovered state.
    pub(super) fn compactor(&mut self) -> Result<(Compactor, Arc<CycleMetrics>), JournalOpenError> {
        let directory = &self.directory;
        if let Some(segment) = &self.segment {
            directory.ballast.add_in_segments(segment.capacity.saturating_sub(segment.at));
        }
        let newest = self.recovered.snapshot.map(|snapshot| snapshot.index);
        let newest_bytes = self.recovered.snapshot.map_or(0, |snapshot| snapshot.bytes);
        directory.ballast.note_snapshots(newest_bytes, 0);
        directory.open_ballast()?;
        let (mut fallback, mut obsolete) =
            (self.fallback.take(), std::mem::take(&mut self.obsolete));
        // Without room for 1 MiB of ballast, the record of this start may find none either.
        if directory.ballast.bytes() == 0
            && let Some(fallback) = fallback.take()
        {
            tracing::warn!("the disk is full: the snapshot before the newest is not kept");
            obsolete.extend(recovery::remove_fallback(directory, fallback)?);
            directory.resize_ballast()?;
        }
        let cycles = Arc::new(CycleMetrics::default());
        cycles.newest_bytes.store(newest_bytes, Ordering::Relaxed);
        let (directory, records) = (Arc::clone(directory), Arc::clone(&self.records));
        let metrics = Arc::clone(&cycles);
        let compactor = Compactor::new(directory, records, metrics, newest, fallback, obsolete);
        Ok((compactor, cycles))
    }
}

fn unidentified(error: IdentityError) -> JournalOpenError {
    match error {
        IdentityError::Io(file, error) => JournalOpenError::io("making", &file, error),
        IdentityError::Damaged(file) | IdentityError::OtherFormat(file, _) => {
            JournalOpenError::NoIdentity { file }
        }
    }
}

/// Names that a directory without an identity file may have: those of an interrupted creation, and
/// `lost+found` of a fresh file system.
const NAMES: [&str; 9] = [
    files::LOCK_FILE,
    WATERMARK_FILE,
    identity::TEMPORARY,
    BALLAST_FILE,
    PIN_FILE,
    SEGMENTS_DIR,
    SNAPSHOTS_DIR,
    LOST_DIR,
    "lost+found",
];
/// A resolver replica's directory, which is in the data directory by default.
const REPLICA_PREFIX: &str = "resolver-";
/// Most other names that an error lists.
const NAMES_SHOWN_MAX: usize = 5;

/// Checks that a new journal can begin in this directory. An existing journal is opened whatever
/// other files there are, and however full its disk is: it has jobs.
fn check_new(files: &dyn Files, dir: &Path, segment_bytes: u64) -> Result<(), JournalOpenError> {
    let names = files.list(dir).map_err(|error| JournalOpenError::io("listing", dir, error))?;
    if names.iter().any(|name| name == identity::IDENTITY_FILE) {
        return Ok(());
    }
    let is_foreign =
        |name: &String| !NAMES.contains(&name.as_str()) && !name.starts_with(REPLICA_PREFIX);
    let mut foreign: Vec<String> = names.into_iter().filter(is_foreign).collect();
    if !foreign.is_empty() {
        foreign.sort_unstable();
        let more = foreign.len().saturating_sub(NAMES_SHOWN_MAX);
        foreign.truncate(NAMES_SHOWN_MAX);
        return Err(JournalOpenError::NotEmpty { dir: dir.to_owned(), names: foreign, more });
    }
    let needed = Budget::min_free_bytes(segment_bytes);
    match files.free_bytes(dir) {
        Ok(free) if free < needed => {
            Err(JournalOpenError::DiskTooSmall { dir: dir.to_owned(), free, needed, segment_bytes })
        }
        // If the file system does not report it, the first write will.
        _ => Ok(()),
    }
}

/// The directory's ids. A new directory gets `new`, after its commit watermark.
fn identify(
    files: &dyn Files,
    dir: &Path,
    segments_dir: &Path,
    new: Identity,
) -> Result<Identity, JournalOpenError> {
    let known = identity::read(files, dir).map_err(|error| match error {
        IdentityError::Io(file, error) => JournalOpenError::io("reading", &file, error),
        IdentityError::Damaged(file) => JournalOpenError::NoIdentity { file },
        IdentityError::OtherFormat(file, version) => {
            JournalOpenError::OtherFormat { file, version }
        }
    })?;
    if let Some(known) = known {
        // The run that created it may have ended before its name, or that of the commit watermark,
        // was synced.
        files.sync_dir(dir).map_err(|error| JournalOpenError::io("syncing", dir, error))?;
        return Ok(known);
    }
    let list =
        |dir: &Path| files.list(dir).map_err(|error| JournalOpenError::io("listing", dir, error));
    let is_segment = |name: &String| {
        Directory::sequence_of(name).or_else(|| Directory::compacted_sequence_of(name)).is_some()
    };
    let is_snapshot = |name: &String| Directory::snapshot_index_of(name).is_some();
    // Any of them belongs to a journal: with a new id all of them would be foreign.
    if list(segments_dir)?.iter().any(is_segment)
        || list(&dir.join(SNAPSHOTS_DIR))?.iter().any(is_snapshot)
    {
        return Err(JournalOpenError::NoIdentity { file: dir.join(identity::IDENTITY_FILE) });
    }
    // The commit watermark first: a directory with an id has one, so a missing watermark is never
    // taken for a new journal.
    let path = dir.join(WATERMARK_FILE);
    let io = |error| JournalOpenError::io("making", &path, error);
    let file = files.create(&path).map_err(io)?;
    let nothing = CommitWatermark::read(&*file, new.journal).map_err(io)?;
    CommitWatermark::new(file, path.clone(), new.journal, nothing).reset(0).map_err(io)?;
    files.sync_dir(dir).map_err(io)?;
    identity::write(files, dir, new).map_err(unidentified)?;
    Ok(new)
}

/// Counts a loss that may include starts, so that no epoch is used again. Call it before anything
/// of the log is changed.
pub(super) fn count_loss(directory: &Directory) -> Result<(), JournalOpenError> {
    let (files, dir) = (&*directory.files, &directory.dir);
    let known = identity::read(files, dir).map_err(unidentified)?;
    let known = known
        .ok_or_else(|| JournalOpenError::NoIdentity { file: dir.join(identity::IDENTITY_FILE) })?;
    match known.after_losses(1) {
        Some(identity) => identity::write(files, dir, identity).map_err(unidentified),
        None => Err(JournalOpenError::TooManyLosses { file: dir.join(identity::IDENTITY_FILE) }),
    }
}

fn open_watermark(
    directory: &Directory,
    accept_loss: bool,
) -> Result<(CommitWatermark, StoredWatermark), JournalOpenError> {
    let path = directory.dir.join(WATERMARK_FILE);
    let io = |error| JournalOpenError::io("reading", &path, error);
    let lost = || JournalOpenError::Damaged {
        file: path.clone(),
        offset: 0,
        index: 0,
        why: "without the commit watermark it is unknown how much was committed",
    };
    let file = match directory.files.open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && accept_loss => {
            directory.files.create(&path).map_err(io)?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(lost()),
        Err(error) => return Err(io(error)),
    };
    let read = CommitWatermark::read(&*file, directory.journal).map_err(io)?;
    if read.index.is_none() && !accept_loss {
        return Err(lost());
    }
    let watermark = CommitWatermark::new(file, path.clone(), directory.journal, read);
    if read.index.is_none() {
        // It is unknown how much of the end is missing.
        count_loss(directory)?;
        watermark.reset(0).map_err(io)?;
    }
    Ok((watermark, read))
}
