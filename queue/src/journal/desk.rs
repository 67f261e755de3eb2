//! The cleaner's thread: when a cycle is due, at which pace it goes, and how it ends.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::setpriority_process;

use super::cleaner::{Around, Cleaner, CycleError};
use super::directory::Directory;
use super::housekeeper::Housekeeper;
use super::progress::Progress;
use crate::Poisoned;
use crate::log::Snapshot;

/// After each piece, so many times as long as it took nothing is done: commits have the disk for half of the time.
const REST: u32 = 1;
/// The longest rest after a piece. Of a machine that is busy a cycle gets its share all the same, or the log would grow faster than
/// it is cleaned: 256 KiB in 5 ms are 50 MB/s.
const REST_MAX: Duration = Duration::from_millis(5);
/// After a cycle that found no room, the next is tried so much later.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Of all that is written, one part in so many is snapshots at most: so much log comes before each, in lengths of a snapshot.
const LOG_PER_SNAPSHOT: u64 = 3;

/// When a snapshot is due. Pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Bytes of log written since the last one.
    pub(crate) log_bytes: u64,
    /// Bytes that the next one will take, about.
    pub(crate) about_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// The disk is short: room matters more than what is written.
    pub(crate) short: bool,
}

impl Due {
    pub(crate) fn is_due(self) -> bool {
        let enough = match self.short {
            true => self.segment_bytes / 4,
            false => self.segment_bytes.max(LOG_PER_SNAPSHOT * self.about_bytes),
        };
        self.log_bytes >= enough
    }
}

/// What the journal's handle leaves for its cleaner.
#[derive(Default)]
pub(crate) struct Desk {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    snapshot: Option<Box<dyn Snapshot>>,
    /// A cycle is under way, or one is about to be.
    busy: bool,
    closing: bool,
}

impl Desk {
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.lock().busy
    }

    /// The next cycle's snapshot. One that comes while another is under way is dropped: a later one will cover it.
    pub(crate) fn put(&self, snapshot: Box<dyn Snapshot>) {
        let mut waiting = self.waiting.lock();
        if !waiting.busy && !waiting.closing {
            waiting.busy = true;
            waiting.snapshot = Some(snapshot);
            self.wake.notify_all();
        }
    }

    /// Ends the cleaner's thread, and a cycle that is under way before its next piece.
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

    fn done(&self) {
        self.waiting.lock().busy = false;
    }

    /// Waits for that long; false once the journal is closing.
    fn rest(&self, time: Duration) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.closing && !time.is_zero() {
            self.wake.wait_for(&mut waiting, time);
        }
        !waiting.closing
    }
}

/// How much less of a processor a cycle gets than what serves links, where there are not enough for both.
const NICENESS: i32 = 5;

/// Runs cycles until the journal is closed or has failed.
pub(crate) fn run(
    desk: &Desk,
    mut cleaner: Cleaner,
    housekeeper: &Housekeeper,
    progress: &Progress,
) {
    // Of this thread alone. Where the system refuses, a cycle is as quick as everything else.
    let _refused = setpriority_process(None, NICENESS);
    while let Some(mut snapshot) = desk.next() {
        let index = snapshot.index();
        let began = Instant::now();
        let directory = Arc::clone(cleaner.directory());
        let mut around =
            Surroundings { desk, housekeeper, directory: &directory, piece_began: began };
        let done = cleaner.cycle(&mut *snapshot, &mut around);
        // What was frozen is given free before the next is asked for.
        drop(snapshot);
        match done {
            Ok(()) => tracing::debug!(index, took = ?began.elapsed(), "snapshot"),
            Err(CycleError::Closing) => {}
            Err(error @ CycleError::NotNow { .. }) => {
                tracing::warn!(%error, "no snapshot could be made; trying again");
                desk.rest(RETRY_AFTER);
            }
            Err(CycleError::Failed(why)) => {
                tracing::error!(%why, "the journal has failed; nothing is acknowledged any more");
                progress.poison(why);
                return;
            }
        }
        desk.done();
    }
}

/// The cycle's surroundings in a running journal.
struct Surroundings<'a> {
    desk: &'a Desk,
    housekeeper: &'a Housekeeper,
    directory: &'a Directory,
    piece_began: Instant,
}

impl Around for Surroundings<'_> {
    fn settle(&mut self, index: u64) -> Result<(), Poisoned> {
        self.housekeeper.settle(index)?;
        self.piece_began = Instant::now();
        Ok(())
    }

    fn pace(&mut self, _bytes: usize) -> io::Result<()> {
        let took = self.piece_began.elapsed();
        let rest = if self.is_short() { Duration::ZERO } else { (took * REST).min(REST_MAX) };
        if !self.desk.rest(rest) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the journal is closing"));
        }
        self.piece_began = Instant::now();
        Ok(())
    }

    fn is_short(&self) -> bool {
        self.directory.reserve.level().is_short()
    }
}
