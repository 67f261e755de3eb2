//! Publishers killed with SIGKILL: nothing acknowledged is lost, nothing is there twice, and work goes on.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

mod common;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::site::{Site, inside, jobs_of, stat_of};
use common::{eventually, long};
use longshore::{Job, JobContext, JobId, NewJob, Path, PipelineOptions, Receipts, Worker, new_job};
use tokio::time::timeout;

const QUEUE: &str = "/jobs/load";
/// The smallest there are: snapshots are made and segments go while the publisher is killed.
const SMALL_SEGMENTS: &str = "\n[publisher]\nsegment_bytes = 1048576\n";
/// A job that is ready is with a worker again, and a batch answered, this soon after a killed publisher was started again.
const RECOVERY: Duration = Duration::from_secs(5);

fn numbered(n: u64, priority: i32) -> NewJob {
    let mut job = new_job(Path::new(QUEUE).unwrap(), n.to_be_bytes().to_vec());
    job.options.priority = priority;
    job
}

fn number(payload: &[u8]) -> u64 {
    u64::from_be_bytes(payload.try_into().unwrap())
}

/// Reads receipts into `seen`, each of which has to be a job made by its first batch; false once all were read.
async fn read(receipts: &mut Receipts, seen: &mut HashSet<JobId>) -> bool {
    let Some(batch) = receipts.next().await else { return false };
    for receipt in batch.iter() {
        let held = receipt.outcome.unwrap();
        assert!(!held.existing, "a batch that was sent again was taken for a new one");
        assert!(seen.insert(receipt.id), "two receipts for job {}", receipt.id);
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn k0_every_receipt_outlives_a_publisher_killed_while_jobs_are_enqueued() {
    let jobs: u64 = 100_000;
    let mut site = Site::wired().await;
    let options = PipelineOptions { in_flight_jobs_max: 10_000, ..PipelineOptions::default() };
    let producer = site.producer();
    let (mut pipeline, mut receipts) = producer.pipeline(options);
    let sending = tokio::spawn(async move {
        let mut order = Vec::new();
        for n in 0..jobs {
            let priority = [0, 5, -3, 5, i32::MIN, i32::MAX, 1][(n % 7) as usize];
            pipeline.send(numbered(n, priority)).await.unwrap();
            order.push((std::cmp::Reverse(priority), n));
        }
        order.sort();
        order.into_iter().map(|(_, n)| n).collect::<Vec<u64>>()
    });

    // A third is acknowledged. From now on the publisher's answers are lost, while it goes on taking jobs; then it is killed.
    let mut seen = HashSet::new();
    while (seen.len() as u64) < jobs / 3 {
        assert!(read(&mut receipts, &mut seen).await);
    }
    let wire = site.wire.as_ref().unwrap();
    wire.lose_answers(true);
    while let Ok(more) = timeout(Duration::from_millis(200), read(&mut receipts, &mut seen)).await {
        assert!(more, "all jobs were acknowledged before the publisher could be killed");
    }
    let unanswered = || async { site.stat(QUEUE).await.enqueued > seen.len() as u64 };
    eventually("jobs are durable whose receipts were lost", unanswered).await;
    assert!(wire.lost_bytes() > 0);
    site.kill_publisher();
    assert!((seen.len() as u64) < jobs);

    // Nobody has found it yet, so what it has is what its disk had.
    let mut hidden = site.start_publisher_hidden();
    let held = jobs_of(&inside(&hidden), QUEUE).await;
    let ids: HashSet<JobId> = held.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), held.len(), "a job is there twice");
    let lost = seen.difference(&ids).count();
    assert_eq!(lost, 0, "of {} receipts", seen.len());
    assert_eq!(stat_of(&inside(&hidden), QUEUE).await.enqueued, ids.len() as u64);
    hidden.kill();

    // Found again, it is sent what has no answer, and gives the receipts that were lost.
    site.wire.as_ref().unwrap().lose_answers(false);
    site.start_publisher();
    while read(&mut receipts, &mut seen).await {}
    let order = sending.await.unwrap();
    assert_eq!(seen.len() as u64, jobs);
    let stat = site.stat(QUEUE).await;
    assert_eq!((stat.enqueued, stat.counts.ready), (jobs, jobs));

    let ran = Arc::new(Mutex::new(Vec::new()));
    let worker = Worker::connect(site.cluster()).await.unwrap().durable_subscribe(QUEUE);
    let worker = worker.concurrency(1).prefetch(5_000);
    let (handle, noted) = (worker.handle(), ran.clone());
    let running = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        noted.lock().unwrap().push(number(&job.payload));
        async { Ok(()) }
    }));
    eventually("all jobs have completed", || async { site.stat(QUEUE).await.completed == jobs })
        .await;
    handle.drain();
    running.await.unwrap().unwrap();
    let ran = ran.lock().unwrap();
    assert_eq!(ran.len(), order.len());
    let astray = ran.iter().zip(&order).position(|(ran, expected)| ran != expected);
    if let Some(at) = astray {
        let around = at..ran.len().min(at + 5);
        panic!(
            "not in the order of priority and age from {at} on: {:?} instead of {:?}",
            &ran[around.clone()],
            &order[around]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_done_twice_when_the_publisher_is_killed_again_and_again_under_load() {
    let kills = if long() { 500 } else { 20 };
    let mut site = Site::configured(1, 1, None, SMALL_SEGMENTS).await;
    let worker = Worker::connect(site.cluster()).await.unwrap().durable_subscribe(QUEUE);
    let worker = worker.concurrency(16).prefetch(1_000);
    let (handle, stats) = (worker.handle(), worker.stats());
    let runs = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
    let noted = runs.clone();
    let working = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        *noted.lock().unwrap().entry(number(&job.payload)).or_default() += 1;
        async { Ok(()) }
    }));

    let options = PipelineOptions { in_flight_jobs_max: 5_000, ..PipelineOptions::default() };
    let (mut pipeline, mut receipts) = site.producer().pipeline(options);
    let enough = Arc::new(AtomicBool::new(false));
    let stop = enough.clone();
    let sending = tokio::spawn(async move {
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut job = numbered(sent, 0);
            // Kept jobs would make the state as large as the log: then there is nothing to gain by a snapshot.
            job.options.keep_ms = Some(0);
            pipeline.send(job).await.unwrap();
            sent += 1;
        }
        sent
    });
    let acknowledged = Arc::new(AtomicU64::new(0));
    let counted = acknowledged.clone();
    let reading = tokio::spawn(async move {
        let mut seen = HashSet::new();
        while read(&mut receipts, &mut seen).await {
            counted.store(seen.len() as u64, Ordering::Relaxed);
        }
        seen
    });

    let mut slowest = Duration::ZERO;
    let at = || (acknowledged.load(Ordering::Relaxed), stats.now().completed);
    for kill in 1..=kills {
        let (acknowledged, completed) = at();
        // Of about 100 bytes of log each: a few snapshots for twenty kills.
        let loaded = || async { at().0 > acknowledged + 2_500 && at().1 > completed + 2_500 };
        eventually("jobs go in and are done", loaded).await;
        site.kill_publisher();
        // What was on its way to them arrives; then both stand still.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (acknowledged, completed) = at();
        let began = Instant::now();
        site.start_publisher();
        let again = || async { at().0 > acknowledged && at().1 > completed };
        eventually("jobs go in and are done again", again).await;
        slowest = slowest.max(began.elapsed());
        assert!(slowest < RECOVERY, "kill {kill}: {slowest:?}");
    }

    enough.store(true, Ordering::Relaxed);
    let sent: u64 = sending.await.unwrap();
    let seen = reading.await.unwrap();
    assert_eq!(seen.len() as u64, sent);
    let done = || async { site.stat(QUEUE).await.completed >= sent };
    eventually("all jobs have completed", done).await;
    handle.drain();
    let report = working.await.unwrap().unwrap();
    let stat = site.stat(QUEUE).await;
    assert_eq!((stat.enqueued, stat.completed), (sent, sent));
    assert_eq!((stat.counts.ready, stat.counts.running, stat.counts.dead), (0, 0, 0));
    assert_eq!((report.completed, report.unanswered), (sent, 0), "{report:?}");
    let runs = runs.lock().unwrap();
    assert!(runs.keys().copied().eq(0..sent), "{} of {sent} jobs ran", runs.len());
    let data = site.folder.path().join("publisher-1");
    let names = |folder: &str| {
        let names = data.join(folder).read_dir().unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert!(names("snapshots").iter().any(|name| name.ends_with(".snap")), "no snapshot was made");
    let first = names("segments").into_iter().min().unwrap();
    assert!(!first.starts_with("0000000001."), "no segment was removed");
    println!("{sent} jobs, {kills} kills, slowest recovery {slowest:?}");
}
