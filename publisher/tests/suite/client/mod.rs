//! A publisher in this process, and a client that sends raw messages on its links.
#![allow(dead_code)]

use std::path::Path as FilePath;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Answer, Attach, BatchBuilder, Credit, Delivery, Enqueued, Filter, FromPublisher, JobCounts,
    JobInfo, NewSettle, PublisherStatus, Request, RequestError, Selection, SettleBatchBuilder,
    Sources, Subscribe, ToPublisher, Tokens,
};
use longshore_protocol::{
    FrameWriter, Glob, Handshake, JobError, JobId, LinkTiming, Messages, NewJob, Path, Revoked,
    Role, SessionId, SettleOutcome, Token,
};
use longshore_publisher::{Publisher, PublisherOptions};
use longshore_transport::{LinkOptions, LinkReceiver, LinkSender, dial};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const MIB: usize = 1024 * 1024;
/// Longer than any step takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Long enough for every message under way to arrive.
pub(crate) const A_WHILE: Duration = Duration::from_millis(500);

pub(crate) struct Running {
    pub(crate) address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
    /// Removed on drop.
    dir: Option<TempDir>,
}

pub(crate) async fn publisher(dir: &FilePath, cache_bytes: usize) -> Running {
    let options =
        PublisherOptions { cache_bytes, segment_bytes: 1024 * 1024, ..PublisherOptions::new(dir) };
    running(options).await
}

pub(crate) async fn running(options: PublisherOptions) -> Running {
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
    Running { address, stop, done, dir: None }
}

/// A publisher that caches recent payloads.
pub(crate) async fn cached(dir: &FilePath) -> Running {
    publisher(dir, PublisherOptions::CACHE_BYTES).await
}

/// The same, with its own data directory.
pub(crate) async fn fresh() -> Running {
    let dir = tempfile::tempdir().unwrap();
    let running = cached(dir.path()).await;
    Running { dir: Some(dir), ..running }
}

impl Running {
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.done.await.unwrap();
    }
}

pub(crate) struct Client {
    pub(crate) sender: LinkSender,
    pub(crate) receiver: LinkReceiver,
    messages: Option<Messages>,
    requests: u64,
    batches: u64,
    settles: u64,
}

impl Client {
    pub(crate) async fn attach(to: &Running, role: Role, session: u8) -> Client {
        Client::attach_at(to.address, role, session).await
    }

    pub(crate) async fn attach_at(to: std::net::SocketAddr, role: Role, session: u8) -> Client {
        Client::attach_with(to, role, session, LinkOptions::default()).await
    }

    pub(crate) async fn attach_with(
        to: std::net::SocketAddr,
        role: Role,
        session: u8,
        options: LinkOptions,
    ) -> Client {
        let handshake = Handshake::new(role, SessionId([session; 16]), "test", LinkTiming::WORK);
        let link = dial(to, &handshake, &options).await.unwrap();
        let (sender, receiver) = link.split();
        let mut client =
            Client { sender, receiver, messages: None, requests: 0, batches: 0, settles: 0 };
        client.send(&ToPublisher::Attach(Attach::default()));
        match client.receive().await {
            FromPublisher::Attached(attached) => {
                client.batches = attached.next_batch - 1;
                client.settles = attached.next_settle - 1;
                assert_eq!(attached.reconnect_grace_ms, 5_000, "workers start nothing later");
            }
            other => panic!("{other:?}"),
        }
        client
    }

    pub(crate) fn send(&self, message: &ToPublisher) {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        self.sender.send(out.finish()).unwrap();
    }

    /// The next message.
    pub(crate) async fn receive(&mut self) -> FromPublisher {
        loop {
            while let Some(next) = self.messages.as_mut().and_then(Iterator::next) {
                let (tag, body) = next.unwrap();
                if let Some(message) = FromPublisher::decode(tag, body).unwrap() {
                    return message;
                }
            }
            let frame = tokio::time::timeout(LONG, self.receiver.recv()).await;
            self.messages = Some(Messages::new(frame.expect("in time").unwrap()));
        }
    }

    /// Receives until `wanted` matches a message; ignores the others.
    pub(crate) async fn until<T>(
        &mut self,
        mut wanted: impl FnMut(FromPublisher) -> Option<T>,
    ) -> T {
        loop {
            if let Some(found) = wanted(self.receive().await) {
                return found;
            }
        }
    }

    /// The next jobs.
    pub(crate) async fn delivered(&mut self) -> Vec<Delivery> {
        self.until(|message| match message {
            FromPublisher::Deliver(deliver) => Some(deliver.jobs),
            _ => None,
        })
        .await
    }

    /// The only job of the next delivery.
    pub(crate) async fn job(&mut self) -> Delivery {
        let mut jobs = self.delivered().await;
        assert_eq!(jobs.len(), 1);
        jobs.pop().unwrap()
    }

