//! A queue's defaults for the options of its jobs.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::fields::{put_masked, read_masked};
use crate::frame::FrameWriter;
use crate::job::{Backoff, at_most};
use crate::limits::{KEEP_JOBS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, WAIT_MS_MAX};

/// A queue's settings. Where a setting is `None`, the defaults of [`JobOptions`](crate::JobOptions)
/// and of this type apply. A change also affects jobs that are already in the queue, from their
/// next delivery, failure or end on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct QueueSettings {
    /// Attempts before a job goes to the dead letters: 1 to 65,535. 25 by default.
    pub max_attempts: Option<u16>,
    /// How long a delivery lasts without renewal, in milliseconds: 1,000 to 43,200,000 (1 s to 12
    /// h). 30 s by default.
    pub lease_ms: Option<u32>,
    /// How long one attempt may run, in milliseconds; 0 for no limit. At most 100 years. An hour by
    /// default.
    pub run_timeout_ms: Option<u64>,
    /// The wait after a failed attempt.
    pub backoff: Option<Backoff>,
    /// How long completed, cancelled and expired jobs stay readable, in milliseconds; 0 to delete
    /// them at once. At most 100 years. 24 hours by default.
    pub keep_ms: Option<u64>,
    /// How many completed, cancelled and expired jobs stay readable: the newest ones. At most
    /// 10,000,000. 100,000 by default.
    pub keep_jobs: Option<u64>,
    /// How long dead letters stay, in milliseconds; 0 to delete them at once. At most 100 years.
    /// 180 days by default.
    pub keep_dead_ms: Option<u64>,
    /// Whether a dead letter keeps the turn of its order key until it is revived or dropped. False
    /// by default: the next job of the key goes on. Applies to jobs that die from then on.
    pub dead_blocks_order: Option<bool>,
}

impl QueueSettings {
    /// The most ended jobs that a queue stores by default.
    pub const KEEP_JOBS: u64 = 100_000;
    /// How long dead letters stay by default, in milliseconds: 180 days, as in Sidekiq.
    pub const KEEP_DEAD_MS: u64 = 180 * 24 * 60 * 60 * 1_000;

    /// Replaces the settings that `changes` contains.
    pub fn change(&mut self, changes: &QueueSettings) {
        fn take<T: Clone>(mine: &mut Option<T>, other: &Option<T>) {
            if other.is_some() {
                mine.clone_from(other);
            }
        }
        take(&mut self.max_attempts, &changes.max_attempts);
        take(&mut self.lease_ms, &changes.lease_ms);
        take(&mut self.run_timeout_ms, &changes.run_timeout_ms);
        take(&mut self.backoff, &changes.backoff);
        take(&mut self.keep_ms, &changes.keep_ms);
        take(&mut self.keep_jobs, &changes.keep_jobs);
        take(&mut self.keep_dead_ms, &changes.keep_dead_ms);
        take(&mut self.dead_blocks_order, &changes.dead_blocks_order);
    }
}

impl Encode for QueueSettings {
    fn encode(&self, out: &mut FrameWriter) {
        put_masked! {
            out,
            0 => self.max_attempts,
            1 => self.lease_ms,
            2 => self.run_timeout_ms,
            3 => self.backoff,
            4 => self.keep_ms,
            5 => self.keep_jobs,
            6 => self.keep_dead_ms,
            7 => self.dead_blocks_order,
        }
    }
}

impl Decode for QueueSettings {
    fn decode(r: &mut Reader) -> Result<QueueSettings, WireError> {
        read_masked! {
            r, mask, "queue setting that this version does not know",
            0 => max_attempts: max_attempts,
            1 => lease_ms: lease_ms,
            2 => run_timeout_ms: |r| at_most(r, "run timeout in milliseconds", WAIT_MS_MAX),
            3 => backoff: Backoff::decode,
            4 => keep_ms: |r| at_most(r, "keep in milliseconds", WAIT_MS_MAX),
            5 => keep_jobs: |r| at_most(r, "jobs to keep", KEEP_JOBS_MAX),
            6 => keep_dead_ms: |r| at_most(r, "keep of dead letters in milliseconds", WAIT_MS_MAX),
            7 => dead_blocks_order: bool::decode,
        }
        Ok(QueueSettings {
            max_attempts,
            lease_ms,
            run_timeout_ms,
            backoff,
            keep_ms,
            keep_jobs,
            keep_dead_ms,
            dead_blocks_order,
        })
    }
}

pub(crate) fn max_attempts(r: &mut Reader) -> Result<u16, WireError> {
    r.valid("max_attempts of 0; the least is 1", |most| *most > 0)
}

pub(crate) fn lease_ms(r: &mut Reader) -> Result<u32, WireError> {
    r.valid("lease outside 1 s to 12 h", |ms| (LEASE_MS_MIN..=LEASE_MS_MAX).contains(ms))
}
