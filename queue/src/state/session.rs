//! Sessions: runs of client processes, across their links. They make resending safe.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use longshore_protocol::{
    EnqueueOutcome, LinkId, PathSet, Refusal, Role, Runs, SessionId, SettleOutcome,
};

use super::row::NONE;
use super::rows::List;
use super::slab::Slab;

/// One run of a client process.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Its process's name.
    pub(super) name: u32,
    pub(super) role: Role,
    /// Its present link, or its last one.
    pub(super) link: LinkId,
    pub(super) is_up: bool,
    /// Its last link was up until a start ended it, so its worker may reconnect.
    pub(super) ended_by_start: bool,
    /// Who opened it; empty without an identity.
    pub(super) identity: Box<str>,
    /// The queues whose jobs its present link may take; none for all.
    pub(super) work: Option<Arc<PathSet>>,
    /// The leases that it holds.
    pub(super) leases: List,
    pub(super) lease_count: u32,
    /// Credits of all its subscriptions.
    pub(super) credits: u32,
    /// Its worker's handlers, by the latest subscription: jobs that need a free one are delivered
    /// while it has fewer leases.
    pub(super) handlers: u32,
    /// Subscriptions with credit that wait for a free handler, in the order of their turns.
    pub(super) parked: VecDeque<u32>,
    /// The number of the next batch of jobs.
    pub(super) next_batch: u64,
    pub(super) batches: RetainedAnswers<EnqueueOutcome>,
    /// One more than the highest number of an answered batch of settles.
    pub(super) next_settle: u64,
    pub(super) settles: RetainedAnswers<SettleOutcome>,
    /// Revoked leases by token, with their queue's number. The newest few thousand.
    pub(super) revoked: BTreeMap<u64, u32>,
    /// When it is to be removed (monotonic), once its link has ended.
    pub(super) forget_at: Option<u64>,
}

impl Session {
    pub(super) fn new(id: SessionId, link: LinkId) -> Session {
        Session {
            id,
            name: NONE,
            role: Role::Tool,
            link,
            is_up: true,
            ended_by_start: false,
            identity: Box::default(),
            work: None,
            leases: List::default(),
            lease_count: 0,
            credits: 0,
            handlers: 0,
            parked: VecDeque::new(),
            next_batch: 1,
            batches: RetainedAnswers::default(),
            next_settle: 1,
            settles: RetainedAnswers::default(),
            revoked: BTreeMap::new(),
            forget_at: None,
        }
    }

    /// The answer to a batch of settles is no longer stored, when this many are.
    pub(super) fn is_too_old(&self, settles: u64, answers_retained: u64) -> bool {
        settles == 0 || settles.saturating_add(answers_retained) < self.next_settle
    }

    /// Records the queue of a revoked lease.
    pub(super) fn remember_revoked(&mut self, token: u64, queue: u32, most: usize) {
        self.revoked.insert(token, queue);
        while self.revoked.len() > most {
            self.revoked.pop_first();
        }
    }

    /// Bytes of memory of its answers.
    pub(super) fn answer_bytes(&self) -> u64 {
        self.batches.bytes() + self.settles.bytes()
    }
}

/// What an answer, and a run of one, count as. Numbers, not sizes of types: they decide at every
/// replay, and a compiler may change layouts.
const ANSWER_BYTES: usize = 40;
const RUN_BYTES: usize = 24;
/// Most runs of outcomes without a code, which name jobs, that a session stores: 64 answers to
/// batches of 1,000 jobs have fewer. A number that decides at every replay.
const LONG_RUNS_MAX: usize = 65_536;

/// An answer with at most one byte per outcome, unless some outcomes name a job.
#[derive(Clone, PartialEq, Debug)]
enum RetainedAnswer<T> {
    /// Most batches have few runs of equal outcomes; some have outcomes without a code.
    Runs(Runs<T>),
    /// The code of each outcome.
    Codes(Box<[u8]>),
}

impl<T: Outcome> RetainedAnswer<T> {
    fn of(runs: Runs<T>) -> RetainedAnswer<T> {
        if runs.runs().len() * RUN_BYTES <= runs.len() {
            return RetainedAnswer::Runs(runs);
        }
        match runs.iter().map(Outcome::to_code).collect() {
            Some(codes) => RetainedAnswer::Codes(codes),
            None => RetainedAnswer::Runs(runs),
        }
    }

