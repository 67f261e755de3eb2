//! A scripted publisher with real sockets, and a disk in memory that survives its restarts.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::panic)]

pub mod job_model;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use job_model::SharedJobModel;
use longshore_protocol::messages::work::{
    Answer, Attached, EnqueueBatch, Enqueued, FromPublisher, JobInfo, Request, RequestError,
    ToPublisher, Tokens,
};
use longshore_protocol::{
    Address, BatchRefusal, Durability, EnqueueOutcome, Epoch, FrameWriter, JobId, Messages,
    PublisherId, PublisherInfo, Refusal, Runs, SessionId,
};
use longshore_transport::{Link, LinkReceiver, LinkSender, Listener, ListenerOptions, ServerInfo};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What the publisher does with a batch.
#[derive(Clone, Debug)]
pub enum BatchBehavior {
    Answer,
    /// Accepts it, and breaks the link before the answer.
    TakeAndBreak,
    /// Breaks the link without accepting it.
    Break,
    /// Accepts it, and never answers.
    TakeInSilence,
    Refuse(BatchRefusal),
    /// Accepts it, and answers after a delay.
    AnswerAfter(Duration),
    /// Answers with garbage.
    Garbage,
}

/// What the publisher does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestBehavior {
    Answer,
    /// Executes it, and breaks the link before the answer.
    DoAndBreak,
    /// Breaks the link without executing it.
    Break,
    /// Refuses it: too many requests are open.
    TooMany,
    /// Refuses it: the disk is full.
    NoSpace,
}

type Answerer = Box<dyn Fn(Request) -> Option<Result<Answer, RequestError>> + Send>;

#[derive(Default)]
pub struct Disk {
    /// How often each job was accepted; empty if jobs are only counted.
    pub jobs: HashMap<JobId, usize>,
    pub counted: u64,
    /// Jobs that were prepared.
    pub prepared: Vec<JobId>,
    pub batches: Vec<usize>,
    pub attaches: usize,
    next: HashMap<SessionId, u64>,
    answers: HashMap<(SessionId, u64), Runs<EnqueueOutcome>>,
    /// The behavior for the next batches; afterwards every batch is answered.
    pub script: VecDeque<BatchBehavior>,
    /// Jobs with this payload are refused.
    pub refuse_payload: Option<(&'static [u8], Refusal)>,
    pub answerer: Option<Answerer>,
    pub count_only: bool,
    /// The behavior for the next requests; afterwards every request is answered.
    pub request_script: VecDeque<RequestBehavior>,
    /// All executed requests.
    pub requests: Vec<Request>,
    /// Jobs whose ends can be awaited; `None` for those that have not ended.
    pub ends: HashMap<JobId, Option<JobInfo>>,
    /// The pending waits: link, request number and job.
    open_ends: Vec<(LinkSender, u64, JobId)>,
    /// The numbers of cancelled requests.
    pub forgotten: Vec<u64>,
    /// The model for listings and feeds.
    pub model: Option<SharedJobModel>,
}

pub struct FakePublisher {
    pub info: PublisherInfo,
    pub disk: Arc<Mutex<Disk>>,
    running: CancellationToken,
    done: Option<tokio::task::JoinHandle<()>>,
}

impl FakePublisher {
    pub async fn start(n: u8) -> FakePublisher {
        FakePublisher::start_with(n, Arc::default(), 1, ([127, 0, 0, 1], 0).into()).await
    }

