//! Workers that die between any two steps of a job, or that stop and resume too late.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::eventually;
use common::harness::Harness;
use common::worker::{QUEUE, Task, WorkerProcess, notes, open_gate, task_job, wait_for_note};
use longshore::{AttemptOutcome, Backoff, DeathReason, JobInfo, JobOptions, JobState};
use rustix::process::Signal;

/// How long leases last after a link is lost.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// Tolerance for a busy machine.
const SLACK: Duration = Duration::from_secs(3);
/// The shortest lease.
const LEASE: Duration = Duration::from_secs(1);
/// A link without received bytes for this long is given up, where a test needs that.
const HANG: Duration = Duration::from_secs(2);

fn labelled(label: &str) -> Task {
    Task { label: label.to_owned(), ..Task::default() }
}

fn options(max_attempts: u16) -> JobOptions {
    JobOptions { max_attempts: Some(max_attempts), ..JobOptions::default() }
}

fn short_lease(max_attempts: u16) -> JobOptions {
    JobOptions { lease_ms: Some(LEASE.as_millis() as u32), ..options(max_attempts) }
}

async fn running(harness: &Harness, jobs: u64) {
    let all = || async { harness.stat(QUEUE).await.counts.running == jobs };
    eventually("that many jobs are with workers", all).await;
}

