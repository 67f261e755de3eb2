//! Timers of the model.

use longshore_protocol::{DeathReason, JobChange};

use super::driver::STEP_JOBS;
use super::jobs::{Job, Phase};
use super::naive::{Expected, Model};

impl Model {
    /// In the state's order: scheduled jobs become ready or expire, unconfirmed ones die, ended
    /// ones are removed.
    pub(super) fn tick(&mut self, to: &mut Expected<'_>) {
        while let Some(event) = to.next_actual_event() {
            let Some(job) = self.find(event.job) else { break };
            let j = &self.jobs[job];
            match event.change {
                JobChange::CameDue if j.is_due(self.now) && !j.has_expired(self.now) => {
                    self.make_ready(job, JobChange::CameDue, to);
                }
                JobChange::Expired if j.has_expired(self.now) => {
                    self.end(job, Phase::Expired, JobChange::Expired, to);
                }
                JobChange::Unconfirmed if j.is_unconfirmed(self.now) => {
                    self.die(job, DeathReason::Unconfirmed, JobChange::Unconfirmed, to);
                }
                JobChange::Forgotten if self.is_removable(j, to) => self.remove_job(job, to),
                _ => break,
            }
        }
        let left = self.jobs.iter().find(|job| self.waits_for_tick(job, to));
        // In cases with small steps the next tick continues; another test checks that the state
        // requests it.
        let may_stop = self.limits.step_jobs < STEP_JOBS;
        assert!(left.is_none() || may_stop, "a tick skips {left:?}");
        self.remove_sessions();
        self.end_keys();
        self.end_uniques();
    }

    fn is_removable(&self, job: &Job, to: &Expected<'_>) -> bool {
        self.is_too_old(job) || job.is_retained() && self.is_too_many(job, to)
    }

    fn is_too_old(&self, job: &Job) -> bool {
        job.state().is_end() && self.removal_at(job) <= self.now.mono_ms
    }

    fn is_too_many(&self, job: &Job, to: &Expected<'_>) -> bool {
        self.stored(&job.path).count() as u64 > self.keep_jobs(&job.path)
            && self.next_to_remove(&job.path, to) == job.id
    }

    fn waits_for_tick(&self, job: &Job, to: &Expected<'_>) -> bool {
        let now = self.now;
        job.is_due(now)
            || job.has_expired(now)
            || job.is_unconfirmed(now)
            || self.is_removable(job, to)
    }

    /// The latest time of the state's next timer.
    pub(super) fn next_timer_ms(&self) -> Option<u64> {
        let now = self.now;
        let at_wall = |at: u64| now.mono_ms + at.saturating_sub(now.wall_ms);
        let mut due = Vec::new();
        for job in &self.jobs {
            match job.phase {
                Phase::Prepared(at) | Phase::Delayed(at) | Phase::Retrying(at) => due.push(at),
                Phase::Timed(at) => due.push(at_wall(at)),
                Phase::Completed | Phase::Cancelled | Phase::Expired | Phase::Dead(_) => {
                    due.push(self.removal_at(job));
                }
                Phase::Ready | Phase::Blocked | Phase::Limited | Phase::Running { .. } => {}
            }
            let waits = matches!(
                job.phase,
                Phase::Ready
                    | Phase::Blocked
                    | Phase::Limited
                    | Phase::Delayed(_)
                    | Phase::Timed(_)
            );
            if waits && job.attempts == 0 {
                due.extend(job.expires_at.map(at_wall));
            }
        }
        due.extend(self.limits_open_at());
        for queue in &self.queues {
            if self.stored(&queue.path).count() as u64 > self.keep_jobs(&queue.path) {
                due.push(now.mono_ms);
            }
        }
        due.extend(self.keys.iter().map(|key| at_wall(key.ends_at)));
        due.extend(self.holds.iter().filter_map(|hold| hold.ends_at).map(at_wall));
        due.extend(self.sessions.iter().filter_map(|session| session.forget_at));
        due.into_iter().min()
    }
}