    async fn start_with(
        n: u8,
        disk: Arc<Mutex<Disk>>,
        epoch: u64,
        address: SocketAddr,
    ) -> FakePublisher {
        let id = PublisherId([n; 16]);
        let name = format!("fake-{n}");
        let info = ServerInfo {
            instance: id.0,
            epoch,
            name: name.clone(),
            serves: |role| !role.is_for_resolver(),
        };
        let options = ListenerOptions::default();
        let mut listener = Listener::bind(address, info, options).expect("a free port");
        let addresses = [listener.local_address()];
        let running = CancellationToken::new();
        let (stop, shared) = (running.clone(), disk.clone());
        let done = tokio::spawn(async move {
            let mut links = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    link = listener.accept() => {
                        links.spawn(serve(link, shared.clone()));
                    }
                }
            }
        });
        let info = PublisherInfo::new(id, Epoch(epoch), name, addresses);
        FakePublisher { info, disk, running, done: Some(done) }
    }

    /// Stops it at once, with all of its links.
    pub async fn kill(&mut self) {
        self.disk.lock().open_ends.clear();
        self.running.cancel();
        if let Some(done) = self.done.take() {
            let _ = done.await;
        }
    }

    /// Restarts it with its disk, at another address.
    pub async fn revive(&mut self) {
        self.revive_at(([127, 0, 0, 1], 0).into()).await;
    }

    /// Restarts it with its disk.
    pub async fn revive_at(&mut self, address: Address) {
        let Address::Ip(address) = address else { panic!("{address} is no IP address") };
        self.kill().await;
        let (n, epoch) = (self.info.id.0[0], self.info.epoch.0 + 1);
        *self = FakePublisher::start_with(n, self.disk.clone(), epoch, address).await;
    }

    pub fn script(&self, behaviors: impl IntoIterator<Item = BatchBehavior>) {
        self.disk.lock().script.extend(behaviors);
    }

    pub fn script_requests(&self, behaviors: impl IntoIterator<Item = RequestBehavior>) {
        self.disk.lock().request_script.extend(behaviors);
    }

    /// Ends a job, and answers the pending waits.
    pub fn end(&self, job: JobInfo) {
        let mut disk = self.disk.lock();
        let (reported, open) =
            std::mem::take(&mut disk.open_ends).into_iter().partition(|open| open.2 == job.id);
        disk.open_ends = open;
        let reported: Vec<(LinkSender, u64, JobId)> = reported;
        for (sender, id, _) in reported {
            let answer = Ok(Answer::Job(Some(Box::new(job.clone()))));
            let mut out = FrameWriter::new();
            FromPublisher::Answer { id, answer }.encode(&mut out);
            let _ = sender.send(out.finish());
        }
        disk.ends.insert(job.id, Some(job));
    }

    /// The number of pending waits.
    pub fn open_ends(&self) -> usize {
        self.disk.lock().open_ends.len()
    }

    pub fn answer_requests(
        &self,
        answerer: impl Fn(Request) -> Option<Result<Answer, RequestError>> + Send + 'static,
    ) {
        self.disk.lock().answerer = Some(Box::new(answerer));
    }

    /// True if the disk has each of `ids` exactly once and nothing else.
    pub fn has_exactly(&self, ids: &[JobId]) -> bool {
        let disk = self.disk.lock();
        disk.jobs.len() == ids.len() && ids.iter().all(|id| disk.jobs.get(id) == Some(&1))
    }
}

impl Drop for FakePublisher {
    fn drop(&mut self) {
        self.running.cancel();
    }
}

async fn serve(link: Link, disk: Arc<Mutex<Disk>>) {
    let session = link.handshake().expect("a client").session;
    let (sender, mut receiver) = link.split();
    let _ = serve_messages(session, &sender, &mut receiver, &disk).await;
}

/// Serves a link until it breaks.
async fn serve_messages(
    session: SessionId,
    sender: &LinkSender,
    receiver: &mut LinkReceiver,
    disk: &Arc<Mutex<Disk>>,
) -> Option<()> {
    let mut feeds = JoinSet::new();
    loop {
        let body = receiver.recv().await.ok()?;
        let mut out = FrameWriter::new();
        for message in Messages::new(body) {
            let (tag, body) = message.expect("a whole message");
            let message = ToPublisher::decode(tag, body).expect("a message that decodes");
            match message.expect("a known message") {
                ToPublisher::Attach(_) => {
                    let mut disk = disk.lock();
                    disk.attaches += 1;
                    let next_batch = *disk.next.entry(session).or_insert(1);
                    let durability = Durability::Fsync;
                    let gone = Tokens::default();
                    FromPublisher::Attached(Attached {
                        durability,
                        next_batch,
                        next_settle: 1,
                        gone,
                        reconnect_grace_ms: 5_000,
                    })
                    .encode(&mut out);
                }
                ToPublisher::Enqueue(batch) => {
                    enqueue(session, sender, batch, disk, &mut out).await?;
                }
                ToPublisher::Request { id, request } => {
                    let answer = disk.lock().answer(sender, id, request, &mut feeds)?;
                    if let Some(answer) = answer {
                        FromPublisher::Answer { id, answer }.encode(&mut out);
                    }
                }
                ToPublisher::Forget(id) => {
                    let mut disk = disk.lock();
                    disk.forgotten.push(id);
                    disk.open_ends.retain(|open| open.1 != id);
                }
                other => panic!("a producer does not send {other:?}"),
            }
        }
        if !out.is_empty() {
            sender.send(out.finish()).ok()?;
        }
    }
}

