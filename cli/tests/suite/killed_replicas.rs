//! All replicas of the resolver killed with SIGKILL: publishers register again, and workers
//! continue.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::harness::{Harness, WRITER_TTL, direct_queues, stat_of};
use longshore::{Path, Producer, new_job};

const QUEUE: &str = "/jobs/on";
/// The time without any replica.
const OUTAGE: Duration = Duration::from_millis(2_500);
/// The interval in which completed jobs have to increase.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Tolerance beyond the heartbeat interval for reconnecting on a busy machine.
const SLACK: Duration = Duration::from_secs(1);
/// Concurrent commands per worker.
const CONCURRENCY: &str = "2";
/// More than the workers can complete during the test: a command takes 20 ms, and four run at a
/// time.
const BACKLOG: usize = 3_000;

/// A worker process, killed on drop.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Jobs completed at each publisher.
async fn completed(harness: &Harness) -> Vec<u64> {
    let mut completed = Vec::new();
    for publisher in 0..harness.publishers.len() {
        completed.push(stat_of(&harness.direct_queues(publisher), QUEUE).await.completed);
    }
    completed
}

/// Paths that each replica knows.
async fn paths_known(harness: &Harness) -> Vec<u64> {
    harness.status().await.iter().map(|status| status.as_ref().map_or(0, |s| s.paths)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_reregister_within_half_a_ttl_while_workers_continue() {
    let mut harness = Harness::start_with(3, 2, None).await;
    for publisher in &harness.publishers {
        let queues = direct_queues(&publisher.service);
        let (_, publishers) = queues.publishers(&longshore::Glob::everything()).await.unwrap();
        let producer = Producer::to_publishers(publishers);
        let jobs = (0..BACKLOG).map(|_| new_job(Path::new(QUEUE).unwrap(), &b""[..]));
        let receipts = producer.enqueue_all(jobs).await;
        assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
    }
    let worker = || {
        let mut command =
            harness.command(&["work", QUEUE, "--concurrency", CONCURRENCY, "--", "sleep", "0.02"]);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Worker(quiet.spawn().unwrap())
    };
    let mut workers = [worker(), worker()];
    let both = || async { completed(&harness).await.iter().all(|&jobs| jobs > 0) };
    common::eventually("jobs of both publishers are done", both).await;

    let known = || async { paths_known(&harness).await == [1; 3] };
    common::eventually("every replica knows the queue", known).await;
    for replica in &mut harness.replicas {
        replica.kill();
    }
    let before = completed(&harness).await;
    let (began, mut last) = (Instant::now(), before.iter().sum::<u64>());
    while began.elapsed() < OUTAGE {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        let now = completed(&harness).await.iter().sum();
        assert!(now > last, "no job was done while no replica was up");
        last = now;
    }
    let after = completed(&harness).await;
    assert!(before.iter().zip(&after).all(|(b, a)| a > b), "{before:?} {after:?}");
    assert!(harness.status().await.iter().all(Option::is_none), "a replica was up");

    for replica in &mut harness.replicas {
        replica.restart();
    }
    let mut took = harness.wait_until_registered().await;
    let known = || async { paths_known(&harness).await == [1; 3] };
    took += common::eventually("the queue is registered again", known).await;
    assert!(took < WRITER_TTL / 2 + SLACK, "registered again after {took:?}");
    let resolved = harness.run(&["directory", "resolve", QUEUE]).code(0);
    assert!(["publisher-1", "publisher-2"].iter().all(|name| resolved.stdout.contains(name)));

    let left = stat_of(&harness.direct_queues(0), QUEUE).await.counts.ready;
    assert!(left > 0, "the workers ran out of jobs, so the test shows nothing");
    for worker in &mut workers {
        assert!(worker.0.try_wait().unwrap().is_none(), "a worker has ended");
    }
    println!("registered again after {took:?}");
}
