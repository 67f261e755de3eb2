//! What a handler is given.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{Headers, JobId, Path, Token, TraceContext};
use tokio::time::Instant;

use crate::work::lease_signal::LeaseSignal;
use crate::work::session::SlotId;

/// A job, its payload read as the handler's type ([`FromPayload`](crate::FromPayload)).
#[derive(Clone, PartialEq, Debug)]
pub struct Job<T> {
    /// Its id, the same at every attempt.
    pub id: JobId,
    /// The queue that it came from.
    pub path: Path,
    /// What its producer attached.
    pub headers: Headers,
    /// What it is about.
    pub payload: T,
}

/// The right to run a job, as its handler sees it. Cheap to clone. The lease is renewed beside the
/// handler for as long as the handler runs, so there is nothing to call.
#[derive(Clone)]
pub struct JobContext {
    pub(crate) signal: Arc<LeaseSignal>,
    pub(crate) started: Instant,
    pub(crate) id: JobId,
    pub(crate) path: Path,
    pub(crate) slot_id: SlotId,
    pub(crate) token: Token,
    pub(crate) attempt: u16,
    pub(crate) max_attempts: Option<u16>,
    pub(crate) keeps_result: bool,
    pub(crate) deliveries: u16,
    /// Checkpoints that were there when the job was delivered.
    pub(crate) earlier: u16,
    pub(crate) trace: Option<TraceContext>,
}

/// Why a handler should stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CancelReason {
    /// The job is another worker's by now, or its publisher could not be told in time that it is
    /// still being worked on. Whatever the handler returns is refused.
    #[error("the lease was lost")]
    LeaseLost,
    /// A user cancelled the job. Whatever the handler returns is refused.
    #[error("the job was cancelled")]
    Cancelled,
    /// The attempt ran for longer than the job's run timeout allows, renewed or not: the attempt
    /// has failed, and the job is tried again, or dead. Whatever the handler returns is refused.
    #[error("the attempt ran for longer than its run timeout")]
    TimedOut,
    /// The worker is stopping and its grace is over: the job goes back, its attempt given back.
    #[error("the worker is stopping")]
    Shutdown,
}

impl JobContext {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// The queue that the job came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number that proves this lease: strictly rising at the job's publisher, so that a store
    /// which remembers the highest one can refuse a late writer. Another at every delivery; the
    /// same for as long as this one lasts.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Which attempt this is, from 1. A delivery that was given back does not count, so two runs
    /// may have the same number.
    pub fn attempt(&self) -> u16 {
        self.attempt
    }

    /// How many attempts the job may have, if its producer said so; `None` where its queue's
    /// setting counts, or the default of 10: publishers do not tell these.
    pub fn max_attempts(&self) -> Option<u16> {
        self.max_attempts
    }

    /// Whether the job keeps its result. If not, what its handler returns is discarded here,
    /// whatever its length.
    pub fn keeps_result(&self) -> bool {
        self.keeps_result
    }

    /// How often the job was delivered, this time included: over `attempt` when a delivery was
    /// given back unstarted.
    pub fn deliveries(&self) -> u16 {
        self.deliveries
    }

    /// The trace that the job's producer attached, if it attached one that is well formed. A
    /// handler that enqueues jobs of its own makes them part of it with
    /// [`NewJob::traced`](longshore_protocol::NewJob::traced). The span `job` that the handler runs
    /// in names it, too.
    pub fn trace_context(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Says how far the handler is, for people who look at the job: a percentage (over 100 is taken
    /// for 100) and a text (cut at 256 bytes). It waits for nothing and is soft: each publisher is
    /// told at most ten times a second, the newest of each job; it is not logged, and gone with the
    /// lease. What later attempts are to know is a [checkpoint](JobContext::checkpoint).
    pub fn progress(&self, percent: u8, message: impl AsRef<str>) {
        if self.signal.report_progress(percent, message.as_ref())
            && let Some(session) = self.signal.session.upgrade()
        {
            session.progress(self.slot_id, self.token);
        }
    }

    /// Until when the job is certain to be this worker's: the end of its lease, which the worker
    /// renews in time. While the link to the publisher is down or silent, it is no later than the
    /// publisher's reconnect grace (5 s by default) after the last byte that came: then another
    /// worker may be given the job. The handler is not cancelled by that, as the publisher may be
    /// back before; it is when the lease ends or turns out to be lost.
    pub fn deadline(&self) -> Instant {
        let ends = self.signal.ends();
        let session = self.signal.session.upgrade();
        self.started + session.map_or(ends, |session| session.deadline(self.slot_id, ends))
    }

    /// How long it is until [`deadline`](JobContext::deadline); zero once that is over.
    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Why the handler should stop, if it should.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.signal.reason()
    }

    /// True when the handler should stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Waits until the handler should stop. Cancel safe; it may be awaited many times, and at
    /// several places at once.
    pub async fn cancelled(&self) -> CancelReason {
        self.signal.cancelled().await
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("id", &self.id)
            .field("path", &self.path)
            .field("token", &self.token)
            .field("attempt", &self.attempt)
            .field("deliveries", &self.deliveries)
            .field("cancelled", &self.cancel_reason())
            .finish()
    }
}
