//! What can be set about enqueueing jobs. Every limit has a name, a unit and a default.

use std::time::Duration;

use longshore_transport::LinkOptions;

/// The longest that a batch may go unanswered: what is longer counts as this, 30 days.
pub(crate) const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How a [`Producer`](crate::Producer) works.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// What operators see; 1 to 128 bytes. With another nothing is sent, and every job has
    /// [`EnqueueError::Name`](crate::EnqueueError::Name) for an answer. The default is `producer-`
    /// and the process's id.
    pub name: String,
    /// How long a batch may go unanswered, from its first job on; at most 30 days. Its bytes add to
    /// it at 1 MB/s. 30 s by default.
    pub answer_timeout: Duration,
    /// What is done with batches that may have reached a publisher which is away. By default no job
    /// exists twice.
    pub failover: Failover,
    /// Most jobs of [`Producer::enqueue`](crate::Producer::enqueue) that wait for their receipts,
    /// and of each call of [`Producer::enqueue_all`](crate::Producer::enqueue_all); one more waits.
    /// 100,000 by default.
    pub in_flight_jobs_max: usize,
    /// Most bytes of them; a single job of any size is taken while there is no other. 64 MiB by
    /// default.
    pub in_flight_bytes_max: usize,
    /// How links to publishers are made.
    pub link: LinkOptions,
}

impl Default for ProducerOptions {
    /// 30 s, no duplicates, 100,000 jobs and 64 MiB in flight.
    fn default() -> ProducerOptions {
        ProducerOptions {
            name: format!("producer-{}", std::process::id()),
            answer_timeout: Duration::from_secs(30),
            failover: Failover::default(),
            in_flight_jobs_max: 100_000,
            in_flight_bytes_max: 64 * 1024 * 1024,
            link: LinkOptions::default(),
        }
    }
}

/// What is done with a batch that may have reached a publisher which has gone away since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Failover {
    /// It is sent again to that publisher only, until it is answered or its time is up: no job
    /// exists twice. When its time is up, its jobs are
    /// [`EnqueueError::Unknown`](crate::EnqueueError::Unknown).
    #[default]
    SamePublisher,
    /// Another publisher gets it if that one cannot be reached at once: a job may exist at both,
    /// and run twice. Its receipt says so ([`Receipt::may_be_at`](crate::Receipt::may_be_at)).
    MayDuplicate,
}

/// How a pipeline fills its batches, and how much of it may be in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineOptions {
    /// Most jobs that were taken in and not yet answered; one more waits in `send`. Each of a
    /// path's publishers gets an equal share of them, and one batch at least: so that one which
    /// hangs leaves the others theirs, this should be several batches for each publisher. 100,000
    /// by default.
    pub in_flight_jobs_max: usize,
    /// Most bytes of them, shared in the same way; a single job of any size is taken while there is
    /// no other. 64 MiB by default.
    pub in_flight_bytes_max: usize,
    /// How long a batch that is not full waits while the publisher still has one to answer. 1 ms by
    /// default.
    pub linger: Duration,
    /// Jobs that make a batch full; at most 10,000. 1,000 by default.
    pub batch_jobs_max: usize,
    /// Bytes that make a batch full. A batch with one larger job holds just that job. 256 KiB by
    /// default.
    pub batch_bytes_max: usize,
    /// A batch that is not full goes at once while the publisher has fewer than this many to
    /// answer. 1 by default.
    pub eager_batches: usize,
    /// Most jobs whose receipts wait to be read before `send` waits for a reader: for the
    /// producer's `answer_timeout`, then it fails ([`EnqueueError::ReceiptsUnread`]). Those of jobs
    /// in flight come on top. 1,000,000 by default.
    ///
    /// [`EnqueueError::ReceiptsUnread`]: crate::EnqueueError::ReceiptsUnread
    pub receipts_jobs_max: usize,
}

impl Default for PipelineOptions {
    /// 100,000 jobs and 64 MiB in flight; batches of 1,000 jobs or 256 KiB; 1 ms; 1 batch; a
    /// million receipts.
    fn default() -> PipelineOptions {
        PipelineOptions {
            in_flight_jobs_max: 100_000,
            in_flight_bytes_max: 64 * 1024 * 1024,
            linger: Duration::from_millis(1),
            batch_jobs_max: 1_000,
            batch_bytes_max: 256 * 1024,
            eager_batches: 1,
            receipts_jobs_max: 1_000_000,
        }
    }
}

/// How the jobs of one call belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchOptions {
    /// One refusal refuses all. Then they are one batch (at most 10,000 jobs and 16 MiB of payload)
    /// to one publisher, which has to have all of their paths; otherwise each is
    /// [`EnqueueError::NotAtomic`](crate::EnqueueError::NotAtomic). False by default.
    pub atomic: bool,
}
