//! Idempotency keys: one job of a queue has a key at a time, until the key's end, which comes in
//! log order. A key outlives its job.
//!
//! Plain jobs pay nothing for keys: they are in a table of their own, not in the jobs' rows. Each
//! takes the same memory, whatever its length, so their number is their memory.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::{
    Decode, Encode, EnqueueOutcome, EntryHead, FrameWriter, Idempotency, JobId, Path, Reader,
    Refusal, WireError,
};

use super::State;
use super::chunks::Shared;
use super::enqueue::payload_of;
use super::fair::ShareName;
use super::key_table::{KeyTable, KeyText, Keyed};
use super::profile::KeyNumbers;
use super::row::Row;
use super::slab::Slab;
use super::unique::UniqueUse;

/// What a key counts as: its entry, its slot in the index, its timer. A number, not the size of a
/// type: it decides at every replay.
pub(super) const KEY_BYTES: u64 = 160;

/// A key in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HeldKey {
    pub(super) queue: u32,
    /// Its job, which may have been removed.
    pub(super) job: JobId,
    /// CRC32C and length of the job's payload: they distinguish `KeyConflict` from an existing job,
    /// as they do for ids.
    pub(super) payload: (u32, u32),
    /// When it ends (wall).
    pub(super) ends_at: u64,
    text: KeyText,
}

const _: () = assert!(size_of::<Option<HeldKey>>() == 120 && KEY_BYTES >= 120 + 9 + 24);

impl HeldKey {
    pub(super) fn text(&self) -> &[u8] {
        self.text.bytes()
    }
}

impl Keyed for HeldKey {
    fn key(&self) -> (u32, &[u8]) {
        (self.queue, self.text())
    }
}

/// All keys in use.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldKeys {
    table: KeyTable<HeldKey>,
    /// By end (wall).
    pub(super) ends: BTreeSet<(u64, u32)>,
}

impl HeldKeys {
    pub(super) fn find(&self, queue: u32, key: &[u8]) -> Option<u32> {
        self.table.find(queue, key)
    }

    /// Adds a key that the queue does not have.
    fn insert(&mut self, held: HeldKey) {
        let ends_at = held.ends_at;
        let number = self.table.insert(held);
        self.ends.insert((ends_at, number));
    }

    fn remove(&mut self, number: u32) {
        if let Some(held) = self.table.remove(number) {
            self.ends.remove(&(held.ends_at, number));
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.len() * KEY_BYTES
    }

    pub(super) fn len(&self) -> u64 {
        self.table.len() as u64
    }

    pub(super) fn table(&self) -> &KeyTable<HeldKey> {
        &self.table
    }

    pub(super) fn freeze(&mut self) -> (Shared<Option<HeldKey>>, Shared<u32>) {
        self.table.freeze()
    }

    /// The keys of a snapshot; none if a queue has a key twice.
    pub(super) fn from_entries(entries: Slab<HeldKey>) -> Option<HeldKeys> {
        let table = KeyTable::from_entries(entries)?;
        let ends = table.entries().iter().map(|(number, held)| (held.ends_at, number)).collect();
        Some(HeldKeys { table, ends })
    }
}

/// The keys with an end of a queue, and its jobs that others wait for or share with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueKeys<'a> {
    /// The queue's path.
    pub path: &'a Path,
    /// Idempotency keys, and unique keys for a period, that have not ended.
    pub keys: u64,
    /// Jobs with an order key, a fair key, a limit key, a cost or a unique key that have not ended.
    pub jobs: u64,
    /// Schedules.
    pub schedules: u64,
    /// When the last of them ends, in milliseconds since 1970.
    pub last_end: u64,
}

/// How many keys new jobs would add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct NewKeys {
    pub(super) held: u64,
    pub(super) orders: u64,
    pub(super) shares: u64,
    pub(super) limits: u64,
}

impl NewKeys {
    /// Those of one job at most: an idempotency key and a unique one are held.
    const MOST: NewKeys = NewKeys { held: 2, orders: 1, shares: 1, limits: 1 };
}

/// What a new job's key is to its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyUse {
    /// The job has no key.
    None,
    /// The queue has no such key.
    New,
    /// It has, and the key's end has come: the job takes it over.
    Ended,
    /// The key is another job's, or this one's: the answer.
    Known(EnqueueOutcome),
}

impl State {
    /// The number of idempotency keys, with those whose end is being handled.
    pub fn keys(&self) -> u64 {
        self.keys.len()
    }

