//! What happened to jobs, as it is told to those who follow along. Every transition ends here, and nothing else does.

use longshore_protocol::JobChange;

use super::State;
use super::row::Place;
use crate::outcome::{Event, Outcomes, QueueId};

impl State {
    /// Says what happened to a job, as it stands now.
    pub(super) fn emit(&self, slot: u32, change: JobChange, out: &mut Outcomes) {
        if out.wants_events {
            let state = self.rows[slot].place.state();
            out.events.push(Event { state, ..self.event(slot, change) });
        }
    }

    /// Says that a job is about to be gone.
    pub(super) fn emit_gone(&self, slot: u32, change: JobChange, out: &mut Outcomes) {
        if out.wants_events {
            let gone = Event { state: None, retrying: false, ..self.event(slot, change) };
            out.events.push(gone);
        }
    }

    fn event(&self, slot: u32, change: JobChange) -> Event {
        let row = &self.rows[slot];
        Event {
            index: self.index,
            wall_ms: self.now.wall_ms,
            job: row.id,
            queue: QueueId(row.queue),
            attempt: row.attempt(),
            change,
            state: None,
            retrying: row.place == Place::Retrying,
        }
    }
}
