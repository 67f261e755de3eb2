//! What replicas know of publishers across restarts, and after publishers are gone.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::time::{Duration, Instant};

use common::Beside;
use common::site::{Site, info_of};
use longshore::{BatchOptions, Path, Producer, ProducerOptions, new_job};

/// Nobody is hidden, and no replica is complete by the clock alone, while a test with it runs.
const SLOW: &str =
    "[timing]\nwriter_ttl = \"10m\"\nretry_wait_min = \"50ms\"\nretry_wait_max = \"300ms\"\n";
/// Well below any part of that, and enough on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Enqueues jobs at one publisher, whoever else there is.
async fn enqueue_at(site: &Site, publisher: usize, queue: &str, jobs: usize) {
    let publisher = info_of(&site.publishers[publisher].service);
    let producer = Producer::to_publishers(vec![publisher], ProducerOptions::default());
    let jobs = (0..jobs).map(|_| new_job(Path::new(queue).unwrap(), &b"x"[..])).collect();
    let receipts = producer.enqueue_all(jobs, BatchOptions::default()).await;
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()), "{receipts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_queue_is_taken_soon_after_the_only_replica_has_started_again() {
    let mut site = Site::timed(1, 2, None, SLOW).await;
    // What it knows is written within half a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    site.replicas[0].kill();
    site.replicas[0].start_again();
    let began = Instant::now();
    site.run(&["enqueue", "/jobs/new", "x"]).code(0);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let status = site.status().await.remove(0).unwrap();
    assert!(!status.warming, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_of_a_dead_publisher_goes_to_another_with_the_same_default() {
    let mut site = Site::timed(1, 2, None, SLOW).await;
    enqueue_at(&site, 0, "/jobs/made", 1).await;
    let published = || async {
        site.run(&["resolve", "/jobs/made", "--json"])
            .json()
            .to_string()
            .contains("\"by_default\":false")
    };
    common::eventually("the queue is published", published).await;
    site.publishers[0].kill();
    let began = Instant::now();
    site.run(&["enqueue", "/jobs/made", "x"]).code(0);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_is_drained_and_removed_and_no_job_is_lost() {
    let mut site = Site::of(1, 2, None).await;
    enqueue_at(&site, 1, "/jobs/mail", 20).await;
    site.run(&["publisher", "drain", "nobody"]).code(1).says(&["no publisher nobody"]);
    let drained = site.run(&["publisher", "drain", "publisher-2"]).code(0);
    assert!(drained.stdout.contains("takes no new jobs; 20 jobs have"), "{}", drained.stdout);

    // One who waits does not drain again what somebody else has ended.
    let mut waiting = Beside::start(site.command(&["publisher", "drain", "publisher-2", "--wait"]));
    assert!(waiting.line().contains("20 jobs have"));
    site.run(&["publisher", "drain", "publisher-2", "--undo"]).code(0);
    waiting.ended().code(1).says(&["somebody has ended its drain"]);
    site.run(&["publisher", "drain", "publisher-2"]).code(0);

    // Whoever asks, for a queue that is there or a new one: all go to the other.
    for queue in ["/jobs/mail", "/jobs/new"] {
        for _ in 0..4 {
            site.run(&["enqueue", queue, "x"]).code(0);
        }
    }
    let left = site.run(&["publisher", "drain", "publisher-2", "--json"]).code(0).json();
    assert_eq!(left["open"], 20, "{left}");
    let check = site.run(&["check"]).code(0).stdout;
    assert!(check.contains("publisher publisher-2: it is drained"), "{check}");

    // It holds over a restart.
    site.publishers[1].kill();
    site.publishers[1].start_again();
    site.registered().await;
    site.run(&["enqueue", "/jobs/mail", "x"]).code(0);

    let wait = Beside::start(site.command(&["publisher", "drain", "publisher-2", "--wait"]));
    site.run(&["work", "/jobs/**", "--until-empty", "--", "true"]).code(0);
    let ended = wait.ended().code(0);
    assert!(ended.stdout.contains("is empty: stop it"), "{}", ended.stdout);

    site.run(&["publisher", "drain", "publisher-2", "--undo"]).code(0);
    let check = site.run(&["check"]).code(0).stdout;
    assert!(!check.contains("drained"), "{check}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_is_gone_is_reported_until_it_is_forgotten() {
    let mut site = Site::of(2, 2, None).await;
    enqueue_at(&site, 1, "/jobs/lost", 2).await;
    site.publishers[1].kill();
    let hidden = || async {
        let status = site.status().await;
        status.iter().all(|status| status.as_ref().is_some_and(|status| status.publishers < 4))
            && site.run(&["stat"]).stderr.contains("missing for")
    };
    common::eventually("it is silent for too long", hidden).await;

    let is_reported = |site: &Site| {
        let check = site.run(&["check"]).code(1).stdout;
        let line = check.lines().find(|line| line.contains("publisher-2")).unwrap();
        assert!(line.contains("CRITICAL") && line.contains("publisher forget"), "{check}");
        let stat = site.run(&["stat", "--json"]).code(1).json();
        assert_eq!(stat["complete"], false, "{stat}");
        assert_eq!(stat["missing"][0]["name"], "publisher-2", "{stat}");
    };
    is_reported(&site);
    let mut work =
        Beside::start(site.command(&["work", "/jobs/**", "--until-empty", "--", "true"]));
    work.says("publisher publisher-2 does not answer");

    // Not even a restart of all replicas makes it unknown.
    for replica in &mut site.replicas {
        replica.kill();
        replica.start_again();
    }
    let complete = || async {
        site.status()
            .await
            .iter()
            .all(|status| status.as_ref().is_some_and(|status| !status.warming))
    };
    common::eventually("the replicas are complete", complete).await;
    is_reported(&site);

    site.run(&["publisher", "forget", "publisher-1"]).code(1).says(&["registered"]);
    site.run(&["publisher", "forget", "nobody"]).code(1).says(&["no replica that answers knows"]);
    site.run(&["publisher", "forget", "publisher-2"]).code(0);
    site.run(&["check"]).code(0);
    let stat = site.run(&["stat", "--json"]).code(0).json();
    assert_eq!(stat["complete"], true, "{stat}");
    work.ended().code(0);

    site.publishers[1].start_again();
    site.registered().await;
    let stat = site.run(&["stat", "/jobs/lost", "--json"]).code(0).json();
    assert_eq!(stat["queues"][0]["ready"], 2, "{stat}");
}
