//! A clock for tests: it stands still until the test moves it, and a move returns once the
//! publisher has run every timer of that period.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_queue::ManualClock;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Moves that may wait for the publisher; further ones wait for a slot.
const MOVES_MAX: usize = 1;

/// A clock that stands still until a test moves it, for
/// [`PublisherOptions::clock`](crate::PublisherOptions::clock). It begins at the machine's time.
/// Its clones are one clock; it serves one publisher, once.
#[derive(Clone, Debug)]
pub struct TestClock {
    manual: ManualClock,
    moves: mpsc::Sender<ClockMove>,
    receiver: Arc<Mutex<Option<mpsc::Receiver<ClockMove>>>>,
}

/// The clock's publisher has stopped, or was never opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the clock's publisher does not run")]
pub struct ClockUnused;

/// A requested move.
#[derive(Debug)]
pub(crate) struct ClockMove {
    pub(crate) by_ms: u64,
    pub(crate) done: oneshot::Sender<()>,
}

impl TestClock {
    /// A clock that stands at the machine's time.
    pub fn new() -> TestClock {
        let (moves, receiver) = mpsc::channel(MOVES_MAX);
        let manual = ManualClock::at_system_time();
        TestClock { manual, moves, receiver: Arc::new(Mutex::new(Some(receiver))) }
    }

    /// The publisher's wall-clock time.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.manual.reading().wall_ms)
    }

    /// Moves the clock forward, in whole milliseconds. Waits until the publisher has run every
    /// timer of that period, each at its own time and in that order, and the results are durable.
    /// With zero: runs the timers that have expired by now.
    ///
    /// Workers run on the machine's clock. So every running lease is renewed first: only a move at
    /// least as long as the lease loses it, as if its worker had stood still for that time. A
    /// requested move happens even if the future is dropped.
    pub async fn advance(&self, by: Duration) -> Result<(), ClockUnused> {
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        let (done, done_receiver) = oneshot::channel();
        self.moves.send(ClockMove { by_ms, done }).await.map_err(|_| ClockUnused)?;
        done_receiver.await.map_err(|_| ClockUnused)
    }

    pub(crate) fn manual(&self) -> ManualClock {
        self.manual.clone()
    }

    /// The receiver of moves, for the publisher; none for a second one.
    pub(crate) fn take_moves(&self) -> Option<mpsc::Receiver<ClockMove>> {
        self.receiver.lock().take()
    }
}

impl Default for TestClock {
    fn default() -> TestClock {
        TestClock::new()
    }
}
