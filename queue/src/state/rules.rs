//! The effective settings of a job: its own, or its queue's, or the rules' defaults.

use longshore_protocol::{JobOptions, QueueSettings};

use super::State;
use super::row::Row;

impl State {
    /// The job's limit of attempts.
    pub(super) fn max_attempts(&self, row: &Row) -> u16 {
        let (job, queue) = self.configured(row);
        job.max_attempts.or(queue.max_attempts).unwrap_or(self.rules.max_attempts as u16)
    }

    /// How long its leases run without renewal, in milliseconds.
    pub(super) fn lease_ms(&self, row: &Row) -> u32 {
        let (job, queue) = self.configured(row);
        job.lease_ms.or(queue.lease_ms).unwrap_or(self.rules.lease_ms as u32)
    }

    /// How long one of its attempts may run, in milliseconds; 0 for no limit.
    pub(super) fn run_timeout_ms(&self, row: &Row) -> u64 {
        let (job, queue) = self.configured(row);
        job.run_timeout_ms.or(queue.run_timeout_ms).unwrap_or(self.rules.run_timeout_ms)
    }

    /// The wait after its attempt `n` failed, in milliseconds.
    pub(super) fn retry_wait_ms(&self, row: &Row, n: u16, random: u64) -> u64 {
        let (job, queue) = self.configured(row);
        let backoff = job.backoff.as_ref().or(queue.backoff.as_ref());
        backoff.unwrap_or(&self.rules.backoff).wait_ms(n, random)
    }

    /// How long it stays readable after its end, in milliseconds; 0 for not at all.
    pub(super) fn keep_ms(&self, row: &Row) -> u64 {
        self.own_keep_ms(row).unwrap_or_else(|| self.queue_keep_ms(row.queue))
    }

    /// The same for jobs without their own setting.
    pub(super) fn queue_keep_ms(&self, queue: u32) -> u64 {
        self.queues[queue as usize].settings.keep_ms.unwrap_or(self.rules.keep_ms)
    }

    /// The same, if the job has its own setting.
    pub(super) fn own_keep_ms(&self, row: &Row) -> Option<u64> {
        self.profiles.options(row.profile).keep_ms
    }

    /// How long the queue's dead letters stay, in milliseconds; 0 for not at all.
    pub(super) fn keep_dead_ms(&self, queue: u32) -> u64 {
        let settings = &self.queues[queue as usize].settings;
        settings.keep_dead_ms.unwrap_or(self.rules.keep_dead_ms)
    }

    /// How many ended jobs the queue retains.
    pub(super) fn keep_jobs(&self, queue: u32) -> u64 {
        self.queues[queue as usize].settings.keep_jobs.unwrap_or(self.rules.ended_per_queue)
    }

    /// Whether the queue's dead letters keep the turn of their order keys.
    pub(super) fn dead_blocks_order(&self, queue: u32) -> bool {
        self.queues[queue as usize].settings.dead_blocks_order.unwrap_or(false)
    }

    fn configured(&self, row: &Row) -> (&JobOptions, &QueueSettings) {
        let queue = &self.queues[row.queue as usize];
        (self.profiles.options(row.profile), &queue.settings)
    }
}
