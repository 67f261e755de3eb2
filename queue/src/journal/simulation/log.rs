//! The journal without its threads: the simulation decides what it does, and in which order.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::files::{Files, JournalFile};
use super::super::simulated_disk::SimulatedDisk;
use super::super::{Budget, JournalOpenError, JournalOptions, Parts, Recovered};
use super::DIR;
use crate::journal::compaction::compactor::{Compactor, CycleContext, CycleError, CycleMetrics};
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::files::directory::{Directory, Segment};
use crate::journal::space::ballast::{Ballast, is_full};
use crate::journal::wal::commit_watermark::CommitWatermark;
use crate::journal::wal::pending_watermark::PendingWatermark;
use crate::journal::wal::progress::CommitProgress;
use crate::journal::wal::records::JournalRecords;
use crate::journal::wal::writer::{BackgroundWork, PendingCommand, Writer};
use crate::log::{Log, LogMetrics, LogReader, Poisoned, Snapshot};
use crate::{Now, Replay};

/// A command as it was appended to the log.
#[derive(Clone)]
pub(super) struct Submitted {
    pub(super) index: u64,
    pub(super) now: Now,
    pub(super) kind: u8,
    pub(super) body: Bytes,
}

/// Every command that was appended to the log, committed or not.
pub(super) type AllSubmitted = Arc<Mutex<Vec<Submitted>>>;

/// The journal, driven step by step.
pub(super) struct SteppedLog {
    writer: Writer<WriterBackground>,
    background: ManualBackground,
    batch: Vec<PendingCommand>,
    appended: u64,
    submitted: AllSubmitted,
    _lock: Box<dyn Send + Sync>,
}

/// Does the work of the journal's threads on demand.
#[derive(Clone)]
pub(super) struct ManualBackground {
    directory: Arc<Directory>,
    progress: Arc<CommitProgress>,
    records: Arc<JournalRecords>,
    watermark: Arc<CommitWatermark>,
    next: Arc<Mutex<Option<Segment>>>,
    pending: Arc<Mutex<PendingWatermark>>,
    compactor: Arc<Mutex<Compactor>>,
    cycles: Arc<CycleMetrics>,
    /// Whether a snapshot is requested.
    snapshot_wanted: Arc<AtomicBool>,
    /// The frozen state, until a cycle writes it.
    frozen: Arc<Mutex<Option<Box<dyn Snapshot>>>>,
}

/// The background work as seen by the writer.
struct WriterBackground(ManualBackground);

impl SteppedLog {
    /// Opens the journal on the disk.
    pub(super) fn open(
        disk: &SimulatedDisk,
        options: JournalOptions,
        replay: &mut Replay,
        submitted: AllSubmitted,
    ) -> Result<(SteppedLog, ManualBackground, Recovered), JournalOpenError> {
        let durability = options.durability;
        let files: Arc<dyn Files> = Arc::new(disk.clone());
        let mut parts = Parts::open(files, Path::new(DIR), options, replay)?;
        let (compactor, cycles) = parts.compactor()?;
        let Parts { directory, records, progress, watermark, segment, recovered, lock, .. } = parts;
        let background = ManualBackground {
            directory,
            progress,
            records,
            watermark,
            next: Arc::default(),
            pending: Arc::new(Mutex::new(PendingWatermark::new(recovered.last_index))),
            compactor: Arc::new(Mutex::new(compactor)),
            cycles,
            snapshot_wanted: Arc::default(),
            frozen: Arc::default(),
        };
        let writer = Writer::new(
            Arc::clone(&background.directory),
            Arc::clone(&background.records),
            Arc::clone(&background.progress),
            Arc::clone(&background.watermark),
            WriterBackground(background.clone()),
            durability,
            segment,
        );
        let appended = recovered.last_index;
        let log = SteppedLog {
            writer,
            background: background.clone(),
            batch: Vec::new(),
            appended,
            submitted,
            _lock: lock,
        };
        Ok((log, background, recovered))
    }
}

