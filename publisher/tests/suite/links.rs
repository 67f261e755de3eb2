//! A publisher's links, with a client that sends raw messages.

use std::path::Path as FilePath;
use std::time::Duration;

use longshore_protocol::limits::{BATCH_PAYLOAD_BYTES_MAX, REQUESTS_OPEN_MAX};
use longshore_protocol::messages::work::{
    Action, Answer, FromPublisher, Request, RequestError, ToPublisher,
};
use longshore_protocol::{DeathReason, Due, FrameWriter, Gate, Glob, Path, Role};
use longshore_publisher::{OpenError, Publisher, PublisherOptions, TestClock};
use tokio::task::JoinHandle;

use crate::client::{A_WHILE, Client, LONG, MIB, Running, everything, fresh, id, job, publisher};

/// Flips a bit of the first occurrence of these bytes in the journal.
fn flip_a_bit(dir: &FilePath, bytes: &[u8]) {
    for file in std::fs::read_dir(dir.join("segments")).unwrap() {
        let path = file.unwrap().path();
        let mut found = std::fs::read(&path).unwrap();
        if let Some(at) = found.windows(bytes.len()).position(|window| window == bytes) {
            found[at] ^= 1;
            std::fs::write(&path, found).unwrap();
            return;
        }
    }
    panic!("the journal does not contain them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_job_is_buried_and_its_credit_is_reused() {
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), 0).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    producer.enqueue([job(1, 100)]).await;
    producer.enqueue([job(2, 100)]).await;
    flip_a_bit(dir.path(), &[1; 100]);
    let waits = producer.request(Request::Await { id: id(1) });
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(1);
    let jobs = worker.delivered().await;
    assert_eq!(jobs.len(), 1, "the credit is used once");
    // The waiting request is answered with the reason of death, without the payload.
    let Ok(Answer::Job(Some(dead))) = producer.answer(waits).await else { panic!("no end") };
    assert_eq!((dead.death, dead.payload), (Some(DeathReason::PayloadDamaged), None));
    let counts = producer.counts().await;
    assert_eq!((counts.dead, counts.running, counts.ready), (1, 1, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_worker_receives_a_cold_backlog_on_one_link() {
    const JOBS: u32 = 128;
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), 0).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    for n in 0..JOBS / 8 {
        producer.enqueue((0..8).map(|m| job(n * 8 + m, MIB))).await;
    }
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(JOBS);
    // All of it would be in the link's send queue by now, and exceed its limit.
    tokio::time::sleep(2 * A_WHILE).await;
    let mut jobs = 0;
    while jobs < JOBS as usize {
        jobs += worker.delivered().await.len();
    }
    assert_eq!(producer.counts().await.running, u64::from(JOBS));
    running.stop().await;
}

/// Jobs that were never sent are no worker's fault, and not their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_wait_for_a_slow_link_never_become_undeliverable() {
    const JOBS: u32 = 32;
    let dir = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let options =
        PublisherOptions { clock: Some(clock.clone()), ..PublisherOptions::new(dir.path()) };
    let running = crate::client::running(options).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    for n in 0..JOBS / 8 {
        let mut jobs: Vec<_> = (0..8).map(|m| job(n * 8 + m, MIB)).collect();
        jobs.iter_mut().for_each(|job| job.options.max_attempts = Some(1));
        producer.enqueue(jobs).await;
    }
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(JOBS);
    while producer.counts().await.running < u64::from(JOBS) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It reads a little, and each move loses all leases.
    for _ in 0..45 {
        clock.advance(Duration::from_secs(30)).await.unwrap();
        let mut read = 0;
        while read < 6 {
            read += worker.delivered().await.len();
        }
        worker.credit(read as u32);
    }
    let counts = producer.counts().await;
    // The oldest were sent each time, and lost: they do become undeliverable.
    assert!(counts.dead <= 8, "{counts:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_unsent_job_is_not_sent_and_returns_its_credit() {
    const JOBS: u32 = 48;
    let running = fresh().await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    for n in 0..JOBS / 8 {
        producer.enqueue((0..8).map(|m| job(n * 8 + m, MIB))).await;
    }
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(JOBS);
    tokio::time::sleep(A_WHILE).await;
    let (action, selection) = (Action::Cancel, everything());
    let act = Request::Act { action, selection, pace: None, dry_run: false };
    producer.ask(act).await;
    assert_eq!(producer.counts().await.cancelled, u64::from(JOBS));
    let sent = worker.delivered_for_a_while().await.len();
    assert!(sent < JOBS as usize, "{sent} were sent before");
    producer.enqueue((0..JOBS).map(|n| job(1_000 + n, 10))).await;
    let more = worker.delivered_for_a_while().await.len();
    assert_eq!(more, JOBS as usize - sent, "a credit for each that was not sent");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_publisher_releases_its_links_and_port() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = Publisher::open(PublisherOptions::new(dir.path())).await.unwrap();
    let address = publisher.local_address();
    let running = tokio::spawn(publisher.run(std::future::pending()));
    let mut client = Client::attach_at(address, Role::Producer, 1).await;
    running.abort();
    let ends = async { while client.receiver.recv().await.is_ok() {} };
    tokio::time::timeout(LONG, ends).await.unwrap();
    let free = async {
        while std::net::TcpListener::bind(address).is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, free).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_job_becomes_ready_under_constant_input() {
    let running = fresh().await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.subscribe_with(1);
    let floods: Vec<_> = [10, 11, 12, 13].map(|session| flood(&running, session)).into();
    tokio::time::sleep(A_WHILE).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    let mut delayed = job(1, 10);
    delayed.options.due = Due::After(100);
    producer.enqueue([delayed]).await;
    assert_eq!(worker.delivered().await.len(), 1);
    assert_eq!(producer.status().await.jobs, 1);
    floods.iter().for_each(JoinHandle::abort);
    running.stop().await;
}

/// A client that sends useless messages as fast as it can.
fn flood(to: &Running, session: u8) -> JoinHandle<()> {
    let address = to.address;
    tokio::spawn(async move {
        let client = Client::attach_at(address, Role::Tool, session).await;
        loop {
            let mut out = FrameWriter::new();
            for _ in 0..1_000 {
                ToPublisher::Unsubscribe(1).encode(&mut out);
            }
            client.sender.send(out.finish()).unwrap();
            client.sender.ready(MIB).await.unwrap();
        }
    })
}

#[tokio::test]
async fn too_many_paths_are_refused_before_any_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PublisherOptions::new(dir.path().join("data"));
    options.paths = (0..100_001).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
    let refused = Publisher::open(options).await.map(drop);
    assert!(matches!(refused, Err(OpenError::TooManyPaths(100_001))), "{refused:?}");
    assert!(!dir.path().join("data").exists());
}

