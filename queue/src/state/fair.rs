//! Fair keys: among a queue's ready jobs of one priority, keys take turns by their weights,
//! whatever one of them enqueues. Jobs without a fair key take turns as if they had one of weight
//! 1.
//!
//! It is start-time fair queueing (Goyal, Vin, Cheng 1996). Each key at a priority is a *share*. A
//! share's `pass` grows with every delivery, by the inverse of its weight; the share with the
//! lowest is next. The level's clock is the pass of the last delivery: a share that was idle begins
//! there, so it neither saves up a claim nor pays for the past. A new one begins a delivery later,
//! as if it had just had one: else a key that always has one job, and is forgotten with it, would
//! always be next.
//!
//! Within a share, jobs are in order of age. Plain queues pay one comparison.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::limits::{FAIR_WEIGHT_MAX, KEY_BYTES_MAX};
use longshore_protocol::{Decode, Encode, FrameWriter, Reader, WireError};

use super::State;
use super::key_table::{KeyTable, Keyed};
use super::profile::DEFAULT;
use super::ready::Head;
use super::row::{NONE, Order};
use super::slab::Slab;

/// What a delivery adds to the pass of a share of weight 1. A weight's inverse is exact to
/// 1/1,048, and a pass overflows after 2⁴⁴ deliveries.
const STRIDE: u64 = 1 << 20;

/// A fair key's jobs of one priority, while a job is among them, ended ones included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Share {
    pub(super) queue: u32,
    pub(super) priority: i32,
    /// Its [`ShareName`].
    text: Box<[u8]>,
    weight: u16,
    pass: u64,
    /// Profiles with this share.
    pub(super) profiles: u32,
}

impl Keyed for Share {
    fn key(&self) -> (u32, &[u8]) {
        (self.queue, &self.text)
    }
}

/// All shares, and their ready jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    pub(super) table: KeyTable<Share>,
    /// By share, then by age.
    pub(super) jobs: BTreeSet<(u32, Order, u32)>,
}

/// A queue's shares of one priority.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FairLevel {
    /// Shares with ready jobs: the next is first.
    ring: BTreeSet<(u64, u32)>,
    /// The oldest ready job of each of them.
    heads: BTreeSet<(Order, u32)>,
    clock: u64,
    /// The pass of the jobs without a fair key.
    plain_pass: u64,
    shares: u32,
}

/// A queue's shares by priority.
pub(super) type FairLevels = BTreeMap<Reverse<i32>, FairLevel>;

impl Shares {
    /// The share's oldest ready job.
    fn first(&self, share: u32) -> Option<(Order, u32)> {
        let all = (share, (0, 0), 0)..=(share, (u64::MAX, u32::MAX), u32::MAX);
        self.jobs.range(all).next().map(|&(_, order, slot)| (order, slot))
    }

    pub(super) fn from_entries(entries: Slab<Share>) -> Option<Shares> {
        Some(Shares { table: KeyTable::from_entries(entries)?, ..Shares::default() })
    }
}

/// The name of a share in its queue: the priority's four bytes, then the key. On the stack, as
/// every job with a fair key looks its share up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ShareName {
    bytes: [u8; 4 + KEY_BYTES_MAX],
    length: usize,
}

