//! One worker and several publishers, of which one has all the work: the worker's handlers go where
//! jobs are, it never holds more than it said, and a publisher that is new has its turn. In one
//! process with real sockets and files.
//!
//! What is promised in milliseconds is printed by every run, and asserted with `LONGSHORE_LONG=1`,
//! on a machine that does nothing else; without it a loaded machine may take 10 s.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::long::long;
use bytes::Bytes;
use longshore::embedded::RunningPublisher;
use longshore::{
    BatchOptions, Glob, Job, JobContext, Path, PublisherOptions, QueueStat, ShutdownHandle,
    StatsWatch, new_job,
};
use longshore_tests::Resolver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CONCURRENCY: u64 = 64;
/// Of them, those that are to be busy with the jobs of one publisher while the others have none.
const BUSY: u64 = 60;
/// How long a handler takes while it may go on.
const WORK: Duration = Duration::from_millis(50);
/// As long as this a loaded machine may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was promised, and with what a machine that does something else too is let off.
fn promised(limit: Duration) -> Duration {
    if long() { limit } else { PATIENCE }
}

async fn publisher(resolver: &Resolver, data: &std::path::Path) -> RunningPublisher {
    let mut options = PublisherOptions::new(data);
    options.cluster = Some(resolver.cluster());
    RunningPublisher::start(options).await.unwrap()
}

/// Enqueues so many jobs that say whose they are.
async fn enqueue(publisher: &RunningPublisher, whose: u8, count: usize) {
    let path = Path::new("/jobs/a").unwrap();
    let jobs = (0..count).map(|_| new_job(path.clone(), vec![whose])).collect();
    let receipts = publisher.producer().enqueue_all(jobs, BatchOptions::default()).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
}

/// What handlers have seen.
#[derive(Default)]
struct Seen {
    running: AtomicU64,
    most: AtomicU64,
    /// When the first job of each publisher was begun.
    first: Mutex<BTreeMap<u8, Instant>>,
}

/// A worker whose handlers begin, and end once the gate is open.
struct Working {
    seen: Arc<Seen>,
    stats: StatsWatch,
    gate: watch::Sender<bool>,
    handle: ShutdownHandle,
    task: JoinHandle<()>,
}

