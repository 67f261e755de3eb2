//! The desk's side that faces the director: sets of publishers, time, and the order of stopping.

use std::time::Duration;

use longshore_protocol::PublisherInfo;
use longshore_protocol::messages::work::NewSettle;

use super::checkpoints::Gone;
use super::{Connect, Desk, PlaceId, Stage, State};
use crate::durable::{Action, Input};
use crate::{CancelReason, WorkerStats};

impl Desk {
    pub(crate) fn watched(&self, complete: bool, publishers: Vec<PublisherInfo>) {
        let mut state = self.state.lock();
        self.step(&mut state, Input::Watched { complete, publishers });
    }

    /// Time has passed: links are tried again, and leases end whose link is dead.
    pub(crate) fn tick(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        self.step(&mut state, Input::Tick);
        for place in 0..state.places.len() {
            let at = &mut state.places[place];
            if at.sender.is_none() && at.leases.next_due().is_some_and(|due| due <= now) {
                let lost = at.leases.due(now).lost;
                self.lose(&mut state, place as PlaceId, lost, CancelReason::LeaseLost);
            }
        }
    }

    /// When [`Desk::tick`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let state = self.state.lock();
        let unlinked = state.places.iter().filter(|place| place.sender.is_none());
        let leases = unlinked.filter_map(|place| place.leases.next_due()).min();
        state.durable.next_deadline().into_iter().chain(leases).min()
    }

    /// Publishers to be dialled.
    pub(crate) fn connects(&self) -> Vec<Connect> {
        std::mem::take(&mut self.state.lock().connects)
    }

    /// Begins no more jobs, wants no more, and gives back those that have not begun.
    pub(crate) fn drain(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.stage = state.stage.max(Stage::Draining);
        // Nothing is granted any more: who holds how many is nobody's concern.
        let _ = state.give_back_unbegun();
        self.step(state, Input::Drain);
        self.lanes.notify_waiters();
        self.lanes.notify_one();
    }

    /// Tells every running handler to stop.
    pub(crate) fn cancel_all(&self) {
        let state = self.state.lock();
        let leases = state.places.iter().flat_map(|place| place.leases.iter());
        for signal in leases.filter_map(|(_, lease)| lease.holder.as_ref()) {
            signal.cancel(CancelReason::Shutdown);
        }
    }

    /// Gives back whatever still runs; what its handlers return from now on is dropped.
    pub(crate) fn give_back(&self) {
        let mut state = self.state.lock();
        state.end_checkpoints(Gone::Lost(CancelReason::Shutdown));
        for place in &mut state.places {
            let linked = place.sender.is_some();
            for (token, lease) in place.leases.take_all() {
                if let Some(signal) = lease.holder {
                    signal.cancel(CancelReason::Shutdown);
                }
                place.settles.push(token, &NewSettle::Release, linked);
            }
            place.wake.notify_one();
        }
    }

    /// Closes every link, once what is queued was sent. Nobody waits for an answer any more.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.end_checkpoints(Gone::Ended);
        for sender in state.places.iter_mut().filter_map(|place| place.sender.take()) {
            sender.close("the worker has stopped");
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.state.lock().running
    }

    /// Ends of jobs that no publisher has answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.state.lock().places.iter().map(|place| place.settles.unanswered()).sum()
    }

    /// The counts at the end: what is still unanswered will not be.
    pub(crate) fn report(&self) -> WorkerStats {
        let unanswered = self.unanswered() as u64;
        let mut stats = self.stats();
        stats.unanswered += unanswered;
        stats
    }

    /// One step of the core, its actions taken to where they are carried out.
    pub(super) fn step(&self, state: &mut State, input: Input) {
        let mut actions = std::mem::take(&mut state.actions);
        state.durable.step(self.now(), input, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Connect(info) => {
                    let place = state.place_of(info.id);
                    state.place(place).given_up = false;
                    let last = state.place(place).last_address.clone();
                    state.connects.push(Connect { place, info, last });
                    self.director.notify_one();
                }
                Action::Grant { publisher, credits } => {
                    let place = state.place_at(publisher);
                    place.grant += credits;
                    place.wake.notify_one();
                }
                Action::Recall { publisher, credits } => {
                    let place = state.place_at(publisher);
                    place.recall += credits;
                    place.wake.notify_one();
                }
                Action::Unsubscribe(publisher) => {
                    let place = state.place_at(publisher);
                    place.unsubscribe = true;
                    place.wake.notify_one();
                }
                Action::Forget(publisher) => {
                    tracing::info!(%publisher, "publisher given up");
                    state.place_at(publisher).given_up = true;
                }
            }
        }
        state.actions = actions;
        if state.shown != state.durable.revision() {
            state.shown = state.durable.revision();
            self.publishers.send_replace(state.durable.states());
        }
    }
}
