//! The torture of handlers: it finds planted faults of handlers, and passes their corrected forms.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use longshore::fence::{FenceError, FencedStore};
use longshore::middleware::{Completion, JobRequest};
use longshore::prelude::*;
use longshore::testing::{
    Fault, JOBS_MAX, MemoryFencedStore, Outcome, Torture, TortureError, TortureFailure,
    TortureReport,
};
use longshore::{Attempt, CancelReason, CheckpointError, JobState, Path, State};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/orders", timeout = "60s")]
struct Order {
    number: u64,
}

/// A service that is two awaits away: the request may be lost, or its answer.
#[derive(Clone, Default)]
struct Remote<T>(Arc<Mutex<T>>);

impl<T> Remote<T> {
    async fn call<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        yield_now().await;
        let answer = act(&mut self.now());
        yield_now().await;
        answer
    }

    fn now(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

fn torture<S: Clone + Default + Send + Sync + 'static>() -> Torture<S> {
    Torture::new(S::default).job(Order { number: 7 })
}

fn failure(result: Result<TortureReport, TortureError>) -> TortureFailure {
    match result {
        Err(TortureError::Failed(failure)) => *failure,
        other => panic!("no case failed: {other:?}"),
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

// A double charge: the key has to be the same at each attempt.

type Bank = Remote<BTreeMap<String, u64>>;

async fn charge_per_attempt(
    Payload(order): Payload<Order>,
    State(bank): State<Bank>,
    context: JobContext,
) -> Result<(), JobFailure> {
    let key = context.token().0.to_string();
    bank.call(|charges| charges.insert(key, order.number)).await;
    Ok(())
}

async fn charge_per_job(
    Payload(order): Payload<Order>,
    State(bank): State<Bank>,
    context: JobContext,
) -> Result<(), JobFailure> {
    let key = context.id().to_string();
    bank.call(|charges| charges.insert(key, order.number)).await;
    Ok(())
}

fn charged_once(bank: &Bank, _: &Outcome) -> Result<(), String> {
    let times = bank.now().len();
    ensure(times == 1, || format!("charged {times} times"))
}

#[test]
fn torture_finds_a_double_charge() {
    let found = failure(torture().handle(charge_per_attempt).invariant(charged_once).run());
    assert_eq!(found.what, "charged 2 times");
    assert_eq!(found.faults, ["crash at the second await"]);
    let text = found.to_string();
    let first = format!("charged 2 times: seed {}, crash at the second await\n", found.seed);
    assert!(text.starts_with(&first), "{text}");
    assert!(text.contains("charge_per_attempt") && text.contains("starts attempt 2"), "{text}");
    let repeat = format!("LONGSHORE_TORTURE_SEED={} cargo test torture::torture_finds", found.seed);
    assert!(text.contains(&repeat), "{text}");

    let again = failure(torture().handle(charge_per_attempt).invariant(charged_once).run());
    assert_eq!(again, found, "a seed repeats, also after shrinking");
}

/// Long enough that a stopping worker drops it.
async fn charge_slowly(
    order: Payload<Order>,
    bank: State<Bank>,
    context: JobContext,
) -> Result<(), JobFailure> {
    charge_per_attempt(order, bank, context).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    Ok(())
}

#[test]
fn each_fault_alone_repeats_a_handler() {
    // A delayed handler is not repeated.
    for fault in Fault::DEFAULT.into_iter().filter(|fault| *fault != Fault::Delay) {
        let torture = torture().handle(charge_slowly).invariant(charged_once);
        let found = failure(torture.faults([fault]).seeds(200).run());
        assert_eq!((&found.what[..], found.faults.len()), ("charged 2 times", 1), "{found}");
        assert!(found.faults[0].starts_with(&fault.to_string()), "{found}");
    }
}

#[test]
fn torture_passes_one_charge_per_job() {
    let report = torture().handle(charge_per_job).invariant(charged_once).run().unwrap();
    // Seven faults at two awaits and at the start, but the loss of a settle only at the end.
    assert_eq!(
        (report.cases, report.single_faults, report.single_faults_possible),
        (1_000, 19, 19)
    );
    assert_eq!(report.awaits, [2]);
    let happened: BTreeSet<Fault> = report.faults.keys().copied().collect();
    assert_eq!(happened, BTreeSet::from(Fault::DEFAULT));
}

// A lost write: the mark that it was done is set before it is done.

#[derive(Clone, Default)]
struct Warehouse {
    marked: BTreeSet<String>,
    shipped: BTreeSet<u64>,
}

type Warehouses = Remote<Warehouse>;

async fn mark_then_ship(
    Payload(order): Payload<Order>,
    State(warehouse): State<Warehouses>,
    context: JobContext,
) -> Result<(), JobFailure> {
    let id = context.id().to_string();
    if warehouse.call(|all| all.marked.insert(id)).await {
        warehouse.call(|all| all.shipped.insert(order.number)).await;
    }
    Ok(())
}

async fn ship_then_mark(
    Payload(order): Payload<Order>,
    State(warehouse): State<Warehouses>,
    context: JobContext,
) -> Result<(), JobFailure> {
    let id = context.id().to_string();
    if !warehouse.call(|all| all.marked.contains(&id)).await {
        warehouse.call(|all| all.shipped.insert(order.number)).await;
        warehouse.call(|all| all.marked.insert(id)).await;
    }
    Ok(())
}

fn shipped(warehouse: &Warehouses, end: &Outcome) -> Result<(), String> {
    assert!(end.all_completed(), "{end:?}");
    ensure(warehouse.now().shipped.contains(&7), || "completed, and never shipped".to_owned())
}

#[test]
fn torture_finds_a_lost_write() {
    let found = failure(torture().handle(mark_then_ship).invariant(shipped).run());
    assert_eq!(found.what, "completed, and never shipped");
    assert_eq!(found.faults, ["crash at the second await"]);
}

#[test]
fn torture_passes_a_write_before_its_mark() {
    assert_eq!(torture().handle(ship_then_mark).invariant(shipped).run().unwrap().cases, 1_000);
}

// A missing fence: a late attempt overwrites a newer report.

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/reports", output = u64, keep_result)]
struct Report;

#[derive(Clone, Default)]
struct Reports {
    /// The source changes: each reading is a higher number.
    readings: Remote<u64>,
    report: Remote<u64>,
    fenced: MemoryFencedStore<u64>,
}

impl Reports {
    async fn read(&self) -> u64 {
        let next = |reading: &mut u64| {
            *reading += 1;
            *reading
        };
        self.readings.call(next).await
    }
}

async fn report(_: Payload<Report>, State(reports): State<Reports>) -> Result<u64, JobFailure> {
    let reading = reports.read().await;
    reports.report.call(|report| *report = reading).await;
    Ok(reading)
}

async fn fenced_report(
    _: Payload<Report>,
    State(reports): State<Reports>,
    context: JobContext,
) -> Result<u64, FenceError<std::convert::Infallible>> {
    reports.fenced.claim("report", context.token()).await?;
    let reading = reports.read().await;
    reports.fenced.write("report", context.token(), reading).await?;
    Ok(reading)
}

/// The report is that of the attempt whose result was accepted.
fn is_accepted(report: Option<u64>, end: &Outcome) -> Result<(), String> {
    let result = end.jobs[0].result.as_ref().and_then(|text| serde_json::from_slice(text).ok());
    ensure(end.all_completed() && report == result, || format!("{report:?}, not {result:?}"))
}

#[test]
fn torture_finds_a_missing_fence() {
    let found = failure(
        Torture::new(Reports::default)
            .job(Report)
            .handle(report)
            .invariant(|all: &Reports, end| is_accepted(Some(*all.report.now()), end))
            .run(),
    );
    assert_eq!(found.what, "Some(2), not Some(1)", "{found}");
    assert_eq!(found.faults.len(), 1, "{found}");
}

#[test]
fn torture_passes_a_fenced_write() {
    let report = Torture::new(Reports::default)
        .job(Report)
        .handle(fenced_report)
        .invariant(|all: &Reports, end| is_accepted(all.fenced.get("report"), end))
        .run();
    assert_eq!(report.unwrap().cases, 1_000);
}

// Races between two jobs.

async fn add(
    Payload(order): Payload<Order>,
    State(sum): State<Remote<u64>>,
) -> Result<(), JobFailure> {
    let before = sum.call(|sum| *sum).await;
    sum.call(|sum| *sum = before.max(order.number)).await;
    Ok(())
}

#[test]
fn torture_finds_a_race_between_two_jobs() {
    let highest = |sum: &Remote<u64>, _: &Outcome| {
        let sum = *sum.now();
        ensure(sum == 9, || format!("the highest order is {sum}"))
    };
    let torture = torture().job(Order { number: 9 }).handle(add).invariant(highest);
    let found = failure(torture.faults([]).run());
    assert_eq!((&found.what[..], found.faults.len()), ("the highest order is 7", 0), "{found}");
}

// What handlers see.

/// What the handlers of all cases have seen.
type Seen = Arc<Mutex<BTreeSet<String>>>;

async fn watch(
    _: Payload<Order>,
    State(seen): State<Seen>,
    context: JobContext,
) -> Result<(), JobFailure> {
    let see = |what: String| seen.lock().unwrap().insert(what);
    see(format!("attempt {}", context.attempt()));
    for step in 1..=2 {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(20)) => {}
            reason = context.cancelled() => {
                see(format!("cancelled: {reason:?}"));
                yield_now().await;
                return Err(JobFailure::retry(reason));
            }
        }
        let stored = context.checkpoint(vec![step]).await;
        see(match &stored {
            Ok(number) => format!("checkpoint {number}"),
            Err(error) => format!("no checkpoint: {error:?}"),
        });
        stored?;
    }
    Ok(())
}

