//! The default log: append-only segments of commands, in a data directory that one publisher owns.
//!
//! ```text
//! append ─▶ batch ─flush─▶ pending ─▶ writer: one write, one fdatasync ─▶ committed ─▶ waiters
//!                                       ▲ next segment, commit watermark: housekeeper
//! snapshot ─▶ compactor: rewrites live records of old segments, writes the snapshot, removes files
//! ```
//!
//! - [`files`] wraps the file system and the directory; [`simulated_disk`] replaces it in tests.
//! - [`wal`] is the log itself, [`snapshots`] the snapshot files.
//! - [`compaction`] runs cycles within the disk space that [`space`] budgets.
//! - [`opening`] opens a directory; [`recovery`] rebuilds the journal from its files.
//! - [`housekeeper`] does the work beside the commits; [`inspect`] reads journals from outside.

mod compaction;
pub(crate) mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz_files;
mod housekeeper;
pub mod inspect;
mod open_error;
mod opening;
mod recovery;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code))]
#[allow(clippy::unwrap_used, clippy::panic, reason = "for tests and fuzzing alone")]
pub(crate) mod simulated_disk;
#[cfg(test)]
mod simulation;
mod snapshots;
mod space;
#[cfg(test)]
mod tests;
mod wal;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use longshore_protocol::{Durability, PublisherId};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use self::compaction::compactor::CycleMetrics;
use self::compaction::compactor_thread::{self, CompactorHandle, SnapshotTrigger};
use self::files::directory::{Directory, poisoned};
use self::files::{Disk, Files};
use self::housekeeper::Housekeeper;
pub use self::open_error::JournalOpenError;
use self::opening::Parts;
pub use self::recovery::{CutTail, Dropped, LostPayloads, RecoveredSnapshot};
pub use self::space::budget::{Budget, Space, SpaceLevel};
use self::wal::progress::{CommitProgress, CommitStatus};
use self::wal::record::BODY_BYTES_MAX;
use self::wal::records::JournalRecords;
use self::wal::writer::{PendingCommand, Writer};
use crate::Now;
use crate::log::{Log, LogMetrics, LogReader, Poisoned, Rebuild, Snapshot};

/// Shortest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 1024 * 1024;
/// Longest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Default segment length, in bytes.
pub const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// How a journal is opened.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Bytes of a segment, [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u64,
    /// The durability level of a commit.
    pub durability: Durability,
    /// Open the journal even if acknowledged commands are damaged. The damaged command and all
    /// after it are moved to `lost/`.
    pub accept_loss: bool,
    /// The publisher's id for a new directory; random.
    pub new_publisher: PublisherId,
    /// The journal's id for a new directory; random, independent of the publisher's. Checksums
    /// begin with it, so producers do not learn it: one that knew it could enqueue a payload that
    /// recovery takes for a later commit.
    pub new_journal: PublisherId,
}

/// A command that replay reads at start.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its index.
    pub index: u64,
    /// When it was logged.
    pub now: Now,
    /// Its kind.
    pub kind: u8,
    /// Its body. It shares memory with its neighbours: keeping it keeps them.
    pub body: Bytes,
}

/// What opening a journal found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The publisher that owns the journal.
    pub publisher: PublisherId,
    /// The id of the journal, which its copies have, too.
    pub journal: PublisherId,
    /// The last index; 0 for a new journal.
    pub last_index: u64,
    /// The snapshot that was restored, if there was one.
    pub snapshot: Option<RecoveredSnapshot>,
    /// Commands replayed after it.
    pub records: u64,
    /// Bytes of the log read for that.
    pub bytes: u64,
    /// The torn tail that was erased, if there was one.
    pub cut: Option<CutTail>,
    /// What was dropped, if the journal was damaged and the loss was accepted.
    pub dropped: Option<Dropped>,
    /// The files whose payloads are lost, if that loss was accepted.
    pub lost_payloads: Option<LostPayloads>,
    /// How often loss was accepted here, and 16 for each copy that led here. Each time, starts may
    /// be lost.
    pub losses: u64,
}

/// The journal of one publisher: the default [`Log`].
pub struct Journal {
    directory: Arc<Directory>,
    progress: Arc<CommitProgress>,
    records: Arc<JournalRecords>,
    queue: Arc<WriterQueue>,
    housekeeper: Arc<Housekeeper>,
    compactor: Arc<CompactorHandle>,
    cycles: Arc<CycleMetrics>,
    /// Bytes of log written when the newest snapshot was taken; negative for log from before the
    /// start.
    written_at_snapshot: i64,
    status: watch::Receiver<CommitStatus>,
    /// Appended and not yet flushed.
    batch: Vec<PendingCommand>,
    appended: u64,
    threads: Option<Threads>,
    _lock: Box<dyn Send + Sync>,
}

