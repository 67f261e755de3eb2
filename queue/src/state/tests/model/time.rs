//! What time does in the model.

use longshore_protocol::{DeathReason, JobChange};

use super::driver::STEP_JOBS;
use super::jobs::{Job, Place};
use super::naive::{Expected, Model};

impl Model {
    /// In whichever order the state takes them: what is due becomes ready or expires, what nobody
    /// confirmed dies, what was kept for long enough goes.
    pub(super) fn tick(&mut self, to: &mut Expected<'_>) {
        while let Some(event) = to.seen_next() {
            let Some(job) = self.find(event.job) else { break };
            let j = &self.jobs[job];
            match event.change {
                JobChange::CameDue if j.is_due(self.now) && !j.is_too_late(self.now) => {
                    self.make_ready(job, JobChange::CameDue, to);
                }
                JobChange::Expired if j.is_too_late(self.now) => {
                    self.end(job, Place::Expired, JobChange::Expired, to);
                }
                JobChange::Unconfirmed if j.is_unconfirmed(self.now) => {
                    self.die(job, DeathReason::Unconfirmed, JobChange::Unconfirmed, to);
                }
                JobChange::Forgotten if self.is_to_go(j, to) => self.forget(job, to),
                _ => break,
            }
        }
        let left = self.jobs.iter().find(|job| self.waits_for_tick(job, to));
        // In cases with small steps the next one goes on; that the state asks for it is looked at
        // elsewhere.
        let may_stop = self.limits.step_jobs < STEP_JOBS;
        assert!(left.is_none() || may_stop, "a tick passes over {left:?}");
        self.forget_sessions();
    }

    fn is_to_go(&self, job: &Job, to: &Expected<'_>) -> bool {
        self.is_too_old(job) || job.is_kept() && self.is_too_many(job, to)
    }

    fn is_too_old(&self, job: &Job) -> bool {
        job.state().is_end() && self.goes_at(job) <= self.now.mono_ms
    }

    fn is_too_many(&self, job: &Job, to: &Expected<'_>) -> bool {
        self.kept(&job.path).count() as u64 > self.keep_jobs(&job.path)
            && self.next_to_go(&job.path, to) == job.id
    }

    fn waits_for_tick(&self, job: &Job, to: &Expected<'_>) -> bool {
        let now = self.now;
        job.is_due(now) || job.is_too_late(now) || job.is_unconfirmed(now) || self.is_to_go(job, to)
    }

    /// When the state has to be told of the time next, at the latest.
    pub(super) fn next_due(&self) -> Option<u64> {
        let now = self.now;
        let at_wall = |at: u64| now.mono_ms + at.saturating_sub(now.wall_ms);
        let mut due = Vec::new();
        for job in &self.jobs {
            match job.place {
                Place::Prepared(at) | Place::Delayed(at) | Place::Retrying(at) => due.push(at),
                Place::Timed(at) => due.push(at_wall(at)),
                Place::Completed | Place::Cancelled | Place::Expired | Place::Dead(_) => {
                    due.push(self.goes_at(job));
                }
                Place::Ready | Place::Running { .. } => {}
            }
            let waits = matches!(job.place, Place::Ready | Place::Delayed(_) | Place::Timed(_));
            if waits && job.attempts == 0 {
                due.extend(job.expires_at.map(at_wall));
            }
        }
        for queue in &self.queues {
            if self.kept(&queue.path).count() as u64 > self.keep_jobs(&queue.path) {
                due.push(now.mono_ms);
            }
        }
        due.extend(self.sessions.iter().filter_map(|session| session.forget_at));
        due.into_iter().min()
    }
}
