//! Jobs with an expiry time. Such a job expires while it waits, scheduled or ready, unless an
//! attempt was used up or a handler snoozed or throttled it; a running job runs to its end. The set
//! of jobs that may expire is sorted by time and holds no others, so jobs without expiry cost
//! nothing.

use longshore_protocol::JobChange;

use super::State;
use super::row::{NONE, Substate};
use crate::outcome::Outcomes;

impl State {
    /// When the job expires in its present substate: none for a job that does not wait, that was
    /// attempted, or that never expires.
    #[inline]
    pub(super) fn expires_at(&self, slot: u32) -> Option<u64> {
        // Most jobs have no side row: this check is all that expiry costs them.
        if self.rows[slot].side == NONE { None } else { self.expires_at_of_some(slot) }
    }

    #[inline(never)]
    fn expires_at_of_some(&self, slot: u32) -> Option<u64> {
        let row = &self.rows[slot];
        let waits = matches!(
            row.substate,
            Substate::Fresh
                | Substate::Returned
                | Substate::Delayed
                | Substate::Timed
                | Substate::Blocked
                | Substate::Limited
                | Substate::Waiting
        );
        self.sides[row.side].expires_at.filter(|_| waits && row.attempts == 0)
    }

    /// True of a waiting job whose expiry has passed.
    #[inline]
    pub(super) fn is_expired(&self, slot: u32) -> bool {
        self.expires_at(slot).is_some_and(|at| at <= self.now.wall_ms)
    }

    /// Adds a timer for a job that has just entered a substate in which it may expire.
    #[inline]
    pub(super) fn watch_expiry(&mut self, slot: u32) {
        if let Some(at) = self.expires_at(slot) {
            self.timers.expiring.insert((at, slot));
        }
    }

    /// Removes the timer of a job that is about to leave its substate.
    #[inline]
    pub(super) fn unwatch_expiry(&mut self, slot: u32) {
        if let Some(at) = self.expires_at(slot) {
            self.timers.expiring.remove(&(at, slot));
        }
    }

    /// A handler began, without using up its attempt: a running job no longer expires.
    pub(super) fn clear_expiry(&mut self, slot: u32) {
        let side = self.rows[slot].side;
        if side != NONE {
            self.sides[side].expires_at = None;
        }
    }

    /// Expires a job that was enqueued, or returned, too late.
    #[inline]
    pub(super) fn expire_if_past(&mut self, slot: u32, out: &mut Outcomes) {
        if self.is_expired(slot) {
            self.expire_job(slot, out);
        }
    }

    pub(super) fn expire_job(&mut self, slot: u32, out: &mut Outcomes) {
        self.end_job(slot, Substate::Expired, JobChange::Expired, out);
    }

    /// Expires the jobs whose time has passed, the oldest first, in one bounded step.
    pub(super) fn expire_past(&mut self, out: &mut Outcomes) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, slot)) = self.timers.expiring.first() else { break };
            if at > self.now.wall_ms {
                break;
            }
            self.expire_job(slot, out);
        }
    }
}
