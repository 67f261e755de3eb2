//! Batches of which some jobs are refused: each job's answer, and what of them is written.

use bytes::Bytes;
use longshore_access::{AccessControl, Policy};
use longshore_protocol::messages::work::{
    Answer, BatchBuilder, Enqueued, FromPublisher, Request, ToPublisher,
};
use longshore_protocol::{EnqueueOutcome, Gate, Homes, NewJob, Refusal, Role};
use longshore_publisher::{Published, Publisher, PublisherOptions};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::*;

/// Payload bytes of each refused job.
const LARGE: usize = 100_000;

/// A publisher that refuses jobs for every reason, and a client.
struct Refusing {
    client: Client,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    _live: Published,
    _dir: TempDir,
}

impl Refusing {
    /// Jobs 1 in `/jobs/a` and 2 in `/jobs/full`, of 4 bytes, are there.
    async fn start() -> Refusing {
        let dir = tempfile::tempdir().unwrap();
        let anonymous = "who = [\"anonymous\"]\n";
        let rules = format!(
            "[[allow]]\n{anonymous}do = [\"*\"]\npaths = [\"/**\"]\n\
             [[deny]]\n{anonymous}do = [\"enqueue\"]\npaths = [\"/jobs/secret\"]\n\
             [[quota]]\n{anonymous}paths = [\"/jobs/full\"]\nwaiting_jobs = 1\n"
        );
        let mut options = PublisherOptions::new(dir.path().join("data"));
        options.access_control = AccessControl::new(Some(Policy::parse(&rules).unwrap()), None);
        options.defaults = vec![path("/jobs")];
        options.name = "pa".into();
        let away = ("/jobs/away".parse().unwrap(), vec!["pb".into()]);
        options.homes = Homes::new([away]).unwrap();
        let publisher = Publisher::open(options).await.unwrap();
        let live = publisher.values().publish(path("/jobs/live"), 1u64).unwrap();
        let address = publisher.local_address();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            publisher.run(async { stopped.await.unwrap_or(()) }).await.unwrap();
        });
        let mut client = Client::attach_at(address, Role::Tool, 1).await;
        let pattern = glob("/jobs/closed");
        let close = Request::Pause { gate: Gate::Enqueue, pattern, paused: true };
        assert!(matches!(client.ask(close).await, Answer::Paused(_)));
        let jobs = [job(1, 4), job_in("/jobs/full", 2, 4)];
        assert_eq!(outcomes(client.enqueue(jobs).await), [EnqueueOutcome::Created; 2]);
        Refusing { client, stop, serving, _live: live, _dir: dir }
    }

    async fn written_bytes(&mut self) -> u64 {
        self.client.status().await.written_bytes
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.serving.await.unwrap();
    }
}

fn outcomes(answer: Enqueued) -> Vec<EnqueueOutcome> {
    answer.outcome.unwrap().iter().collect()
}

fn without_attempts(mut job: NewJob) -> NewJob {
    job.options.max_attempts = Some(0);
    job
}

/// Its headers are over their limit.
fn too_large(mut job: NewJob) -> NewJob {
    job.headers.0.push(("a".into(), "b".repeat(9_000)));
    job
}