impl ShareName {
    /// An entry decodes only with a key of at most 80 bytes.
    pub(super) fn new(priority: i32, key: &str) -> ShareName {
        let key = &key.as_bytes()[..key.len().min(KEY_BYTES_MAX)];
        let mut bytes = [0; 4 + KEY_BYTES_MAX];
        bytes[..4].copy_from_slice(&priority.to_be_bytes());
        bytes[4..4 + key.len()].copy_from_slice(key);
        ShareName { bytes, length: 4 + key.len() }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl State {
    /// The job's share; `NONE` without a fair key.
    #[inline]
    pub(super) fn share_of(&self, slot: u32) -> u32 {
        match self.rows[slot].profile {
            DEFAULT => NONE,
            profile => self.profiles.keys(profile).share,
        }
    }

    /// The queue's next ready job, and its row.
    #[inline]
    pub(super) fn next_ready(&self, queue: u32) -> Option<(Head, u32)> {
        let q = &self.queues[queue as usize];
        let plain = q.ready.next(&self.rows);
        if q.fair.is_empty() { plain } else { self.next_of_shares(queue, plain) }
    }

    #[inline(never)]
    fn next_of_shares(&self, queue: u32, plain: Option<(Head, u32)>) -> Option<(Head, u32)> {
        let q = &self.queues[queue as usize];
        let Some(&priority) = q.fair_filled.first() else { return plain };
        if plain.is_some_and(|(head, _)| head.priority < priority) {
            return plain;
        }
        let level = q.fair.get(&priority)?;
        let &(pass, share) = level.ring.first()?;
        let &(oldest, _) = level.heads.first()?;
        let plain = plain.filter(|(head, _)| head.priority == priority);
        // Beside other queues the oldest job counts, whose turn it may not be: else a queue would
        // fall behind when the turn is a young job's.
        let order = plain.map_or(oldest, |(head, _)| head.order.min(oldest));
        let plain = plain.filter(|_| level.plain_pass.max(level.clock) <= pass);
        let slot = match plain {
            Some((_, slot)) => slot,
            None => self.shares.first(share)?.1,
        };
        Some((Head { priority, order }, slot))
    }

    /// The number of a fair key's share, which is added if missing. The latest job's weight counts.
    pub(super) fn share_number(
        &mut self,
        queue: u32,
        priority: i32,
        key: &str,
        weight: u16,
    ) -> u32 {
        let name = ShareName::new(priority, key);
        if let Some(share) = self.shares.table.find(queue, name.as_bytes()) {
            self.shares.table[share].weight = weight;
            return share;
        }
        let level = self.queues[queue as usize].fair.entry(Reverse(priority)).or_default();
        level.shares += 1;
        let pass = level.clock + STRIDE / u64::from(weight.max(1));
        let text = name.as_bytes().into();
        self.shares.table.insert(Share { queue, priority, text, weight, pass, profiles: 0 })
    }

    /// The share of the same key at another priority; none if there is no room for it.
    pub(super) fn share_at(&mut self, share: u32, priority: i32) -> Option<u32> {
        if share == NONE || self.shares.table[share].priority == priority {
            return Some(share);
        }
        let Share { queue, weight, ref text, .. } = self.shares.table[share];
        let key = String::from_utf8_lossy(&text[4..]).into_owned();
        let name = ShareName::new(priority, &key);
        if let Some(known) = self.shares.table.find(queue, name.as_bytes()) {
            return Some(known);
        }
        let has_room = (self.shares.table.len() as u64) < self.rules.fair_keys;
        has_room.then(|| self.share_number(queue, priority, &key, weight))
    }

    /// Adds a ready job to its share.
    pub(super) fn add_to_share(&mut self, slot: u32, share: u32) {
        let order = self.rows[slot].order();
        let before = self.shares.first(share);
        self.shares.jobs.insert((share, order, slot));
        let s = &mut self.shares.table[share];
        let q = &mut self.queues[s.queue as usize];
        q.fair_ready += 1;
        let Some(level) = q.fair.get_mut(&Reverse(s.priority)) else { return };
        match before {
            None => {
                q.fair_filled.insert(Reverse(s.priority));
                s.pass = s.pass.max(level.clock);
                level.ring.insert((s.pass, share));
                level.heads.insert((order, share));
            }
            Some((oldest, _)) if order < oldest => {
                level.heads.remove(&(oldest, share));
                level.heads.insert((order, share));
            }
            Some(_) => {}
        }
    }

    /// Removes a ready job from its share.
    pub(super) fn remove_from_share(&mut self, slot: u32, share: u32) {
        let order = self.rows[slot].order();
        let was_first = self.shares.first(share).is_some_and(|(_, first)| first == slot);
        self.shares.jobs.remove(&(share, order, slot));
        let next = self.shares.first(share);
        let s = &self.shares.table[share];
        let q = &mut self.queues[s.queue as usize];
        q.fair_ready -= 1;
        let Some(level) = q.fair.get_mut(&Reverse(s.priority)) else { return };
        if was_first {
            level.heads.remove(&(order, share));
            match next {
                Some((next, _)) => _ = level.heads.insert((next, share)),
                None => _ = level.ring.remove(&(s.pass, share)),
            }
            if level.ring.is_empty() {
                q.fair_filled.remove(&Reverse(s.priority));
            }
        }
    }

    /// Charges a delivery, of a job that has left its share, to that share; or to the jobs without
    /// a fair key.
    pub(super) fn charge_share(&mut self, queue: u32, priority: i32, share: u32) {
        let q = &mut self.queues[queue as usize];
        let Some(level) = q.fair.get_mut(&Reverse(priority)) else { return };
        if share == NONE {
            level.clock = level.plain_pass.max(level.clock);
            level.plain_pass = level.clock + STRIDE;
            return;
        }
        let s = &mut self.shares.table[share];
        level.clock = s.pass.max(level.clock);
        let was_in_ring = level.ring.remove(&(s.pass, share));
        s.pass = level.clock + STRIDE / u64::from(s.weight.max(1));
        if was_in_ring {
            level.ring.insert((s.pass, share));
        }
    }

    /// Since when the longest-waiting of the queue's next jobs has been ready, in monotonic
    /// milliseconds; of the jobs with fair keys, the oldest of each priority is regarded.
    pub(super) fn oldest_ready_since_ms(&self, queue: u32) -> Option<u64> {
        let q = &self.queues[queue as usize];
        let levels = q.fair_filled.iter().filter_map(|priority| q.fair.get(priority));
        let heads = levels.filter_map(|level| level.heads.first());
        let slots = heads.filter_map(|&(_, share)| self.shares.first(share));
        let shared = slots.map(|(_, slot)| self.rows[slot].when).min();
        q.ready.oldest_since_ms(&self.rows).into_iter().chain(shared).min()
    }

    /// Removes a share once no job has it.
    pub(super) fn release_share(&mut self, number: u32) {
        let share = &mut self.shares.table[number];
        share.profiles -= 1;
        if share.profiles > 0 {
            return;
        }
        let Some(share) = self.shares.table.remove(number) else { return };
        let fair = &mut self.queues[share.queue as usize].fair;
        if let Some(level) = fair.get_mut(&Reverse(share.priority)) {
            level.shares -= 1;
            if level.shares == 0 {
                fair.remove(&Reverse(share.priority));
            }
        }
    }

    /// Counts each level's shares, after a restore.
    pub(super) fn count_shares(&mut self) {
        for (_, share) in self.shares.table.entries().iter() {
            let fair = &mut self.queues[share.queue as usize].fair;
            fair.entry(Reverse(share.priority)).or_default().shares += 1;
        }
    }

    /// Every share with ready jobs is in its level's ring and heads, and no other. For the
    /// invariant.
    pub(super) fn check_shares(&self, jobs: &BTreeSet<(u32, Order, u32)>) -> Result<(), String> {
        if *jobs != self.shares.jobs {
            return Err("the ready jobs of shares differ".to_owned());
        }
        let mut levels: BTreeMap<(u32, Reverse<i32>), FairLevel> = BTreeMap::new();
        for (number, share) in self.shares.table.entries().iter() {
            let level = levels.entry((share.queue, Reverse(share.priority))).or_default();
            level.shares += 1;
            if let Some((order, _)) = self.shares.first(number) {
                level.ring.insert((share.pass, number));
                level.heads.insert((order, number));
            }
        }
        for (number, queue) in (0u32..).zip(&self.queues) {
            for (&priority, level) in &queue.fair {
                let found = levels.remove(&(number, priority)).unwrap_or_default();
                let (clock, plain_pass) = (level.clock, level.plain_pass);
                if *level != (FairLevel { clock, plain_pass, ..found }) {
                    return Err(format!("{}: its shares differ", queue.path));
                }
                if level.ring.is_empty() == queue.fair_filled.contains(&priority) {
                    return Err(format!("{}: its filled priorities differ", queue.path));
                }
                if level.ring.first().is_some_and(|&(pass, _)| pass < clock) {
                    return Err(format!("{}: a share is before the clock", queue.path));
                }
            }
        }
        let mut profiles: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, profile) in self.profiles.table().iter() {
            *profiles.entry(profile.keys.share).or_default() += 1;
        }
        let mut counted = self.shares.table.entries().iter();
        if counted.any(|(number, share)| profiles.get(&number) != Some(&share.profiles)) {
            return Err("the profiles of a share are miscounted".to_owned());
        }
        if levels.is_empty() { Ok(()) } else { Err("shares without a level".to_owned()) }
    }
}

/// A pass or clock that no deliveries could have reached.
const PASS_MAX: u64 = 1 << 63;

/// What deliveries have come to; the rest follows from shares and rows.
impl Encode for FairLevel {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.clock);
        out.u64(self.plain_pass);
    }
}

