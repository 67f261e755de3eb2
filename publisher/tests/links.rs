//! A publisher's links, as a client with bare hands sees them.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::path::Path as FilePath;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::limits::BATCH_PAYLOAD_BYTES_MAX;
use longshore_protocol::messages::work::{
    Action, Answer, Attach, BatchBuilder, Credit, Delivery, Filter, FromPublisher, JobCounts,
    PublisherStatus, Request, Selection, Sources, Subscribe, ToPublisher,
};
use longshore_protocol::{
    FrameWriter, Glob, Hello, JobId, LinkTiming, Messages, NewJob, Path, Role, SessionId,
};
use longshore_publisher::{OpenError, Publisher, PublisherOptions};
use longshore_transport::{LinkOptions, LinkReceiver, LinkSender, dial};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const MIB: usize = 1024 * 1024;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);
/// Long enough that what could come has come.
const A_WHILE: Duration = Duration::from_millis(500);

struct Running {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

async fn publisher(dir: &FilePath, cache_bytes: usize) -> Running {
    let options =
        PublisherOptions { cache_bytes, segment_bytes: 1024 * 1024, ..PublisherOptions::new(dir) };
    let publisher = Publisher::open(options).await.unwrap();
    let address = publisher.local_address();
    let (stop, stopped) = oneshot::channel();
    let done = tokio::spawn(async move {
        publisher
            .run(async {
                stopped.await.ok();
            })
            .await
            .unwrap();
    });
    Running { address, stop, done }
}

impl Running {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.done.await.unwrap();
    }
}

struct Client {
    sender: LinkSender,
    receiver: LinkReceiver,
    messages: Option<Messages>,
}

impl Client {
    async fn attach(to: &Running, role: Role, session: u8) -> Client {
        let hello = Hello::new(role, SessionId([session; 16]), "test", LinkTiming::WORK);
        let link = dial(to.address, &hello, &LinkOptions::default()).await.unwrap();
        let (sender, receiver) = link.split();
        let mut client = Client { sender, receiver, messages: None };
        client.say(&ToPublisher::Attach(Attach::default()));
        assert!(matches!(client.hear().await, FromPublisher::Attached(_)));
        client
    }

    fn say(&self, message: &ToPublisher) {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        self.sender.send(out.finish()).unwrap();
    }

    /// The next message.
    async fn hear(&mut self) -> FromPublisher {
        loop {
            while let Some(next) = self.messages.as_mut().and_then(Iterator::next) {
                let (tag, body) = next.unwrap();
                if let Some(message) = FromPublisher::decode(tag, body).unwrap() {
                    return message;
                }
            }
            let frame = tokio::time::timeout(LONG, self.receiver.recv()).await.unwrap();
            self.messages = Some(Messages::new(frame.unwrap()));
        }
    }

    /// The next jobs; everything else that comes before them is passed over.
    async fn delivered(&mut self) -> Vec<Delivery> {
        loop {
            if let FromPublisher::Deliver(deliver) = self.hear().await {
                return deliver.jobs;
            }
        }
    }

    /// All jobs that come until nothing has come for a while.
    async fn delivered_for_a_while(&mut self) -> Vec<Delivery> {
        let mut jobs = Vec::new();
        while let Ok(more) = tokio::time::timeout(A_WHILE, self.delivered()).await {
            jobs.extend(more);
        }
        jobs
    }

    fn take(&self, credits: u32) {
        let sources = Sources::one(Glob::new("/jobs/**").unwrap());
        self.say(&ToPublisher::Subscribe(Subscribe { subscription: 1, sources }));
        self.say(&ToPublisher::Credit(Credit { subscription: 1, count: credits }));
    }

    async fn enqueue(&mut self, sequence: u64, jobs: impl IntoIterator<Item = NewJob>) {
        let mut batch = BatchBuilder::new();
        jobs.into_iter().for_each(|job| batch.push(&job));
        self.say(&ToPublisher::Enqueue(batch.seal(false).to_batch(sequence).unwrap()));
        while !matches!(self.hear().await, FromPublisher::Enqueued(_)) {}
    }

    async fn ask(&mut self, request: Request) -> Answer {
        self.say(&ToPublisher::Request { id: 1, request });
        loop {
            if let FromPublisher::Answer { answer, .. } = self.hear().await {
                return answer.unwrap();
            }
        }
    }

    async fn counts(&mut self) -> JobCounts {
        let pattern = Glob::new("/jobs/a").unwrap();
        match self.ask(Request::Queues { pattern }).await {
            Answer::Queues(queues) => queues[0].counts,
            other => panic!("{other:?}"),
        }
    }

