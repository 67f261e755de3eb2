//! `longshore::testing` as in a user's test: hours pass at once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use longshore::Path;
use longshore::prelude::*;
use longshore::testing::{ClockUnused, DrainError, TestClock, TestStartError, TestSystem};
use longshore::{
    Backoff, CancelReason, DeathReason, Due, Durability, FeedFrom, FeedUpdate, Filter, Glob,
    JobChange, JobEnd, JobLimit, JobRate, JobState, LimitScope, NameError, OpenError, Publisher,
    PublisherOptions, QueuePatterns, Receipt, RunError,
};
use tokio::sync::mpsc;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

fn job(path: &str, payload: &str) -> NewJob {
    new_job(Path::new(path).expect("a path"), payload.to_owned())
}

async fn enqueue(system: &TestSystem, job: NewJob) -> anyhow::Result<Receipt> {
    Ok(system.producer().enqueue(job).await?)
}

/// A handler that succeeds.
async fn done(_: Job<String>, _: JobContext) -> Result<(), JobFailure> {
    Ok(())
}

async fn fails(_: Job<String>, _: JobContext) -> Result<(), JobFailure> {
    Err(JobFailure::retry("the line is dead").kind("LineDead"))
}

/// Fails if the future takes longer than 30 s.
async fn within<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(tokio::time::timeout(30 * SECOND, future).await?)
}

async fn completed(system: &TestSystem) -> anyhow::Result<u64> {
    let worker = system.worker().durable_subscribe("/**");
    Ok(system.drain(worker, |jobs| jobs.run(done)).await?.completed)
}

#[tokio::test]
async fn a_retry_after_an_hour_takes_no_time() -> anyhow::Result<()> {
    let began = Instant::now();
    let system = TestSystem::start().await?;
    let mut job = job("/mail", "hello");
    job.options.backoff = Some(Backoff::Fixed(3_600_000));
    enqueue(&system, job).await?;
    let send = |_: Job<String>, ctx: JobContext| async move {
        let is_due = ctx.scheduled_at() == ctx.enqueued_at() + HOUR;
        match ctx.attempt() {
            1 => Err(JobFailure::retry("the line is dead")),
            _ if is_due && ctx.queue_latency() == Duration::ZERO => Ok(()),
            _ => Err(JobFailure::bury("a wrong time")),
        }
    };

    let report =
        system.drain(system.worker().durable_subscribe("/mail"), |jobs| jobs.run(send)).await?;
    assert_eq!((report.completed, report.failed), (0, 1));
    system.advance(HOUR - Duration::from_millis(1)).await?;
    let report =
        system.drain(system.worker().durable_subscribe("/mail"), |jobs| jobs.run(send)).await?;
    assert_eq!((report.completed, report.failed), (0, 0), "a millisecond is missing");
    system.advance(Duration::from_millis(1)).await?;
    let report =
        system.drain(system.worker().durable_subscribe("/mail"), |jobs| jobs.run(send)).await?;
    assert_eq!((report.completed, report.failed, report.dead.len()), (1, 0, 0));
    assert!(began.elapsed() < HOUR / 60, "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn delayed_jobs_run_only_when_the_clock_is_moved() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let now = system.now();
    let (mut after, mut at) = (job("/a", "x"), job("/b", "x"));
    after.options.due = Due::After(60_000);
    at.options.due = Due::At(system.now_ms() + 90_000);
    enqueue(&system, after).await?;
    enqueue(&system, at).await?;
    assert_eq!(completed(&system).await?, 0);
    assert_eq!(system.now(), now);
    system.advance(60 * SECOND).await?;
    assert_eq!(completed(&system).await?, 1);
    system.advance(30 * SECOND).await?;
    assert_eq!(completed(&system).await?, 1);
    assert_eq!(system.now(), now + 90 * SECOND);
    let machine = SystemTime::now();
    assert!(system.now() > machine, "only the test moves it");
    Ok(())
}

#[tokio::test]
async fn a_drain_reports_jobs_that_died() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let mut job = job("/mail", "hello");
    job.options.max_attempts = Some(3);
    job.options.backoff = Some(Backoff::Fixed(0));
    let receipt = enqueue(&system, job).await?;
    enqueue(&system, self::job("/other", "left alone")).await?;
    let report =
        system.drain(system.worker().durable_subscribe("/mail"), |jobs| jobs.run(fails)).await?;
    assert_eq!((report.completed, report.failed), (0, 3), "retries that are due at once are run");
    let [dead] = &report.dead[..] else { panic!("{report:?}") };
    assert_eq!(
        (dead.id, dead.death, dead.attempt),
        (receipt.job.id, Some(DeathReason::AttemptsExhausted), 3)
    );
    assert_eq!(dead.error.as_ref().map(|error| error.kind.as_str()), Some("LineDead"));

    let again =
        system.drain(system.worker().durable_subscribe("/mail"), |jobs| jobs.run(fails)).await?;
    assert!(again.dead.is_empty(), "it died in an earlier drain");
    Ok(())
}

