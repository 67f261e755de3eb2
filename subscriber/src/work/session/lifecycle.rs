//! The session's interface to the supervisor: sets of publishers, time, and the order of stopping.

use std::time::Duration;

use longshore_protocol::PublisherInfo;
use longshore_protocol::messages::work::NewSettle;

use super::checkpoints::WaitEnd;
use super::{Connect, Intake, SlotId, State, WorkerSession};
use crate::work::state::durable::{Action, DurableEvent};
use crate::{CancelReason, WorkerStats};

impl WorkerSession {
    pub(crate) fn watched(&self, complete: bool, publishers: Vec<PublisherInfo>) {
        let mut state = self.state.lock();
        self.step(&mut state, DurableEvent::Watched { complete, publishers });
    }

    /// Time has passed: retries links, and ends the leases of dead links.
    pub(crate) fn tick(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        self.step(&mut state, DurableEvent::Tick);
        for slot_id in 0..state.slots.len() {
            let slot = &mut state.slots[slot_id];
            if slot.sender.is_none() && slot.leases.next_deadline().is_some_and(|due| due <= now) {
                let lost = slot.leases.take_due(now).lost;
                self.revoke_leases(&mut state, slot_id as SlotId, lost, CancelReason::LeaseLost);
            }
        }
    }

    /// Why none of the publishers that were found had a link any more.
    pub(crate) fn all_lost(&self) -> Option<String> {
        self.state.lock().durable.all_lost().map(str::to_owned)
    }

    /// The time of the next [`WorkerSession::tick`].
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let state = self.state.lock();
        let unlinked = state.slots.iter().filter(|slot| slot.sender.is_none());
        let leases = unlinked.filter_map(|slot| slot.leases.next_deadline()).min();
        state.durable.next_deadline().into_iter().chain(leases).min()
    }

    /// Takes the publishers to dial.
    pub(crate) fn take_connects(&self) -> Vec<Connect> {
        std::mem::take(&mut self.state.lock().connects)
    }

    /// Starts no more jobs, requests no more, and releases those that have not begun.
    pub(crate) fn drain(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.intake = state.intake.max(Intake::Draining);
        // No credit is granted any more, so the counts are not needed.
        let _ = state.release_unstarted();
        self.step(state, DurableEvent::Drain);
        self.handler_task_wakeup.notify_waiters();
        self.handler_task_wakeup.notify_one();
    }

    /// Cancels every running handler.
    pub(crate) fn cancel_all(&self) {
        let state = self.state.lock();
        let leases = state.slots.iter().flat_map(|slot| slot.leases.iter());
        for signal in leases.filter_map(|(_, lease)| lease.job.signal()) {
            signal.cancel(CancelReason::Shutdown);
        }
    }

    /// Releases all running jobs; what their handlers return from now on is dropped. Results that
    /// have to wait, for space or for the link, keep their leases.
    pub(crate) fn release_running(&self) {
        let mut state = self.state.lock();
        state.end_checkpoints(WaitEnd::Lost(CancelReason::Shutdown));
        for slot in &mut state.slots {
            let linked = slot.sender.is_some();
            for (token, job) in slot.leases.take_if(|job| !job.is_settled()) {
                if let Some(signal) = job.signal() {
                    signal.cancel(CancelReason::Shutdown);
                }
                slot.settles.push(token, &NewSettle::Release, linked.then_some(job.subscription));
            }
            slot.wake.notify_one();
        }
    }

    /// Closes every link once its queue is sent. Further answers are not awaited. Cancels blocking
    /// handlers, which outlive a dropped run.
    pub(crate) fn close(&self) {
        self.cancel_all();
        let mut state = self.state.lock();
        state.intake = Intake::Released;
        state.end_checkpoints(WaitEnd::Ended);
        for sender in state.slots.iter_mut().filter_map(|slot| slot.sender.take()) {
            sender.close("the worker has stopped");
        }
    }

    /// Attempts that run. Blocking handlers that outlived theirs are not waited for.
    pub(crate) fn running(&self) -> usize {
        let state = self.state.lock();
        state.running - state.outlived
    }

    /// True when a drained worker may close its links: every settle is answered, and every link has
    /// sent its unsubscription. Without it the publisher would deliver jobs to a closing link.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.state.lock();
        state.unanswered() == 0
            && !state.slots.iter().any(|slot| slot.sender.is_some() && slot.unsubscribe)
    }

    /// The final counters: what is unanswered now remains so.
    pub(crate) fn report(&self) -> WorkerStats {
        let state = self.state.lock();
        let mut stats = state.stats_now();
        stats.unanswered += state.unanswered() as u64;
        stats
    }

    /// Makes one step of the state machine, and performs its actions.
    pub(super) fn step(&self, state: &mut State, event: DurableEvent) {
        let mut actions = std::mem::take(&mut state.actions);
        state.durable.step(self.now(), event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Connect(info) => {
                    let slot_id = state.slot_for(info.id);
                    state.slot(slot_id).forgotten = false;
                    let last = state.slot(slot_id).last_address.clone();
                    state.connects.push(Connect { slot_id, info, last });
                    self.supervisor.notify_one();
                }
                Action::Grant { at, credits } => {
                    let slot = state.slot_of(at.publisher);
                    slot.grant.add(at.subscription, credits);
                    slot.wake.notify_one();
                }
                Action::Recall { at, credits } => {
                    let slot = state.slot_of(at.publisher);
                    slot.recall.add(at.subscription, credits);
                    slot.wake.notify_one();
                }
                Action::Unsubscribe(publisher) => {
                    let slot = state.slot_of(publisher);
                    slot.unsubscribe = true;
                    slot.wake.notify_one();
                }
                Action::Forget(publisher) => {
                    tracing::info!(%publisher, "publisher forgotten");
                    state.slot_of(publisher).forgotten = true;
                }
            }
        }
        state.actions = actions;
        if state.published_revision != state.durable.revision() {
            state.published_revision = state.durable.revision();
            self.publishers.send_replace(state.durable.states());
        }
    }
}
