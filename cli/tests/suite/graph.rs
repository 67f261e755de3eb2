//! Jobs that wait for others, and batches, over publishers that are killed while jobs end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common;

use bytes::Bytes;
use common::harness::{Harness, jobs_of};
use common::{System, eventually, long, wait_until};
use longshore::{Action, Job, JobContext, JobFailure, JobId, JobLocator, Worker};
use longshore_tests::graphs::{DIES, Graph};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const QUEUE: &str = "/jobs/graph";

/// K9: a job is released if and only if the ends of its parents are durable, and a batch ends if
/// and only if those of its members are. One graph of 200 jobs, or with `LONGSHORE_LONG=1` 20 of
/// 10,000.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_after_what_they_wait_for_over_killed_publishers() {
    let (seeds, jobs) = if long() { (20, 10_000) } else { (1, 200) };
    for seed in 0..seeds {
        run(seed, jobs).await;
    }
}

async fn run(seed: u64, jobs: usize) {
    let mut harness = Harness::start().await;
    let mut random = StdRng::seed_from_u64(seed);
    let graph = Graph::random(&QUEUE.parse().unwrap(), jobs, seed);
    let producer = harness.producer();
    for jobs in graph.jobs.chunks(100) {
        producer.enqueue_atomic(jobs.iter().cloned()).await.unwrap();
    }
    let ids: Vec<JobLocator> = graph.batches().into_iter().map(JobLocator::from).collect();
    let closed = harness.direct_queues(0).act_on(Action::CloseBatch, &ids, false).await.unwrap();
    assert!(closed.is_done(), "{closed:?}");
    let ran: Arc<Mutex<Vec<JobId>>> = Arc::default();
    let worker = Worker::connect(harness.cluster()).durable_subscribe(QUEUE).concurrency(jobs / 50);
    let (handle, shared) = (worker.shutdown_handle(), ran.clone());
    let working = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        shared.lock().unwrap().push(job.id);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if job.payload == DIES { Err(JobFailure::bury("no luck")) } else { Ok(()) }
        }
    }));
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(random.random_range(50..400))).await;
        harness.kill_publisher();
        harness.restart_publisher();
    }
    let ends = graph.ends();
    eventually("each job is where its parents let it be", || async {
        let found = jobs_of(&harness.direct_queues(0), QUEUE).await;
        found.into_iter().map(|job| (job.id, job.state)).collect::<BTreeMap<_, _>>() == ends
    })
    .await;
    handle.drain();
    working.await.unwrap().unwrap();
    let mut first: HashMap<JobId, usize> = HashMap::new();
    for (at, job) in ran.lock().unwrap().iter().enumerate() {
        first.entry(*job).or_insert(at);
    }
    for job in &graph.jobs {
        let Some(at) = first.get(&job.id) else { continue };
        for parent in job.keys.iter().flat_map(|keys| &keys.after) {
            let before = first.get(&parent.job).is_none_or(|before| before < at);
            assert!(before, "{} ran before its parent {}", job.id, parent.job);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_is_shown_around_each_of_its_jobs() {
    let system = System::up();
    let id = |name: String| name.rsplit(':').next().unwrap().to_owned();
    let first = id(system.enqueue(QUEUE, "first", &[]));
    let second = id(system.enqueue(QUEUE, "second", &["--after", &first]));
    let listed = |arguments: &[&str]| {
        let jobs = system.run(&[&["jobs", "--json"], arguments].concat()).code(0).json_lines();
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&["--after", &first]), [second.as_str()]);
    assert!(listed(&["--waited-for"]).is_empty());
    let shown = system.run(&["job", &first]).code(0).stdout;
    let drawn = format!("{QUEUE}  {first}  ready  ◀\n└─ then {QUEUE}  {second}  blocked\n");
    assert!(shown.ends_with(&drawn), "{shown}");
    let graph = &system.job(&second)["graph"];
    assert_eq!(graph["jobs"].as_array().unwrap().len(), 2, "{graph}");

    let worker = Worker::connect(system.cluster()).durable_subscribe(QUEUE);
    let handle = worker.shutdown_handle();
    let working =
        tokio::spawn(worker.run(|_: Job<Bytes>, _: JobContext| async {
            Err::<(), _>(JobFailure::bury("no luck"))
        }));
    wait_until("the first job is dead", || listed(&["--waited-for"]) == [first.as_str()]);
    handle.drain();
    working.await.unwrap().unwrap();
    // Nobody is warned of a death that somebody may just be looking at.
    let checked = system.run(&["check"]).code(0).stdout;
    assert!(!checked.contains("others wait for their success"), "{checked}");
}
