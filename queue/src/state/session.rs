//! Sessions: runs of client processes, over their links. What makes resending safe is here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longshore_protocol::{EnqueueOutcome, LinkId, Role, Runs, SessionId, SettleOutcome};

use super::limits::{ANSWERS_KEPT, LOST_KEPT};
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
    /// The leases that it holds.
    pub(super) held: List,
    pub(super) held_count: u32,
    /// Credits of all its subscriptions.
    pub(super) credits: u32,
    /// The batch of jobs that must come next.
    pub(super) next_batch: u64,
    pub(super) batches: Answers<EnqueueOutcome>,
    /// One more than the highest batch of settles that was answered.
    pub(super) next_settle: u64,
    pub(super) settles: Answers<SettleOutcome>,
    /// Leases that were taken from it, by token, with their queue's number. The newest few thousand.
    pub(super) lost: BTreeMap<u64, u32>,
    /// When it is to be forgotten (monotonic), once its link is gone.
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
            held: List::default(),
            held_count: 0,
            credits: 0,
            next_batch: 1,
            batches: Answers::default(),
            next_settle: 1,
            settles: Answers::default(),
            lost: BTreeMap::new(),
            forget_at: None,
        }
    }

    /// Remembers whose job a lost lease was.
    pub(super) fn remember_lost(&mut self, token: u64, queue: u32) {
        self.lost.insert(token, queue);
        if self.lost.len() > LOST_KEPT {
            self.lost.pop_first();
        }
    }
}

/// The answers to a session's last batches, by sequence number.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answers<T> {
    pub(super) kept: VecDeque<(u64, Runs<T>)>,
}

impl<T> Default for Answers<T> {
    fn default() -> Answers<T> {
        Answers { kept: VecDeque::new() }
    }
}

impl<T: Clone> Answers<T> {
    pub(super) fn get(&self, sequence: u64) -> Option<&Runs<T>> {
        // The newest is the likeliest to be asked for again.
        self.kept.iter().rev().find(|(s, _)| *s == sequence).map(|(_, answer)| answer)
    }

    /// Keeps an answer, in the order of sequence numbers, and lets go of the lowest when there are too many. So of the 64
    /// highest numbers every one that was answered is here, whatever the order in which they came.
    pub(super) fn keep(&mut self, sequence: u64, answer: Runs<T>) {
        let after = self.kept.iter().rev().take_while(|(s, _)| *s > sequence).count();
        self.kept.insert(self.kept.len() - after, (sequence, answer));
        if self.kept.len() > ANSWERS_KEPT {
            self.kept.pop_front();
        }
    }
}

/// Sessions that are copied at once: each may keep the answers to 128 batches.
const CHUNK_SESSIONS: usize = if cfg!(test) { 2 } else { 16 };

/// All sessions that are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    pub(super) table: Slab<Session, CHUNK_SESSIONS>,
    pub(super) by_id: BTreeMap<SessionId, u32>,
    /// Those without a link, by the time at which they are forgotten.
    pub(super) leaving: BTreeSet<(u64, u32)>,
}

impl Sessions {
    pub(super) fn insert(&mut self, id: SessionId, link: LinkId) -> u32 {
        let number = self.table.insert(Session::new(id, link));
        self.by_id.insert(id, number);
        number
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.stay(number);
        if let Some(session) = self.table.remove(number) {
            self.by_id.remove(&session.id);
        }
    }

    /// Its link has gone: it is forgotten at that time.
    pub(super) fn leave(&mut self, number: u32, at_ms: u64) {
        self.stay(number);
        let session = &mut self.table[number];
        session.is_up = false;
        session.forget_at = Some(at_ms);
        self.leaving.insert((at_ms, number));
    }

    /// It is not to be forgotten.
    pub(super) fn stay(&mut self, number: u32) {
        if let Some(at) = self.table[number].forget_at.take() {
            self.leaving.remove(&(at, number));
        }
    }
}
