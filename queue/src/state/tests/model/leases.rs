//! How leases and attempts end in the model.

use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;
use longshore_protocol::{
    AttemptOutcome, CheckpointOutcome, DeathReason, Fingerprint, JobChange, Revoked, Token,
};

use super::jobs::{Attempt, Checkpoint, Phase};
use super::naive::{Expected, Model};
use crate::command::LeaseEnd;
use crate::outcome::RecordRef;
use crate::state::rows::random_of;

impl Model {
    /// Counts an attempt.
    pub(super) fn count_attempt(
        &mut self,
        job: usize,
        outcome: AttemptOutcome,
        error: Option<(RecordRef, Fingerprint)>,
    ) {
        let Phase::Running { session, .. } = self.jobs[job].phase else { return };
        let worker = self.sessions[session].name.clone();
        let job = &mut self.jobs[job];
        job.attempts += 1;
        job.expires_at = None;
        let (number, delivered) = (job.attempts, job.delivered);
        job.add_attempt(Attempt { number, worker, delivered, ended: self.now, outcome, error });
    }

    /// After a failed attempt: the next one, or the end.
    pub(super) fn retry(
        &mut self,
        number: usize,
        reason: DeathReason,
        change: JobChange,
        to: &mut Expected<'_>,
    ) {
        let job = &self.jobs[number];
        let n = job.attempts;
        if n >= self.max_attempts(job) {
            return self.die(number, reason, change, to);
        }
        let wait = self.backoff(job).wait_ms(n, random_of(&job.id, n));
        let first_loss = reason == DeathReason::WorkerLost && job.worker_losses == 1;
        if wait == 0 || first_loss {
            self.make_ready(number, change, to);
        } else {
            self.jobs[number].phase = Phase::Retrying(self.now.mono_ms + wait);
            self.emit(number, change, to);
        }
    }

    pub(super) fn expire(&mut self, lease: &LeaseEnd, to: &mut Expected<'_>) {
        let Some(job) = self.holder_of(lease.token) else { return };
        let why = if lease.timed_out { Revoked::TimedOut } else { Revoked::LeaseLost };
        self.revoke(job, Some(why), to);
        if lease.uncounted {
            self.make_ready(job, JobChange::LeaseLost, to);
        } else if lease.timed_out {
            let path = self.jobs[job].path.clone();
            self.queue(&path).failed += 1;
            self.count_attempt(job, AttemptOutcome::TimedOut, None);
            self.retry(job, DeathReason::TimedOut, JobChange::TimedOut, to);
        } else if lease.started {
            self.count_attempt(job, AttemptOutcome::WorkerLost, None);
            self.jobs[job].worker_losses += 1;
            let (reason, change) = (DeathReason::WorkerLost, JobChange::LeaseLost);
            match self.jobs[job].worker_losses {
                3 => self.die(job, reason, change, to),
                _ => self.retry(job, reason, change, to),
            }
        } else {
            self.lose_delivery(job, to);
        }
    }

    pub(super) fn lose_delivery(&mut self, number: usize, to: &mut Expected<'_>) {
        let most = u32::from(self.max_attempts(&self.jobs[number])).saturating_mul(3);
        let job = &mut self.jobs[number];
        job.unstarted_deliveries += 1;
        if job.unstarted_deliveries >= most.clamp(30, 255) {
            self.die(number, DeathReason::Undeliverable, JobChange::LeaseLost, to);
        } else {
            self.make_ready(number, JobChange::LeaseLost, to);
        }
    }

    /// Revokes a lease, and notifies its holder if its link is up.
    pub(super) fn revoke(&mut self, job: usize, why: Option<Revoked>, to: &mut Expected<'_>) {
        let Phase::Running { token, session } = self.jobs[job].phase else { return };
        to.ended.push(token);
        let path = self.jobs[job].path.clone();
        self.sessions[session].revoked.push((token, path));
        if let (Some(why), Some(link)) = (why, self.sessions[session].link) {
            to.revoked.push((link, why, token));
        }
    }

    pub(super) fn checkpoint(
        &mut self,
        session: usize,
        token: Token,
        sequence: u64,
        bytes: RecordRef,
    ) -> CheckpointOutcome {
        let Some(job) = self.held_by(token, session) else {
            self.count_stale(session, token);
            return CheckpointOutcome::StaleToken;
        };
        let wall_ms = self.now.wall_ms;
        let job = &mut self.jobs[job];
        if sequence <= job.sequence {
            return CheckpointOutcome::Accepted;
        } else if sequence > job.sequence + 1 {
            return CheckpointOutcome::Gap;
        } else if bytes.length as usize > CHECKPOINT_BYTES_MAX {
            return CheckpointOutcome::TooLarge;
        }
        job.sequence = sequence;
        let attempt = job.attempt();
        job.add_checkpoint(Checkpoint { attempt, sequence, at: wall_ms, bytes });
        CheckpointOutcome::Accepted
    }
}
