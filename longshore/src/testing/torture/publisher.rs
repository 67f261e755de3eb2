//! The publisher of a case: the store of a real one over a log in memory, on tokio's clock. Each
//! call is one message of a link, and takes effect at once.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Action, BatchBuilder, Checkpoint as NewCheckpoint, CheckpointInfo, JobInfo, NewSettle,
    Progress, Request, RequestError, Selection, SettleBatch, SettleBatchBuilder, Sources, Started,
    Tokens,
};
use longshore_protocol::{
    CheckpointOutcome, Decode, EnqueueOutcome, Glob, JobError, JobId, JobState, LinkId, NewJob,
    Path, PublisherId, Reader as FieldReader, Revoked, Role, SessionId, SettleOutcome, Token,
};
use longshore_queue::{
    Assignment, ClockCore, Command, Now, PendingAnswer, Poisoned, Reading, RecordRef, Released,
    Replay, Reply, Store, StoreOptions,
};
use tokio::time::Instant;

use super::memory_log::MemoryLog;

/// The wall clock at a case's start, in milliseconds since 1970.
const STARTED_AT_MS: u64 = 1_700_000_000_000;
/// The subscription of every worker.
const SUBSCRIPTION: u32 = 1;

/// What makes a case impossible: an error of the store, or of a job's options.
#[derive(Debug, thiserror::Error)]
pub(super) enum PublisherError {
    #[error("the publisher's log failed: {0}")]
    Log(#[from] Poisoned),
    #[error("the publisher refused a job: {0}")]
    Job(String),
    #[error("the publisher did not answer {0}")]
    Unanswered(&'static str),
}

/// A worker's end of its links.
#[derive(Debug)]
pub(super) struct Worker {
    session: SessionId,
    /// The link, while there is one.
    pub(super) link: Option<LinkId>,
    next_settle: u64,
}

pub(super) struct Publisher {
    store: Store<MemoryLog>,
    released: Released,
    started: Instant,
    links: u64,
    sessions: u64,
    tool: LinkId,
}

/// A job delivered to a worker.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) assignment: Assignment,
    pub(super) path: Path,
    pub(super) entry: Bytes,
}

impl Publisher {
    /// A publisher without jobs; its time counts from `started`.
    pub(super) fn start(started: Instant) -> Result<Publisher, PublisherError> {
        let reading = Reading { boot_ms: 0, wall_ms: STARTED_AT_MS };
        let stamp = ClockCore::start([0; 8], reading, None).stamp();
        let now = Now { mono_ms: 0, wall_ms: STARTED_AT_MS };
        let options = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
        let (log, id) = (MemoryLog::default(), PublisherId([1; 16]));
        let mut store = Store::start(log, Replay::new(), id, now, stamp, options)?;
        store.record_events(false);
        let released = Released::default();
        let tool = LinkId(0);
        let mut publisher = Publisher { store, released, started, links: 0, sessions: 0, tool };
        publisher.tool = publisher.attach(Role::Tool, SessionId([0xff; 16]), &[])?.0;
        Ok(publisher)
    }

    fn now(&self) -> Now {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono_ms: ms, wall_ms: STARTED_AT_MS + ms }
    }

    /// Enqueues jobs, each new.
    pub(super) fn enqueue(&mut self, jobs: &[NewJob]) -> Result<(), PublisherError> {
        let (link, _) = self.attach(Role::Producer, SessionId([0xfe; 16]), &[])?;
        let mut batch = BatchBuilder::new();
        jobs.iter().for_each(|job| batch.push(job));
        let batch = batch.seal(false).to_batch(1);
        let batch = batch.map_err(|error| PublisherError::Job(error.to_string()))?;
        self.submit(Command::Enqueue { link, batch })?;
        let answer = self.reply(link, |reply| match reply {
            Reply::Enqueued(answer) => Some(answer),
            _ => None,
        });
        let outcomes = answer.ok_or(PublisherError::Unanswered("a batch"))?.outcome;
        let outcomes = outcomes.map_err(|refusal| PublisherError::Job(refusal.to_string()))?;
        for outcome in outcomes.iter() {
            match outcome {
                EnqueueOutcome::Created => {}
                EnqueueOutcome::Existing | EnqueueOutcome::ExistingKey(_) => {
                    return Err(PublisherError::Job("two jobs have the same id".to_owned()));
                }
                EnqueueOutcome::Refused(why) => return Err(PublisherError::Job(why.to_string())),
            }
        }
        Ok(())
    }

