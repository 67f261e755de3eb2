//! Waiting for the ends of jobs over real links.

use std::net::TcpListener;
use std::time::Duration;

use crate::fake::job_model::job;
use crate::fake::{FakePublisher, RequestBehavior};
use bytes::Bytes;
use longshore_producer::{
    JobEnd, JobLocator, JobLookupError, Producer, Queues, Receipt, WaitError,
};
use longshore_protocol::messages::work::{Answer, JobInfo, Request, RequestError};
use longshore_protocol::{
    DeathReason, Durability, Epoch, JobError, JobId, JobRef, JobState, PublisherInfo,
};

const LONG: Duration = Duration::from_secs(60);

fn queues(publishers: &[&FakePublisher]) -> Queues {
    let options = Queues::builder().request_timeout(Duration::from_millis(500));
    options.to_publishers(publishers.iter().map(|p| p.info.clone()))
}

fn id(n: u64) -> JobId {
    JobId::new_v7(n, [1; 10])
}

fn name(publisher: &FakePublisher, id: JobId) -> JobLocator {
    JobRef { publisher: publisher.info.id, id }.into()
}

/// A publisher with a running job.
async fn with_job(n: u64) -> FakePublisher {
    let publisher = FakePublisher::start(1).await;
    publisher.disk.lock().ends.insert(id(n), None);
    publisher
}

fn completed(n: u64, result: &'static [u8]) -> JobInfo {
    JobInfo { result: Some(Bytes::from_static(result)), ..job(id(n), JobState::Completed, 1) }
}

async fn wait_until(what: impl Fn() -> bool) {
    let reached = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, reached).await.expect("within a minute");
}

#[tokio::test]
async fn a_wait_returns_how_the_job_ended() {
    let error = JobError { kind: "Timeout".into(), message: "after 3 s".into() };
    let dead = JobInfo {
        death: Some(DeathReason::Buried),
        error: Some(error.clone()),
        ..job(id(1), JobState::Dead, 1)
    };
    let result = Some(Bytes::from_static(b"144"));
    for (ended, end) in [
        (completed(1, b"144"), JobEnd::Completed { result }),
        (dead, JobEnd::Dead { reason: DeathReason::Buried, error: Some(error) }),
        (job(id(1), JobState::Cancelled, 1), JobEnd::Cancelled),
        (job(id(1), JobState::Expired, 1), JobEnd::Expired),
    ] {
        let publisher = with_job(1).await;
        let (queues, name) = (queues(&[&publisher]), name(&publisher, id(1)));
        let waiting = tokio::spawn(async move { queues.wait(&name, LONG).await });
        wait_until(|| publisher.open_ends() == 1).await;
        publisher.end(ended);
        assert_eq!(waiting.await.expect("no panic"), Ok(end));
    }
}

#[tokio::test]
async fn an_ended_job_is_reported_at_once() {
    let publisher = with_job(1).await;
    publisher.end(completed(2, b"x"));
    let queues = queues(&[&publisher]);
    let result = Some(Bytes::from_static(b"x"));
    let end = queues.wait(&name(&publisher, id(2)), LONG).await;
    assert_eq!(end, Ok(JobEnd::Completed { result }));
    assert_eq!(queues.wait(&name(&publisher, id(3)), LONG).await, Ok(JobEnd::Gone));
}

#[tokio::test]
async fn a_wait_continues_over_publisher_restarts() {
    let mut publisher = with_job(1).await;
    let address = publisher.info.addresses[0].clone();
    let options = Producer::builder();
    let producer = options.to_publishers(vec![publisher.info.clone()]);
    let receipt = Receipt {
        job: JobRef { publisher: publisher.info.id, id: id(1) },
        existing: false,
        durability: Durability::Fsync,
        may_be_at: None,
    };
    let waiting = tokio::spawn(async move { producer.wait(&receipt, LONG).await });
    for _ in 0..3 {
        wait_until(|| publisher.open_ends() == 1).await;
        publisher.kill().await;
        publisher.revive_at(address.clone()).await;
    }
    wait_until(|| publisher.open_ends() == 1).await;
    publisher.kill().await;
    publisher.end(completed(1, b"x"));
    publisher.revive_at(address.clone()).await;
    let end = waiting.await.expect("no panic").expect("an end");
    assert_eq!(end, JobEnd::Completed { result: Some(Bytes::from_static(b"x")) });
}

#[tokio::test]
async fn a_wait_without_an_answer_is_retried() {
    let publisher = with_job(1).await;
    publisher.end(completed(1, b"x"));
    publisher.script_requests([
        RequestBehavior::DoAndBreak,
        RequestBehavior::Break,
        RequestBehavior::TooMany,
    ]);
    let end = queues(&[&publisher]).wait(&name(&publisher, id(1)), LONG).await;
    assert!(matches!(end, Ok(JobEnd::Completed { .. })), "{end:?}");
}