    fn runs(&self) -> Runs<T> {
        match self {
            RetainedAnswer::Runs(runs) => runs.clone(),
            RetainedAnswer::Codes(codes) => {
                codes.iter().filter_map(|&code| T::from_code(code)).collect()
            }
        }
    }

    /// The runs of an answer that does not fit into a byte per outcome.
    fn long_runs(&self) -> usize {
        match self {
            RetainedAnswer::Runs(runs) if runs.runs().len() * RUN_BYTES > runs.len() => {
                runs.runs().len()
            }
            RetainedAnswer::Runs(_) | RetainedAnswer::Codes(_) => 0,
        }
    }

    fn bytes(&self) -> u64 {
        let bytes = match self {
            RetainedAnswer::Runs(runs) => runs.runs().len() * RUN_BYTES,
            RetainedAnswer::Codes(codes) => codes.len(),
        };
        (ANSWER_BYTES + bytes) as u64
    }
}

/// An outcome that is stored as one byte, unless it has no code.
pub(super) trait Outcome: Copy + PartialEq {
    fn to_code(self) -> Option<u8>;
    fn from_code(code: u8) -> Option<Self>;
}

impl Outcome for SettleOutcome {
    fn to_code(self) -> Option<u8> {
        Some(self.code())
    }

    fn from_code(code: u8) -> Option<SettleOutcome> {
        SettleOutcome::from_code(code)
    }
}

impl Outcome for EnqueueOutcome {
    fn to_code(self) -> Option<u8> {
        match self {
            EnqueueOutcome::Created => Some(0),
            // No refusal has the code 0: see the test.
            EnqueueOutcome::Existing => Some(u8::MAX),
            EnqueueOutcome::Refused(refusal) => Some(refusal.code()),
            EnqueueOutcome::ExistingKey(_) => None,
        }
    }

    fn from_code(code: u8) -> Option<EnqueueOutcome> {
        match code {
            0 => Some(EnqueueOutcome::Created),
            u8::MAX => Some(EnqueueOutcome::Existing),
            code => Refusal::from_code(code).map(EnqueueOutcome::Refused),
        }
    }
}

/// The answers to a session's last batches, by sequence number.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct RetainedAnswers<T> {
    stored: VecDeque<(u64, RetainedAnswer<T>)>,
    /// The sum over all of them.
    long_runs: usize,
}

impl<T> Default for RetainedAnswers<T> {
    fn default() -> RetainedAnswers<T> {
        RetainedAnswers { stored: VecDeque::new(), long_runs: 0 }
    }
}

impl<T: Outcome> RetainedAnswers<T> {
    pub(super) fn get(&self, sequence: u64) -> Option<Runs<T>> {
        // The newest is the likeliest to be requested again.
        self.stored.iter().rev().find(|(s, _)| *s == sequence).map(|(_, answer)| answer.runs())
    }

    /// Stores an answer, sorted by sequence number, and removes the lowest when there are too many.
    /// So of the 64 highest numbers every answered one is here, in whatever order they came, unless
    /// together they name more than [`LONG_RUNS_MAX`] jobs. Returns the growth in bytes.
    pub(super) fn push(&mut self, sequence: u64, answer: Runs<T>, most: usize) -> i64 {
        let answer = RetainedAnswer::of(answer);
        let mut grown = answer.bytes() as i64;
        let after = self.stored.iter().rev().take_while(|(s, _)| *s > sequence).count();
        self.stored.insert(self.stored.len() - after, (sequence, answer));
        self.long_runs += self.stored[self.stored.len() - 1 - after].1.long_runs();
        while (self.stored.len() > most
            || (self.long_runs > LONG_RUNS_MAX && self.stored.len() > 1))
            && let Some((_, removed)) = self.stored.pop_front()
        {
            self.long_runs -= removed.long_runs();
            grown -= removed.bytes() as i64;
        }
        grown
    }

    /// Each answer with its number, in order: for snapshots.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, Runs<T>)> {
        self.stored.iter().map(|(sequence, answer)| (*sequence, answer.runs()))
    }

    fn bytes(&self) -> u64 {
        self.stored.iter().map(|(_, answer)| answer.bytes()).sum()
    }
}

/// Sessions per chunk, which are copied together: each may store the answers to 128 batches.
const CHUNK_SESSIONS: usize = if cfg!(test) { 2 } else { 16 };

/// All known sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    pub(super) table: Slab<Session, CHUNK_SESSIONS>,
    pub(super) by_id: BTreeMap<SessionId, u32>,
    /// Sessions without a link, by removal time.
    pub(super) to_remove: BTreeSet<(u64, u32)>,
    /// Bytes of memory of all answers.
    pub(super) answer_bytes: u64,
}

