//! Replicas that hang or restart, and restarting publishers: published paths are found everywhere
//! in time.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::harness::{Harness, WRITER_TTL, reader, stat_of};
use common::{eventually, long};
use longshore::{Cluster, Path, PathAnswer, Producer, ReadClient, new_job};
use rustix::process::Signal;

/// Timeouts of these tests, all shorter than a hang.
const TIMING: &str = "reader_ttl = \"4s\"\nrequest_timeout_min = \"1s\"\n\
    handshake_timeout = \"1s\"\nconnect_timeout = \"500ms\"\n";
/// Tolerance beyond the heartbeat interval for reconnecting on a busy machine.
const SLACK: Duration = Duration::from_secs(2);
/// A reader's bound with one hung replica: timeouts of its handshake and its answer, a wait, and
/// the next replica's answer.
const READ_WITHIN: Duration = Duration::from_secs(8);

/// More than the worker can complete during the test: a command takes 10 ms plus its start, and
/// four run at a time.
const BACKLOG: usize = 10_000;

fn with_short_timing(cluster: Cluster) -> Cluster {
    let mut cluster = cluster;
    cluster.timing.reader_ttl = Duration::from_secs(4);
    cluster.timing.request_timeout_min = Duration::from_secs(1);
    cluster.timing.handshake_timeout = Duration::from_secs(1);
    cluster.timing.connect_timeout = Duration::from_millis(500);
    cluster
}

/// A reader of one replica only.
fn reader_of(harness: &Harness, replica: usize) -> ReadClient {
    let replicas = vec![harness.cluster().replicas[replica].clone()];
    reader(Cluster { replicas, ..with_short_timing(harness.cluster()) })
}

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// Whether the path itself is published, not only a default above it.
async fn knows(client: &ReadClient, queue: &str) -> bool {
    match client.resolve(vec![path(queue)]).await {
        Ok(resolution) => {
            matches!(resolution.answers[..], [PathAnswer::Publishers { by_default: false, .. }])
        }
        Err(_) => false,
    }
}

