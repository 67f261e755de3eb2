//! A store, and its clients.

use std::collections::HashMap;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, Answer, Attached, BatchBuilder, Checkpoint, Enqueued,
    FeedPosition, Filter, JobCounts, JobsQuery, NewSettle, Pace, QueueStat, Request, RequestError,
    Selection, SettleBatch, SettleBatchBuilder, Settled, Sources, Started, Tokens,
};
use longshore_protocol::{
    CheckpointOutcome, Durability, EnqueueOutcome, Epoch, JobError, JobId, JobState, LinkId,
    NewJob, Path, PublisherId, QueueSettings, Refusal, Revoked, Role, SessionId, SettleOutcome,
    Token,
};
use tempfile::TempDir;

use crate::clock::{ClockCore, Reading};
use crate::journal::{Journal, JournalOptions};
use crate::{
    Assignment, Command, Event, JobView, Now, PendingAnswer, RecordRef, Released, Replay, Reply,
    SEGMENT_BYTES_MIN, Store, StoreOptions,
};

const PUBLISHER: PublisherId = PublisherId([9; 16]);

/// The queue of a scenario that needs no particular one.
pub(super) const QUEUE: &str = "/jobs/a";
pub(super) const SECOND_MS: u64 = 1_000;
pub(super) const MINUTE_MS: u64 = 60 * SECOND_MS;
pub(super) const HOUR_MS: u64 = 60 * MINUTE_MS;

/// A store on its own journal, the time, and everything released that was not checked yet.
pub(super) struct StoreScenario {
    dir: TempDir,
    now: Now,
    paths: Vec<Path>,
    defaults: Vec<Path>,
    store: Option<Store>,
    released: Released,
    links: u64,
    requests: u64,
    sessions: HashMap<SessionId, NextNumbers>,
    tool: Client,
}

/// The numbers of a session's next batches.
#[derive(Clone, Copy, Debug)]
struct NextNumbers {
    batch: u64,
    settle: u64,
}

/// A client's end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Client {
    pub(super) link: LinkId,
    session: SessionId,
}

/// A job delivered to a worker.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct DeliveredJob {
    pub(super) id: JobId,
    pub(super) token: Token,
    pub(super) assignment: Assignment,
}

/// Job `n` of [`QUEUE`].
pub(super) fn job(n: u32) -> NewJob {
    job_of(QUEUE, n)
}

/// Job `n` of that queue.
pub(super) fn job_of(queue: &str, n: u32) -> NewJob {
    NewJob::new(path(queue), id(n), Bytes::from(format!("payload {n}")))
}

/// The id of job `n`.
pub(super) fn id(n: u32) -> JobId {
    let mut random = [7; 10];
    random[6..].copy_from_slice(&n.to_be_bytes());
    JobId::new_v7(1_700_000_000_000, random)
}

pub(super) fn path(text: &str) -> Path {
    text.parse().unwrap()
}

/// Sources with one pattern.
pub(super) fn from(pattern: &str) -> Sources {
    Sources::one(pattern.parse().unwrap())
}

pub(super) fn filter(pattern: &str) -> Filter {
    Filter::of(pattern.parse().unwrap())
}

/// A worker's error.
pub(super) fn error(kind: &str, message: &str) -> JobError {
    JobError { kind: kind.to_owned(), message: message.to_owned() }
}

/// A failed attempt.
pub(super) fn fail() -> NewSettle {
    NewSettle::Fail(error("Refused", "the printer is out of paper"))
}

/// A successful attempt.
pub(super) const DONE: NewSettle = NewSettle::Complete { result: None };

impl StoreScenario {
    /// Starts with a new store that serves every path, and a tool's link.
    pub(super) async fn begin() -> StoreScenario {
        let mut scenario = StoreScenario {
            dir: tempfile::tempdir().unwrap(),
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
            paths: Vec::new(),
            defaults: vec![Path::root()],
            store: None,
            released: Released::default(),
            links: 0,
            requests: 0,
            sessions: HashMap::new(),
            tool: Client { link: LinkId(0), session: SessionId::default() },
        };
        scenario.restart().await;
        scenario
    }

