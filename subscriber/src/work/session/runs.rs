//! Runs: jobs that a handler task takes together, runs one after another, and ends together, so
//! that the session's lock is taken once per run. Each run has a lock of its own; who needs both
//! takes the session's first. A job of a run that has not begun can be taken back at any time.
//!
//! A run of one job is announced before it begins. A run of several is short, and is not
//! announced: no publisher counts a job as started that has not begun, however the worker dies. A
//! job that kills its worker there loses no attempt, and comes back as a second delivery, which is
//! always announced. An attempt that turns out to be long is reported as started within two ticks.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use longshore_protocol::Token;
use longshore_protocol::messages::work::{Started, Tokens};
use parking_lot::Mutex;

use super::{FinishedJob, Intake, PublisherSlot, QueuedJob, SlotId, State, WorkerSession};
use crate::work::lease_host::LeaseHost;
use crate::work::lease_signal::LeaseSignal;
use crate::work::state::pause::TICK_INTERVAL;

/// The most work of a run of several jobs, by the time that handlers took until now. Then the
/// task returns to the session, which checks the leases of the rest.
pub(super) const RUN_WORK: Duration = Duration::from_millis(1);
/// An attempt of a run of several jobs is long once it runs for this time.
pub(super) const RUN_OVERDUE: Duration = TICK_INTERVAL;
/// The most jobs of a run.
const RUN_JOBS_MAX: usize = 64;
/// One run changes the predicted time by this fraction of the difference, if it was faster. A
/// slower one counts at once.
const FASTER_DIVISOR: u32 = 8;

/// The jobs of a handler task.
#[derive(Debug)]
pub(crate) struct Run {
    host: Weak<dyn LeaseHost>,
    jobs: Mutex<RunJobs>,
}

#[derive(Debug, Default)]
struct RunJobs {
    /// From when the jobs were taken until the task returns to the session.
    active: bool,
    source: usize,
    taken_at: Duration,
    /// There was more than one job: none was announced.
    several: bool,
    /// Jobs that have not begun.
    waiting: VecDeque<(QueuedJob, Arc<LeaseSignal>)>,
    /// The attempt that runs, and when it began.
    current: Option<(SlotId, Token, Duration)>,
    /// Jobs that were cancelled before they began.
    skipped: Vec<QueuedJob>,
    ended: Vec<FinishedJob>,
    done: u32,
    /// Signals of earlier jobs, to use again.
    signals: Vec<Arc<LeaseSignal>>,
}

impl Run {
    pub(crate) fn new(host: Weak<dyn LeaseHost>) -> Run {
        Run { host, jobs: Mutex::default() }
    }

    /// Ends the current job, and begins the next one. Returns `None` when the task has to return
    /// to the session.
    pub(crate) fn next(
        &self,
        ended: Option<FinishedJob>,
        now: Duration,
    ) -> Option<(QueuedJob, Arc<LeaseSignal>)> {
        let mut jobs = self.jobs.lock();
        let is_first = jobs.current.take().is_none();
        if let Some(ended) = ended {
            jobs.ended.push(ended);
            jobs.done += 1;
        }
        if !is_first && now >= jobs.taken_at + RUN_WORK {
            return None;
        }
        while let Some((job, signal)) = jobs.waiting.pop_front() {
            if signal.reason().is_none() {
                jobs.current = Some((job.slot_id, job.token, now));
                return Some((job, signal));
            }
            jobs.skipped.push(job);
        }
        None
    }
}

impl RunJobs {
    fn begin(&mut self, source: usize, now: Duration) {
        (self.active, self.several, self.source) = (true, false, source);
        (self.taken_at, self.done, self.current) = (now, 0, None);
    }

    fn push(
        &mut self,
        host: &Weak<dyn LeaseHost>,
        job: QueuedJob,
        ends: Duration,
    ) -> Arc<LeaseSignal> {
        let at = self.waiting.len();
        if at == self.signals.len() {
            self.signals.push(Arc::new(LeaseSignal::for_session(host.clone())));
        }
        let signal = &mut self.signals[at];
        match Arc::get_mut(signal) {
            Some(signal) => signal.reset_for_job(ends),
            None => *signal = Arc::new(signal.for_next_job(ends)),
        }
        self.waiting.push_back((job, signal.clone()));
        self.signals[at].clone()
    }