async fn completed(harness: &Harness, jobs: u64) {
    let began = Instant::now();
    loop {
        let stat = harness.stat(QUEUE).await;
        if stat.completed == jobs {
            return;
        }
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(30), "{stat:?}\n{:#?}", notes(harness));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn subscribed(harness: &Harness) {
    let credit = || async { harness.stat(QUEUE).await.credits > 0 };
    eventually("a worker waits for a job", credit).await;
}

/// The worker whose result was accepted.
async fn result_of(harness: &Harness, job: &longshore::NewJob) -> String {
    let job = harness.job(job).await;
    serde_json::from_slice(&job.result.unwrap()).unwrap()
}

/// The ended attempts: number, worker, outcome.
fn outcomes(job: &JobInfo) -> Vec<(u16, &str, &'static str)> {
    let shown = |outcome| match outcome {
        AttemptOutcome::Completed => "completed",
        AttemptOutcome::WorkerLost => "worker_lost",
        _ => "something else",
    };
    job.attempts.iter().map(|a| (a.number, a.worker.as_str(), shown(a.outcome))).collect()
}

/// The stored checkpoints.
fn checkpoints(job: &JobInfo) -> Vec<String> {
    let text = |bytes: &Option<Bytes>| String::from_utf8(bytes.clone().unwrap().to_vec()).unwrap();
    job.checkpoints.iter().map(|checkpoint| text(&checkpoint.bytes)).collect()
}

/// Creates the queue without a job, so that its credits can be read.
async fn harness_with_a_queue() -> Harness {
    let harness = Harness::start().await;
    let job = task_job(labelled("before"), options(1));
    harness.enqueue(vec![job]).await;
    harness.run(&["cancel", QUEUE, "--yes"]).code(0);
    harness
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_flight_to_a_killed_worker_keeps_its_attempt() {
    let harness = harness_with_a_queue().await;
    let mut first = WorkerProcess::start(&harness, "first", 1, 0);
    subscribed(&harness).await;
    // A stopped process reads nothing: deliveries stay in the kernel's buffer.
    first.send(Signal::STOP);
    let job = task_job(labelled("a"), options(1));
    harness.enqueue(vec![job.clone()]).await;
    running(&harness, 1).await;
    first.kill();
    let killed = Instant::now();

    let _second = WorkerProcess::start(&harness, "second", 1, 0);
    completed(&harness, 1).await;
    assert!(killed.elapsed() < RECONNECT_GRACE + SLACK, "{:?}", killed.elapsed());
    let found = harness.job(&job).await;
    assert_eq!((found.attempt, found.deliveries), (1, 2));
    assert_eq!(notes(&harness), ["second began a 1", "second ended a 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_received_but_not_started_by_a_killed_worker_run_once() {
    let harness = Harness::start().await;
    let long = task_job(Task { ms: 60_000, only_first: true, ..labelled("long") }, options(2));
    let waiting: Vec<_> = (0..3).map(|n| task_job(labelled(&n.to_string()), options(1))).collect();
    harness.enqueue([std::slice::from_ref(&long), &waiting[..]].concat()).await;
    let mut first = WorkerProcess::start(&harness, "first", 1, 3);
    wait_for_note(&harness, "first began long 1").await;
    running(&harness, 4).await;
    first.kill();

    let _second = WorkerProcess::start(&harness, "second", 1, 3);
    completed(&harness, 4).await;
    for job in &waiting {
        let found = harness.job(job).await;
        assert_eq!((found.attempt, found.deliveries), (1, 2), "it had not begun");
    }
    let found = harness.job(&long).await;
    assert_eq!((found.attempt, found.deliveries), (2, 2), "it had begun");
    for n in 0..3 {
        let began =
            notes(&harness).iter().filter(|note| note.contains(&format!("began {n}"))).count();
        assert_eq!(began, 1, "{:?}", notes(&harness));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_reads_an_unsettled_attempts_checkpoints() {
    let harness = Harness::start().await;
    let job = task_job(
        Task { kills_worker_when_done: true, checkpoints: 2, ..labelled("a") },
        short_lease(2),
    );
    harness.enqueue(vec![job.clone()]).await;
    let mut first = WorkerProcess::start(&harness, "first", 1, 0);
    assert_eq!(first.ended().await.signal(), Some(9), "the worker was not killed");
    assert_eq!(notes(&harness), ["first began a 1", "first ended a 1"], "its handler was done");
    assert_eq!(harness.stat(QUEUE).await.completed, 0);

    let mut second = WorkerProcess::start(&harness, "second", 1, 0);
    completed(&harness, 1).await;
    assert_eq!(second.stop().await["completed"], 1);
    let read = ["began a 2", "read first-1 1 a 2", "read first-2 2 a 2", "ended a 2"];
    assert_eq!(notes(&harness)[2..], read.map(|note| format!("second {note}")));
    let found = harness.job(&job).await;
    assert_eq!(result_of(&harness, &job).await, "second");
    assert_eq!(outcomes(&found), [(1, "first", "worker_lost"), (2, "second", "completed")]);
    assert_eq!(checkpoints(&found), ["first-1", "first-2", "second-1", "second-2"]);
    let stat = harness.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.counts.completed, stat.redelivered), (1, 1, 1));
}

/// A settle is durable but its answer is lost; then `fault` breaks the worker's link.
async fn settle_with_lost_answer(fault: impl FnOnce(&mut Harness)) {
    let mut harness = Harness::with_proxy().await;
    let job = task_job(Task { ms: 500, ..labelled("a") }, options(3));
    harness.enqueue(vec![job.clone()]).await;
    let mut worker = WorkerProcess::start(&harness, "worker", 1, 0);
    wait_for_note(&harness, "worker began a 1").await;
    harness.proxy.as_ref().unwrap().drop_answers(true);
    completed(&harness, 1).await;
    let lost = || async { harness.proxy.as_ref().unwrap().dropped_bytes() > 0 };
    eventually("the answer is lost", lost).await;
    harness.proxy.as_ref().unwrap().drop_answers(false);
    fault(&mut harness);

    // After a reconnect the worker gets the answer and takes another job.
    let next = task_job(labelled("b"), options(1));
    harness.enqueue(vec![next]).await;
    completed(&harness, 2).await;
    let report = worker.stop().await;
    let counts = ["completed", "stale_refused", "leases_revoked", "unanswered"].map(|c| &report[c]);
    assert_eq!(counts, [2, 0, 0, 0], "{report}");
    let stat = harness.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.redelivered, stat.stale_refused), (2, 0, 0));
    let expected = ["began a", "ended a", "began b", "ended b"];
    assert_eq!(notes(&harness), expected.map(|note| format!("worker {note} 1")));
    assert_eq!(harness.job(&job).await.deliveries, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_with_its_answer_lost_on_the_link_counts_once() {
    settle_with_lost_answer(|harness| harness.proxy.as_ref().unwrap().cut()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_with_its_answer_lost_in_a_crash_counts_once() {
    settle_with_lost_answer(|harness| {
        harness.kill_publisher();
        harness.restart_publisher();
    })
    .await;
}

/// A worker is stopped in the middle of a job until another worker has taken the job, then resumed.
async fn late_worker(pause: Duration, start: impl FnOnce(&Harness) -> WorkerProcess) {
    let harness = Harness::start().await;
    // The handler still runs after the resume, so that its cancellation can arrive first.
    let ms = (pause + SLACK).as_millis() as u64;
    let job = task_job(Task { ms, only_first: true, ..labelled("a") }, short_lease(3));
    harness.enqueue(vec![job.clone()]).await;
    let mut first = start(&harness);
    wait_for_note(&harness, "first began a 1").await;
    first.send(Signal::STOP);
    let stopped = Instant::now();
    let mut second = WorkerProcess::start(&harness, "second", 1, 0);
    completed(&harness, 1).await;
    assert!(stopped.elapsed() > LEASE / 3, "the lease ended too soon");
    assert_eq!(result_of(&harness, &job).await, "second");
    tokio::time::sleep(pause.saturating_sub(stopped.elapsed())).await;
    first.send(Signal::CONT);

    // The late worker finishes its attempt, and its result is refused.
    wait_for_note(&harness, "first ended a 1").await;
    let refused = || async { harness.stat(QUEUE).await.stale_refused == 1 };
    eventually("the late result is refused", refused).await;
    let report = first.stop().await;
    let counts = ["completed", "stale_refused", "leases_revoked", "unanswered"].map(|c| &report[c]);
    assert_eq!(counts, [0, 1, 1, 0], "{report}");
    let report = second.stop().await;
    assert_eq!((&report["completed"], &report["stale_refused"]), (&1.into(), &0.into()));

    assert_eq!(result_of(&harness, &job).await, "second");
    let (stat, found) = (harness.stat(QUEUE).await, harness.job(&job).await);
    assert_eq!((stat.completed, stat.stale_refused, stat.redelivered), (1, 1, 1));
    assert_eq!((found.state, found.attempt), (JobState::Completed, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_is_refused_on_its_existing_link() {
    late_worker(LEASE * 2, |harness| WorkerProcess::start(harness, "first", 1, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_is_refused_on_its_next_link() {
    let start = |harness: &Harness| WorkerProcess::start_with_hang(harness, "first", HANG);
    late_worker(HANG + LEASE, start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_progress_checkpoints_and_results_are_refused() {
    let harness = Harness::start().await;
    let ms = (LEASE * 3).as_millis() as u64;
    let first = Task { ms, only_first: true, checkpoints: 1, reports_late: true, ..labelled("a") };
    let job = task_job(Task { waits_for_gate: true, ..first }, short_lease(3));
    harness.enqueue(vec![job.clone()]).await;
    let mut first = WorkerProcess::start(&harness, "first", 1, 0);
    let has_progress = |message: &'static str| {
        let (harness, job) = (&harness, &job);
        async move { harness.job(job).await.progress.is_some_and(|p| p.message == message) }
    };
    eventually("the first reports progress", || has_progress("at first")).await;
    first.send(Signal::STOP);
    let _second = WorkerProcess::start(&harness, "second", 1, 0);
    eventually("the second reports progress", || has_progress("at second")).await;
    let before = harness.job(&job).await;
    first.send(Signal::CONT);

    // The first sends progress, a checkpoint and a result while the second has the lease.
    wait_for_note(&harness, "first refused a 1").await;
    wait_for_note(&harness, "first ended a 1").await;
    let refused = || async { harness.stat(QUEUE).await.stale_refused > 0 };
    eventually("the late result is refused", refused).await;
    let mut after = harness.job(&job).await;
    // Computed from two clocks at query time, so it may differ by milliseconds.
    let apart = after.delivered_at.unwrap().abs_diff(before.delivered_at.unwrap());
    assert!(apart <= 5, "delivered {apart} ms apart");
    after.delivered_at = before.delivered_at;
    assert_eq!(after, before, "a late message changed the job");
    let report = first.stop().await;
    assert_eq!((&report["completed"], &report["stale_refused"]), (&0.into(), &1.into()));

    open_gate(&harness);
    completed(&harness, 1).await;
    let found = harness.job(&job).await;
    assert_eq!(result_of(&harness, &job).await, "second");
    assert_eq!(checkpoints(&found), ["first-1", "second-1"]);
    assert_eq!(outcomes(&found), [(1, "first", "worker_lost"), (2, "second", "completed")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_workers_dies_without_harming_prefetched_jobs() {
    let harness = Harness::start().await;
    let losses: u16 = 3;
    let backoff = Some(Backoff::Fixed(1_000));
    let first = JobOptions { priority: 1, backoff, ..short_lease(10) };
    let killer = task_job(Task { kills_worker: true, ..labelled("killer") }, first);
    let other_jobs: Vec<_> =
        (0..100).map(|n| task_job(labelled(&n.to_string()), short_lease(1))).collect();
    harness.enqueue([std::slice::from_ref(&killer), &other_jobs[..]].concat()).await;
    for attempt in 1..=losses {
        let all = u64::try_from(other_jobs.len()).unwrap() + 1;
        let ready = || async { harness.stat(QUEUE).await.counts.ready == all };
        eventually("all jobs are ready", ready).await;
        let mut worker = WorkerProcess::start(&harness, &format!("worker-{attempt}"), 1, 100);
        assert_eq!(worker.ended().await.signal(), Some(9), "the worker was not killed");
    }
    let dead = || async { harness.stat(QUEUE).await.counts.dead == 1 };
    eventually("the job is dead", dead).await;
    let found = harness.job(&killer).await;
    assert_eq!((found.death, found.attempt), (Some(DeathReason::WorkerLost), losses));

    assert_eq!(found.attempts.len(), usize::from(losses));
    let all_lost = found.attempts.iter().all(|a| a.outcome == AttemptOutcome::WorkerLost);
    assert!(all_lost, "{:?}", found.attempts);

    let mut last = WorkerProcess::start(&harness, "last", 1, 100);
    completed(&harness, 100).await;
    assert_eq!(last.stop().await["completed"], 100);
    for job in &other_jobs {
        let found = harness.job(job).await;
        assert_eq!((found.state, found.attempt), (JobState::Completed, 1));
        assert_eq!(found.deliveries, losses + 1, "it was not prefetched with the killer each time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_releases_unstarted_jobs_and_finishes_running_ones() {
    let harness = Harness::start().await;
    let begun = task_job(Task { ms: 2_000, ..labelled("begun") }, options(1));
    let waiting: Vec<_> = (0..4).map(|n| task_job(labelled(&n.to_string()), options(1))).collect();
    harness.enqueue([std::slice::from_ref(&begun), &waiting[..]].concat()).await;
    let mut first = WorkerProcess::start(&harness, "first", 1, 4);
    wait_for_note(&harness, "first began begun 1").await;
    running(&harness, 5).await;
    first.send(Signal::TERM);
    let mut second = WorkerProcess::start(&harness, "second", 1, 0);
    let report = first.report().await;
    completed(&harness, 5).await;

    assert_eq!((&report["completed"], &report["released"]), (&1.into(), &4.into()), "{report}");
    assert_eq!(second.stop().await["completed"], 4);
    let notes = notes(&harness);
    let finished = notes.iter().position(|note| note == "first ended begun 1").unwrap();
    let reassigned = notes.iter().position(|note| note == "second ended 3 1").unwrap();
    assert!(reassigned < finished, "not released at once: {notes:?}");
    for (job, deliveries) in [(&begun, 1)].into_iter().chain(waiting.iter().map(|job| (job, 2))) {
        let found = harness.job(job).await;
        assert_eq!((found.attempt, found.deliveries), (1, deliveries));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_outlasting_the_grace_is_released_with_its_attempt() {
    let harness = Harness::start().await;
    let job = task_job(Task { ms: 60_000, only_first: true, ..labelled("long") }, options(1));
    harness.enqueue(vec![job.clone()]).await;
    let grace = Duration::from_millis(300);
    let mut first = WorkerProcess::start_with(&harness, "first", 1, 0, grace);
    wait_for_note(&harness, "first began long 1").await;
    let stopped = Instant::now();
    let report = first.stop().await;
    assert!(
        stopped.elapsed() >= grace && stopped.elapsed() < grace + Duration::from_secs(1) + SLACK
    );
    assert_eq!(report["released"], 1, "{report}");

    let _second = WorkerProcess::start(&harness, "second", 1, 0);
    completed(&harness, 1).await;
    let found = harness.job(&job).await;
    assert_eq!((found.attempt, found.deliveries), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn longshore_work_finishes_its_command_at_sigterm() {
    let harness = Harness::start().await;
    let jobs = (0..3).map(|n| task_job(labelled(&n.to_string()), options(1))).collect();
    harness.enqueue(jobs).await;
    let started = harness.folder.path().join("started");
    let script = "touch \"$0\"; sleep 1";
    let words = ["work", QUEUE, "--json", "--", "sh", "-c", script, started.to_str().unwrap()];
    let worker = without_output(harness.command(&words)).stdout(Stdio::piped()).spawn().unwrap();
    eventually("the command runs", || async { started.exists() }).await;
    common::send(&worker, Signal::TERM);
    let ended = worker.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", ended.status);
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&report["completed"], &report["released"]), (&1.into(), &0.into()), "{report}");
    let counts = harness.stat(QUEUE).await.counts;
    assert_eq!((counts.completed, counts.ready, counts.running), (1, 2, 0));
}

fn without_output(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
