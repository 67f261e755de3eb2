//! Limits: how many units of jobs run at once, and start in a period.
//!
//! A limit is a named object. It applies to the queues that its pattern matches: to each of them,
//! to each limit key in them, or to all together. Running units are counted from the jobs that run;
//! a [rate] stores a time. A job that costs more than a limit runs alone, and takes the whole of a
//! burst.
//!
//! - [`of_queue`]: limits of queues. A queue whose next job does not fit is held back as a whole,
//!   like a paused one, so that no job behind a costly one overtakes it.
//! - [`of_key`]: limits of keys. Only as many jobs of a key are ready as have room.
//!
//! A job pays for the limits of its queue and of its key only.

pub(super) mod of_key;
pub(super) mod of_queue;
mod rate;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longshore_protocol::messages::work::RequestError;
use longshore_protocol::{
    Decode, Encode, FrameWriter, JobLimit, LimitScope, LinkId, Path, Reader, WireError,
};

use self::of_key::{LimitKey, urgency};
use self::of_queue::QueueLimit;
use self::rate::Opening;
use super::State;
use super::key_jobs::KeyJobs;
use super::key_table::KeyTable;
use super::profile::DEFAULT;
use super::row::{NONE, Substate};
use super::slab::Slab;
use crate::outcome::{Outcomes, Reply};

/// A limit and what jobs have taken of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LimitEntry {
    pub(super) limit: JobLimit,
    /// Shared: units of the jobs that run.
    pub(super) running: u64,
    /// Shared: the arrival of its [rate].
    arrival: u64,
    /// Shared: the queues that it holds back, in the order of their turns.
    pub(super) line: VecDeque<u32>,
}

impl LimitEntry {
    /// When `cost` units fit, beside running ones and behind `ahead` others.
    fn opening(&self, running: u64, arrival: u64, ahead: u64, cost: u64, now_ms: u64) -> Opening {
        let others = running.saturating_add(ahead);
        if let Some(most) = self.limit.concurrency
            && others > 0
            && others.saturating_add(cost) > u64::from(most)
        {
            return Opening::Later;
        }
        let rate = self.limit.rate.as_ref();
        rate.map_or(Opening::Now, |rate| rate::opening(rate, arrival, ahead, cost, now_ms))
    }

    fn take(&self, arrival: u64, cost: u64, now_ms: u64) -> u64 {
        self.limit.rate.as_ref().map_or(arrival, |rate| rate::take(rate, arrival, cost, now_ms))
    }
}

/// All limits, and the jobs and queues that wait for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// By number, which is never used again: a bucket of a removed limit is no other's.
    pub(super) entries: BTreeMap<u32, LimitEntry>,
    pub(super) next_number: u32,
    pub(super) keys: KeyTable<LimitKey>,
    /// Jobs that wait for room of their keys.
    pub(super) waiting: KeyJobs,
    /// Ready jobs with a limit key.
    pub(super) candidates: KeyJobs,
    /// Keys whose jobs may have room. Empty between commands.
    pub(super) unsettled: Vec<u32>,
    /// When keys may have room, or may be forgotten (monotonic).
    pub(super) key_timers: BTreeSet<(u64, u32)>,
    /// When queues that are held back may have room (monotonic).
    pub(super) queue_timers: BTreeSet<(u64, u32)>,
    /// Shared limits with a line.
    pub(super) lines: BTreeSet<u32>,
    /// The queue that has just left the front of a limit's line. None between commands.
    opened: Option<(u32, u32)>,
    /// After a change of a limit of keys: the next key to look at; [`NONE`] after the last.
    pub(super) sweep: u32,
    /// How many jobs this command may still move between waiting and ready.
    may_move: u64,
}

impl Limits {
    /// The number of the limit with that name.
    fn number_of(&self, name: &str) -> Option<u32> {
        let mut entries = self.entries.iter();
        entries.find(|(_, entry)| entry.limit.name == name).map(|(&number, _)| number)
    }