    /// Restarts with a new store that serves only these paths.
    pub(super) async fn serve(&mut self, paths: &[&str], defaults: &[&str]) {
        let all = |texts: &[&str]| texts.iter().map(|text| path(text)).collect();
        (self.paths, self.defaults) = (all(paths), all(defaults));
        self.store = None;
        self.dir = tempfile::tempdir().unwrap();
        self.sessions.clear();
        self.restart().await;
    }

    /// Closes the store and opens it again, at once.
    pub(super) async fn restart(&mut self) {
        self.store = None;
        self.released = Released::default();
        let options = JournalOptions {
            segment_bytes: SEGMENT_BYTES_MIN,
            // Each command is a commit here; the simulation covers power cuts.
            durability: Durability::None,
            accept_loss: false,
            new_publisher: PUBLISHER,
            new_journal: PublisherId([8; 16]),
        };
        let mut replay = Replay::new();
        let (journal, _) = Journal::open(self.dir.path(), options, &mut replay).unwrap();
        let reading = Reading { boot_ms: self.now.mono_ms, wall_ms: self.now.wall_ms };
        let stamp = ClockCore::start([1; 8], reading, None).stamp();
        let (paths, defaults) = (self.paths.clone(), self.defaults.clone());
        let options = StoreOptions { paths, defaults, ..StoreOptions::default() };
        let store = Store::start(journal, replay, PUBLISHER, self.now, stamp, options).unwrap();
        self.store = Some(store);
        self.tool = self.attach(Role::Tool, "tool", &[]).await.0;
    }

    pub(super) fn store(&mut self) -> &mut Store {
        self.store.as_mut().unwrap()
    }

    pub(super) fn now(&self) -> Now {
        self.now
    }

    pub(super) fn epoch(&mut self) -> Epoch {
        self.store().identity().1
    }

    /// Advances time, with all the turns that the store requests.
    pub(super) async fn advance(&mut self, ms: u64) {
        let until = self.now().mono_ms + ms;
        let mut turns = 0;
        loop {
            let now = self.now();
            let next = self.store().advance(now).unwrap();
            self.durable().await;
            turns += 1;
            assert!(turns < 1_000_000, "the store requests turns without end");
            match next {
                Some(at) if at <= now.mono_ms => continue,
                _ if now.mono_ms == until => return,
                next => {
                    let at = next.unwrap_or(until).min(until);
                    let passed = at - now.mono_ms;
                    self.now = Now { mono_ms: at, wall_ms: now.wall_ms + passed };
                }
            }
        }
    }

    /// Waits until everything submitted is durable and released.
    pub(super) async fn durable(&mut self) {
        self.ask_as(self.tool, Request::Job { id: JobId::default() }).await;
    }

    pub(super) async fn submit(&mut self, command: Command) {
        let now = self.now();
        self.store().submit(now, command).unwrap();
        self.durable().await;
    }

    pub(super) async fn query(&mut self, request: Request) -> PendingAnswer {
        self.ask_as(self.tool, request).await
    }

    pub(super) async fn ask_as(&mut self, client: Client, request: Request) -> PendingAnswer {
        self.requests += 1;
        let (number, now) = (self.requests, self.now());
        let store = self.store.as_mut().unwrap();
        store.query(now, client.link, number, request, None);
        store.flush();
        loop {
            store.released(&mut self.released).await.unwrap();
            let mut answered = self.released.answered.iter();
            if let Some(index) = answered.position(|answer| answer.1 == number) {
                let (link, _, answer) = self.released.answered.remove(index);
                assert_eq!(link, client.link);
                return answer;
            }
        }
    }

    // Clients.