#[test]
fn contexts_report_what_a_worker_would() {
    let seen = Seen::default();
    let state = seen.clone();
    let ended = |_: &Seen, end: &Outcome| {
        let job = &end.jobs[0];
        let has_ended = matches!(job.state, JobState::Completed | JobState::Cancelled);
        ensure(has_ended, || format!("{job:?}"))
    };
    Torture::new(move || state.clone())
        .job(Order { number: 1 })
        .handle(watch)
        .faults(Fault::ALL)
        .invariant(ended)
        .seeds(100)
        .run()
        .unwrap();
    let seen = seen.lock().unwrap();
    for expected in ["attempt 1", "attempt 2", "checkpoint 1", "cancelled: LeaseLost"] {
        assert!(seen.contains(expected), "{expected}: {seen:?}");
    }
    let reasons = [CancelReason::Cancelled, CancelReason::Shutdown, CancelReason::TimedOut];
    for reason in reasons {
        assert!(seen.contains(&format!("cancelled: {reason:?}")), "{reason:?}: {seen:?}");
    }
    let lost = CheckpointError::Lost(CancelReason::LeaseLost);
    assert!(seen.contains(&format!("no checkpoint: {lost:?}")), "{seen:?}");
}

/// A long job of three steps that continues at its last checkpoint.
async fn three_steps(
    _: Payload<Order>,
    State(done): State<Remote<Vec<u8>>>,
    context: JobContext,
) -> anyhow::Result<()> {
    let last = context.checkpoints().await?.last().map_or(0, |stored| stored.bytes[0]);
    for step in last + 1..=3 {
        done.call(|done| done.push(step)).await;
        context.checkpoint(vec![step]).await?;
    }
    Ok(())
}

