//! Commands that read jobs and queues: single jobs, lists, stats, waits and tails.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::time::Duration;

use common::harness::Harness;
use common::{BackgroundCommand, System, eventually, longshore, wait_until};
use longshore::{Job, JobContext, JobFailure, Worker};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A handler that stores two checkpoints and fails, and in its second attempt reports progress
/// until it may complete.
async fn halfway(
    job: Job<String>,
    context: JobContext,
    may_end: std::path::PathBuf,
) -> Result<String, JobFailure> {
    if context.attempt() == 1 {
        context.checkpoint("row 1").await?;
        context.checkpoint("row 2").await?;
        return Err(JobFailure::retry("connection to 10.0.0.7 broke").kind("Network"));
    }
    let earlier = context.checkpoints().await?.len();
    context.checkpoint("row 3").await?;
    context.progress(75, "row 3 of 4");
    while !may_end.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(format!("{} after {earlier}", job.payload))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_shows_attempts_checkpoints_and_progress() {
    let system = System::up();
    let options = ["--backoff", "fixed:0s", "--max-attempts", "3"];
    let name = system.enqueue("/jobs/a", "import", &options);
    let may_end = system.folder.path().join("end");
    let worker = Worker::builder().name("importer").connect(system.cluster());
    let worker = worker.durable_subscribe("/jobs/a");
    let (handle, end) = (worker.shutdown_handle(), may_end.clone());
    let working = tokio::spawn(worker.run(move |job, context| halfway(job, context, end.clone())));
    wait_until("it reports progress", || !system.job(&name)["progress"].is_null());

    let job = system.job(&name);
    assert_eq!((&job["state"], &job["attempt"]), (&"running".into(), &2.into()));
    assert_eq!((&job["worker"], &job["deliveries"]), (&"importer".into(), &2.into()));
    let progress = (&job["progress"]["percent"], &job["progress"]["message"]);
    assert_eq!(progress, (&75.into(), &"row 3 of 4".into()));
    let attempt = &job["attempts"][0];
    let of_first = ["number", "worker", "outcome"].map(|field| &attempt[field]);
    assert_eq!(of_first, [&json!(1), &json!("importer"), &json!("failed")]);
    let error = json!({ "kind": "Network", "message": "connection to 10.0.0.7 broke" });
    assert_eq!((&attempt["error"], &job["error"]), (&error, &error));
    assert_eq!(attempt["fingerprint"].as_str().unwrap().len(), 16);
    let stored: Vec<_> = job["checkpoints"].as_array().unwrap().iter().collect();
    let stored: Vec<_> = stored.iter().map(|c| [&c["attempt"], &c["number"], &c["data"]]).collect();
    let expected = [json!([1, 1, "row 1"]), json!([1, 2, "row 2"]), json!([2, 1, "row 3"])];
    assert_eq!(json!(stored), json!(expected));

    let shown = system.run(&["job", &name]).code(0).stdout;
    let fingerprint = attempt["fingerprint"].as_str().unwrap();
    for words in
        ["75 %", "row 3 of 4", "2 of 3, 2 deliveries", "Network: connection", fingerprint, "row 2"]
    {
        assert!(shown.contains(words), "no '{words}' in {shown}");
    }

    std::fs::write(may_end, "").unwrap();
    system.run(&["job", &name, "--wait"]).code(0);
    let job = system.job(&name);
    assert_eq!((&job["state"], &job["result"]), (&"completed".into(), &"import after 2".into()));
    let gone = ["progress", "worker", "token"].map(|field| &job[field]);
    assert_eq!(gone, [&Value::Null; 3], "fields of a running job are gone: {job}");
    let outcomes: Vec<_> = job["attempts"].as_array().unwrap().iter().collect();
    let outcomes: Vec<_> = outcomes.iter().map(|a| (&a["number"], &a["outcome"])).collect();
    let (first, second) = ((json!(1), json!("failed")), (json!(2), json!("completed")));
    assert_eq!(outcomes, [(&first.0, &first.1), (&second.0, &second.1)]);
    assert_eq!(job["checkpoints"].as_array().unwrap().len(), 3);
    handle.drain();
    working.await.unwrap().unwrap();
}

/// The number of links to the first publisher, including this query's.
async fn links(harness: &Harness) -> u64 {
    let queues = harness.direct_queues(0);
    queues.status().await.unwrap().answers[0].answer.links
}

fn enqueue(harness: &Harness, path: &str, payload: &str, options: &[&str]) -> String {
    let arguments = [&["enqueue", path, payload, "--json"], options].concat();
    let receipt = harness.run(&arguments).code(0).json();
    receipt["job"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_wait_survives_a_publisher_restart() {
    let mut harness = Harness::start().await;
    let job = enqueue(&harness, "/jobs/a", "hello", &[]);
    eventually("only the query has a link", || async { links(&harness).await == 1 }).await;
    let waiting = BackgroundCommand::start(harness.command(&["job", &job, "--wait", "--json"]));
    eventually("the wait has a link", || async { links(&harness).await == 2 }).await;
    harness.kill_publisher();
    harness.restart_publisher();
    eventually("the wait has a link again", || async { links(&harness).await == 2 }).await;
    harness.run(&["work", "/jobs/a", "--until-empty", "--", "tr", "a-z", "A-Z"]).code(0);
    let ended = waiting.ended().code(0).json();
    assert_eq!((&ended["state"], &ended["result"]), (&"completed".into(), &"HELLO".into()));
}

#[test]
fn jobs_are_listed_by_state_reason_error_and_age() {
    let system = System::up();
    let script = "eval \"$(cat)\"";
    let once = ["--max-attempts", "1"];
    let fails = system.enqueue("/jobs/a", "echo no host 1 >&2; exit 1", &once);
    let buried = system.enqueue("/jobs/b", "echo no user >&2; exit 65", &once);
    let done = system.enqueue("/jobs/b", "true", &once);
    system.run(&["work", "/jobs/**", "--until-empty", "--", "sh", "-c", script]).code(1);
    let later = system.enqueue("/jobs/a", "x", &["--delay", "1h"]);
    let prepared = system.enqueue("/jobs/a", "x", &["--prepare"]);
    let expired = system.enqueue("/jobs/b", "x", &["--expires", "2020-01-01T00:00:00Z"]);
    wait_until("it has expired", || system.stat("/jobs/b")["expired"] == 1);

    let list = |arguments: &[&str]| -> Vec<String> {
        let jobs = system.run(&[&["jobs", "--json"], arguments].concat()).code(0).json_lines();
        let mut names: Vec<String> =
            jobs.iter().map(|job| job["job"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let sorted = |names: &[&String]| {
        let mut names: Vec<String> = names.iter().map(|name| (*name).clone()).collect();
        names.sort();
        names
    };
    let all = [&fails, &buried, &done, &later, &prepared, &expired];
    assert_eq!(list(&["/jobs/**"]), sorted(&all));
    assert_eq!(list(&["/jobs/b"]), sorted(&[&buried, &done, &expired]));
    for (state, names) in [
        ("dead", &[&fails, &buried][..]),
        ("completed", &[&done]),
        ("scheduled", &[&later]),
        ("prepared", &[&prepared]),
        ("expired", &[&expired]),
        ("running", &[]),
    ] {
        assert_eq!(list(&["/jobs/**", "--state", state]), sorted(names), "{state}");
    }
    assert_eq!(list(&["/jobs/**", "--reason", "buried"]), sorted(&[&buried]));
    let fingerprint = system.job(&fails)["attempts"][0]["fingerprint"].as_str().unwrap().to_owned();
    assert_eq!(list(&["/jobs/**", "--error", &fingerprint]), sorted(&[&fails]));
    assert_eq!(
        list(&["/jobs/**", "--younger-than", "1h"]),
        sorted(&[&fails, &buried, &done, &expired])
    );
    assert!(list(&["/jobs/**", "--older-than", "1h"]).is_empty());
    assert_eq!(list(&["/jobs/**", "--limit", "2"]).len(), 2);
    let table =
        system.run(&["jobs", "/jobs/**", "--limit", "2"]).code(0).stderr_has(&["--limit 0"]);
    assert_eq!(table.stdout.lines().count(), 3, "{table:?}");
    system.run(&["jobs", "/jobs/**", "--reason", "boredom"]).code(2).stderr_has(&["worker_lost"]);
}

#[test]
fn stat_adds_columns_only_for_states_in_use() {
    let system = System::up();
    let headings = || {
        let table = system.run(&["stat"]).code(0).stdout;
        table.lines().next().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let default_headings = [
        "queue",
        "ready",
        "running",
        "retrying",
        "scheduled",
        "completed",
        "dead",
        "cancelled",
        "oldest",
        "workers",
    ];
    // A long back-off, so that no retry becomes ready before the stats are read.
    system.enqueue("/jobs/a", "x", &["--backoff", "fixed:1h"]);
    assert_eq!(headings(), default_headings);
    system.enqueue("/jobs/a", "x", &["--prepare"]);
    assert_eq!(headings()[..2], ["queue", "prepared"]);
    system.enqueue("/jobs/a", "x", &["--expires", "2020-01-01T00:00:00Z"]);
    wait_until("it has expired", || system.stat("/jobs/a")["expired"] == 1);
    assert_eq!(headings()[8..10], ["cancelled", "expired"]);
    system.enqueue("/jobs/a", "x", &["--delay", "1h"]);
    let retried = ["--backoff", "fixed:1h", "--priority", "1"];
    system.enqueue("/jobs/a", "x", &retried);
    let worker = system.spawn(&["work", "/jobs/a", "--", "sh", "-c", "sleep 0.1; exit 1"]);
    wait_until("two wait for a retry", || system.stat("/jobs/a")["retrying"] == 2);
    drop(worker);
    system.run(&["pause", "/jobs/**"]).code(0);
    assert_eq!(headings()[12..], ["paused", "by"]);

    let stat = system.stat("/jobs/a");
    let counts =
        ["ready", "running", "retrying", "scheduled", "prepared", "expired", "completed", "dead"];
    assert_eq!(counts.map(|count| &stat[count]), [0, 0, 2, 1, 1, 1, 0, 0], "{stat}");
    let ever =
        ["enqueued_ever", "failed_ever", "completed_ever", "died_ever", "stale_refused_ever"];
    assert_eq!(ever.map(|count| &stat[count]), [5, 2, 0, 0, 0], "{stat}");
    assert_eq!((&stat["paused_by"], &stat["settings"]), (&json!(["/jobs/**"]), &json!({})));
}

/// A job's changes in the lines of a tail, with the state after each.
fn changes(lines: &[Value], name: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("gone").to_owned();
    let of_job = lines.iter().filter(|line| line["job"] == name);
    of_job.map(|line| (text(&line["change"]), text(&line["state"]))).collect()
}

fn owned(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    changes.iter().map(|(change, state)| ((*change).to_owned(), (*state).to_owned())).collect()
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

#[test]
fn tail_prints_a_snapshot_then_every_change_in_order() {
    let system = System::up();
    let before = system.enqueue("/jobs/a", "x", &["--delay", "1h"]);
    let mut tail = system.spawn(&["tail", "/jobs/**", "--snapshot", "--count", "8", "--json"]);
    let snapshot = parse(&tail.line());
    assert_eq!(snapshot["snapshot"]["job"], before.as_str());
    assert_eq!(snapshot["snapshot"]["state"], "scheduled");

    system.enqueue("/other/a", "x", &[]);
    let retried = ["--max-attempts", "2", "--backoff", "fixed:0s"];
    let job = system.enqueue("/jobs/a", "x", &retried);
    let script = "test $LONGSHORE_JOB_ATTEMPT = 2";
    system.run(&["work", "/jobs/a", "--until-empty", "--", "sh", "-c", script]).code(0);
    let waits = system.enqueue("/jobs/b", "x", &["--delay", "50ms"]);
    system.run(&["cancel", &before]).code(0);
    let lines = tail.ended().code(0).json_lines();
    assert_eq!(lines.len(), 8);
    let expected = [
        ("created", "ready"),
        ("delivered", "running"),
        ("failed", "ready"),
        ("delivered", "running"),
        ("completed", "completed"),
    ];
    assert_eq!(changes(&lines, &job), owned(&expected));
    let attempts: Vec<&Value> = lines
        .iter()
        .filter(|line| line["job"] == job.as_str())
        .map(|line| &line["attempt"])
        .collect();
    assert_eq!(attempts, [0, 1, 1, 2, 2]);
    assert_eq!(changes(&lines, &before), owned(&[("cancelled", "cancelled")]));
    assert_eq!(changes(&lines, &waits), owned(&[("created", "scheduled"), ("came_due", "ready")]));
    let index = |line: &Value| line["index"].as_u64().unwrap();
    assert!(lines.is_sorted_by_key(index), "{lines:#?}");
    assert!(lines.iter().all(|line| line["path"].as_str().unwrap().starts_with("/jobs/")));
}

#[test]
fn tail_prints_one_line_per_transition() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &["--delay", "1h"]);
    let mut tail = system.spawn(&["tail", "/jobs/a", "--count", "4"]);
    tail.wait_for_stderr("following publisher");
    let retried = ["--backoff", "fixed:1h"];
    let job = system.enqueue("/jobs/a", "x", &retried);
    let worker = system.spawn(&["work", "/jobs/a", "--", "false"]);
    wait_until("it waits for its retry", || system.stat("/jobs/a")["retrying"] == 1);
    drop(worker);
    system.run(&["cancel", &job]).code(0);
    let shown = tail.ended().code(0).stdout;
    let ends: Vec<&str> =
        shown.lines().map(|line| line.split_once("/jobs/a  ").unwrap().1).collect();
    let expected = [
        "created -> ready",
        "delivered -> running  attempt 1",
        "failed -> retrying  attempt 1",
        "cancelled -> cancelled  attempt 1",
    ];
    assert_eq!(ends, expected);
    assert!(shown.lines().all(|line| line.contains(&job)), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tail_continues_without_a_gap_after_a_publisher_kill() {
    let mut harness = Harness::start().await;
    let first = enqueue(&harness, "/jobs/a", "x", &[]);
    let arguments = ["tail", "/jobs/a", "--snapshot", "--count", "10", "--json"];
    let mut tail = BackgroundCommand::start(harness.command(&arguments));
    assert_eq!(parse(&tail.line())["snapshot"]["job"], first.as_str());
    let work = ["work", "/jobs/a", "--until-empty", "--", "cat"];
    harness.run(&work).code(0);

    // The tail is stopped just before the publisher is killed, and gets the missed changes after
    // its restart.
    tail.send(Signal::STOP);
    let second = enqueue(&harness, "/jobs/a", "x", &[]);
    harness.run(&work).code(0);
    let third = enqueue(&harness, "/jobs/a", "x", &["--delay", "1h"]);
    harness.kill_publisher();
    harness.restart_publisher();
    let fourth = enqueue(&harness, "/jobs/a", "x", &[]);
    tail.send(Signal::CONT);
    tail.wait_for_stderr("is away");
    tail.wait_for_stderr("following publisher");
    harness.run(&work).code(0);
    harness.run(&["cancel", &third]).code(0);

    let ended = tail.ended().code(0);
    assert!(!ended.stderr.contains("continuing from now"), "{ended:?}");
    let lines = ended.json_lines();
    let run = [("created", "ready"), ("delivered", "running"), ("completed", "completed")];
    assert_eq!(changes(&lines, &first), owned(&run[1..]));
    assert_eq!(changes(&lines, &second), owned(&run));
    let cancelled = [("created", "scheduled"), ("cancelled", "cancelled")];
    assert_eq!(changes(&lines, &third), owned(&cancelled));
    assert_eq!(changes(&lines, &fourth), owned(&run));
    let indexes: Vec<u64> = lines.iter().map(|line| line["index"].as_u64().unwrap()).collect();
    assert!(indexes.is_sorted(), "{indexes:?}");
}

#[test]
fn a_signal_before_the_work_is_done_is_no_success() {
    for (command, code) in [
        (&["directory", "watch", "/**", "--count", "3"][..], 143),
        (&["directory", "watch", "/**"], 0),
        (&["tail", "--count", "3"], 143),
        (&["top", "--once", "--json"], 143),
        (&["top", "--json"], 0),
        (&["value", "publish", "/a", "1"], 143),
    ] {
        let command = [command, &["--resolver", "127.0.0.1:1"]].concat();
        let mut waiting = BackgroundCommand::start(longshore(&command));
        waiting.wait_for_stderr("waiting for the resolver");
        waiting.send(Signal::TERM);
        assert_eq!(waiting.ended().code, code, "{command:?}");
    }
}

#[test]
fn tail_ends_on_sigterm_or_at_its_count() {
    let system = System::up();
    let mut tail = system.spawn(&["tail", "--json"]);
    tail.wait_for_stderr("following publisher");
    tail.send(Signal::TERM);
    assert_eq!(tail.ended().code(0).stdout, "");
    // A pattern without matches has an empty snapshot, and the tail continues.
    let mut tail = system.spawn(&["tail", "/nothing/**", "--snapshot", "--count", "1", "--json"]);
    tail.wait_for_stderr("following publisher");
    let job = system.enqueue("/nothing/a", "x", &[]);
    let lines = tail.ended().code(0).json_lines();
    assert_eq!(changes(&lines, &job), owned(&[("created", "ready")]));
}
