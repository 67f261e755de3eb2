//! Options of a producer. Every limit has a name, a unit and a default.

use std::time::Duration;

use longshore_transport::LinkOptions;

/// The longest answer timeout: longer ones are reduced to 30 days.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Options of a [`Producer`](crate::Producer): `Producer::builder().name("billing").connect(…)`.
#[derive(Clone, Debug)]
#[must_use = "a builder creates a producer with `connect` or `to_publishers`"]
pub struct ProducerBuilder {
    pub(crate) name: String,
    pub(crate) answer_timeout: Duration,
    pub(crate) failover: Failover,
    pub(crate) in_flight_jobs_max: usize,
    pub(crate) in_flight_bytes_max: usize,
    pub(crate) link: LinkOptions,
}

impl Default for ProducerBuilder {
    /// 30 s, no duplicates, 100,000 jobs and 64 MiB in flight.
    fn default() -> ProducerBuilder {
        ProducerBuilder {
            name: format!("producer-{}", std::process::id()),
            answer_timeout: Duration::from_secs(30),
            failover: Failover::default(),
            in_flight_jobs_max: 100_000,
            in_flight_bytes_max: 64 * 1024 * 1024,
            link: LinkOptions::default(),
        }
    }
}

impl ProducerBuilder {
    /// Sets the name that operators see; 1 to 128 bytes. With an invalid name nothing is sent, and
    /// every job fails with [`EnqueueError::Name`](crate::EnqueueError::Name). The default is
    /// `producer-` and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how long to wait for the answer to a batch, from its first job on: 30 s by default, at
    /// most 30 days, and one second more for each megabyte.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout.min(ANSWER_TIMEOUT_MAX);
        self
    }

    /// Sets what to do with batches that may have reached a publisher before its link ended. By
    /// default no job is duplicated.
    pub fn failover(mut self, failover: Failover) -> Self {
        self.failover = failover;
        self
    }

    /// Sets the most unanswered jobs of all [`Producer::enqueue`](crate::Producer::enqueue) calls,
    /// of all [`Producer::enqueue_atomic`](crate::Producer::enqueue_atomic) calls, and of each
    /// [`Producer::enqueue_all`](crate::Producer::enqueue_all) call; further ones wait. 100,000 by
    /// default.
    pub fn in_flight_jobs_max(mut self, jobs: usize) -> Self {
        self.in_flight_jobs_max = jobs.max(1);
        self
    }

    /// Sets the most bytes of these jobs in flight; a single job of any size is accepted while
    /// there is no other. 64 MiB by default.
    pub fn in_flight_bytes_max(mut self, bytes: usize) -> Self {
        self.in_flight_bytes_max = bytes;
        self
    }

    /// Sets the options of links to publishers.
    pub fn link(mut self, link: LinkOptions) -> Self {
        self.link = link;
        self
    }
}

/// What to do with a batch that may have reached a publisher before its link ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Failover {
    /// Send it again only to that publisher, until it is answered or times out: no job is
    /// duplicated. On a timeout its jobs are
    /// [`EnqueueError::Unknown`](crate::EnqueueError::Unknown).
    #[default]
    SamePublisher,
    /// Send it to another publisher if the first one cannot be reached at once: a job may exist at
    /// both, and run twice. Its receipt names both
    /// ([`Receipt::may_be_at`](crate::Receipt::may_be_at)).
    MayDuplicate,
}
