//! Prepared jobs: enqueued, and not delivered until confirmed, so that a producer's own commit and
//! the job stay consistent. A job that is not confirmed within an hour goes to the dead letters, so
//! that no job disappears without a trace.

use longshore_protocol::{DeathReason, Due, JobChange};

use super::State;
use super::row::{NONE, Substate};
use super::rows::Links;
use crate::outcome::Outcomes;

/// The preparation of a job that was enqueued prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preparation {
    /// Not confirmed. The confirmation schedules it for this time.
    Open(Due),
    /// Confirmed: a repeated confirmation is accepted.
    Confirmed,
}

impl State {
    /// A new job waits for its confirmation.
    pub(super) fn enter_prepared(&mut self, slot: u32, due: Due) {
        self.side_mut(slot).preparation = Some(Preparation::Open(due));
        let row = &mut self.rows[slot];
        row.when = self.now.mono_ms.saturating_add(self.rules.prepared_ttl_ms);
        let (until, queue) = (row.when, row.queue);
        self.timers.jobs(Substate::Prepared).insert((until, slot));
        self.set_substate(slot, Substate::Prepared);
        self.queues[queue as usize].prepared.push_back(&mut self.rows, Links::Main, slot);
    }

    /// Confirms a prepared job. Its delay counts from now; a wall-clock time that has passed means
    /// now. A job that was confirmed before is unchanged.
    pub(super) fn confirm_job(&mut self, slot: u32, out: &mut Outcomes) {
        let Some(Preparation::Open(due)) = self.preparation(slot) else { return };
        self.leave_substate(slot);
        self.side_mut(slot).preparation = Some(Preparation::Confirmed);
        self.schedule_or_ready(slot, due, Substate::Returned);
        self.emit(slot, JobChange::Confirmed, out);
        self.expire_if_past(slot, out);
    }

    /// The job was not confirmed in time.
    pub(super) fn bury_unconfirmed(&mut self, slot: u32, out: &mut Outcomes) {
        self.bury_job(slot, DeathReason::Unconfirmed, JobChange::Unconfirmed, out);
    }

    /// True of a job that was confirmed, in any state.
    pub(super) fn was_confirmed(&self, slot: u32) -> bool {
        self.preparation(slot) == Some(Preparation::Confirmed)
    }

    fn preparation(&self, slot: u32) -> Option<Preparation> {
        let side = self.rows[slot].side;
        if side == NONE { None } else { self.sides[side].preparation }
    }
}
