//! The session's interface to handler tasks: the next job, and the end of the last.

use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::NewSettle;

use super::checkpoints::{WaitEnd, end_job};
use super::{
    FinishedJob, HandlerTaskStep, Intake, LeaseHolder, QueuedJob, SlotId, State, WorkerSession,
};
use crate::work::lease_signal::LeaseSignal;
use crate::work::state::durable::DurableEvent;
use crate::work::state::run_length::BEGIN_WAIT_MAX;

/// The time after which a task that was woken may be behind a handler that does not yield: another
/// one is woken.
const WAKE_UP_MAX: Duration = Duration::from_millis(1);

impl WorkerSession {
    /// Settles the last job, if there was one, and requests the next.
    pub(crate) fn next(
        &self,
        ended: Option<FinishedJob>,
        signal: &mut Arc<LeaseSignal>,
    ) -> HandlerTaskStep {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(ended) = ended {
            self.end(&mut state, ended, now);
        }
        if state.intake > Intake::Open {
            return HandlerTaskStep::Stop;
        }
        while let Some(job) = state.announced.pop_front() {
            let slot = state.slot(job.slot_id);
            let owned = slot.owns_jobs(self.clock(), now);
            let Some(lease) = slot.leases.get_mut(job.token) else {
                state.ready.not_begun(job.source);
                continue;
            };
            let ends = lease.ends();
            if now >= ends {
                // The answer to its renewal may be unread: the link decides.
                let (slot_id, source) = (job.slot_id, job.source);
                state.slot(slot_id).suspend(job);
                state.ready.not_begun(source);
                continue;
            }
            if !owned {
                self.release_announced(&mut state, &job);
                continue;
            }
            match Arc::get_mut(signal) {
                Some(signal) => signal.reset_for_job(ends),
                None => *signal = Arc::new(signal.for_next_job(ends)),
            }
            lease.job.holder = LeaseHolder::Handler(signal.clone());
            slot.running += 1;
            state.running += 1;
            // A woken task wakes the next. With thousands of idle handlers that take less than a
            // wake-up for a job, each job would wake one that finds none.
            let is_waking = state.waking_since.is_some_and(|at| now < at + WAKE_UP_MAX);
            if !is_waking && self.wake_handler_task(&state) {
                state.waking_since = Some(now);
            }
            return HandlerTaskStep::Run(job);
        }
        if state.announcing || !state.ready.can_start() {
            return HandlerTaskStep::Wait;
        }
        state.announce(self.clock(), now)
    }

    /// Releases the announced jobs that have not begun in time, at every publisher. That is later
    /// if a handler is idle: it mostly waits for a processor, as any other worker here would.
    /// Returns when to check again.
    pub(super) fn release_late(&self, state: &mut State, now: Duration) -> Option<Duration> {
        let at = state.run_length.release_at(state.running >= state.concurrency);
        if now >= at {
            while let Some(job) = state.announced.pop_front() {
                match state.slot(job.slot_id).leases.get_mut(job.token) {
                    Some(_) => self.release_announced(state, &job),
                    None => state.ready.not_begun(job.source),
                }
            }
        }
        // The handlers that are idle now may be busy then.
        (!state.announced.is_empty()).then_some(at.min(now + BEGIN_WAIT_MAX))
    }

    /// Releases an announced job that does not begin here: its run time counts already, or another
    /// worker may have it. Its publisher counts it as started: without the release, a loss would
    /// count as the loss of a running attempt.
    fn release_announced(&self, state: &mut State, job: &QueuedJob) {
        state.ready.not_begun(job.source);
        let slot = state.slot(job.slot_id);
        slot.leases.remove(job.token);
        let (at, linked) = (slot.key(job.subscription), slot.sender.is_some());
        slot.settles.push(job.token, &NewSettle::Release, linked.then_some(job.subscription));
        slot.wake.notify_one();
        if !linked {
            self.step(state, DurableEvent::Freed { at, jobs: 1 });
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

    /// Waits until there may be a job. Cancel safe: the next task to wait is woken instead.
    pub(crate) async fn wait(&self) {
        self.handler_task_wakeup.notified().await;
        self.state.lock().waking_since = None;
    }

    /// Wakes a handler task, which then wakes the next. False if there is no work for it.
    pub(super) fn wake_handler_task(&self, state: &State) -> bool {
        let has_task_work = !state.announced.is_empty()
            || (!state.announcing && state.ready.can_start() && state.running < state.concurrency);
        let wakes = has_task_work || state.intake > Intake::Open;
        if wakes {
            // The last to wait: its memory is most likely in the caches.
            self.handler_task_wakeup.notify_last();
        }
        wakes
    }

    /// Settles a job whose attempt has ended, and whose blocking handler runs on. It occupies its
    /// handler task, its kind's cap and its credit until [`WorkerSession::next`] gets it.
    pub(crate) fn settle_early(&self, ended: &mut FinishedJob) {
        let now = self.now();
        let mut state = self.state.lock();
        ended.settled = true;
        state.outlived += 1;
        self.settle(&mut state, ended, now);
        if state.intake > Intake::Open {
            self.supervisor.notify_one();
        }
    }

    fn end(&self, state: &mut State, ended: FinishedJob, now: Duration) {
        state.running -= 1;
        state.run_length.ended();
        state.ready.ended(ended.source);
        let intake = state.intake;
        state.stats.panicked += u64::from(ended.panicked);
        state.stats.damaged += u64::from(ended.damaged);
        state.slot(ended.slot_id).running -= 1;
        let frees_later = if ended.settled {
            state.outlived -= 1;
            false
        } else {
            self.settle(state, &ended, now)
        };
        if intake > Intake::Open && state.running == state.outlived {
            self.supervisor.notify_one();
        }
        if intake < Intake::Released && !frees_later {
            let at = state.slot(ended.slot_id).key(ended.subscription);
            self.step(state, DurableEvent::Freed { at, jobs: 1 });
        }
    }

    /// Queues a job's settle, which gets its lease. Returns true if sending it frees the credit.
    fn settle(&self, state: &mut State, ended: &FinishedJob, now: Duration) -> bool {
        let intake = state.intake;
        let slot = state.slot(ended.slot_id);
        let lease = slot.leases.get_mut(ended.token);
        let had_lease = lease.is_some();
        if let Some(lease) = lease {
            (lease.job.holder, lease.began) = (LeaseHolder::Settle, None);
        }
        end_job(&mut slot.checkpoints, ended.token, WaitEnd::Ended);
        // A result whose lease was lost is still sent: the publisher refuses it, and both sides
        // count that. A failure is not worth sending.
        let send_settle = had_lease || matches!(ended.settle, NewSettle::Complete { .. });
        if intake == Intake::Released || !send_settle {
            return false;
        }
        let frees = slot.sender.is_some() && !ended.settled;
        slot.settles.push(ended.token, &ended.settle, frees.then_some(ended.subscription));
        if slot.settles.is_ready(now) {
            slot.wake.notify_one();
        }
        frees
    }
}
