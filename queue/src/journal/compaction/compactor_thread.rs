//! The compactor's thread: when a cycle starts, how fast it runs, and how it ends.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::setpriority_process;

use crate::Poisoned;
use crate::journal::compaction::compactor::{Compactor, CycleContext, CycleError, log_between};
use crate::journal::compaction::pace::{CyclePace, STEP_REST};
use crate::journal::files::directory::Directory;
use crate::journal::housekeeper::Housekeeper;
use crate::journal::wal::progress::CommitProgress;
use crate::log::Snapshot;

/// While the disk is short, and after an abandoned cycle, the next cycle starts after this many
/// times the last one's duration,
const CYCLES_APART: u32 = 4;
/// and at least after this.
const CYCLES_APART_MIN: Duration = Duration::from_secs(1);
/// Decides when a snapshot is due. Pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotTrigger {
    /// Bytes of log written since the last one.
    pub(crate) log_bytes: u64,
    /// Expected bytes of the next one.
    pub(crate) expected_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// The disk is short: room matters more than written bytes.
    pub(crate) short: bool,
    /// The last cycle was abandoned.
    pub(crate) retry: bool,
    /// The last cycle ended long enough ago: see [`CompactorHandle::is_rested`].
    pub(crate) rested: bool,
}

impl SnapshotTrigger {
    pub(crate) fn is_due(self) -> bool {
        if self.retry || self.short {
            // On a short disk a few more settles may free whole segments.
            return self.rested && (self.retry || self.log_bytes > 0);
        }
        self.log_bytes >= log_between(self.expected_bytes, self.segment_bytes)
    }
}

/// Shared by the journal's handle and its compactor's thread.
#[derive(Default)]
pub(crate) struct CompactorHandle {
    waiting: Mutex<CompactorState>,
    wake: Condvar,
}

#[derive(Default)]
struct CompactorState {
    /// When the last cycle ended, and how long it took.
    last: Option<(Instant, Duration)>,
    snapshot: Option<Box<dyn Snapshot>>,
    /// A cycle is running or about to.
    busy: bool,
    /// The last cycle was abandoned.
    abandoned: bool,
    closing: bool,
}

impl CompactorHandle {
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.lock().busy
    }

    /// Starts a cycle with this snapshot. While another cycle runs, the snapshot is dropped: a
    /// later one covers it.
    pub(crate) fn submit(&self, snapshot: Box<dyn Snapshot>) {
        let mut waiting = self.waiting.lock();
        if !waiting.busy && !waiting.closing {
            waiting.busy = true;
            waiting.snapshot = Some(snapshot);
            self.wake.notify_all();
        }
    }

    /// Stops the compactor's thread, and a running cycle before its next chunk.
    pub(crate) fn close(&self) {
        self.waiting.lock().closing = true;
        self.wake.notify_all();
    }

    fn next(&self) -> Option<Box<dyn Snapshot>> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.closing {
                return None;
            }
            if let Some(snapshot) = waiting.snapshot.take() {
                return Some(snapshot);
            }
            self.wake.wait(&mut waiting);
        }
    }

    /// Whether four times the last cycle's duration has passed since it ended, and at least a
    /// second.
    pub(crate) fn is_rested(&self) -> bool {
        let last = self.waiting.lock().last;
        last.is_none_or(|(ended, took)| {
            ended.elapsed() >= CYCLES_APART_MIN.max(took * CYCLES_APART)
        })
    }

    /// Whether the last cycle was abandoned, so that its work is still to be done.
    pub(crate) fn was_abandoned(&self) -> bool {
        self.waiting.lock().abandoned
    }

    fn done(&self, took: Duration, abandoned: bool) {
        let mut waiting = self.waiting.lock();
        waiting.busy = false;
        waiting.abandoned = abandoned;
        waiting.last = Some((Instant::now(), took));
    }

    /// Waits for `time`; false once the journal is closing.
    fn rest(&self, time: Duration) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.closing && !time.is_zero() {
            self.wake.wait_for(&mut waiting, time);
        }
        !waiting.closing
    }
}

/// Niceness of the compactor's thread: on a busy machine it yields to the threads that serve links.
const NICENESS: i32 = 5;