struct Threads {
    writer: JoinHandle<()>,
    housekeeping: JoinHandle<()>,
    compaction: JoinHandle<()>,
}

/// The commands for the writer's thread, which takes all of them at once.
#[derive(Default)]
struct WriterQueue {
    waiting: Mutex<WriterQueueState>,
    wake: Condvar,
}

#[derive(Default)]
struct WriterQueueState {
    batch: Vec<PendingCommand>,
    closing: bool,
}

impl Journal {
    /// Opens the journal in `dir`, or creates it, and rebuilds its state into `rebuild`: the newest
    /// snapshot, then every later command in order. Blocks. Once it returns, the recovered state is
    /// final.
    pub fn open(
        dir: &Path,
        options: JournalOptions,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(Journal, Recovered), JournalOpenError> {
        Journal::open_on(Arc::new(Disk), dir, options, rebuild)
    }

    pub(crate) fn open_on(
        files: Arc<dyn Files>,
        dir: &Path,
        options: JournalOptions,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(Journal, Recovered), JournalOpenError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
            return Err(JournalOpenError::SegmentBytes(options.segment_bytes));
        }
        let durability = options.durability;
        let mut parts = Parts::open(files, dir, options, rebuild)?;
        let (compactor, cycles) = parts.compactor()?;
        let Parts { directory, records, progress, watermark, segment, recovered, lock, .. } = parts;
        let housekeeper = Arc::new(Housekeeper::new(
            Arc::clone(&directory),
            Arc::clone(&progress),
            Arc::clone(&watermark),
        ));
        let queue = Arc::new(WriterQueue::default());
        let writer = Writer::new(
            Arc::clone(&directory),
            Arc::clone(&records),
            Arc::clone(&progress),
            watermark,
            Arc::clone(&housekeeper),
            durability,
            segment,
        );
        let handle = Arc::new(CompactorHandle::default());
        let threads = {
            let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
                let io = |error| JournalOpenError::io("starting the threads of", dir, error);
                thread::Builder::new().name(name.to_owned()).spawn(run).map_err(io)
            };
            let housekeeping = {
                let housekeeper = Arc::clone(&housekeeper);
                spawn("journal-housekeeper", Box::new(move || housekeeper.run()))?
            };
            let compaction = {
                let (handle, housekeeper) = (Arc::clone(&handle), Arc::clone(&housekeeper));
                let progress = Arc::clone(&progress);
                let run =
                    move || compactor_thread::run(&handle, compactor, &housekeeper, &progress);
                spawn("journal-compactor", Box::new(run))?
            };
            let (queue, progress) = (Arc::clone(&queue), Arc::clone(&progress));
            let writer =
                spawn("journal-writer", Box::new(move || write(writer, &queue, &progress)))?;
            Threads { writer, housekeeping, compaction }
        };
        let journal = Journal {
            directory,
            status: progress.subscribe(),
            progress,
            records,
            queue,
            housekeeper,
            compactor: handle,
            cycles,
            // A segment holds less than 1 GiB, and a journal fewer bytes than 2^63.
            written_at_snapshot: -(recovered.bytes as i64),
            batch: Vec::new(),
            appended: recovered.last_index,
            threads: Some(threads),
            _lock: lock,
        };
        Ok((journal, recovered))
    }
}

/// The writer's thread: commits everything that waits, until the journal is closed or has failed.
fn write(mut writer: Writer<Arc<Housekeeper>>, queue: &WriterQueue, progress: &CommitProgress) {
    let mut batch = Vec::new();
    loop {
        {
            let mut waiting = queue.waiting.lock();
            while waiting.batch.is_empty() && !waiting.closing {
                queue.wake.wait(&mut waiting);
            }
            if waiting.batch.is_empty() {
                return;
            }
            std::mem::swap(&mut batch, &mut waiting.batch);
        }
        if let Err(why) = writer.write(&batch) {
            tracing::error!(%why, "the journal has failed; nothing is acknowledged any more");
            progress.poison(why);
            return;
        }
        batch.clear();
    }
}

