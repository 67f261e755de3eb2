//! What is left when a worker dies between any two steps of a job, or stops and wakes up too late.
//! The numbers are those of the table of crashes.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::eventually;
use common::site::Site;
use common::worker::{QUEUE, Task, WorkerProcess, go_on, noted, notes, task};
use longshore::{AttemptOutcome, Backoff, DeathReason, JobInfo, JobOptions, JobState};
use rustix::process::Signal;

/// How long leases outlive a lost link.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// What processes that share a busy machine may take beyond that.
const SLACK: Duration = Duration::from_secs(3);
/// The shortest lease.
const LEASE: Duration = Duration::from_secs(1);
/// A link on which nothing was heard for this long is given up.
const HANG: Duration = Duration::from_secs(10);

fn labelled(label: &str) -> Task {
    Task { label: label.to_owned(), ..Task::default() }
}

fn options(max_attempts: u16) -> JobOptions {
    JobOptions { max_attempts: Some(max_attempts), ..JobOptions::default() }
}

fn short_lease(max_attempts: u16) -> JobOptions {
    JobOptions { lease_ms: Some(LEASE.as_millis() as u32), ..options(max_attempts) }
}

async fn running(site: &Site, jobs: u64) {
    let all = || async { site.stat(QUEUE).await.counts.running == jobs };
    eventually("that many jobs are with workers", all).await;
}

