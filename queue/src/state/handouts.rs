//! A budget of hand-outs, for a disk that has room for the ends of only so many leases.
//!
//! Each job that is handed out debits it. At 0 credits and jobs wait for each other; everything
//! else goes on. It lasts over a restart, until another command changes it.

use super::State;

impl State {
    /// Jobs that may still be handed out; [`u64::MAX`] for any number.
    pub fn handouts(&self) -> u64 {
        self.handouts
    }

    /// Credits that wait for jobs.
    pub fn waiting_credits(&self) -> u64 {
        self.dispatch.credits
    }

    /// Leases that run.
    pub fn leases(&self) -> u64 {
        self.rows.tokens() as u64
    }

    pub(super) fn limit_handouts(&mut self, budget: u64) {
        self.handouts = budget;
        self.dispatch.stalled = self.dispatch.groups.iter().map(|(group, _)| group).collect();
    }

    pub(super) fn debit_handouts(&mut self, jobs: u32) {
        if self.handouts != u64::MAX {
            self.handouts -= u64::from(jobs);
        }
    }
}
