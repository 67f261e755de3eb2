//! A publisher that is being drained takes no new jobs; what it has goes on until it is done.
//!
//! Batches are refused whole, so that producers send them to another publisher, and are not logged:
//! they use up no number.

use longshore_protocol::LinkId;
use longshore_protocol::messages::work::EnqueueBatch;

use super::State;

impl State {
    /// True while no new jobs are taken.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether a batch is to go elsewhere. It gets its answer here if it was taken before, or if
    /// all of its jobs are there: elsewhere they would be run a second time.
    pub(crate) fn is_for_another(&self, link: LinkId, batch: &EnqueueBatch) -> bool {
        if !self.draining {
            return false;
        }
        let Some(session) = self.session_of(link) else { return false };
        let next = self.sessions.table[session].next_batch;
        // Behind a refused one, none is a gap.
        batch.sequence > next || (batch.sequence == next && !self.has_all_of(batch))
    }

    fn has_all_of(&self, batch: &EnqueueBatch) -> bool {
        let mut heads = batch.entries().map(|entry| entry.head);
        heads.all(|head| head.is_ok_and(|head| self.rows.find(&head.id).is_some()))
    }
}
