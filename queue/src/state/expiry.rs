//! Jobs that are of no use after a time. Such a job expires while it waits, scheduled or ready, if
//! no attempt was made by then; once one was made it runs to its end, however long that takes. The
//! set of those that may expire is by time, and holds no other job: the rest pays nothing.

use longshore_protocol::JobChange;

use super::State;
use super::row::{NONE, Place};
use crate::outcome::Outcomes;

impl State {
    /// When the job expires, if it stays where it is: none for one that does not wait, whose first
    /// attempt is behind it, or that never expires.
    #[inline]
    pub(super) fn expires_at(&self, slot: u32) -> Option<u64> {
        // Most jobs have no side row: that is all that this costs them.
        if self.rows[slot].side == NONE { None } else { self.expires_at_of_some(slot) }
    }

    #[inline(never)]
    fn expires_at_of_some(&self, slot: u32) -> Option<u64> {
        let row = &self.rows[slot];
        let waits =
            matches!(row.place, Place::Fresh | Place::Returned | Place::Delayed | Place::Timed);
        self.sides[row.side].expires_at.filter(|_| waits && row.attempts == 0)
    }

    /// True of a job that waits and whose time has passed.
    #[inline]
    pub(super) fn is_past(&self, slot: u32) -> bool {
        self.expires_at(slot).is_some_and(|at| at <= self.now.wall_ms)
    }

    /// A job that has just entered a place is watched if it may expire there.
    #[inline]
    pub(super) fn watch_expiry(&mut self, slot: u32) {
        if let Some(at) = self.expires_at(slot) {
            self.due.expiring.insert((at, slot));
        }
    }

    /// A job that is about to leave its place is watched no longer.
    #[inline]
    pub(super) fn unwatch_expiry(&mut self, slot: u32) {
        if let Some(at) = self.expires_at(slot) {
            self.due.expiring.remove(&(at, slot));
        }
    }

    /// A job that came in, or came back, too late.
    #[inline]
    pub(super) fn expire_if_past(&mut self, slot: u32, out: &mut Outcomes) {
        if self.is_past(slot) {
            self.expire_job(slot, out);
        }
    }

    pub(super) fn expire_job(&mut self, slot: u32, out: &mut Outcomes) {
        self.end_job(slot, Place::Expired, JobChange::Expired, out);
    }

    /// Expires what is past its time, the oldest first, in one bounded step.
    pub(super) fn expire_overdue(&mut self, out: &mut Outcomes) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, slot)) = self.due.expiring.first() else { break };
            if at > self.now.wall_ms {
                break;
            }
            self.expire_job(slot, out);
        }
    }
}
