//! The desk's side that faces handlers which say how far they are. It is told without the lock of
//! lanes, but for the first word since the last message.

use std::time::Duration;

use longshore_protocol::Token;
use longshore_protocol::messages::work::Progress;

use super::{Desk, Place, PlaceId};

impl Desk {
    /// A job has said how far it is; what, its signal knows. Whether it still runs here shows when
    /// it is told.
    pub(crate) fn progress(&self, place: PlaceId, token: Token) {
        let mut state = self.state.lock();
        let at = state.place(place);
        if at.progresses.said(token) {
            at.wake.notify_one();
        }
    }
}

impl Place {
    /// What the link is to tell now: the newest word of each job whose lease is held.
    pub(super) fn progress_due(&mut self, now: Duration) -> Vec<Progress> {
        let leases = &mut self.leases;
        let word = |token: Token| {
            let signal = leases.get_mut(token)?.holder.as_ref()?;
            let (percent, message) = signal.tell_progress()?;
            Some(Progress { token, percent, message })
        };
        self.progresses.due(now).into_iter().filter_map(word).collect()
    }

    /// The link is a new one: what running jobs have said is told again.
    pub(super) fn progress_again(&mut self) {
        let leases = self.leases.iter();
        let said = leases.filter(|(_, lease)| {
            lease.holder.as_ref().is_some_and(|signal| signal.tell_progress_again())
        });
        self.progresses.again(said.map(|(token, _)| token).collect());
    }
}
