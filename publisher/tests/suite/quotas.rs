//! Quotas of queues: what may wait on the paths of a client.

use longshore_access::{AccessControl, Policy};
use longshore_protocol::messages::work::{
    Answer, BatchBuilder, FromPublisher, Request, ToPublisher,
};
use longshore_protocol::{
    BatchRefusal, EnqueueOutcome, NewJob, QueueSettings, Refusal, Role, Unique,
};
use longshore_publisher::{Publisher, PublisherOptions};
use longshore_transport::AuditLog;

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
    // What is resent is no new job: here below the quota, and then over it.
    assert_eq!(enqueue(&mut client, [job(3, 4)]).await, [EnqueueOutcome::Existing]);
    // A batch that begins below the quota is accepted whole, and a new policy holds at once.
    assert_eq!(enqueue(&mut client, [job(8, 4), job(9, 4)]).await, [CREATED; 2]);
    assert_eq!(enqueue(&mut client, [job(10, 4)]).await, [OVER]);
    let existing = EnqueueOutcome::Existing;
    assert_eq!(enqueue(&mut client, [job(8, 4), job(9, 4)]).await, [existing; 2]);
    assert_eq!(enqueue(&mut client, [job(8, 4), job(10, 4)]).await, [existing, OVER]);
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

/// Else one full path would refuse all jobs of a producer that sends to many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_refuses_no_other_path_of_the_same_link() {
    let (running, _, _dir) = limited("paths = [\"/jobs/a\"]\nwaiting_jobs = 1\n").await;
    let mut client = Client::attach(&running, Role::Producer, 1).await;
    let mut answers = Vec::new();
    // All are sent before the first answer is read.
    for n in 1..=20 {
        let (mut batch, queue) = (BatchBuilder::new(), ["/x", "/jobs/a"][n as usize % 2]);
        batch.push(&job_in(queue, n, 4));
        client.send(&ToPublisher::Enqueue(batch.seal(false).to_batch(u64::from(n)).unwrap()));
        answers.push(if n > 1 && queue != "/x" { OVER } else { CREATED });
    }
    for (n, expected) in (1..).zip(answers) {
        let answer = client.until(|message| match message {
            FromPublisher::Enqueued(answer) => Some(answer),
            _ => None,
        });
        let answer = answer.await;
        let outcomes: Vec<EnqueueOutcome> = answer.outcome.unwrap().iter().collect();
        assert_eq!((answer.sequence, outcomes), (n, vec![expected]));
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_unique_key_is_held_is_answered_over_a_full_quota_and_in_a_drain() {
    let (running, _, _dir) = limited("paths = [\"/jobs/a\"]\nwaiting_jobs = 1\n").await;
    let mut client = Client::attach(&running, Role::Tool, 1).await;
    let unique = |n| job(n, 4).unique(Unique::by_key("k"));
    assert_eq!(enqueue(&mut client, [unique(1)]).await, [CREATED]);
    let first = EnqueueOutcome::ExistingKey(id(1));
    assert_eq!(enqueue(&mut client, [unique(2), job(3, 4)]).await, [first, OVER]);
    // A replacement may be larger than what it replaces.
    let larger = job(4, MIB).unique(Unique::by_key("k").replace());
    assert_eq!(enqueue(&mut client, [larger]).await, [OVER]);
    client.ask(Request::Drain { draining: true }).await;
    assert_eq!(enqueue(&mut client, [unique(5)]).await, [first]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_hides_no_other_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let (audit_file, quota) = (dir.path().join("audit.jsonl"), "waiting_jobs = 1\n");
    let audit = AuditLog::open(&audit_file).unwrap();
    let anonymous = "who = [\"anonymous\"]\n";
    let rules = format!(
        "[[allow]]\n{anonymous}do = [\"*\"]\npaths = [\"/**\"]\n\
         [[deny]]\n{anonymous}do = [\"enqueue\"]\npaths = [\"/jobs/secret\"]\n\
         [[quota]]\n{anonymous}paths = [\"/**\"]\n{quota}"
    );
    let publisher = Publisher::open(PublisherOptions {
        access_control: AccessControl::new(Some(Policy::parse(&rules).unwrap()), None),
        audit: audit.clone(),
        defaults: vec![path("/jobs")],
        ..PublisherOptions::new(dir.path().join("data"))
    });
    let publisher = publisher.await.unwrap();
    let (values, address) = (publisher.values(), publisher.local_address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(publisher.run(async { stopped.await.unwrap_or(()) }));
    let live = values.publish(path("/jobs/live"), 1u64).unwrap();
    let mut client = Client::attach_at(address, Role::Tool, 1).await;
    assert_eq!(enqueue(&mut client, [job(1, 4)]).await, [CREATED]);
    let others = [
        ("/jobs/secret", Refusal::Forbidden),
        ("/else", Refusal::NotHere),
        ("/sys/x", Refusal::Reserved),
        ("/jobs/live", Refusal::IsValue),
    ];
    for (n, (queue, refusal)) in (10..).zip(others) {
        let refused = EnqueueOutcome::Refused(refusal);
        assert_eq!(enqueue(&mut client, [job_in(queue, n, 4)]).await, [refused]);
        let with_full = [job_in(queue, n, 4), job(n + 10, 4)];
        assert_eq!(enqueue(&mut client, with_full).await, [refused, OVER], "{queue}");
    }
    // What is refused whole is not written.
    let written_before = client.status().await.written_bytes;
    let forbidden = EnqueueOutcome::Refused(Refusal::Forbidden);
    assert_eq!(enqueue(&mut client, [job_in("/jobs/secret", 40, MIB)]).await, [forbidden]);
    assert_eq!(enqueue(&mut client, [job(41, MIB)]).await, [OVER]);
    // Nor if its refusals differ.
    let both = [job_in("/jobs/secret", 42, MIB), job(43, MIB)];
    assert_eq!(enqueue(&mut client, both).await, [forbidden, OVER]);
    assert!(client.status().await.written_bytes - written_before < MIB as u64);
    client.ask(Request::Drain { draining: true }).await;
    let draining = client.enqueue([job(30, 4)]).await;
    assert_eq!(draining.outcome, Err(BatchRefusal::Draining));
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    drop(live);
    audit.close();
    // Nor does it use up the audit log's records of the client.
    let audited = std::fs::read_to_string(&audit_file).unwrap();
    assert!(audited.contains("/jobs/secret") && !audited.contains("OverQuota"), "{audited}");
}