#[tokio::test]
async fn a_wait_timeout_reports_whether_the_publisher_was_reachable() {
    let mut publisher = with_job(1).await;
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("an address");
    let mute =
        PublisherInfo::new(publisher.info.id, Epoch(1), "mute", [(address.ip(), address.port())]);
    let (queues, name) = (queues(&[&publisher]), name(&publisher, id(1)));
    let short = Duration::from_millis(100);
    let unreached = Queues::to_publishers([mute]).wait(&name, short).await;
    assert!(matches!(unreached, Err(WaitError::TimedOut { away: Some(_), .. })), "{unreached:?}");
    let gone = queues.wait(&self::name(&publisher, id(2)), LONG).await;
    assert_eq!(gone, Ok(JobEnd::Gone), "from now on it has a link");
    let late = queues.wait(&name, short).await;
    assert!(matches!(late, Err(WaitError::TimedOut { away: None, .. })), "{late:?}");
    publisher.kill().await;
    let away = queues.wait(&name, short).await;
    assert!(matches!(&away, Err(WaitError::TimedOut { away: Some(_), .. })), "{away:?}");
    let unknown = queues.wait(id(1), short).await;
    assert!(
        matches!(
            &unknown,
            Err(WaitError::TimedOut { away: Some(why), .. }) if why.contains("fake-1")
        ),
        "a bare id: {unknown:?}"
    );
    // An unlimited wait must not overflow.
    drop(tokio::time::timeout(short, queues.wait(&name, Duration::MAX)).await);
}

#[tokio::test]
async fn a_publisher_that_returns_is_not_reported_away() {
    let mut publisher = with_job(1).await;
    let address = publisher.info.addresses[0].clone();
    let (queues, name) = (queues(&[&publisher]), name(&publisher, id(1)));
    publisher.kill().await;
    let waiting = tokio::spawn(async move { queues.wait(&name, Duration::from_secs(2)).await });
    // Long enough for at least one failed attempt.
    tokio::time::sleep(Duration::from_millis(150)).await;
    publisher.revive_at(address.clone()).await;
    wait_until(|| publisher.open_ends() == 1).await;
    let late = waiting.await.expect("no panic");
    assert!(matches!(late, Err(WaitError::TimedOut { away: None, .. })), "{late:?}");
}

#[tokio::test]
async fn dropping_a_wait_cancels_it_at_the_publisher() {
    let publisher = with_job(1).await;
    let (queues, name) = (queues(&[&publisher]), name(&publisher, id(1)));
    for _ in 0..3 {
        let waiting = queues.wait(&name, LONG);
        let short = Duration::from_millis(50);
        assert!(tokio::time::timeout(short, waiting).await.is_err());
    }
    wait_until(|| publisher.disk.lock().forgotten.len() == 3).await;
    assert_eq!((publisher.open_ends(), publisher.disk.lock().attaches), (0, 1));
}

#[tokio::test]
async fn ten_thousand_waits_share_a_link_and_more_queue() {
    const WAITS: u64 = 10_100;
    let publisher = with_job(1).await;
    publisher.disk.lock().ends.extend((0..WAITS).map(|n| (id(n), None)));
    let queues = queues(&[&publisher]);
    let waits: Vec<_> = (0..WAITS)
        .map(|n| {
            let (queues, name) = (queues.clone(), name(&publisher, id(n)));
            tokio::spawn(async move { queues.wait(&name, LONG).await })
        })
        .collect();
    wait_until(|| publisher.open_ends() == 10_000).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(publisher.open_ends(), 10_000, "as many as a publisher lets one link have");
    for n in 0..WAITS {
        publisher.end(completed(n, b"x"));
    }
    for wait in waits {
        assert!(matches!(wait.await.expect("no panic"), Ok(JobEnd::Completed { .. })));
    }
    assert_eq!(publisher.disk.lock().attaches, 1);
}

#[tokio::test]
async fn a_bare_id_is_looked_up_at_every_publisher() {
    let (one, two) = (FakePublisher::start(1).await, FakePublisher::start(2).await);
    one.answer_requests(|_| Some(Ok(Answer::Job(None))));
    two.answer_requests(|request| {
        let running = JobInfo { ..job(id(1), JobState::Running, 1) };
        let found = matches!(request, Request::Job { id: requested } if requested == id(1));
        Some(Ok(Answer::Job(found.then(|| Box::new(running)))))
    });
    two.disk.lock().ends.insert(id(1), None);
    let queues = queues(&[&one, &two]);
    let nowhere = queues.wait(id(2), LONG).await;
    assert!(matches!(nowhere, Err(WaitError::Lookup(JobLookupError::NotFound { .. }))));
    let waiting = tokio::spawn(async move { queues.wait(id(1), LONG).await });
    wait_until(|| two.open_ends() == 1).await;
    two.end(job(id(1), JobState::Cancelled, 1));
    assert_eq!(waiting.await.expect("no panic"), Ok(JobEnd::Cancelled));
}

#[tokio::test]
async fn a_refused_wait_fails_at_once() {
    let publisher = FakePublisher::start(1).await;
    publisher.answer_requests(|_| Some(Err(RequestError::Unreadable)));
    let end = queues(&[&publisher]).wait(&name(&publisher, id(1)), LONG).await;
    assert_eq!(end, Err(WaitError::Refused(RequestError::Unreadable)));
}
