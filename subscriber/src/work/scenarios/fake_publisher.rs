//! A scripted publisher that listens on the loopback interface.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Attached, Credit, Deliver, Delivery, FromPublisher, JobTimes, SettleBatch, Settled, Sources,
    Subscribe, ToPublisher, Tokens, Verdict, Waiting,
};
use longshore_protocol::{
    Durability, Epoch, FrameWriter, Glob, JobId, Messages, NewJob, Path, PublisherId,
    PublisherInfo, Revoked, Role, Runs, SettleOutcome, Token,
};
use longshore_transport::{
    Link, LinkEnd, LinkReceiver, LinkSender, Listener, ListenerOptions, ServerInfo,
};

/// How long a scenario waits for an expected message.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct FakePublisher {
    pub(super) id: PublisherId,
    /// The reconnect grace that it reports.
    pub(super) grace_ms: u64,
    listener: Listener,
}

pub(super) struct FakeLink {
    sender: LinkSender,
    receiver: LinkReceiver,
    /// Received, and not yet returned by `find` or `next`.
    unread: VecDeque<ToPublisher>,
    pub(super) credits: u32,
}

impl FakePublisher {
    pub(super) async fn start(n: u8) -> FakePublisher {
        let id = PublisherId([n; 16]);
        let info = ServerInfo {
            instance: id.0,
            epoch: 1,
            name: format!("p{n}"),
            serves: |role| role == Role::Worker,
        };
        let address = ([127, 0, 0, 1], 0).into();
        let listener = Listener::bind(address, info, ListenerOptions::default()).unwrap();
        FakePublisher { id, grace_ms: 5_000, listener }
    }

    pub(super) fn info(&self) -> PublisherInfo {
        PublisherInfo::new(
            self.id,
            Epoch(1),
            format!("p{}", self.id.0[0]),
            [self.listener.local_address()],
        )
    }

    /// Accepts the next link that sends a frame.
    async fn accept(&mut self) -> FakeLink {
        loop {
            let link: Link = within(self.listener.accept()).await;
            let (sender, receiver) = link.split();
            let mut link = FakeLink { sender, receiver, unread: VecDeque::new(), credits: 0 };
            if link.read().await.is_ok() {
                return link;
            }
        }
    }

    /// Attaches a link, and returns the tokens that it resumes.
    pub(super) async fn attach(&mut self, next_settle: u64, gone: &[u64]) -> (FakeLink, Vec<u64>) {
        let (link, resumed, sources) = self.attach_with_sources(next_settle, gone).await;
        assert_eq!(sources, Sources::one(Glob::new("/jobs/**").unwrap()));
        (link, resumed)
    }

    /// Attaches a link, and returns the tokens that it resumes and its sources.
    pub(super) async fn attach_with_sources(
        &mut self,
        next_settle: u64,
        gone: &[u64],
    ) -> (FakeLink, Vec<u64>, Sources) {
        let mut link = self.accept().await;
        let ToPublisher::Attach(attach) = link.next().await else { panic!("Attach comes first") };
        let gone = Tokens(gone.iter().map(|token| Token(*token)).collect());
        link.send(FromPublisher::Attached(Attached {
            durability: Durability::Fsync,
            next_batch: 1,
            next_settle,
            gone,
            reconnect_grace_ms: self.grace_ms,
        }));
        let ToPublisher::Subscribe(Subscribe { subscription: 1, sources, .. }) = link.next().await
        else {
            panic!("Subscribe comes second")
        };
        (link, attach.resume.0.iter().map(|token| token.0).collect(), sources)
    }
}

impl FakeLink {
    pub(super) fn send(&self, message: FromPublisher) {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        self.sender.send(out.finish()).unwrap();
    }

    async fn read(&mut self) -> Result<(), LinkEnd> {
        let frame = within(self.receiver.recv()).await?;
        for message in Messages::new(frame) {
            let (tag, body) = message.unwrap();
            let message = ToPublisher::decode(tag, body).unwrap().unwrap();
            if let ToPublisher::Credit(Credit { count, .. }) = message {
                self.credits += count;
            }
            self.unread.push_back(message);
        }
        Ok(())
    }

    /// The next message, whatever it is.
    pub(super) async fn next(&mut self) -> ToPublisher {
        loop {
            if let Some(message) = self.unread.pop_front() {
                return message;
            }
            self.read().await.unwrap();
        }
    }

    /// The next message that `select` accepts; those before it stay unread.
    pub(super) async fn find<T>(&mut self, select: impl Fn(&ToPublisher) -> Option<T>) -> T {
        let mut at = 0;
        loop {
            while at < self.unread.len() {
                if let Some(found) = select(&self.unread[at]) {
                    self.unread.remove(at);
                    return found;
                }
                at += 1;
            }
            self.read().await.unwrap();
        }
    }

