//! Order keys: jobs of a queue with the same key run one at a time, in the order in which they were
//! enqueued. One of them has the *turn*, from when it becomes ready until it ends: also while it
//! runs, retries or snoozes. The others that are due are blocked, in no list that a worker's credit
//! looks at: finding the next job does not depend on how many there are. A job that is not due yet
//! is not blocked, and blocks none.
//!
//! Turns are given at the end of each command, so one step of an act on ready jobs finds those that
//! were ready when it began; the next step finds those whose turn has come.

use std::cmp::Reverse;

use longshore_protocol::messages::work::BlockedBy;
use longshore_protocol::{Decode, Encode, FrameWriter, JobChange, JobId, Reader, WireError};

use super::State;
use super::key_jobs::{KeyJobs, Rank};
use super::key_table::{KeyTable, KeyText, Keyed};
use super::profile::DEFAULT;
use super::row::{NONE, Order, Row, Substate};
use super::rows::{Links, List};
use super::slab::Slab;
use super::steps;
use crate::outcome::Outcomes;

/// Approximate bytes of memory of an order key: its entry, and its place in the index.
const ORDER_KEY_BYTES: u64 = 160;

/// An order key, while a job has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OrderKey {
    pub(super) queue: u32,
    text: KeyText,
    /// The job whose turn it is.
    pub(super) turn: u32,
    /// That job has replaced a dead one that kept the turn: it is not overtaken.
    kept: bool,
    /// Profiles with this key. Not in snapshots, like the next.
    pub(super) profiles: u32,
    /// The jobs that wait for their turn.
    pub(super) blocked: List,
}

impl OrderKey {
    fn new(queue: u32, text: KeyText) -> OrderKey {
        let blocked = List::default();
        OrderKey { queue, text, turn: NONE, kept: false, profiles: 0, blocked }
    }
}

impl Keyed for OrderKey {
    fn key(&self) -> (u32, &[u8]) {
        (self.queue, self.text.bytes())
    }
}

/// All order keys, and the jobs that wait for their turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    pub(super) table: KeyTable<OrderKey>,
    /// By age: turns know no priority.
    pub(super) blocked: KeyJobs,
    /// Keys whose turn may go to another job. Empty between commands.
    pub(super) unsettled: Vec<u32>,
}

impl Orders {
    /// The number of a queue's key, which is added if missing.
    pub(super) fn number_of(&mut self, queue: u32, text: &str) -> u32 {
        self.table.number_of(queue, text, OrderKey::new)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.table.len() as u64 * ORDER_KEY_BYTES
    }

    /// The keys of a snapshot; none if a queue has a key twice.
    pub(super) fn from_entries(entries: Slab<OrderKey>) -> Option<Orders> {
        Some(Orders { table: KeyTable::from_entries(entries)?, ..Orders::default() })
    }
}

/// A job's rank among those of its order key.
pub(super) fn age(row: &Row) -> Rank {
    (Reverse(0), row.order())
}

impl State {
    /// The oldest job that waits for the turn of its key.
    fn first_blocked(&self, key: u32) -> Option<(Order, u32)> {
        let list = self.orders.table[key].blocked;
        let first = self.orders.blocked.first(&self.rows, list, key, age);
        first.map(|((_, order), slot)| (order, slot))
    }

    /// The job's order key; `NONE` without one.
    #[inline]
    pub(super) fn order_key_of(&self, slot: u32) -> u32 {
        match self.rows[slot].profile {
            // Most jobs have no options of their own: this check is all that order costs them.
            DEFAULT => NONE,
            profile => self.profiles.keys(profile).order,
        }
    }