#[test]
fn attempts_continue_at_the_last_checkpoint() {
    let all_steps = |done: &Remote<Vec<u8>>, end: &Outcome| {
        let steps: BTreeSet<u8> = done.now().iter().copied().collect();
        ensure(end.all_completed() && steps == BTreeSet::from([1, 2, 3]), || format!("{end:?}"))
    };
    // Without overlapping attempts a step is repeated only if its own checkpoint was lost.
    let few_repeats = |done: &Remote<Vec<u8>>, end: &Outcome| {
        let repeats = done.now().len().saturating_sub(3);
        ensure(repeats < end.runs as usize, || format!("{repeats} repeats in {} runs", end.runs))
    };
    let torture = torture().handle(three_steps).invariant(all_steps).invariant(few_repeats);
    torture.faults([Fault::Crash, Fault::Stop]).seeds(300).run().unwrap();
}

async fn third_time(_: Payload<Order>, Attempt(attempt): Attempt) -> Result<(), JobFailure> {
    if attempt < 3 { Err(JobFailure::retry("not yet")) } else { Ok(()) }
}

#[test]
fn attempts_and_back_off_are_the_publishers() {
    let waited = |(): &(), end: &Outcome| {
        let attempts = &end.jobs[0].attempts;
        let waits: Vec<u64> =
            attempts.windows(2).map(|two| two[1].delivered_at - two[0].ended_at).collect();
        ensure(end.runs == 3 && waits[0] < 1_200 && (14_400..=17_600).contains(&waits[1]), || {
            format!("{waits:?} in {} runs", end.runs)
        })
    };
    let report = torture().handle(third_time).invariant(waited).faults([]).seeds(10).run().unwrap();
    assert_eq!((report.cases, report.runs, &report.awaits[..]), (10, 30, &[0][..]));
}

