//! The torture of handlers.

mod case;
mod fault;
mod host;
mod inject;
mod memory_log;
mod publisher;
mod random;
mod report;
mod run;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write as _;

use longshore_protocol::NewJob;
use longshore_subscriber::testing::{self, Delivered, Lease};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use self::case::{CaseEnd, Plan};
use self::fault::{Injection, Points, random_faults, single_faults};
use self::random::Random;
use self::run::Handling;
use crate::middleware::JobService;
use crate::{BadPayload, Handler, IntoJob, JobId, Kinds};

pub use self::fault::Fault;
pub use self::report::{Outcome, TortureError, TortureFailure, TortureReport};

/// Cases that a torture runs by default.
pub const SEEDS: u64 = 1_000;
/// Most jobs of a torture.
pub const JOBS_MAX: usize = 16;
/// How long ended jobs stay readable: longer than a case takes.
const KEEP_MS: u64 = 50 * 365 * 24 * 60 * 60 * 1_000;
/// The variable that repeats one seed.
const SEED_VARIABLE: &str = "LONGSHORE_TORTURE_SEED";

type Invariant<S> = Box<dyn Fn(&S, &Outcome) -> Result<(), String>>;
type AddHandler<S> = Box<dyn Fn(&mut Kinds<S>)>;
type Serve<S> = Box<dyn Fn(S) -> StartHandlers>;
type StartHandlers = Box<dyn Fn(Instant, Delivered, Lease) -> Handling>;

/// Runs your handlers in virtual time, crashes and repeats them at every await point, and checks
/// that your store is right all the same.
///
/// A queue delivers a job again if its worker dies or is silent for too long, so a handler may run
/// more than once, in part, or at the same time as another attempt. A torture does all of that on
/// purpose:
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use longshore::prelude::*;
/// use longshore::testing::Torture;
/// use serde::{Deserialize, Serialize};
/// use tokio::task::yield_now;
///
/// #[derive(Serialize, Deserialize, JobKind)]
/// #[job(path = "/jobs/charge")]
/// struct Charge {
///     cents: u64,
/// }
///
/// /// The bank, as the tests have it. The real one is as far away as its await points.
/// #[derive(Clone, Default)]
/// struct Bank(Arc<Mutex<Vec<(String, u64)>>>);
///
/// impl Bank {
///     /// Charges once per key.
///     async fn charge(&self, key: String, cents: u64) {
///         yield_now().await;
///         self.charge_once(key, cents);
///         yield_now().await;
///     }
///
///     fn charge_once(&self, key: String, cents: u64) {
///         let mut charges = self.0.lock().unwrap();
///         if !charges.iter().any(|(other, _)| *other == key) {
///             charges.push((key, cents));
///         }
///     }
/// }
///
/// async fn charge(
///     Payload(job): Payload<Charge>,
///     longshore::State(bank): longshore::State<Bank>,
///     context: JobContext,
/// ) -> Result<(), JobFailure> {
///     // With another key for each attempt, e.g. the token, the torture reports
///     // "charged 2 times: seed 3, crash at the second await".
///     bank.charge(context.id().to_string(), job.cents).await;
///     Ok(())
/// }
///
/// // In a `#[test]`: it is not async, and needs no system.
/// let report = Torture::new(Bank::default)
///     .handle(charge)
///     .job(Charge { cents: 500 })
///     .invariant(|bank: &Bank, _| match bank.0.lock().unwrap().len() {
///         1 => Ok(()),
///         times => Err(format!("charged {times} times")),
///     })
///     .run()
///     .unwrap();
/// assert_eq!((report.cases, &report.awaits[..]), (1_000, &[2][..]));
/// ```
///
/// # What it does
///
/// The first case has no fault, and counts the handler's awaits: a poll that returns pending is
/// one. Then each [`Fault`] happens at each await of each job's first runs, one in a case. All
/// further cases have two or three faults at random places, and their attempts proceed in random
/// order. Each case begins with a new state.
///
/// Leases, tokens, attempts, back-off, run timeouts, checkpoints, cancellation and dead letters are
/// decided by the publisher's own state machine, on tokio's paused clock: a back-off of an hour
/// takes no time. A case ends when each job has completed or is dead, cancelled or expired, and all
/// attempts have returned; then the invariants are checked.
///
/// With the default faults, a job that succeeds at its first attempt completes in every case if it
/// may have three attempts.
///
/// # What you provide
///
/// - **A store that awaits** where the real one does. A call over a network can be lost before it
///   has taken effect, or its answer after: `yield_now().await` both before and after.
///   [`TortureReport::awaits`] returns how many awaits there were; a handler without any can only
///   be repeated as a whole: a warning on standard error names its job.
/// - **An invariant** that holds when all is over. It receives the state and the [`Outcome`].
/// - Handlers and stores that decide by nothing but their input, so that a seed repeats. Their time
///   is `tokio::time`.
///
/// Handlers run on the test's thread. One that blocks its thread for ever blocks the test, too.
///
/// # Reading a failure
///
/// ```text
/// charged 2 times: seed 3, crash at the second await
///   handler shop::charge
///       0.000 s  run 1: starts attempt 1 with token 4294967297
///       0.000 s  run 1: waits at await 1
///       0.000 s  run 1: waits at await 2
///       0.000 s  run 1: FAULT: crash
///       5.000 s  run 2: starts attempt 2 with token 4294967298
///       …
///   repeat it: LONGSHORE_TORTURE_SEED=3 cargo test charges_once
/// ```
///
/// The faults are the fewest that still make this seed fail. A seed repeats as long as the
/// handlers, jobs, faults and the number of seeds are the same.
pub struct Torture<S> {
    state: Box<dyn Fn() -> S>,
    handlers: Vec<AddHandler<S>>,
    names: Vec<&'static str>,
    service: Option<Serve<S>>,
    jobs: Vec<Result<NewJob, BadPayload>>,
    invariants: Vec<Invariant<S>>,
    faults: Vec<Fault>,
    seeds: u64,
}

