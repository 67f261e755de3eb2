//! Limit keys. Of each key, only as many jobs are ready as its limits have room for, the first by
//! priority and age: its *candidates*. The others that are due wait, in no list that a worker's
//! credit looks at: finding the next job does not depend on how many there are. When there is room,
//! the next ones become ready, at the end of the command.
//!
//! A limit may be lowered, and a handler may let a key rest, while candidates are ready: each of
//! them is checked again when it would be delivered, and waits if it has no room.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use longshore_protocol::messages::work::{BlockedBy, LimitedBy};
use longshore_protocol::{Decode, Encode, FrameWriter, JobChange, Reader, WireError};

use super::LimitEntry;
use super::rate::{self, Opening, full_at_ms};
use crate::outcome::Outcomes;
use crate::state::State;
use crate::state::key_jobs::Rank;
use crate::state::key_table::{KeyText, Keyed};
use crate::state::profile::{DEFAULT, Profiles};
use crate::state::row::{NONE, Row, Substate};
use crate::state::rows::{Links, List};
use crate::state::steps;

/// The rank of jobs among those of their limit key.
pub(in crate::state) fn urgency(profiles: &Profiles) -> impl Fn(&Row) -> Rank {
    |row| (Reverse(profiles.options(row.profile).priority), row.order())
}

/// A limit key of a queue, while a job has it, or its rate remembers one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::state) struct LimitKey {
    pub(in crate::state) queue: u32,
    text: KeyText,
    /// The jobs that wait for room. Not in snapshots, like the next four.
    pub(in crate::state) waiting: List,
    /// The ready jobs.
    pub(in crate::state) candidates: List,
    /// Units of its jobs that run.
    pub(in crate::state) running: u64,
    /// Units of its ready jobs.
    pub(in crate::state) ready: u64,
    /// Profiles with this key.
    pub(in crate::state) profiles: u32,
    /// The arrival of each limit's rate.
    arrivals: Vec<(u32, u64)>,
    /// No job is delivered before (monotonic).
    pub(in crate::state) rests_until: u64,
    /// The time of its timer (monotonic).
    pub(in crate::state) wake_at: Option<u64>,
}

impl Keyed for LimitKey {
    fn key(&self) -> (u32, &[u8]) {
        (self.queue, self.text.bytes())
    }
}

impl LimitKey {
    fn new(queue: u32, text: KeyText) -> LimitKey {
        LimitKey {
            queue,
            text,
            waiting: List::default(),
            candidates: List::default(),
            running: 0,
            ready: 0,
            profiles: 0,
            arrivals: Vec::new(),
            rests_until: 0,
            wake_at: None,
        }
    }

    pub(super) fn arrival(&self, limit: u32) -> u64 {
        let mut known = self.arrivals.iter();
        known.find(|(number, _)| *number == limit).map_or(0, |&(_, arrival)| arrival)
    }

    /// Stores the arrival, in place of those of limits that are gone.
    pub(super) fn set_arrival(
        &mut self,
        limit: u32,
        arrival: u64,
        entries: &BTreeMap<u32, LimitEntry>,
    ) {
        match self.arrivals.iter_mut().find(|(number, _)| *number == limit) {
            Some(known) => known.1 = arrival,
            None => {
                self.arrivals.retain(|(known, _)| entries.contains_key(known));
                self.arrivals.push((limit, arrival));
            }
        }
    }
}

impl State {
    /// The job's limit key; `NONE` without one.
    #[inline]
    pub(in crate::state) fn limit_key_of(&self, slot: u32) -> u32 {
        match self.rows[slot].profile {
            DEFAULT => NONE,
            profile => self.profiles.keys(profile).limit,
        }
    }

    /// The number of a queue's limit key, which is added if missing.
    pub(in crate::state) fn limit_key_number(&mut self, queue: u32, text: &str) -> u32 {
        self.limits.keys.number_of(queue, text, LimitKey::new)
    }

    fn first_waiting(&self, key: u32) -> Option<(Rank, u32)> {
        let list = self.limits.keys[key].waiting;
        self.limits.waiting.first(&self.rows, list, key, urgency(&self.profiles))
    }

    fn last_candidate(&self, key: u32) -> Option<(Rank, u32)> {
        let list = self.limits.keys[key].candidates;
        self.limits.candidates.last(&self.rows, list, key, urgency(&self.profiles))
    }

    /// When a job of the key has room, behind `ahead` units; and the limit that it waits for,
    /// `NONE` for the end of the key's rest.
    fn key_opening(&self, key: u32, ahead: u64, cost: u64) -> (Opening, u32) {
        let (k, now_ms) = (&self.limits.keys[key], self.now.mono_ms);
        let mut last = (Opening::Now, NONE);
        if k.rests_until > now_ms {
            last.0 = Opening::At(k.rests_until);
        }
        for limit in &self.queues[k.queue as usize].key_limits {
            let Some(entry) = self.limits.entries.get(limit) else { continue };
            let opening = entry.opening(k.running, k.arrival(*limit), ahead, cost, now_ms);
            if opening > last.0 {
                last = (opening, *limit);
            }
        }
        last
    }

