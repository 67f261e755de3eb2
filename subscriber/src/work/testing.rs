//! Attempts that a test runs: the handler, its context and its settle are those of a worker; the
//! test holds the lease.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{CheckpointInfo, JobTimes, NewSettle};
use longshore_protocol::{Path, Token};
use tokio::time::Instant;

pub use crate::work::lease_host::{LeaseHost, ParentsAnswer, ReadAnswer, StoreAnswer};

use crate::work::handler::attempts::ServiceAttempts;
use crate::work::handler_task::{JobClock, run_job};
use crate::work::lease_signal::LeaseSignal;
use crate::work::session::QueuedJob;
use crate::{
    CancelReason, Checkpoint, CheckpointsError, Handler, JobService, Kinds, Router, RunError,
};

/// A delivery of a job.
#[derive(Debug)]
pub struct Delivered {
    /// The lease's token.
    pub token: Token,
    /// The job's queue.
    pub path: Path,
    /// The number of the attempt, from 1.
    pub attempt: u16,
    /// Deliveries so far, this one included.
    pub deliveries: u16,
    /// Checkpoints that earlier attempts have stored.
    pub checkpoints: u16,
    /// When the job was enqueued and due.
    pub times: JobTimes,
    /// The producer's entry.
    pub entry: Bytes,
}

/// The lease of an attempt, as the side that holds it sees it.
#[derive(Clone, Debug)]
pub struct Lease {
    signal: Arc<LeaseSignal>,
}

impl Lease {
    /// A lease that ends at `ends`, counted from the host's start.
    pub fn new(host: Weak<dyn LeaseHost>, ends: Duration) -> Lease {
        let lease = Lease { signal: Arc::new(LeaseSignal::for_session(host)) };
        lease.extend(ends);
        lease
    }

    /// The lease was renewed, and ends at `ends`.
    pub fn extend(&self, ends: Duration) {
        self.signal.extend(ends);
    }

    /// Cancels the handler. The first reason stays.
    pub fn cancel(&self, reason: CancelReason) {
        self.signal.cancel(reason);
    }

    /// Takes the progress that the handler has reported since the last call.
    pub fn take_progress(&self) -> Option<(u8, String)> {
        self.signal.take_unsent_progress()
    }
}

/// The outcome of an attempt.
#[derive(Debug)]
pub struct Ended {
    /// What the worker would send.
    pub settle: NewSettle,
    /// The handler panicked.
    pub panicked: bool,
}

/// Runs one attempt as a worker does. Its context counts time from `started`.
pub async fn attempt(
    service: impl JobService,
    started: Instant,
    delivered: Delivered,
    lease: Lease,
) -> Ended {
    let Delivered { token, path, attempt, deliveries, checkpoints, times, entry } = delivered;
    let job = QueuedJob {
        slot_id: 0,
        subscription: 0,
        source: 0,
        token,
        path,
        attempt,
        deliveries,
        checkpoints,
        times,
        entry,
    };
    let mut attempts = ServiceAttempts::new(service);
    let clock = JobClock { started, cancel_grace: Duration::MAX };
    let finished = run_job(&clock, &mut attempts, job, lease.signal).await;
    Ended { settle: finished.settle, panicked: finished.panicked }
}

/// Handlers that share a state.
pub fn kinds<S: Send + Sync + 'static>(state: S) -> Kinds<S> {
    Kinds::new(state)
}

/// Adds a handler.
pub fn add<H: Handler<A, S>, A, S: Send + Sync + 'static>(kinds: &mut Kinds<S>, handler: H) {
    kinds.add(handler);
}

/// The service that routes each job to its handler.
pub fn router<S: Send + Sync + 'static>(kinds: Kinds<S>) -> Result<Router<S>, RunError> {
    Ok(kinds.build()?.2)
}

/// The checkpoints of earlier deliveries: of those stored, without the `own_count` that this
/// delivery has stored itself.
pub fn earlier(
    stored: Vec<CheckpointInfo>,
    attempt: u16,
    own_count: u64,
) -> Result<Vec<Checkpoint>, CheckpointsError> {
    crate::work::session::earlier(stored, attempt, own_count)
}