#[tokio::test]
async fn a_snoozed_job_returns_with_its_attempt() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    enqueue(&system, job("/mail", "hello")).await?;
    let later = Arc::new(AtomicBool::new(false));
    let snooze = |later: Arc<AtomicBool>| {
        move |_: Job<String>, ctx: JobContext| {
            let is_later = later.load(Ordering::Relaxed);
            async move {
                assert_eq!(ctx.attempt(), 1);
                if is_later { Ok(()) } else { Err(JobFailure::Snooze(2 * HOUR)) }
            }
        }
    };
    let worker = system.worker().durable_subscribe("/mail");
    let report = system.drain(worker, |jobs| jobs.run(snooze(later.clone()))).await?;
    assert_eq!((report.completed, report.snoozed), (0, 1));
    later.store(true, Ordering::Relaxed);
    for (hours, expected) in [(1, 0), (1, 1)] {
        system.advance(hours * HOUR).await?;
        let worker = system.worker().durable_subscribe("/mail");
        let report = system.drain(worker, |jobs| jobs.run(snooze(later.clone()))).await?;
        assert_eq!((report.completed, report.snoozed), (expected, 0));
    }
    Ok(())
}

#[tokio::test]
async fn timers_within_a_move_fire_in_order() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let began = system.now_ms();
    let mut steps = Vec::new();
    for minutes in [30, 10, 20] {
        let mut job = job("/steps", "x");
        job.options.due = Due::After(minutes * 60_000);
        steps.push(enqueue(&system, job).await?);
    }
    // Due after 5 minutes and expired after 15, within the move.
    let mut late = job("/late", "x");
    late.options.due = Due::After(5 * 60_000);
    late.options.expires_at = Some(began + 15 * 60_000);
    let late = enqueue(&system, late).await?;
    let mut feed = system.queues().feed(Glob::new("/steps")?, FeedFrom::Now);
    assert!(matches!(feed.next().await.map(|item| item.update), Some(FeedUpdate::Follows { .. })));
    system.advance(HOUR).await?;
    let mut came_due = Vec::new();
    while came_due.len() < 3 {
        let item = within(feed.next()).await?.expect("the feed continues");
        if let FeedUpdate::Changes(changes) = item.update {
            let due = changes.events.iter().filter(|event| event.change == JobChange::CameDue);
            came_due.extend(due.map(|event| ((event.at - began) / 60_000, event.job)));
        }
    }
    let [third, first, second] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(came_due, [(10, first.job.id), (20, second.job.id), (30, third.job.id)]);
    let late = system.queues().job(late.job).await?.job;
    assert_eq!((late.state, late.ended_at), (JobState::Expired, Some(began + 15 * 60_000)));
    Ok(())
}

/// A handler that reports its start, then waits for a permit or its cancellation.
struct GatedHandler {
    began: mpsc::UnboundedSender<u16>,
    go: Arc<tokio::sync::Semaphore>,
}

impl GatedHandler {
    async fn run(&self, ctx: &JobContext) -> Result<(), JobFailure> {
        let _ = self.began.send(ctx.attempt());
        tokio::select! {
            biased;
            reason = ctx.cancelled() => Err(JobFailure::retry(reason).kind(match reason {
                CancelReason::LeaseLost => "LeaseLost",
                CancelReason::TimedOut => "TimedOut",
                _ => "Other",
            })),
            permit = self.go.acquire() => {
                permit.map(|permit| permit.forget()).map_err(JobFailure::retry)
            }
        }
    }
}

#[tokio::test]
async fn moves_shorter_than_the_lease_keep_it() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let receipt = enqueue(&system, job("/slow", "x")).await?;
    let (began, mut begun) = mpsc::unbounded_channel();
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let waits = Arc::new(GatedHandler { began, go: go.clone() });
    let subscription = system.worker().durable_subscribe("/slow");
    let handle = subscription.shutdown_handle();
    let running = tokio::spawn(subscription.run(move |_: Job<String>, ctx: JobContext| {
        let waits = waits.clone();
        async move { waits.run(&ctx).await }
    }));
    assert_eq!(within(begun.recv()).await?, Some(1));
    // Ten moves of 29 s, just below the lease of 30 s: the worker renews after each.
    for _ in 0..10 {
        system.advance(29 * SECOND).await?;
    }
    let info = system.queues().job(receipt.job).await?.job;
    assert_eq!((info.state, info.attempt), (JobState::Running, 1));
    system.advance(30 * SECOND).await?;
    assert_eq!(
        within(begun.recv()).await?,
        Some(2),
        "the attempt is used up and the handler cancelled"
    );
    go.add_permits(1);
    let end = system.producer().wait(&receipt, 30 * SECOND).await?;
    assert_eq!(end, JobEnd::Completed { result: None });
    handle.drain();
    let report = running.await??;
    assert_eq!((report.completed, report.leases_revoked), (1, 1));
    Ok(())
}

