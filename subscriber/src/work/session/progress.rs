//! The session's interface to handlers that report progress. Only the first report since the last
//! message takes the lock that handler tasks share.

use std::time::Duration;

use longshore_protocol::Token;
use longshore_protocol::messages::work::Progress;

use super::{PublisherSlot, SlotId, WorkerSession};

impl WorkerSession {
    /// A job has progress to send; its signal holds the report. Whether the job still runs here is
    /// checked when it is sent.
    pub(crate) fn progress(&self, slot_id: SlotId, token: Token) {
        let mut state = self.state.lock();
        let slot = state.slot(slot_id);
        if slot.pending_progress.reported(token) {
            slot.wake.notify_one();
        }
    }
}

impl PublisherSlot {
    /// The progress to send now: the latest report of each job that has a lease.
    pub(super) fn take_due_progress(&mut self, now: Duration) -> Vec<Progress> {
        let leases = &mut self.leases;
        let latest_report = |token: Token| {
            let signal = leases.get_mut(token)?.job.signal()?;
            let (percent, message) = signal.take_unsent_progress()?;
            Some(Progress { token, percent, message })
        };
        self.pending_progress.take_due(now).into_iter().filter_map(latest_report).collect()
    }

    /// The link is new: all known progress is sent again.
    pub(super) fn resend_progress(&mut self) {
        let leases = self.leases.iter();
        let reported = leases.filter(|(_, lease)| {
            lease.job.signal().is_some_and(|signal| signal.mark_progress_unsent())
        });
        self.pending_progress.resend(reported.map(|(token, _)| token).collect());
    }
}