    /// Whether a due job may be a candidate at once.
    pub(in crate::state) fn has_room(&self, slot: u32, key: u32) -> bool {
        let ahead = self.limits.keys[key].ready;
        self.first_waiting(key).is_none()
            && self.key_opening(key, ahead, self.cost_of(slot)).0 == Opening::Now
    }

    /// Whether a candidate that would be delivered still has room.
    #[inline]
    pub(in crate::state) fn still_has_room(&self, slot: u32) -> bool {
        let key = self.limit_key_of(slot);
        key == NONE || self.key_opening(key, 0, self.cost_of(slot)).0 == Opening::Now
    }

    pub(in crate::state) fn add_candidate(&mut self, slot: u32, key: u32) {
        let (cost, limits) = (self.cost_of(slot), &mut self.limits);
        let (k, rank_of) = (&mut limits.keys[key], urgency(&self.profiles));
        limits.candidates.add(&mut self.rows, &mut k.candidates, (key, slot), rank_of);
        k.ready += cost;
    }

    pub(in crate::state) fn remove_candidate(&mut self, slot: u32, key: u32) {
        let (cost, limits) = (self.cost_of(slot), &mut self.limits);
        let (k, rank_of) = (&mut limits.keys[key], urgency(&self.profiles));
        limits.candidates.remove(&mut self.rows, &mut k.candidates, (key, slot), rank_of);
        k.ready -= cost;
        self.unsettle_limit_key(key);
    }

    /// The job is due, and waits for room of its key.
    pub(in crate::state) fn enter_limited(&mut self, slot: u32, key: u32) {
        self.rows[slot].when = self.now.mono_ms;
        let queue = self.rows[slot].queue;
        let limits = &mut self.limits;
        let (list, rank_of) = (&mut limits.keys[key].waiting, urgency(&self.profiles));
        limits.waiting.add(&mut self.rows, list, (key, slot), rank_of);
        self.limits.unsettled.push(key);
        self.set_substate(slot, Substate::Limited);
        self.queues[queue as usize].blocked.push_back(&mut self.rows, Links::Main, slot);
        self.watch_expiry(slot);
    }

    pub(in crate::state) fn leave_limited(&mut self, slot: u32) {
        let (key, queue) = (self.limit_key_of(slot), self.rows[slot].queue);
        let limits = &mut self.limits;
        let (list, rank_of) = (&mut limits.keys[key].waiting, urgency(&self.profiles));
        limits.waiting.remove(&mut self.rows, list, (key, slot), rank_of);
        self.queues[queue as usize].blocked.unlink(&mut self.rows, Links::Main, slot);
        self.unsettle_limit_key(key);
    }

    /// The key may have room for more jobs.
    pub(in crate::state) fn unsettle_limit_key(&mut self, key: u32) {
        if self.first_waiting(key).is_some() {
            self.limits.unsettled.push(key);
        }
    }

    /// Makes the jobs ready that have room, in place of candidates behind them.
    #[inline]
    pub(in crate::state) fn settle_limit_keys(&mut self, out: &mut Outcomes) {
        if !self.limits.unsettled.is_empty() {
            self.settle_some_limit_keys(out);
        }
    }

    #[inline(never)]
    fn settle_some_limit_keys(&mut self, out: &mut Outcomes) {
        while let Some(key) = self.limits.unsettled.pop() {
            steps::count(1);
            // The command may have removed the key with its last job.
            if self.limits.keys.entries().get(key).is_some() {
                self.settle_limit_key(key, out);
            }
        }
    }

    fn settle_limit_key(&mut self, key: u32, out: &mut Outcomes) {
        while let Some((rank, slot)) = self.first_waiting(key) {
            let ahead = self.limits.keys[key].ready;
            let (opening, _) = self.key_opening(key, ahead, self.cost_of(slot));
            let behind = self.last_candidate(key).filter(|&(last, _)| last > rank);
            if opening != Opening::Now && behind.is_none() {
                if let Opening::At(at) = opening {
                    self.wake_limit_key(key, at);
                }
                return;
            }
            if self.limits.may_move == 0 {
                // The next `Tick` continues.
                return self.wake_limit_key(key, self.now.mono_ms);
            }
            self.limits.may_move -= 1;
            match behind.filter(|_| opening != Opening::Now) {
                Some((_, last)) => self.return_candidate(last, out),
                None => {
                    self.leave_substate(slot);
                    self.enter_ready_at_once(slot, Substate::Returned, self.now.mono_ms);
                    self.emit(slot, JobChange::Unblocked, out);
                }
            }
        }
    }

