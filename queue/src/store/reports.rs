//! The progress that workers last reported of running attempts. Soft state: retained as long as the
//! lease, shown in queries, not logged.

use hashbrown::HashMap;
use longshore_protocol::Token;
use longshore_protocol::messages::work::{Progress, ProgressInfo};

use crate::JobView;

/// The last report of each attempt, at most one per lease.
#[derive(Debug, Default)]
pub(super) struct ProgressReports {
    by_token: HashMap<Token, ProgressInfo>,
}

impl ProgressReports {
    /// Records a report of a running lease, at that wall time.
    pub(super) fn record(&mut self, progress: Progress, wall_ms: u64) {
        let Progress { token, percent, message } = progress;
        self.by_token.insert(token, ProgressInfo { percent, message, at: wall_ms });
    }

    /// Removes the report of an ended lease.
    pub(super) fn forget(&mut self, token: Token) {
        if !self.by_token.is_empty() {
            self.by_token.remove(&token);
        }
    }

    /// Adds the report to the view of a running job.
    pub(super) fn add_to(&self, view: &mut JobView) {
        view.info.progress = view.info.token.and_then(|token| self.by_token.get(&token)).cloned();
    }

    /// The number of reports.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }
}
