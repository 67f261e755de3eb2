//! How far running attempts are, as their workers last said. Soft: kept as long as the lease, told
//! to whoever looks, not logged.

use hashbrown::HashMap;
use longshore_protocol::Token;
use longshore_protocol::messages::work::{Progress, ProgressInfo};

use crate::JobView;

/// The last report of each attempt: at most one for each lease.
#[derive(Debug, Default)]
pub(super) struct ProgressReports {
    by_token: HashMap<Token, ProgressInfo>,
}

impl ProgressReports {
    /// Takes a report of a lease that is held, at that time of the wall clock.
    pub(super) fn record(&mut self, progress: Progress, wall_ms: u64) {
        let Progress { token, percent, message } = progress;
        self.by_token.insert(token, ProgressInfo { percent, message, at: wall_ms });
    }

    /// Forgets an attempt whose lease has ended.
    pub(super) fn forget(&mut self, token: Token) {
        if !self.by_token.is_empty() {
            self.by_token.remove(&token);
        }
    }

    /// Adds what is known of a running job.
    pub(super) fn add_to(&self, view: &mut JobView) {
        view.info.progress = view.info.token.and_then(|token| self.by_token.get(&token)).cloned();
    }

    /// Reports that are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }
}