#[tokio::test]
async fn run_timeout_ends_an_attempt_before_its_lease() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let mut job = job("/slow", "x");
    job.options.lease_ms = Some(12 * 3_600_000);
    job.options.run_timeout_ms = Some(3_600_000);
    job.options.max_attempts = Some(1);
    let receipt = enqueue(&system, job).await?;
    let (began, mut begun) = mpsc::unbounded_channel();
    let waits = Arc::new(GatedHandler { began, go: Arc::new(tokio::sync::Semaphore::new(0)) });
    let _running = tokio::spawn(system.worker().durable_subscribe("/slow").run(
        move |_: Job<String>, ctx: JobContext| {
            let waits = waits.clone();
            async move { waits.run(&ctx).await }
        },
    ));
    assert_eq!(within(begun.recv()).await?, Some(1));
    system.advance(HOUR - SECOND).await?;
    let info = system.queues().job(receipt.job).await?.job;
    assert_eq!(info.state, JobState::Running);
    system.advance(SECOND).await?;
    let info = system.queues().job(receipt.job).await?.job;
    assert_eq!((info.state, info.death), (JobState::Dead, Some(DeathReason::TimedOut)));
    Ok(())
}

#[tokio::test]
async fn a_drain_leaves_jobs_that_a_rate_limit_holds_back() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let rate = Some(JobRate { units: 1, per_ms: 1_000, burst: 1 });
    let (name, pattern, scope) = ("slow".to_owned(), Glob::new("/api")?, LimitScope::Queue);
    let limit = JobLimit { name, pattern, scope, concurrency: None, rate };
    system.queues().set_limit(limit).await?;
    for payload in ["1", "2", "3"] {
        enqueue(&system, job("/api", payload)).await?;
    }
    for _ in 0..3 {
        assert_eq!(completed(&system).await?, 1);
        assert_eq!(completed(&system).await?, 0, "not before the clock is moved");
        system.advance(SECOND).await?;
    }
    Ok(())
}

#[tokio::test]
async fn jobs_enqueued_by_handlers_run_in_the_same_drain() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    enqueue(&system, job("/tree", "3")).await?;
    let producer = system.producer();
    let split = move |parent: Job<String>, _: JobContext| {
        let producer = producer.clone();
        async move {
            let depth: u32 = parent.payload.parse()?;
            for _ in 0..depth {
                let child = (depth - 1).to_string();
                producer.enqueue(new_job(parent.path.clone(), child)).await?;
            }
            Ok(())
        }
    };
    let worker = system.worker().durable_subscribe("/tree");
    let report = system.drain(worker, |jobs| jobs.run(split)).await?;
    assert_eq!(report.completed, 1 + 3 + 3 * 2 + 3 * 2);
    Ok(())
}

#[tokio::test]
async fn a_drain_runs_only_the_workers_queues() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    for path in ["/urgent", "/bulk", "/other", "/paused"] {
        enqueue(&system, job(path, "x")).await?;
    }
    system.queues().pause(Glob::new("/paused")?).await?;
    let worker =
        system.worker().durable_subscribe(QueuePatterns::strict(["/urgent", "/bulk", "/paused"]));
    let blocks = |_: Job<String>, _: JobContext| Ok(());
    let report = system.drain(worker, |jobs| jobs.run_blocking(blocks)).await?;
    assert_eq!(report.completed, 2);
    let layered = system.worker().durable_subscribe("/other");
    let layered = layered.layer(tower::timeout::TimeoutLayer::new(30 * SECOND));
    assert_eq!(system.drain(layered, |jobs| jobs.run(done)).await?.completed, 1);
    Ok(())
}

#[tokio::test]
async fn a_drain_that_cannot_end_returns_an_error() -> anyhow::Result<()> {
    let system = TestSystem::start().await?.drain_timeout(Duration::from_millis(200));
    enqueue(&system, job("/slow", "x")).await?;
    let hangs = |_: Job<String>, _: JobContext| std::future::pending::<Result<(), JobFailure>>();
    let worker = system.worker().durable_subscribe("/slow");
    let stuck = system.drain(worker, |jobs| jobs.run(hangs)).await;
    assert!(matches!(stuck, Err(DrainError::Stuck { ready: 0, running: 1, .. })), "{stuck:?}");

    let worker = system.worker().durable_subscribe("/slow");
    worker.shutdown_handle().stop_now();
    let stopped = system.drain(worker, |jobs| jobs.run(hangs)).await;
    assert!(matches!(stopped, Err(DrainError::Stopped { .. })), "{stopped:?}");

    let nothing =
        system.drain(system.worker().durable_subscribe("slow"), |jobs| jobs.run(done)).await;
    assert!(matches!(nothing, Err(DrainError::Run(RunError::Patterns(_)))), "{nothing:?}");
    // The hanging worker was dropped: its lease ends after the grace period of a lost link.
    system.advance(5 * SECOND).await?;
    system.advance(HOUR).await?;
    assert_eq!(completed(&system).await?, 1);
    Ok(())
}

