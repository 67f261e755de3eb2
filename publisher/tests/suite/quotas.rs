//! Quotas of queues: what may wait on the paths of a client.

use longshore_access::{AccessControl, Policy};
use longshore_protocol::messages::work::{Answer, Request};
use longshore_protocol::{EnqueueOutcome, NewJob, QueueSettings, Refusal, Role};
use longshore_publisher::PublisherOptions;

use crate::client::*;

const CREATED: EnqueueOutcome = EnqueueOutcome::Created;
const OVER: EnqueueOutcome = EnqueueOutcome::Refused(Refusal::OverQuota);

/// A policy that allows clients without an identity everything, within a quota.
fn policy(quota: &str) -> Option<Policy> {
    let who = "who = [\"anonymous\"]\n";
    let all = format!("[[allow]]\n{who}do = [\"*\"]\npaths = [\"/**\"]\n");
    Some(Policy::parse(&format!("{all}[[quota]]\n{who}{quota}")).unwrap())
}

async fn limited(quota: &str) -> (Running, AccessControl, tempfile::TempDir) {
    let (dir, control) = (tempfile::tempdir().unwrap(), AccessControl::new(policy(quota), None));
    let access_control = control.clone();
    let options = PublisherOptions { access_control, ..PublisherOptions::new(dir.path()) };
    (running(options).await, control, dir)
}

async fn enqueue<const N: usize>(client: &mut Client, jobs: [NewJob; N]) -> Vec<EnqueueOutcome> {
    client.enqueue(jobs).await.outcome.unwrap().iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_over_the_quota_are_refused_until_others_end() {
    let jobs = "paths = [\"/jobs/a\"]\nwaiting_jobs = 2\n";
    let (running, control, _dir) = limited(jobs).await;
    let mut client = Client::attach(&running, Role::Worker, 1).await;
    assert_eq!(enqueue(&mut client, [job(1, 4)]).await, [CREATED]);
    assert_eq!(enqueue(&mut client, [job(2, 4)]).await, [CREATED]);
    assert_eq!(enqueue(&mut client, [job(3, 4), job(4, 4)]).await, [OVER; 2]);
    // Of a batch only the jobs on the quota's paths are.
    let mixed = [job_in("/jobs/b", 5, 4), job(3, 4), job_in("/jobs/c", 6, 4)];
    assert_eq!(enqueue(&mut client, mixed).await, [CREATED, OVER, CREATED]);
    // Whoever enqueued them, they count; a running job waits, a completed or dead one does not.
    client.subscribe_with(2);
    let mut delivered = Vec::new();
    while delivered.len() < 2 {
        delivered.extend(client.delivered().await);
    }
    assert_eq!(enqueue(&mut client, [job(3, 4)]).await, [OVER]);
    client.complete(delivered[0].token).await;
    assert_eq!(enqueue(&mut client, [job(3, 4)]).await, [CREATED]);
    assert_eq!(enqueue(&mut client, [job(7, 4)]).await, [OVER]);
    client.bury(delivered[1].token, "Broken", "for good").await;
    // What is resent is no new job.
    assert_eq!(enqueue(&mut client, [job(3, 4)]).await, [EnqueueOutcome::Existing]);
    // A batch that begins below the quota is accepted whole, and a new policy holds at once.
    assert_eq!(enqueue(&mut client, [job(8, 4), job(9, 4)]).await, [CREATED; 2]);
    assert_eq!(enqueue(&mut client, [job(10, 4)]).await, [OVER]);
    control.replace(policy("links = 9\n"), None);
    assert_eq!(enqueue(&mut client, [job(10, 4)]).await, [CREATED]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_outlives_a_restart_as_its_jobs_do() {
    let quota = "paths = [\"/jobs/**\"]\nwaiting_bytes = 2_000\n";
    let (running_before, control, dir) = limited(quota).await;
    let mut client = Client::attach(&running_before, Role::Producer, 1).await;
    assert_eq!(enqueue(&mut client, [job(1, 1_000), job_in("/x", 2, 9_000)]).await, [CREATED; 2]);
    assert_eq!(enqueue(&mut client, [job_in("/jobs/b", 3, 1_000)]).await, [CREATED]);
    assert_eq!(enqueue(&mut client, [job(4, 1)]).await, [OVER]);
    running_before.stop().await;
    let options = PublisherOptions { access_control: control, ..PublisherOptions::new(dir.path()) };
    let running = running(options).await;
    let mut client = Client::attach(&running, Role::Producer, 2).await;
    assert_eq!(enqueue(&mut client, [job(4, 1)]).await, [OVER]);
    assert_eq!(enqueue(&mut client, [job_in("/x", 5, 1)]).await, [CREATED]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_over_the_quota_are_not_created() {
    let (running, _, _dir) = limited("paths = [\"/jobs/*\"]\nqueues = 2\n").await;
    let mut client = Client::attach(&running, Role::Tool, 1).await;
    let three = ["/jobs/a", "/jobs/b", "/jobs/c"];
    let jobs = [1, 2, 3].map(|n| job_in(three[n as usize - 1], n, 4));
    assert_eq!(enqueue(&mut client, jobs).await, [CREATED, CREATED, OVER]);
    assert_eq!(enqueue(&mut client, [job_in("/jobs/c", 3, 4)]).await, [OVER]);
    let in_old = [job_in("/jobs/b", 4, 4), job_in("/other", 5, 4)];
    assert_eq!(enqueue(&mut client, in_old).await, [CREATED; 2]);
    let mut configure = async |text: &str| {
        let changes = QueueSettings { keep_ms: Some(1), ..QueueSettings::default() };
        let path = path(text);
        client.ask(Request::Configure { path, changes, reset: false }).await
    };
    assert_eq!(configure("/jobs/c").await, Answer::Configured(Err(Refusal::OverQuota)));
    assert!(matches!(configure("/jobs/b").await, Answer::Configured(Ok(_))));
    assert!(matches!(configure("/else").await, Answer::Configured(Ok(_))));
    running.stop().await;
}
