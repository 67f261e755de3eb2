//! The desk's side that faces operators: no new jobs for a while, at all publishers. What runs goes
//! on, and links stay.

use longshore_protocol::messages::work::{NewSettle, Quiet};
use longshore_protocol::{PublisherId, Token};

use super::{Intake, SlotId, State, WorkerSession};
use crate::work::state::durable::DurableEvent;

impl WorkerSession {
    /// A publisher passes on what an operator asks of the worker. It holds at every publisher, and
    /// until the opposite is asked or the process ends.
    pub(crate) fn quiet_requested(&self, slot_id: SlotId, asked: Quiet) {
        let mut state = self.state.lock();
        if state.quiet != asked.quiet {
            match asked.quiet {
                true => tracing::info!(
                    "quiet: asked by an operator; no job begins, those that run go on"
                ),
                false => tracing::info!("resumed: jobs are taken again"),
            }
            self.apply_quiet(&mut state, asked.quiet);
        }
        let slot = state.slot(slot_id);
        slot.quiet_reply = Some(asked.ask);
        slot.wake.notify_one();
    }

    /// True while no job begins because an operator asked for that.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.lock().quiet
    }

    fn apply_quiet(&self, state: &mut State, quiet: bool) {
        state.quiet = quiet;
        if quiet {
            // A grant that waits to be sent would bring a job that has to go back.
            for slot_id in 0..state.slots.len() {
                let slot = &mut state.slots[slot_id];
                let (publisher, credits) = (slot.id, std::mem::take(&mut slot.grant));
                self.step(state, DurableEvent::Ungranted { publisher, credits });
            }
        }
        self.step(state, DurableEvent::Quiet(quiet));
        if quiet {
            for (publisher, jobs) in state.release_unstarted() {
                self.step(state, DurableEvent::Freed { publisher, jobs });
            }
        }
        for slot in state.slots.iter_mut().filter(|slot| slot.sender.is_some()) {
            slot.quiet_reply.get_or_insert(0);
            slot.wake.notify_one();
        }
    }
}

impl State {
    /// Gives back all jobs that have not begun. Of those whose publishers are not linked, it says
    /// how many: they are held no more at once, the others when it was sent that they go back.
    pub(super) fn release_unstarted(&mut self) -> Vec<(PublisherId, u32)> {
        self.ready.clear();
        self.announced.clear();
        let mut freed = Vec::new();
        for slot in &mut self.slots {
            slot.suspended.clear();
            let linked = slot.sender.is_some();
            let unbegun = slot.leases.iter().filter(|(_, lease)| lease.signal.is_none());
            let unbegun: Vec<Token> = unbegun.map(|(token, _)| token).collect();
            if !linked && !unbegun.is_empty() {
                freed.push((slot.id, u32::try_from(unbegun.len()).unwrap_or(u32::MAX)));
            }
            for token in unbegun {
                slot.leases.remove(token);
                slot.settles.push(token, &NewSettle::Release, linked);
            }
            slot.wake.notify_one();
        }
        freed
    }

    /// What the link is to say of it now. That the worker is quiet, only once all that goes back
    /// was sent, also what was put by while there was no link, and the publisher has none of its
    /// credits: what that one counts as held does not rise any more.
    pub(super) fn quiet_reply(&mut self, slot_id: SlotId) -> Option<Quiet> {
        let (quiet, draining) = (self.quiet, self.intake > Intake::Open);
        let slot = &mut self.slots[slot_id as usize];
        let ask = slot.quiet_reply?;
        let is_so = slot.settles.all_sent() && (draining || self.durable.has_no_credit(&slot.id));
        if quiet && !is_so {
            return None;
        }
        slot.quiet_reply = None;
        Some(Quiet { ask, quiet })
    }
}
