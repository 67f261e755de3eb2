//! The session's interface to handler tasks: the next job, and the end of the last.

use std::time::Duration;

use longshore_protocol::messages::work::NewSettle;

use super::checkpoints::{WaitEnd, end_job};
use super::{FinishedJob, HandlerTaskStep, Intake, QueuedJob, Run, SlotId, State, WorkerSession};
use crate::work::state::durable::DurableEvent;

impl WorkerSession {
    /// Ends the jobs of the run, and requests more.
    pub(crate) fn next(&self, run: &Run) -> HandlerTaskStep {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.finish_run(state, run, now);
        if state.intake > Intake::Open {
            return HandlerTaskStep::Stop;
        }
        while let Some(job) = state.announced.pop_front() {
            let slot = state.slot(job.slot_id);
            let owned = slot.owns_jobs(self.clock(), now);
            if slot.leases.get_mut(job.token).is_none_or(|lease| now >= lease.ends()) {
                state.ready.ended(job.source);
                continue;
            }
            if !owned {
                state.ready.ended(job.source);
                self.release_unbegun(state, &job);
                continue;
            }
            self.take_announced(state, run, job, now);
            self.wake_handler_task(state);
            return HandlerTaskStep::Run;
        }
        if !state.ready.can_start() && !state.take_from_runs() {
            return HandlerTaskStep::Wait;
        }
        if self.take_several(state, run, now) {
            self.wake_handler_task(state);
            return HandlerTaskStep::Run;
        }
        match state.announcing {
            true => HandlerTaskStep::Wait,
            false => state.announce(self.clock(), now),
        }
    }

    /// Releases a job that did not begin, if it has its lease, and frees its credit. An announced
    /// job may be another worker's by now, and its publisher counts it as started: without the
    /// release, a loss would count as the loss of a running attempt.
    pub(super) fn release_unbegun(&self, state: &mut State, job: &QueuedJob) {
        let intake = state.intake;
        let slot = state.slot(job.slot_id);
        let had_lease = slot.leases.remove(job.token).is_some();
        let (publisher, linked) = (slot.id, slot.sender.is_some());
        if had_lease {
            slot.settles.push(job.token, &NewSettle::Release, linked);
            slot.wake.notify_one();
        }
        if !(had_lease && linked) && intake < Intake::Released {
            self.step(state, DurableEvent::Freed { publisher, jobs: 1 });
        }
    }

    /// The `Started` messages were sent, or the links are dead: the jobs may run.
    pub(crate) fn announced(&self, jobs: Vec<QueuedJob>) {
        let mut state = self.state.lock();
        state.announcing = false;
        state.announced.extend(jobs);
        // If a drain came in between, the jobs were released with the others.
        self.wake_handler_task(&state);
    }

    /// Until when a lease that ends at `ends` is certain to hold at the publisher.
    pub(crate) fn deadline(&self, slot_id: SlotId, ends: Duration) -> Duration {
        let now = self.now();
        let mut state = self.state.lock();
        let slot = state.slot(slot_id);
        slot.update_last_byte(self.clock(), now);
        slot.grace.deadline(now, slot.sender.is_some(), ends)
    }

    /// Waits until there may be a job. Cancel safe.
    pub(crate) async fn wait(&self) {
        self.handler_task_wakeup.notified().await;
    }

    pub(super) fn wake_handler_task(&self, state: &State) {
        let has_task_work = !state.announced.is_empty()
            || (!state.announcing && state.ready.can_start() && state.running < state.concurrency);
        if has_task_work || state.intake > Intake::Open {
            self.handler_task_wakeup.notify_one();
        }
    }

    pub(super) fn end(&self, state: &mut State, ended: FinishedJob) {
        let intake = state.intake;
        state.stats.panicked += u64::from(ended.panicked);
        state.stats.damaged += u64::from(ended.damaged);
        let slot = state.slot(ended.slot_id);
        slot.running -= 1;
        let had_lease = slot.leases.remove(ended.token).is_some();
        end_job(&mut slot.checkpoints, ended.token, WaitEnd::Ended);
        // A result whose lease was lost is still sent: the publisher refuses it, and both sides
        // count that. A failure is not worth sending.
        let send_settle = had_lease || matches!(ended.settle, NewSettle::Complete { .. });
        let linked = slot.sender.is_some();
        if intake < Intake::Released && send_settle {
            slot.settles.push(ended.token, &ended.settle, linked);
            if slot.settles.is_ready() {
                slot.wake.notify_one();
            }
        }
        if intake < Intake::Released && !(send_settle && linked) {
            let publisher = slot.id;
            self.step(state, DurableEvent::Freed { publisher, jobs: 1 });
        }
    }
}
