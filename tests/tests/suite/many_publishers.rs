//! One worker and several publishers, one of which has all the work: the worker's handlers go where
//! jobs are, it never exceeds its bound, and a new publisher gets its share. In one process with
//! real sockets and files.
//!
//! Limits in milliseconds are printed by every run. They are asserted only with `LONGSHORE_LONG=1`,
//! on an otherwise idle machine; without it a loaded machine may take 10 s.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::long::long;
use bytes::Bytes;
use longshore::embedded::RunningPublisher;
use longshore::{
    Glob, Job, JobContext, Path, PublisherOptions, QueueStat, ShutdownHandle, StatsWatch, new_job,
};
use longshore_tests::Resolver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CONCURRENCY: u64 = 64;
/// The handlers that should be busy with one publisher's jobs while the others have none.
const BUSY: u64 = 60;
/// The duration of a handler once the gate is open.
const WORK: Duration = Duration::from_millis(50);
/// The limit for a loaded machine.
const LOADED_LIMIT: Duration = Duration::from_secs(10);

/// Returns the promised limit on an idle machine, and a longer one on a loaded machine.
fn limit_on_this_machine(limit: Duration) -> Duration {
    if long() { limit } else { LOADED_LIMIT }
}

async fn publisher(resolver: &Resolver, data: &std::path::Path) -> RunningPublisher {
    let mut options = PublisherOptions::new(data);
    options.cluster = Some(resolver.cluster());
    RunningPublisher::start(options).await.unwrap()
}

/// Enqueues `count` jobs whose payload is the number of their publisher.
async fn enqueue(publisher: &RunningPublisher, number: u8, count: usize) {
    let path = Path::new("/jobs/a").unwrap();
    let jobs = (0..count).map(|_| new_job(path.clone(), vec![number]));
    let receipts = publisher.producer().enqueue_all(jobs).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
}

/// Counters of the handlers.
#[derive(Default)]
struct HandlerCounters {
    running: AtomicU64,
    most: AtomicU64,
    /// When the first job of each publisher began.
    first: Mutex<BTreeMap<u8, Instant>>,
}

/// A worker whose handlers end only after the gate is open.
struct GatedWorker {
    counters: Arc<HandlerCounters>,
    stats: StatsWatch,
    gate: watch::Sender<bool>,
    handle: ShutdownHandle,
    task: JoinHandle<()>,
}

