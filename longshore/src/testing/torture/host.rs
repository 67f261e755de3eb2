//! Holds the leases of a case's runs, and collects what their contexts request.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::RequestError;
use longshore_protocol::{JobId, Token};
use longshore_queue::LeaseTiming;
use longshore_subscriber::testing::{LeaseHost, ParentsAnswer, ReadAnswer, StoreAnswer};
use longshore_subscriber::{
    CancelReason, Checkpoint, CheckpointError, CheckpointsError, JobContext,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub(super) struct Host {
    started: Instant,
    /// Wakes the driver of the case.
    pub(super) wake: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    leases: HashMap<Token, HeldLease>,
    requests: VecDeque<(Token, HostRequest)>,
}

/// A lease as its worker knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    /// When it ends unless it is renewed.
    pub(super) ends: Duration,
    /// Since when the worker has no link.
    pub(super) unlinked_since: Option<Duration>,
}

/// What a context requests.
pub(super) enum HostRequest {
    Store(Bytes, oneshot::Sender<Result<u64, CheckpointError>>),
    Read(oneshot::Sender<Result<Vec<Checkpoint>, CheckpointsError>>),
    Progress,
}

impl HostRequest {
    /// Answers that the attempt has ended, or why its lease was lost.
    pub(super) fn end(self, why: Option<CancelReason>) {
        match self {
            HostRequest::Store(_, answer) => {
                let _ = answer.send(Err(why.map_or(CheckpointError::Ended, CheckpointError::Lost)));
            }
            HostRequest::Read(answer) => {
                let why = why.map_or(CheckpointsError::Ended, CheckpointsError::Lost);
                let _ = answer.send(Err(why));
            }
            HostRequest::Progress => {}
        }
    }
}

impl Host {
    pub(super) fn new(started: Instant) -> Arc<Host> {
        Arc::new(Host { started, wake: Arc::default(), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker holds this lease.
    pub(super) fn hold(&self, token: Token, lease: HeldLease) {
        self.state().leases.insert(token, lease);
    }

    /// The worker knows that the lease is over.
    pub(super) fn forget(&self, token: Token) {
        self.state().leases.remove(&token);
    }

    /// Takes the requests since the last call, in order.
    pub(super) fn take_requests(&self) -> VecDeque<(Token, HostRequest)> {
        std::mem::take(&mut self.state().requests)
    }

    /// Adds a request. `Err` is why the attempt can request nothing; none if it has ended.
    fn request(
        &self,
        context: &JobContext,
        request: HostRequest,
    ) -> Result<(), Option<CancelReason>> {
        let mut state = self.state();
        match state.leases.get(&context.token()) {
            // The handler may notice the end of its lease before its worker does.
            Some(lease) if lease.ends <= self.started.elapsed() => {
                Err(Some(CancelReason::LeaseLost))
            }
            Some(_) => {
                state.requests.push_back((context.token(), request));
                drop(state);
                self.wake.notify_one();
                Ok(())
            }
            None => Err(context.cancel_reason()),
        }
    }
}

impl LeaseHost for Host {
    fn deadline(&self, context: &JobContext, ends: Duration) -> Duration {
        let grace = Duration::from_millis(LeaseTiming::default().reconnect_grace_ms);
        let lease = self.state().leases.get(&context.token()).copied();
        match lease.and_then(|lease| lease.unlinked_since) {
            Some(since) => ends.min(since + grace),
            None => ends,
        }
    }

    fn progress(&self, context: &JobContext) {
        // A report without a lease is dropped.
        let _ = self.request(context, HostRequest::Progress);
    }

    fn checkpoint(
        &self,
        context: &JobContext,
        bytes: Bytes,
    ) -> Result<StoreAnswer, CheckpointError> {
        let (sender, answer) = oneshot::channel();
        match self.request(context, HostRequest::Store(bytes, sender)) {
            Ok(()) => Ok(answer),
            Err(why) => Err(why.map_or(CheckpointError::Ended, CheckpointError::Lost)),
        }
    }

    fn checkpoints(&self, context: &JobContext) -> Result<ReadAnswer, CheckpointsError> {
        let (sender, answer) = oneshot::channel();
        match self.request(context, HostRequest::Read(sender)) {
            Ok(()) => Ok(answer),
            Err(why) => Err(why.map_or(CheckpointsError::Ended, CheckpointsError::Lost)),
        }
    }

    fn parent_jobs(
        &self,
        _: &JobContext,
        _: JobId,
        _: u64,
    ) -> Result<ParentsAnswer, CheckpointsError> {
        // The jobs of a torture have no parents.
        Err(CheckpointsError::Refused(RequestError::Forbidden))
    }
}
