//! One case: all runs of its jobs on one thread, in virtual time, with a plan of faults.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use longshore_protocol::messages::work::{JobInfo, NewSettle};
use longshore_protocol::{Entry, JobId, JobState, NewJob, Revoked};
use longshore_subscriber::CancelReason;
use longshore_subscriber::testing::{Delivered, Lease, LeaseHost};
use tokio::time::Instant;

use super::fault::{Fault, Injection, Points};
use super::host::{HeldLease, Host};
use super::publisher::{Delivery, Publisher, PublisherError, Worker};
use super::random::Random;
use super::run::{Handling, Run, Until};

/// The longest virtual time from a handler's start to its end.
pub(super) const HANDLER_TIME_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// Most runs of a case.
pub(super) const RUNS_MAX: u32 = 500;
/// Most polls of handlers in a case.
pub(super) const POLLS_MAX: u32 = 100_000;
/// Most turns of a case: in a running handler's virtual time there are four a second.
pub(super) const TURNS_MAX: u32 = 2_000_000;

/// Most lines of a history.
const HISTORY_MAX: usize = 200;

/// Starts the handler of a delivery.
pub(super) type StartHandler<'a> = &'a dyn Fn(Instant, Delivered, Lease) -> Handling;

/// What a case does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The seed of its choices.
    pub(super) seed: u64,
    pub(super) faults: Vec<Injection>,
    /// Whether runs proceed in random order, not in that of their start.
    pub(super) shuffled: bool,
}