impl GatedWorker {
    async fn start(resolver: &Resolver, prefetch: usize) -> GatedWorker {
        let worker = resolver.worker().durable_subscribe("/jobs/**");
        let worker = worker.concurrency(CONCURRENCY as usize).prefetch(prefetch);
        let (handle, stats) = (worker.shutdown_handle(), worker.stats());
        let (gate, closed) = watch::channel(false);
        let counters = Arc::new(HandlerCounters::default());
        let shared = counters.clone();
        let handler = move |job: Job<Bytes>, _: JobContext| {
            let (counters, mut gate) = (shared.clone(), closed.clone());
            async move {
                let running = counters.running.fetch_add(1, Ordering::Relaxed) + 1;
                counters.most.fetch_max(running, Ordering::Relaxed);
                counters.first.lock().unwrap().entry(job.payload[0]).or_insert_with(Instant::now);
                let _open = gate.wait_for(|open| *open).await.is_ok();
                tokio::time::sleep(WORK).await;
                counters.running.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let task = tokio::spawn(async move {
            worker.run(handler).await.unwrap();
        });
        GatedWorker { counters, stats, gate, handle, task }
    }

    fn running(&self) -> u64 {
        self.counters.running.load(Ordering::Relaxed)
    }

    fn first(&self, number: u8) -> Option<Instant> {
        self.counters.first.lock().unwrap().get(&number).copied()
    }

    async fn linked_to(&self, publishers: usize) {
        until("it is linked", || self.stats.now().publishers_alive == publishers as u64).await;
    }

    /// Checks the bound on running handlers, then stops the worker at once.
    async fn stop(self) {
        assert!(self.counters.most.load(Ordering::Relaxed) <= CONCURRENCY);
        self.handle.stop_now();
        self.task.await.unwrap();
    }
}

/// Polls every millisecond; returns how long it took.
async fn until(what: &str, reached: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < 3 * LOADED_LIMIT, "not within {:?}: {what}", 3 * LOADED_LIMIT);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    began.elapsed()
}

/// The number of running jobs over all publishers. While no handler ends this only increases.
/// Publishers answer one after the other, so the sum is at most the number at the end of the query.
async fn running_jobs(resolver: &Resolver) -> u64 {
    let stats = resolver.queues().stats(Glob::new("/jobs/**").unwrap()).await.unwrap();
    stats.merged().iter().map(|stat| stat.counts.running).sum()
}

async fn handlers_go_to_the_publisher_with_work(prefetch: usize) {
    let bound = CONCURRENCY + prefetch as u64;
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let mut publishers = Vec::new();
    for name in ["a", "b", "c"] {
        publishers.push(publisher(&resolver, &data.path().join(name)).await);
    }
    let worker = GatedWorker::start(&resolver, prefetch).await;
    worker.linked_to(3).await;

    // Initially each publisher has a third of the handlers. The first publisher gets the rest once
    // it has jobs.
    enqueue(&publishers[0], 0, 200).await;
    let took = until("its jobs are begun", || worker.running() >= BUSY).await;
    println!("{prefetch} prefetched: {BUSY} handlers busy {took:?} after the receipts");
    assert!(took <= limit_on_this_machine(Duration::from_millis(100)), "{took:?}");

    // No job ends, and all publishers have jobs: the worker fills up exactly to its bound.
    for (number, publisher) in publishers.iter().enumerate().skip(1) {
        enqueue(publisher, number as u8, 200).await;
    }
    let began = Instant::now();
    loop {
        let jobs = running_jobs(&resolver).await;
        assert!(jobs <= bound, "{jobs} jobs are leased, over the bound {bound}");
        assert!(worker.stats.now().jobs_held <= bound);
        if jobs == bound {
            break;
        }
        assert!(began.elapsed() < 3 * LOADED_LIMIT, "{jobs} jobs are leased, of {bound}");
    }
    until("all leased jobs have arrived", || worker.stats.now().jobs_held == bound).await;
    for _ in 0..20 {
        assert_eq!(running_jobs(&resolver).await, bound);
    }

    // The jobs end, and the two other publishers soon have none left: all handlers go to the first
    // publisher again.
    worker.gate.send_replace(true);
    enqueue(&publishers[0], 0, 6_000).await;
    let others_done = || async {
        let stats = resolver.queues().stats(Glob::new("/jobs/**").unwrap()).await.unwrap();
        let idle = |queue: &QueueStat| queue.counts.ready + queue.counts.running == 0;
        stats.answers.iter().filter(|answer| answer.answer.iter().all(idle)).count() == 2
    };
    longshore_tests::eventually("the others' jobs are done", others_done).await;
    let sampled = Duration::from_millis(if long() { 1_000 } else { 50 });
    let (mut samples, began) = (Vec::new(), Instant::now());
    while began.elapsed() < sampled {
        samples.push(worker.running());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    samples.sort_unstable();
    let (least, median) = (samples[0], samples[samples.len() / 2]);
    println!(
        "{prefetch} prefetched: {} samples of busy handlers, median {median}, minimum {least}",
        samples.len()
    );
    // On a busy machine the backlog may run out meanwhile.
    if long() {
        assert!(median >= BUSY, "{median} handlers are busy at the median");
        assert!(worker.running() > 0, "the backlog must not run out");
    }
    worker.stop().await;
    for publisher in publishers {
        publisher.stop().await.unwrap();
    }
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_go_to_the_publisher_with_work_within_the_bound() {
    handlers_go_to_the_publisher_with_work(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_go_to_the_publisher_with_work_with_prefetch() {
    handlers_go_to_the_publisher_with_work(64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_publisher_is_served_within_a_second_beside_a_backlog() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    // Its jobs are on its disk before it registers.
    let later = data.path().join("later");
    let filled = RunningPublisher::start(PublisherOptions::new(&later)).await.unwrap();
    enqueue(&filled, 1, 500).await;
    filled.stop().await.unwrap();

    let first = publisher(&resolver, &data.path().join("first")).await;
    enqueue(&first, 0, 8_000).await;
    let worker = GatedWorker::start(&resolver, 64).await;
    worker.gate.send_replace(true);
    until("the backlog is worked on", || worker.running() >= BUSY).await;

    let began = Instant::now();
    let second = publisher(&resolver, &later).await;
    let registered = Instant::now();
    until("its first job is begun", || worker.first(1).is_some()).await;
    let served = worker.first(1).unwrap().saturating_duration_since(registered);
    println!("a new publisher: opened in {:?}, served {served:?} later", registered - began);
    assert!(served <= limit_on_this_machine(Duration::from_secs(1)), "{served:?}");
    assert!(worker.stats.now().completed < 8_000, "the backlog must not run out");
    worker.stop().await;
    second.stop().await.unwrap();
    first.stop().await.unwrap();
    resolver.stop().await;
}
