//! Workers against scripted publishers, over real links. No test sleeps: every scenario waits for
//! an expected message.

mod blocked;
mod checkpoints;
mod fake_publisher;
mod layers;
mod progress;
mod quiet;
mod silent_publisher;
mod sources;
mod traces;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{Delivery, FromPublisher, ToPublisher, Tokens, Verdict};
use longshore_protocol::{Incarnation, PublisherInfo, Revoked, SessionId, SettleOutcome, Token};
use longshore_resolver::PublisherSet;
use longshore_transport::LinkOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::work::handler::attempts::ServiceAttempts;
use crate::work::link_thread::LinkThread;
use crate::work::publisher_watches::{PublisherSource, PublisherWatches};
use crate::work::session::WorkerSession;
use crate::work::state::subscriptions::subscribes;
use crate::work::supervisor::{self, RunConfig};
use crate::work::worker::run_until_dead;
use crate::{
    Blocking, CancelReason, FromPayload, InPlace, Job, JobContext, JobFailure, JobOutput,
    JobService, QueuePatterns, RunError, ShutdownHandle, SubscriptionStatus, WorkerReport,
};
use fake_publisher::{FakeLink, FakePublisher, delivery, entry, verdicts, within};

/// A worker under test.
struct RunningWorker {
    session: Arc<WorkerSession>,
    handle: ShutdownHandle,
    /// One set for each pattern.
    sets: Vec<watch::Sender<Vec<PublisherInfo>>>,
    run: JoinHandle<WorkerReport>,
}

struct TestSource(watch::Receiver<Vec<PublisherInfo>>);

impl PublisherSource for TestSource {
    async fn changed(&mut self) -> PublisherSet {
        if self.0.changed().await.is_err() {
            // The resolver is down for good.
            std::future::pending::<()>().await;
        }
        PublisherSet {
            replica: "test:1".into(),
            incarnation: Incarnation::default(),
            revision: 1,
            complete: true,
            publishers: self.0.borrow_and_update().clone(),
        }
    }
}

#[derive(Clone, Copy)]
struct Limits {
    concurrency: usize,
    prefetch: usize,
    grace: Duration,
    cancel_grace: Duration,
}

const ONE_AT_A_TIME: Limits = Limits {
    concurrency: 1,
    prefetch: 0,
    grace: Duration::from_secs(25),
    cancel_grace: Duration::from_secs(10),
};

fn start_worker(
    limits: Limits,
    publishers: &[&FakePublisher],
    handler: impl JobService,
) -> RunningWorker {
    start_worker_on(limits, "/jobs/**".into(), &[publishers], handler)
}

