//! A budget of deliveries, for a disk that has room to settle only so many leases.
//!
//! Each delivered job debits it. At 0, credits and jobs wait for each other; everything else
//! continues. It lasts over a restart, until another command changes it.

use super::State;

impl State {
    /// Jobs that may still be delivered; [`u64::MAX`] for no limit.
    pub fn delivery_budget(&self) -> u64 {
        self.delivery_budget
    }

    /// Credits that wait for jobs.
    pub fn waiting_credits(&self) -> u64 {
        self.dispatch.credits
    }

    /// Running leases.
    pub fn leases(&self) -> u64 {
        self.rows.tokens() as u64
    }

    pub(super) fn set_delivery_budget(&mut self, budget: u64) {
        self.delivery_budget = budget;
        self.dispatch.stalled = self.dispatch.groups.iter().map(|(group, _)| group).collect();
    }

    pub(super) fn debit_delivery_budget(&mut self, jobs: u32) {
        if self.delivery_budget != u64::MAX {
            self.delivery_budget -= u64::from(jobs);
        }
    }
}