async fn enqueue(harness: &Harness, queue: &str, jobs: usize) {
    let producer = Producer::connect(with_short_timing(harness.cluster()));
    let jobs = (0..jobs).map(|_| new_job(path(queue), &b""[..]));
    let receipts = producer.enqueue_all(jobs).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()), "{receipts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_replica_blocks_no_client_and_catches_up() {
    let harness = Harness::with_more_configuration(3, 1, None, TIMING).await;
    const OLD: &str = "/jobs/old";
    enqueue(&harness, OLD, BACKLOG).await;
    let mut worker = harness
        .command(&["work", "/jobs/**", "--concurrency", "4", "--", "sleep", "0.01"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let done = || async { stat_of(&harness.direct_queues(0), OLD).await.completed };
    eventually("the worker works", || async { done().await > 0 }).await;
    // A reader with a link to the replica that will be stopped.
    let linked = reader_of(&harness, 0);
    assert!(knows(&linked, OLD).await);

    harness.replicas[0].service.send(Signal::STOP);
    let (began, before) = (Instant::now(), done().await);
    // A path published during the hang is found at the other replicas, also by readers that try the
    // stopped one first.
    enqueue(&harness, "/jobs/new", 10).await;
    for _ in 0..4 {
        let started = Instant::now();
        let reader = reader(with_short_timing(harness.cluster()));
        let resolution = reader.resolve(vec![path(OLD)]).await.unwrap();
        assert!(matches!(
            resolution.answers[..],
            [PathAnswer::Publishers { by_default: false, .. }]
        ));
        assert!(started.elapsed() < READ_WITHIN, "an answer took {:?}", started.elapsed());
    }
    let error = linked.resolve(vec![path(OLD)]).await.unwrap_err().to_string();
    let stopped = &harness.cluster().replicas[0];
    assert!(error.contains(stopped.as_str()), "the error names the replica: {error}");
    // Longer than every timeout, so that all heartbeats are missed.
    while began.elapsed() < WRITER_TTL + Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(done().await > before, "a connected worker stalled");
    assert!(done().await < BACKLOG as u64, "the worker ran out of jobs, so the test shows nothing");
    assert!(worker.try_wait().unwrap().is_none(), "the worker has ended");

    harness.replicas[0].service.send(Signal::CONT);
    let returned = Instant::now();
    let back = reader_of(&harness, 0);
    let status = back.replica_status().await.remove(0).1.unwrap();
    // The replica was stopped, so it hides no publisher for silence; it warms because it may have
    // missed changes.
    assert!(status.warming && status.publishers == 2 && status.hidden == 0, "{status:?}");
    assert!(knows(&back, OLD).await, "a stopped replica hides no publisher");
    eventually("the path published during the hang is registered", || knows(&back, "/jobs/new"))
        .await;
    let took = returned.elapsed();
    assert!(took < WRITER_TTL / 2 + SLACK, "published there {took:?} after its return");
    worker.kill().unwrap();
    worker.wait().unwrap();
    println!("published again {took:?} after SIGCONT");
}

/// The paths of a restarted publisher stay resolvable at every replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_publisher_never_loses_a_path() {
    let mut harness = Harness::with_more_configuration(2, 1, None, TIMING).await;
    let queues: Vec<String> = (0..50).map(|n| format!("/jobs/{n}")).collect();
    for queue in &queues {
        enqueue(&harness, queue, 1).await;
    }
    let replicas = [reader_of(&harness, 0), reader_of(&harness, 1)];
    let paths: Vec<Path> = queues.iter().map(|queue| path(queue)).collect();
    for reader in &replicas {
        let all = || async {
            let resolution = reader.resolve(paths.clone()).await.unwrap();
            resolution.answers.iter().all(published)
        };
        eventually("all queues are published", all).await;
    }
    let restarts = if long() { 20 } else { 2 };
    for _ in 0..restarts {
        harness.kill_publisher();
        let watching = async {
            let began = Instant::now();
            let mut checks = 0;
            while began.elapsed() < WRITER_TTL * 3 / 4 {
                for reader in &replicas {
                    let resolution = reader.resolve(paths.clone()).await.unwrap();
                    assert!(resolution.answers.iter().all(published), "a path was gone");
                    checks += 1;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(checks > 20, "only {checks} checks");
        };
        tokio::join!(watching, async {
            tokio::task::yield_now().await;
            tokio::task::block_in_place(|| harness.restart_publisher());
        });
    }
}

fn published(answer: &PathAnswer) -> bool {
    matches!(answer, PathAnswer::Publishers { by_default: false, .. })
}

/// Paths published while one or all replicas are down are registered at each within half a
/// `writer_ttl` after its restart.
#[tokio::test(flavor = "multi_thread")]
async fn paths_published_during_an_outage_reach_restarted_replicas() {
    let mut harness = Harness::with_more_configuration(2, 1, None, TIMING).await;
    enqueue(&harness, "/jobs/before", 1).await;
    harness.replicas[0].kill();
    enqueue(&harness, "/jobs/one-down", 1).await;
    // With all replicas down, the publisher is reachable only by its address.
    harness.replicas[1].kill();
    let publisher = common::harness::info_of(&harness.publishers[0].service);
    let producer = Producer::to_publishers(vec![publisher]);
    let job = new_job(path("/jobs/all-down"), &b""[..]);
    let receipts = producer.enqueue_all(vec![job]).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));

    for replica in &mut harness.replicas {
        replica.restart();
    }
    let returned = Instant::now();
    for replica in 0..2 {
        let reader = reader_of(&harness, replica);
        for queue in ["/jobs/before", "/jobs/one-down", "/jobs/all-down"] {
            eventually("the path is registered", || knows(&reader, queue)).await;
        }
    }
    let took = returned.elapsed();
    assert!(took < WRITER_TTL / 2 + SLACK, "published again after {took:?}");
}
