//! The checkpoints of one publisher's jobs on their way: numbered within each delivery, kept until
//! they are answered, and sent again, with the same numbers, on the next link; and the questions
//! after those that earlier attempts have left.
//!
//! Of each job one checkpoint is under way at a time, so a number is used up by what was stored
//! alone. A job has at most two checkpoints here: the one under way and, where its caller has given
//! up on that, the next one behind it.

use std::collections::BTreeSet;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::limits::REQUESTS_OPEN_MAX;
use longshore_protocol::messages::work::{Checkpoint, Checkpointed};
use longshore_protocol::{CheckpointOutcome, Token};

/// All that is unanswered at one publisher. `S` is who waits for a checkpoint to be stored, `R` who
/// waits to read earlier ones.
#[derive(Debug)]
pub(crate) struct Checkpoints<S, R> {
    attached: bool,
    /// Jobs that have left a checkpoint, or have asked, with the leases that they hold now.
    jobs: HashMap<Token, JobCheckpoints<S, R>>,
    /// Those whose checkpoint is to be sent on this link; the oldest lease first, so that nothing
    /// depends on a hash.
    to_store: BTreeSet<Token>,
    /// Those whose question is to be sent on this link.
    to_query: BTreeSet<Token>,
    /// Numbers questions.
    last_query: u64,
    /// Questions that were sent on this link and not answered.
    open: HashMap<u64, Token>,
}

#[derive(Debug)]
struct JobCheckpoints<S, R> {
    /// How many are stored.
    stored: u64,
    /// The next of them, unanswered.
    in_flight: Option<InFlight<S>>,
    /// Behind it.
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
    waiter: R,
}

/// Something to send now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointRequest {
    /// The body of a checkpoint.
    Store(Bytes),
    /// A question with this number.
    Query(u64, Token),
}

impl CheckpointRequest {
    /// About how many bytes it has on the wire.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            CheckpointRequest::Store(body) => body.len(),
            CheckpointRequest::Query(..) => 16,
        }
    }
}

/// The answer to a checkpoint.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct StoreAnswered<S> {
    pub(crate) waiter: S,
    /// Bytes of the checkpoint.
    pub(crate) length: usize,
}

/// The answer to a question.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct QueryAnswered<R> {
    pub(crate) token: Token,
    pub(crate) waiter: R,
    /// So many of what is told are of this delivery itself: the last ones.
    pub(crate) own_count: u64,
}

/// Those who wait for answers of a job that has no lease any more.
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
    /// Makes it the next one under way.
    fn begin(&mut self, token: Token, bytes: &Bytes, waiter: S) {
        let body = Checkpoint::body_of(token, self.stored + 1, bytes);
        self.in_flight = Some(InFlight { body, length: bytes.len(), waiter });
    }

    /// What a question would be told now does not change any more before it is asked.
    fn can_query(&self) -> bool {
        self.in_flight.is_none() && self.query.as_ref().is_some_and(|query| query.number.is_none())
    }
}

impl<S, R> Checkpoints<S, R> {
    /// A checkpoint of a job. While another is under way, whose caller does not wait for it any
    /// more, it is sent after that one, in the place of any other that was to be.
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

    /// A question after the checkpoints that a job has. An earlier one of the same job is
    /// forgotten.
    pub(crate) fn query(&mut self, token: Token, waiter: R) {
        let job = self.jobs.entry(token).or_default();
        job.query = Some(Query { number: None, waiter });
        if self.attached && job.can_query() {
            self.to_query.insert(token);
        }
    }

    /// True when [`Checkpoints::next_to_send`] has something.
    pub(crate) fn is_ready(&self) -> bool {
        let may_query = !self.to_query.is_empty() && self.open.len() < REQUESTS_OPEN_MAX;
        self.attached && (!self.to_store.is_empty() || may_query)
    }

    /// What is to be sent next. Questions beyond those that a link may have open wait.
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
                return Some(CheckpointRequest::Query(self.last_query, token));
            }
        }
        None
    }

    /// The link stands: everything unanswered is sent again, checkpoints with their numbers.
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

    /// The link is dead, and what was to be sent on it waits for the next.
    pub(crate) fn detached(&mut self) {
        self.attached = false;
        self.to_store.clear();
        self.to_query.clear();
        self.open.clear();
    }

    /// The answer to a checkpoint. `None` for one that nobody waits for: of a job without a lease,
    /// or said twice.
    pub(crate) fn answered(&mut self, answer: &Checkpointed) -> Option<StoreAnswered<S>> {
        let job = self.jobs.get_mut(&answer.token)?;
        if answer.sequence != job.stored + 1 {
            return None;
        }
        let InFlight { waiter, length, .. } = job.in_flight.take()?;
        // A refused one has not used up its number.
        job.stored += u64::from(answer.outcome == CheckpointOutcome::Accepted);
        if let Some((bytes, waiter)) = job.next.take() {
            job.begin(answer.token, &bytes, waiter);
            self.to_store.insert(answer.token);
        } else if job.can_query() {
            self.to_query.insert(answer.token);
        }
        Some(StoreAnswered { waiter, length })
    }

    /// The answer to a question. `None` for one that nobody waits for.
    pub(crate) fn query_answered(&mut self, number: u64) -> Option<QueryAnswered<R>> {
        let token = self.open.remove(&number)?;
        let job = self.jobs.get_mut(&token)?;
        let Query { waiter, .. } = job.query.take_if(|q| q.number == Some(number))?;
        Some(QueryAnswered { token, waiter, own_count: job.stored })
    }

    /// A job's lease has ended: what is unanswered is not sent any more. Costs nothing while no job
    /// has a checkpoint.
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