    /// A new worker with one credit.
    pub(super) fn worker(&mut self) -> Result<Worker, PublisherError> {
        self.sessions += 1;
        let mut session = SessionId([0; 16]);
        session.0[..8].copy_from_slice(&self.sessions.to_be_bytes());
        let mut worker = Worker { session, link: None, next_settle: 1 };
        self.connect(&mut worker, &[])?;
        if let Some(link) = worker.link {
            self.submit(Command::Credit { link, subscription: SUBSCRIPTION, count: 1 })?;
        }
        Ok(worker)
    }

    /// Links a worker, which resumes these leases; returns those that are gone.
    pub(super) fn connect(
        &mut self,
        worker: &mut Worker,
        resume: &[Token],
    ) -> Result<Vec<Token>, PublisherError> {
        let (link, attached) = self.attach(Role::Worker, worker.session, resume)?;
        (worker.link, worker.next_settle) = (Some(link), attached.next_settle);
        let sources = Sources::one(Glob::everything());
        self.submit(Command::Subscribe {
            link,
            subscription: SUBSCRIPTION,
            sources,
            handlers: 1_000,
        })?;
        Ok(attached.gone.0)
    }

    /// Breaks a worker's link.
    pub(super) fn disconnect(&mut self, worker: &mut Worker) -> Result<(), PublisherError> {
        match worker.link.take() {
            Some(link) => self.submit(Command::LinkLost { link }),
            None => Ok(()),
        }
    }

    fn attach(
        &mut self,
        role: Role,
        session: SessionId,
        resume: &[Token],
    ) -> Result<(LinkId, longshore_protocol::messages::work::Attached), PublisherError> {
        self.links += 1;
        let link = LinkId(self.store.identity().1.0 << 32 | self.links);
        let (name, resume) = ("torture".to_owned(), Tokens(resume.to_vec()));
        self.submit(Command::LinkUp {
            link,
            role,
            session,
            name,
            identity: String::new(),
            work: None,
            resume,
        })?;
        let attached = self.reply(link, |reply| match reply {
            Reply::Attached(attached) => Some(attached),
            _ => None,
        });
        Ok((link, attached.ok_or(PublisherError::Unanswered("a link"))?))
    }

    /// The worker starts an attempt.
    pub(super) fn started(&mut self, link: LinkId, token: Token) {
        let started = Started { tokens: Tokens(vec![token]), running_ms: Vec::new() };
        // A lease that has just been delivered is not stale.
        let _ = self.store.started(self.now(), link, &started);
    }

    /// Renews a lease. False if it is gone.
    pub(super) fn renew(&mut self, link: LinkId, token: Token) -> bool {
        self.store.renew(self.now(), link, &Tokens(vec![token])).0.is_empty()
    }

    /// Records progress.
    pub(super) fn progress(
        &mut self,
        link: LinkId,
        token: Token,
        (percent, message): (u8, String),
    ) {
        let _ = self.store.progress(self.now(), link, vec![Progress { token, percent, message }]);
    }

    /// Settles a lease.
    pub(super) fn settle(
        &mut self,
        worker: &mut Worker,
        token: Token,
        settle: &NewSettle,
    ) -> Result<SettleOutcome, PublisherError> {
        const WHAT: PublisherError = PublisherError::Unanswered("a settle");
        let link = worker.link.ok_or(WHAT)?;
        let mut batch = SettleBatchBuilder::new();
        batch.push(token, settle);
        let batch = SettleBatch::decode(batch.seal(worker.next_settle)).map_err(|_| WHAT)?;
        worker.next_settle += 1;
        self.submit(Command::Settle { link, batch })?;
        let answer = self.reply(link, |reply| match reply {
            Reply::Settled(answer) => Some(answer),
            _ => None,
        });
        answer.and_then(|answer| answer.outcomes.iter().next()).ok_or(WHAT)
    }

    /// Stores a checkpoint.
    pub(super) fn checkpoint(
        &mut self,
        link: LinkId,
        token: Token,
        sequence: u64,
        bytes: &Bytes,
    ) -> Result<CheckpointOutcome, PublisherError> {
        const WHAT: PublisherError = PublisherError::Unanswered("a checkpoint");
        let body = NewCheckpoint::body_of(token, sequence, bytes);
        let checkpoint = NewCheckpoint::decode(body).map_err(|_| WHAT)?;
        self.submit(Command::Checkpoint { link, checkpoint })?;
        let answer = self.reply(link, |reply| match reply {
            Reply::Checkpointed(answer) => Some(answer.outcome),
            _ => None,
        });
        answer.ok_or(WHAT)
    }

