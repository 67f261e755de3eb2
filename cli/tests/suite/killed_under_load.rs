//! Workers killed one after another under load: every job ends once, and a killed worker's jobs
//! restart elsewhere once their leases have ended. 5 kills, or 100 with `LONGSHORE_LONG=1`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this is a test, its helpers too"
)]

use crate::common;

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use common::harness::Harness;
use common::long;
use common::worker::{QUEUE, Task, WorkerProcess, notes, task_job};
use longshore::{JobOptions, NewJob};

/// How long leases last after a link is lost.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// The guaranteed time beyond that, and the tolerance for a busy machine.
const PROMISED: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(5);
/// Concurrent workers.
const WORKERS: usize = 4;
const CONCURRENCY: usize = 8;
/// Prefetched jobs. A redelivered job waits behind these.
const PREFETCH: usize = 4;
/// The run time of each job, in milliseconds.
const JOB_MS: u64 = 100;
/// Jobs that a worker begins before it is killed.
const BEGUN: usize = 50;
/// Jobs enqueued at the start and before each kill: twice as many as workers begin until the next
/// kill, so that they never run out.
const JOBS_AT_FIRST: usize = 2 * WORKERS * BEGUN;
const JOBS_A_KILL: usize = 2 * BEGUN;

/// The notes of the workers, with the time each was read.
#[derive(Default)]
struct Notes {
    notes: Vec<(Note, Instant)>,
    lines: usize,
}

struct Note {
    worker: String,
    began: bool,
    label: String,
}

impl Notes {
    /// Reads new notes.
    fn read_notes(&mut self, harness: &Harness) {
        let (all, now) = (notes(harness), Instant::now());
        for line in &all[self.lines..] {
            let words: Vec<&str> = line.split(' ').collect();
            // A partly written line is read the next time.
            let [worker, what, label, _attempt] = words[..] else { break };
            let (worker, label) = (worker.to_owned(), label.to_owned());
            self.notes.push((Note { worker, began: what == "began", label }, now));
            self.lines += 1;
        }
    }

    fn begun_by(&self, worker: &str) -> usize {
        self.notes.iter().filter(|(note, _)| note.worker == worker && note.began).count()
    }

    /// Jobs that a worker has begun but not ended.
    fn open_at(&self, worker: &str) -> Vec<String> {
        let its = self.notes.iter().map(|(note, _)| note).filter(|note| note.worker == worker);
        let (began, ended): (Vec<&Note>, Vec<&Note>) = its.partition(|note| note.began);
        let ended: HashSet<&str> = ended.iter().map(|note| note.label.as_str()).collect();
        let open = began.iter().filter(|note| !ended.contains(note.label.as_str()));
        open.map(|note| note.label.clone()).collect()
    }

    /// How often any worker began a job.
    fn times_begun(&self, label: &str) -> usize {
        self.notes.iter().filter(|(note, _)| note.began && note.label == label).count()
    }

    /// The time after `then` at which another worker began a job.
    fn begun_again(&self, label: &str, worker: &str, then: Instant) -> Option<Instant> {
        let again = |(note, at): &&(Note, Instant)| {
            note.began && note.label == label && note.worker != worker && *at > then
        };
        self.notes.iter().find(again).map(|(_, at)| *at)
    }
}

/// A kill, and the jobs that were running then.
struct Kill {
    worker: String,
    at: Instant,
    open: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_killed_under_load_lose_and_duplicate_nothing() {
    let kills = if long() { 100 } else { 5 };
    let (harness, mut seen) = (Harness::start().await, Notes::default());
    let (mut workers, mut started) = (VecDeque::new(), 0usize);
    let mut jobs_enqueued: Vec<NewJob> = Vec::new();
    let mut killed: Vec<Kill> = Vec::new();
    for n in 0..kills {
        let options = JobOptions { max_attempts: Some(100), ..JobOptions::default() };
        let more = if n == 0 { JOBS_AT_FIRST } else { JOBS_A_KILL };
        let numbers = jobs_enqueued.len()..jobs_enqueued.len() + more;
        let one = |n: usize| Task { label: n.to_string(), ms: JOB_MS, ..Task::default() };
        let more: Vec<_> = numbers.map(|n| task_job(one(n), options.clone())).collect();
        harness.enqueue(more.clone()).await;
        jobs_enqueued.extend(more);
        while workers.len() < WORKERS {
            let name = format!("worker-{started}");
            let process = WorkerProcess::start(&harness, &name, CONCURRENCY, PREFETCH);
            workers.push_back((name, process));
            started += 1;
        }
        // Kill the oldest worker in the middle of its work.
        let (worker, mut process) = workers.pop_front().unwrap();
        let began = Instant::now();
        while seen.begun_by(&worker) < BEGUN || seen.open_at(&worker).is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "{worker} has no work at kill {n}");
            tokio::time::sleep(Duration::from_millis(5)).await;
            seen.read_notes(&harness);
        }
        process.kill();
        let at = Instant::now();
        seen.read_notes(&harness);
        let open = seen.open_at(&worker);
        killed.push(Kill { worker, at, open });
    }

    // The other workers finish all jobs.
    let began = Instant::now();
    loop {
        seen.read_notes(&harness);
        let stat = harness.stat(QUEUE).await;
        if stat.counts.completed == jobs_enqueued.len() as u64 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{stat:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stat = harness.stat(QUEUE).await;
    let (counts, jobs) = (stat.counts, jobs_enqueued.len() as u64);
    let left = counts.ready + counts.running + counts.retrying + counts.dead + counts.cancelled;
    assert_eq!((stat.enqueued, stat.completed, left), (jobs, jobs, 0), "{stat:?}");
    for (_, worker) in &mut workers {
        assert_eq!(worker.stop().await["unanswered"], 0);
    }

    let limit = RECONNECT_GRACE + if long() { PROMISED } else { SLACK };
    let (mut waits, mut twice) = (Vec::new(), 0);
    for Kill { worker, at, open } in &killed {
        for label in open {
            // A worker notes the end before it sends the result, so this job was unsettled.
            let again = seen.begun_again(label, worker, *at);
            let again = again.unwrap_or_else(|| panic!("{label} of {worker} was lost"));
            let wait = again - *at;
            if wait <= limit {
                waits.push(wait);
                continue;
            }
            // It was delivered in time to a worker that was killed before beginning it, and
            // delivered again in time.
            let found = harness.job(&jobs_enqueued[label.parse::<usize>().unwrap()]).await;
            let unseen = found.deliveries as usize - seen.times_begun(label);
            assert!(
                wait <= limit * (1 + unseen as u32),
                "{label} of {worker}: {wait:?}, {found:?}"
            );
            twice += 1;
        }
    }
    waits.sort_unstable();
    let longest = waits.last().copied().unwrap();
    println!(
        "{kills} workers killed, {jobs} jobs, {} redeliveries; {} jobs were running at a kill: \
         {} began again after a median of {:?}, {longest:?} at most, and {twice} after a \
         second kill",
        stat.redelivered,
        waits.len() + twice,
        waits.len(),
        waits[waits.len() / 2],
    );
}