impl ManualBackground {
    /// Prepares the next segment, if there is room for one.
    pub(super) fn make_segment(&self) -> Result<(), Poisoned> {
        let mut next = self.next.lock();
        if next.is_none() {
            match self.directory.create_segment(0) {
                Ok(segment) => *next = Some(segment),
                Err(why) if is_full(&why.error) => {}
                Err(why) => {
                    self.progress.poison(why.clone());
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Syncs the commit watermark: everything committed is synced then, at every level of
    /// durability.
    pub(super) fn sync_watermark(&self) -> Result<(), Poisoned> {
        self.sync_pending().inspect_err(|why| self.progress.poison(why.clone()))
    }

    fn sync_pending(&self) -> Result<(), Poisoned> {
        let pending = self.pending.lock().take();
        pending.sync(&self.directory, &self.watermark)
    }

    /// The location of every command in a log segment: its index, the file's number, and the offset
    /// there.
    pub(super) fn positions(&self) -> Vec<(u64, u64, u64)> {
        let all = self.records.locations_up_to(self.progress.committed());
        let logs = all.runs().iter().filter(|run| !run.bounds().compacted);
        let indexes = logs.flat_map(|run| run.first..=run.last);
        indexes
            .filter_map(|index| {
                let location = all.locate(index, 0)?;
                Some((index, location.sequence, location.offset))
            })
            .collect()
    }

    /// Requests a snapshot, unless one waits to be written.
    pub(super) fn request_snapshot(&self) {
        self.snapshot_wanted.store(self.frozen.lock().is_none(), Ordering::Relaxed);
    }

    /// Whether a snapshot waits to be written, and everything it reflects is committed.
    pub(super) fn is_cycle_ready(&self) -> bool {
        let committed = self.progress.committed();
        self.frozen.lock().as_ref().is_some_and(|frozen| frozen.index() <= committed)
    }

    /// Writes the waiting snapshot and removes obsolete files; calls `meanwhile` between its
    /// chunks.
    pub(super) fn cycle(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Poisoned> {
        let Some(frozen) = self.frozen.lock().take() else { return Ok(()) };
        let short = self.directory.ballast.is_short();
        let context = &mut InterleavedContext { background: self, meanwhile, short };
        match self.compactor.lock().cycle(frozen, context) {
            Err(CycleError::Failed(why)) => {
                self.progress.poison(why.clone());
                Err(why)
            }
            // The next snapshot tries again.
            Ok(()) | Err(CycleError::NotNow { .. } | CycleError::Closing) => Ok(()),
        }
    }

    pub(super) fn ballast(&self) -> &Ballast {
        &self.directory.ballast
    }

    pub(super) fn reader(&self) -> LogReader {
        LogReader::new(Arc::clone(&self.records) as _)
    }
}

/// A cycle context that interleaves other steps with the chunks of a cycle.
struct InterleavedContext<'a> {
    background: &'a ManualBackground,
    meanwhile: &'a mut dyn FnMut(),
    short: bool,
}

impl CycleContext for InterleavedContext<'_> {
    fn sync_up_to(&mut self, index: u64) -> Result<(), Poisoned> {
        // A failed write of the watermark ends the journal.
        self.background.progress.check()?;
        assert!(
            self.background.pending.lock().index() >= index,
            "a cycle begins once it is committed"
        );
        self.background.sync_pending()
    }

    fn pace(&mut self, _: usize) -> io::Result<usize> {
        (self.meanwhile)();
        Ok(CHUNK_BYTES)
    }

    fn rest_after_step(&mut self) -> io::Result<()> {
        (self.meanwhile)();
        Ok(())
    }

    fn log_bytes(&self) -> u64 {
        self.background.progress.log_bytes()
    }

    fn is_short(&self) -> bool {
        self.short
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl BackgroundWork for WriterBackground {
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned> {
        match self.0.next.lock().take_if(|next| next.capacity >= least) {
            Some(segment) => Ok(segment),
            None => self.0.directory.create_segment(least),
        }
    }

    fn committed(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool) {
        self.0.pending.lock().note(index, file, synced);
    }
}

impl Log for SteppedLog {
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned> {
        self.background.progress.check()?;
        self.appended += 1;
        let index = self.appended;
        let whole_body = Bytes::from([&head[..], &body[..]].concat());
        self.submitted.lock().push(Submitted { index, now, kind, body: whole_body });
        let command = PendingCommand { index, now, kind, head, body, must_sync: false };
        let bytes = command.record_len();
        self.background.progress.uncommitted_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.batch.push(command);
        Ok(index)
    }

    fn sync(&mut self) {
        if let Some(last) = self.batch.last_mut() {
            last.must_sync = true;
        }
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if self.background.progress.check().is_ok()
            && let Err(why) = self.writer.write(&batch)
        {
            self.background.progress.poison(why);
        }
    }

    fn appended(&self) -> u64 {
        self.appended
    }

    fn committed(&self) -> u64 {
        self.background.progress.committed()
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        if self.committed() <= index {
            self.background.progress.check()?;
            // Nothing else can append or flush while this waits.
            std::future::pending::<()>().await;
        }
        Ok(self.committed())
    }

    fn uncommitted_bytes(&self) -> usize {
        self.background.progress.uncommitted_bytes.load(Ordering::Relaxed)
    }

    fn reader(&self) -> LogReader {
        self.background.reader()
    }

    fn budget(&self, leases: u64) -> Budget {
        self.background.directory.ballast.note_leases(leases);
        self.background.directory.ballast.budget(self.uncommitted_bytes() as u64)
    }

    fn wants_snapshot(&self, about_bytes: u64) -> bool {
        let newest_bytes = self.background.cycles.newest_bytes.load(Ordering::Relaxed);
        self.background.directory.ballast.note_snapshots(newest_bytes, about_bytes);
        self.background.snapshot_wanted.load(Ordering::Relaxed)
    }

    fn snapshot(&mut self, snapshot: Box<dyn Snapshot>) {
        assert_eq!(snapshot.index(), self.appended, "the snapshot reflects every appended command");
        self.background.snapshot_wanted.store(false, Ordering::Relaxed);
        *self.background.frozen.lock() = Some(snapshot);
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics::default()
    }
}