/// Each kind of job with its outcome, in this order. New jobs have numbers after `n`.
fn mixed(n: u32) -> Vec<(NewJob, EnqueueOutcome)> {
    use EnqueueOutcome::{Created, Existing, Refused};
    let large = |queue: &str, number: u32| job_in(queue, n + number, LARGE);
    let other = |queue: &str, number: u32| {
        let payload = Bytes::from_static(b"another payload");
        NewJob { payload, ..job_in(queue, number, 0) }
    };
    let full = "/jobs/full";
    vec![
        (job_in("/jobs/a", n + 10, 4), Created),
        (large(full, 11), Refused(Refusal::OverQuota)),
        (large("/jobs/secret", 12), Refused(Refusal::Forbidden)),
        (without_attempts(large("/jobs/a", 13)), Refused(Refusal::BadOptions)),
        (other("/jobs/a", 1), Refused(Refusal::IdConflict)),
        (job_in("/jobs/a", 1, 4), Existing),
        (too_large(large(full, 14)), Refused(Refusal::TooLarge)),
        (without_attempts(large(full, 15)), Refused(Refusal::BadOptions)),
        (without_attempts(large("/jobs/secret", 16)), Refused(Refusal::Forbidden)),
        // The first one again, and another with its id.
        (job_in(full, n + 10, 4), Existing),
        (other("/jobs/secret", n + 10), Refused(Refusal::IdConflict)),
        (large("/jobs/closed", 17), Refused(Refusal::QueueClosed)),
        (large("/else", 18), Refused(Refusal::NotHere)),
        (large("/sys/x", 19), Refused(Refusal::Reserved)),
        (large("/", 20), Refused(Refusal::BadPath)),
        (large("/jobs/live", 21), Refused(Refusal::IsValue)),
        (large("/jobs/away", 22).idempotency_key("k"), Refused(Refusal::NotHome)),
        (job_in("/jobs/away", n + 23, 4), Created),
        (job_in(full, 2, 4), Existing),
        (other(full, 2), Refused(Refusal::IdConflict)),
        (large(full, 11), Refused(Refusal::OverQuota)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_of_a_mixed_batch_has_its_own_answer_and_refused_ones_are_not_written() {
    let mut refusing = Refusing::start().await;
    let before = refusing.written_bytes().await;
    let (jobs, expected): (Vec<_>, Vec<_>) = mixed(0).into_iter().unzip();
    assert_eq!(outcomes(refusing.client.enqueue(jobs).await), expected);
    // Nor alone, nor if all are refused for one reason.
    let (jobs, expected): (Vec<_>, Vec<_>) = mixed(100).into_iter().unzip();
    for (job, expected) in jobs.into_iter().zip(expected) {
        let twice = [job.clone(), job];
        let answer = outcomes(refusing.client.enqueue(twice.clone()).await);
        let again = match expected {
            EnqueueOutcome::Created => EnqueueOutcome::Existing,
            other => other,
        };
        assert_eq!(answer, [expected, again], "{:?}", twice[0].path);
    }
    let written = refusing.written_bytes().await - before;
    // Of a batch in which nothing else is refused, a job that does not decode is.
    assert!(written < 5 * LARGE as u64, "{written}");
    refusing.stop().await;
}

/// A batch of some jobs, in any order, is answered as if each were a batch of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_batch_are_answered_as_jobs_one_by_one() {
    let (mut whole, mut single) = (Refusing::start().await, Refusing::start().await);
    let mut random = 1u64;
    let mut draw = |below: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for round in 1..60 {
        let all: Vec<NewJob> = mixed(100 * round).into_iter().map(|(job, _)| job).collect();
        let jobs: Vec<NewJob> = (0..1 + draw(8)).map(|_| all[draw(all.len())].clone()).collect();
        let mut one_by_one = Vec::new();
        for job in jobs.clone() {
            one_by_one.extend(outcomes(single.client.enqueue([job]).await));
        }
        let answer = outcomes(whole.client.enqueue(jobs.clone()).await);
        let at: Vec<_> = jobs.iter().map(|job| (job.path.as_str(), job.id)).collect();
        assert_eq!(answer, one_by_one, "round {round}: {at:?}");
    }
    whole.stop().await;
    single.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_atomic_batch_each_refused_job_has_its_reason() {
    let mut refusing = Refusing::start().await;
    let (before, mut batch) = (refusing.written_bytes().await, BatchBuilder::new());
    mixed(0).iter().for_each(|(job, _)| batch.push(job));
    refusing.client.send(&ToPublisher::Enqueue(batch.seal(true).to_batch(2).unwrap()));
    let answer = refusing.client.until(|message| match message {
        FromPublisher::Enqueued(answer) => Some(answer),
        _ => None,
    });
    let answer = outcomes(answer.await);
    let others = EnqueueOutcome::Refused(Refusal::BatchRefused);
    let expected: Vec<EnqueueOutcome> = mixed(0)
        .into_iter()
        .map(|(_, outcome)| match outcome {
            EnqueueOutcome::Refused(_) => outcome,
            _ => others,
        })
        .collect();
    assert_eq!(answer, expected);
    assert!(refusing.written_bytes().await - before < LARGE as u64);
    refusing.stop().await;
}
