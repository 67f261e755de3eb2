//! Events of jobs, for feeds and waiting requests. Every transition emits one here.

use longshore_protocol::JobChange;

use super::State;
use super::row::Substate;
use crate::outcome::{Event, Outcomes, QueueId};

impl State {
    /// Emits an event with the job's present state.
    #[inline]
    pub(super) fn emit(&self, slot: u32, change: JobChange, out: &mut Outcomes) {
        if out.wants_events {
            out.events.push(self.event(slot, change));
        }
    }

    /// Emits an event for a job that is about to be removed.
    #[inline]
    pub(super) fn emit_gone(&self, slot: u32, change: JobChange, out: &mut Outcomes) {
        if out.wants_events {
            let gone = Event { state: None, retrying: false, ..self.event(slot, change) };
            out.events.push(gone);
        }
    }

    #[inline(never)]
    fn event(&self, slot: u32, change: JobChange) -> Event {
        let row = &self.rows[slot];
        Event {
            index: self.index,
            wall_ms: self.now.wall_ms,
            job: row.id,
            queue: QueueId(row.queue),
            attempt: row.attempt(),
            change,
            state: row.substate.state(),
            retrying: row.substate == Substate::Retrying,
        }
    }
}