    /// A candidate has no room, and waits.
    pub(in crate::state) fn return_candidate(&mut self, slot: u32, out: &mut Outcomes) {
        self.leave_substate(slot);
        self.enter_limited(slot, self.limit_key_of(slot));
        self.emit(slot, JobChange::Blocked, out);
    }

    fn wake_limit_key(&mut self, key: u32, at: u64) {
        if let Some(before) = self.limits.keys[key].wake_at.replace(at) {
            self.limits.key_timers.remove(&(before, key));
        }
        self.limits.key_timers.insert((at, key));
    }

    /// A handler reports that no job of the key should start before `ms` have passed.
    pub(in crate::state) fn rest_limit_key(&mut self, key: u32, ms: u64) {
        let until = self.now.mono_ms.saturating_add(ms);
        let key = &mut self.limits.keys[key];
        key.rests_until = key.rests_until.max(until);
    }

    /// A limit of keys has changed: the key may have room, or may be forgotten.
    pub(super) fn reconsider_limit_key(&mut self, key: u32) {
        let (limits, now_ms) = (&mut self.limits, self.now.mono_ms);
        for (limit, arrival) in &mut limits.keys[key].arrivals {
            if let Some(rate) = limits.entries.get(limit).and_then(|entry| entry.limit.rate) {
                *arrival = rate::changed(&rate, *arrival, now_ms);
            }
        }
        if !self.remove_unused_limit_key(key) {
            self.unsettle_limit_key(key);
        }
    }

    /// A profile with the key is gone.
    pub(in crate::state) fn release_limit_key(&mut self, key: u32) {
        self.limits.keys[key].profiles -= 1;
        self.remove_unused_limit_key(key);
    }

    /// Removes the key once no job has it, and neither its rates nor its rest concern a later one.
    /// False if a job has it.
    pub(in crate::state) fn remove_unused_limit_key(&mut self, key: u32) -> bool {
        let k = &self.limits.keys[key];
        if k.profiles > 0 {
            return false;
        }
        let now_ms = self.now.mono_ms;
        // A limit that is gone, or has no rate any more, needs no memory.
        let full = k.arrivals.iter().filter_map(|&(limit, arrival)| {
            self.limits.entries.get(&limit)?.limit.rate?;
            Some(full_at_ms(arrival))
        });
        let until = full.chain([k.rests_until]).max().unwrap_or(0);
        if until > now_ms {
            self.wake_limit_key(key, until);
        } else if let Some(LimitKey { wake_at: Some(at), .. }) = self.limits.keys.remove(key) {
            self.limits.key_timers.remove(&(at, key));
        }
        true
    }

    /// What a job waits for that has no room; what the first job of its key waits for.
    pub(in crate::state) fn limited_by_key(&self, slot: u32) -> BlockedBy {
        let key = self.limit_key_of(slot);
        let k = &self.limits.keys[key];
        let first = self.first_waiting(key).map_or(slot, |(_, first)| first);
        let (opening, limit) = self.key_opening(key, k.ready, self.cost_of(first));
        let text = String::from_utf8_lossy(k.text.bytes()).into_owned();
        let until = match opening {
            Opening::Later => None,
            Opening::At(at) => Some(self.wall_at(at)),
            Opening::Now => Some(self.now.wall_ms),
        };
        // It may have room since the last command: then the next `Tick` finds it.
        let own = &self.queues[k.queue as usize].key_limits;
        let limit = self.limits.entries.get(&limit).or_else(|| match opening {
            Opening::Now => self.limits.entries.get(own.first()?),
            _ => None,
        });
        match limit {
            Some(entry) => {
                let by = LimitedBy { limit: entry.limit.name.clone(), until };
                BlockedBy::Limit { by, key: Some(text) }
            }
            None => BlockedBy::Throttled { key: text, until: until.unwrap_or_default() },
        }
    }
}

impl Encode for LimitKey {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        self.text.encode(out);
        out.u64(self.arrivals.len() as u64);
        for &(limit, arrival) in &self.arrivals {
            out.u64(u64::from(limit));
            out.u64(arrival);
        }
        out.u64(self.rests_until);
        self.wake_at.encode(out);
    }
}

/// Its jobs count themselves when they are restored.
impl Decode for LimitKey {
    fn decode(r: &mut Reader) -> Result<LimitKey, WireError> {
        let (queue, text) = (r.u32()?, KeyText::decode(r)?);
        let count = r.count("rates of a limit key", usize::MAX, 2)?;
        let arrivals = (0..count).map(|_| Ok((r.u32()?, r.u64()?)));
        let arrivals = arrivals.collect::<Result<_, WireError>>()?;
        let (rests_until, wake_at) = (r.u64()?, r.option()?);
        Ok(LimitKey { arrivals, rests_until, wake_at, ..LimitKey::new(queue, text) })
    }
}