    async fn status(&mut self) -> PublisherStatus {
        match self.ask(Request::Status).await {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }
}

fn job(n: u32, payload: usize) -> NewJob {
    let mut random = [0; 10];
    random[..4].copy_from_slice(&n.to_be_bytes());
    let id = JobId::new_v7(u64::from(n), random);
    NewJob::new(Path::new("/jobs/a").unwrap(), id, Bytes::from(vec![n as u8; payload]))
}

/// Turns a bit of the first such bytes in the journal.
fn rot(dir: &FilePath, bytes: &[u8]) {
    for file in std::fs::read_dir(dir.join("segments")).unwrap() {
        let path = file.unwrap().path();
        let mut found = std::fs::read(&path).unwrap();
        if let Some(at) = found.windows(bytes.len()).position(|window| window == bytes) {
            found[at] ^= 1;
            std::fs::write(&path, found).unwrap();
            return;
        }
    }
    panic!("the journal does not hold them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_job_is_buried_and_its_credit_takes_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), 0).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    producer.enqueue(1, [job(1, 100)]).await;
    producer.enqueue(2, [job(2, 100)]).await;
    rot(dir.path(), &[1; 100]);
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.take(1);
    let jobs = worker.delivered().await;
    assert_eq!(jobs.len(), 1, "the one credit, once");
    let counts = producer.counts().await;
    assert_eq!((counts.dead, counts.running, counts.ready), (1, 1, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_reads_slowly_gets_a_cold_backlog_on_one_link() {
    const JOBS: u32 = 128;
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), 0).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    for n in 0..JOBS / 8 {
        producer.enqueue(u64::from(n) + 1, (0..8).map(|m| job(n * 8 + m, MIB))).await;
    }
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.take(JOBS);
    // All of it would be in the link's send queue by now, and more than it takes.
    tokio::time::sleep(2 * A_WHILE).await;
    let mut jobs = 0;
    while jobs < JOBS as usize {
        jobs += worker.delivered().await.len();
    }
    assert_eq!(producer.counts().await.running, u64::from(JOBS));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cancelled_while_it_waits_for_its_link_is_not_sent_and_its_credit_comes_back() {
    const JOBS: u32 = 48;
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), PublisherOptions::CACHE_BYTES).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    for n in 0..JOBS / 8 {
        producer.enqueue(u64::from(n) + 1, (0..8).map(|m| job(n * 8 + m, MIB))).await;
    }
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.take(JOBS);
    tokio::time::sleep(A_WHILE).await;
    let selection = Selection::Matching(Filter::of(Glob::new("/jobs/**").unwrap()));
    let act = Request::Act { action: Action::Cancel, selection, pace: None, dry_run: false };
    producer.ask(act).await;
    assert_eq!(producer.counts().await.cancelled, u64::from(JOBS));
    let sent = worker.delivered_for_a_while().await.len();
    assert!(sent < JOBS as usize, "{sent} were on their way already");
    producer.enqueue(u64::from(JOBS / 8) + 1, (0..JOBS).map(|n| job(1_000 + n, 10))).await;
    let more = worker.delivered_for_a_while().await.len();
    assert_eq!(more, JOBS as usize - sent, "a credit for each that was not sent");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_job_comes_due_while_input_never_ends() {
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), PublisherOptions::CACHE_BYTES).await;
    let mut worker = Client::attach(&running, Role::Worker, 2).await;
    worker.take(1);
    let floods: Vec<_> = [10, 11, 12, 13].map(|session| flood(&running, session)).into();
    tokio::time::sleep(A_WHILE).await;
    let mut producer = Client::attach(&running, Role::Producer, 1).await;
    let mut delayed = job(1, 10);
    delayed.options.due = longshore_protocol::Due::After(100);
    producer.enqueue(1, [delayed]).await;
    assert_eq!(worker.delivered().await.len(), 1);
    assert_eq!(producer.status().await.jobs, 1);
    floods.iter().for_each(JoinHandle::abort);
    running.stop().await;
}

/// A client that says useless things as fast as it can.
fn flood(to: &Running, session: u8) -> JoinHandle<()> {
    let to =
        Running { address: to.address, stop: oneshot::channel().0, done: tokio::spawn(async {}) };
    tokio::spawn(async move {
        let client = Client::attach(&to, Role::Tool, session).await;
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
async fn more_paths_than_a_start_can_name_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = PublisherOptions::new(dir.path().join("data"));
    options.paths = (0..100_001).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
    let refused = Publisher::open(options).await.map(drop);
    assert!(matches!(refused, Err(OpenError::TooManyPaths(100_001))), "{refused:?}");
    assert!(!dir.path().join("data").exists());
}

const _: () = assert!(8 * MIB <= BATCH_PAYLOAD_BYTES_MAX);

#[tokio::test(flavor = "multi_thread")]
async fn a_link_has_so_many_requests_open_and_one_more_is_refused_by_name() {
    use longshore_protocol::limits::REQUESTS_OPEN_MAX;
    use longshore_protocol::messages::work::RequestError;
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path(), MIB).await;
    let mut tool = Client::attach(&running, Role::Tool, 1).await;
    // All in one frame: none can be answered before the last is read.
    let mut out = FrameWriter::new();
    for id in 0..=REQUESTS_OPEN_MAX as u64 {
        ToPublisher::Request { id, request: Request::Queues { pattern: Glob::everything() } }
            .encode(&mut out);
    }
    tool.sender.send(out.finish()).unwrap();
    let mut refused = Vec::new();
    for _ in 0..=REQUESTS_OPEN_MAX {
        match tool.hear().await {
            FromPublisher::Answer { answer: Ok(Answer::Queues(_)), .. } => {}
            FromPublisher::Answer { id, answer: Err(RequestError::TooMany) } => refused.push(id),
            other => panic!("not expected: {other:?}"),
        }
    }
    assert_eq!(refused, [REQUESTS_OPEN_MAX as u64]);
    // Answered ones make room again.
    tool.say(&ToPublisher::Request {
        id: 100,
        request: Request::Queues { pattern: Glob::everything() },
    });
    assert!(matches!(tool.hear().await, FromPublisher::Answer { id: 100, answer: Ok(_) }));
    running.stop().await;
}
