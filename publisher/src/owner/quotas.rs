//! Quotas of queues: what of a batch its client may not enqueue.

use std::time::Instant;

use longshore_protocol::messages::work::EnqueueBatch;
use longshore_protocol::{LinkId, Path, Refusal};

use super::Owner;
use crate::queue_quotas::OverQuota;

impl Owner {
    /// The batch, in which the paths over a quota are replaced; the refusal of all its jobs if no
    /// other is in it.
    pub(super) fn without_jobs_over_quota(
        &mut self,
        link: LinkId,
        batch: EnqueueBatch,
    ) -> Result<EnqueueBatch, Refusal> {
        let Some((who, _)) = self.router.client(link) else { return Ok(batch) };
        let state = self.store.state();
        let over = self.queue_quotas.check(state, who, &batch, Instant::now());
        let Some(OverQuota { mut refused, path, why }) = over else { return Ok(batch) };
        // Jobs for a value are refused for good, which their client is to know.
        for (refused, path) in refused.iter_mut().zip(&batch.paths) {
            *refused = *refused && (state.has_queue(path) || !self.names.is_value(path));
        }
        if !refused.contains(&true) {
            return Ok(batch);
        }
        self.log_over_quota(link, &path, &why);
        let (state, whole) = (self.store.state(), batch.clone());
        self.without_new_jobs(batch, |entry| {
            let is_over = refused[entry.path] && !state.is_held(&whole, entry);
            is_over.then_some(Refusal::OverQuota)
        })
    }

    /// True if the client may create no queue at that path, which is logged.
    pub(super) fn refuse_queue_over_quota(&mut self, link: LinkId, path: &Path) -> bool {
        let Some((who, _)) = self.router.client(link) else { return false };
        let why = self.queue_quotas.refuses_queue(self.store.state(), who, path);
        if let Some(why) = &why {
            self.log_over_quota(link, path, why);
        }
        why.is_some()
    }

    fn log_over_quota(&mut self, link: LinkId, path: &Path, why: &str) {
        let Some((identity, address)) = self.router.client(link) else { return };
        self.operator_log.over_quota(identity, address, path, why);
    }
}
