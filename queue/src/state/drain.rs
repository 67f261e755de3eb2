//! A draining publisher accepts no new jobs, and continues with those that it has.
//!
//! Whole batches are refused, so that producers send them to another publisher, and are not logged:
//! they use no batch number.

use longshore_protocol::LinkId;
use longshore_protocol::messages::work::EnqueueBatch;

use super::State;

impl State {
    /// True while no new jobs are accepted.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether a batch is to go to another publisher. It is answered here if it was accepted
    /// before, or if all of its jobs exist here: elsewhere they would run a second time.
    pub(crate) fn must_go_to_another(&self, link: LinkId, batch: &EnqueueBatch) -> bool {
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
        let mut heads = batch.entries().filter_map(|entry| entry.head.ok());
        heads.any(|head| self.rows.find(&head.id).is_some())
    }

    fn has_all_of(&self, batch: &EnqueueBatch) -> bool {
        let mut heads = batch.entries().map(|entry| entry.head);
        heads.all(|head| head.is_ok_and(|head| self.rows.find(&head.id).is_some()))
    }
}