/// A worker with one publisher that has all of its credits.
async fn start_linked_worker(
    limits: Limits,
    handler: impl JobService,
) -> (FakePublisher, RunningWorker, FakeLink) {
    let mut publisher = FakePublisher::start(1).await;
    let worker = start_worker(limits, &[&publisher], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.granted((limits.concurrency + limits.prefetch) as u32).await;
    (publisher, worker, link)
}

/// A worker that takes from several patterns, with the publishers of each.
fn start_worker_on(
    limits: Limits,
    take: QueuePatterns,
    found: &[&[&FakePublisher]],
    handler: impl JobService,
) -> RunningWorker {
    traces::keep_spans_enabled();
    let bound = limits.concurrency + limits.prefetch;
    let grace = limits.cancel_grace;
    let session = WorkerSession::new(limits.concurrency, bound, Vec::new(), grace, 7);
    let handle = ShutdownHandle::new();
    let sets: Vec<_> = found.iter().map(|_| watch::Sender::new(Vec::new())).collect();
    let watches = sets.iter().map(|set| TestSource(set.subscribe())).collect();
    let config = RunConfig {
        name: "worker".into(),
        session_id: SessionId([5; 16]),
        link: LinkOptions::default(),
        link_thread: LinkThread::start().unwrap(),
        subscriptions: subscribes(&take.into_sources().unwrap(), &[], limits.concurrency),
        concurrency: limits.concurrency,
        grace: limits.grace,
        cancel_grace: limits.cancel_grace,
        handle: handle.clone(),
        shutdown: None,
    };
    let (watches, attempts) = (PublisherWatches::new(watches), ServiceAttempts::new(handler));
    let run = supervisor::run(session.clone(), config, watches, Box::new(attempts));
    let run = tokio::spawn(run);
    for (set, publishers) in sets.iter().zip(found) {
        set.send_replace(publishers.iter().map(|publisher| publisher.info()).collect());
    }
    RunningWorker { session, handle, sets, run }
}

impl RunningWorker {
    async fn report(self) -> WorkerReport {
        within(self.run).await.unwrap()
    }

    async fn until(&self, reached: impl Fn(&WorkerReport) -> bool) {
        within(async {
            while !reached(&self.session.stats()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

fn handler<T, O, F, Fut>(handler: F) -> impl JobService
where
    T: FromPayload,
    O: JobOutput,
    F: Fn(Job<T>, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, JobFailure>> + Send + 'static,
{
    InPlace::new(handler)
}

/// A handler that reports each job's context, and then waits for a permit.
fn gated_handler()
-> (impl JobService, mpsc::UnboundedReceiver<JobContext>, Arc<tokio::sync::Semaphore>) {
    let (started_tx, started_rx) = mpsc::unbounded_channel();
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let permits = go.clone();
    let handler = handler(move |_: Job<Bytes>, ctx: JobContext| {
        let _ = started_tx.send(ctx);
        let permits = permits.clone();
        async move {
            permits.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    (handler, started_rx, go)
}

#[tokio::test]
async fn a_job_is_announced_run_and_settled_with_its_result() {
    let mut publisher = FakePublisher::start(1).await;
    let worker = start_worker(
        ONE_AT_A_TIME,
        &[&publisher],
        handler(|job: Job<String>, ctx: JobContext| async move {
            assert_eq!((ctx.token().0, ctx.attempt(), job.path.as_str()), (11, 1, "/jobs/x"));
            Ok(job.payload.to_uppercase())
        }),
    );
    let (mut link, resumed) = publisher.attach(1, &[]).await;
    assert!(resumed.is_empty());
    link.granted(1).await;
    link.deliver(&[(11, "abc")]);
    assert_eq!(link.started().await, [11]);
    let batch = link.settle().await;
    assert_eq!(batch.sequence, 1);
    let [(11, Verdict::Complete(Some(span)))] = verdicts(&batch)[..] else { panic!("{batch:?}") };
    assert_eq!(&batch.body()[span.at as usize..][..span.length as usize], b"ABC");
    link.accept(&batch);
    link.granted(2).await;
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.jobs_held, report.unanswered), (1, 0, 0));
}

#[tokio::test]
async fn the_first_jobs_are_announced_with_a_handler_task_for_each() {
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 2, prefetch: 3, ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]);
    assert_eq!(link.started().await, [1, 2]);
    within(started_rx.recv()).await.unwrap();
    within(started_rx.recv()).await.unwrap();
    assert!(!link.has_unread(|message| matches!(message, ToPublisher::Started(_))));
    go.add_permits(1);
    // By the time that the handlers took, others may be announced with it.
    assert_eq!(link.started().await[0], 3);
    drop(worker);
}

#[tokio::test]
async fn a_handlers_result_decides_the_settle() {
    let mut publisher = FakePublisher::start(1).await;
    let worker = start_worker(
        ONE_AT_A_TIME,
        &[&publisher],
        handler(|job: Job<String>, _| async move {
            match job.payload.as_str() {
                "retry" => Err("x".parse::<u32>().unwrap_err())?,
                "bury" => Err(JobFailure::bury("never")),
                "snooze" => Err(JobFailure::Snooze(Duration::from_secs(2))),
                "release" => Err(JobFailure::Release),
                "panic" => panic!("on purpose"),
                "large" => Ok(Some(vec![0u8; 1024 * 1024 + 1])),
                _ => Ok(None),
            }
        }),
    );
    let (mut link, _) = publisher.attach(1, &[]).await;
    let received = ["retry", "bury", "snooze", "release", "panic", "large", "fine"];
    for (token, payload) in received.into_iter().enumerate() {
        link.granted(token as u32 + 1).await;
        link.deliver(&[(token as u64, payload)]);
        let batch = link.settle().await;
        let [(_, verdict)] = verdicts(&batch)[..] else { panic!("{batch:?}") };
        let text = String::from_utf8_lossy(batch.body()).into_owned();
        match payload {
            "retry" => {
                assert!(matches!(verdict, Verdict::Fail(_)) && text.contains("ParseIntError"))
            }
            "bury" => assert!(matches!(verdict, Verdict::Bury(_)) && text.contains("never")),
            "snooze" => assert_eq!(verdict, Verdict::Snooze(2_000)),
            "release" => assert_eq!(verdict, Verdict::Release),
            "panic" => assert!(matches!(verdict, Verdict::Fail(_)) && text.contains("on purpose")),
            "large" => {
                assert!(matches!(verdict, Verdict::Bury(_)) && text.contains("ResultTooLarge"))
            }
            _ => assert_eq!(verdict, Verdict::Complete(None)),
        }
        link.accept(&batch);
    }
    link.granted(received.len() as u32 + 1).await;
    worker.handle.drain();
    let report = worker.report().await;
    let counts = (report.completed, report.failed, report.buried, report.snoozed, report.released);
    assert_eq!(counts, (1, 2, 2, 1, 1));
    assert_eq!(report.panicked, 1);
}

#[tokio::test]
async fn undecodable_payloads_are_buried_and_damaged_ones_fail() {
    let (_publisher, worker, mut link) =
        start_linked_worker(ONE_AT_A_TIME, handler(|_: Job<Vec<u32>>, _| async move { Ok(()) }))
            .await;
    link.deliver(&[(1, "not json")]);
    let batch = link.settle().await;
    assert!(matches!(verdicts(&batch)[..], [(1, Verdict::Bury(_))]));
    assert!(String::from_utf8_lossy(batch.body()).contains("PayloadNotDecoded"));
    link.accept(&batch);
    link.granted(2).await;
    let mut damaged = entry("[1]").to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    link.deliver_entries([(2, damaged.into())], 30_000);
    let batch = link.settle().await;
    assert!(matches!(verdicts(&batch)[..], [(2, Verdict::Fail(_))]));
    assert!(String::from_utf8_lossy(batch.body()).contains("PayloadDamaged"));
    link.accept(&batch);
    worker.until(|stats| stats.damaged == 1 && stats.failed == 1 && stats.buried == 1).await;
}

#[tokio::test]
async fn a_new_link_resumes_exactly_the_unsettled_tokens() {
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 1, prefetch: 3, ..ONE_AT_A_TIME };
    let (mut publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "answered"), (2, "settled"), (3, "running")]);
    // Not at its first delivery, so it is not reported as started before it begins.
    link.deliver_all([Delivery { deliveries: 2, ..delivery(4) }]);
    go.add_permits(1);
    let batch = link.settle().await;
    link.accept(&batch);
    go.add_permits(1);
    let lost = link.settle().await;
    for token in [1, 2, 3] {
        assert_eq!(within(started_rx.recv()).await.unwrap().token().0, token);
    }
    worker.until(|stats| stats.completed == 1).await;
    drop(link);

    let (mut link, resumed) = publisher.attach(3, &[]).await;
    assert_eq!(resumed, [2, 3, 4]);
    let started = link.find(|message| match message {
        ToPublisher::Started(started) => Some(started.clone()),
        _ => None,
    });
    let started = within(started).await;
    assert_eq!(started.tokens, Tokens(vec![Token(3)]), "running attempts are reported again");
    assert_eq!(started.running_ms.len(), 1, "with their durations");
    let again = link.settle().await;
    assert_eq!(again, lost, "the same number, the same bytes");
    link.accept(&again);
    worker.until(|stats| stats.completed == 2).await;
    go.add_permits(2);
    let mut rest = Vec::new();
    let mut sequence = 2;
    // In one batch or in two, depending on timing.
    while rest.len() < 2 {
        let batch = link.settle().await;
        sequence += 1;
        assert_eq!(batch.sequence, sequence);
        rest.extend(verdicts(&batch).into_iter().map(|(token, _)| token));
        link.accept(&batch);
    }
    assert_eq!(rest, [3, 4]);
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.stale_refused, report.leases_revoked), (4, 0, 0));
}

#[tokio::test]
async fn a_prefetched_job_does_not_start_after_the_grace() {
    let mut publisher = FakePublisher::start(1).await;
    publisher.grace_ms = 100;
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 1, prefetch: 2, ..ONE_AT_A_TIME };
    let worker = start_worker(limits, &[&publisher], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.granted(3).await;
    link.deliver(&[(1, "running"), (2, "gone meanwhile"), (3, "resumed")]);
    let ctx = within(started_rx.recv()).await.unwrap();
    drop(link);
    within(async {
        while !ctx.remaining().is_zero() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!ctx.is_cancelled(), "its lease runs on, and the publisher may be back before it ends");
    go.add_permits(1);
    worker.until(|stats| stats.running == 0).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(started_rx.try_recv().is_err(), "the handler task is idle, and no job starts");
    let (mut link, resumed) = publisher.attach(1, &[2]).await;
    assert_eq!(resumed, [1, 2, 3]);
    assert_eq!(link.started().await, [3]);
    assert_eq!(within(started_rx.recv()).await.unwrap().token().0, 3);
    drop(worker);
}

#[tokio::test]
async fn a_token_lost_over_a_reconnect_cancels_its_context() {
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 1, prefetch: 1, ..ONE_AT_A_TIME };
    let (mut publisher, worker, link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "running"), (2, "waiting")]);
    let ctx = within(started_rx.recv()).await.unwrap();
    drop(link);
    let (mut link, resumed) = publisher.attach(1, &[1, 2]).await;
    assert_eq!(resumed, [1, 2]);
    assert_eq!(within(ctx.cancelled()).await, CancelReason::LeaseLost);
    go.add_permits(2);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Complete(None))]);
    link.answer(&batch, SettleOutcome::StaleToken);
    worker.until(|stats| stats.stale_refused == 1).await;
    link.granted(2).await;
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.leases_revoked), (0, 2));
    assert!(started_rx.try_recv().is_err(), "the one that waited never ran");
}

