//! What happened to jobs, as it is told to those who follow along. Every transition ends here, and
//! nothing else does.

use longshore_protocol::JobChange;

use super::State;
use super::row::Place;
use crate::outcome::{Event, Outcomes, QueueId};

impl State {
    /// Says what happened to a job, as it stands now.
    #[inline]
    pub(super) fn emit(&self, slot: u32, change: JobChange, out: &mut Outcomes) {
        if out.wants_events {
            out.events.push(self.event(slot, change));
        }
    }

    /// Says that a job is about to be gone.
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
            state: row.place.state(),
            retrying: row.place == Place::Retrying,
        }
    }
}