    /// The keys with an end, and the jobs with other keys and open batches, of each queue that has
    /// some. It reads every key, and every row if a job has an order, fair or unique key, or is a
    /// batch.
    pub fn queue_keys(&self) -> Vec<QueueKeys<'_>> {
        let wall_ms = self.now.wall_ms;
        let mut queues: BTreeMap<u32, QueueKeys<'_>> = BTreeMap::new();
        let held = self.keys.table.entries().iter().map(|(_, held)| (held.queue, held.ends_at));
        let uniques = self.uniques.table.entries().iter().filter(|(_, key)| key.has_end());
        let ends = held.chain(uniques.map(|(_, key)| (key.queue, key.ends_at)));
        for (queue, ends_at) in ends.filter(|(_, ends_at)| *ends_at > wall_ms) {
            let path = &self.queues[queue as usize].path;
            let none = QueueKeys { path, keys: 0, jobs: 0, schedules: 0, last_end: 0 };
            let of_queue = queues.entry(queue).or_insert(none);
            of_queue.keys += 1;
            of_queue.last_end = of_queue.last_end.max(ends_at);
        }
        let has_keys = |profile: u32| *self.profiles.keys(profile) != KeyNumbers::EMPTY;
        let is_unique = |row: &Row| self.side(row).is_some_and(|side| side.unique.is_some());
        let is_needed = self.uniques.table.len() > 0 || self.batches.table.len() > 0;
        if is_needed || self.profiles.table().iter().any(|(number, _)| has_keys(number)) {
            for slot in 0..self.rows.allocated() {
                let row = &self.rows[slot];
                // A dead job that keeps its turn holds up others of its key.
                let counts = row.substate.is_open() || self.has_turn_of_dead(slot);
                let has_some =
                    has_keys(row.profile) || is_unique(row) || self.batch_of(slot).is_some();
                if !counts || !has_some {
                    continue;
                }
                let path = &self.queues[row.queue as usize].path;
                let none = QueueKeys { path, keys: 0, jobs: 0, schedules: 0, last_end: 0 };
                queues.entry(row.queue).or_insert(none).jobs += 1;
            }
        }
        for (_, entry) in self.schedules.table.iter() {
            let path = &self.queues[entry.queue as usize].path;
            let none = QueueKeys { path, keys: 0, jobs: 0, schedules: 0, last_end: 0 };
            queues.entry(entry.queue).or_insert(none).schedules += 1;
        }
        queues.into_values().collect()
    }

    /// What a job's key is in the queue at that path.
    #[inline]
    pub(super) fn find_key(&self, path: &Path, head: &EntryHead) -> KeyUse {
        // Most jobs have no key: this check is all that keys cost them.
        match head.idempotency() {
            None => KeyUse::None,
            Some(idempotency) => self.find_some_key(path, head, idempotency),
        }
    }

    #[inline(never)]
    fn find_some_key(&self, path: &Path, head: &EntryHead, idempotency: &Idempotency) -> KeyUse {
        // Also of a queue that is closed, or served no longer: a known job is no new one.
        let Some(queue) = self.paths.get(path) else { return KeyUse::New };
        match self.keys.find(queue, idempotency.key.as_bytes()) {
            None => KeyUse::New,
            Some(slot) if self.keys.table[slot].ends_at <= self.now.wall_ms => KeyUse::Ended,
            Some(slot) => {
                let held = &self.keys.table[slot];
                KeyUse::Known(same_key(head, held.payload, held.job))
            }
        }
    }

    /// Whether the keys of a job fit.
    #[inline]
    pub(super) fn admit_keys(
        &self,
        path: &Path,
        head: &EntryHead,
        found: (KeyUse, UniqueUse),
    ) -> Result<(), Refusal> {
        match head.keys {
            None => Ok(()),
            // While no table is full, no key has to be looked up.
            Some(_) if self.admit_new_keys(NewKeys::MOST, NewKeys::default()).is_ok() => Ok(()),
            Some(_) => self.admit_new_keys(self.new_keys(path, head, found), NewKeys::default()),
        }
    }

    /// Those keys of a job that do not exist.
    pub(super) fn new_keys(
        &self,
        path: &Path,
        head: &EntryHead,
        (key, unique): (KeyUse, UniqueUse),
    ) -> NewKeys {
        let order = head.keys.as_ref().and_then(|keys| keys.order.as_ref());
        let is_new = |order: &String| {
            let queue = self.paths.get(path);
            queue.and_then(|queue| self.orders.table.find(queue, order.as_bytes())).is_none()
        };
        NewKeys {
            held: u64::from(key == KeyUse::New) + u64::from(unique == UniqueUse::New),
            orders: u64::from(order.is_some_and(is_new)),
            shares: u64::from(self.has_new_share(path, head)),
            limits: u64::from(self.has_new_limit_key(path, head)),
        }
    }

    fn has_new_limit_key(&self, path: &Path, head: &EntryHead) -> bool {
        let limit = head.keys.as_ref().and_then(|keys| keys.limit.as_ref());
        let find = |queue: u32, text: &String| self.limits.keys.find(queue, text.as_bytes());
        let queue = self.paths.get(path);
        limit.is_some_and(|text| queue.and_then(|queue| find(queue, text)).is_none())
    }

    fn has_new_share(&self, path: &Path, head: &EntryHead) -> bool {
        let Some(name) = share_of_head(head) else { return false };
        let queue = self.paths.get(path);
        queue.and_then(|queue| self.shares.table.find(queue, name.as_bytes())).is_none()
    }

    /// Whether new keys fit, after others of the same batch.
    pub(super) fn admit_new_keys(&self, new: NewKeys, others: NewKeys) -> Result<(), Refusal> {
        let held = self.keys.bytes() + self.uniques.bytes() + (others.held + new.held) * KEY_BYTES;
        let orders = self.orders.table.len() as u64 + others.orders + new.orders;
        let shares = self.shares.table.len() as u64 + others.shares + new.shares;
        let limits = self.limits.keys.len() as u64 + others.limits + new.limits;
        if new.held > 0 && held > self.rules.key_bytes
            || new.orders > 0 && orders > self.rules.order_keys
            || new.shares > 0 && shares > self.rules.fair_keys
            || new.limits > 0 && limits > self.rules.limit_keys
        {
            return Err(Refusal::KeysFull);
        }
        Ok(())
    }

    /// Gives the queue's key to a new job. An ended key of the same name is replaced.
    pub(super) fn hold_key(
        &mut self,
        queue: u32,
        idempotency: &Idempotency,
        job: JobId,
        payload: (u32, u32),
    ) {
        if let Some(ended) = self.keys.find(queue, idempotency.key.as_bytes()) {
            self.keys.remove(ended);
        }
        let for_ms = idempotency.for_ms.unwrap_or(self.rules.idempotency_ms);
        let ends_at = self.now.wall_ms.saturating_add(for_ms);
        // An entry decodes only with a key of 1 to 80 bytes.
        if let Some(text) = KeyText::new(&idempotency.key) {
            self.keys.insert(HeldKey { queue, job, payload, ends_at, text });
        }
    }

    /// Removes keys that have ended, the oldest first, in one bounded step.
    pub(super) fn end_keys(&mut self) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, slot)) = self.keys.ends.first() else { break };
            if at > self.now.wall_ms {
                break;
            }
            self.keys.remove(slot);
        }
    }
}