#[tokio::test]
async fn a_cancelled_jobs_failure_is_not_sent() {
    let (started_tx, mut started_rx) = mpsc::unbounded_channel();
    let (_publisher, worker, mut link) = start_linked_worker(
        ONE_AT_A_TIME,
        handler(move |_: Job<Bytes>, ctx: JobContext| {
            let started_tx = started_tx.clone();
            async move {
                let _ = started_tx.send(ctx.token().0);
                if ctx.token().0 == 1 {
                    let reason = ctx.cancelled().await;
                    assert_eq!(reason, CancelReason::Cancelled);
                    return Err(JobFailure::retry(reason));
                }
                Ok(())
            }
        }),
    )
    .await;
    link.deliver(&[(1, "x")]);
    within(started_rx.recv()).await.unwrap();
    link.revoke(Revoked::Cancelled, 1);
    link.granted(2).await;
    link.deliver(&[(2, "y")]);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(2, Verdict::Complete(None))]);
    drop(worker);
}

#[tokio::test]
async fn unanswered_renewals_cancel_a_running_job() {
    let (handler, mut started_rx, _go) = gated_handler();
    let (_publisher, worker, mut link) = start_linked_worker(ONE_AT_A_TIME, handler).await;
    link.deliver_with_lease(1, 300);
    let ctx = within(started_rx.recv()).await.unwrap();
    let first_deadline = ctx.deadline();
    assert_eq!(link.renewal().await, [1]);
    link.send(FromPublisher::Renewed { stale: Tokens::default() });
    assert_eq!(link.renewal().await, [1]);
    assert!(ctx.deadline() > first_deadline && !ctx.is_cancelled());
    assert_eq!(within(ctx.cancelled()).await, CancelReason::LeaseLost);
    worker.until(|stats| stats.leases_revoked == 1).await;
}