#[tokio::test]
async fn too_short_hang_limit_is_refused_before_any_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PublisherOptions::new(dir.path().join("data"));
    options.hang_after = Duration::from_millis(999);
    let refused = Publisher::open(options).await.map(drop);
    assert!(matches!(refused, Err(OpenError::HangsTooSoon(_))), "{refused:?}");
    assert!(!dir.path().join("data").exists());
}

#[tokio::test]
async fn too_small_clock_skew_is_refused_before_any_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PublisherOptions::new(dir.path().join("data"));
    options.clock_skew_max = Duration::from_millis(999);
    let refused = Publisher::open(options).await.map(drop);
    assert!(matches!(refused, Err(OpenError::ClockSkewTooSmall(_))), "{refused:?}");
    assert!(!dir.path().join("data").exists());
}

#[tokio::test]
async fn invalid_advertised_addresses_are_refused_before_any_write() {
    let dir = tempfile::tempdir().unwrap();
    let host = |n: usize| format!("{}.example:{n}", "a".repeat(63)).parse().unwrap();
    for (addresses, reason) in [
        (17, "--advertise: 17 addresses are more than the 16 that a publisher may advertise"),
        (
            16,
            "--advertise: its names and addresses take 1238 bytes and may take 1152; advertise \
             fewer addresses, or shorter host names",
        ),
    ] {
        let mut options = PublisherOptions::new(dir.path().join("data"));
        options.advertise = (1..=addresses).map(host).collect();
        let refused = Publisher::open(options).await.map(drop).unwrap_err();
        assert_eq!(refused.to_string(), reason);
        assert!(!dir.path().join("data").exists());
    }
}

#[tokio::test]
async fn reconnect_grace_under_two_heartbeats_is_refused_with_the_minimum() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PublisherOptions::new(dir.path().join("data"));
    options.leases.reconnect_grace_ms = 3_999;
    let refused = Publisher::open(options.clone()).await.map(drop).unwrap_err();
    let reason = "leases.reconnect_grace_ms is 3999: workers would begin no job between two \
                heartbeats of 2s; give it 4000 at least, or shorten timing.heartbeat";
    assert_eq!(refused.to_string(), reason);
    assert!(!dir.path().join("data").exists());
    options.leases.reconnect_grace_ms = 4_000;
    Publisher::open(options).await.map(drop).unwrap();
}

const _: () = assert!(8 * MIB <= BATCH_PAYLOAD_BYTES_MAX);

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_per_link_are_limited() {
    /// Twice as many as may wait, beside what fits into buffers on the way.
    const ASKED: usize = 2 * REQUESTS_OPEN_MAX + 64;
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), MIB).await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    tool.enqueue([job(1, MIB)]).await;
    // Nothing is read until the last request is processed.
    let mut out = FrameWriter::new();
    for number in 0..ASKED as u64 {
        ToPublisher::Request { id: number, request: Request::Job { id: id(1) } }.encode(&mut out);
    }
    let (gate, pattern) = (Gate::Delivery, Glob::everything());
    let pause = Request::Pause { gate, pattern, paused: true };
    ToPublisher::Request { id: 1_000, request: pause }.encode(&mut out);
    tool.sender.send(out.finish()).unwrap();
    let mut other = Client::attach(&running, Role::Tool, 2).await;
    loop {
        let queues = Request::Queues { pattern: Glob::everything(), cursor: 0 };
        let Answer::Queues(page) = other.ask(queues).await else { panic!("queues") };
        if !page.queues[0].paused_by.is_empty() {
            break;
        }
    }
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..=ASKED {
        match tool.receive().await {
            FromPublisher::Answer { answer: Ok(Answer::Job(Some(_))), .. } => answered += 1,
            FromPublisher::Answer { answer: Err(RequestError::TooMany), .. } => refused += 1,
            FromPublisher::Answer { id: 1_000, .. } => {}
            other => panic!("not expected: {other:?}"),
        }
    }
    assert!(answered >= REQUESTS_OPEN_MAX && refused > 0, "{answered}, {refused}");
    assert_eq!(answered + refused, ASKED);
    // Answered requests free their slots.
    assert!(matches!(tool.ask(Request::Job { id: id(1) }).await, Answer::Job(Some(_))));
    running.stop().await;
}
