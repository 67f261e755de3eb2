//! The life of a job end to end: enqueue, delivery to a worker, result. In one process with real
//! sockets and files.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use longshore::{
    BatchOptions, Filter, Glob, Job, JobContext, JobFailure, JobOptions, JobState, JobsQuery,
    NewJob, Path, new_job,
};
use longshore_tests::{Resolver, eventually, start_publisher};

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

fn numbered(queue: &str, numbers: std::ops::Range<u32>) -> Vec<NewJob> {
    numbers.map(|n| new_job(path(queue), n.to_be_bytes().to_vec())).collect()
}

/// How many jobs of the queue have completed.
async fn completed(resolver: &Resolver, queue: &str) -> u64 {
    let stats = resolver.queues().stats(glob(queue)).await.expect("a resolver");
    stats.merged().iter().map(|stat| stat.counts.completed).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_job_reaches_a_worker_once_and_its_result_is_readable() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;

    let mut jobs = numbered("/jobs/double", 0..2_000);
    for job in &mut jobs {
        job.options.keep_result = true;
    }
    let receipts = resolver.producer().enqueue_all(jobs, BatchOptions::default()).await;
    assert_eq!(receipts.len(), 2_000);
    assert!(
        receipts.iter().all(|receipt| receipt.outcome.is_ok()),
        "{:?}",
        receipts.iter().find(|r| r.outcome.is_err())
    );

    let worker =
        resolver.worker().await.durable_subscribe("/jobs/**").concurrency(16).prefetch(200);
    let (handle, runs) = (worker.handle(), Arc::new(AtomicU64::new(0)));
    let counted = runs.clone();
    let running = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            let n = u32::from_be_bytes(job.payload.as_ref().try_into().map_err(JobFailure::bury)?);
            Ok((2 * n).to_string())
        }
    }));
    eventually("2,000 jobs completed", || async {
        completed(&resolver, "/jobs/double").await == 2_000
    })
    .await;
    handle.drain();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.completed, runs.load(Ordering::Relaxed)), (2_000, 2_000));

    let query = JobsQuery {
        filter: Filter::of(glob("/jobs/double")).in_state(JobState::Completed),
        cursor: 0,
        limit: 300,
        full: true,
    };
    let mut pages = resolver.queues().jobs(query).await.unwrap();
    let mut results = BTreeMap::new();
    while let Some(page) = pages.next().await {
        for job in page.jobs {
            let n = u32::from_be_bytes(job.payload.unwrap().as_ref().try_into().unwrap());
            assert_eq!(results.insert(n, job.result.unwrap()), None, "job {n} is listed twice");
        }
    }
    assert!(pages.is_complete());
    assert_eq!(results.len(), 2_000);
    assert!(results.iter().all(|(n, result)| *result == (2 * n).to_string()));
    publisher.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_publisher_delivers_all_of_its_jobs() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let receipts = resolver
        .producer()
        .enqueue_all(numbered("/jobs/kept", 0..5_000), BatchOptions::default())
        .await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
    publisher.stop().await.unwrap();

    // Payloads are no longer in memory: every delivery reads the journal.
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let worker =
        resolver.worker().await.durable_subscribe("/jobs/kept").concurrency(8).prefetch(1_000);
    let (handle, seen) = (worker.handle(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let recorded = seen.clone();
    let running = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        recorded.lock().unwrap().push(u32::from_be_bytes(job.payload.as_ref().try_into().unwrap()));
        async { Ok(()) }
    }));
    eventually("5,000 jobs completed", || async {
        completed(&resolver, "/jobs/kept").await == 5_000
    })
    .await;
    handle.drain();
    running.await.unwrap().unwrap();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!(seen, (0..5_000).collect::<Vec<_>>());
    publisher.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_job_is_retried_and_then_dead_with_its_error() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let mut job = new_job(path("/jobs/bad"), &b"x"[..]);
    job.options = JobOptions {
        max_attempts: Some(3),
        backoff: Some(longshore::Backoff::Fixed(20)),
        ..JobOptions::default()
    };
    let receipt = resolver.producer().enqueue(job).await.unwrap();

    let worker = resolver.worker().await.durable_subscribe("/jobs/bad");
    let (handle, attempts) = (worker.handle(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let recorded = attempts.clone();
    let running = tokio::spawn(worker.run(move |_: Job<Bytes>, ctx: JobContext| {
        recorded.lock().unwrap().push(ctx.attempt());
        async { Err::<(), _>(JobFailure::retry("no luck")) }
    }));
    let queues = resolver.queues();
    let dead = || async {
        let stats = queues.stats(glob("/jobs/bad")).await.unwrap();
        stats.merged().iter().any(|stat| stat.counts.dead == 1)
    };
    eventually("the job is dead", dead).await;
    handle.drain();
    running.await.unwrap().unwrap();
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
    let name = receipt.job.to_string().parse().unwrap();
    let found = queues.job(&name).await.unwrap();
    assert_eq!(found.job.state, JobState::Dead);
    assert!(found.job.error.unwrap().message.contains("no luck"));
    publisher.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_subscribes_at_every_publisher_and_at_new_ones() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let first = start_publisher(&data.path().join("a"), resolver.cluster()).await;
    let worker = resolver.worker().await.durable_subscribe("/jobs/**").concurrency(4);
    let (handle, stats) = (worker.handle(), worker.stats());
    let running = tokio::spawn(worker.run(|_: Job<Bytes>, _: JobContext| async { Ok(()) }));
    eventually("one publisher", || async { stats.now().publishers_alive == 1 }).await;
    let second = start_publisher(&data.path().join("b"), resolver.cluster()).await;
    let started_at = tokio::time::Instant::now();
    eventually("two publishers", || async { stats.now().publishers_alive == 2 }).await;
    assert!(started_at.elapsed() < Duration::from_secs(5), "a new publisher is found by the watch");

    // The worker completes the jobs of whichever publisher the producer chooses.
    for n in 0..20 {
        let producer = resolver.producer();
        producer.enqueue(new_job(path("/jobs/any"), vec![n])).await.unwrap();
    }
    eventually("all done", || async { completed(&resolver, "/jobs/any").await == 20 }).await;
    handle.drain();
    running.await.unwrap().unwrap();
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connected_workers_continue_without_a_resolver() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let publisher = start_publisher(data.path(), resolver.cluster()).await;
    let producer = resolver.producer();
    producer.enqueue(new_job(path("/jobs/on"), &b"first"[..])).await.unwrap();
    let worker = resolver.worker().await.durable_subscribe("/jobs/on");
    let (handle, stats) = (worker.handle(), worker.stats());
    let running = tokio::spawn(worker.run(|_: Job<Bytes>, _: JobContext| async { Ok(()) }));
    eventually("the first job", || async { stats.now().completed == 1 }).await;

    let address = resolver.address();
    resolver.stop().await;
    producer
        .enqueue(new_job(path("/jobs/on"), &b"second"[..]))
        .await
        .expect("the link is connected");
    eventually("the second job", || async { stats.now().completed == 2 }).await;

    // It restarts empty, and the publisher registers again.
    let resolver = Resolver::start_at(address, false).await;
    let found = || async {
        let set = resolver.queues().stats(glob("/jobs/on")).await;
        set.is_ok_and(|stats| !stats.merged().is_empty())
    };
    eventually("registered again", found).await;
    handle.drain();
    running.await.unwrap().unwrap();
    publisher.stop().await.unwrap();
    resolver.stop().await;
}