    /// The keys of a snapshot; none if a queue has a key twice.
    pub(super) fn set_keys(&mut self, entries: Slab<LimitKey>) -> Option<()> {
        self.keys = KeyTable::from_entries(entries)?;
        let wakes = self.keys.entries().iter();
        self.key_timers = wakes.filter_map(|(number, key)| Some((key.wake_at?, number))).collect();
        Some(())
    }

    pub(super) fn new() -> Limits {
        Limits { sweep: NONE, ..Limits::default() }
    }
}

impl State {
    /// The limits, by number.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &JobLimit> {
        self.limits.entries.values().map(|entry| &entry.limit)
    }

    /// The job's units.
    #[inline]
    pub(super) fn cost_of(&self, slot: u32) -> u64 {
        match self.rows[slot].profile {
            DEFAULT => 1,
            profile => u64::from(self.profiles.keys(profile).cost),
        }
    }

    pub(super) fn apply_limit(
        &mut self,
        link: LinkId,
        request: u64,
        limit: &JobLimit,
        out: &mut Outcomes,
    ) {
        let result = self.set_limit(limit);
        out.replies.push((link, Reply::LimitSet { request, result }));
    }

    pub(super) fn apply_remove_limit(
        &mut self,
        link: LinkId,
        request: u64,
        name: &str,
        out: &mut Outcomes,
    ) {
        let number = self.limits.number_of(name);
        if let Some(number) = number {
            self.remove_limit(number);
        }
        let result = Ok(number.is_some());
        out.replies.push((link, Reply::LimitSet { request, result }));
    }

    /// Adds a limit, or changes that of the same name. One with another pattern or scope begins
    /// anew. Returns whether anything has changed.
    fn set_limit(&mut self, limit: &JobLimit) -> Result<bool, RequestError> {
        let known = self.limits.number_of(&limit.name);
        let number = match known.map(|number| (number, &self.limits.entries[&number].limit)) {
            Some((_, before)) if before == limit => return Ok(false),
            None if self.limits.entries.len() as u64 >= self.rules.limits => {
                return Err(RequestError::TooManyLimits);
            }
            Some((number, l)) if (&l.pattern, l.scope) == (&limit.pattern, limit.scope) => number,
            known => {
                if let Some((number, _)) = known {
                    self.remove_limit(number);
                }
                let number = self.limits.next_number;
                self.limits.next_number += 1;
                let (limit, line) = (limit.clone(), VecDeque::new());
                let entry = LimitEntry { limit, running: 0, arrival: 0, line };
                self.limits.entries.insert(number, entry);
                for queue in self.queues_matching(&self.limits.entries[&number].limit.pattern) {
                    self.add_limit(queue, number);
                }
                number
            }
        };
        let now_ms = self.now.mono_ms;
        let clamp = |arrival: &mut u64| {
            if let Some(rate) = &limit.rate {
                *arrival = rate::changed(rate, *arrival, now_ms);
            }
        };
        if let Some(entry) = self.limits.entries.get_mut(&number) {
            entry.limit = limit.clone();
            clamp(&mut entry.arrival);
        }
        for queue in self.queues_matching(&limit.pattern) {
            let own = &mut self.queues[queue as usize].limits;
            own.iter_mut().filter(|own| own.limit == number).for_each(|o| clamp(&mut o.arrival));
            self.mark_changed(queue);
        }
        self.begin_sweep(limit.scope);
        Ok(true)
    }

    fn remove_limit(&mut self, number: u32) {
        let Some(entry) = self.limits.entries.remove(&number) else { return };
        self.limits.lines.remove(&number);
        for queue in self.queues_matching(&entry.limit.pattern) {
            let q = &mut self.queues[queue as usize];
            q.limits.retain(|own| own.limit != number);
            q.key_limits.retain(|&limit| limit != number);
            if q.held.is_some_and(|held| held.limit == number) {
                self.let_go(queue);
            }
            self.mark_changed(queue);
        }
        self.begin_sweep(entry.limit.scope);
    }

    /// Jobs may have room, and keys without jobs may be forgotten: the next `Tick`s find them.
    fn begin_sweep(&mut self, scope: LimitScope) {
        if scope == LimitScope::Key && self.limits.keys.len() > 0 {
            self.limits.sweep = 0;
        }
    }

    /// The limit, which has the highest number of the queue's, applies to a queue.
    fn add_limit(&mut self, queue: u32, number: u32) {
        let q = &mut self.queues[queue as usize];
        let Some(entry) = self.limits.entries.get_mut(&number) else { return };
        match entry.limit.scope {
            LimitScope::Key => q.key_limits.push(number),
            LimitScope::Queue | LimitScope::Shared => {
                q.limits.push(QueueLimit { limit: number, arrival: 0 });
                if entry.limit.scope == LimitScope::Shared {
                    entry.running += q.running_units();
                }
            }
        }
    }

    /// The limits of a new queue.
    pub(super) fn add_limits_of(&mut self, queue: u32, path: &Path) {
        let entries = self.limits.entries.iter();
        let matching = entries.filter(|(_, entry)| entry.limit.pattern.matches(path));
        let numbers: Vec<u32> = matching.map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|number| self.add_limit(queue, number));
    }

    /// A limit applies to the job.
    #[inline]
    pub(super) fn is_limited(&self, slot: u32) -> bool {
        let q = &self.queues[self.rows[slot].queue as usize];
        !q.limits.is_empty() || !q.key_limits.is_empty() && self.limit_key_of(slot) != NONE
    }

    /// A job was delivered.
    #[inline]
    pub(super) fn charge_limits(&mut self, slot: u32) {
        let row = &self.rows[slot];
        // Plain jobs pay these two checks for limits.
        if row.profile != DEFAULT || !self.queues[row.queue as usize].limits.is_empty() {
            self.charge_some_limits(slot);
        }
    }

    #[inline(never)]
    fn charge_some_limits(&mut self, slot: u32) {
        let (cost, key, now_ms) = (self.cost_of(slot), self.limit_key_of(slot), self.now.mono_ms);
        let q = &mut self.queues[self.rows[slot].queue as usize];
        q.extra_units += cost - 1;
        for own in &mut q.limits {
            let Some(entry) = self.limits.entries.get_mut(&own.limit) else { continue };
            if entry.limit.scope == LimitScope::Shared {
                entry.running += cost;
                entry.arrival = entry.take(entry.arrival, cost, now_ms);
            } else {
                own.arrival = entry.take(own.arrival, cost, now_ms);
            }
        }
        if key == NONE {
            return;
        }
        let k = &mut self.limits.keys[key];
        k.running += cost;
        for &limit in &q.key_limits {
            let Some(entry) = self.limits.entries.get(&limit) else { continue };
            if entry.limit.rate.is_some() {
                let arrival = entry.take(k.arrival(limit), cost, now_ms);
                k.set_arrival(limit, arrival, &self.limits.entries);
            }
        }
    }

    /// A running job's lease has ended.
    #[inline]
    pub(super) fn discharge_limits(&mut self, slot: u32) {
        let row = &self.rows[slot];
        if row.profile != DEFAULT || !self.queues[row.queue as usize].limits.is_empty() {
            self.discharge_some_limits(slot);
        }
    }

    #[inline(never)]
    fn discharge_some_limits(&mut self, slot: u32) {
        let (cost, key, queue) =
            (self.cost_of(slot), self.limit_key_of(slot), self.rows[slot].queue);
        let q = &mut self.queues[queue as usize];
        q.extra_units -= cost - 1;
        for own in &q.limits {
            let Some(entry) = self.limits.entries.get_mut(&own.limit) else { continue };
            if entry.limit.scope == LimitScope::Shared {
                entry.running -= cost;
            }
        }
        if q.held.is_some() {
            self.mark_changed(queue);
        }
        if key != NONE {
            self.limits.keys[key].running -= cost;
            self.unsettle_limit_key(key);
        }
    }

    /// At the beginning of each command.
    #[inline]
    pub(super) fn begin_limits(&mut self) {
        self.limits.may_move = self.rules.step_jobs;
    }

    /// When limits have work for a `Tick`, in monotonic milliseconds.
    pub(super) fn limits_timer_ms(&self) -> Option<u64> {
        let sets = [&self.limits.key_timers, &self.limits.queue_timers];
        let times = sets.into_iter().filter_map(|set| set.first().map(|&(at, _)| at));
        let is_due = self.limits.sweep != NONE || self.has_open_line();
        times.chain(is_due.then_some(self.now.mono_ms)).min()
    }

    /// Finds the keys and queues that may have room, in bounded steps.
    pub(super) fn tick_limits(&mut self) {
        let now_ms = self.now.mono_ms;
        for _ in 0..self.rules.step_jobs {
            let Some((_, queue)) = due(&mut self.limits.queue_timers, now_ms) else { break };
            if let Some(held) = &mut self.queues[queue as usize].held {
                held.until = None;
            }
            self.mark_changed(queue);
        }
        for _ in 0..self.rules.step_jobs {
            let Some((_, key)) = due(&mut self.limits.key_timers, now_ms) else { break };
            self.limits.keys[key].wake_at = None;
            if !self.remove_unused_limit_key(key) {
                self.unsettle_limit_key(key);
            }
        }
        for _ in 0..self.rules.step_jobs {
            if self.limits.sweep == NONE {
                break;
            }
            let key = self.limits.sweep;
            if self.limits.keys.entries().get(key).is_some() {
                self.reconsider_limit_key(key);
            }
            let keys = self.limits.keys.entries();
            let is_last = key as usize + 1 >= keys.allocated();
            self.limits.sweep = if is_last { NONE } else { key + 1 };
        }
    }
}