impl<S: Clone + Send + Sync + 'static> Torture<S> {
    /// A torture whose cases each begin with a new state from `state`: that of
    /// [`Worker::state`](crate::Worker::state), with the stores that the handlers use. Clones of a
    /// state share its stores.
    pub fn new(state: impl Fn() -> S + 'static) -> Torture<S> {
        Torture {
            state: Box::new(state),
            handlers: Vec::new(),
            names: Vec::new(),
            service: None,
            jobs: Vec::new(),
            invariants: Vec::new(),
            faults: Fault::DEFAULT.to_vec(),
            seeds: SEEDS,
        }
    }

    /// Adds the handler of a kind of jobs, as for a worker.
    pub fn handle<H: Handler<A, S>, A>(mut self, handler: H) -> Torture<S> {
        self.names.push(std::any::type_name::<H>());
        self.handlers.push(Box::new(move |kinds| testing::add(kinds, handler.clone())));
        self
    }

    /// Runs all jobs with a tower service instead, which `service` makes from the state of a case:
    /// layers around a handler, or a handler of raw jobs.
    pub fn service<V: JobService>(mut self, service: impl Fn(S) -> V + 'static) -> Torture<S> {
        self.names.push(std::any::type_name::<V>());
        self.service = Some(Box::new(move |state| start_with(service(state))));
        self
    }

    /// Adds a job: a value of a kind, or a [`NewJob`]. All jobs of a case are enqueued at its start
    /// and run at the same time; two jobs on the same record find races. At most 16.
    pub fn job(mut self, job: impl IntoJob) -> Torture<S> {
        let number = self.jobs.len() as u64 + 1;
        self.jobs.push(job.into_job(|| id_of(number)).map(retained));
        self
    }

    /// Adds a condition that must hold at the end of each case. Its error is the first line of the
    /// failure: `charged twice`.
    pub fn invariant<E: Display>(
        mut self,
        holds: impl Fn(&S, &Outcome) -> Result<(), E> + 'static,
    ) -> Torture<S> {
        self.invariants
            .push(Box::new(move |state, end| holds(state, end).map_err(|error| error.to_string())));
        self
    }

    /// Sets the faults; [`Fault::DEFAULT`] by default.
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Torture<S> {
        self.faults = BTreeSet::from_iter(faults).into_iter().collect();
        self
    }

    /// Sets the number of cases; 1,000 by default.
    pub fn seeds(mut self, seeds: u64) -> Torture<S> {
        self.seeds = seeds;
        self
    }

    /// Runs the cases until one fails. `LONGSHORE_TORTURE_SEED` runs only the case of that seed.
    /// Call it outside of async functions: it has a runtime of its own.
    pub fn run(self) -> Result<TortureReport, TortureError> {
        let seed = match std::env::var(SEED_VARIABLE) {
            Ok(text) => Some(text.parse().map_err(|_| TortureError::Seed(text))?),
            Err(_) => None,
        };
        self.run_seeds(seed)
    }

    fn run_seeds(mut self, only: Option<u64>) -> Result<TortureReport, TortureError> {
        let jobs = self.take_jobs()?;
        let clean =
            self.case(&jobs, &Plan { seed: 0, faults: Vec::new(), shuffled: false }, false)?;
        let points = clean.end.points.clone();
        let singles = single_faults(&points, &self.faults);
        let enumerated = (singles.len() as u64).min(self.seeds / 2);
        let awaits: Vec<u32> =
            points.iter().map(|runs| runs.first().copied().unwrap_or(0)).collect();
        warn_of_untested(&awaits);
        let mut report = TortureReport { awaits, ..TortureReport::default() };
        report.single_faults = enumerated;
        report.single_faults_possible = singles.len() as u64;
        let seeds = only.map_or(0..self.seeds.max(1), |seed| seed..seed.saturating_add(1));
        for seed in seeds {
            let plan = self.plan(seed, enumerated, &singles, &points);
            let case = self.case(&jobs, &plan, false)?;
            if let Some(what) = case.failure {
                let failure = self.explain(&jobs, seed, plan, what)?;
                return Err(TortureError::Failed(Box::new(failure)));
            }
            report.cases += 1;
            report.runs += u64::from(case.end.runs);
            for fault in case.end.fired {
                *report.faults.entry(fault).or_default() += 1;
            }
        }
        Ok(report)
    }

    fn take_jobs(&mut self) -> Result<Vec<NewJob>, TortureError> {
        let missing = [
            (self.jobs.is_empty(), "job"),
            (self.handlers.is_empty() && self.service.is_none(), "handler"),
            (self.invariants.is_empty(), "invariant"),
        ];
        if let Some((_, what)) = missing.into_iter().find(|(is_missing, _)| *is_missing) {
            return Err(TortureError::Missing(what));
        }
        if self.jobs.len() > JOBS_MAX {
            return Err(TortureError::TooManyJobs(self.jobs.len()));
        }
        let jobs = std::mem::take(&mut self.jobs);
        let numbered = |(number, job): (usize, Result<NewJob, BadPayload>)| {
            job.map_err(|error| TortureError::Job { number, error })
        };
        (1..).zip(jobs).map(numbered).collect()
    }

    /// Seed 0 has no fault; then come the single faults, evenly chosen if there are too many; then
    /// faults at random.
    fn plan(&self, seed: u64, enumerated: u64, singles: &[Injection], points: &Points) -> Plan {
        let mut random = Random::new(seed);
        let faults = match seed {
            0 => Vec::new(),
            seed if seed <= enumerated => {
                let nth = (seed - 1) as usize * singles.len() / enumerated as usize;
                singles.get(nth).copied().into_iter().collect()
            }
            _ => random_faults(points, &self.faults, &mut random),
        };
        Plan { seed: random.next(), faults, shuffled: seed > enumerated }
    }

    /// Finds the fewest faults of a failing plan that still fail, and repeats it with its history.
    fn explain(
        &self,
        jobs: &[NewJob],
        seed: u64,
        mut plan: Plan,
        what: String,
    ) -> Result<TortureFailure, TortureError> {
        let simpler = |plan: Plan| -> Result<Option<Plan>, TortureError> {
            Ok(self.case(jobs, &plan, false)?.failure.is_some().then_some(plan))
        };
        if let Some(ordered) = simpler(Plan { shuffled: false, ..plan.clone() })? {
            plan = ordered;
        }
        let mut at = 0;
        while at < plan.faults.len() {
            let mut fewer = plan.clone();
            fewer.faults.remove(at);
            match simpler(fewer)? {
                Some(fewer) => plan = fewer,
                None => at += 1,
            }
        }
        let case = self.case(jobs, &plan, true)?;
        let place = |fault: &Injection| match jobs.len() {
            1 => fault.to_string(),
            _ => format!("{fault} of job {}", fault.job + 1),
        };
        Ok(TortureFailure {
            what: case.failure.unwrap_or(what),
            seed,
            faults: plan.faults.iter().map(place).collect(),
            handlers: self.names.clone(),
            history: case.end.history,
            test: std::thread::current().name().map(str::to_owned),
        })
    }

    /// Runs a case and checks the invariants.
    fn case(&self, jobs: &[NewJob], plan: &Plan, with_history: bool) -> Result<Case, TortureError> {
        let runtime = runtime()?;
        let entered = runtime.enter();
        let state = (self.state)();
        let start = self.start_handlers(state.clone())?;
        let case = case::run(jobs, plan, with_history, &start);
        // Without tokio's budget: its end would look like an await of the handler.
        let end = runtime.block_on(tokio::task::unconstrained(case));
        drop(entered);
        let mut end = end.map_err(|error| TortureError::Publisher(error.to_string()))?;
        // Ends the tasks that handlers have spawned.
        drop(runtime);
        let outcome = Outcome { jobs: std::mem::take(&mut end.jobs), runs: end.runs };
        let mut checks = self.invariants.iter().map(|holds| holds(&state, &outcome));
        let failure = end.problem.take().or_else(|| checks.find_map(Result::err));
        drop(checks);
        Ok(Case { end, failure })
    }

    fn start_handlers(&self, state: S) -> Result<StartHandlers, TortureError> {
        if let Some(service) = &self.service {
            return Ok(service(state));
        }
        let mut kinds = testing::kinds(state);
        self.handlers.iter().for_each(|add| add(&mut kinds));
        Ok(start_with(testing::router(kinds)?))
    }
}

