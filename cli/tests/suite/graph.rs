//! Jobs that wait for others, over publishers that are killed while parents end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common;

use bytes::Bytes;
use common::harness::{Harness, jobs_of};
use common::{eventually, long};
use longshore::{Job, JobContext, JobFailure, JobId, JobState, NewJob, ParentEnd, Worker, new_job};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const QUEUE: &str = "/jobs/graph";

/// What becomes of a job, by what becomes of its parents and by its own payload.
fn end_of(job: &NewJob, ends: &BTreeMap<JobId, JobState>) -> JobState {
    let parents = job.keys.iter().flat_map(|keys| &keys.after);
    let (mut waits, mut is_lost) = (false, false);
    for parent in parents {
        match (ends[&parent.job], parent.when) {
            (JobState::Blocked, _) | (JobState::Dead, ParentEnd::Success) => waits = true,
            (_, ParentEnd::Any)
            | (JobState::Completed, ParentEnd::Success)
            | (JobState::Dead, ParentEnd::Death) => {}
            _ => is_lost = true,
        }
    }
    match (is_lost, waits, &job.payload[..]) {
        (true, ..) => JobState::Cancelled,
        (_, true, _) => JobState::Blocked,
        (.., b"dies") => JobState::Dead,
        _ => JobState::Completed,
    }
}

/// K9: a job is released if and only if the ends of its parents are durable. 3 kills, or
/// `LONGSHORE_LONG=1` for 20.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_after_their_parents_over_killed_publishers() {
    let mut harness = Harness::start().await;
    let mut random = StdRng::seed_from_u64(9);
    let mut jobs: Vec<NewJob> = Vec::new();
    let producer = harness.producer();
    for number in 0..200 {
        let payload = if random.random_bool(0.2) { "dies" } else { "lives" };
        let mut job = new_job(QUEUE.parse().unwrap(), payload);
        for _ in 0..random.random_range(0..4) {
            // Mostly of those before it, so that there are long chains.
            let before = random.random_range(1..=number.clamp(1, 20));
            let ends = [ParentEnd::Success, ParentEnd::Death, ParentEnd::Any, ParentEnd::Any];
            if let Some(parent) = jobs.len().checked_sub(before) {
                job = job.after_end(jobs[parent].id, ends[random.random_range(0..4)]);
            }
        }
        producer.enqueue(job.clone()).await.unwrap();
        jobs.push(job);
    }
    let ran: Arc<Mutex<Vec<JobId>>> = Arc::default();
    let worker = Worker::connect(harness.cluster()).durable_subscribe(QUEUE).concurrency(4);
    let (handle, shared) = (worker.shutdown_handle(), ran.clone());
    let working = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        shared.lock().unwrap().push(job.id);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if job.payload == "dies" { Err(JobFailure::bury("no luck")) } else { Ok(()) }
        }
    }));
    for _ in 0..if long() { 20 } else { 3 } {
        tokio::time::sleep(Duration::from_millis(random.random_range(50..400))).await;
        harness.kill_publisher();
        harness.restart_publisher();
    }
    let mut ends = BTreeMap::new();
    for job in &jobs {
        ends.insert(job.id, end_of(job, &ends));
    }
    eventually("each job is where its parents let it be", || async {
        let found = jobs_of(&harness.direct_queues(0), QUEUE).await;
        found.into_iter().map(|job| (job.id, job.state)).collect::<BTreeMap<_, _>>() == ends
    })
    .await;
    handle.drain();
    working.await.unwrap().unwrap();
    let ran = ran.lock().unwrap();
    let first = |id: &JobId| ran.iter().position(|ran| ran == id);
    for job in &jobs {
        let Some(at) = first(&job.id) else { continue };
        for parent in job.keys.iter().flat_map(|keys| &keys.after) {
            let before = first(&parent.job).is_none_or(|before| before < at);
            assert!(before, "{} ran before its parent {}", job.id, parent.job);
        }
    }
}