    /// Takes back the last jobs that have not begun, all but the first `from`.
    fn take_back(&mut self, from: usize, state: &mut State) {
        while self.waiting.len() > from
            && let Some((job, signal)) = self.waiting.pop_back()
        {
            match signal.reason() {
                None => state.return_job(job),
                Some(_) => self.skipped.push(job),
            }
        }
    }
}

impl WorkerSession {
    /// Adds a handler task.
    pub(crate) fn add_run(&self, run: Run) -> Arc<Run> {
        let run = Arc::new(run);
        self.state.lock().runs.push(run.clone());
        run
    }

    /// The task has returned: its jobs have ended, and those that have not begun wait again.
    pub(super) fn finish_run(&self, state: &mut State, run: &Run, now: Duration) {
        let mut jobs = run.jobs.lock();
        if !jobs.active {
            return;
        }
        jobs.active = false;
        jobs.take_back(0, state);
        self.collect(state, &mut jobs);
        state.several -= usize::from(jobs.several);
        state.running -= 1;
        state.ready.ended(jobs.source);
        if let Some(each) = now.saturating_sub(jobs.taken_at).checked_div(jobs.done) {
            let faster = state.handler_time.saturating_sub(each) / FASTER_DIVISOR;
            state.handler_time = each.max(state.handler_time - faster);
        }
        if state.intake > Intake::Open && state.running == 0 {
            self.supervisor.notify_one();
        }
    }

    /// Ends the jobs that a run has finished or skipped.
    fn collect(&self, state: &mut State, jobs: &mut RunJobs) {
        for ended in jobs.ended.drain(..) {
            self.end(state, ended);
        }
        for job in jobs.skipped.drain(..) {
            state.slot(job.slot_id).running -= 1;
            self.release_unbegun(state, &job);
        }
    }

    /// Takes one announced job.
    pub(super) fn take_announced(
        &self,
        state: &mut State,
        run: &Run,
        job: QueuedJob,
        now: Duration,
    ) {
        let mut jobs = run.jobs.lock();
        jobs.begin(job.source, now);
        state.running += 1;
        state.assign(&mut jobs, &run.host, job);
    }

    /// Takes several jobs that run without an announcement, if handlers are fast and enough jobs
    /// wait. True if it has taken jobs from the queue: the run may be empty, if none may begin.
    pub(super) fn take_several(&self, state: &mut State, run: &Run, now: Duration) -> bool {
        let most = state.run_length();
        let Some((source, first)) = state.ready.next() else { return false };
        if most < 2 || first.deliveries > 1 {
            return false;
        }
        let mut taken = std::mem::take(&mut state.taken);
        state.ready.take(source, most, |job| job.deliveries <= 1, &mut taken);
        let mut jobs = run.jobs.lock();
        jobs.begin(source, now);
        state.running += 1;
        let clock = self.clock();
        let mut owned: Option<(SlotId, bool)> = None;
        for job in taken.drain(..) {
            let slot = state.slot(job.slot_id);
            let is_owned = match owned {
                Some((slot_id, is_owned)) if slot_id == job.slot_id => is_owned,
                _ => slot.owns_jobs(clock, now),
            };
            owned = Some((job.slot_id, is_owned));
            if slot.leases.get_mut(job.token).is_none_or(|lease| now >= lease.ends()) {
                continue;
            }
            match is_owned {
                true => state.assign(&mut jobs, &run.host, job),
                false => slot.suspend(job),
            }
        }
        state.taken = taken;
        jobs.several = true;
        state.several += 1;
        true
    }