/// The end of a case.
#[derive(Debug)]
pub(super) struct CaseEnd {
    pub(super) jobs: Vec<JobInfo>,
    pub(super) runs: u32,
    pub(super) points: Points,
    pub(super) fired: Vec<Fault>,
    pub(super) history: Vec<String>,
    /// Why it did not come to its end.
    pub(super) problem: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CaseError {
    #[error("{0}")]
    Problem(String),
    #[error("{0}")]
    Publisher(#[from] PublisherError),
}

struct Job {
    id: JobId,
    runs: u32,
    /// The highest run that has ended.
    ended: u32,
    /// The awaits of each run.
    points: Vec<u32>,
    /// Set once the job has ended.
    info: Option<JobInfo>,
}

pub(super) struct Case<'a> {
    start_handler: StartHandler<'a>,
    plan: &'a Plan,
    pub(super) unfired: Vec<Injection>,
    pub(super) fired: Vec<Fault>,
    pub(super) publisher: Publisher,
    pub(super) host: Arc<Host>,
    started: Instant,
    pub(super) random: Random,
    jobs: Vec<Job>,
    pub(super) runs: Vec<Run>,
    runs_started: u32,
    /// Workers with a credit and no job.
    idle: Vec<Worker>,
    history: Option<RefCell<Vec<String>>>,
}

/// Runs a case to its end. Needs a current-thread runtime whose clock is paused.
pub(super) async fn run(
    jobs: &[NewJob],
    plan: &Plan,
    with_history: bool,
    start_handler: StartHandler<'_>,
) -> Result<CaseEnd, PublisherError> {
    let started = Instant::now();
    let mut publisher = Publisher::start(started)?;
    publisher.enqueue(jobs)?;
    let new = |job: &NewJob| Job { id: job.id, runs: 0, ended: 0, points: Vec::new(), info: None };
    let mut case = Case {
        start_handler,
        plan,
        unfired: plan.faults.clone(),
        fired: Vec::new(),
        publisher,
        host: Host::new(started),
        started,
        random: Random::new(plan.seed),
        jobs: jobs.iter().map(new).collect(),
        runs: Vec::new(),
        runs_started: 0,
        idle: Vec::new(),
        history: with_history.then(RefCell::default),
    };
    let problem = match case.drive().await {
        Ok(()) => None,
        Err(CaseError::Problem(problem)) => Some(problem),
        Err(CaseError::Publisher(error)) => return Err(error),
    };
    let Case { jobs, fired, history, runs_started: runs, .. } = case;
    let (points, infos): (Points, Vec<_>) =
        jobs.into_iter().map(|job| (job.points, job.info)).unzip();
    let history = history.map(RefCell::into_inner).unwrap_or_default();
    Ok(CaseEnd {
        jobs: infos.into_iter().flatten().collect(),
        runs,
        points,
        fired,
        history,
        problem,
    })
}

impl Case<'_> {
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn drive(&mut self) -> Result<(), CaseError> {
        let mut polls = 0;
        for _ in 0..TURNS_MAX {
            let next_turn = self.publish()?;
            self.answer_requests()?;
            self.run_timers()?;
            if self.runs.is_empty() && self.jobs.iter().all(|job| job.info.is_some()) {
                return Ok(());
            }
            let runnable: Vec<usize> =
                (0..self.runs.len()).filter(|&at| self.runs[at].is_runnable()).collect();
            let chosen = match self.plan.shuffled {
                true => self.random.pick(&runnable),
                false => runnable.first().copied(),
            };
            if let Some(at) = chosen {
                polls += 1;
                if polls > POLLS_MAX {
                    break;
                }
                self.poll(at)?;
                // Lets tasks run that handlers have spawned.
                tokio::task::yield_now().await;
                continue;
            }
            let deadlines = self.runs.iter().filter_map(Run::next_deadline);
            let Some(next) = deadlines.chain(next_turn).min() else {
                return Err(CaseError::Problem("the jobs neither run nor end".to_owned()));
            };
            let wake = self.host.wake.clone();
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = tokio::time::sleep_until(self.started + next) => {}
            }
        }
        Err(CaseError::Problem(format!(
            "the handlers did not end within {POLLS_MAX} polls and {TURNS_MAX} turns"
        )))
    }

    /// Takes what the publisher has decided.
    fn publish(&mut self) -> Result<Option<Duration>, CaseError> {
        while self.idle.len() < self.jobs.len() {
            self.idle.push(self.publisher.worker()?);
        }
        let next = self.publisher.turn()?;
        for (_, reason, token) in self.publisher.take_revoked() {
            let Some(at) = self.runs.iter().position(|run| run.token == token) else { continue };
            self.lose_lease(
                at,
                match reason {
                    Revoked::LeaseLost => CancelReason::LeaseLost,
                    Revoked::Cancelled => CancelReason::Cancelled,
                    Revoked::TimedOut => CancelReason::TimedOut,
                },
            );
        }
        for number in 0..self.jobs.len() {
            let job = &self.jobs[number];
            let state = self.publisher.state(&job.id);
            use JobState::{Cancelled, Completed, Dead, Expired};
            if job.info.is_none()
                && matches!(state, None | Some(Cancelled | Completed | Dead | Expired))
            {
                let info = self.publisher.job(job.id)?;
                self.note(|| format!("job {}: {}", number + 1, info.state));
                self.jobs[number].info = Some(info);
            }
        }
        for delivery in self.publisher.take_deliveries() {
            self.start_run(delivery)?;
        }
        Ok(next)
    }

    fn start_run(&mut self, delivery: Delivery) -> Result<(), CaseError> {
        let now = self.now();
        let Delivery { assignment, path, entry } = &delivery;
        let id = Entry::read(entry.clone()).map(|entry| entry.id);
        let job = self.jobs.iter().position(|job| Ok(job.id) == id);
        let worker = self.idle.iter().position(|worker| worker.link == Some(assignment.link));
        let (Some(job), Some(worker)) = (job, worker) else { return Ok(()) };
        let worker = self.idle.swap_remove(worker);
        if self.runs_started == RUNS_MAX {
            let problem = format!("job {} did not end within {RUNS_MAX} runs", job + 1);
            return Err(CaseError::Problem(problem));
        }
        self.runs_started += 1;
        self.jobs[job].runs += 1;
        self.jobs[job].points.push(0);
        let ends = now + Duration::from_millis(u64::from(assignment.lease_ms));
        let host: Arc<dyn LeaseHost> = self.host.clone();
        let lease = Lease::new(Arc::downgrade(&host), ends);
        self.host.hold(assignment.token, HeldLease { ends, unlinked_since: None });
        self.publisher.started(assignment.link, assignment.token);
        let delivered = Delivered {
            token: assignment.token,
            path: path.clone(),
            attempt: assignment.attempt,
            deliveries: assignment.deliveries,
            checkpoints: assignment.checkpoints,
            times: assignment.times,
            entry: entry.clone(),
        };
        let handling = (self.start_handler)(self.started, delivered, lease.clone());
        let run = Run::new(
            (job, self.jobs[job].runs),
            &delivery,
            worker,
            (lease, handling),
            self.host.wake.clone(),
            (now, now + HANDLER_TIME_MAX),
        );
        self.note_run(&run, || {
            format!("starts attempt {} with token {}", run.attempt, run.token.0)
        });
        self.runs.push(run);
        self.inject(self.runs.len() - 1)
    }

    fn poll(&mut self, at: usize) -> Result<(), CaseError> {
        let run = &mut self.runs[at];
        let poll = run.poll();
        run.unaware = false;
        match poll {
            Poll::Pending => {
                run.awaits += 1;
                self.jobs[run.job].points[run.nth as usize - 1] = run.awaits;
                let run = &self.runs[at];
                self.note_run(run, || format!("waits at await {}", run.awaits));
                self.inject(at)
            }
            Poll::Ready(ended) => {
                run.handling = None;
                run.drop_at = None;
                run.settle = Some(ended.settle);
                let run = &self.runs[at];
                self.note_run(run, || format!("returns: {}", words_of(run.settle.as_ref())));
                self.inject_after_return(at)
            }
        }
    }

    /// True once a held run may go on.
    pub(super) fn is_released(&self, run: &Run, until: Until) -> bool {
        let job = &self.jobs[run.job];
        match until {
            Until::Time => false,
            Until::OtherStarted => job.runs > run.nth || job.info.is_some(),
            Until::OtherEnded => job.ended > run.nth || job.info.is_some(),
        }
    }

    pub(super) fn job_id(&self, number: usize) -> JobId {
        self.jobs[number].id
    }

    /// The run's worker is done with it, or dead.
    pub(super) fn end_run(&mut self, at: usize) -> Result<(), CaseError> {
        let mut run = self.runs.remove(at);
        self.host.forget(run.token);
        self.publisher.disconnect(&mut run.worker)?;
        let job = &mut self.jobs[run.job];
        job.ended = job.ended.max(run.nth);
        Ok(())
    }

    /// The worker learns that the lease is over.
    pub(super) fn lose_lease(&mut self, at: usize, reason: CancelReason) {
        self.host.forget(self.runs[at].token);
        if self.runs[at].ends.is_some() {
            self.runs[at].lose_lease(reason);
            let run = &self.runs[at];
            self.note_run(run, || format!("is cancelled: {reason}"));
        }
    }

    /// Adds a line to the history.
    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(history) = &self.history
            && history.borrow().len() < HISTORY_MAX
        {
            let at = self.now().as_secs_f64();
            history.borrow_mut().push(format!("{at:>9.3} s  {}", line()));
        }
    }

    pub(super) fn note_run(&self, run: &Run, line: impl FnOnce() -> String) {
        self.note(|| match self.jobs.len() {
            1 => format!("run {}: {}", run.nth, line()),
            _ => format!("job {}, run {}: {}", run.job + 1, run.nth, line()),
        });
    }
}

/// A settle in words.
pub(super) fn words_of(settle: Option<&NewSettle>) -> String {
    match settle {
        None => "nothing".to_owned(),
        Some(NewSettle::Complete { .. }) => "completed".to_owned(),
        Some(NewSettle::Fail(error)) => format!("failed: {}", error.message),
        Some(NewSettle::Release) => "released".to_owned(),
        Some(NewSettle::Snooze { ms }) => format!("snoozed for {ms} ms"),
        Some(NewSettle::Throttle { ms }) => format!("throttled for {ms} ms"),
        Some(NewSettle::Bury(error)) => format!("buried: {}", error.message),
    }
}
