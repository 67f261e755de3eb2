//! Enqueueing iterators of jobs: order, exactly one result, batch sizes and bounds.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use crate::fake::{BatchBehavior, FakePublisher};
use futures_core::Stream;
use longshore_producer::{EnqueueError, Producer, new_job};
use longshore_protocol::{JobId, NewJob, Path, Refusal};
use proptest::prelude::*;
use tokio::time::{Instant, timeout};

fn job_at(path: &str, payload: impl Into<bytes::Bytes>) -> NewJob {
    new_job(Path::new(path).expect("a path"), payload)
}

fn job(payload: &'static str) -> NewJob {
    job_at("/jobs/mail", payload)
}

fn to(publisher: &FakePublisher) -> Producer {
    Producer::to_publishers([publisher.info.clone()])
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Good,
    /// Refused by the publisher.
    Refused,
    /// Refused by the producer.
    Invalid,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![8 => Just(Kind::Good), 1 => Just(Kind::Refused), 1 => Just(Kind::Invalid)]
}

fn behavior() -> impl Strategy<Value = BatchBehavior> {
    prop_oneof![
        4 => Just(BatchBehavior::Answer),
        1 => Just(BatchBehavior::TakeAndBreak),
        1 => Just(BatchBehavior::Break),
        1 => (0..5u64).prop_map(|ms| BatchBehavior::AnswerAfter(Duration::from_millis(ms))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However batches and links are lost, each job has one result, at its place in the iterator,
    /// and was accepted once; the iterator is read no further than the limit allows.
    #[test]
    fn every_job_has_one_result_in_order(
        kinds in prop::collection::vec(kind(), 0..400),
        script in prop::collection::vec(behavior(), 0..12),
        window in 1..200usize,
        one_by_one in any::<bool>(),
    ) {
        let jobs: Vec<NewJob> = kinds.iter().map(|kind| match kind {
            Kind::Good => job("good"),
            Kind::Refused => job("bad"),
            Kind::Invalid => {
                let mut job = job("good");
                job.options.max_attempts = Some(0);
                job
            }
        }).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let results = runtime.expect("a runtime").block_on(async {
            let publisher = FakePublisher::start(1).await;
            publisher.disk.lock().refuse_payload = Some((b"bad", Refusal::QueueFull));
            publisher.script(script);
            let options = Producer::builder().in_flight_jobs_max(window);
            let producer = options.to_publishers([publisher.info.clone()]);
            // The path is resolved, so that no job is taken ahead of it.
            producer.enqueue(job("first")).await.expect("accepted");
            let taken = Cell::new(0);
            let counted = jobs.iter().cloned().inspect(|_| taken.set(taken.get() + 1));
            let mut all = producer.enqueue_all(counted);
            let results = if one_by_one {
                let mut results = Vec::new();
                loop {
                    let next = std::future::poll_fn(|cx| Pin::new(&mut all).poll_next(cx));
                    let next = timeout(Duration::from_secs(20), next).await.expect("in time");
                    assert!(taken.get() <= results.len() + 1 + window, "{} taken", taken.get());
                    let Some(result) = next else { break };
                    results.push(result);
                }
                results
            } else {
                timeout(Duration::from_secs(20), all).await.expect("in time")
            };
            let mut accepted: Vec<JobId> = publisher.disk.lock().jobs.keys().copied().collect();
            assert!(publisher.has_exactly(&accepted), "each at most once");
            accepted.sort_unstable();
            (results, accepted)
        });
        let (results, accepted) = results;
        prop_assert_eq!(results.len(), jobs.len());
        for (n, ((result, job), kind)) in results.iter().zip(&jobs).zip(&kinds).enumerate() {
            prop_assert_eq!((result.index, result.id), (n as u64, job.id));
            let fits = match (kind, &result.outcome) {
                (Kind::Good, Ok(receipt)) => {
                    receipt.job.id == job.id && accepted.binary_search(&job.id).is_ok()
                }
                (Kind::Refused, Err(EnqueueError::Refused { .. })) => true,
                (Kind::Invalid, Err(EnqueueError::BadOption(_))) => true,
                _ => false,
            };
            prop_assert!(fits, "job {}: {:?}", n, result);
        }
    }
}

#[tokio::test]
async fn batches_are_as_large_as_promised() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&publisher);
    let results = producer.enqueue_all((0..50_000).map(|_| job("x"))).await;
    assert!(results.iter().all(|result| result.outcome.is_ok()));
    // Fewer jobs only after 10 ms in which this task did not run.
    let batches = std::mem::take(&mut publisher.disk.lock().batches);
    assert!(batches.len() <= 60 && batches.iter().all(|&jobs| jobs <= 1_000), "{batches:?}");
    // Two of 100 KiB fit into 256 KiB, three do not.
    let large = producer.enqueue_all((0..40).map(|_| job_at("/jobs/mail", vec![0; 100 * 1024])));
    assert!(large.await.iter().all(|result| result.outcome.is_ok()));
    let batches = &publisher.disk.lock().batches;
    assert!(batches.len() <= 24 && batches.iter().all(|&jobs| jobs <= 2), "{batches:?}");
}

#[tokio::test]
async fn jobs_of_unresolved_paths_wait_together() {
    let timeout_after = Duration::from_millis(300);
    let producer = Producer::builder().answer_timeout(timeout_after).connect("127.0.0.1:1");
    let all = producer.enqueue_all((0..1_000).map(|n| job_at(&format!("/jobs/{}", n % 100), "x")));
    // One after another they would need 30 s.
    let results = timeout(Duration::from_secs(15), all).await.expect("in time");
    assert_eq!(results.len(), 1_000);
    for result in results {
        let error = result.outcome.expect_err("no resolver");
        assert!(matches!(error, EnqueueError::NotSent { .. } | EnqueueError::Resolver { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_result_is_taken_late_waits_for_its_own_route() {
    let wait = Duration::from_millis(300);
    let options = Producer::builder().answer_timeout(wait).in_flight_jobs_max(1);
    let producer = options.connect("127.0.0.1:1");
    let mut all = producer.enqueue_all((0..5).map(|n| job_at(&format!("/jobs/{n}"), "x")));
    let mut waits = Vec::new();
    for pause in [Duration::ZERO, wait / 2, wait, Duration::ZERO] {
        tokio::time::sleep(pause).await;
        let began = Instant::now();
        assert!(all.next().await.expect("a result").outcome.is_err(), "no resolver");
        waits.push(began.elapsed().as_millis() / 100);
    }
    assert_eq!(waits, [3, 0, 3, 0], "the second waited with the first, the fourth with the third");
}

#[tokio::test]
async fn an_atomic_call_is_one_batch() {
    let publisher = FakePublisher::start(1).await;
    let producer = to(&publisher);
    let jobs: Vec<NewJob> = (0..5_000).map(|_| job("x")).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let receipts = producer.enqueue_atomic(jobs).await.expect("accepted");
    assert_eq!(receipts.iter().map(|receipt| receipt.job.id).collect::<Vec<_>>(), ids);
    assert_eq!(publisher.disk.lock().batches, [5_000]);
    let endless = std::iter::repeat_with(|| job("x"));
    let refused = producer.enqueue_atomic(endless).await;
    assert!(matches!(refused, Err(EnqueueError::NotAtomic(_))));
    assert_eq!(producer.enqueue_atomic(Vec::<NewJob>::new()).await, Ok(Vec::new()));
    assert_eq!(publisher.disk.lock().batches.len(), 1);
}