    /// The checkpoints of a running job.
    pub(super) fn checkpoints(
        &mut self,
        link: LinkId,
        token: Token,
    ) -> Result<Vec<CheckpointInfo>, RequestError> {
        match self.ask(link, Request::Checkpoints { token }) {
            Some(PendingAnswer::Checkpoints(views)) => {
                let read = |view: longshore_queue::CheckpointView| {
                    let bytes = self.read(view.bytes);
                    CheckpointInfo { bytes, ..view.info }
                };
                Ok(views.into_iter().map(read).collect())
            }
            Some(PendingAnswer::Refused(error)) => Err(error),
            _ => Err(RequestError::Unknown),
        }
    }

    /// A user cancels a job.
    pub(super) fn cancel(&mut self, id: JobId) -> Result<(), PublisherError> {
        let selection = Selection::Ids(vec![id]);
        let (link, request, action, pace) = (self.tool, 1, Action::Cancel, None);
        self.submit(Command::Act { link, request, action, selection, pace, within: None })
    }

    /// The job's state; none once it was deleted.
    pub(super) fn state(&self, id: &JobId) -> Option<JobState> {
        self.store.state().job_state(id)
    }

    /// All that the publisher reports of a job, with its history, result and error.
    pub(super) fn job(&mut self, id: JobId) -> Result<JobInfo, PublisherError> {
        let answer = self.ask(self.tool, Request::Job { id });
        let Some(PendingAnswer::Job(Some(view))) = answer else {
            return Err(PublisherError::Unanswered("a query"));
        };
        let mut info = view.info;
        info.result = view.result.and_then(|at| self.read(at));
        info.error = view.error.and_then(|at| self.error(at));
        for (attempt, at) in info.attempts.iter_mut().zip(view.attempt_errors) {
            attempt.error = at.and_then(|at| self.error(at));
        }
        for (checkpoint, at) in info.checkpoints.iter_mut().zip(view.checkpoints) {
            checkpoint.bytes = self.read(at);
        }
        Ok(info)
    }

    /// Ends leases and makes due jobs ready; returns when to call again.
    pub(super) fn turn(&mut self) -> Result<Option<Duration>, PublisherError> {
        let next = self.store.advance(self.now())?;
        self.release()?;
        Ok(next.map(Duration::from_millis))
    }

    /// Takes the jobs delivered since the last call, in order.
    pub(super) fn take_deliveries(&mut self) -> Vec<Delivery> {
        let deliveries = std::mem::take(&mut self.released.assignments);
        let read = |assignment: Assignment| Delivery {
            assignment,
            path: self.store.state().path(assignment.queue).clone(),
            entry: self.read(assignment.entry).unwrap_or_default(),
        };
        deliveries.into_iter().map(read).collect()
    }

    /// Takes the leases revoked since the last call.
    pub(super) fn take_revoked(&mut self) -> Vec<(LinkId, Revoked, Token)> {
        std::mem::take(&mut self.released.revoked)
    }

    fn submit(&mut self, command: Command) -> Result<(), PublisherError> {
        self.store.submit(self.now(), command)?;
        self.release()
    }

    /// Takes the outcomes of everything submitted: all of it is committed.
    fn release(&mut self) -> Result<(), PublisherError> {
        while !self.store.is_released() {
            let released = pin!(self.store.released(&mut self.released));
            match released.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn ask(&mut self, link: LinkId, request: Request) -> Option<PendingAnswer> {
        self.store.query(self.now(), link, 1, request, None);
        self.release().ok()?;
        self.released.answered.pop().map(|(_, _, answer)| answer)
    }

    /// Takes the answer of that kind, and drops the link's others.
    fn reply<T>(&mut self, link: LinkId, kind: impl Fn(Reply) -> Option<T>) -> Option<T> {
        let all = std::mem::take(&mut self.released.replies);
        all.into_iter().filter(|(to, _)| *to == link).find_map(|(_, reply)| kind(reply))
    }

    fn read(&self, at: RecordRef) -> Option<Bytes> {
        self.store.reader().read(at).ok()
    }

    fn error(&self, at: RecordRef) -> Option<JobError> {
        JobError::decode(&mut FieldReader::new(self.read(at)?)).ok()
    }
}
