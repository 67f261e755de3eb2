//! The builder of a schedule.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use longshore_kinds::IntoJob;
use longshore_protocol::{
    Backoff, FrameWriter, JobId, Missed, NewJob, Overlap, Path, Schedule, Timing,
};

use crate::core::validate;
use crate::enqueue::milliseconds;
use crate::ids::to_job;
use crate::outcome::EnqueueError;

/// A schedule to add or change ([`Queues::put_schedule`](crate::Queues::put_schedule)): at each
/// occurrence its publisher enqueues the job.
///
/// ```
/// # use longshore_producer::{NewSchedule, new_job};
/// # use longshore_protocol::Missed;
/// # use std::time::Duration;
/// let report = new_job("/reports".parse().unwrap(), "yesterday");
/// let nightly = NewSchedule::cron("nightly-report", "30 3 * * *", report)
///     .zone("Europe/Berlin")
///     .jitter(Duration::from_secs(600))
///     .version(7);
/// ```
#[derive(Clone, Debug)]
pub struct NewSchedule {
    name: String,
    timing: Timing,
    job: Result<NewJob, EnqueueError>,
    starts_at: Option<u64>,
    ends_at: Option<u64>,
    jitter_ms: u64,
    missed: Missed,
    overlap: Overlap,
    version: Option<u64>,
}

impl NewSchedule {
    /// A schedule by a cron expression: five fields, or six with seconds first; in UTC, unless
    /// another [zone](NewSchedule::zone) is set. `job` is a payload of a job kind, or a
    /// [`NewJob`], whose id does not matter.
    pub fn cron(
        name: impl Into<String>,
        expression: impl Into<String>,
        job: impl IntoJob,
    ) -> NewSchedule {
        let timing = Timing::Cron { expression: expression.into(), zone: "UTC".to_owned() };
        NewSchedule::new(name.into(), timing, job)
    }

    /// A schedule at a fixed distance of at least a second, counted from its
    /// [start](NewSchedule::starts), or from when it was added: putting it again, by a deploy,
    /// moves no occurrence.
    pub fn every(name: impl Into<String>, period: Duration, job: impl IntoJob) -> NewSchedule {
        let timing = Timing::Every { ms: milliseconds(period) };
        NewSchedule::new(name.into(), timing, job)
    }

    fn new(name: String, timing: Timing, job: impl IntoJob) -> NewSchedule {
        NewSchedule {
            name,
            timing,
            // The same job gives the same template.
            job: to_job(job, JobId::default).map(|job| NewJob { id: JobId::default(), ..job }),
            starts_at: None,
            ends_at: None,
            jitter_ms: 0,
            missed: Missed::Latest,
            overlap: Overlap::Skip,
            version: None,
        }
    }

    /// Sets the time zone of a cron expression, by its name in the IANA database.
    #[must_use]
    pub fn zone(mut self, name: impl Into<String>) -> NewSchedule {
        if let Timing::Cron { zone, .. } = &mut self.timing {
            *zone = name.into();
        }
        self
    }

    /// No occurrence is before this time. A fixed distance counts from it.
    #[must_use]
    pub fn starts(mut self, at: SystemTime) -> NewSchedule {
        self.starts_at = Some(since_1970(at));
        self
    }

    /// No occurrence is after this time.
    #[must_use]
    pub fn ends(mut self, at: SystemTime) -> NewSchedule {
        self.ends_at = Some(since_1970(at));
        self
    }

    /// Delays each occurrence by a random time up to this, a day at most, and less than the time to
    /// the next one.
    #[must_use]
    pub fn jitter(mut self, most: Duration) -> NewSchedule {
        self.jitter_ms = milliseconds(most);
        self
    }

    /// Sets what becomes of missed occurrences; the latest one gets a job by default.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> NewSchedule {
        self.missed = missed;
        self
    }

    /// Sets what becomes of an occurrence while the job of the one before has not ended; it gets
    /// none by default.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> NewSchedule {
        self.overlap = overlap;
        self
    }

    /// Sets the version: the highest one counts, so that old and new processes of a rolling deploy
    /// may both put their schedules. Without a version, the last one put counts.
    #[must_use]
    pub fn version(mut self, version: u64) -> NewSchedule {
        self.version = Some(version);
        self
    }

    /// Sets the priority of its jobs.
    #[must_use]
    pub fn priority(self, priority: i32) -> NewSchedule {
        self.set(|job| job.options.priority = priority)
    }

    /// Sets the attempts of its jobs.
    #[must_use]
    pub fn max_attempts(self, attempts: u16) -> NewSchedule {
        self.set(|job| job.options.max_attempts = Some(attempts))
    }

    /// Sets how long an attempt of its jobs may run.
    #[must_use]
    pub fn run_timeout(self, timeout: Duration) -> NewSchedule {
        self.set(|job| job.options.run_timeout_ms = Some(milliseconds(timeout)))
    }

    /// Sets how long its jobs wait after a failed attempt.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> NewSchedule {
        self.set(|job| job.options.backoff = Some(backoff))
    }

    fn set(mut self, change: impl FnOnce(&mut NewJob)) -> NewSchedule {
        if let Ok(job) = &mut self.job {
            change(job);
        }
        self
    }

    /// Its version, if it has one.
    pub fn declared_version(&self) -> Option<u64> {
        self.version
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The queue of its jobs, unless its payload is invalid.
    pub fn path(&self) -> Option<&Path> {
        self.job.as_ref().ok().map(|job| &job.path)
    }

    /// What a publisher gets, checked: the schedule, and the entry of its template.
    pub(crate) fn parts(&self) -> Result<(Schedule, Bytes), EnqueueError> {
        let job = self.job.as_ref().map_err(Clone::clone)?;
        validate::check(job)?;
        validate::check_template(job)?;
        let schedule = Schedule {
            name: self.name.clone(),
            path: job.path.clone(),
            timing: self.timing.clone(),
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            jitter_ms: self.jitter_ms,
            missed: self.missed,
            overlap: self.overlap,
            version: self.version,
        };
        let mut entry = FrameWriter::new();
        job.encode_entry_head(&mut entry);
        entry.put_shared(job.payload.clone());
        Ok((schedule, entry.into_body()))
    }
}

fn since_1970(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, milliseconds)
}