impl Decode for FairLevel {
    fn decode(r: &mut Reader) -> Result<FairLevel, WireError> {
        let (clock, plain_pass) = (pass(r)?, pass(r)?);
        Ok(FairLevel { clock, plain_pass, ..FairLevel::default() })
    }
}

impl Encode for Share {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        out.i64(i64::from(self.priority));
        out.string(&String::from_utf8_lossy(&self.text[4..]));
        out.u64(u64::from(self.weight));
        out.u64(self.pass);
    }
}

/// Its profiles count themselves when they are restored.
impl Decode for Share {
    fn decode(r: &mut Reader) -> Result<Share, WireError> {
        let (queue, priority) = (r.u32()?, r.i32()?);
        let name = ShareName::new(priority, r.text("fair key", KEY_BYTES_MAX)?);
        let text = name.as_bytes().into();
        let invalid = r.invalid("weight of a fair key");
        let weight = r.u16()?;
        if !(1..=FAIR_WEIGHT_MAX).contains(&weight) {
            return Err(invalid);
        }
        Ok(Share { queue, priority, text, weight, pass: pass(r)?, profiles: 0 })
    }
}

fn pass(r: &mut Reader) -> Result<u64, WireError> {
    let invalid = r.invalid("pass of a fair key");
    let pass = r.u64()?;
    if pass > PASS_MAX { Err(invalid) } else { Ok(pass) }
}