#[tokio::test]
async fn moving_the_clock_a_day_over_10000_jobs_is_fast() -> anyhow::Result<()> {
    let system = TestSystem::start_with(|options| options.durability = Durability::Fsync).await?;
    let day_ms = 24 * 3_600_000;
    let jobs = (0..10_000u64).map(|n| {
        let mut job = job("/spread", "x");
        job.options.due = Due::After(n * day_ms / 10_000);
        job
    });
    let receipts = system.producer().enqueue_all(jobs).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
    let queues = system.queues();
    queues.status().await?;
    let began = Instant::now();
    system.advance(24 * HOUR).await?;
    let took = began.elapsed();
    // All commands are durable by now, and none counts the moved day as its age.
    let status = queues.status().await?;
    assert_eq!(status.answers[0].answer.oldest_uncommitted_ms, 0);
    println!("a day with 10,000 jobs took {took:?}");
    let filter = Filter::of(Glob::new("/spread")?).in_state(JobState::Ready);
    let stats = system.queues().stats(filter.pattern).await?;
    assert_eq!(stats.answers[0].answer[0].counts.ready, 10_000);
    assert!(took < 10 * SECOND, "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_test_clock_serves_exactly_one_publisher() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    let folder = tempfile::tempdir()?;
    let clock = TestClock::new();
    let options =
        PublisherOptions { clock: Some(clock.clone()), ..PublisherOptions::new(folder.path()) };
    let publisher = Publisher::open(options.clone()).await?;
    let second = Publisher::open(options).await;
    assert!(matches!(second, Err(OpenError::ClockInUse)));
    drop(publisher);
    assert_eq!(clock.advance(SECOND).await, Err(ClockUnused));

    let refused = TestSystem::start_with(|options| options.name = String::new()).await;
    assert!(matches!(
        refused,
        Err(TestStartError::System(longshore::embedded::StartError::Publisher(
            OpenError::BadName(NameError(0))
        )))
    ));
    system.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_stopped_or_dropped_system_leaves_nothing_behind() -> anyhow::Result<()> {
    let mut folders = Vec::new();
    let system = TestSystem::start_with(|options| folders.push(options.data.clone())).await?;
    let address = system.publisher().addresses[0].to_string();
    assert!(folders[0].is_dir());
    assert!(tokio::net::TcpStream::connect(&address).await.is_ok());
    system.stop().await;
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    assert!(!folders[0].exists());

    let system = TestSystem::start_with(|options| folders.push(options.data.clone())).await?;
    let address = system.publisher().addresses[0].to_string();
    drop(system);
    // It stops in its own task, so poll.
    let ended = async {
        while tokio::net::TcpStream::connect(&address).await.is_ok() || folders[1].exists() {
            tokio::task::yield_now().await;
        }
    };
    within(ended).await?;
    Ok(())
}

#[tokio::test]
async fn jobs_with_an_order_key_go_to_free_handlers_only() -> anyhow::Result<()> {
    let system = TestSystem::start().await?;
    for key in ["a", "b", "c"] {
        enqueue(&system, job("/mail", key).order_key(key)).await?;
    }
    let (begin, mut begins) = mpsc::unbounded_channel();
    let release = Arc::new(tokio::sync::Notify::new());
    let worker = || {
        let (begin, release) = (begin.clone(), release.clone());
        let worker = system.worker().durable_subscribe("/mail").concurrency(1).prefetch(8);
        let handle = worker.shutdown_handle();
        let run = tokio::spawn(worker.run(move |job: Job<String>, _: JobContext| {
            let (begin, release) = (begin.clone(), release.clone());
            async move {
                let is_first = job.payload == "a";
                begin.send(job.payload).ok();
                if is_first {
                    release.notified().await;
                }
                Ok(())
            }
        }));
        (handle, run)
    };
    let (first, first_run) = worker();
    assert_eq!(within(begins.recv()).await?.as_deref(), Some("a"));
    // The first worker has credit for all of them, and one handler, which is in use.
    let (second, second_run) = worker();
    assert_eq!(within(begins.recv()).await?.as_deref(), Some("b"));
    assert_eq!(within(begins.recv()).await?.as_deref(), Some("c"));
    release.notify_one();
    first.drain();
    second.drain();
    within(first_run).await???;
    within(second_run).await???;
    Ok(())
}
