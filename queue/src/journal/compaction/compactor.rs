//! Compaction cycles: write a snapshot, then remove what it makes obsolete. They run beside the
//! commits, on their own thread.
//!
//! ```text
//! count live parts ─▶ plan ─▶ copy live parts ─▶ sync the log up to the snapshot ─▶
//! write the snapshot ─▶ rename it ─▶ retire older snapshots ─▶ remove dead segments
//!                       └ the only moment at which anything changes
//! ```
//! A crash before the rename leaves the older snapshot and every file it needs. The cycle retains
//! the snapshot before the newest, with its files, in case the newest is corrupt: until the next
//! cycle, or until the disk is short of room.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::journal::compaction::plan::{CompactionPlan, DiskBudget, LiveUsage};
use crate::journal::compaction::rewrite::{self, RewriteError};
use crate::journal::files::directory::{Directory, poisoned};
use crate::journal::files::is_out_of_files;
use crate::journal::files::pin::{PIN_FILE, Pin};
use crate::journal::snapshots::{self, Resume, SnapshotFileError, WriteError};
use crate::journal::space::ballast::is_full;
use crate::journal::space::budget::SMALL_BYTES;
use crate::journal::space::removal;
use crate::journal::wal::format::SEGMENT_HEADER_BYTES;
use crate::journal::wal::locations::{Bounds, Locations, Run, RunRecords};
use crate::journal::wal::records::JournalRecords;
use crate::log::{LogReadError, Snapshot};
use crate::{Poisoned, RecordRef};