#[test]
fn handlers_that_never_end_are_reported() {
    let holds = |(): &(), _: &Outcome| Ok::<(), String>(());
    async fn hang(_: Payload<Order>) -> Result<(), JobFailure> {
        yield_now().await;
        std::future::pending().await
    }
    let found = failure(torture().handle(hang).invariant(holds).run());
    let expected = "the handler did not end within 7200s: run 1 of job 1 waits at its second await";
    assert_eq!((&found.what[..], &found.faults[..], found.seed), (expected, &[][..], 0));

    async fn snooze(_: Payload<Order>) -> Result<(), JobFailure> {
        Err(JobFailure::Snooze(Duration::from_secs(60)))
    }
    let found = failure(torture().handle(snooze).invariant(holds).run());
    assert_eq!(found.what, "job 1 did not end within 500 runs");

    async fn spin(_: Payload<Order>) -> Result<(), JobFailure> {
        loop {
            yield_now().await;
        }
    }
    let found = failure(torture().handle(spin).invariant(holds).run());
    assert_eq!(found.what, "the handlers did not end within 100000 polls and 2000000 turns");
}

#[test]
fn services_run_with_their_layers_and_raw_jobs() {
    let answer = |request: JobRequest| async move {
        yield_now().await;
        Ok::<_, JobFailure>(Completion { result: Some(request.job.payload) })
    };
    let mut job = new_job(Path::new("/raw").unwrap(), "raw");
    job.options.keep_result = true;
    let report = Torture::new(|| ())
        .job(job)
        .service(move |()| tower::service_fn(answer))
        .invariant(|(), end| {
            ensure(end.jobs[0].result.as_deref() == Some(b"raw"), || format!("{end:?}"))
        })
        .seeds(50)
        .run();
    assert_eq!(report.unwrap().awaits, [1]);
}

#[test]
fn a_torture_that_would_test_nothing_is_refused() {
    let holds = |(): &(), _: &Outcome| Ok::<(), String>(());
    let missing = |torture: Torture<()>| match torture.run() {
        Err(TortureError::Missing(what)) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(missing(Torture::new(|| ()).handle(third_time).invariant(holds)), "job");
    assert_eq!(missing(torture().invariant(holds)), "handler");
    assert_eq!(missing(torture().handle(third_time)), "invariant");
    let mut many = torture().handle(third_time).invariant(holds);
    for number in 0..JOBS_MAX as u64 {
        many = many.job(Order { number });
    }
    assert_eq!(
        many.run().unwrap_err().to_string(),
        "17 jobs are over the limit of 16 of a torture"
    );
}

#[test]
#[ignore = "run by the test below with a seed"]
fn fails_at_its_seed() {
    torture().handle(charge_per_attempt).invariant(charged_once).run().unwrap();
}

#[test]
fn one_seed_is_repeated_by_the_environment() {
    let run = |seed: &str| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--ignored", "--exact", "torture::fails_at_its_seed", "--nocapture"]);
        let output = test.env("LONGSHORE_TORTURE_SEED", seed).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let found = failure(torture().handle(charge_per_attempt).invariant(charged_once).run());
    let (passed, text) = run(&found.seed.to_string());
    let first = found.to_string().lines().next().unwrap_or_default().to_owned();
    assert!(!passed && text.contains(&first), "{text}");
    assert!(run("0").0, "without a fault it passes");
    assert!(run("two").1.contains("LONGSHORE_TORTURE_SEED is 'two'"));
}