impl Sessions {
    pub(super) fn insert(&mut self, id: SessionId, link: LinkId) -> u32 {
        let number = self.table.insert(Session::new(id, link));
        self.by_id.insert(id, number);
        number
    }

    /// Stores the answer to a batch of jobs.
    pub(super) fn store_batch_answer(
        &mut self,
        number: u32,
        sequence: u64,
        answer: Runs<EnqueueOutcome>,
        most: usize,
    ) {
        let grown = self.table[number].batches.push(sequence, answer, most);
        self.answer_bytes = self.answer_bytes.saturating_add_signed(grown);
    }

    /// Stores the answer to a batch of settles.
    pub(super) fn store_settle_answer(
        &mut self,
        number: u32,
        sequence: u64,
        answer: Runs<SettleOutcome>,
        most: usize,
    ) {
        let grown = self.table[number].settles.push(sequence, answer, most);
        self.answer_bytes = self.answer_bytes.saturating_add_signed(grown);
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.cancel_removal(number);
        if let Some(session) = self.table.remove(number) {
            self.by_id.remove(&session.id);
            self.answer_bytes -= session.answer_bytes();
        }
    }

    /// Its link has ended: schedules its removal.
    pub(super) fn schedule_removal(&mut self, number: u32, at_ms: u64) {
        self.cancel_removal(number);
        let session = &mut self.table[number];
        session.is_up = false;
        session.forget_at = Some(at_ms);
        self.to_remove.insert((at_ms, number));
    }

    /// Cancels its removal.
    pub(super) fn cancel_removal(&mut self, number: u32) {
        if let Some(at) = self.table[number].forget_at.take() {
            self.to_remove.remove(&(at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::JobId;

    use super::*;

    #[test]
    fn every_outcome_has_its_own_byte() {
        let refusals = Refusal::ALL.iter().map(|&refusal| EnqueueOutcome::Refused(refusal));
        for outcome in
            [EnqueueOutcome::Created, EnqueueOutcome::Existing].into_iter().chain(refusals)
        {
            assert_eq!(outcome.to_code().and_then(EnqueueOutcome::from_code), Some(outcome));
        }
    }

    #[test]
    fn answer_takes_at_most_a_byte_per_outcome() {
        let two = [EnqueueOutcome::Created, EnqueueOutcome::Refused(Refusal::QueueFull)];
        let alternating: Runs<_> = (0..10_000).map(|n| two[n % 2]).collect();
        let uniform = Runs::all(EnqueueOutcome::Created, 10_000);
        let entry = ANSWER_BYTES as u64;
        assert!(size_of::<(u64, RetainedAnswer<EnqueueOutcome>)>() <= ANSWER_BYTES);
        assert!(size_of::<(EnqueueOutcome, u32)>() <= RUN_BYTES);
        for (runs, most) in
            [(alternating, 10_000), (uniform, RUN_BYTES as u64), (Runs::default(), 0)]
        {
            let answer = RetainedAnswer::of(runs.clone());
            assert!(answer.bytes() <= entry + most, "{} bytes", answer.bytes());
            assert_eq!(answer.runs(), runs);
        }
    }

    #[test]
    fn answers_that_name_jobs_are_few() {
        let (mut answers, mut bytes) = (RetainedAnswers::default(), 0);
        let named = |batch: u64, jobs: u32| -> Runs<EnqueueOutcome> {
            let id = |n: u32| JobId((u128::from(batch) << 32 | u128::from(n)).to_be_bytes());
            (0..jobs).map(|n| EnqueueOutcome::ExistingKey(id(n))).collect()
        };
        for batch in 0..64 {
            bytes += answers.push(batch, named(batch, 1_000), 64);
        }
        assert_eq!(answers.iter().len(), 64, "a producer's usual batches all have answers");
        for batch in 64..200 {
            bytes += answers.push(batch, named(batch, 10_000), 64);
            assert_eq!(answers.get(batch).map(|runs| runs.len()), Some(10_000));
        }
        assert_eq!(answers.iter().len(), 6);
        assert!(bytes as u64 == answers.bytes() && bytes < 1_600_000, "{bytes} bytes");
        for batch in 200..300 {
            answers.push(batch, Runs::all(EnqueueOutcome::Created, 10_000), 64);
        }
        assert_eq!((answers.iter().len(), answers.long_runs), (64, 0));
    }
}