    /// What a blocked job waits for, or a ready one whose queue is held back.
    pub(super) fn blocked_by(&self, slot: u32) -> Option<BlockedBy> {
        match self.rows[slot].substate {
            Substate::Blocked => {}
            Substate::Limited => return Some(self.limited_by_key(slot)),
            Substate::Waiting => {
                if let Some(members) = self.batch_info(slot) {
                    return Some(BlockedBy::Members(members));
                }
                let parent = &self.rows[self.first_parent(slot)?];
                let (job, state) = (parent.id, parent.substate.state()?);
                return Some(BlockedBy::Parent { job, state });
            }
            Substate::Fresh | Substate::Returned => {
                let by = self.limited_by(self.rows[slot].queue)?;
                return Some(BlockedBy::Limit { by, key: None });
            }
            _ => return None,
        }
        let key = &self.orders.table[self.order_key_of(slot)];
        let with_turn = &self.rows[key.turn];
        let (job, state) = (with_turn.id, with_turn.substate.state()?);
        let text = String::from_utf8_lossy(key.text.bytes()).into_owned();
        Some(BlockedBy::Order { key: text, job, state })
    }

    /// Gives the turn of its key to a job that would enter ready. False if another has it, or may
    /// be older: then the job has to wait, and [`State::settle_turns`] decides.
    pub(super) fn take_turn_of(&mut self, key: u32, slot: u32) -> bool {
        if self.orders.table[key].turn == NONE && self.first_blocked(key).is_none() {
            self.orders.table[key].turn = slot;
        }
        let has_turn = self.orders.table[key].turn == slot;
        // One that kept the turn while it was dead: an older one may have come due meanwhile.
        if has_turn && self.rows[slot].deliveries == 0 && self.first_blocked(key).is_some() {
            self.orders.unsettled.push(key);
        }
        has_turn
    }

    /// The job is due, and waits for its turn.
    pub(super) fn enter_blocked(&mut self, slot: u32, key: u32) {
        self.rows[slot].when = self.now.mono_ms;
        let queue = self.rows[slot].queue;
        let list = &mut self.orders.table[key].blocked;
        self.orders.blocked.add(&mut self.rows, list, (key, slot), age);
        let turn = self.orders.table[key].turn;
        if turn == NONE || self.rows[turn].order() > self.rows[slot].order() {
            self.orders.unsettled.push(key);
        }
        self.set_substate(slot, Substate::Blocked);
        self.queues[queue as usize].blocked.push_back(&mut self.rows, Links::Main, slot);
        self.watch_expiry(slot);
    }

    pub(super) fn leave_blocked(&mut self, slot: u32) {
        let (key, queue) = (self.order_key_of(slot), self.rows[slot].queue);
        let list = &mut self.orders.table[key].blocked;
        self.orders.blocked.remove(&mut self.rows, list, (key, slot), age);
        self.queues[queue as usize].blocked.unlink(&mut self.rows, Links::Main, slot);
    }

    /// The job has ended, or is about to be removed: its key's turn goes to the next.
    #[inline]
    pub(super) fn return_turn(&mut self, slot: u32) {
        let key = self.order_key_of(slot);
        if key != NONE && self.orders.table[key].turn == slot {
            let entry = &mut self.orders.table[key];
            (entry.turn, entry.kept) = (NONE, false);
            self.orders.unsettled.push(key);
        }
    }

    /// True of a dead job that keeps its turn.
    pub(super) fn has_turn_of_dead(&self, slot: u32) -> bool {
        let key = self.order_key_of(slot);
        let is_dead = self.rows[slot].substate == Substate::Dead;
        is_dead && key != NONE && self.orders.table[key].turn == slot
    }

    /// Dead jobs of the queue no longer keep their turns. It reads all order keys.
    pub(super) fn return_turns_of_dead(&mut self, queue: u32) {
        let keys = self.orders.table.entries().iter().map(|(_, key)| key);
        let turns = keys.filter(|key| key.queue == queue && key.turn != NONE).map(|key| key.turn);
        let of_dead = turns.filter(|&turn| self.rows[turn].substate == Substate::Dead);
        for slot in of_dead.collect::<Vec<u32>>() {
            self.return_turn(slot);
        }
    }