/// Runs cycles until the journal is closed or has failed.
pub(crate) fn run(
    handle: &CompactorHandle,
    mut compactor: Compactor,
    housekeeper: &Housekeeper,
    progress: &CommitProgress,
) {
    // For this thread only. If the system refuses, cycles run at normal priority.
    let _refused = setpriority_process(None, NICENESS);
    while let Some(snapshot) = handle.next() {
        let index = snapshot.index();
        let began = Instant::now();
        let directory = Arc::clone(compactor.directory());
        let mut context = ThreadContext::new(handle, housekeeper, progress, &directory);
        let done = compactor.cycle(snapshot, &mut context);
        let mut abandoned = false;
        match done {
            Ok(()) => tracing::debug!(index, took = ?began.elapsed(), "snapshot"),
            Err(CycleError::Closing) => {}
            Err(error @ CycleError::NotNow { .. }) => {
                tracing::warn!(%error, "a cycle was abandoned; trying again");
                abandoned = true;
            }
            Err(CycleError::Failed(why)) => {
                tracing::error!(%why, "the journal has failed; nothing is acknowledged any more");
                progress.poison(why);
                return;
            }
        }
        handle.done(began.elapsed(), abandoned);
    }
}

/// The cycle context of a running journal.
struct ThreadContext<'a> {
    handle: &'a CompactorHandle,
    housekeeper: &'a Housekeeper,
    progress: &'a CommitProgress,
    directory: &'a Directory,
    pace: CyclePace,
    /// When its first chunk began, and how long the log was then.
    began: (Instant, u64),
}

impl<'a> ThreadContext<'a> {
    fn new(
        handle: &'a CompactorHandle,
        housekeeper: &'a Housekeeper,
        progress: &'a CommitProgress,
        directory: &'a Directory,
    ) -> ThreadContext<'a> {
        let began = (Instant::now(), progress.log_bytes());
        ThreadContext { handle, housekeeper, progress, directory, pace: CyclePace::new(), began }
    }

    fn rest_after(&mut self, bytes: usize) -> Duration {
        let (began, log_bytes) = self.began;
        let grown = self.log_bytes() - log_bytes;
        // Also count while the disk is short.
        let rest = self.pace.rest_after(bytes, began.elapsed(), grown);
        if self.is_short() { Duration::ZERO } else { rest }
    }

    fn rest(&self, time: Duration) -> io::Result<()> {
        match self.handle.rest(time) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::Interrupted, "the journal is closing")),
        }
    }
}

