//! The audit log of a publisher.

use std::fs;
use std::path::Path as FilePath;
use std::time::Duration;

use bytes::Bytes;
use longshore_access::{AccessControl, Action, AuditVerifier, Policy};
use longshore_protocol::messages::work::{
    Action as JobAction, Answer, Filter, FromPublisher, NewSettle, Request, RequestError,
    Selection, Sources, Subscribe, ToPublisher, WorkerPattern,
};
use longshore_protocol::{Gate, NewJob, QueueSettings, Role};
use longshore_publisher::PublisherOptions;
use longshore_transport::AuditLog;

use crate::client::*;

const SECRETS: [&str; 4] = ["payload-of-a-job", "payload-of-another", "KindOfError", "its message"];

async fn audited(dir: &FilePath, audit: &AuditLog, control: &AccessControl) -> Running {
    let (audit, access_control) = (audit.clone(), control.clone());
    running(PublisherOptions { audit, access_control, ..PublisherOptions::new(dir) }).await
}

/// Waits until the log is failing, or no longer.
async fn until_failing(audit: &AuditLog, failing: bool) {
    let changed = async {
        while audit.failing().is_some() != failing {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, changed).await.unwrap();
}

/// The lines of files of one log, whose chain is whole.
fn verified(files: &[&FilePath]) -> Vec<String> {
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut verifier = AuditVerifier::default();
    text.lines().for_each(|line| verifier.line(line).unwrap());
    text.lines().map(str::to_owned).collect()
}

fn act(action: JobAction, selection: Selection, dry_run: bool) -> Request {
    Request::Act { action, selection, pace: None, dry_run }
}

fn pause(paused: bool) -> Request {
    Request::Pause { gate: Gate::Delivery, pattern: glob("/jobs/**"), paused }
}

fn quiet(dry_run: bool) -> Request {
    let workers = vec!["nobody".parse::<WorkerPattern>().unwrap()];
    Request::Quiet { workers, quiet: true, dry_run }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acts_refusals_and_changes_of_rules_are_recorded_without_contents() {
    let dir = tempfile::tempdir().unwrap();
    let (file, control) = (dir.path().join("audit.jsonl"), AccessControl::default());
    let audit = AuditLog::open(&file).unwrap();
    let running = audited(&dir.path().join("data"), &audit, &control).await;
    let mut client = Client::attach(&running, Role::Worker, 1).await;
    let with = |n, contents: &'static str| {
        NewJob::new(path("/jobs/a"), id(n), Bytes::from_static(contents.as_bytes()))
    };
    client.enqueue([with(1, SECRETS[0]), with(2, SECRETS[0])]).await;
    client.subscribe_with(1);
    let token = client.job().await.token;
    client.bury(token, SECRETS[2], SECRETS[3]).await;
    let entry = {
        use longshore_protocol::messages::work::BatchBuilder;
        let mut batch = BatchBuilder::new();
        batch.push(&with(3, SECRETS[1]));
        let batch = batch.seal(false).to_batch(1).unwrap();
        let entry = batch.entries().next().unwrap();
        batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize)
    };
    let dead = || Selection::Matching(Filter::of(glob("/jobs/*")).in_state(None));
    for request in [
        act(JobAction::Revive, dead(), true),
        act(JobAction::Cancel, Selection::Ids(vec![id(7), id(8)]), false),
        act(JobAction::Drop, dead(), false),
        Request::Replace { id: id(1), entry },
        pause(true),
        Request::Configure {
            path: path("/jobs/a"),
            changes: QueueSettings { max_attempts: Some(7), ..QueueSettings::default() },
            reset: false,
        },
        Request::Drain { draining: true },
        quiet(true),
        quiet(false),
        Request::ConfirmClock,
        Request::Status,
        Request::Job { id: id(1) },
    ] {
        client.ask(request).await;
    }

    let denied = "[[allow]]\nwho = [\"*\", \"anonymous\"]\ndo = [\"*\"]\npaths = [\"/**\"]\n\
                  [[deny]]\nwho = [\"anonymous\"]\ndo = [\"enqueue\", \"work\", \"act\"]\n\
                  paths = [\"/jobs/b\"]\n";
    control.replace(Some(Policy::parse(denied).unwrap()), None);
    let mut client = Client::attach(&running, Role::Worker, 2).await;
    client.enqueue([job_in("/jobs/b", 4, 4)]).await;
    let sources = Sources::one(glob("/jobs/b"));
    client.send(&ToPublisher::Subscribe(Subscribe { subscription: 1, sources, handlers: 1_000 }));
    let refused = |message| matches!(message, FromPublisher::SubscribeRefused { .. }).then_some(());
    client.until(refused).await;
    let b = Selection::Matching(Filter::of(glob("/jobs/b")));
    let answer = client.try_ask(act(JobAction::Cancel, b, false)).await;
    assert_eq!(answer, Err(RequestError::Forbidden));
    running.stop().await;
    drop(audit);

    let lines = verified(&[&file]);
    let (allowed, refused) = ("\"outcome\":\"allowed\"", "\"outcome\":\"refused\"");
    let ids = format!("\"target\":\"{} {}\"", id(7), id(8));
    let replaced = format!("\"target\":\"{}\"", id(1));
    let expected = [
        ["\"open the log\"", "\"after\":\"0", allowed],
        ["\"cancel\"", &ids, allowed],
        ["\"drop\"", "\"/jobs/*\"", allowed],
        ["\"replace\"", &replaced, allowed],
        ["\"pause\"", "\"/jobs/**\"", allowed],
        ["\"configure\"", "max_attempts: Some(7)", allowed],
        ["\"drain\"", "\"/sys\"", allowed],
        ["\"quiet\"", "\"nobody\"", allowed],
        ["\"confirm clock\"", "\"/sys\"", allowed],
        ["\"change rules\"", "2 rules added", allowed],
        ["\"enqueue\"", "\"/jobs/b\"", refused],
        ["\"work\"", "\"/jobs/b\"", refused],
        ["\"act\"", "\"/jobs/b\"", refused],
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, parts) in lines.iter().zip(expected) {
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
        let of_process = parts[0].contains("open") || parts[0].contains("change");
        assert_eq!(line.contains("\"address\":\"127.0.0.1:"), !of_process, "{line}");
        assert!(parts[0].contains("open") || line.contains("\"server\":\"publisher\""), "{line}");
        assert!(!SECRETS.iter().any(|secret| line.contains(secret)), "{line}");
    }
    assert_eq!(Action::ALL.len(), 12, "an action without a record is to be thought of here");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acts_are_refused_while_the_log_is_failing_and_jobs_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("log");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("audit.jsonl");
    let audit = AuditLog::open(&file).unwrap();
    let running = audited(&dir.path().join("data"), &audit, &AccessControl::default()).await;
    let mut client = Client::attach(&running, Role::Worker, 1).await;
    client.ask(pause(false)).await;

    // The operator's rotation has lost the folder.
    let old = dir.path().join("old");
    fs::rename(&folder, &old).unwrap();
    audit.reopen();
    until_failing(&audit, true).await;
    let selection = || Selection::Ids(vec![id(1)]);
    for request in [
        pause(true),
        quiet(false),
        act(JobAction::Drop, selection(), false),
        Request::ConfirmClock,
        Request::Drain { draining: true },
    ] {
        assert_eq!(client.try_ask(request).await, Err(RequestError::NotAudited));
    }
    client.ask(act(JobAction::Drop, selection(), true)).await;
    client.ask(quiet(true)).await;
    assert_eq!(client.status().await.paused, []);
    client.enqueue([job(1, 4)]).await;
    client.subscribe_with(1);
    let token = client.job().await.token;
    client.settle([(token, NewSettle::Release)]).await;

    fs::create_dir(&folder).unwrap();
    until_failing(&audit, false).await;
    assert!(matches!(client.ask(pause(true)).await, Answer::Paused(_)));
    running.stop().await;
    drop(audit);
    let (old, lines) = (old.join("audit.jsonl"), verified(&[&file]));
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("open the log") && lines[1].contains("\"pause\""), "{lines:?}");
    assert_eq!(verified(&[&old, &file]).len(), 4);
}