/// The name of a new job's share in its queue.
pub(super) fn share_of_head(head: &EntryHead) -> Option<ShareName> {
    let fair = head.keys.as_ref()?.fair.as_ref()?;
    let priority = head.options.as_ref().map_or(0, |options| options.priority);
    Some(ShareName::new(priority, &fair.key))
}

/// A known key: the same job if the payload's length and checksum are the same.
pub(super) fn same_key(head: &EntryHead, payload: (u32, u32), job: JobId) -> EnqueueOutcome {
    if payload_of(head) != payload {
        EnqueueOutcome::Refused(Refusal::KeyConflict)
    } else if head.id == job {
        EnqueueOutcome::Existing
    } else {
        EnqueueOutcome::ExistingKey(job)
    }
}

impl Encode for HeldKey {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        self.job.encode(out);
        out.u32_fixed(self.payload.0);
        out.u64(u64::from(self.payload.1));
        out.u64(self.ends_at);
        self.text.encode(out);
    }
}

impl Decode for HeldKey {
    fn decode(r: &mut Reader) -> Result<HeldKey, WireError> {
        let queue = r.u32()?;
        let job = JobId::decode(r)?;
        let payload = (r.u32_fixed()?, r.u32()?);
        let ends_at = r.u64()?;
        Ok(HeldKey { queue, job, payload, ends_at, text: KeyText::decode(r)? })
    }
}
