//! A publisher that is being drained takes no new jobs; what it has goes on until it is done.
//!
//! Batches are refused whole, so that producers send them to another publisher. One that was taken before gets the answer
//! that it got.

use longshore_protocol::messages::work::DrainReport;

use super::State;

impl State {
    /// True while no new jobs are taken.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    pub(super) fn drain(&mut self, draining: bool) -> DrainReport {
        let changed = self.draining != draining;
        self.draining = draining;
        let mut report = DrainReport { changed, ..DrainReport::default() };
        for queue in &self.queues {
            report.open += queue.open_jobs();
            report.prepared += queue.counts.prepared;
            report.dead += queue.counts.dead;
            report.kept += queue.ended_jobs();
        }
        report
    }
}
