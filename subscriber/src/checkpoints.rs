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
    jobs: HashMap<Token, OfJob<S, R>>,
    /// Those whose checkpoint is to be sent on this link; the oldest lease first, so that nothing
    /// depends on a hash.
    to_store: BTreeSet<Token>,
    /// Those whose question is to be sent on this link.
    to_ask: BTreeSet<Token>,
    /// Numbers questions.
    asked: u64,
    /// Questions that were sent on this link and not answered.
    open: HashMap<u64, Token>,
}

#[derive(Debug)]
struct OfJob<S, R> {
    /// How many are stored.
    stored: u64,
    /// The next of them, unanswered.
    under_way: Option<UnderWay<S>>,
    /// Behind it.
    next: Option<(Bytes, S)>,
    question: Option<Question<R>>,
}

#[derive(Debug)]
struct UnderWay<S> {
    body: Bytes,
    length: usize,
    waiter: S,
}

#[derive(Debug)]
struct Question<R> {
    /// The number that it was sent with.
    number: Option<u64>,
    waiter: R,
}

/// Something to send now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToSend {
    /// The body of a checkpoint.
    Store(Bytes),
    /// A question with this number.
    Ask(u64, Token),
}

impl ToSend {
    /// About how many bytes it has on the wire.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            ToSend::Store(body) => body.len(),
            ToSend::Ask(..) => 16,
        }
    }
}

/// The answer to a checkpoint.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Answered<S> {
    pub(crate) waiter: S,
    /// Bytes of the checkpoint.
    pub(crate) length: usize,
}

/// The answer to a question.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Told<R> {
    pub(crate) token: Token,
    pub(crate) waiter: R,
    /// So many of what is told are of this delivery itself: the last ones.
    pub(crate) own: u64,
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
            to_ask: BTreeSet::new(),
            asked: 0,
            open: HashMap::new(),
        }
    }
}

impl<S, R> Default for OfJob<S, R> {
    fn default() -> OfJob<S, R> {
        OfJob { stored: 0, under_way: None, next: None, question: None }
    }
}

impl<S, R> OfJob<S, R> {
    /// Makes it the next one under way.
    fn begin(&mut self, token: Token, bytes: &Bytes, waiter: S) {
        let body = Checkpoint::body_of(token, self.stored + 1, bytes);
        self.under_way = Some(UnderWay { body, length: bytes.len(), waiter });
    }

    /// What a question would be told now does not change any more before it is asked.
    fn can_ask(&self) -> bool {
        self.under_way.is_none()
            && self.question.as_ref().is_some_and(|question| question.number.is_none())
    }
}

impl<S, R> Checkpoints<S, R> {
    /// A checkpoint of a job. While another is under way, whose caller does not wait for it any
    /// more, it is sent after that one, in the place of any other that was to be.
    pub(crate) fn store(&mut self, token: Token, bytes: Bytes, waiter: S) {
        let job = self.jobs.entry(token).or_default();
        if job.under_way.is_some() {
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
    pub(crate) fn ask(&mut self, token: Token, waiter: R) {
        let job = self.jobs.entry(token).or_default();
        job.question = Some(Question { number: None, waiter });
        if self.attached && job.can_ask() {
            self.to_ask.insert(token);
        }
    }

    /// True when [`Checkpoints::next_to_send`] has something.
    pub(crate) fn is_ready(&self) -> bool {
        let may_ask = !self.to_ask.is_empty() && self.open.len() < REQUESTS_OPEN_MAX;
        self.attached && (!self.to_store.is_empty() || may_ask)
    }

    /// What is to be sent next. Questions beyond those that a link may have open wait.
    pub(crate) fn next_to_send(&mut self) -> Option<ToSend> {
        while let Some(token) = self.to_store.pop_first() {
            let job = self.jobs.get(&token);
            if let Some(under_way) = job.and_then(|job| job.under_way.as_ref()) {
                return Some(ToSend::Store(under_way.body.clone()));
            }
        }
        while self.open.len() < REQUESTS_OPEN_MAX
            && let Some(token) = self.to_ask.pop_first()
        {
            let Some(job) = self.jobs.get_mut(&token).filter(|job| job.can_ask()) else { continue };
            if let Some(question) = &mut job.question {
                self.asked += 1;
                question.number = Some(self.asked);
                self.open.insert(self.asked, token);
                return Some(ToSend::Ask(self.asked, token));
            }
        }
        None
    }

    /// The link stands: everything unanswered is sent again, checkpoints with their numbers.
    pub(crate) fn attached(&mut self) {
        self.detached();
        self.attached = true;
        for (token, job) in &mut self.jobs {
            if let Some(question) = &mut job.question {
                question.number = None;
            }
            if job.under_way.is_some() {
                self.to_store.insert(*token);
            } else if job.can_ask() {
                self.to_ask.insert(*token);
            }
        }
    }

    /// The link is dead, and what was to be sent on it waits for the next.
    pub(crate) fn detached(&mut self) {
        self.attached = false;
        self.to_store.clear();
        self.to_ask.clear();
        self.open.clear();
    }

    /// The answer to a checkpoint. `None` for one that nobody waits for: of a job without a lease,
    /// or said twice.
    pub(crate) fn answered(&mut self, answer: &Checkpointed) -> Option<Answered<S>> {
        let job = self.jobs.get_mut(&answer.token)?;
        if answer.sequence != job.stored + 1 {
            return None;
        }
        let UnderWay { waiter, length, .. } = job.under_way.take()?;
        // A refused one has not used up its number.
        job.stored += u64::from(answer.outcome == CheckpointOutcome::Accepted);
        if let Some((bytes, waiter)) = job.next.take() {
            job.begin(answer.token, &bytes, waiter);
            self.to_store.insert(answer.token);
        } else if job.can_ask() {
            self.to_ask.insert(answer.token);
        }
        Some(Answered { waiter, length })
    }

    /// The answer to a question. `None` for one that nobody waits for.
    pub(crate) fn told(&mut self, number: u64) -> Option<Told<R>> {
        let token = self.open.remove(&number)?;
        let job = self.jobs.get_mut(&token)?;
        let Question { waiter, .. } = job.question.take_if(|q| q.number == Some(number))?;
        Some(Told { token, waiter, own: job.stored })
    }

    /// A job's lease has ended: what is unanswered is not sent any more. Costs nothing while no job
    /// has a checkpoint.
    pub(crate) fn remove(&mut self, token: Token) -> Option<Waiters<S, R>> {
        if self.jobs.is_empty() {
            return None;
        }
        self.to_store.remove(&token);
        self.to_ask.remove(&token);
        self.jobs.remove(&token).map(Waiters::of)
    }

    /// Every lease has ended.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Waiters<S, R>> {
        self.to_store.clear();
        self.to_ask.clear();
        self.jobs.drain().map(|(_, job)| Waiters::of(job))
    }
}

impl<S, R> Waiters<S, R> {
    fn of(job: OfJob<S, R>) -> Waiters<S, R> {
        let under_way = job.under_way.map(|under_way| under_way.waiter);
        let next = job.next.map(|(_, waiter)| waiter);
        Waiters {
            stores: under_way.into_iter().chain(next).collect(),
            reads: job.question.into_iter().map(|question| question.waiter).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
