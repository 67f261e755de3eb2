//! Jobs that wait for others, and batches, over publishers that are killed while jobs end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common;

use bytes::Bytes;
use common::harness::{Harness, jobs_of};
use common::{eventually, long};
use longshore::{
    Action, Job, JobContext, JobFailure, JobId, JobLocator, JobState, NewBatch, NewJob, ParentEnd,
    Worker, new_job,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const QUEUE: &str = "/jobs/graph";

/// What becomes of all jobs, by their own payloads and what they wait for.
fn ends_of(jobs: &[NewJob]) -> BTreeMap<JobId, JobState> {
    let mut ends = BTreeMap::new();
    loop {
        let before = ends.len();
        for job in jobs {
            if let Some(end) = end_of(job, jobs, &ends) {
                ends.insert(job.id, end);
            }
        }
        if ends.len() == before {
            // What has not ended now waits for a dead job.
            jobs.iter().for_each(|job| {
                ends.entry(job.id).or_insert(JobState::Blocked);
            });
            return ends;
        }
    }
}

fn members(batch: JobId, jobs: &[NewJob]) -> impl Iterator<Item = &NewJob> {
    jobs.iter().filter(move |job| job.keys.as_ref().is_some_and(|k| k.member_of == Some(batch)))
}

fn has_dead_member(batch: JobId, jobs: &[NewJob], ends: &BTreeMap<JobId, JobState>) -> bool {
    members(batch, jobs).any(|job| {
        ends.get(&job.id) == Some(&JobState::Dead) || has_dead_member(job.id, jobs, ends)
    })
}

fn end_of(job: &NewJob, jobs: &[NewJob], ends: &BTreeMap<JobId, JobState>) -> Option<JobState> {
    if job.keys.as_ref().is_some_and(|keys| keys.batch.is_some()) {
        let ends: Option<Vec<JobState>> =
            members(job.id, jobs).map(|job| ends.get(&job.id).copied()).collect();
        let of = |state| ends.as_ref().is_some_and(|ends| ends.contains(&state));
        return match (of(JobState::Dead), of(JobState::Cancelled)) {
            (true, _) => Some(JobState::Dead),
            (_, true) => Some(JobState::Cancelled),
            _ => ends.map(|_| JobState::Completed),
        };
    }
    let (mut waits, mut is_lost) = (false, false);
    for parent in job.keys.iter().flat_map(|keys| &keys.after) {
        match (ends.get(&parent.job), parent.when) {
            (Some(JobState::Dead), ParentEnd::Success) => waits = true,
            (None, ParentEnd::Death) if has_dead_member(parent.job, jobs, ends) => {}
            (None, _) => waits = true,
            (_, ParentEnd::Any)
            | (Some(JobState::Completed), ParentEnd::Success)
            | (Some(JobState::Dead), ParentEnd::Death) => {}
            _ => is_lost = true,
        }
    }
    match (is_lost, waits, &job.payload[..]) {
        (true, ..) => Some(JobState::Cancelled),
        (_, true, _) => None,
        (.., b"dies") => Some(JobState::Dead),
        _ => Some(JobState::Completed),
    }
}

/// K9: a job is released if and only if the ends of its parents are durable, and a batch ends if and
/// only if those of its members are. 3 kills, or
/// `LONGSHORE_LONG=1` for 20.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_after_what_they_wait_for_over_killed_publishers() {
    let mut harness = Harness::start().await;
    let mut random = StdRng::seed_from_u64(9);
    let mut jobs: Vec<NewJob> = Vec::new();
    let producer = harness.producer();
    let mut batches: Vec<usize> = Vec::new();
    for number in 0..200 {
        let payload = if random.random_bool(0.2) { "dies" } else { "lives" };
        let mut job = new_job(QUEUE.parse().unwrap(), payload);
        let is_batch = number % 12 == 0;
        let latest = batches.len().saturating_sub(3);
        let around = batches.get(latest..).filter(|_| random.random_bool(0.4));
        let around = around.and_then(|latest| latest.choose(&mut random)).copied();
        // A member waits for jobs from before its batch, and before those around it.
        let mut before = number;
        if let Some(batch) = around {
            job = job.in_batch(jobs[batch].id);
            before = if is_batch { 0 } else { outermost(batch, &jobs) };
        }
        for _ in 0..if is_batch { 0 } else { random.random_range(0..4) } {
            // Mostly of those just before, so that there are long chains.
            let back = random.random_range(1..=before.clamp(1, 20));
            let ends = [ParentEnd::Success, ParentEnd::Death, ParentEnd::Any, ParentEnd::Any];
            if let Some(parent) = before.checked_sub(back) {
                job = job.after_end(jobs[parent].id, ends[random.random_range(0..4)]);
            }
        }
        if is_batch {
            job = job.batch(NewBatch::Open);
            batches.push(number);
        }
        producer.enqueue(job.clone()).await.unwrap();
        jobs.push(job);
    }
    let ids: Vec<JobLocator> = batches.iter().map(|&batch| jobs[batch].id.into()).collect();
    let closed = harness.direct_queues(0).act_on(Action::CloseBatch, &ids, false).await.unwrap();
    assert!(closed.is_done(), "{closed:?}");
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
    let ends = ends_of(&jobs);
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

/// The oldest of a batch and those around it.
fn outermost(batch: usize, jobs: &[NewJob]) -> usize {
    let around = jobs[batch].keys.as_ref().and_then(|keys| keys.member_of);
    let around = around.and_then(|id| jobs.iter().position(|job| job.id == id));
    around.map_or(batch, |around| outermost(around, jobs))
}
