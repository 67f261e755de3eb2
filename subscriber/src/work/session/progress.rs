//! The desk's side that faces handlers which say how far they are. It is told without the lock of
//! lanes, but for the first word since the last message.

use std::time::Duration;

use longshore_protocol::Token;
use longshore_protocol::messages::work::Progress;

use super::{PublisherSlot, SlotId, WorkerSession};

impl WorkerSession {
    /// A job has said how far it is; what, its signal knows. Whether it still runs here shows when
    /// it is told.
    pub(crate) fn progress(&self, slot_id: SlotId, token: Token) {
        let mut state = self.state.lock();
        let slot = state.slot(slot_id);
        if slot.pending_progress.reported(token) {
            slot.wake.notify_one();
        }
    }
}

impl PublisherSlot {
    /// What the link is to tell now: the newest word of each job whose lease is held.
    pub(super) fn take_due_progress(&mut self, now: Duration) -> Vec<Progress> {
        let leases = &mut self.leases;
        let word = |token: Token| {
            let signal = leases.get_mut(token)?.signal.as_ref()?;
            let (percent, message) = signal.take_unsent_progress()?;
            Some(Progress { token, percent, message })
        };
        self.pending_progress.take_due(now).into_iter().filter_map(word).collect()
    }

    /// The link is a new one: what running jobs have said is told again.
    pub(super) fn resend_progress(&mut self) {
        let leases = self.leases.iter();
        let reported = leases.filter(|(_, lease)| {
            lease.signal.as_ref().is_some_and(|signal| signal.mark_progress_unsent())
        });
        self.pending_progress.resend(reported.map(|(token, _)| token).collect());
    }
}
