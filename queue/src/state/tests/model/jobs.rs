//! Jobs and queues as the model sees them: a list of each, and every question is answered by
//! looking at all of it.

use longshore_protocol::limits::{ATTEMPTS_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::JobCounts;
use longshore_protocol::{
    AttemptOutcome, Backoff, DeathReason, Fingerprint, JobId, JobOptions, JobState, Path,
    QueueSettings, Token,
};

use super::naive::Model;
use crate::outcome::RecordRef;
use crate::time::Now;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Place {
    /// Until when it may be confirmed, in monotonic time.
    Prepared(u64),
    Ready,
    Delayed(u64),
    Timed(u64),
    Retrying(u64),
    Running {
        token: Token,
        session: usize,
    },
    Completed,
    Cancelled,
    Expired,
    Dead(DeathReason),
}

impl Place {
    pub(super) fn state(self) -> JobState {
        match self {
            Place::Prepared(_) => JobState::Prepared,
            Place::Ready => JobState::Ready,
            Place::Delayed(_) | Place::Timed(_) | Place::Retrying(_) => JobState::Scheduled,
            Place::Running { .. } => JobState::Running,
            Place::Completed => JobState::Completed,
            Place::Cancelled => JobState::Cancelled,
            Place::Expired => JobState::Expired,
            Place::Dead(_) => JobState::Dead,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) path: Path,
    pub(super) crc: u32,
    pub(super) payload_len: usize,
    pub(super) options: JobOptions,
    /// Index and offset: its age, too.
    pub(super) entry: RecordRef,
    pub(super) place: Place,
    pub(super) attempts: u16,
    pub(super) deliveries: u16,
    /// Deliveries that no worker had started.
    pub(super) lost: u32,
    /// Attempts that lost their worker.
    pub(super) worker_losses: u8,
    pub(super) enqueued_wall_ms: u64,
    /// None also once an attempt was used up.
    pub(super) expires_at: Option<u64>,
    pub(super) was_confirmed: bool,
    pub(super) replaces: Option<JobId>,
    /// When its last delivery was.
    pub(super) delivered: Now,
    /// When it ended, and the how-manieth end that was.
    pub(super) ended: Option<(Now, u64)>,
    /// Of a dead one: the kind of error that it died of.
    pub(super) died_of: Fingerprint,
    pub(super) result: Option<RecordRef>,
    pub(super) history: Vec<Attempt>,
    pub(super) checkpoints: Vec<Checkpoint>,
    /// The last checkpoint of the delivery at hand.
    pub(super) sequence: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) number: u16,
    pub(super) worker: String,
    pub(super) delivered: Now,
    pub(super) ended: Now,
    pub(super) outcome: AttemptOutcome,
    pub(super) error: Option<(RecordRef, Fingerprint)>,
}

#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) attempt: u16,
    pub(super) sequence: u64,
    pub(super) at: u64,
    pub(super) bytes: RecordRef,
}

impl Job {
    pub(super) fn state(&self) -> JobState {
        self.place.state()
    }

    /// It may still run without anybody's doing.
    pub(super) fn is_open(&self) -> bool {
        !self.state().is_end()
    }

    /// It has ended, and is kept for a while only.
    pub(super) fn is_kept(&self) -> bool {
        self.state().is_end() && self.state() != JobState::Dead
    }

    pub(super) fn is_retrying(&self) -> bool {
        matches!(self.place, Place::Retrying(_))
    }

    /// The attempt that runs, or the last one made.
    pub(super) fn attempt(&self) -> u16 {
        self.attempts + u16::from(self.state() == JobState::Running)
    }

    pub(super) fn age(&self) -> (u64, u32) {
        (self.entry.index, self.entry.at)
    }

    pub(super) fn rank(&self) -> (i64, (u64, u32)) {
        (-i64::from(self.options.priority), self.age())
    }

    pub(super) fn is_due(&self, now: Now) -> bool {
        match self.place {
            Place::Delayed(at) | Place::Retrying(at) => at <= now.mono_ms,
            Place::Timed(at) => at <= now.wall_ms,
            _ => false,
        }
    }

    /// It waits, no attempt has begun, and its time is over.
    pub(super) fn is_too_late(&self, now: Now) -> bool {
        let waits = matches!(self.state(), JobState::Scheduled | JobState::Ready);
        waits && self.attempts == 0 && self.expires_at.is_some_and(|at| at <= now.wall_ms)
    }

