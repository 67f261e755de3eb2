//! Checkpoints of one publisher's jobs that are not answered yet: numbered within each delivery,
//! retained until they are answered, and sent again with the same numbers on the next link. Also
//! the queries of running jobs: for checkpoints of earlier attempts, for the results of parents.
//!
//! One checkpoint of a job is in flight at a time, so only a stored one uses up a number. A job has
//! at most two checkpoints here: the one in flight and, if its caller gave up on that, the next
//! one.

use std::collections::BTreeSet;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::limits::REQUESTS_OPEN_MAX;
use longshore_protocol::messages::work::{Checkpoint, Checkpointed, Request};
use longshore_protocol::{CheckpointOutcome, Token};

/// All unanswered requests at one publisher. `S` waits for a checkpoint to be stored, `R` for the
/// answer to a query.
#[derive(Debug)]
pub(crate) struct Checkpoints<S, R> {
    attached: bool,
    /// Jobs with a lease that have stored or queried checkpoints.
    jobs: HashMap<Token, JobCheckpoints<S, R>>,
    /// Jobs whose checkpoint is to be sent on this link, the oldest lease first: the order must not
    /// depend on a hash.
    to_store: BTreeSet<Token>,
    /// Jobs whose query is to be sent on this link.
    to_query: BTreeSet<Token>,
    /// The number of the last query.
    last_query: u64,
    /// Queries sent on this link without an answer.
    open: HashMap<u64, Token>,
}

#[derive(Debug)]
struct JobCheckpoints<S, R> {
    /// The number of stored checkpoints.
    stored: u64,
    /// The next one, unanswered.
    in_flight: Option<InFlight<S>>,
    /// The one after it.
    next: Option<(Bytes, S)>,
    query: Option<Query<R>>,
}

#[derive(Debug)]
struct InFlight<S> {
    body: Bytes,
    length: usize,
    waiter: S,
}

#[derive(Debug)]
struct Query<R> {
    /// The number that it was sent with.
    number: Option<u64>,
    request: Request,
    waiter: R,
}

/// A request to send now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointRequest {
    /// The body of a checkpoint.
    Store(Bytes),
    /// A query with this number.
    Query(u64, Request),
}

impl CheckpointRequest {
    /// The approximate size on the wire.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            CheckpointRequest::Store(body) => body.len(),
            CheckpointRequest::Query(..) => 40,
        }
    }
}

/// The answered request of a stored checkpoint.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct StoreAnswered<S> {
    pub(crate) waiter: S,
    /// The size of the checkpoint.
    pub(crate) length: usize,
}

/// The answered query.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct QueryAnswered<R> {
    pub(crate) token: Token,
    pub(crate) waiter: R,
    /// How many of the returned checkpoints are this delivery's own: the last ones.
    pub(crate) own_count: u64,
}

/// The waiters of a job whose lease has ended.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Waiters<S, R> {
    pub(crate) stores: Vec<S>,
    pub(crate) reads: Vec<R>,
}

impl<S, R> Default for Checkpoints<S, R> {
    fn default() -> Checkpoints<S, R> {
        Checkpoints {
            attached: false,
            jobs: HashMap::new(),
            to_store: BTreeSet::new(),
            to_query: BTreeSet::new(),
            last_query: 0,
            open: HashMap::new(),
        }
    }
}

impl<S, R> Default for JobCheckpoints<S, R> {
    fn default() -> JobCheckpoints<S, R> {
        JobCheckpoints { stored: 0, in_flight: None, next: None, query: None }
    }
}

impl<S, R> JobCheckpoints<S, R> {
    /// Puts the next checkpoint in flight.
    fn begin(&mut self, token: Token, bytes: &Bytes, waiter: S) {
        let body = Checkpoint::body_of(token, self.stored + 1, bytes);
        self.in_flight = Some(InFlight { body, length: bytes.len(), waiter });
    }

    /// True if no checkpoint is in flight that would change the answer, and the query was not sent
    /// yet.
    fn can_query(&self) -> bool {
        self.in_flight.is_none() && self.query.as_ref().is_some_and(|query| query.number.is_none())
    }
}

impl<S, R> Checkpoints<S, R> {
    /// Stores a checkpoint. If another one is in flight, whose caller stopped waiting, this one is
    /// sent after it, and replaces any other that waits.
    pub(crate) fn store(&mut self, token: Token, bytes: Bytes, waiter: S) {
        let job = self.jobs.entry(token).or_default();
        if job.in_flight.is_some() {
            job.next = Some((bytes, waiter));
            return;
        }
        job.begin(token, &bytes, waiter);
        if self.attached {
            self.to_store.insert(token);
        }
    }