impl CycleContext for ThreadContext<'_> {
    fn sync_up_to(&mut self, index: u64) -> Result<(), Poisoned> {
        self.housekeeper.sync_up_to(index)?;
        self.began = (Instant::now(), self.log_bytes());
        Ok(())
    }

    fn pace(&mut self, bytes: usize) -> io::Result<usize> {
        let rest = self.rest_after(bytes);
        self.rest(rest)?;
        Ok(self.pace.chunk_bytes())
    }

    fn rest_after_step(&mut self) -> io::Result<()> {
        let rest = if self.is_short() { Duration::ZERO } else { STEP_REST };
        self.rest(rest)
    }

    fn log_bytes(&self) -> u64 {
        self.progress.log_bytes()
    }

    fn is_short(&self) -> bool {
        self.directory.ballast.is_short()
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::Ordering;

    use longshore_protocol::PublisherId;

    use super::*;
    use crate::journal::compaction::pace::{CHUNK_BYTES, REST_MIN};
    use crate::journal::files::Files;
    use crate::journal::simulated_disk::SimulatedDisk;
    use crate::journal::wal::commit_watermark::CommitWatermark;

    const MIB: u64 = 1024 * 1024;

    fn trigger(log_bytes: u64, expected_bytes: u64) -> SnapshotTrigger {
        let (short, retry, rested) = (false, false, true);
        SnapshotTrigger { log_bytes, expected_bytes, segment_bytes: MIB, short, retry, rested }
    }

    #[test]
    fn snapshots_are_at_most_a_quarter_of_written_bytes() {
        assert!(!trigger(MIB - 1, 0).is_due(), "a small state waits for a segment");
        assert!(trigger(MIB, 0).is_due());
        assert!(!trigger(13 * 10 * MIB - 1, 40 * MIB).is_due());
        assert!(trigger(13 * 10 * MIB, 40 * MIB).is_due());
    }

    #[test]
    fn short_disk_triggers_a_cycle_on_any_growth_after_a_rest() {
        let short = |log_bytes, rested| SnapshotTrigger {
            short: true,
            rested,
            ..trigger(log_bytes, 10 * MIB)
        };
        assert!(short(1, true).is_due());
        assert!(!short(1, false).is_due());
        assert!(!short(0, true).is_due(), "nothing has changed");
    }

    #[test]
    fn abandoned_cycle_is_retried_without_log_growth() {
        let retry = |rested| SnapshotTrigger { retry: true, rested, ..trigger(0, 10 * MIB) };
        assert!(retry(true).is_due() && !retry(false).is_due());
        let handle = CompactorHandle::default();
        handle.done(Duration::ZERO, true);
        assert!(handle.was_abandoned());
        handle.done(Duration::ZERO, false);
        assert!(!handle.was_abandoned());
    }

    #[test]
    fn cycle_pace_follows_log_growth_since_it_began() {
        let publisher = PublisherId([9; 16]);
        let disk = SimulatedDisk::default();
        let dir = Path::new("/data");
        disk.create_dir(dir).unwrap();
        let slots = disk.create(&dir.join("watermark")).unwrap();
        let nothing = CommitWatermark::read(&*slots, publisher).unwrap();
        let watermark = CommitWatermark::new(slots, dir.join("watermark"), publisher, nothing);
        let directory = Directory::new(Arc::new(disk.clone()), dir.to_owned(), publisher, MIB);
        let (directory, progress) = (Arc::new(directory), Arc::new(CommitProgress::new(0)));
        directory.open_ballast().unwrap();
        let (watermark, handle) = (Arc::new(watermark), CompactorHandle::default());
        let housekeeper =
            Housekeeper::new(Arc::clone(&directory), Arc::clone(&progress), watermark);
        let grows = |bytes: u64| progress.log_bytes.fetch_add(bytes, Ordering::Relaxed);
        grows(100 * MIB);
        let mut context = ThreadContext::new(&handle, &housekeeper, &progress, &directory);
        // Growth before the cycle and while it waited for its commits.
        grows(100 * MIB);
        context.sync_up_to(0).unwrap();
        let longest = context.rest_after(CHUNK_BYTES);
        assert!(longest > Duration::ZERO, "the log has not grown: there is time");
        assert_eq!(context.pace(0).unwrap(), CHUNK_BYTES);
        grows(4 * MIB);
        assert_eq!(context.rest_after(CHUNK_BYTES), REST_MIN, "it is behind");
        assert_eq!(context.pace(CHUNK_BYTES).unwrap(), 4 * CHUNK_BYTES, "longer chunks catch up");
        let mut context = ThreadContext::new(&handle, &housekeeper, &progress, &directory);
        assert_eq!(context.rest_after(CHUNK_BYTES), longest);
        // Room matters more than how long a commit takes.
        disk.leave_free(0);
        directory.ballast.measure();
        assert!(directory.ballast.budget(0).short);
        assert_eq!(context.rest_after(CHUNK_BYTES), Duration::ZERO);
    }

    #[test]
    fn one_cycle_runs_at_a_time_and_none_after_close() {
        struct EmptySnapshot;
        impl Snapshot for EmptySnapshot {
            fn index(&self) -> u64 {
                1
            }
            fn epoch(&self) -> u64 {
                1
            }
            fn about_bytes(&self) -> u64 {
                0
            }
            fn parts(&self, _: &mut dyn FnMut(crate::RecordRef)) {}
            fn next_block(&mut self, _: &mut Vec<u8>) -> bool {
                false
            }
        }
        let handle = CompactorHandle::default();
        assert!(handle.is_rested() && !handle.is_busy());
        handle.submit(Box::new(EmptySnapshot));
        assert!(handle.is_busy());
        handle.submit(Box::new(EmptySnapshot));
        assert!(handle.next().is_some());
        handle.done(Duration::ZERO, false);
        assert!(!handle.is_busy() && !handle.is_rested(), "it has only just ended");
        assert!(handle.rest(Duration::ZERO));
        handle.close();
        assert!(!handle.rest(Duration::ZERO) && handle.next().is_none());
        handle.submit(Box::new(EmptySnapshot));
        assert!(!handle.is_busy());
    }
}