    /// Reports attempts of long runs as started, passes the jobs behind them to other tasks, and
    /// settles those before them. Called every [`TICK_INTERVAL`].
    pub(crate) fn check_runs(&self) {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.several == 0 {
            return;
        }
        let runs = std::mem::take(&mut state.runs);
        for run in &runs {
            let mut jobs = run.jobs.lock();
            let long = jobs.current.filter(|(.., began)| now >= *began + RUN_OVERDUE);
            let Some((slot_id, token, began)) = long.filter(|_| jobs.several) else { continue };
            jobs.take_back(0, state);
            self.collect(state, &mut jobs);
            let slot = state.slot(slot_id);
            if let Some(lease) = slot.leases.get_mut(token)
                && lease.began.is_none()
            {
                lease.began = Some(began);
                slot.late_started.push(token);
                slot.wake.notify_one();
            }
        }
        state.runs = runs;
        self.wake_handler_task(state);
    }

    #[cfg(test)]
    pub(super) fn waiting_in_runs(&self) -> usize {
        let state = self.state.lock();
        let waiting = |run: &Arc<Run>| match &*run.jobs.lock() {
            jobs if jobs.several => jobs.waiting.len(),
            _ => 0,
        };
        state.runs.iter().map(waiting).sum()
    }

    /// Collects the ends of all runs, and lets none of their jobs begin.
    pub(super) fn end_runs(&self, state: &mut State) {
        let runs = std::mem::take(&mut state.runs);
        for run in &runs {
            let mut jobs = run.jobs.lock();
            self.collect(state, &mut jobs);
            jobs.waiting.clear();
        }
        state.runs = runs;
    }
}

impl State {
    /// How many jobs one task may take: short work, and one job at least for each idle task.
    fn run_length(&self) -> usize {
        let each = self.handler_time.as_nanos().max(1);
        let by_time = usize::try_from(RUN_WORK.as_nanos() / each).unwrap_or(usize::MAX);
        let idle = self.concurrency.saturating_sub(self.running + 1);
        by_time.min(self.ready.startable() / (idle + 1)).min(RUN_JOBS_MAX)
    }

    /// Adds a job with a lease to a run.
    fn assign(&mut self, jobs: &mut RunJobs, host: &Weak<dyn LeaseHost>, job: QueuedJob) {
        let (slot_id, token) = (job.slot_id, job.token);
        let slot = self.slot(slot_id);
        if let Some(lease) = slot.leases.get_mut(token) {
            lease.signal = Some(jobs.push(host, job, lease.ends()));
            slot.running += 1;
        }
    }

    /// A job of a run that has not begun waits again.
    fn return_job(&mut self, job: QueuedJob) {
        let slot = self.slot(job.slot_id);
        slot.running -= 1;
        if let Some(lease) = slot.leases.get_mut(job.token) {
            lease.signal = None;
            self.ready.push_front(job.source, job);
        }
    }

    /// Takes jobs that have not begun from the runs of other tasks, half of each: the caller is
    /// idle. True if a job may begin.
    pub(super) fn take_from_runs(&mut self) -> bool {
        if self.several > 0 {
            self.take_back(|waiting| waiting / 2);
        }
        self.ready.can_start()
    }

    /// Takes back all jobs that have not begun.
    pub(super) fn take_back_all(&mut self) {
        self.take_back(|_| 0);
    }

    fn take_back(&mut self, from: impl Fn(usize) -> usize) {
        let runs = std::mem::take(&mut self.runs);
        for run in &runs {
            let mut jobs = run.jobs.lock();
            let from = from(jobs.waiting.len());
            jobs.take_back(from, self);
        }
        self.runs = runs;
    }
}

impl PublisherSlot {
    /// The attempts to report as started although their runs were not announced.
    pub(super) fn take_late_started(&mut self, now: Duration) -> Option<Started> {
        if self.late_started.is_empty() {
            return None;
        }
        let leases = &mut self.leases;
        let ran = |token: Token| {
            let ran = now.saturating_sub(leases.get_mut(token)?.began?).as_millis();
            Some((token, u64::try_from(ran).unwrap_or(u64::MAX)))
        };
        let (tokens, running_ms) = self.late_started.drain(..).filter_map(ran).unzip();
        Some(Started { tokens: Tokens(tokens), running_ms })
    }
}