    /// A link of the session with that name; the store sets the number of its next batch.
    pub(super) async fn attach(
        &mut self,
        role: Role,
        name: &str,
        resume: &[Token],
    ) -> (Client, Attached) {
        let mut session = SessionId([1; 16]);
        session.0[..name.len()].copy_from_slice(name.as_bytes());
        self.links += 1;
        let link = LinkId(self.epoch().0 << 32 | self.links);
        let (name, resume) = (name.to_owned(), Tokens(resume.to_vec()));
        // Its older deliveries went to the older link.
        self.submit(Command::LinkUp {
            link,
            role,
            session,
            name,
            identity: String::new(),
            work: None,
            resume,
        })
        .await;
        let client = Client { link, session };
        let attached = self.reply(client, |reply| match reply {
            Reply::Attached(attached) => Some(attached),
            _ => None,
        });
        let numbers = NextNumbers { batch: attached.next_batch, settle: attached.next_settle };
        self.sessions.insert(session, numbers);
        (client, attached)
    }

    pub(super) async fn producer(&mut self) -> Client {
        self.attach(Role::Producer, "producer", &[]).await.0
    }

    /// A worker with that many credits.
    pub(super) async fn worker(&mut self, name: &str, sources: Sources, credits: u32) -> Client {
        let worker = self.attach(Role::Worker, name, &[]).await.0;
        self.submit(Command::Subscribe {
            link: worker.link,
            subscription: 1,
            sources,
            handlers: 1_000,
        })
        .await;
        self.credit(worker, credits).await;
        worker
    }

    pub(super) async fn credit(&mut self, worker: Client, count: u32) {
        self.submit(Command::Credit { link: worker.link, subscription: 1, count }).await;
    }

    /// Breaks a link.
    pub(super) async fn lose_link(&mut self, client: Client) {
        self.submit(Command::LinkLost { link: client.link }).await;
    }

    // Messages of producers.

