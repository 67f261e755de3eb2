//! What time does. Only `Tick` looks for what is due: every other command finds jobs where the last
//! `Tick` left them, so that what it does hardly depends on how much was due. One exception: a job
//! whose time has passed expires when it would be handed out, or comes in or back, whatever the
//! command.

use std::collections::BTreeSet;

use longshore_protocol::{AttemptOutcome, DeathReason, JobChange, Revoked, Token};

use super::State;
use super::row::Place;
use crate::command::Expired;
use crate::outcome::Outcomes;
use crate::time::Now;

/// All that waits for a time, by that time.
#[derive(Clone, Debug, Default)]
pub(super) struct DueJobs {
    /// Delayed, retrying and prepared jobs, in monotonic time.
    pub(super) mono: BTreeSet<(u64, u32)>,
    /// Jobs for a time of the wall clock.
    pub(super) wall: BTreeSet<(u64, u32)>,
    /// Jobs that expire, in wall time.
    pub(super) expiring: BTreeSet<(u64, u32)>,
    /// Queues in which an ended job may be due to be forgotten.
    pub(super) collect: BTreeSet<(u64, u32)>,
}

impl DueJobs {
    /// Where scheduled and prepared jobs of that place wait.
    pub(super) fn jobs(&mut self, place: Place) -> &mut BTreeSet<(u64, u32)> {
        if place == Place::Timed { &mut self.wall } else { &mut self.mono }
    }
}

impl State {
    /// When the next `Tick` has something to do, in monotonic milliseconds; at most `now.mono_ms`
    /// when it has already. A time of the wall clock is reckoned from `now`: ask again after the
    /// wall clock has jumped.
    pub fn next_due(&self, now: Now) -> Option<u64> {
        let wall = [&self.due.wall, &self.due.expiring].into_iter().filter_map(|set| set.first());
        let wall = wall.map(|&(at, _)| now.mono_ms.saturating_add(at.saturating_sub(now.wall_ms)));
        let sets = [&self.due.mono, &self.due.collect, &self.sessions.leaving];
        let mono = sets.into_iter().filter_map(|set| set.first().map(|&(at, _)| at)).min();
        wall.chain(mono).min()
    }

    /// What is past its time expires, what is due becomes ready, what is too old is forgotten. At
    /// most 10,000 of each; the rest with the next `Tick`.
    pub(super) fn tick(&mut self, out: &mut Outcomes) {
        self.expire_overdue(out);
        self.make_due_ready(out);
        self.forget_ended(out);
        self.forget_sessions();
    }

    fn make_due_ready(&mut self, out: &mut Outcomes) {
        for _ in 0..self.rules.step_jobs {
            let mono = self.due.mono.first().filter(|&&(at, _)| at <= self.now.mono_ms);
            let wall = self.due.wall.first().filter(|&&(at, _)| at <= self.now.wall_ms);
            let Some(&(_, slot)) = mono.or(wall) else { break };
            if self.rows[slot].place == Place::Prepared {
                self.bury_unconfirmed(slot, out);
            } else if self.is_past(slot) {
                self.expire_job(slot, out);
            } else {
                self.return_job(slot, JobChange::CameDue, out);
            }
        }
    }

    fn forget_sessions(&mut self) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, session)) = self.sessions.leaving.first() else { break };
            if at > self.now.mono_ms {
                break;
            }
            if self.sessions.table[session].held_count > 0 {
                // Its leases end first; they always do.
                let later = self.now.mono_ms.saturating_add(self.rules.session_kept_ms);
                self.sessions.leave(session, later);
            } else {
                self.forget_session(session);
            }
        }
    }

    /// Leases end by time. One that has ended already is passed over: whatever ended it came first,
    /// and counts.
    pub(super) fn expire(&mut self, leases: &[Expired], out: &mut Outcomes) {
        for lease in leases {
            let Some(slot) = self.rows.find_token(lease.token) else { continue };
            let session = &self.sessions.table[self.rows[slot].session];
            if session.is_up {
                let why = if lease.timed_out { Revoked::TimedOut } else { Revoked::LeaseLost };
                out.revoked.push((session.link, why, lease.token));
            }
            self.take_lease(slot, out);
            if lease.restart {
                self.return_job(slot, JobChange::LeaseLost, out);
            } else if lease.timed_out {
                self.time_out(slot, out);
            } else if lease.started {
                self.lose_attempt(slot, out);
            } else {
                self.return_unstarted(slot, out);
            }
        }
    }

    /// An attempt lost its worker, which died, hung or was cut off. The first loss is hardly the
    /// job's fault: it is ready at once. With the second it may be killing its workers, and waits;
    /// with the third it is dead.
    fn lose_attempt(&mut self, slot: u32, out: &mut Outcomes) {
        let attempts = self.consume_attempt(slot, AttemptOutcome::WorkerLost, None);
        let side = self.side_of(slot);
        side.worker_losses = side.worker_losses.saturating_add(1);
        let losses = side.worker_losses;
        if u64::from(losses) >= self.rules.worker_losses
            || attempts >= self.max_attempts(&self.rows[slot])
        {
            self.bury_job(slot, DeathReason::WorkerLost, JobChange::LeaseLost, out);
        } else if losses == 1 {
            self.return_job(slot, JobChange::LeaseLost, out);
        } else {
            self.back_off(slot, JobChange::LeaseLost, out);
        }
    }

    /// An attempt ran for longer than it may: it has failed, though its worker did not say so.
    fn time_out(&mut self, slot: u32, out: &mut Outcomes) {
        self.consume_attempt(slot, AttemptOutcome::TimedOut, None);
        self.retry_or_bury(slot, DeathReason::TimedOut, JobChange::TimedOut, out);
    }

    /// A running job's entry cannot be read back. The worker never got it; its subscription's
    /// credit is the caller's to give back, with a `Credit`.
    pub(super) fn damaged(&mut self, token: Token, out: &mut Outcomes) {
        if let Some(slot) = self.rows.find_token(token) {
            self.take_lease(slot, out);
            self.bury_job(slot, DeathReason::PayloadDamaged, JobChange::Damaged, out);
        }
    }
}