impl Log for Journal {
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned> {
        self.progress.check()?;
        if head.len() + body.len() > BODY_BYTES_MAX {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "a command is over 1 GiB");
            return Err(poisoned("appending to", &self.directory.dir, why));
        }
        self.appended += 1;
        let command =
            PendingCommand { index: self.appended, now, kind, head, body, must_sync: false };
        self.progress.uncommitted_bytes.fetch_add(command.record_len(), Ordering::Relaxed);
        self.batch.push(command);
        Ok(self.appended)
    }

    fn sync(&mut self) {
        if let Some(last) = self.batch.last_mut() {
            last.must_sync = true;
        }
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut waiting = self.queue.waiting.lock();
        if waiting.batch.is_empty() {
            std::mem::swap(&mut waiting.batch, &mut self.batch);
        } else {
            waiting.batch.append(&mut self.batch);
        }
        drop(waiting);
        self.queue.wake.notify_one();
    }

    fn appended(&self) -> u64 {
        self.appended
    }

    fn committed(&self) -> u64 {
        self.progress.committed()
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        let is_reached =
            |status: &CommitStatus| status.committed > index || status.poisoned.is_some();
        match self.status.wait_for(is_reached).await.map(|status| status.clone()) {
            Ok(CommitStatus { committed, .. }) if committed > index => Ok(committed),
            Ok(CommitStatus { poisoned: Some(why), .. }) => Err(why),
            // Unreachable: the condition requires one of the two, and `self` keeps the sender in
            // `progress`.
            Ok(_) | Err(_) => std::future::pending().await,
        }
    }

    fn uncommitted_bytes(&self) -> usize {
        self.progress.uncommitted_bytes.load(Ordering::Relaxed)
    }

    fn reader(&self) -> LogReader {
        LogReader::new(Arc::clone(&self.records) as _)
    }

    fn metrics(&self) -> LogMetrics {
        let log_bytes = self.progress.log_bytes();
        let snapshot_bytes = self.cycles.snapshot_bytes.load(Ordering::Relaxed);
        let compacted_bytes = self.cycles.compacted_bytes.load(Ordering::Relaxed);
        LogMetrics {
            bytes: self.directory.bytes.load(Ordering::Relaxed),
            written_bytes: log_bytes + snapshot_bytes + compacted_bytes,
            snapshot_bytes,
            compacted_bytes,
            snapshots: self.cycles.snapshots.load(Ordering::Relaxed),
            syncs: self.progress.syncs.load(Ordering::Relaxed),
            commits: self.progress.commits.load(Ordering::Relaxed),
            ballast_bytes: self.directory.ballast.bytes(),
        }
    }

    fn budget(&self, leases: u64) -> Budget {
        self.directory.ballast.note_leases(leases);
        self.directory.ballast.budget(self.uncommitted_bytes() as u64)
    }

    fn wants_snapshot(&self, about_bytes: u64) -> bool {
        let newest_bytes = self.cycles.newest_bytes.load(Ordering::Relaxed);
        let expected_bytes = self.cycles.expected_bytes(about_bytes);
        self.directory.ballast.note_snapshots(newest_bytes, expected_bytes);
        let written = self.progress.log_bytes() as i64;
        let trigger = SnapshotTrigger {
            log_bytes: (written - self.written_at_snapshot).max(0) as u64,
            expected_bytes,
            segment_bytes: self.directory.segment_bytes,
            short: self.directory.ballast.is_short(),
            retry: self.compactor.was_abandoned(),
            rested: self.compactor.is_rested(),
        };
        trigger.is_due() && !self.compactor.is_busy()
    }

    fn snapshot(&mut self, snapshot: Box<dyn Snapshot>) {
        debug_assert_eq!(
            snapshot.index(),
            self.appended,
            "the snapshot reflects every appended command"
        );
        self.written_at_snapshot = self.progress.log_bytes() as i64;
        self.compactor.submit(snapshot);
    }
}

/// Commits what was appended, unless the journal has failed; syncs the commit watermark; unlocks
/// the directory.
impl Drop for Journal {
    fn drop(&mut self) {
        self.flush();
        self.queue.waiting.lock().closing = true;
        self.queue.wake.notify_all();
        self.compactor.close();
        if let Some(Threads { writer, housekeeping, compaction }) = self.threads.take() {
            // The thread has reported its own panic.
            let _ = writer.join();
            let _ = compaction.join();
            self.housekeeper.close();
            let _ = housekeeping.join();
        }
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("dir", &self.directory.dir)
            .field("appended", &self.appended)
            .field("committed", &self.committed())
            .finish_non_exhaustive()
    }
}
