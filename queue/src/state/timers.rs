//! Timers. Only `Tick` runs them: every other command finds jobs as the last `Tick` left them, so
//! its cost hardly depends on how many timers have expired. One exception: a job whose expiry has
//! passed expires when it would be delivered, or when it enters ready, with any command.

use std::collections::BTreeSet;

use longshore_protocol::{AttemptOutcome, DeathReason, JobChange, Revoked, Token};

use super::State;
use super::row::Substate;
use crate::command::LeaseEnd;
use crate::outcome::Outcomes;
use crate::time::Now;

/// Everything that waits for a time, sorted by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    /// Delayed, retrying and prepared jobs, in monotonic time.
    pub(super) mono: BTreeSet<(u64, u32)>,
    /// Jobs scheduled by the wall clock.
    pub(super) wall: BTreeSet<(u64, u32)>,
    /// Jobs that expire, in wall time.
    pub(super) expiring: BTreeSet<(u64, u32)>,
    /// Queues that may have an ended job to remove.
    pub(super) cleanup: BTreeSet<(u64, u32)>,
}

impl Timers {
    /// The set of scheduled and prepared jobs in that substate.
    pub(super) fn jobs(&mut self, substate: Substate) -> &mut BTreeSet<(u64, u32)> {
        if substate == Substate::Timed { &mut self.wall } else { &mut self.mono }
    }
}

impl State {
    /// When the next `Tick` has work, in monotonic milliseconds; at most `now.mono_ms` if it has
    /// work already. Wall-clock times are converted with `now`: call this again after the wall
    /// clock has jumped.
    pub fn next_timer_ms(&self, now: Now) -> Option<u64> {
        let timers = &self.timers;
        let wall = [&timers.wall, &timers.expiring, &self.keys.ends, &self.uniques.ends];
        let wall = wall.into_iter().filter_map(|set| set.first());
        let wall = wall.map(|&(at, _)| now.mono_ms.saturating_add(at.saturating_sub(now.wall_ms)));
        let sets = [&self.timers.mono, &self.timers.cleanup, &self.sessions.to_remove];
        let mono = sets.into_iter().filter_map(|set| set.first().map(|&(at, _)| at)).min();
        let stalled = (!self.dispatch.stalled.is_empty()).then_some(self.now.mono_ms);
        let has_work = self.graph.has_ended() || self.batches.has_work();
        let stalled = stalled.or(has_work.then_some(self.now.mono_ms));
        wall.chain(mono).chain(self.limits_timer_ms()).chain(stalled).min()
    }

    /// Runs the timers that have expired: at most 10,000 of each kind; the rest with the next
    /// `Tick`.
    pub(super) fn tick(&mut self, out: &mut Outcomes) {
        self.expire_past(out);
        self.make_scheduled_ready(out);
        self.tick_limits();
        self.sweep_members(out);
        self.forget_released(out);
        self.remove_ended(out);
        self.remove_sessions();
        self.end_keys();
        self.end_uniques();
    }

    fn make_scheduled_ready(&mut self, out: &mut Outcomes) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, slot)) = self.timers.mono.first() else { break };
            if at > self.now.mono_ms {
                break;
            }
            self.come_due(slot, out);
        }
        // Of their own, so that many retries do not delay jobs with a time.
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, slot)) = self.timers.wall.first() else { break };
            if at > self.now.wall_ms {
                break;
            }
            self.come_due(slot, out);
        }
    }

    fn come_due(&mut self, slot: u32, out: &mut Outcomes) {
        if self.rows[slot].substate == Substate::Prepared {
            self.bury_unconfirmed(slot, out);
        } else if self.is_expired(slot) {
            self.expire_job(slot, out);
        } else {
            self.return_job(slot, JobChange::CameDue, out);
        }
    }

    fn remove_sessions(&mut self) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, session)) = self.sessions.to_remove.first() else { break };
            if at > self.now.mono_ms {
                break;
            }
            if self.sessions.table[session].lease_count > 0 {
                // Its leases end first; they always do.
                let later = self.now.mono_ms.saturating_add(self.rules.session_ttl_ms);
                self.sessions.schedule_removal(session, later);
            } else {
                self.remove_session(session);
            }
        }
    }

    /// Ends leases without a settle. A lease that has ended already is skipped: the first end
    /// counts.
    pub(super) fn end_leases(&mut self, leases: &[LeaseEnd], out: &mut Outcomes) {
        for lease in leases {
            let Some(slot) = self.rows.find_token(lease.token) else { continue };
            let session = &self.sessions.table[self.rows[slot].session];
            if session.is_up {
                let why = if lease.timed_out { Revoked::TimedOut } else { Revoked::LeaseLost };
                out.revoked.push((session.link, why, lease.token));
            }
            self.revoke_lease(slot, out);
            if lease.uncounted {
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

    /// An attempt lost its worker, which died, hung or was cut off. After the first loss the job is
    /// ready at once: the job is hardly the cause. After the second it may be killing its workers,
    /// and waits. After the third it is dead.
    fn lose_attempt(&mut self, slot: u32, out: &mut Outcomes) {
        let attempts = self.consume_attempt(slot, AttemptOutcome::WorkerLost, None);
        let side = self.side_mut(slot);
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

    /// An attempt exceeded its run timeout: it has failed without its worker's report.
    fn time_out(&mut self, slot: u32, out: &mut Outcomes) {
        self.consume_attempt(slot, AttemptOutcome::TimedOut, None);
        self.retry_or_bury(slot, DeathReason::TimedOut, JobChange::TimedOut, out);
    }

    /// A running job's entry cannot be read. The worker never received it; the caller returns its
    /// subscription's credit with a `Credit`.
    pub(super) fn damaged(&mut self, token: Token, out: &mut Outcomes) {
        if let Some(slot) = self.rows.find_token(token) {
            self.revoke_lease(slot, out);
            self.bury_job(slot, DeathReason::PayloadDamaged, JobChange::Damaged, out);
        }
    }
}