/// Takes the first timer whose time has come.
fn due(timers: &mut BTreeSet<(u64, u32)>, now_ms: u64) -> Option<(u64, u32)> {
    timers.first().is_some_and(|&(at, _)| at <= now_ms).then(|| timers.pop_first()).flatten()
}

impl State {
    /// Units, candidates and waiting jobs equal a full scan, and no more runs than a limit allows
    /// that has not been lowered. For the invariant.
    pub(super) fn check_limits(&self) -> Result<(), String> {
        let l = &self.limits;
        if !l.unsettled.is_empty() || l.opened.is_some() {
            return Err("a command left room to give".to_owned());
        }
        let (mut waiting, mut candidates) = (BTreeSet::new(), BTreeSet::new());
        let rank_of = urgency(&self.profiles);
        let mut queues = vec![0; self.queues.len()];
        let mut keys: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            if row.substate == Substate::Free {
                continue;
            }
            let (key, cost) = (self.limit_key_of(slot), self.cost_of(slot));
            if key == NONE && row.substate == Substate::Limited {
                return Err(format!("row {slot} waits for room of no key"));
            }
            let of_key = keys.entry(key).or_default();
            match row.substate {
                Substate::Running => {
                    queues[row.queue as usize] += cost;
                    of_key.0 += cost;
                }
                Substate::Limited => _ = waiting.insert((key, rank_of(row), slot)),
                Substate::Fresh | Substate::Returned if key != NONE => {
                    of_key.1 += cost;
                    candidates.insert((key, rank_of(row), slot));
                }
                _ => {}
            }
        }
        let lists = || l.keys.entries().iter();
        let known =
            l.waiting.check(&self.rows, lists().map(|(n, key)| (n, key.waiting)), &rank_of)?;
        let ready = lists().map(|(n, key)| (n, key.candidates));
        if waiting != known || candidates != l.candidates.check(&self.rows, ready, &rank_of)? {
            return Err("the jobs that wait for room, or have some, differ".to_owned());
        }
        let mut profiles: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, profile) in self.profiles.table().iter() {
            *profiles.entry(profile.keys.limit).or_default() += 1;
        }
        let mut wakes = BTreeSet::new();
        for (number, key) in l.keys.entries().iter() {
            let counted = keys.get(&number).copied().unwrap_or_default();
            let used = profiles.get(&number).copied().unwrap_or_default();
            if (key.running, key.ready) != counted || key.profiles != used {
                return Err(format!("limit key {number} is miscounted"));
            }
            if used == 0 && key.wake_at.is_none() {
                return Err(format!("limit key {number} has no user"));
            }
            wakes.extend(key.wake_at.map(|at| (at, number)));
        }
        let (mut timers, mut lines) = (BTreeSet::new(), BTreeMap::<u32, BTreeSet<u32>>::new());
        let mut shared: BTreeMap<u32, u64> = BTreeMap::new();
        for (number, (q, &running)) in (0u32..).zip(self.queues.iter().zip(&queues)) {
            if q.running_units() != running {
                return Err(format!("{}: running units differ", q.path));
            }
            let of = |scopes: &[LimitScope]| {
                let of = l.entries.iter().filter(|(_, entry)| scopes.contains(&entry.limit.scope));
                let of = of.filter(|(_, entry)| entry.limit.pattern.matches(&q.path));
                of.map(|(&number, _)| number).collect::<Vec<_>>()
            };
            let own = q.limits.iter().map(|own| own.limit).collect::<Vec<_>>();
            let expected = of(&[LimitScope::Queue, LimitScope::Shared]);
            if own != expected || q.key_limits != of(&[LimitScope::Key]) {
                return Err(format!("{}: its limits differ", q.path));
            }
            for limit in of(&[LimitScope::Shared]) {
                *shared.entry(limit).or_default() += running;
            }
            let Some(held) = q.held else { continue };
            timers.extend(held.until.map(|at| (at, number)));
            if l.entries.get(&held.limit).is_some_and(|e| e.limit.scope == LimitScope::Shared) {
                lines.entry(held.limit).or_default().insert(number);
            } else if !own.contains(&held.limit) || self.next_ready(number).is_none() {
                return Err(format!("{}: held back by nothing", q.path));
            }
        }
        for (number, entry) in &l.entries {
            let line: BTreeSet<u32> = entry.line.iter().copied().collect();
            let is_same = line == lines.remove(number).unwrap_or_default();
            if !is_same
                || line.len() != entry.line.len()
                || l.lines.contains(number) == line.is_empty()
            {
                return Err(format!("{}: its line differs", entry.limit.name));
            }
            let running = shared.get(number).copied().unwrap_or(0);
            if entry.running != running {
                return Err(format!("{}: running units differ", entry.limit.name));
            }
        }
        let are_set = wakes == l.key_timers && timers == l.queue_timers && lines.is_empty();
        let indexed = l.keys.indexed() == l.keys.len();
        if are_set && indexed { Ok(()) } else { Err("timers or keys of limits differ".to_owned()) }
    }
}

impl Encode for LimitEntry {
    fn encode(&self, out: &mut FrameWriter) {
        self.limit.encode(out);
        out.u64(self.arrival);
        out.u64(self.line.len() as u64);
        self.line.iter().for_each(|&queue| out.u64(u64::from(queue)));
    }
}

/// What runs is counted when the jobs are restored.
impl Decode for LimitEntry {
    fn decode(r: &mut Reader) -> Result<LimitEntry, WireError> {
        let (limit, arrival) = (JobLimit::decode(r)?, r.u64()?);
        let queues = r.count("queues in a line", usize::MAX, 1)?;
        let line = (0..queues).map(|_| r.u32()).collect::<Result<_, _>>()?;
        Ok(LimitEntry { limit, running: 0, arrival, line })
    }
}