#[tokio::test]
async fn a_drain_finishes_running_jobs_and_releases_waiting_ones() {
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 1, prefetch: 2, ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "running"), (2, "waiting")]);
    let ctx = within(started_rx.recv()).await.unwrap();
    worker.handle.drain();
    let ended_first = link.find(|message| match message {
        ToPublisher::Unsubscribe(_) => Some(true),
        ToPublisher::Settle(_) => Some(false),
        _ => None,
    });
    assert!(ended_first.await, "a release before it would bring the job again");
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(2, Verdict::Release)]);
    link.accept(&batch);
    link.deliver(&[(3, "arrived during the drain")]);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(3, Verdict::Release)]);
    link.accept(&batch);
    assert!(!ctx.is_cancelled(), "within its grace");
    go.add_permits(1);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Complete(None))]);
    link.accept(&batch);
    let report = worker.report().await;
    assert_eq!((report.completed, report.released, report.unanswered), (1, 2, 0));
    link.ended().await;
}

#[tokio::test]
async fn a_subscription_dies_with_its_publisher_also_in_a_drain() {
    for revoked in [false, true] {
        let (handler, mut started_rx, _go) = gated_handler();
        let (publisher, worker, mut link) = start_linked_worker(ONE_AT_A_TIME, handler).await;
        link.deliver(&[(1, "long")]);
        let ctx = within(started_rx.recv()).await.unwrap();
        worker.handle.drain();
        link.unsubscribe().await;
        if revoked {
            // The worker holds nothing of this publisher any more, and forgets it with the link.
            link.revoke(Revoked::LeaseLost, 1);
            within(ctx.cancelled()).await;
        }
        drop((publisher, link));
        let RunningWorker { session, run, .. } = worker;
        let end = within(run_until_dead(&session, async { run.await.unwrap() })).await;
        let Err(RunError::Dead(reason)) = end else { panic!("{end:?}") };
        assert!(reason.starts_with("p1: "), "{reason}");
    }
}