    /// Enqueues jobs, not atomically.
    pub(super) async fn enqueue(
        &mut self,
        producer: Client,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Vec<EnqueueOutcome> {
        let sequence = self.sessions[&producer.session].batch;
        let answer = self.enqueue_as(producer, sequence, false, jobs).await;
        answer.outcome.unwrap().iter().collect()
    }

    /// Enqueues new jobs.
    pub(super) async fn create(&mut self, jobs: impl IntoIterator<Item = NewJob>) {
        let producer = self.producer().await;
        let outcomes = self.enqueue(producer, jobs).await;
        assert!(outcomes.iter().all(|&outcome| outcome == EnqueueOutcome::Created), "{outcomes:?}");
    }

    /// Enqueues jobs as a batch of that number.
    pub(super) async fn enqueue_as(
        &mut self,
        producer: Client,
        sequence: u64,
        atomic: bool,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Enqueued {
        let mut batch = BatchBuilder::new();
        jobs.into_iter().for_each(|job| batch.push(&job));
        let batch = batch.seal(atomic).to_batch(sequence).unwrap();
        self.submit(Command::Enqueue { link: producer.link, batch }).await;
        let answer = self.reply(producer, |reply| match reply {
            Reply::Enqueued(answer) => Some(answer),
            _ => None,
        });
        assert_eq!(answer.sequence, sequence);
        if answer.outcome.is_ok() {
            let numbers = self.sessions.get_mut(&producer.session).unwrap();
            numbers.batch = numbers.batch.max(sequence + 1);
        }
        answer
    }

    // Messages of workers.

    /// The jobs delivered to a worker since the last call, in order.
    pub(super) fn delivered(&mut self, worker: Client) -> Vec<DeliveredJob> {
        let all = std::mem::take(&mut self.released.assignments);
        let (own, others) = all.into_iter().partition(|assignment| assignment.link == worker.link);
        self.released.assignments = others;
        let own: Vec<Assignment> = own;
        own.into_iter()
            .map(|assignment| {
                let entry = self.read(assignment.entry);
                let mut id = JobId::default();
                id.0.copy_from_slice(&entry[..16]);
                DeliveredJob { id, token: assignment.token, assignment }
            })
            .collect()
    }

    /// The only job delivered to a worker.
    pub(super) fn delivered_job(&mut self, worker: Client) -> DeliveredJob {
        let ids_delivered = self.delivered(worker);
        assert_eq!(ids_delivered.len(), 1, "{ids_delivered:?}");
        ids_delivered[0]
    }

    /// Settles leases.
    pub(super) async fn settle(
        &mut self,
        worker: Client,
        settles: &[(Token, NewSettle)],
    ) -> Vec<SettleOutcome> {
        let sequence = self.sessions[&worker.session].settle;
        self.settle_as(worker, sequence, settles).await.outcomes.iter().collect()
    }

    /// Settles held leases.
    pub(super) async fn end(&mut self, worker: Client, settles: &[(Token, NewSettle)]) {
        let outcomes = self.settle(worker, settles).await;
        assert_eq!(outcomes, vec![SettleOutcome::Accepted; settles.len()]);
    }

    /// Settles leases as a batch of that number.
    pub(super) async fn settle_as(
        &mut self,
        worker: Client,
        sequence: u64,
        settles: &[(Token, NewSettle)],
    ) -> Settled {
        let mut batch = SettleBatchBuilder::new();
        settles.iter().for_each(|(token, settle)| batch.push(*token, settle));
        let batch = SettleBatch::decode(batch.seal(sequence)).unwrap();
        self.submit(Command::Settle { link: worker.link, batch }).await;
        let answer = self.reply(worker, |reply| match reply {
            Reply::Settled(answer) => Some(answer),
            _ => None,
        });
        assert_eq!(answer.sequence, sequence);
        let numbers = self.sessions.get_mut(&worker.session).unwrap();
        numbers.settle = numbers.settle.max(sequence + 1);
        answer
    }

    /// Starts attempts. Returns the stale tokens.
    pub(super) fn start(&mut self, worker: Client, tokens: &[Token]) -> Tokens {
        self.started(worker, tokens, &[])
    }

    /// Reports attempts with their running times.
    pub(super) fn started(
        &mut self,
        worker: Client,
        tokens: &[Token],
        running_ms: &[u64],
    ) -> Tokens {
        let now = self.now();
        let (tokens, running_ms) = (Tokens(tokens.to_vec()), running_ms.to_vec());
        self.store().started(now, worker.link, &Started { tokens, running_ms })
    }

    /// Renews leases. Returns the stale tokens.
    pub(super) fn renew(&mut self, worker: Client, tokens: &[Token]) -> Tokens {
        let now = self.now();
        self.store().renew(now, worker.link, &Tokens(tokens.to_vec()))
    }

    /// Advances time while a worker renews.
    pub(super) async fn advance_renewing(&mut self, worker: Client, tokens: &[Token], ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(SECOND_MS / 2);
            assert_eq!(self.renew(worker, tokens), Tokens::default());
            self.advance(step).await;
            left -= step;
        }
    }

    /// Stores a checkpoint.
    pub(super) async fn checkpoint(
        &mut self,
        worker: Client,
        token: Token,
        sequence: u64,
        bytes: &Bytes,
    ) -> CheckpointOutcome {
        let checkpoint = Checkpoint::decode(Checkpoint::body_of(token, sequence, bytes)).unwrap();
        self.submit(Command::Checkpoint { link: worker.link, checkpoint }).await;
        let answer = self.reply(worker, |reply| match reply {
            Reply::Checkpointed(answer) => Some(answer),
            _ => None,
        });
        assert_eq!((answer.token, answer.sequence), (token, sequence));
        answer.outcome
    }

    /// The checkpoints of a worker's running job: attempt, number, bytes.
    pub(super) async fn checkpoints(
        &mut self,
        worker: Client,
        token: Token,
    ) -> Result<Vec<(u16, u64, Bytes)>, RequestError> {
        match self.ask_as(worker, Request::Checkpoints { token }).await {
            PendingAnswer::Checkpoints(views) => Ok(views
                .iter()
                .map(|view| (view.info.attempt, view.info.sequence, self.read(view.bytes)))
                .collect()),
            PendingAnswer::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    /// Leases revoked from a worker since the last call.
    pub(super) fn revoked(&mut self, worker: Client) -> Vec<(Revoked, Token)> {
        let all = std::mem::take(&mut self.released.revoked);
        let (own, others) = all.into_iter().partition(|revoked| revoked.0 == worker.link);
        self.released.revoked = others;
        let own: Vec<(LinkId, Revoked, Token)> = own;
        own.into_iter().map(|(_, why, token)| (why, token)).collect()
    }

    // Messages of tools.

    /// Acts on named jobs.
    pub(super) async fn act(&mut self, action: Action, ids: &[JobId]) -> Vec<ActOutcome> {
        let report = self.act_on(action, Selection::Ids(ids.to_vec()), None).await;
        let outcomes: Vec<ActOutcome> = report.outcomes.iter().collect();
        let done = outcomes.iter().filter(|&&outcome| outcome == ActOutcome::Done).count();
        assert_eq!((outcomes.len(), report.done), (ids.len(), done as u64), "{report:?}");
        outcomes
    }

    /// Acts on jobs of a filter; returns how many.
    pub(super) async fn act_by(&mut self, action: Action, filter: Filter) -> u64 {
        let report = self.act_on(action, Selection::Matching(filter), None).await;
        assert!(!report.more, "{report:?}");
        report.done
    }

    pub(super) async fn act_on(
        &mut self,
        action: Action,
        selection: Selection,
        pace: Option<Pace>,
    ) -> ActionReport {
        let (link, request) = (self.tool.link, 1);
        self.submit(Command::Act { link, request, action, selection, pace, within: None }).await;
        self.reply(self.tool, |reply| match reply {
            Reply::Acted { report, .. } => Some(report),
            _ => None,
        })
    }

    /// Changes a queue's settings; returns the result.
    pub(super) async fn configure(
        &mut self,
        queue: &str,
        changes: QueueSettings,
        reset: bool,
    ) -> Result<QueueSettings, Refusal> {
        let (link, request, path) = (self.tool.link, 1, path(queue));
        self.submit(Command::Configure { link, request, path, changes, reset }).await;
        self.reply(self.tool, |reply| match reply {
            Reply::Configured { result, .. } => Some(result),
            _ => None,
        })
    }

    pub(super) fn tool(&self) -> Client {
        self.tool
    }

    /// The only answer of that kind to a client.
    pub(super) fn reply<T>(&mut self, client: Client, kind: impl Fn(Reply) -> Option<T>) -> T {
        let mut found = self.replies(client, kind);
        assert_eq!(found.len(), 1, "one answer");
        found.remove(0)
    }

    /// The answers of that kind to a client, since the last call.
    pub(super) fn replies<T>(
        &mut self,
        client: Client,
        kind: impl Fn(Reply) -> Option<T>,
    ) -> Vec<T> {
        let mut found = Vec::new();
        self.released.replies.retain(|(link, reply)| {
            let value = if *link == client.link { kind(reply.clone()) } else { None };
            let is_match = value.is_some();
            found.extend(value);
            !is_match
        });
        found
    }

    // Queries.

    pub(super) async fn view(&mut self, id: JobId) -> Option<JobView> {
        match self.query(Request::Job { id }).await {
            PendingAnswer::Job(view) => view.map(|view| *view),
            other => panic!("{other:?}"),
        }
    }

    /// An existing job.
    pub(super) async fn job_view(&mut self, id: JobId) -> JobView {
        self.view(id).await.unwrap()
    }

    /// A job's state, from the job's info and from the state's lookup.
    pub(super) async fn state(&mut self, id: JobId) -> Option<JobState> {
        let reported = self.view(id).await.map(|view| view.info.state);
        assert_eq!(self.store().state().job_state(&id), reported);
        reported
    }

    /// The states of existing jobs.
    pub(super) async fn states(&mut self, ids: impl IntoIterator<Item = u32>) -> Vec<JobState> {
        let mut states = Vec::new();
        for n in ids {
            states.push(self.state(id(n)).await.unwrap());
        }
        states
    }

    pub(super) async fn stat(&mut self, queue: &str) -> QueueStat {
        match self.query(Request::Queues { pattern: queue.parse().unwrap(), cursor: 0 }).await {
            PendingAnswer::Ready(Answer::Queues(mut page)) if page.queues.len() == 1 => {
                page.queues.remove(0)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn counts(&mut self, queue: &str) -> JobCounts {
        self.stat(queue).await.counts
    }

    pub(super) async fn list(&mut self, filter: Filter) -> Vec<JobView> {
        let mut query = JobsQuery { limit: 100, ..JobsQuery::of(filter) };
        let mut all = Vec::new();
        loop {
            match self.query(Request::Jobs(query.clone())).await {
                PendingAnswer::Jobs { views, next, .. } => {
                    all.extend(views);
                    match next {
                        Some(next) => query.cursor = next,
                        None => return all,
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A part of a command: the same from the cache, if there, and from the disk.
    pub(super) fn read(&mut self, part: RecordRef) -> Bytes {
        let store = self.store();
        let cold = store.reader().read(part).unwrap();
        assert!(store.payload(part).is_none_or(|hot| hot == cold), "cache and disk agree");
        cold
    }

    /// The events since a position.
    pub(super) async fn events(
        &mut self,
        after: Option<FeedPosition>,
    ) -> Result<Vec<Event>, RequestError> {
        let pattern = "/**".parse().unwrap();
        let PendingAnswer::Feed { after, .. } = self.query(Request::Feed { pattern, after }).await
        else {
            panic!("a feed is answered with a feed")
        };
        let tail = self.store().tail();
        let (mut cursor, mut events) = (tail.cursor(after)?, Vec::new());
        let read = tail.read(&mut cursor, usize::MAX, |_| true, &mut events)?;
        assert_eq!((read.upto, read.more), (tail.position(), false));
        Ok(events)
    }

    /// Checks that counters equal a full scan.
    pub(super) async fn check_counters(&mut self) {
        let pattern = "/**".parse().unwrap();
        let PendingAnswer::Ready(Answer::Queues(page)) =
            self.query(Request::Queues { pattern, cursor: 0 }).await
        else {
            panic!("metrics are answered with metrics")
        };
        let mut jobs = 0;
        for stat in page.queues {
            let mut counted = JobCounts::default();
            for view in self.list(filter(stat.path.as_str())).await {
                let count = match (view.info.state, view.info.retrying) {
                    (JobState::Scheduled, true) => &mut counted.retrying,
                    (JobState::Scheduled, false) => &mut counted.scheduled,
                    (JobState::Ready, _) => &mut counted.ready,
                    (JobState::Running, _) => &mut counted.running,
                    (JobState::Completed, _) => &mut counted.completed,
                    (JobState::Dead, _) => &mut counted.dead,
                    (JobState::Cancelled, _) => &mut counted.cancelled,
                    (JobState::Prepared, _) => &mut counted.prepared,
                    (JobState::Expired, _) => &mut counted.expired,
                    (JobState::Blocked, _) => &mut counted.blocked,
                };
                *count += 1;
            }
            assert_eq!(stat.counts, counted, "{}", stat.path);
            jobs += counted.total();
        }
        let now = self.now();
        assert_eq!(self.store().metrics(now).jobs, jobs);
    }
}
