//! What a queue says of its jobs, where they say nothing themselves.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::job::{Backoff, at_most};
use crate::limits::{KEEP_JOBS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, WAIT_MS_MAX};

/// A queue's settings. What is `None` is as [`JobOptions`](crate::JobOptions) and this type have it for every queue. A change
/// holds for jobs that are in the queue already, from their next delivery, failure or end on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct QueueSettings {
    /// Attempts before a job goes to the dead letters: 1 to 65,535. 25 by default.
    pub max_attempts: Option<u16>,
    /// How long a delivery may go without renewal, in milliseconds: 1,000 to 43,200,000 (1 s to 12 h). 30 s where nobody
    /// says.
    pub lease_ms: Option<u32>,
    /// How long one attempt may run, in milliseconds; 0 for as long as it likes. At most 100 years. An hour where nobody
    /// says.
    pub run_timeout_ms: Option<u64>,
    /// The wait after a failed attempt.
    pub backoff: Option<Backoff>,
    /// How long completed, cancelled and expired jobs stay readable, in milliseconds; 0 for not at all. At most 100 years.
    /// 24 hours where nobody says.
    pub keep_ms: Option<u64>,
    /// How many completed, cancelled and expired jobs stay readable: the newest so many. At most 10,000,000. 100,000 where
    /// nobody says.
    pub keep_jobs: Option<u64>,
    /// How long dead letters stay, in milliseconds; 0 for not at all. At most 100 years. 180 days by default.
    pub keep_dead_ms: Option<u64>,
}

impl QueueSettings {
    /// Ended jobs that a queue keeps, where it does not say otherwise.
    pub const KEEP_JOBS: u64 = 100_000;
    /// How long dead letters stay, in milliseconds, where their queue does not set it: 180 days, as in Sidekiq.
    pub const KEEP_DEAD_MS: u64 = 180 * 24 * 60 * 60 * 1_000;

    /// Takes over what `changes` says.
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
    }
}

/// A setting's bit in the mask that comes first. As with a job's options, a bit that a reader does not know is an error.
mod bit {
    pub(super) const MAX_ATTEMPTS: u64 = 1 << 0;
    pub(super) const LEASE: u64 = 1 << 1;
    pub(super) const RUN_TIMEOUT: u64 = 1 << 2;
    pub(super) const BACKOFF: u64 = 1 << 3;
    pub(super) const KEEP: u64 = 1 << 4;
    pub(super) const KEEP_JOBS: u64 = 1 << 5;
    pub(super) const KEEP_DEAD: u64 = 1 << 6;
    pub(super) const ALL: u64 = (1 << 7) - 1;
}

impl Encode for QueueSettings {
    fn encode(&self, out: &mut FrameWriter) {
        let mut mask = 0;
        for (said, bit) in [
            (self.max_attempts.is_some(), bit::MAX_ATTEMPTS),
            (self.lease_ms.is_some(), bit::LEASE),
            (self.run_timeout_ms.is_some(), bit::RUN_TIMEOUT),
            (self.backoff.is_some(), bit::BACKOFF),
            (self.keep_ms.is_some(), bit::KEEP),
            (self.keep_jobs.is_some(), bit::KEEP_JOBS),
            (self.keep_dead_ms.is_some(), bit::KEEP_DEAD),
        ] {
            mask |= if said { bit } else { 0 };
        }
        out.u64(mask);
        if let Some(most) = self.max_attempts {
            out.u64(u64::from(most));
        }
        if let Some(ms) = self.lease_ms {
            out.u64(u64::from(ms));
        }
        if let Some(ms) = self.run_timeout_ms {
            out.u64(ms);
        }
        if let Some(backoff) = &self.backoff {
            backoff.encode(out);
        }
        for number in [self.keep_ms, self.keep_jobs, self.keep_dead_ms].into_iter().flatten() {
            out.u64(number);
        }
    }
}

impl Decode for QueueSettings {
    fn decode(r: &mut Reader) -> Result<QueueSettings, WireError> {
        let unknown = r.invalid("queue setting that this version does not know");
        let mask = r.u64()?;
        if mask & !bit::ALL != 0 {
            return Err(unknown);
        }
        let mut settings = QueueSettings::default();
        if mask & bit::MAX_ATTEMPTS != 0 {
            settings.max_attempts = Some(read_max_attempts(r)?);
        }
        if mask & bit::LEASE != 0 {
            settings.lease_ms = Some(read_lease(r)?);
        }
        if mask & bit::RUN_TIMEOUT != 0 {
            let ms = at_most(r, "run timeout in milliseconds", WAIT_MS_MAX)?;
            settings.run_timeout_ms = Some(ms);
        }
        if mask & bit::BACKOFF != 0 {
            settings.backoff = Some(Backoff::decode(r)?);
        }
        if mask & bit::KEEP != 0 {
            settings.keep_ms = Some(at_most(r, "keep in milliseconds", WAIT_MS_MAX)?);
        }
        if mask & bit::KEEP_JOBS != 0 {
            settings.keep_jobs = Some(at_most(r, "jobs to keep", KEEP_JOBS_MAX)?);
        }
        if mask & bit::KEEP_DEAD != 0 {
            let what = "keep of dead letters in milliseconds";
            settings.keep_dead_ms = Some(at_most(r, what, WAIT_MS_MAX)?);
        }
        Ok(settings)
    }
}

pub(crate) fn read_max_attempts(r: &mut Reader) -> Result<u16, WireError> {
    let zero = r.invalid("max_attempts of 0; the least is 1");
    match r.u16()? {
        0 => Err(zero),
        most => Ok(most),
    }
}

pub(crate) fn read_lease(r: &mut Reader) -> Result<u32, WireError> {
    let out_of_range = r.invalid("lease outside 1 s to 12 h");
    let ms = r.u32()?;
    if (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&ms) { Ok(ms) } else { Err(out_of_range) }
}