    /// Waits until the worker has granted this many credits in all.
    pub(super) async fn granted(&mut self, credits: u32) {
        while self.credits < credits {
            self.read().await.unwrap();
        }
    }

    /// The credits granted in all.
    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    pub(super) async fn settle(&mut self) -> SettleBatch {
        self.find(|message| match message {
            ToPublisher::Settle(batch) => Some(batch.clone()),
            _ => None,
        })
        .await
    }

    pub(super) async fn started(&mut self) -> Vec<u64> {
        self.find(|message| match message {
            ToPublisher::Started(started) => Some(numbers(&started.tokens)),
            _ => None,
        })
        .await
    }

    pub(super) async fn renewal(&mut self) -> Vec<u64> {
        self.find(|message| match message {
            ToPublisher::Renew(tokens) => Some(numbers(tokens)),
            _ => None,
        })
        .await
    }

    pub(super) async fn recall(&mut self) -> u32 {
        self.find(|message| match message {
            ToPublisher::Recall(credit) => Some(credit.count),
            _ => None,
        })
        .await
    }

    pub(super) async fn unsubscribe(&mut self) {
        self.find(|message| matches!(message, ToPublisher::Unsubscribe(1)).then_some(())).await;
    }

    /// True if an unread message is of that kind.
    pub(super) fn has_unread(&self, kind: impl Fn(&ToPublisher) -> bool) -> bool {
        self.unread.iter().any(kind)
    }

    pub(super) fn deliver(&self, jobs: &[(u64, &str)]) {
        self.deliver_entries(jobs.iter().map(|(token, payload)| (*token, entry(payload))), 30_000);
    }

    pub(super) fn deliver_with_lease(&self, token: u64, lease_ms: u32) {
        self.deliver_entries([(token, entry("x"))], lease_ms);
    }

    pub(super) fn deliver_entries(
        &self,
        jobs: impl IntoIterator<Item = (u64, Bytes)>,
        lease_ms: u32,
    ) {
        let job = |(token, entry)| Delivery { lease_ms, entry, ..delivery(token) };
        self.deliver_all(jobs.into_iter().map(job));
    }

    pub(super) fn deliver_all(&self, jobs: impl IntoIterator<Item = Delivery>) {
        self.send(FromPublisher::Deliver(Deliver {
            subscription: 1,
            paths: vec![Path::new("/jobs/x").unwrap()],
            jobs: jobs.into_iter().collect(),
        }));
    }

    pub(super) fn answer(&self, batch: &SettleBatch, outcome: SettleOutcome) {
        let outcomes = Runs::all(outcome, batch.len());
        self.send(FromPublisher::Settled(Settled { sequence: batch.sequence, outcomes }));
    }

    pub(super) fn accept(&self, batch: &SettleBatch) {
        self.answer(batch, SettleOutcome::Accepted);
    }

    pub(super) fn revoke(&self, reason: Revoked, token: u64) {
        self.send(FromPublisher::Revoked { reason, tokens: Tokens(vec![Token(token)]) });
    }

    pub(super) fn waiting(&self, jobs: u64) {
        self.send(FromPublisher::Waiting(Waiting { subscription: 1, jobs }));
    }

    pub(super) fn returned(&self, count: u32) {
        self.send(FromPublisher::Returned(Credit { subscription: 1, count }));
    }

    /// Waits until the worker has closed the link.
    pub(super) async fn ended(mut self) {
        while within(self.receiver.recv()).await.is_ok() {}
    }
}

/// The first delivery of a job.
pub(super) fn delivery(token: u64) -> Delivery {
    Delivery {
        token: Token(token),
        path: 0,
        attempt: 1,
        deliveries: 1,
        lease_ms: 30_000,
        checkpoints: 0,
        times: JobTimes::default(),
        entry: entry("x"),
    }
}

/// The tokens and verdicts of a batch.
pub(super) fn verdicts(batch: &SettleBatch) -> Vec<(u64, Verdict)> {
    batch.items().map(|item| (item.token.0, item.verdict)).collect()
}

pub(super) fn entry(payload: &str) -> Bytes {
    entry_of(&NewJob::new(Path::new("/jobs/x").unwrap(), JobId([9; 16]), payload.to_owned()))
}

/// The entry of a job that retains its result.
pub(super) fn entry_of(job: &NewJob) -> Bytes {
    let mut job = job.clone();
    job.options.keep_result = true;
    let mut out = FrameWriter::new();
    job.encode_entry_head(&mut out);
    out.put(&job.payload);
    out.into_body()
}

pub(super) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("the message must arrive")
}

fn numbers(tokens: &Tokens) -> Vec<u64> {
    tokens.0.iter().map(|token| token.0).collect()
}