    /// Sends the query of a job. Replaces an earlier query of the same job.
    pub(crate) fn query(&mut self, token: Token, request: Request, waiter: R) {
        let job = self.jobs.entry(token).or_default();
        job.query = Some(Query { number: None, request, waiter });
        if self.attached && job.can_query() {
            self.to_query.insert(token);
        }
    }

    /// True when [`Checkpoints::next_to_send`] has something.
    pub(crate) fn is_ready(&self) -> bool {
        let may_query = !self.to_query.is_empty() && self.open.len() < REQUESTS_OPEN_MAX;
        self.attached && (!self.to_store.is_empty() || may_query)
    }

    /// The next request to send. Queries beyond the limit of a link wait.
    pub(crate) fn next_to_send(&mut self) -> Option<CheckpointRequest> {
        while let Some(token) = self.to_store.pop_first() {
            let job = self.jobs.get(&token);
            if let Some(in_flight) = job.and_then(|job| job.in_flight.as_ref()) {
                return Some(CheckpointRequest::Store(in_flight.body.clone()));
            }
        }
        while self.open.len() < REQUESTS_OPEN_MAX
            && let Some(token) = self.to_query.pop_first()
        {
            let Some(job) = self.jobs.get_mut(&token).filter(|job| job.can_query()) else {
                continue;
            };
            if let Some(query) = &mut job.query {
                self.last_query += 1;
                query.number = Some(self.last_query);
                self.open.insert(self.last_query, token);
                return Some(CheckpointRequest::Query(self.last_query, query.request.clone()));
            }
        }
        None
    }

    /// The link is attached: everything unanswered is sent again, checkpoints with their numbers.
    pub(crate) fn attached(&mut self) {
        self.detached();
        self.attached = true;
        for (token, job) in &mut self.jobs {
            if let Some(query) = &mut job.query {
                query.number = None;
            }
            if job.in_flight.is_some() {
                self.to_store.insert(*token);
            } else if job.can_query() {
                self.to_query.insert(*token);
            }
        }
    }

    /// The link is dead: unsent requests wait for the next one.
    pub(crate) fn detached(&mut self) {
        self.attached = false;
        self.to_store.clear();
        self.to_query.clear();
        self.open.clear();
    }

    /// Handles the answer to a checkpoint. `None` if no request matches: its lease has ended, or
    /// the answer is a duplicate.
    pub(crate) fn answered(&mut self, answer: &Checkpointed) -> Option<StoreAnswered<S>> {
        let job = self.jobs.get_mut(&answer.token)?;
        if answer.sequence != job.stored + 1 {
            return None;
        }
        let InFlight { waiter, length, .. } = job.in_flight.take()?;
        // A refused checkpoint does not use up its number.
        job.stored += u64::from(answer.outcome == CheckpointOutcome::Accepted);
        if let Some((bytes, waiter)) = job.next.take() {
            job.begin(answer.token, &bytes, waiter);
            self.to_store.insert(answer.token);
        } else if job.can_query() {
            self.to_query.insert(answer.token);
        }
        Some(StoreAnswered { waiter, length })
    }

    /// Handles the answer to a query. `None` if no query matches.
    pub(crate) fn query_answered(&mut self, number: u64) -> Option<QueryAnswered<R>> {
        let token = self.open.remove(&number)?;
        let job = self.jobs.get_mut(&token)?;
        let Query { waiter, .. } = job.query.take_if(|q| q.number == Some(number))?;
        Some(QueryAnswered { token, waiter, own_count: job.stored })
    }

    /// A job's lease has ended: drops its requests. Costs nothing while no job has a checkpoint.
    pub(crate) fn remove(&mut self, token: Token) -> Option<Waiters<S, R>> {
        if self.jobs.is_empty() {
            return None;
        }
        self.to_store.remove(&token);
        self.to_query.remove(&token);
        self.jobs.remove(&token).map(Waiters::of)
    }

    /// Every lease has ended.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Waiters<S, R>> {
        self.to_store.clear();
        self.to_query.clear();
        self.jobs.drain().map(|(_, job)| Waiters::of(job))
    }
}

impl<S, R> Waiters<S, R> {
    fn of(job: JobCheckpoints<S, R>) -> Waiters<S, R> {
        let in_flight = job.in_flight.map(|in_flight| in_flight.waiter);
        let next = job.next.map(|(_, waiter)| waiter);
        Waiters {
            stores: in_flight.into_iter().chain(next).collect(),
            reads: job.query.into_iter().map(|query| query.waiter).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
