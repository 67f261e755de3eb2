//! The arguments of a handler.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use longshore_protocol::messages::work::JobTimes;
use longshore_protocol::{Headers, JobId, Parent, Path, Token, TraceContext};
use tokio::time::Instant;

use crate::work::lease_signal::LeaseSignal;
use crate::work::session::SlotId;

/// A job with its decoded payload ([`FromPayload`](crate::FromPayload)).
#[derive(Clone, PartialEq, Debug)]
pub struct Job<T> {
    /// Its id, the same at every attempt.
    pub id: JobId,
    /// The queue that it came from.
    pub path: Path,
    /// The headers that its producer attached.
    pub headers: Headers,
    /// The payload.
    pub payload: T,
}

/// The lease of a job, as its handler sees it. Cheap to clone. The worker renews the lease while
/// the handler runs.
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
    /// The number of checkpoints at the delivery of the job.
    pub(crate) earlier: u16,
    pub(crate) times: JobTimes,
    pub(crate) trace: Option<TraceContext>,
    /// Its parents; none for most jobs, which have no list of them.
    pub(crate) parents: Option<Arc<[Parent]>>,
}

/// Why a handler should stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CancelReason {
    /// Another worker may have the job, or the lease could not be renewed in time. The publisher
    /// refuses whatever the handler returns.
    #[error("the lease was lost")]
    LeaseLost,
    /// A user cancelled the job. The publisher refuses whatever the handler returns.
    #[error("the job was cancelled")]
    Cancelled,
    /// The attempt exceeded the job's run timeout: the attempt has failed, and the job is retried
    /// or dead. The publisher refuses whatever the handler returns.
    #[error("the attempt ran for longer than its run timeout")]
    TimedOut,
    /// The worker is stopping and its grace is over: the job is released, and the attempt is not
    /// used up.
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

    /// The fencing token of this lease: strictly increasing at the job's publisher, so that a store
    /// that remembers the highest one can refuse a late writer. Each delivery has a new one.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The number of this attempt, from 1. A released delivery does not count, so two runs may have
    /// the same number.
    pub fn attempt(&self) -> u16 {
        self.attempt
    }

    /// The job's maximum number of attempts, if its producer set one. `None` means the queue's
    /// setting or the default of 25, which publishers do not send.
    pub fn max_attempts(&self) -> Option<u16> {
        self.max_attempts
    }

    /// Whether the job retains its result. If not, the result is discarded here, whatever its
    /// length.
    pub fn keeps_result(&self) -> bool {
        self.keeps_result
    }

    /// The number of deliveries of the job, including this one. Larger than `attempt` if an earlier
    /// one used up no attempt: it was released, snoozed, throttled, or lost before it began.
    pub fn deliveries(&self) -> u16 {
        self.deliveries
    }

    /// When the job was enqueued, by its publisher's clock.
    pub fn enqueued_at(&self) -> SystemTime {
        time_of(self.times.enqueued_at)
    }

    /// When this run of the job was due, by its publisher's clock: the time that its producer set
    /// with a delay or `run_at`, the time of the retry, or the time at which an earlier delivery
    /// returned to the queue. Equal to [`enqueued_at`](JobContext::enqueued_at) for a job that was
    /// ready at once.
    pub fn scheduled_at(&self) -> SystemTime {
        time_of(self.times.scheduled_at)
    }

    /// How long the job was ready before the publisher delivered it, by the publisher's monotonic
    /// clock. Time in this worker's own buffer is not included.
    pub fn queue_latency(&self) -> Duration {
        Duration::from_millis(self.times.waited_ms)
    }

    /// The trace context that the job's producer attached, if it is well formed. A handler that
    /// enqueues jobs adds them to the trace with
    /// [`NewJob::traced`](longshore_protocol::NewJob::traced). The handler's span `job` names it,
    /// too.
    pub fn trace_context(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Reports progress for operators: a percentage (over 100 counts as 100) and a text (cut at 256
    /// bytes). Waits for nothing. Each publisher receives at most ten messages a second, with the
    /// latest report of each job. Progress is not logged, and is gone with the lease; use a
    /// [checkpoint](JobContext::checkpoint) for data that later attempts need.
    pub fn progress(&self, percent: u8, message: impl AsRef<str>) {
        if self.signal.report_progress(percent, message.as_ref())
            && let Some(session) = self.signal.session.upgrade()
        {
            session.progress(self);
        }
    }

    /// Until when the job is certain to be this worker's: the end of its lease, which the worker
    /// renews in time. While the link to the publisher is down or silent, this is at most the
    /// publisher's reconnect grace (5 s by default) after the last received byte: then another
    /// worker may receive the job. The handler is not cancelled at that time, because the publisher
    /// may return before the lease ends; it is cancelled when the lease ends or is lost.
    pub fn deadline(&self) -> Instant {
        let ends = self.signal.ends();
        let session = self.signal.session.upgrade();
        self.started + session.map_or(ends, |session| session.deadline(self, ends))
    }

    /// The time until [`deadline`](JobContext::deadline); zero after it.
    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Why the handler should stop; `None` if it should run.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.signal.reason()
    }

    /// True when the handler should stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Waits until the handler should stop. Cancel safe; may be awaited many times and
    /// concurrently.
    pub async fn cancelled(&self) -> CancelReason {
        self.signal.cancelled().await
    }
}

/// A time beyond the platform's range is as good as none.
fn time_of(wall_ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(wall_ms))
        .unwrap_or(SystemTime::UNIX_EPOCH)
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