#[tokio::test]
async fn a_stuck_handler_is_dropped_before_its_job_is_released() {
    let (started_tx, mut started_rx) = mpsc::unbounded_channel();
    let running = Arc::new(());
    let runs = Arc::downgrade(&running);
    let running = std::sync::Mutex::new(Some(running));
    let handler = handler(move |_: Job<Bytes>, _: JobContext| {
        let attempt = running.lock().unwrap().take();
        let _ = started_tx.send(());
        async move {
            std::future::pending::<()>().await;
            drop(attempt);
            Ok(())
        }
    });
    let cancel_grace = Duration::from_millis(50);
    let limits = Limits { grace: Duration::ZERO, cancel_grace, ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "deaf")]);
    within(started_rx.recv()).await.unwrap();
    worker.handle.drain();
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Release)]);
    assert_eq!(runs.strong_count(), 0, "from now on another worker may run it");
    link.accept(&batch);
    assert_eq!(worker.report().await.released, 1);
}

#[tokio::test]
async fn an_unlimited_grace_lets_handlers_finish() {
    let (handler, mut started_rx, go) = gated_handler();
    let for_ever = Limits { grace: Duration::MAX, cancel_grace: Duration::MAX, ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(for_ever, handler).await;
    link.deliver(&[(1, "long")]);
    within(started_rx.recv()).await.unwrap();
    worker.handle.drain();
    link.unsubscribe().await;
    go.add_permits(1);
    let batch = link.settle().await;
    link.accept(&batch);
    assert_eq!(worker.report().await.completed, 1);
}

#[tokio::test]
async fn a_new_link_is_granted_exactly_the_bound() {
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 2, prefetch: 0, ..ONE_AT_A_TIME };
    let (mut publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "a"), (2, "b")]);
    for _ in 0..2 {
        within(started_rx.recv()).await.unwrap();
    }
    go.add_permits(1);
    link.settle().await;
    go.add_permits(1);
    // Its settle waits for the answer to the first.
    worker.until(|stats| stats.running == 0).await;
    drop(link);
    let (mut link, resumed) = publisher.attach(1, &[]).await;
    assert_eq!(resumed, [1, 2]);
    link.granted(2).await;
    assert_eq!(link.credits, 2);
    drop(worker);
}

