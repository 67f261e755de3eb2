//! A clock for tests: it stands still until the test moves it, and whoever moves it waits until the
//! publisher has lived through all of that time.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_queue::StandingClock;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Moves that may wait for the publisher; whoever asks for one more waits.
const MOVES_MAX: usize = 1;

/// A clock that stands still until a test moves it, for
/// [`PublisherOptions::clock`](crate::PublisherOptions::clock). It begins at the machine's time.
/// Its clones are one clock; it serves one publisher, once.
#[derive(Clone, Debug)]
pub struct TestClock {
    standing: StandingClock,
    ask: mpsc::Sender<Move>,
    asked: Arc<Mutex<Option<mpsc::Receiver<Move>>>>,
}

/// Nobody lives by this clock: its publisher has stopped, or was never opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the clock's publisher does not run")]
pub struct ClockUnused;

/// A move that was asked for.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) by_ms: u64,
    pub(crate) done: oneshot::Sender<()>,
}

impl TestClock {
    /// A clock that stands at the machine's time.
    pub fn new() -> TestClock {
        let (ask, asked) = mpsc::channel(MOVES_MAX);
        let standing = StandingClock::at_the_machines();
        TestClock { standing, ask, asked: Arc::new(Mutex::new(Some(asked))) }
    }

    /// What it says, as the publisher's wall clock.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.standing.reading().wall_ms)
    }

    /// Moves it on, in whole milliseconds, and waits until the publisher has done all that comes
    /// due in that time, each thing at its own time and in that order, and it is durable. With
    /// zero: until it has done what is due now.
    ///
    /// Workers live on by the machine's clock. So every lease that runs is renewed first: it is
    /// lost only to a move that is as long as itself or longer, as if its worker had stood still
    /// for so long. Once asked for, a move happens even if the future is dropped.
    pub async fn advance(&self, by: Duration) -> Result<(), ClockUnused> {
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        let (done, moved) = oneshot::channel();
        self.ask.send(Move { by_ms, done }).await.map_err(|_| ClockUnused)?;
        moved.await.map_err(|_| ClockUnused)
    }

    pub(crate) fn standing(&self) -> StandingClock {
        self.standing.clone()
    }

    /// For the publisher that lives by it; none for a second one.
    pub(crate) fn take_moves(&self) -> Option<mpsc::Receiver<Move>> {
        self.asked.lock().take()
    }
}

impl Default for TestClock {
    fn default() -> TestClock {
        TestClock::new()
    }
}