/// A case, and what it broke.
struct Case {
    end: CaseEnd,
    failure: Option<String>,
}

/// A function that starts handlers: clones of this service.
fn start_with(service: impl JobService) -> StartHandlers {
    Box::new(move |started, delivered, lease| {
        Box::pin(testing::attempt(service.clone(), started, delivered, lease))
    })
}

/// Reports jobs for which the torture shows nothing. Not captured with a test's output, as the test
/// passes.
fn warn_of_untested(awaits: &[u32]) {
    if let Some(warning) = untested(awaits) {
        let _ = writeln!(std::io::stderr(), "{warning}");
    }
}

fn untested(awaits: &[u32]) -> Option<String> {
    let jobs: Vec<String> = (1..)
        .zip(awaits)
        .filter(|(_, n)| **n == 0)
        .map(|(job, _): (usize, _)| job.to_string())
        .collect();
    (!jobs.is_empty()).then(|| {
        format!(
            "warning: torture: no await in the first run of job {}: nothing is injected into its \
             handler; let its store await, as with tokio::task::yield_now()",
            jobs.join(", ")
        )
    })
}

/// A runtime on this thread, with a clock that moves when nothing else can happen.
fn runtime() -> Result<Runtime, std::io::Error> {
    Builder::new_current_thread().enable_time().start_paused(true).build()
}

/// The id of a job: the same in each run of the test.
fn id_of(number: u64) -> JobId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    JobId::new_v7(1_700_000_000_000, random)
}

/// An ended job stays readable until the end of its case.
fn retained(mut job: NewJob) -> NewJob {
    job.options.keep_ms = Some(KEEP_MS);
    job
}

#[cfg(test)]
mod tests {
    use super::untested;

    #[test]
    fn handler_without_an_await_is_warned_of() {
        assert_eq!(untested(&[1, 2]), None);
        let warning = untested(&[0, 2, 0]).unwrap();
        assert!(warning.contains("of job 1, 3: nothing is injected"), "{warning}");
    }
}
