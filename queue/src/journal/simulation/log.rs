//! The journal without its threads, as a log: what it does, and in which order, is up to the
//! simulation alone.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::files::{Files, JournalFile};
use super::super::simulated_disk::SimulatedDisk;
use super::super::{Budget, JournalOptions, OpenError, Parts, Recovered};
use super::DIR;
use crate::journal::compaction::compactor::{Around, Compactor, CycleError, CycleMetrics};
use crate::journal::compaction::pace::PIECE_BYTES;
use crate::journal::files::directory::{Directory, Segment};
use crate::journal::space::ballast::{Ballast, is_full};
use crate::journal::wal::commit_watermark::CommitWatermark;
use crate::journal::wal::pending_sync::PendingSync;
use crate::journal::wal::progress::Progress;
use crate::journal::wal::records::JournalRecords;
use crate::journal::wal::writer::{Chores, Pending, Writer};
use crate::log::{Log, LogMetrics, Poisoned, Reader, Snapshot};
use crate::{Now, Replay};

/// A command as it was given to the log.
#[derive(Clone)]
pub(super) struct Submitted {
    pub(super) index: u64,
    pub(super) now: Now,
    pub(super) kind: u8,
    pub(super) body: Bytes,
}

/// Every command that was given to the log, whatever became of it.
pub(super) type AllSubmitted = Arc<Mutex<Vec<Submitted>>>;

/// The journal, stepped.
pub(super) struct SteppedLog {
    writer: Writer<Chore>,
    hand: Hand,
    batch: Vec<Pending>,
    appended: u64,
    submitted: AllSubmitted,
    _lock: Box<dyn Send + Sync>,
}

/// Does by hand what the journal's threads do beside the commits.
#[derive(Clone)]
pub(super) struct Hand {
    directory: Arc<Directory>,
    progress: Arc<Progress>,
    records: Arc<JournalRecords>,
    mark: Arc<CommitWatermark>,
    next: Arc<Mutex<Option<Segment>>>,
    owed: Arc<Mutex<PendingSync>>,
    compactor: Arc<Mutex<Compactor>>,
    cycles: Arc<CycleMetrics>,
    /// A snapshot is wanted.
    wants: Arc<AtomicBool>,
    /// The snapshot that was wanted, until a cycle writes it.
    frozen: Arc<Mutex<Option<Box<dyn Snapshot>>>>,
}

/// The writer's side of the hand.
struct Chore(Hand);

impl SteppedLog {
    /// Opens what is on the disk.
    pub(super) fn open(
        disk: &SimulatedDisk,
        options: JournalOptions,
        replay: &mut Replay,
        submitted: AllSubmitted,
    ) -> Result<(SteppedLog, Hand, Recovered), OpenError> {
        let durability = options.durability;
        let files: Arc<dyn Files> = Arc::new(disk.clone());
        let mut parts = Parts::open(files, Path::new(DIR), options, replay)?;
        let (compactor, cycles) = parts.compactor()?;
        let Parts { directory, records, progress, mark, segment, recovered, lock, .. } = parts;
        let hand = Hand {
            directory,
            progress,
            records,
            mark,
            next: Arc::default(),
            owed: Arc::new(Mutex::new(PendingSync::new(recovered.last_index))),
            compactor: Arc::new(Mutex::new(compactor)),
            cycles,
            wants: Arc::default(),
            frozen: Arc::default(),
        };
        let writer = Writer::new(
            Arc::clone(&hand.directory),
            Arc::clone(&hand.records),
            Arc::clone(&hand.progress),
            Arc::clone(&hand.mark),
            Chore(hand.clone()),
            durability,
            segment,
        );
        let appended = recovered.last_index;
        let log = SteppedLog {
            writer,
            hand: hand.clone(),
            batch: Vec::new(),
            appended,
            submitted,
            _lock: lock,
        };
        Ok((log, hand, recovered))
    }
}

impl Hand {
    /// Makes the next segment before it is needed, if there is room for one.
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

    /// Makes the mark firm: all that was committed is on the disk then, at every level of
    /// durability.
    pub(super) fn firm_mark(&self) -> Result<(), Poisoned> {
        self.firm_owed().inspect_err(|why| self.progress.poison(why.clone()))
    }

    fn firm_owed(&self) -> Result<(), Poisoned> {
        let owed = self.owed.lock().take();
        owed.make_firm(&self.directory, &self.mark)
    }

    /// Where every command that is in the log itself lies: its index, the file's number, and its
    /// place there.
    pub(super) fn places(&self) -> Vec<(u64, u64, u64)> {
        let all = self.records.locations_up_to(self.progress.committed());
        let logs = all.runs().iter().filter(|run| !run.bounds().carried);
        let indexes = logs.flat_map(|run| run.first..=run.last);
        indexes
            .filter_map(|index| {
                let place = all.locate(index, 0)?;
                Some((index, place.sequence, place.offset))
            })
            .collect()
    }