impl Working {
    async fn start(resolver: &Resolver, prefetch: usize) -> Working {
        let worker = resolver.worker().await.durable_subscribe("/jobs/**");
        let worker = worker.concurrency(CONCURRENCY as usize).prefetch(prefetch);
        let (handle, stats) = (worker.handle(), worker.stats());
        let (gate, closed) = watch::channel(false);
        let seen = Arc::new(Seen::default());
        let noted = seen.clone();
        let handler = move |job: Job<Bytes>, _: JobContext| {
            let (seen, mut gate) = (noted.clone(), closed.clone());
            async move {
                let running = seen.running.fetch_add(1, Ordering::Relaxed) + 1;
                seen.most.fetch_max(running, Ordering::Relaxed);
                seen.first.lock().unwrap().entry(job.payload[0]).or_insert_with(Instant::now);
                let _open = gate.wait_for(|open| *open).await.is_ok();
                tokio::time::sleep(WORK).await;
                seen.running.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let task = tokio::spawn(async move {
            worker.run(handler).await.unwrap();
        });
        Working { seen, stats, gate, handle, task }
    }

    fn running(&self) -> u64 {
        self.seen.running.load(Ordering::Relaxed)
    }

    fn first(&self, whose: u8) -> Option<Instant> {
        self.seen.first.lock().unwrap().get(&whose).copied()
    }

    async fn linked_to(&self, publishers: usize) {
        until("it is linked", || self.stats.now().publishers_alive == publishers as u64).await;
    }

    /// Runs no more than it said; stops at once.
    async fn stop(self) {
        assert!(self.seen.most.load(Ordering::Relaxed) <= CONCURRENCY);
        self.handle.stop_now();
        self.task.await.unwrap();
    }
}

/// Looks every millisecond; says how long it took.
async fn until(what: &str, reached: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < 3 * PATIENCE, "not within {:?}: {what}", 3 * PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    began.elapsed()
}

/// Jobs that workers hold, over all publishers. While no handler ends this only grows, so that it
/// is no more than what was held at the end of the look, although publishers answer one after the
/// other.
async fn held(resolver: &Resolver) -> u64 {
    let stats = resolver.queues().stats(Glob::new("/jobs/**").unwrap()).await.unwrap();
    stats.merged().iter().map(|stat| stat.counts.running).sum()
}

async fn the_one_with_work_has_the_handlers(prefetch: usize) {
    let bound = CONCURRENCY + prefetch as u64;
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    let mut publishers = Vec::new();
    for name in ["a", "b", "c"] {
        publishers.push(publisher(&resolver, &data.path().join(name)).await);
    }
    let working = Working::start(&resolver, prefetch).await;
    working.linked_to(3).await;

    // A third of the handlers' places are each publisher's. The rest comes here once it has jobs.
    enqueue(&publishers[0], 0, 200).await;
    let took = until("its jobs are begun", || working.running() >= BUSY).await;
    println!("{prefetch} prefetched: {BUSY} handlers busy {took:?} after the receipts");
    assert!(took <= promised(Duration::from_millis(100)), "{took:?}");

    // No job ends, and all have jobs: it is filled up to its bound, and not one further.
    for (whose, publisher) in publishers.iter().enumerate().skip(1) {
        enqueue(publisher, whose as u8, 200).await;
    }
    let began = Instant::now();
    loop {
        let held = held(&resolver).await;
        assert!(held <= bound, "{held} held, and {bound} may be");
        assert!(working.stats.now().in_hand <= bound);
        if held == bound {
            break;
        }
        assert!(began.elapsed() < 3 * PATIENCE, "{held} held of {bound}");
    }
    until("what is held is here", || working.stats.now().in_hand == bound).await;
    for _ in 0..20 {
        assert_eq!(held(&resolver).await, bound);
    }

    // They end, and the two others soon have none left: all handlers are this one's again.
    working.gate.send_replace(true);
    enqueue(&publishers[0], 0, 6_000).await;
    let others_done = || async {
        let stats = resolver.queues().stats(Glob::new("/jobs/**").unwrap()).await.unwrap();
        let idle = |queue: &QueueStat| queue.counts.ready + queue.counts.running == 0;
        stats.answers.iter().filter(|answer| answer.answer.iter().all(idle)).count() == 2
    };
    longshore_tests::eventually("the others' jobs are done", others_done).await;
    let (mut samples, began) = (Vec::new(), Instant::now());
    while began.elapsed() < Duration::from_secs(1) {
        samples.push(working.running());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    samples.sort_unstable();
    let (least, median) = (samples[0], samples[samples.len() / 2]);
    println!(
        "{prefetch} prefetched: of {} looks, {median} busy at half, {least} least",
        samples.len()
    );
    assert!(!long() || median >= BUSY, "{median} busy at half the looks");
    assert!(working.running() > 0, "the backlog was to last");
    working.stop().await;
    for publisher in publishers {
        publisher.stop().await.unwrap();
    }
    resolver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_publishers_the_one_with_work_has_the_handlers_and_the_bound_holds() {
    the_one_with_work_has_the_handlers(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_with_prefetched_jobs() {
    the_one_with_work_has_the_handlers(64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_registers_beside_a_backlog_is_served_within_a_second() {
    let (resolver, data) = (Resolver::start().await, tempfile::tempdir().unwrap());
    // Its jobs are on its disk before anybody knows of it.
    let later = data.path().join("later");
    let filled = RunningPublisher::start(PublisherOptions::new(&later)).await.unwrap();
    enqueue(&filled, 1, 500).await;
    filled.stop().await.unwrap();

    let first = publisher(&resolver, &data.path().join("first")).await;
    enqueue(&first, 0, 8_000).await;
    let working = Working::start(&resolver, 64).await;
    working.gate.send_replace(true);
    until("the backlog is worked on", || working.running() >= BUSY).await;

    let began = Instant::now();
    let second = publisher(&resolver, &later).await;
    let registered = Instant::now();
    until("its first job is begun", || working.first(1).is_some()).await;
    let served = working.first(1).unwrap().saturating_duration_since(registered);
    println!("a new publisher: opened in {:?}, served {served:?} later", registered - began);
    assert!(served <= promised(Duration::from_secs(1)), "{served:?}");
    assert!(working.stats.now().completed < 8_000, "the backlog was to last");
    working.stop().await;
    second.stop().await.unwrap();
    first.stop().await.unwrap();
    resolver.stop().await;
}
