//! A draining publisher accepts no new jobs, and continues with those that it has.
//!
//! Whole batches are refused, so that producers send them to another publisher, and are not logged:
//! they use no batch number.

use longshore_protocol::LinkId;
use longshore_protocol::messages::work::{BatchEntry, EnqueueBatch};

use super::State;
use super::idempotency::KeyUse;

impl State {
    /// True while no new jobs are accepted.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether a batch is to go to another publisher. It is answered here if it was accepted
    /// before, or if all of its jobs exist here: elsewhere they would run a second time.
    pub fn must_go_to_another(&self, link: LinkId, batch: &EnqueueBatch) -> bool {
        if !self.draining {
            return false;
        }
        let Some(session) = self.session_of(link) else { return false };
        let next = self.sessions.table[session].next_batch;
        // A batch behind a refused one is no gap.
        batch.sequence > next || (batch.sequence == next && !self.has_all_of(batch))
    }

    /// Whether a job of the batch exists here: it is answered as such, wherever it was sent.
    pub fn has_any_of(&self, batch: &EnqueueBatch) -> bool {
        batch.entries().any(|entry| self.knows(batch, &entry))
    }

    fn has_all_of(&self, batch: &EnqueueBatch) -> bool {
        batch.entries().all(|entry| self.knows(batch, &entry) || self.is_held(batch, &entry))
    }

    /// Whether a job of that id exists here.
    pub fn has_id_of(&self, entry: &BatchEntry) -> bool {
        entry.head.as_ref().is_ok_and(|head| self.rows.find(&head.id).is_some())
    }

    /// Whether a job of the batch exists here, by its id or its idempotency key: it is no new one.
    pub fn knows(&self, batch: &EnqueueBatch, entry: &BatchEntry) -> bool {
        let Ok(head) = &entry.head else { return false };
        self.has_id_of(entry)
            || matches!(self.find_key(&batch.paths[entry.path], head), KeyUse::Known(_))
    }
}