async fn enqueue(
    session: SessionId,
    sender: &LinkSender,
    batch: EnqueueBatch,
    disk: &Mutex<Disk>,
    out: &mut FrameWriter,
) -> Option<()> {
    let behavior = disk.lock().script.pop_front().unwrap_or(BatchBehavior::Answer);
    let sequence = batch.sequence;
    let outcome = match behavior {
        BatchBehavior::Break => return None,
        BatchBehavior::Refuse(refusal) => Err(refusal),
        _ => disk.lock().take(session, &batch),
    };
    match behavior {
        BatchBehavior::TakeAndBreak => return None,
        BatchBehavior::TakeInSilence => return Some(()),
        BatchBehavior::AnswerAfter(wait) => tokio::time::sleep(wait).await,
        BatchBehavior::Garbage => {
            let mut garbage = FrameWriter::new();
            garbage.message(longshore_protocol::messages::work::tag::ENQUEUED, |out| out.u8(0x80));
            sender.send(garbage.finish()).ok()?;
            return Some(());
        }
        _ => {}
    }
    FromPublisher::Enqueued(Enqueued { sequence, outcome }).encode(out);
    Some(())
}

impl Disk {
    /// The answer to a request: `Some(None)` to send none, `None` to break the link.
    fn answer(
        &mut self,
        sender: &LinkSender,
        id: u64,
        request: Request,
        feeds: &mut JoinSet<()>,
    ) -> Option<Option<Result<Answer, RequestError>>> {
        let behavior = self.request_script.pop_front().unwrap_or(RequestBehavior::Answer);
        match behavior {
            RequestBehavior::Break => return None,
            RequestBehavior::TooMany => return Some(Some(Err(RequestError::TooMany))),
            RequestBehavior::NoSpace => return Some(Some(Err(RequestError::NoSpace))),
            RequestBehavior::Answer | RequestBehavior::DoAndBreak => {}
        }
        self.requests.push(request.clone());
        let answer = match (&request, &self.model) {
            (Request::Await { id: job }, _) if !self.ends.is_empty() => match self.ends.get(job) {
                None => Some(Ok(Answer::Job(None))),
                Some(Some(ended)) => Some(Ok(Answer::Job(Some(Box::new(ended.clone()))))),
                Some(None) => {
                    self.open_ends.push((sender.clone(), id, *job));
                    None
                }
            },
            (Request::Feed { after, .. }, Some(model)) => {
                let opened = model.open(*after);
                if let Ok(at) = opened {
                    feeds.spawn(model.clone().pump(sender.clone(), id, at));
                }
                Some(opened.map(Answer::Feed))
            }
            (Request::Jobs(query), Some(model)) => Some(Ok(Answer::Jobs(model.page(query.cursor)))),
            _ => self.answerer.as_ref().expect("requests are scripted")(request),
        };
        (behavior == RequestBehavior::Answer).then_some(answer)
    }

    fn take(
        &mut self,
        session: SessionId,
        batch: &EnqueueBatch,
    ) -> Result<Runs<EnqueueOutcome>, BatchRefusal> {
        let next = self.next.entry(session).or_insert(1);
        if batch.sequence > *next {
            return Err(BatchRefusal::SequenceGap);
        }
        if batch.sequence < *next {
            let answer = self.answers.get(&(session, batch.sequence));
            return answer.cloned().ok_or(BatchRefusal::UnknownProducer);
        }
        *next += 1;
        self.batches.push(batch.len());
        self.counted += batch.len() as u64;
        if self.count_only {
            return Ok(Runs::all(EnqueueOutcome::Created, batch.len()));
        }
        let mut outcomes = Runs::default();
        for entry in batch.entries() {
            let head = entry.head.expect("an entry that decodes");
            let (at, length) = (entry.at as usize, entry.length as usize);
            let bytes = &batch.body()[at..at + length];
            let payload = &bytes[length - head.payload_len..];
            if head.options.as_ref().is_some_and(|options| options.prepared) {
                self.prepared.push(head.id);
            }
            match self.refuse_payload {
                Some((refused, refusal)) if refused == payload => {
                    outcomes.push(EnqueueOutcome::Refused(refusal));
                }
                _ => {
                    let times = self.jobs.entry(head.id).or_default();
                    *times += 1;
                    let existing = *times > 1;
                    outcomes.push(match existing {
                        true => EnqueueOutcome::Existing,
                        false => EnqueueOutcome::Created,
                    });
                }
            }
        }
        self.answers.insert((session, batch.sequence), outcomes.clone());
        Ok(outcomes)
    }
}
