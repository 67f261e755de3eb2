//! The builder of one job to enqueue.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_kinds::{CodecError, IntoJob, JobKind};
use longshore_protocol::limits::WAIT_MS_MAX;
use longshore_protocol::{Backoff, Due, FairKey, Idempotency, JobId, NewJob, TraceContext, Unique};

use crate::ids::{new_id, to_job};
use crate::outcome::{EnqueueError, Receipt};
use crate::producer::Producer;
use crate::queues::{JobEnd, JobLocator, WaitError, output};

/// How long a result outlives the wait for it, in milliseconds: for the last answer on its way.
const RESULT_MARGIN_MS: u64 = 60_000;

/// A job to enqueue ([`Producer::enqueue`]): its methods override the options of its kind, and
/// awaiting it enqueues the job. Nothing is sent before it is awaited.
#[must_use = "a job is enqueued once this is awaited"]
pub struct Enqueue<'p, J> {
    producer: &'p Producer,
    job: Result<NewJob, EnqueueError>,
    kind: std::marker::PhantomData<fn(J)>,
}

/// Why a job has no result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// It was not enqueued, or may not have been.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// It did not end in time, or its publisher was not available. The job is still enqueued.
    #[error("{job}: {error}")]
    Wait {
        /// The job.
        job: JobLocator,
        /// Why its end is not known.
        error: WaitError,
    },
    /// It ended without completing: dead, cancelled, expired, or gone.
    #[error("{job} did not complete: {end:?}")]
    Ended {
        /// The job.
        job: JobLocator,
        /// How it ended.
        end: JobEnd,
    },
    /// It completed, and its publisher has no result: its handler returned none, or the job existed
    /// already and was enqueued without `keep_result`.
    #[error("{job} completed without a result")]
    NoResult {
        /// The job.
        job: JobLocator,
    },
    /// Its result cannot be decoded as the output of its kind.
    #[error("the result of {job} cannot be decoded: {error}")]
    Output {
        /// The job.
        job: JobLocator,
        /// Why.
        error: CodecError,
    },
}

impl<'p, J: IntoJob> Enqueue<'p, J> {
    pub(crate) fn new(producer: &'p Producer, job: J) -> Enqueue<'p, J> {
        Enqueue { producer, job: to_job(job, new_id), kind: std::marker::PhantomData }
    }
}

impl<J> Enqueue<'_, J> {
    fn set(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        if let Ok(job) = &mut self.job {
            change(job);
        }
        self
    }

    /// Sets the id; a new one by default. The same id again, at the same publisher, is the same
    /// job, so an enqueue that may be repeated should derive its id from its subject.
    pub fn id(self, id: JobId) -> Self {
        self.set(|job| job.id = id)
    }