    /// Gives the turn of a dead job to the one that has replaced it.
    pub(super) fn keep_turn(&mut self, key: u32, job: &JobId, out: &mut Outcomes) {
        let slot = self.rows.find(job).filter(|&slot| self.rows[slot].substate.is_open());
        let Some(slot) = slot else { return };
        let entry = &mut self.orders.table[key];
        (entry.turn, entry.kept) = (slot, true);
        if self.rows[slot].substate == Substate::Blocked {
            self.leave_substate(slot);
            self.enter_after_turn(slot, out);
        }
    }

    /// The job has the turn: it is ready, or waits for room of its limit key.
    fn enter_after_turn(&mut self, slot: u32, out: &mut Outcomes) {
        self.enter_ready(slot, Substate::Returned, self.now.mono_ms);
        if self.rows[slot].substate != Substate::Limited {
            self.emit(slot, JobChange::Unblocked, out);
        }
    }

    /// Gives turns that have become free, or that an older job has a claim to; then room of limits.
    #[inline]
    pub(super) fn settle_turns(&mut self, out: &mut Outcomes) {
        if !self.orders.unsettled.is_empty() {
            self.settle_some_turns(out);
        }
        self.settle_limit_keys(out);
    }

    #[inline(never)]
    fn settle_some_turns(&mut self, out: &mut Outcomes) {
        let mut unsettled = std::mem::take(&mut self.orders.unsettled);
        for key in unsettled.drain(..) {
            steps::count(1);
            if self.orders.table.entries().get(key).is_none_or(|entry| entry.kept) {
                continue;
            }
            let Some((order, next)) = self.first_blocked(key) else { continue };
            let turn = self.orders.table[key].turn;
            if turn != NONE {
                if !self.may_be_overtaken(turn, order) {
                    continue;
                }
                let was_blocked = self.rows[turn].substate == Substate::Limited;
                self.leave_substate(turn);
                self.enter_blocked(turn, key);
                if !was_blocked {
                    self.emit(turn, JobChange::Blocked, out);
                }
            }
            self.orders.table[key].turn = next;
            self.leave_substate(next);
            self.enter_after_turn(next, out);
        }
        // The list keeps its memory for the next command; a job that was overtaken is settled.
        self.orders.unsettled.clear();
        self.orders.unsettled = unsettled;
    }

    /// True of a job with the turn that waits, was never delivered, and is younger: its place is
    /// behind an older one that came due, or was revived, after it.
    fn may_be_overtaken(&self, turn: u32, order: Order) -> bool {
        let row = &self.rows[turn];
        let waits =
            matches!(row.substate, Substate::Fresh | Substate::Returned | Substate::Limited);
        waits && row.deliveries == 0 && order < row.order()
    }

    /// Counts the profiles of each key, after a restore.
    pub(super) fn count_profiles_of_keys(&mut self) {
        for (_, profile) in self.profiles.table().iter() {
            if profile.keys.order != NONE {
                self.orders.table[profile.keys.order].profiles += 1;
            }
            if profile.keys.share != NONE {
                self.shares.table[profile.keys.share].profiles += 1;
            }
            if profile.keys.limit != NONE {
                self.limits.keys[profile.keys.limit].profiles += 1;
            }
        }
    }

    /// Removes the key once no job has it.
    pub(super) fn release_order_key(&mut self, key: u32) {
        let entry = &mut self.orders.table[key];
        entry.profiles -= 1;
        if entry.profiles == 0 {
            self.orders.table.remove(key);
        }
    }
}

impl Encode for OrderKey {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        super::snapshot::put_index(out, self.turn);
        out.bool(self.kept);
        self.text.encode(out);
    }
}

/// Its profiles count themselves when they are restored.
impl Decode for OrderKey {
    fn decode(r: &mut Reader) -> Result<OrderKey, WireError> {
        let (queue, turn) = (r.u32()?, super::snapshot::index(r)?);
        let kept = r.bool()?;
        Ok(OrderKey { turn, kept, ..OrderKey::new(queue, KeyText::decode(r)?) })
    }
}
