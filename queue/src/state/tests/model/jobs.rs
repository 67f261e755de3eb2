//! Jobs and queues of the model: a list of each, and every query scans all of it.

use longshore_protocol::limits::{ATTEMPTS_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::{JobCounts, JobTimes};
use longshore_protocol::{
    AttemptOutcome, Backoff, DeathReason, Fingerprint, JobId, JobOptions, JobState, Path,
    QueueSettings, Token, Unique,
};

use super::naive::Model;
use super::schedules::MadeBy;
use crate::outcome::RecordRef;
use crate::time::Now;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Phase {
    /// The deadline of its confirmation, in monotonic time.
    Prepared(u64),
    Ready,
    /// Due, without the turn of its order key.
    Blocked,
    /// Due, without room of its limit key.
    Limited,
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

impl Phase {
    pub(super) fn state(self) -> JobState {
        match self {
            Phase::Prepared(_) => JobState::Prepared,
            Phase::Ready => JobState::Ready,
            Phase::Blocked | Phase::Limited => JobState::Blocked,
            Phase::Delayed(_) | Phase::Timed(_) | Phase::Retrying(_) => JobState::Scheduled,
            Phase::Running { .. } => JobState::Running,
            Phase::Completed => JobState::Completed,
            Phase::Cancelled => JobState::Cancelled,
            Phase::Expired => JobState::Expired,
            Phase::Dead(_) => JobState::Dead,
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
    pub(super) order: Option<String>,
    pub(super) fair: Option<String>,
    pub(super) limit: Option<String>,
    pub(super) cost: Option<u16>,
    /// Its order key's turn.
    pub(super) has_turn: bool,
    /// It has replaced a dead job that had the turn.
    pub(super) keeps_turn: bool,
    pub(super) unique: Option<Unique>,
    /// Index and offset, which are also its age.
    pub(super) entry: RecordRef,
    /// The schedule that made it.
    pub(super) made_by: Option<MadeBy>,
    pub(super) phase: Phase,
    pub(super) attempts: u16,
    pub(super) deliveries: u16,
    /// Deliveries lost before a worker started the job.
    pub(super) unstarted_deliveries: u32,
    /// Attempts that lost their worker.
    pub(super) worker_losses: u8,
    pub(super) enqueued_wall_ms: u64,
    /// None also after an attempt was counted.
    pub(super) expires_at: Option<u64>,
    /// Ready: since when, in monotonic time.
    pub(super) ready_since: u64,
    /// It was not ready since it was enqueued.
    pub(super) was_scheduled: bool,
    pub(super) was_confirmed: bool,
    pub(super) replaces: Option<JobId>,
    /// The time of its last delivery.
    pub(super) delivered: Now,
    /// The time of its end, and the end's sequence number.
    pub(super) ended: Option<(Now, u64)>,
    /// The fingerprint of a dead job's error.
    pub(super) died_of: Fingerprint,
    pub(super) result: Option<RecordRef>,
    pub(super) history: Vec<Attempt>,
    pub(super) checkpoints: Vec<Checkpoint>,
    /// The last checkpoint of the current delivery.
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
        self.phase.state()
    }

    /// True until the job ends.
    pub(super) fn is_open(&self) -> bool {
        !self.state().is_end()
    }

    /// True of ended jobs that are retained for a time, other than dead ones.
    pub(super) fn is_retained(&self) -> bool {
        self.state().is_end() && self.state() != JobState::Dead
    }

    pub(super) fn is_retrying(&self) -> bool {
        matches!(self.phase, Phase::Retrying(_))
    }

    /// The running attempt, or the last one made.
    pub(super) fn attempt(&self) -> u16 {
        self.attempts + u16::from(self.state() == JobState::Running)
    }

    /// Where its entry is in the log.
    pub(super) fn location(&self) -> RecordRef {
        self.made_by.as_ref().map_or(self.entry, |made| made.template)
    }

    pub(super) fn age(&self) -> (u64, u32) {
        (self.entry.index, self.entry.at)
    }

    pub(super) fn rank(&self) -> (i64, (u64, u32)) {
        (-i64::from(self.options.priority), self.age())
    }

    pub(super) fn is_due(&self, now: Now) -> bool {
        match self.phase {
            Phase::Delayed(at) | Phase::Retrying(at) => at <= now.mono_ms,
            Phase::Timed(at) => at <= now.wall_ms,
            _ => false,
        }
    }

    /// It waits, was not attempted, and has expired.
    pub(super) fn has_expired(&self, now: Now) -> bool {
        use JobState::{Blocked, Ready, Scheduled};
        let waits = matches!(self.state(), Scheduled | Ready | Blocked);
        waits && self.attempts == 0 && self.expires_at.is_some_and(|at| at <= now.wall_ms)
    }

    pub(super) fn is_unconfirmed(&self, now: Now) -> bool {
        matches!(self.phase, Phase::Prepared(until) if until <= now.mono_ms)
    }

    /// The times of a delivery now.
    pub(super) fn times(&self, now: Now) -> JobTimes {
        let waited_ms = now.mono_ms - self.ready_since;
        let due = now.wall_ms.saturating_sub(waited_ms);
        let scheduled_at = match self.enqueued_wall_ms {
            enqueued if !self.was_scheduled => enqueued,
            enqueued if enqueued <= now.wall_ms => due.max(enqueued),
            _ => due,
        };
        JobTimes { enqueued_at: self.enqueued_wall_ms, scheduled_at, waited_ms }
    }

    /// The newest error that a worker reported.
    pub(super) fn last_error(&self) -> Option<RecordRef> {
        self.history.iter().rev().find_map(|attempt| attempt.error.map(|(record, _)| record))
    }

    pub(super) fn add_attempt(&mut self, attempt: Attempt) {
        self.history.push(attempt);
        if self.history.len() > ATTEMPTS_MAX {
            self.history.remove(0);
        }
    }

    pub(super) fn add_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.checkpoints.push(checkpoint);
        let bytes = |stored: &[Checkpoint]| -> usize {
            stored.iter().map(|c| c.bytes.length as usize).sum()
        };
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

/// The effective settings of a job: its own, then its queue's, then the defaults.
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

    pub(super) fn dead_blocks_order(&self, path: &Path) -> bool {
        self.settings(path).dead_blocks_order == Some(true)
    }

    pub(super) fn keep_jobs(&self, path: &Path) -> u64 {
        self.settings(path).keep_jobs.unwrap_or(self.limits.ended_per_queue)
    }

    /// When an ended job's retention ends, in monotonic time.
    pub(super) fn removal_at(&self, job: &Job) -> u64 {
        let (ended, _) = job.ended.expect("only ended jobs go");
        let is_dead = job.state() == JobState::Dead;
        ended.mono_ms + if is_dead { self.keep_dead_ms(&job.path) } else { self.keep_ms(job) }
    }

    pub(super) fn stored<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Job> + Clone {
        self.jobs.iter().filter(move |job| job.path == *path && job.is_retained())
    }

    pub(super) fn counts(&self, path: &Path) -> JobCounts {
        let mut counts = JobCounts::default();
        for job in self.jobs.iter().filter(|job| job.path == *path) {
            let counter = match job.phase {
                Phase::Prepared(_) => &mut counts.prepared,
                Phase::Ready => &mut counts.ready,
                Phase::Blocked | Phase::Limited => &mut counts.blocked,
                Phase::Delayed(_) | Phase::Timed(_) => &mut counts.scheduled,
                Phase::Retrying(_) => &mut counts.retrying,
                Phase::Running { .. } => &mut counts.running,
                Phase::Completed => &mut counts.completed,
                Phase::Cancelled => &mut counts.cancelled,
                Phase::Expired => &mut counts.expired,
                Phase::Dead(_) => &mut counts.dead,
            };
            *counter += 1;
        }
        counts
    }
}