async fn completed(site: &Site, jobs: u64) {
    let began = Instant::now();
    loop {
        let stat = site.stat(QUEUE).await;
        if stat.completed == jobs {
            return;
        }
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(30), "{stat:?}\n{:#?}", notes(site));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn subscribed(site: &Site) {
    let credit = || async { site.stat(QUEUE).await.credits > 0 };
    eventually("a worker waits for a job", credit).await;
}

/// The worker whose result stands.
async fn result_of(site: &Site, job: &longshore::NewJob) -> String {
    let job = site.job(job).await;
    serde_json::from_slice(&job.result.unwrap()).unwrap()
}

/// The attempts that have ended: number, worker, outcome.
fn outcomes(job: &JobInfo) -> Vec<(u16, &str, &'static str)> {
    let shown = |outcome| match outcome {
        AttemptOutcome::Completed => "completed",
        AttemptOutcome::WorkerLost => "worker_lost",
        _ => "something else",
    };
    job.attempts.iter().map(|a| (a.number, a.worker.as_str(), shown(a.outcome))).collect()
}

/// The checkpoints that are kept.
fn checkpoints(job: &JobInfo) -> Vec<String> {
    let text = |bytes: &Option<Bytes>| String::from_utf8(bytes.clone().unwrap().to_vec()).unwrap();
    job.checkpoints.iter().map(|checkpoint| text(&checkpoint.bytes)).collect()
}

/// The queue is there before its first job, so that it can be seen who waits.
async fn site_with_a_queue() -> Site {
    let site = Site::start().await;
    let job = task(labelled("before"), options(1));
    site.enqueue(vec![job]).await;
    site.run(&["cancel", QUEUE]).code(0);
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_job_that_was_on_its_way_to_a_killed_worker_runs_elsewhere_with_its_attempt_back() {
    let site = site_with_a_queue().await;
    let mut first = WorkerProcess::start(&site, "first", 1, 0);
    subscribed(&site).await;
    // A stopped process receives nothing: what is delivered to it stays in its kernel.
    first.send(Signal::STOP);
    let job = task(labelled("a"), options(1));
    site.enqueue(vec![job.clone()]).await;
    running(&site, 1).await;
    first.kill();
    let killed = Instant::now();

    let _second = WorkerProcess::start(&site, "second", 1, 0);
    completed(&site, 1).await;
    assert!(killed.elapsed() < RECONNECT_GRACE + SLACK, "{:?}", killed.elapsed());
    let found = site.job(&job).await;
    assert_eq!((found.attempt, found.deliveries), (1, 2));
    assert_eq!(notes(&site), ["second began a 1", "second ended a 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_jobs_that_a_killed_worker_had_received_but_not_begun_take_effect_once() {
    let site = Site::start().await;
    let long = task(Task { ms: 60_000, only_first: true, ..labelled("long") }, options(2));
    let waiting: Vec<_> = (0..3).map(|n| task(labelled(&n.to_string()), options(1))).collect();
    site.enqueue([std::slice::from_ref(&long), &waiting[..]].concat()).await;
    let mut first = WorkerProcess::start(&site, "first", 1, 3);
    noted(&site, "first began long 1").await;
    running(&site, 4).await;
    first.kill();

    let _second = WorkerProcess::start(&site, "second", 1, 3);
    completed(&site, 4).await;
    for job in &waiting {
        let found = site.job(job).await;
        assert_eq!((found.attempt, found.deliveries), (1, 2), "it had not begun");
    }
    let found = site.job(&long).await;
    assert_eq!((found.attempt, found.deliveries), (2, 2), "it had begun");
    for n in 0..3 {
        let began = notes(&site).iter().filter(|note| note.contains(&format!("began {n}"))).count();
        assert_eq!(began, 1, "{:?}", notes(&site));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k3_a_job_that_was_done_but_not_settled_runs_again_and_ends_once() {
    let site = Site::start().await;
    site.run(&["enqueue", QUEUE, "x", "--lease", "1s", "--max-attempts", "2"]).code(0);
    let log = site.folder.path().join("log");
    // Its work is done; then it takes the worker with it, which can report nothing.
    let script = format!(
        "echo attempt $LONGSHORE_JOB_ATTEMPT >> {}; test $LONGSHORE_JOB_ATTEMPT = 2 || kill -9 $PPID",
        log.display()
    );
    let work = ["work", QUEUE, "--until-empty", "--", "sh", "-c", &script];
    let first = quiet(site.command(&work)).status().unwrap();
    assert_eq!(first.signal(), Some(9), "the worker was not killed");
    assert_eq!(site.stat(QUEUE).await.completed, 0);

    let second = site.run(&work).code(0);
    assert!(second.stdout.contains("1 completed"), "{second:?}");
    let stat = site.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.counts.completed, stat.redelivered), (1, 1, 1));
    assert_eq!(std::fs::read_to_string(log).unwrap(), "attempt 1\nattempt 2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn k3_the_attempt_after_one_that_was_done_but_not_settled_reads_its_checkpoints() {
    let site = Site::start().await;
    let job = task(Task { kills_done: true, checkpoints: 2, ..labelled("a") }, short_lease(2));
    site.enqueue(vec![job.clone()]).await;
    let mut first = WorkerProcess::start(&site, "first", 1, 0);
    assert_eq!(first.ended().await.signal(), Some(9), "the worker was not killed");
    assert_eq!(notes(&site), ["first began a 1", "first ended a 1"], "its handler was done");
    assert_eq!(site.stat(QUEUE).await.completed, 0);

    let mut second = WorkerProcess::start(&site, "second", 1, 0);
    completed(&site, 1).await;
    assert_eq!(second.stop().await["completed"], 1);
    let read = ["began a 2", "read first-1 1 a 2", "read first-2 2 a 2", "ended a 2"];
    assert_eq!(notes(&site)[2..], read.map(|note| format!("second {note}")));
    let found = site.job(&job).await;
    assert_eq!(result_of(&site, &job).await, "second");
    assert_eq!(outcomes(&found), [(1, "first", "worker_lost"), (2, "second", "completed")]);
    assert_eq!(checkpoints(&found), ["first-1", "first-2", "second-1", "second-2"]);
    let stat = site.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.counts.completed, stat.redelivered), (1, 1, 1));
}

/// A job is settled and that is durable, but the worker does not hear of it, and then loses its
/// link by `fault`.
async fn k4(fault: impl FnOnce(&mut Site)) {
    let mut site = Site::wired().await;
    let job = task(Task { ms: 500, ..labelled("a") }, options(3));
    site.enqueue(vec![job.clone()]).await;
    let mut worker = WorkerProcess::start(&site, "worker", 1, 0);
    noted(&site, "worker began a 1").await;
    site.wire.as_ref().unwrap().lose_answers(true);
    completed(&site, 1).await;
    let lost = || async { site.wire.as_ref().unwrap().lost_bytes() > 0 };
    eventually("the answer is lost", lost).await;
    site.wire.as_ref().unwrap().lose_answers(false);
    fault(&mut site);

    // It has a link again, and the answer: it can take another job.
    let next = task(labelled("b"), options(1));
    site.enqueue(vec![next]).await;
    completed(&site, 2).await;
    let report = worker.stop().await;
    let counts = ["completed", "stale_refused", "leases_lost", "unanswered"].map(|c| &report[c]);
    assert_eq!(counts, [2, 0, 0, 0], "{report}");
    let stat = site.stat(QUEUE).await;
    assert_eq!((stat.completed, stat.redelivered, stat.stale_refused), (2, 0, 0));
    let expected = ["began a", "ended a", "began b", "ended b"];
    assert_eq!(notes(&site), expected.map(|note| format!("worker {note} 1")));
    assert_eq!(site.job(&job).await.deliveries, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_a_settle_whose_answer_was_lost_with_the_link_counts_once() {
    k4(|site| site.wire.as_ref().unwrap().cut()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_a_settle_whose_answer_was_lost_with_the_publisher_counts_once() {
    k4(|site| {
        site.kill_publisher();
        site.start_publisher();
    })
    .await;
}

/// A worker stops in the middle of a job for so long that another one takes the job, and then goes
/// on.
async fn k10(pause: Duration) {
    let site = Site::start().await;
    // It is still at work when it goes on, so that it can be told before it is done.
    let ms = (pause + LEASE).as_millis() as u64;
    let job = task(Task { ms, only_first: true, ..labelled("a") }, short_lease(3));
    site.enqueue(vec![job.clone()]).await;
    let mut first = WorkerProcess::start(&site, "first", 1, 0);
    noted(&site, "first began a 1").await;
    first.send(Signal::STOP);
    let stopped = Instant::now();
    let mut second = WorkerProcess::start(&site, "second", 1, 0);
    completed(&site, 1).await;
    assert!(stopped.elapsed() > LEASE / 3, "the lease ended too soon");
    assert_eq!(result_of(&site, &job).await, "second");
    tokio::time::sleep(pause.saturating_sub(stopped.elapsed())).await;
    first.send(Signal::CONT);

    // It finishes what it believes to have, and is told that it has not.
    noted(&site, "first ended a 1").await;
    let refused = || async { site.stat(QUEUE).await.stale_refused == 1 };
    eventually("the late result is refused", refused).await;
    let report = first.stop().await;
    let counts = ["completed", "stale_refused", "leases_lost", "unanswered"].map(|c| &report[c]);
    assert_eq!(counts, [0, 1, 1, 0], "{report}");
    let report = second.stop().await;
    assert_eq!((&report["completed"], &report["stale_refused"]), (&1.into(), &0.into()));

    assert_eq!(result_of(&site, &job).await, "second");
    let (stat, found) = (site.stat(QUEUE).await, site.job(&job).await);
    assert_eq!((stat.completed, stat.stale_refused, stat.redelivered), (1, 1, 1));
    assert_eq!((found.state, found.attempt), (JobState::Completed, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn k10_a_worker_stopped_past_its_lease_is_refused_and_told_on_the_link_that_still_stands() {
    k10(LEASE * 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k10_a_worker_stopped_until_its_link_was_given_up_is_refused_and_told_on_the_next() {
    k10(HANG + LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k10_all_that_a_stopped_worker_says_too_late_is_refused_while_another_runs_the_job() {
    let site = Site::start().await;
    let ms = (LEASE * 3).as_millis() as u64;
    let first = Task { ms, only_first: true, checkpoints: 1, talks_late: true, ..labelled("a") };
    let job = task(Task { waits: true, ..first }, short_lease(3));
    site.enqueue(vec![job.clone()]).await;
    let mut first = WorkerProcess::start(&site, "first", 1, 0);
    let says = |message: &'static str| {
        let (site, job) = (&site, &job);
        async move { site.job(job).await.progress.is_some_and(|p| p.message == message) }
    };
    eventually("the first says how far it is", || says("at first")).await;
    first.send(Signal::STOP);
    let _second = WorkerProcess::start(&site, "second", 1, 0);
    eventually("the second says how far it is", || says("at second")).await;
    let before = site.job(&job).await;
    first.send(Signal::CONT);

    // Progress, checkpoint and result come from the first while the second has the job.
    noted(&site, "first refused a 1").await;
    noted(&site, "first ended a 1").await;
    let refused = || async { site.stat(QUEUE).await.stale_refused > 0 };
    eventually("the late result is refused", refused).await;
    let mut after = site.job(&job).await;
    // Reckoned back from the moment of asking by two clocks: a millisecond is nothing.
    let apart = after.delivered_at.unwrap().abs_diff(before.delivered_at.unwrap());
    assert!(apart <= 5, "delivered {apart} ms apart");
    after.delivered_at = before.delivered_at;
    assert_eq!(after, before, "what came late has changed something");
    let report = first.stop().await;
    assert_eq!((&report["completed"], &report["stale_refused"]), (&0.into(), &1.into()));

    go_on(&site);
    completed(&site, 1).await;
    let found = site.job(&job).await;
    assert_eq!(result_of(&site, &job).await, "second");
    assert_eq!(checkpoints(&found), ["first-1", "second-1"]);
    assert_eq!(outcomes(&found), [(1, "first", "worker_lost"), (2, "second", "completed")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn k11_a_job_that_kills_its_worker_dies_and_those_prefetched_beside_it_are_unharmed() {
    let site = Site::start().await;
    let losses: u16 = 3;
    let backoff = Some(Backoff::Fixed(1_000));
    let first = JobOptions { priority: 1, backoff, ..short_lease(10) };
    let killer = task(Task { kills: true, ..labelled("killer") }, first);
    let beside: Vec<_> = (0..100).map(|n| task(labelled(&n.to_string()), short_lease(1))).collect();
    site.enqueue([std::slice::from_ref(&killer), &beside[..]].concat()).await;
    for attempt in 1..=losses {
        let all = u64::try_from(beside.len()).unwrap() + 1;
        let ready = || async { site.stat(QUEUE).await.counts.ready == all };
        eventually("all jobs are ready", ready).await;
        let mut worker = WorkerProcess::start(&site, &format!("worker-{attempt}"), 1, 100);
        assert_eq!(worker.ended().await.signal(), Some(9), "the worker was not killed");
    }
    let dead = || async { site.stat(QUEUE).await.counts.dead == 1 };
    eventually("the job is dead", dead).await;
    let found = site.job(&killer).await;
    assert_eq!((found.death, found.attempt), (Some(DeathReason::WorkerLost), losses));

    assert_eq!(found.attempts.len(), usize::from(losses));
    let all_lost = found.attempts.iter().all(|a| a.outcome == AttemptOutcome::WorkerLost);
    assert!(all_lost, "{:?}", found.attempts);

    let mut last = WorkerProcess::start(&site, "last", 1, 100);
    completed(&site, 100).await;
    assert_eq!(last.stop().await["completed"], 100);
    for job in &beside {
        let found = site.job(job).await;
        assert_eq!((found.state, found.attempt), (JobState::Completed, 1));
        assert_eq!(found.deliveries, losses + 1, "it was not beside the killer each time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k12_at_sigterm_a_worker_gives_back_what_it_has_not_begun_and_finishes_what_it_has() {
    let site = Site::start().await;
    let begun = task(Task { ms: 2_000, ..labelled("begun") }, options(1));
    let waiting: Vec<_> = (0..4).map(|n| task(labelled(&n.to_string()), options(1))).collect();
    site.enqueue([std::slice::from_ref(&begun), &waiting[..]].concat()).await;
    let mut first = WorkerProcess::start(&site, "first", 1, 4);
    noted(&site, "first began begun 1").await;
    running(&site, 5).await;
    first.send(Signal::TERM);
    let mut second = WorkerProcess::start(&site, "second", 1, 0);
    let report = first.report().await;
    completed(&site, 5).await;

    assert_eq!((&report["completed"], &report["released"]), (&1.into(), &4.into()), "{report}");
    assert_eq!(second.stop().await["completed"], 4);
    let notes = notes(&site);
    let finished = notes.iter().position(|note| note == "first ended begun 1").unwrap();
    let elsewhere = notes.iter().position(|note| note == "second ended 3 1").unwrap();
    assert!(elsewhere < finished, "not given back at once: {notes:?}");
    for (job, deliveries) in [(&begun, 1)].into_iter().chain(waiting.iter().map(|job| (job, 2))) {
        let found = site.job(job).await;
        assert_eq!((found.attempt, found.deliveries), (1, deliveries));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k12_what_outlasts_the_grace_is_given_back_with_its_attempt() {
    let site = Site::start().await;
    let job = task(Task { ms: 60_000, only_first: true, ..labelled("long") }, options(1));
    site.enqueue(vec![job.clone()]).await;
    let grace = Duration::from_millis(300);
    let mut first = WorkerProcess::start_with(&site, "first", 1, 0, grace);
    noted(&site, "first began long 1").await;
    let told = Instant::now();
    let report = first.stop().await;
    assert!(told.elapsed() >= grace && told.elapsed() < grace + Duration::from_secs(1) + SLACK);
    assert_eq!(report["released"], 1, "{report}");

    let _second = WorkerProcess::start(&site, "second", 1, 0);
    completed(&site, 1).await;
    let found = site.job(&job).await;
    assert_eq!((found.attempt, found.deliveries), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn k12_the_program_finishes_its_command_at_sigterm_and_leaves_the_rest() {
    let site = Site::start().await;
    let jobs = (0..3).map(|n| task(labelled(&n.to_string()), options(1))).collect();
    site.enqueue(jobs).await;
    let work = site.command(&["work", QUEUE, "--json", "--", "sleep", "1"]);
    let worker = quiet(work).stdout(Stdio::piped()).spawn().unwrap();
    running(&site, 1).await;
    common::send(&worker, Signal::TERM);
    let ended = worker.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", ended.status);
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&report["completed"], &report["released"]), (&1.into(), &0.into()), "{report}");
    let counts = site.stat(QUEUE).await.counts;
    assert_eq!((counts.completed, counts.ready, counts.running), (1, 2, 0));
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