#[tokio::test]
async fn a_cancelled_handler_may_still_complete_its_job() {
    let (started_tx, mut started_rx) = mpsc::unbounded_channel();
    let handler = handler(move |_: Job<Bytes>, ctx: JobContext| {
        let _ = started_tx.send(());
        async move {
            assert_eq!(ctx.cancelled().await, CancelReason::Shutdown);
            Ok("as far as it came")
        }
    });
    let cancel_grace = Duration::from_secs(25);
    let (_publisher, worker, mut link) = start_linked_worker(
        Limits { grace: Duration::ZERO, cancel_grace, ..ONE_AT_A_TIME },
        handler,
    )
    .await;
    link.deliver(&[(1, "x")]);
    within(started_rx.recv()).await.unwrap();
    worker.handle.drain();
    let batch = link.settle().await;
    assert!(matches!(verdicts(&batch)[..], [(1, Verdict::Complete(Some(_)))]));
    link.accept(&batch);
    assert_eq!(worker.report().await.completed, 1);
}

#[tokio::test]
async fn stop_now_waits_for_nothing() {
    let (handler, mut started_rx, _go) = gated_handler();
    let (_publisher, worker, link) = start_linked_worker(ONE_AT_A_TIME, handler).await;
    link.deliver(&[(1, "stuck")]);
    within(started_rx.recv()).await.unwrap();
    worker.handle.drain();
    worker.handle.stop_now();
    let report = worker.report().await;
    assert_eq!(report.completed, 0);
    link.ended().await;
}

#[tokio::test]
async fn links_survive_a_resolver_that_is_down() {
    let mut first = FakePublisher::start(1).await;
    let mut second = FakePublisher::start(2).await;
    let worker =
        start_worker(ONE_AT_A_TIME, &[&first], handler(|_: Job<Bytes>, _| async move { Ok(()) }));
    let (first_link, _) = first.attach(1, &[]).await;
    worker.sets[0].send_replace(vec![first.info(), second.info()]);
    let (mut second_link, _) = second.attach(1, &[]).await;
    let RunningWorker { session, handle: _handle, sets, run } = worker;
    drop(sets);
    drop(first_link);
    let (mut first_link, _) = first.attach(1, &[]).await;
    first_link.waiting(1);
    assert_eq!(second_link.recall().await, 1, "the credit moved there when the link was lost");
    second_link.returned(1);
    first_link.granted(1).await;
    first_link.deliver(&[(1, "x")]);
    let batch = first_link.settle().await;
    first_link.accept(&batch);
    within(async {
        while session.stats().completed == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let states = session.publishers().borrow().clone();
    assert_eq!(states.len(), 2);
    assert!(states.iter().all(|state| matches!(state.status, SubscriptionStatus::Alive { .. })));
    run.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_handlers_run_concurrently_and_panics_are_caught() {
    let both = Arc::new(std::sync::Barrier::new(2));
    let meet = both.clone();
    let limits = Limits { concurrency: 2, prefetch: 0, ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(
        limits,
        Blocking::new(move |job: Job<String>, _: JobContext| {
            meet.wait();
            if job.payload == "panic" {
                panic!("on purpose");
            }
            Ok(job.payload)
        }),
    )
    .await;
    link.deliver(&[(1, "fine"), (2, "panic")]);
    worker.until(|stats| stats.panicked == 1).await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let batch = link.settle().await;
        seen.extend(verdicts(&batch));
        link.accept(&batch);
    }
    seen.sort_by_key(|(token, _)| *token);
    assert!(matches!(seen[..], [(1, Verdict::Complete(Some(_))), (2, Verdict::Fail(_))]));
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.failed), (1, 1));
}
