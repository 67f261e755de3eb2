//! Quotas of queues: what of a batch its client may not enqueue.

use std::time::Instant;

use longshore_access::Action;
use longshore_protocol::messages::work::{EnqueueBatch, OVER_QUOTA_PLACEHOLDER_PATH};
use longshore_protocol::{LinkId, Path, Refusal};

use super::Owner;

impl Owner {
    /// The batch, and why all of its jobs are refused, if they are. If only some are, their paths
    /// are replaced.
    pub(super) fn within_quota(
        &mut self,
        link: LinkId,
        batch: EnqueueBatch,
    ) -> (EnqueueBatch, Option<Refusal>) {
        let Some((who, _)) = self.router.client(link) else { return (batch, None) };
        let state = self.store.state();
        let Some(over) = self.queue_quotas.check(state, who, &batch, Instant::now()) else {
            return (batch, None);
        };
        let mut refused = over.refused.into_iter();
        let some = match refused.as_slice().contains(&false) {
            true => batch.with_paths_replaced(OVER_QUOTA_PLACEHOLDER_PATH, |_| {
                refused.next().unwrap_or(false)
            }),
            false => None,
        };
        self.log_denied(link, Action::Enqueue, &over.why, || over.path.to_string());
        match some {
            Some(some) => (some, None),
            None => (batch, Some(Refusal::OverQuota)),
        }
    }

    /// True if the client may create no queue at that path, which is logged.
    pub(super) fn refuses_queue(&mut self, link: LinkId, path: &Path) -> bool {
        let Some((who, _)) = self.router.client(link) else { return false };
        let why = self.queue_quotas.refuses_queue(self.store.state(), who, path);
        if let Some(why) = &why {
            self.log_denied(link, Action::Act, why, || path.to_string());
        }
        why.is_some()
    }
}