    /// Gives the job an idempotency key of 1 to 80 bytes, for 24 hours: until then, a job of its
    /// queue with the same key and payload is this job, whatever its id, even if it has ended and
    /// was deleted; another payload is refused
    /// ([`KeyConflict`](longshore_protocol::Refusal::KeyConflict)). The receipt names the job that
    /// has the key. The path needs one publisher, or one home.
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        let key = Idempotency { key: key.into(), for_ms: None };
        self.set(|job| job.keys_mut().idempotency = Some(key))
    }

    /// The same for another time: 1 ms to 30 days.
    pub fn idempotency_key_for(self, key: impl Into<String>, duration: Duration) -> Self {
        let key = Idempotency { key: key.into(), for_ms: Some(milliseconds(duration)) };
        self.set(|job| job.keys_mut().idempotency = Some(key))
    }

    /// Gives the job an order key of 1 to 80 bytes: jobs of its queue with the same key run one at
    /// a time, in the order in which they were enqueued. A job that retries or snoozes keeps the
    /// others waiting; a dead one lets the next go on, unless the queue's
    /// [`dead_blocks_order`](longshore_protocol::QueueSettings::dead_blocks_order) says otherwise.
    /// The path needs one publisher, or one home.
    pub fn order_key(self, key: impl Into<String>) -> Self {
        self.set(|job| job.keys_mut().order = Some(key.into()))
    }

    /// Gives the job a limit key of 1 to 80 bytes: limits of scope key count its jobs together.
    pub fn limit_key(self, key: impl Into<String>) -> Self {
        self.set(|job| job.keys_mut().limit = Some(key.into()))
    }

    /// Lets the job take so many units of its limits, 1 to 1,000; 1 by default.
    pub fn cost(self, units: u16) -> Self {
        self.set(|job| job.keys_mut().cost = Some(units))
    }

    /// Gives the job a fair key of 1 to 80 bytes, such as its tenant: among its queue's ready jobs
    /// of one priority, keys take turns, whatever one of them enqueues. A key of weight 3 gets
    /// three deliveries for one of a key of weight 1; 1 to 1,000, and that of the latest job
    /// counts. The path needs one publisher, or one home.
    pub fn fair_key(self, key: impl Into<String>, weight: u16) -> Self {
        let key = FairKey { key: key.into(), weight };
        self.set(|job| job.keys_mut().fair = Some(key))
    }

    /// Makes the job the only one of its kind in its queue: see [`Unique`]. While another one holds
    /// the key, this one is not created, and the receipt names that one; or this one takes its
    /// place, or is refused, as `unique` says. The path needs one publisher, or one home.
    pub fn unique(mut self, unique: Unique) -> Self {
        self.job = self.job.map(|job| job.unique(unique));
        self
    }

    /// One job with this key runs, and one waits: the latest ([`NewJob::latest`]).
    pub fn latest(mut self, key: impl Into<String>) -> Self {
        self.job = self.job.map(|job| job.latest(key));
        self
    }

    /// Delays the job from when its publisher accepts it; at most 100 years. Monotonic time: clock
    /// changes have no effect. Replaces `run_at`.
    pub fn delay(self, delay: Duration) -> Self {
        self.set(|job| job.options.due = Due::After(milliseconds(delay)))
    }

    /// Delays the job until this time of the publisher's clock; no delay if it is past. At most the
    /// end of the year 9999. Replaces `delay`.
    pub fn run_at(self, at: SystemTime) -> Self {
        self.set(|job| job.options.due = Due::At(since_1970(at)))
    }

    /// The job expires then if it waits, unless an attempt was used up, or a handler snoozed or
    /// throttled it; at most the end of the year 9999.
    pub fn expires_at(self, at: SystemTime) -> Self {
        self.set(|job| job.options.expires_at = Some(since_1970(at)))
    }

    /// Sets the priority: higher first, 0 by default.
    pub fn priority(self, priority: i32) -> Self {
        self.set(|job| job.options.priority = priority)
    }

    /// Sets the attempts before the job is dead: 1 to 65,535.
    pub fn max_attempts(self, attempts: u16) -> Self {
        self.set(|job| job.options.max_attempts = Some(attempts))
    }

    /// Sets the wait after a failed attempt.
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.set(|job| job.options.backoff = Some(backoff))
    }

    /// Sets how soon the loss of a worker is noticed: 1 s to 12 h.
    pub fn lease(self, lease: Duration) -> Self {
        let ms = u32::try_from(milliseconds(lease)).unwrap_or(u32::MAX);
        self.set(|job| job.options.lease_ms = Some(ms))
    }

    /// Sets how long one attempt may run, in whole milliseconds rounded up; zero for no limit. At
    /// most 100 years.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|job| job.options.run_timeout_ms = Some(milliseconds(timeout)))
    }

    /// Sets how long the job is retained once it has ended; at most 100 years.
    pub fn keep(self, keep: Duration) -> Self {
        self.set(|job| job.options.keep_ms = Some(milliseconds(keep)))
    }

    /// Retains the result for as long as the job.
    pub fn keep_result(self) -> Self {
        self.set(|job| job.options.keep_result = true)
    }

    /// Makes the job part of a trace ([`NewJob::traced`]).
    pub fn traced(mut self, trace: &TraceContext) -> Self {
        self.job = self.job.map(|job| job.traced(trace));
        self
    }

    /// The job runs once it is [confirmed](Producer::confirm).
    pub(crate) fn prepared(self) -> Self {
        self.set(|job| job.options.prepared = true)
    }

    /// Adds a header: at most 1,024, and at most 8 KiB of names and values together.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|job| job.headers.0.push((name.into(), value.into())))
    }
}

impl<K: JobKind> Enqueue<'_, K> {
    /// Enqueues the job, and waits for the output of its handler: for at most `limit` from its
    /// receipt on, over restarts of its publisher and of its workers. The publisher retains the
    /// result as the queue retains ended jobs, or as long as the job's own `keep`, which is raised
    /// to `limit`.
    ///
    /// Not cancel safe: dropping the future does not cancel the job, which may or may not have been
    /// enqueued. Set its [`id`](Enqueue::id) to find it again.
    pub async fn result(self, limit: Duration) -> Result<K::Output, ResultError> {
        let (producer, retained) = (self.producer, milliseconds(limit) + RESULT_MARGIN_MS);
        let enqueue = self.keep_result().set(|job| {
            if let Some(keep_ms) = &mut job.options.keep_ms {
                *keep_ms = retained.min(WAIT_MS_MAX).max(*keep_ms);
            }
        });
        let receipt = enqueue.await?;
        match producer.wait(&receipt, limit).await {
            Ok(end) => output::<K>(JobLocator::from(&receipt), end),
            Err(error) => Err(ResultError::Wait { job: JobLocator::from(&receipt), error }),
        }
    }
}

impl<'p, J> IntoFuture for Enqueue<'p, J> {
    type Output = Result<Receipt, EnqueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Receipt, EnqueueError>> + Send + 'p>>;

    fn into_future(self) -> Self::IntoFuture {
        let Enqueue { producer, job, .. } = self;
        Box::pin(async move { producer.enqueue_job(&job?).await })
    }
}

/// Rounded up: a timeout of a microsecond is not zero, which is no limit. At most 100 years and a
/// bit, so that sums do not overflow and what is out of range is refused as such.
pub(crate) fn milliseconds(length: Duration) -> u64 {
    let ms = length.as_nanos().div_ceil(1_000_000);
    u64::try_from(ms).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

/// Milliseconds since 1970; 0 for a time before.
fn since_1970(at: SystemTime) -> u64 {
    milliseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}
