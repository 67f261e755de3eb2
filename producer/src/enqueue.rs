//! One job on its way to a publisher, and what may still be set of it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_kinds::{Codec, CodecError, IntoJob, JobKind};
use longshore_protocol::{Backoff, Due, JobId, NewJob};

use crate::ids::new_id;
use crate::outcome::{EnqueueError, Receipt};
use crate::producer::Producer;
use crate::queues::{JobEnd, WaitError};

/// A job that [`Producer::enqueue`] was given. Awaited, it is enqueued; what is set before differs
/// from its kind's options. Nothing is sent before it is awaited.
#[must_use = "a job is enqueued once this is awaited"]
pub struct Enqueue<'p, J> {
    producer: &'p Producer,
    job: Result<NewJob, EnqueueError>,
    kind: std::marker::PhantomData<fn(J)>,
}

/// Why there is no result of a job.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// It is not known that it was enqueued.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// It has not ended in time, or its publisher cannot be asked. The job goes on.
    #[error("{receipt}: {error}")]
    Wait {
        /// The job.
        receipt: Receipt,
        /// Why its end is not known.
        error: WaitError,
    },
    /// It has ended without a result.
    #[error("{receipt} has ended without a result: {end:?}")]
    Ended {
        /// The job.
        receipt: Receipt,
        /// How it ended.
        end: JobEnd,
    },
    /// Its result is not what its kind says that a handler returns.
    #[error("the result of {receipt} cannot be read: {error}")]
    Output {
        /// The job.
        receipt: Receipt,
        /// Why.
        error: CodecError,
    },
}

impl<'p, J: IntoJob> Enqueue<'p, J> {
    pub(crate) fn new(producer: &'p Producer, job: J) -> Enqueue<'p, J> {
        let job =
            job.into_job(new_id).map_err(|error| EnqueueError::NotMade(error.to_string().into()));
        Enqueue { producer, job, kind: std::marker::PhantomData }
    }
}

impl<J> Enqueue<'_, J> {
    fn set(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        if let Ok(job) = &mut self.job {
            change(job);
        }
        self
    }

    /// Under this id instead of a new one. The same id again, at the same publisher, is the same
    /// job: an enqueue that may be repeated derives its id from what it is about.
    pub fn id(self, id: JobId) -> Self {
        self.set(|job| job.id = id)
    }

    /// Not to be run before this long after its publisher took it, in whole milliseconds; at most
    /// 100 years. Monotonic time: a changed clock does not move it.
    pub fn delay(self, delay: Duration) -> Self {
        self.set(|job| job.options.due = Due::After(milliseconds(delay)))
    }

    /// Not to be run before this time of the publisher's clock; at once if that is past.
    pub fn run_at(self, at: SystemTime) -> Self {
        self.set(|job| job.options.due = Due::At(since_1970(at)))
    }

    /// Expires if no attempt has begun by then.
    pub fn expires_at(self, at: SystemTime) -> Self {
        self.set(|job| job.options.expires_at = Some(since_1970(at)))
    }

    /// Higher first; 0 unless its kind says otherwise.
    pub fn priority(self, priority: i32) -> Self {
        self.set(|job| job.options.priority = priority)
    }

    /// Attempts before it goes to the dead letters: 1 to 65,535.
    pub fn max_attempts(self, attempts: u16) -> Self {
        self.set(|job| job.options.max_attempts = Some(attempts))
    }

    /// The wait after a failed attempt.
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.set(|job| job.options.backoff = Some(backoff))
    }

    /// How long one attempt may run; nothing for as long as it likes. At most 100 years.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|job| job.options.run_timeout_ms = Some(milliseconds(timeout)))
    }

    /// How long it stays readable once it has ended; at most 100 years.
    pub fn keep(self, keep: Duration) -> Self {
        self.set(|job| job.options.keep_ms = Some(milliseconds(keep)))
    }

    /// Its result is kept for as long as the job is.
    pub fn keep_result(self) -> Self {
        self.set(|job| job.options.keep_result = true)
    }

    /// Not to be run before it is [confirmed](Producer::confirm).
    pub(crate) fn prepared(self) -> Self {
        self.set(|job| job.options.prepared = true)
    }

    /// Adds a header: at most 1,024, at most 8 KiB of names and values together.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|job| job.headers.0.push((name.into(), value.into())))
    }
}

impl<K: JobKind> Enqueue<'_, K> {
    /// Enqueues it, and waits until its handler has returned: at most for `limit`, over restarts
    /// of its publisher and of its workers. The result is kept at the publisher meanwhile.
    ///
    /// Not cancel safe in one way: dropping the future leaves the job where it is.
    pub async fn result(self, limit: Duration) -> Result<K::Output, ResultError> {
        let producer = self.producer;
        let receipt = self.keep_result().await?;
        match producer.wait(&receipt, limit).await {
            Ok(JobEnd::Completed { result: Some(result) }) => {
                <K::Codec as Codec<K::Output>>::decode(&result)
                    .map_err(|error| ResultError::Output { receipt, error })
            }
            Ok(end) => Err(ResultError::Ended { receipt, end }),
            Err(error) => Err(ResultError::Wait { receipt, error }),
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

fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A time before 1970 is long past.
fn since_1970(at: SystemTime) -> u64 {
    milliseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}
