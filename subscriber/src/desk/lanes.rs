//! The desk's side that faces the lanes: the next job, and the end of the last.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::NewSettle;

use super::checkpoints::{Gone, end_job};
use super::{Desk, Ended, Next, PlaceId, Stage, State, Waiting};
use crate::durable::Input;
use crate::signal::LeaseSignal;

impl Desk {
    /// Settles the last job, if there was one, and requests the next.
    pub(crate) fn next(&self, ended: Option<Ended>, signal: &mut Arc<LeaseSignal>) -> Next {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(ended) = ended {
            self.end(&mut state, ended);
        }
        if state.stage > Stage::Open {
            return Next::Stop;
        }
        while let Some(job) = state.announced.pop_front() {
            let place = state.place(job.place);
            let owned = place.owns(self.ran(), now);
            let lease = place.leases.get_mut(job.token).filter(|lease| now < lease.ends());
            let Some(lease) = lease else { continue };
            if !owned {
                self.take_back(&mut state, &job);
                continue;
            }
            let ends = lease.ends();
            match Arc::get_mut(signal) {
                Some(signal) => signal.renew_for(ends),
                None => *signal = Arc::new(signal.another(ends)),
            }
            lease.holder = Some(signal.clone());
            place.running += 1;
            state.running += 1;
            self.wake_a_lane(&state);
            return Next::Job(job);
        }
        if state.announcing || state.ready.is_empty() {
            return Next::Nothing;
        }
        state.announce(self.ran(), now)
    }

    /// An announced job may be another worker's and will not begin. Its publisher counts it as
    /// started: it is released, so that a loss is not taken for that of a running attempt.
    fn take_back(&self, state: &mut State, job: &Waiting) {
        let place = state.place(job.place);
        place.leases.remove(job.token);
        let (publisher, linked) = (place.id, place.sender.is_some());
        place.settles.push(job.token, &NewSettle::Release, linked);
        place.wake.notify_one();
        if !linked {
            self.step(state, Input::Freed { publisher, jobs: 1 });
        }
    }

    /// The publishers were told, or could not be: the jobs can run.
    pub(crate) fn announced(&self, jobs: Vec<Waiting>) {
        let mut state = self.state.lock();
        state.announcing = false;
        state.announced.extend(jobs);
        // A drain may have come in between: then they were given back with the others.
        self.wake_a_lane(&state);
    }

    /// Until when a lease of the publisher is certain to hold that runs until `ends`.
    pub(crate) fn deadline(&self, place: PlaceId, ends: Duration) -> Duration {
        let now = self.now();
        let mut state = self.state.lock();
        let place = state.place(place);
        place.hear(self.ran(), now);
        place.grace.deadline(now, place.sender.is_some(), ends)
    }

    /// Waits until there may be work. Cancel safe.
    pub(crate) async fn wait(&self) {
        self.lanes.notified().await;
    }

    pub(super) fn wake_a_lane(&self, state: &State) {
        let for_one_more = !state.announced.is_empty()
            || (!state.announcing && !state.ready.is_empty() && state.running < state.concurrency);
        if for_one_more || state.stage > Stage::Open {
            self.lanes.notify_one();
        }
    }

    fn end(&self, state: &mut State, ended: Ended) {
        state.running -= 1;
        let stage = state.stage;
        if stage > Stage::Open && state.running == 0 {
            self.director.notify_one();
        }
        state.stats.panicked += u64::from(ended.panicked);
        state.stats.damaged += u64::from(ended.damaged);
        let place = state.place(ended.place);
        place.running -= 1;
        let holds = place.leases.remove(ended.token).is_some();
        end_job(&mut place.checkpoints, ended.token, Gone::Ended);
        // A result whose lease was lost still goes out: it is refused, and counted here and there.
        // A failure would be noise.
        let wanted = holds || matches!(ended.settle, NewSettle::Complete { .. });
        let linked = place.sender.is_some();
        if stage < Stage::GivenBack && wanted {
            place.settles.push(ended.token, &ended.settle, linked);
            if place.settles.is_ready() {
                place.wake.notify_one();
            }
        }
        if stage < Stage::GivenBack && !(wanted && linked) {
            let publisher = place.id;
            self.step(state, Input::Freed { publisher, jobs: 1 });
        }
    }
}