    /// All jobs until none has arrived for a while.
    pub(crate) async fn delivered_for_a_while(&mut self) -> Vec<Delivery> {
        let mut jobs = Vec::new();
        while let Ok(more) = tokio::time::timeout(A_WHILE, self.delivered()).await {
            jobs.extend(more);
        }
        jobs
    }

    pub(crate) async fn revoked(&mut self) -> (Revoked, Vec<Token>) {
        self.until(|message| match message {
            FromPublisher::Revoked { reason, tokens: Tokens(tokens) } => Some((reason, tokens)),
            _ => None,
        })
        .await
    }

    pub(crate) fn subscribe_with(&self, credits: u32) {
        let sources = Sources::one(glob("/jobs/**"));
        self.send(&ToPublisher::Subscribe(Subscribe { subscription: 1, sources, handlers: 1_000 }));
        self.credit(credits);
    }

    pub(crate) fn credit(&self, count: u32) {
        self.send(&ToPublisher::Credit(Credit { subscription: 1, count }));
    }

    /// Enqueues jobs as the next batch, and waits for its answer.
    pub(crate) async fn enqueue(&mut self, jobs: impl IntoIterator<Item = NewJob>) -> Enqueued {
        self.batches += 1;
        let mut batch = BatchBuilder::new();
        jobs.into_iter().for_each(|job| batch.push(&job));
        self.send(&ToPublisher::Enqueue(batch.seal(false).to_batch(self.batches).unwrap()));
        self.until(|message| match message {
            FromPublisher::Enqueued(answer) => Some(answer),
            _ => None,
        })
        .await
    }

    /// Settles leases, and waits for the outcome of each.
    pub(crate) async fn settle(
        &mut self,
        settles: impl IntoIterator<Item = (Token, NewSettle)>,
    ) -> Vec<SettleOutcome> {
        self.settles += 1;
        let mut batch = SettleBatchBuilder::new();
        settles.into_iter().for_each(|(token, settle)| batch.push(token, &settle));
        let mut out = FrameWriter::new();
        SettleBatchBuilder::encode(&batch.seal(self.settles), &mut out);
        self.sender.send(out.finish()).unwrap();
        self.until(|message| match message {
            FromPublisher::Settled(settled) => Some(settled.outcomes.iter().collect()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn complete(&mut self, token: Token) {
        let enqueue_outcomes = self.settle([(token, NewSettle::Complete { result: None })]).await;
        assert_eq!(enqueue_outcomes, [SettleOutcome::Accepted]);
    }

    pub(crate) async fn bury(&mut self, token: Token, kind: &str, message: &str) {
        let enqueue_outcomes = self.settle([(token, NewSettle::Bury(error(kind, message)))]).await;
        assert_eq!(enqueue_outcomes, [SettleOutcome::Accepted]);
    }

    /// Sends a request; returns its number.
    pub(crate) fn request(&mut self, request: Request) -> u64 {
        self.requests += 1;
        self.send(&ToPublisher::Request { id: self.requests, request });
        self.requests
    }

    /// The answer to the request of that number.
    pub(crate) async fn answer(&mut self, number: u64) -> Result<Answer, RequestError> {
        self.until(|message| match message {
            FromPublisher::Answer { id, answer } if id == number => Some(answer),
            _ => None,
        })
        .await
    }

    pub(crate) async fn try_ask(&mut self, request: Request) -> Result<Answer, RequestError> {
        let number = self.request(request);
        self.answer(number).await
    }

    pub(crate) async fn ask(&mut self, request: Request) -> Answer {
        self.try_ask(request).await.unwrap()
    }

    pub(crate) async fn job_info(&mut self, id: JobId) -> Option<JobInfo> {
        match self.ask(Request::Job { id }).await {
            Answer::Job(job) => job.map(|job| *job),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn counts(&mut self) -> JobCounts {
        match self.ask(Request::Queues { pattern: glob("/jobs/a"), cursor: 0 }).await {
            Answer::Queues(page) => page.queues[0].counts,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn status(&mut self) -> PublisherStatus {
        match self.ask(Request::Status).await {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

pub(crate) fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

pub(crate) fn error(kind: &str, message: &str) -> JobError {
    JobError { kind: kind.to_owned(), message: message.to_owned() }
}

pub(crate) fn everything() -> Selection {
    Selection::Matching(Filter::of(glob("/jobs/**")))
}

pub(crate) fn id(n: u32) -> JobId {
    let mut random = [0; 10];
    random[..4].copy_from_slice(&n.to_be_bytes());
    JobId::new_v7(u64::from(n), random)
}

/// A job in `/jobs/a`.
pub(crate) fn job(n: u32, payload: usize) -> NewJob {
    job_in("/jobs/a", n, payload)
}

pub(crate) fn job_in(queue: &str, n: u32, payload: usize) -> NewJob {
    NewJob::new(path(queue), id(n), Bytes::from(vec![n as u8; payload]))
}