/// How long a running copy may block removal on a disk so short of room that new jobs are refused.
pub(crate) const COPY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Why a cycle failed. The journal is as intact as before it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CycleError {
    /// The journal is closing.
    #[error("the journal is closing")]
    Closing,
    /// The disk has no room, or no more files can be opened: another cycle is tried later.
    #[error("{what} {file:?} failed: {error}")]
    NotNow {
        /// The operation.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The journal has failed.
    #[error(transparent)]
    Failed(#[from] Poisoned),
}

/// What a cycle needs from its surroundings: time, commits, and the state of the disk.
pub(crate) trait CycleContext {
    /// Waits until everything up to `index` is synced, at every level of durability.
    fn sync_up_to(&mut self, index: u64) -> Result<(), Poisoned>;

    /// Call after a chunk was written or read back. Returns the most bytes of the next chunk; an
    /// error of kind `Interrupted` abandons the cycle.
    fn pace(&mut self, bytes: usize) -> io::Result<usize>;

    /// Call after a step that wrote nothing but kept the file system busy. An error of kind
    /// `Interrupted` abandons the cycle.
    fn rest_after_step(&mut self) -> io::Result<()>;

    /// Bytes of log written since the start.
    fn log_bytes(&self) -> u64;

    /// The disk is short of room.
    fn is_short(&self) -> bool;

    /// The time.
    fn now(&self) -> Instant;
}

/// Runs compaction cycles. The thread around it decides when.
pub(crate) struct Compactor {
    directory: Arc<Directory>,
    records: Arc<JournalRecords>,
    metrics: Arc<CycleMetrics>,
    /// The newest durable snapshot.
    newest: Option<u64>,
    /// The snapshot that a start uses if the newest one is damaged.
    fallback: Option<Fallback>,
    /// Files that no location references any more: the next snapshot does not name them.
    unreferenced: Vec<SizedFile>,
    /// Files that neither the newest snapshot nor the fallback needs.
    obsolete: Vec<SizedFile>,
    /// Files that were renamed to be removed, and still take room.
    retired: Vec<SizedFile>,
    /// Bytes by which the log grew during the last cycle.
    grown: u64,
    /// Segments with a live part that could not be read since the start.
    unreadable: BTreeSet<u64>,
    /// Since when a copy has blocked removal on a disk that is short of room.
    copy_blocking_since: Option<Instant>,
}

/// A file and its length in bytes.
pub(crate) struct SizedFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// The snapshot before the newest, and the files that it needs and the newest does not: those of
/// its locations, and the log from it to the newest.
pub(crate) struct Fallback {
    /// Its index; 0 for none, if the log is complete from its first command on.
    pub(crate) snapshot: u64,
    pub(crate) files: Vec<SizedFile>,
}

/// Counters of cycles since the start.
#[derive(Default)]
pub(crate) struct CycleMetrics {
    pub(crate) snapshots: AtomicU64,
    /// Bytes of all snapshots.
    pub(crate) snapshot_bytes: AtomicU64,
    /// Bytes of the newest one, which may be from before the start.
    pub(crate) newest_bytes: AtomicU64,
    /// The size that its state had predicted; 0 if it is from before the start.
    pub(crate) newest_about: AtomicU64,
    pub(crate) compacted_bytes: AtomicU64,
}

impl CycleMetrics {
    /// Expected bytes of a snapshot whose state predicts `about`. The state counts rows; the ratio
    /// to written bytes is known from the last snapshot. In a nearly empty state most bytes are
    /// locations of commands, which do not grow with the rows, so the estimate is capped.
    pub(crate) fn expected_bytes(&self, about: u64) -> u64 {
        let newest = self.newest_bytes.load(Ordering::Relaxed);
        let most = newest.saturating_add(about.saturating_mul(2));
        match u128::from(self.newest_about.load(Ordering::Relaxed)) {
            0 => about,
            newest_about => {
                let scaled = u128::from(about) * u128::from(newest) / newest_about;
                u64::try_from(scaled).unwrap_or(most).min(most)
            }
        }
    }
}

impl Compactor {
    pub(crate) fn new(
        directory: Arc<Directory>,
        records: Arc<JournalRecords>,
        metrics: Arc<CycleMetrics>,
        newest: Option<u64>,
        fallback: Option<Fallback>,
        obsolete: Vec<SizedFile>,
    ) -> Compactor {
        let (unreferenced, retired) = (Vec::new(), Vec::new());
        let (grown, copy_blocking_since) = (0, None);
        Compactor {
            directory,
            records,
            metrics,
            newest,
            fallback,
            unreferenced,
            obsolete,
            retired,
            grown,
            unreadable: BTreeSet::new(),
            copy_blocking_since,
        }
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Runs one cycle. After an error everything from before is intact, and the next cycle may be
    /// tried.
    pub(crate) fn cycle(
        &mut self,
        snapshot: Box<dyn Snapshot>,
        context: &mut dyn CycleContext,
    ) -> Result<(), CycleError> {
        let before = context.log_bytes();
        let done = self.compact_and_snapshot(snapshot, context);
        self.grown = context.log_bytes() - before;
        // The ballast is refilled at once, as far as there is room; a failed cycle has its own
        // error.
        let resized = self.directory.resize_ballast();
        done.and(resized.map_err(CycleError::Failed))
    }

    fn compact_and_snapshot(
        &mut self,
        mut snapshot: Box<dyn Snapshot>,
        context: &mut dyn CycleContext,
    ) -> Result<(), CycleError> {
        let index = snapshot.index();
        // Uncommitted commands have no location yet, and a snapshot never covers more than the log.
        context.sync_up_to(index)?;
        // Remove obsolete files first: the snapshot may need their room.
        self.remove_or_wait(context)?;
        self.compact(&*snapshot, context)?;
        let locations = self.records.locations_up_to(index);
        let resume = resume_after(index, &locations);
        let mut pace = |bytes| context.pace(bytes);
        let written =
            snapshots::write(&self.directory, &mut *snapshot, &locations, resume, &mut pace)?;
        self.metrics.snapshots.fetch_add(1, Ordering::Relaxed);
        self.metrics.snapshot_bytes.fetch_add(written.bytes, Ordering::Relaxed);
        self.metrics.newest_bytes.store(written.bytes, Ordering::Relaxed);
        self.metrics.newest_about.store(snapshot.about_bytes(), Ordering::Relaxed);
        // Free the frozen state before the slow steps.
        drop(snapshot);
        self.supersede(index);
        self.remove_or_wait(context)
    }

    /// Makes the snapshot of `index` the newest, and the one before it the fallback.
    fn supersede(&mut self, index: u64) {
        let files = std::mem::take(&mut self.unreferenced);
        let before = self.newest.replace(index).unwrap_or(0);
        let older = match &mut self.fallback {
            // It replaced a snapshot of the same command.
            fallback if before == index => {
                let target = fallback.as_mut().map_or(&mut self.obsolete, |it| &mut it.files);
                target.extend(files);
                return;
            }
            fallback => fallback.replace(Fallback { snapshot: before, files }),
        };
        self.obsolete.extend(older.into_iter().flat_map(|older| older.files));
    }

    /// Copies the live parts out of mostly dead segments, and drops every location in the segments
    /// to be removed.
    fn compact(
        &mut self,
        snapshot: &dyn Snapshot,
        context: &mut dyn CycleContext,
    ) -> Result<(), CycleError> {
        let covered = snapshot.index();
        let all = self.records.bounds();
        let files = self.file_lengths(&all)?;
        let length = |sequence| files.get(&sequence).map_or(0, |file| file.bytes);
        let mut live = LiveUsage::of(&all, length);
        snapshot.parts(&mut |part| live.count(part));
        live.retain(&self.unreadable);
        if live.unlocated() > 0 {
            // Unreachable. If it happened, a part that the state references might be removed.
            tracing::error!(
                parts = live.unlocated(),
                "the state references parts that no segment contains; nothing is compacted"
            );
            return Ok(());
        }
        // The last one is the active segment.
        let writing = all.last().map_or(0, |run| run.sequence);
        let segment_bytes = self.directory.segment_bytes;
        let snapshot_bytes = self.metrics.expected_bytes(snapshot.about_bytes());
        let plan = CompactionPlan::of(
            &live,
            DiskBudget {
                covered,
                writing,
                snapshot_bytes,
                growth_bytes: log_between(snapshot_bytes, segment_bytes) + self.grown,
                short: context.is_short(),
                segment_bytes,
                copy_bytes: self.copy_bytes(context.is_short()),
            },
        );
        let mut parts = plan.collect(&live, snapshot);
        for (group, parts) in plan.groups.iter().zip(&mut parts) {
            parts.sort_unstable();
            let group = group.iter().map(|&position| live.segments()[position].sequence);
            match self.rewrite_segments(group, parts, &files, context) {
                // The disk filled up meanwhile, or a file cannot be opened. The snapshot has its
                // own reserved room; once it is written, the segments copied so far can be removed.
                Err(error @ CycleError::NotNow { .. }) => {
                    tracing::warn!(%error, "what could not be compacted stays where it is");
                    break;
                }
                done => done?,
            }
        }
        self.drop_references(plan.dead.into_iter(), &files);
        Ok(())
    }

    /// Most bytes that a cycle may copy: none while files from earlier copies still exist twice.
    fn copy_bytes(&self, short: bool) -> u64 {
        let earlier_copies_freed =
            [&self.unreferenced, &self.obsolete, &self.retired].map(Vec::is_empty) == [true; 3];
        if earlier_copies_freed { self.directory.ballast.compactable(short) } else { 0 }
    }

    /// Copies the live parts of these segments into one file, and drops the segments' locations.
    fn rewrite_segments(
        &mut self,
        segments: impl Iterator<Item = u64>,
        parts: &[RecordRef],
        files: &BTreeMap<u64, SizedFile>,
        context: &mut dyn CycleContext,
    ) -> Result<(), CycleError> {
        let mut pace = |bytes| context.pace(bytes);
        match rewrite::write(&self.directory, &self.records, parts, &mut pace) {
            Ok(compacted) => {
                self.metrics.compacted_bytes.fetch_add(compacted.bytes, Ordering::Relaxed);
                self.records.replace(compacted.runs);
                self.drop_references(segments, files);
                Ok(())
            }
            // The process lacks a descriptor or memory, which says nothing about the segment.
            Err(RewriteError::Read { why: LogReadError::Io { file, error }, .. })
                if is_out_of_files(&error) || error.kind() == io::ErrorKind::OutOfMemory =>
            {
                let error = io::Error::new(error.kind(), error);
                Err(CycleError::NotNow { what: "reading", file, error })
            }
            // The segments stay; the next cycle compacts the others.
            Err(RewriteError::Read { index, why }) => {
                let unreadable = self.records.bounds_of(index).map(|run| run.sequence);
                tracing::warn!(
                    segment = unreadable, index, %why,
                    "a segment that cannot be read is not compacted"
                );
                self.unreadable.extend(unreadable);
                Ok(())
            }
            Err(RewriteError::Io { what, file, error }) => Err(CycleError::of(what, file, error)),
        }
    }

    /// The files of these runs, by sequence.
    fn file_lengths(&self, runs: &[Bounds]) -> Result<BTreeMap<u64, SizedFile>, CycleError> {
        let mut files = BTreeMap::new();
        for run in runs {
            if files.contains_key(&run.sequence) {
                continue;
            }
            let path = self.directory.path_of(run.sequence, run.compacted);
            let length = self.directory.files.open(&path).and_then(|file| file.len());
            let bytes = length.map_err(|error| CycleError::of("opening", path.clone(), error))?;
            files.insert(run.sequence, SizedFile { path, bytes });
        }
        Ok(files)
    }

    fn drop_references(
        &mut self,
        sequences: impl Iterator<Item = u64>,
        files: &BTreeMap<u64, SizedFile>,
    ) {
        for sequence in sequences {
            self.records.forget(sequence);
            if let Some(SizedFile { path, bytes }) = files.get(&sequence) {
                self.unreferenced.push(SizedFile { path: path.clone(), bytes: *bytes });
            }
        }
    }

    /// Removes obsolete files. On a disk that is short of room, a copy that blocks removal ends the
    /// cycle, so that another one is tried soon.
    fn remove_or_wait(&mut self, context: &mut dyn CycleContext) -> Result<(), CycleError> {
        if self.remove(context)? || !context.is_short() {
            return Ok(());
        }
        let (file, error) = (self.directory.dir.join(PIN_FILE), io::ErrorKind::WouldBlock);
        Err(CycleError::NotNow { what: "locking", file, error: error.into() })
    }

    /// Removes obsolete files, and the fallback too if the disk is tight. False while a copy is
    /// being made.
    fn remove(&mut self, context: &mut dyn CycleContext) -> Result<bool, CycleError> {
        if context.is_short() || self.directory.ballast.is_tight() {
            self.obsolete.extend(self.fallback.take().into_iter().flat_map(|it| it.files));
        }
        if !self.retire(context)? {
            return Ok(false);
        }
        if !self.retired.is_empty() {
            self.records.wait_for_readers();
        }
        while let Some(SizedFile { path, bytes }) = self.retired.last() {
            removal::remove(&*self.directory.files, path, &mut || context.rest_after_step())
                .map_err(|error| CycleError::of("removing", path.clone(), error))?;
            self.directory.bytes.fetch_sub(*bytes, Ordering::Relaxed);
            self.retired.pop();
        }
        Ok(true)
    }

    /// Whether a copy has blocked removal on a short disk for long enough. A running copy fails by
    /// itself below the low watermark; one that hangs cannot.
    fn must_end_copy(&mut self, context: &dyn CycleContext) -> bool {
        let Directory { files, dir, .. } = &*self.directory;
        let is_full = files.free_bytes(dir).is_ok_and(|free| free < SMALL_BYTES);
        if !context.is_short() {
            self.copy_blocking_since = None;
            return is_full;
        }
        let now = context.now();
        let since = *self.copy_blocking_since.get_or_insert(now);
        is_full || now.duration_since(since) >= COPY_WAIT_MAX
    }

    /// Retires older snapshots and the files that only they need, for good. False, and nothing has
    /// changed, while a copy is being made.
    fn retire(&mut self, context: &dyn CycleContext) -> Result<bool, CycleError> {
        let Some(newest) = self.newest else { return Ok(true) };
        let directory = Arc::clone(&self.directory);
        let (files, dir) = (&*directory.files, &directory.dir);
        let mut pin = Pin::to_delete(files, dir);
        if matches!(pin, Ok(None)) && self.must_end_copy(context) {
            tracing::warn!(
                "the disk is short of room: ending a copy that blocks the removal of files"
            );
            pin = Pin::to_delete_from_readers(files, dir);
        }
        let pin = pin.map_err(|error| CycleError::of("pinning", dir.join(PIN_FILE), error))?;
        let Some(_unpinned) = pin else {
            tracing::info!("a copy is being made; obsolete files are removed after it");
            return Ok(false);
        };
        self.copy_blocking_since = None;
        let dir = self.directory.snapshots_dir();
        let retained = [newest, self.fallback.as_ref().map_or(newest, |it| it.snapshot)];
        let snapshots = snapshots::retire_except(&self.directory, &retained)
            .map_err(|error| poisoned("renaming older snapshots in", &dir, error))?;
        // Snapshots are not counted in the bytes of the segments.
        self.retired.extend(snapshots.into_iter().map(|path| SizedFile { path, bytes: 0 }));
        let dir = self.directory.segments_dir();
        let obsolete = std::mem::take(&mut self.obsolete);
        let paths = obsolete.iter().map(|obsolete| obsolete.path.clone());
        let segments = removal::retire(&*self.directory.files, &dir, paths)
            .map_err(|error| poisoned("renaming segments in", &dir, error))?;
        for (path, SizedFile { bytes, .. }) in segments.into_iter().zip(obsolete) {
            match path {
                Some(path) => self.retired.push(SizedFile { path, bytes }),
                None => _ = self.directory.bytes.fetch_sub(bytes, Ordering::Relaxed),
            }
        }
        Ok(true)
    }
}

/// Quarters of a snapshot's length that are written to the log between two snapshots. With 13 (3.25
/// lengths), snapshots are at most a quarter of all written bytes. Three lengths would be exactly a
/// quarter, and any stretch that begins before one snapshot and ends after the next would exceed
/// it.
const LOG_QUARTERS_PER_SNAPSHOT: u64 = 13;

/// Bytes of log from one snapshot to the next.
pub(crate) fn log_between(snapshot_bytes: u64, segment_bytes: u64) -> u64 {
    segment_bytes.max(LOG_QUARTERS_PER_SNAPSHOT * (snapshot_bytes / 4))
}

/// Where the command after `index` is, or will be. Unknown if the segment of `index` is gone: then
/// the next segment begins with it.
fn resume_after(index: u64, locations: &Locations) -> Resume {
    match locations.runs().last() {
        Some(Run { last, sequence, records: RunRecords::Log { end, .. }, .. })
            if *last == index =>
        {
            Resume { sequence: *sequence, offset: u64::from(*end) }
        }
        _ => Resume { sequence: 0, offset: SEGMENT_HEADER_BYTES as u64 },
    }
}

impl From<WriteError> for CycleError {
    fn from(error: WriteError) -> CycleError {
        match error {
            WriteError::Io { what, file, error } => CycleError::of(what, file, error),
            // The file cannot be read, which need not be the disk's fault; or the disk has lost it.
            WriteError::NotAsWritten {
                why: SnapshotFileError::Io { what, file, error }, ..
            } => CycleError::of(what, file, error),
            WriteError::NotAsWritten { file, why } => {
                let error = io::Error::new(io::ErrorKind::InvalidData, why.to_string());
                CycleError::Failed(poisoned("reading back", &file, error))
            }
            WriteError::NotSwitched { file, error } => {
                CycleError::Failed(poisoned("syncing", &file, error))
            }
        }
    }
}

impl CycleError {
    pub(crate) fn of(what: &'static str, file: PathBuf, error: io::Error) -> CycleError {
        match error.kind() {
            io::ErrorKind::Interrupted => CycleError::Closing,
            _ if is_full(&error) || is_out_of_files(&error) => {
                CycleError::NotNow { what, file, error }
            }
            _ => CycleError::Failed(poisoned(what, &file, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_snapshot_size_scales_from_the_last_and_is_bounded() {
        const MIB: u64 = 1024 * 1024;
        let metrics = CycleMetrics::default();
        assert_eq!(metrics.expected_bytes(68 * MIB), 68 * MIB, "nothing else is known");
        metrics.newest_bytes.store(550 * MIB, Ordering::Relaxed);
        assert_eq!(metrics.expected_bytes(680 * MIB), 680 * MIB, "one from before the start");
        metrics.newest_about.store(680 * MIB, Ordering::Relaxed);
        assert_eq!(metrics.expected_bytes(68 * MIB), 55 * MIB);
        assert_eq!(metrics.expected_bytes(0), 0);
        // A nearly empty state with 600,000 command locations; then a million jobs wait.
        metrics.newest_bytes.store(2 * MIB, Ordering::Relaxed);
        metrics.newest_about.store(7_000, Ordering::Relaxed);
        assert_eq!(metrics.expected_bytes(7_000), 2 * MIB);
        assert_eq!(metrics.expected_bytes(68 * MIB), 138 * MIB);
    }
}
