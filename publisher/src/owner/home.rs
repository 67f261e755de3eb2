//! Jobs that only the home of their path may get, at a publisher that is not.

use longshore_protocol::Refusal;
use longshore_protocol::messages::work::EnqueueBatch;

use super::Owner;

impl Owner {
    /// The batch, in which the jobs that another publisher is to get are refused; the refusal of
    /// all its jobs if no other is in it. A job that exists here is answered as such.
    pub(super) fn at_home(&self, batch: EnqueueBatch) -> Result<EnqueueBatch, Refusal> {
        let Some(away) = self.homes.away(&batch) else { return Ok(batch) };
        self.without_new_jobs(batch, |entry| {
            let has_keys = entry.head.as_ref().is_ok_and(|head| head.has_keys());
            (away[entry.path] && has_keys).then_some(Refusal::NotHome)
        })
    }
}