    pub(super) fn is_unconfirmed(&self, now: Now) -> bool {
        matches!(self.place, Place::Prepared(until) if until <= now.mono_ms)
    }

    /// The newest error that a worker gave.
    pub(super) fn last_error(&self) -> Option<RecordRef> {
        self.history.iter().rev().find_map(|attempt| attempt.error.map(|(record, _)| record))
    }

    pub(super) fn remember(&mut self, attempt: Attempt) {
        self.history.push(attempt);
        if self.history.len() > ATTEMPTS_MAX {
            self.history.remove(0);
        }
    }

    pub(super) fn add_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.checkpoints.push(checkpoint);
        let bytes =
            |kept: &[Checkpoint]| -> usize { kept.iter().map(|c| c.bytes.length as usize).sum() };
        while self.checkpoints.len() > CHECKPOINTS_MAX
            || bytes(&self.checkpoints) > CHECKPOINTS_BYTES_MAX
        {
            self.checkpoints.remove(0);
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) path: Path,
    pub(super) settings: QueueSettings,
    pub(super) enqueued: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) redelivered: u64,
    pub(super) died: u64,
    pub(super) stale: u64,
}

impl Queue {
    pub(super) fn new(path: Path) -> Queue {
        Queue {
            path,
            settings: QueueSettings::default(),
            enqueued: 0,
            completed: 0,
            failed: 0,
            redelivered: 0,
            died: 0,
            stale: 0,
        }
    }
}

/// What holds for a job: its own word, then its queue's, then everybody's.
impl Model {
    pub(super) fn settings(&self, path: &Path) -> QueueSettings {
        let queue = self.queues.iter().find(|queue| queue.path == *path);
        queue.map(|queue| queue.settings.clone()).unwrap_or_default()
    }

    pub(super) fn max_attempts(&self, job: &Job) -> u16 {
        job.options.max_attempts.or(self.settings(&job.path).max_attempts).unwrap_or(25)
    }

    pub(super) fn lease_ms(&self, job: &Job) -> u32 {
        job.options.lease_ms.or(self.settings(&job.path).lease_ms).unwrap_or(30_000)
    }

    pub(super) fn run_timeout_ms(&self, job: &Job) -> u64 {
        job.options.run_timeout_ms.or(self.settings(&job.path).run_timeout_ms).unwrap_or(3_600_000)
    }

    pub(super) fn backoff(&self, job: &Job) -> Backoff {
        let queue = self.settings(&job.path).backoff;
        job.options.backoff.clone().or(queue).unwrap_or_default()
    }

    pub(super) fn keep_ms(&self, job: &Job) -> u64 {
        job.options.keep_ms.or(self.settings(&job.path).keep_ms).unwrap_or(self.limits.keep_ms)
    }

    pub(super) fn keep_dead_ms(&self, path: &Path) -> u64 {
        self.settings(path).keep_dead_ms.unwrap_or(180 * 24 * 3_600_000)
    }

    pub(super) fn keep_jobs(&self, path: &Path) -> u64 {
        self.settings(path).keep_jobs.unwrap_or(self.limits.ended_per_queue)
    }

    /// When an ended job has been kept for as long as it is to be, in monotonic time.
    pub(super) fn goes_at(&self, job: &Job) -> u64 {
        let (ended, _) = job.ended.expect("only ended jobs go");
        let is_dead = job.state() == JobState::Dead;
        ended.mono_ms + if is_dead { self.keep_dead_ms(&job.path) } else { self.keep_ms(job) }
    }

    pub(super) fn kept<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Job> + Clone {
        self.jobs.iter().filter(move |job| job.path == *path && job.is_kept())
    }

    pub(super) fn counts(&self, path: &Path) -> JobCounts {
        let mut counts = JobCounts::default();
        for job in self.jobs.iter().filter(|job| job.path == *path) {
            let counter = match job.place {
                Place::Prepared(_) => &mut counts.prepared,
                Place::Ready => &mut counts.ready,
                Place::Delayed(_) | Place::Timed(_) => &mut counts.scheduled,
                Place::Retrying(_) => &mut counts.retrying,
                Place::Running { .. } => &mut counts.running,
                Place::Completed => &mut counts.completed,
                Place::Cancelled => &mut counts.cancelled,
                Place::Expired => &mut counts.expired,
                Place::Dead(_) => &mut counts.dead,
            };
            *counter += 1;
        }
        counts
    }
}
