//! Whether a publisher works, for a watchdog.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Requests that may wait for the publisher's task; further ones wait for a slot.
const REQUESTS_MAX: usize = 1;

/// The state of a publisher whose task answers ([`HealthHandle::health`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherHealth {
    /// The age of the oldest command that is not yet durable; zero for none.
    pub oldest_uncommitted: Duration,
    /// The disk hangs: that age has reached
    /// [`hang_after`](crate::PublisherOptions::hang_after). No client is served until it recovers.
    pub disk_hangs: bool,
}

/// A request to the publisher's task.
pub(crate) type HealthRequest = oneshot::Sender<PublisherHealth>;

/// Reads the health of a running publisher. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HealthHandle {
    requests: mpsc::Sender<HealthRequest>,
}

impl HealthHandle {
    pub(crate) fn new() -> (HealthHandle, mpsc::Receiver<HealthRequest>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        (HealthHandle { requests }, receiver)
    }

    /// The health; `None` once the publisher has stopped. The task that owns the queues answers,
    /// also while it accepts nothing for a slow disk. While it is stuck this waits, so set a
    /// timeout. Waits until [`Publisher::run`](crate::Publisher::run) serves. Cancel safe.
    pub async fn health(&self) -> Option<PublisherHealth> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(answer).await.ok()?;
        answered.await.ok()
    }
}