    /// Wants a snapshot, unless one waits to be written.
    pub(super) fn want_snapshot(&self) {
        self.wants.store(self.frozen.lock().is_none(), Ordering::Relaxed);
    }

    /// Whether a snapshot waits to be written, and all that it reflects is committed.
    pub(super) fn is_cycle_due(&self) -> bool {
        let committed = self.progress.committed();
        self.frozen.lock().as_ref().is_some_and(|frozen| frozen.index() <= committed)
    }

    /// Writes the snapshot that waits and removes what it makes needless; between its pieces,
    /// others have their turn.
    pub(super) fn cycle(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Poisoned> {
        let Some(frozen) = self.frozen.lock().take() else { return Ok(()) };
        let short = self.directory.ballast.is_short();
        let around = &mut Turns { hand: self, meanwhile, short };
        match self.compactor.lock().cycle(frozen, around) {
            Err(CycleError::Failed(why)) => {
                self.progress.poison(why.clone());
                Err(why)
            }
            // Tried again with the next snapshot.
            Ok(()) | Err(CycleError::NotNow { .. } | CycleError::Closing) => Ok(()),
        }
    }

    pub(super) fn ballast(&self) -> &Ballast {
        &self.directory.ballast
    }

    pub(super) fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.records) as _)
    }
}

/// Lets others have their turn between the pieces of a cycle.
struct Turns<'a> {
    hand: &'a Hand,
    meanwhile: &'a mut dyn FnMut(),
    short: bool,
}

impl Around for Turns<'_> {
    fn settle(&mut self, index: u64) -> Result<(), Poisoned> {
        // A commit whose mark could not be noted was the last.
        self.hand.progress.check()?;
        assert!(self.hand.owed.lock().index() >= index, "a cycle begins once it is committed");
        self.hand.firm_owed()
    }

    fn pace(&mut self, _: usize) -> io::Result<usize> {
        (self.meanwhile)();
        Ok(PIECE_BYTES)
    }

    fn give_way(&mut self) -> io::Result<()> {
        (self.meanwhile)();
        Ok(())
    }

    fn log_bytes(&self) -> u64 {
        self.hand.progress.log_bytes()
    }

    fn is_short(&self) -> bool {
        self.short
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Chores for Chore {
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned> {
        match self.0.next.lock().take_if(|next| next.capacity >= least) {
            Some(segment) => Ok(segment),
            None => self.0.directory.create_segment(least),
        }
    }

    fn committed(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool) {
        self.0.owed.lock().note(index, file, synced);
    }
}

impl Log for SteppedLog {
    fn append(&mut self, now: Now, kind: u8, head: Bytes, body: Bytes) -> Result<u64, Poisoned> {
        self.hand.progress.check()?;
        self.appended += 1;
        let index = self.appended;
        let whole = Bytes::from([&head[..], &body[..]].concat());
        self.submitted.lock().push(Submitted { index, now, kind, body: whole });
        let command = Pending { index, now, kind, head, body, synced: false };
        let bytes = command.record_len();
        self.hand.progress.uncommitted_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.batch.push(command);
        Ok(index)
    }

    fn sync(&mut self) {
        if let Some(last) = self.batch.last_mut() {
            last.synced = true;
        }
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if self.hand.progress.check().is_ok()
            && let Err(why) = self.writer.write(&batch)
        {
            self.hand.progress.poison(why);
        }
    }

    fn appended(&self) -> u64 {
        self.appended
    }

    fn committed(&self) -> u64 {
        self.hand.progress.committed()
    }

    async fn committed_beyond(&mut self, index: u64) -> Result<u64, Poisoned> {
        if self.committed() <= index {
            self.hand.progress.check()?;
            // Nobody else can append or flush while this waits.
            std::future::pending::<()>().await;
        }
        Ok(self.committed())
    }

    fn uncommitted_bytes(&self) -> usize {
        self.hand.progress.uncommitted_bytes.load(Ordering::Relaxed)
    }

    fn reader(&self) -> Reader {
        self.hand.reader()
    }

    fn budget(&self, leases: u64) -> Budget {
        self.hand.directory.ballast.note_leases(leases);
        self.hand.directory.ballast.budget(self.uncommitted_bytes() as u64)
    }

    fn wants_snapshot(&self, about_bytes: u64) -> bool {
        let newest_bytes = self.hand.cycles.newest_bytes.load(Ordering::Relaxed);
        self.hand.directory.ballast.note_snapshots(newest_bytes, about_bytes);
        self.hand.wants.load(Ordering::Relaxed)
    }

    fn snapshot(&mut self, snapshot: Box<dyn Snapshot>) {
        assert_eq!(snapshot.index(), self.appended, "it reflects all that was appended");
        self.hand.wants.store(false, Ordering::Relaxed);
        *self.hand.frozen.lock() = Some(snapshot);
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics::default()
    }
}
