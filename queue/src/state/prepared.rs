//! Jobs that are written and not to be run until somebody confirms them: so that a producer's own
//! commit and the job cannot part ways. One that nobody confirms within an hour goes to the dead
//! letters, so that no job is lost without a trace.

use longshore_protocol::{DeathReason, Due, JobChange};

use super::State;
use super::row::{NONE, Place};
use super::rows::Links;
use crate::outcome::Outcomes;

/// Of a job that was enqueued prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preparation {
    /// Nobody has confirmed it. Once somebody does, it is due then.
    Open(Due),
    /// It was confirmed: to be told that again is no surprise.
    Confirmed,
}

impl State {
    /// A new job waits to be confirmed.
    pub(super) fn enter_prepared(&mut self, slot: u32, due: Due) {
        self.side_of(slot).preparation = Some(Preparation::Open(due));
        let row = &mut self.rows[slot];
        row.when = self.now.mono_ms.saturating_add(self.rules.prepared_kept_ms);
        let (until, queue) = (row.when, row.queue);
        self.due.jobs(Place::Prepared).insert((until, slot));
        self.set_place(slot, Place::Prepared);
        self.queues[queue as usize].prepared.push_back(&mut self.rows, Links::Main, slot);
    }

    /// Lets a prepared job run. Its delay counts from now; a time of the wall clock that has passed
    /// is now. One that was confirmed before stays as it is.
    pub(super) fn confirm_job(&mut self, slot: u32, out: &mut Outcomes) {
        let Some(Preparation::Open(due)) = self.preparation(slot) else { return };
        self.leave_place(slot);
        self.side_of(slot).preparation = Some(Preparation::Confirmed);
        self.enter_by_due(slot, due, Place::Returned);
        self.emit(slot, JobChange::Confirmed, out);
        self.expire_if_past(slot, out);
    }

    /// Nobody confirmed it in time.
    pub(super) fn bury_unconfirmed(&mut self, slot: u32, out: &mut Outcomes) {
        self.bury_job(slot, DeathReason::Unconfirmed, JobChange::Unconfirmed, out);
    }

    /// True of a job that somebody has confirmed, whatever has become of it.
    pub(super) fn was_confirmed(&self, slot: u32) -> bool {
        self.preparation(slot) == Some(Preparation::Confirmed)
    }

    fn preparation(&self, slot: u32) -> Option<Preparation> {
        let side = self.rows[slot].side;
        if side == NONE { None } else { self.sides[side].preparation }
    }
}
