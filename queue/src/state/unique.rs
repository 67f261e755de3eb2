//! Unique keys: one job of a queue holds a key at a time, until its end, until its first delivery,
//! or for a period, all in log order.
//!
//! A key is in a table of its own for as long as a job holds it or may hold it again: one that has
//! not ended, or a dead one, which a user may revive. So reviving needs no room. The job's side row
//! leads to its key: jobs without one pay nothing.

use std::collections::BTreeSet;

use longshore_protocol::messages::work::{BatchEntry, EnqueueBatch};
use longshore_protocol::{
    Decode, Encode, EnqueueOutcome, EntryHead, FrameWriter, JobId, OnConflict, Path, Reader,
    Refusal, Unique, UniqueUntil, WireError,
};

use super::State;
use super::idempotency::KEY_BYTES;
use super::key_table::{KeyTable, KeyText, Keyed};
use super::row::{NONE, Substate};
use super::slab::Slab;

/// The end of a key whose holder's own end ends it.
const OPEN: u64 = u64::MAX;

/// A unique key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct UniqueKey {
    pub(super) queue: u32,
    text: KeyText,
    /// The job that holds it, which may have been removed if the hold has an end.
    pub(super) holder: Option<JobId>,
    /// When that ends (wall), or [`OPEN`].
    pub(super) ends_at: u64,
    /// Jobs whose side rows lead to it. Not in snapshots.
    pub(super) jobs: u32,
}

const _: () = assert!(size_of::<Option<UniqueKey>>() == 120 && KEY_BYTES >= 120 + 9 + 24);

impl UniqueKey {
    pub(super) fn text(&self) -> &[u8] {
        self.text.bytes()
    }

    /// True of one that a job holds for a period.
    pub(super) fn has_end(&self) -> bool {
        self.ends_at != OPEN
    }
}

impl Keyed for UniqueKey {
    fn key(&self) -> (u32, &[u8]) {
        (self.queue, self.text())
    }
}

/// A job's unique key, in its side row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UniqueOfJob {
    pub(super) key: u32,
    pub(super) until: Until,
}

/// What ends a job's hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Until {
    End = 0,
    Start = 1,
    Time = 2,
}

/// All unique keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Uniques {
    pub(super) table: KeyTable<UniqueKey>,
    /// Holds with an end, by end (wall).
    pub(super) ends: BTreeSet<(u64, u32)>,
}

impl Uniques {
    pub(super) fn bytes(&self) -> u64 {
        self.table.len() as u64 * KEY_BYTES
    }

    fn hold(&mut self, number: u32, job: JobId, ends_at: u64) {
        self.release(number);
        let key = &mut self.table[number];
        (key.holder, key.ends_at) = (Some(job), ends_at);
        if ends_at != OPEN {
            self.ends.insert((ends_at, number));
        }
    }

    fn release(&mut self, number: u32) {
        let key = &mut self.table[number];
        self.ends.remove(&(key.ends_at, number));
        (key.holder, key.ends_at) = (None, OPEN);
    }

    /// Removes a key that no job holds, and that none may hold again.
    fn remove_unused(&mut self, number: u32) {
        let key = &self.table[number];
        if key.holder.is_none() && key.jobs == 0 {
            self.table.remove(number);
        }
    }

    /// The keys of a snapshot; none if a queue has a key twice.
    pub(super) fn from_entries(entries: Slab<UniqueKey>) -> Option<Uniques> {
        let table = KeyTable::from_entries(entries)?;
        let with_end = table.entries().iter().filter(|(_, key)| key.has_end());
        let ends = with_end.map(|(number, key)| (key.ends_at, number)).collect();
        Some(Uniques { table, ends })
    }
}

/// What a new job's unique key is to its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UniqueUse {
    /// The job has none.
    None,
    /// The queue has no such key.
    New,
    /// It has, and no job holds it.
    Free,
    /// The job in this row holds it, and the new job takes its place.
    Replaces(u32),
    /// Another job holds it: the answer.
    Held(EnqueueOutcome),
}

const NOT_UNIQUE: UniqueUse = UniqueUse::Held(EnqueueOutcome::Refused(Refusal::NotUnique));

impl State {
    /// What a job's unique key is in the queue at that path.
    #[inline]
    pub(super) fn find_unique(&self, path: &Path, head: &EntryHead) -> UniqueUse {
        match head.unique() {
            None => UniqueUse::None,
            Some(unique) => self.find_some_unique(path, head, unique),
        }
    }

    #[inline(never)]
    fn find_some_unique(&self, path: &Path, head: &EntryHead, unique: &Unique) -> UniqueUse {
        // Also of a queue that is closed, or served no longer: a job that exists is no new one.
        let Some(queue) = self.paths.get(path) else { return UniqueUse::New };
        let Some(number) = self.uniques.table.find(queue, unique.key.as_bytes()) else {
            return UniqueUse::New;
        };
        let Some(holder) = self.holder_of(number) else { return UniqueUse::Free };
        if holder == head.id {
            return UniqueUse::Held(EnqueueOutcome::Existing);
        }
        let first = self.waiting_holder(number, &holder);
        // Whether a prepared job will run is not known yet: no other job is removed, or not
        // created, because of it.
        let is_prepared = head.options.as_ref().is_some_and(|options| options.prepared);
        let first_is_prepared =
            first.is_some_and(|slot| self.rows[slot].substate == Substate::Prepared);
        match (unique.on_conflict, first) {
            (OnConflict::Refuse, _) => NOT_UNIQUE,
            _ if first_is_prepared => NOT_UNIQUE,
            (OnConflict::Replace, Some(_)) if is_prepared => NOT_UNIQUE,
            (OnConflict::Replace, Some(slot)) => UniqueUse::Replaces(slot),
            _ => UniqueUse::Held(EnqueueOutcome::ExistingKey(holder)),
        }
    }

    /// Whether another job of the queue holds the job's unique key, so that it is no new one.
    pub fn is_held(&self, batch: &EnqueueBatch, entry: &BatchEntry) -> bool {
        let Ok(head) = &entry.head else { return false };
        matches!(self.find_unique(&batch.paths[entry.path], head), UniqueUse::Held(_))
    }

    /// The job that holds the key now.
    fn holder_of(&self, number: u32) -> Option<JobId> {
        let key = &self.uniques.table[number];
        key.holder.filter(|_| key.ends_at > self.now.wall_ms)
    }

    /// The holder's row, if it waits and was never delivered, or not since it was revived.
    fn waiting_holder(&self, number: u32, holder: &JobId) -> Option<u32> {
        let slot = self.rows.find(holder)?;
        let row = &self.rows[slot];
        let waits = row.substate.is_open() && row.deliveries == 0;
        // A later job may have the id of one that was removed.
        let is_own = self.unique_of(slot).is_some_and(|unique| unique.key == number);
        (waits && is_own).then_some(slot)
    }

    pub(super) fn unique_of(&self, slot: u32) -> Option<UniqueOfJob> {
        self.side(&self.rows[slot]).and_then(|side| side.unique)
    }

    /// Gives the key to a new job, which waits: no other holds it.
    pub(super) fn hold_unique(&mut self, slot: u32, unique: &Unique) {
        let (queue, id) = (self.rows[slot].queue, self.rows[slot].id);
        // An entry decodes only with a key of 1 to 80 bytes.
        let Some(text) = KeyText::new(&unique.key) else { return };
        let key = self.uniques.table.find(queue, text.bytes()).unwrap_or_else(|| {
            let (holder, ends_at, jobs) = (None, OPEN, 0);
            self.uniques.table.insert(UniqueKey { queue, text, holder, ends_at, jobs })
        });
        let (until, ends_at) = match unique.until {
            UniqueUntil::End => (Until::End, OPEN),
            UniqueUntil::Start => (Until::Start, OPEN),
            UniqueUntil::For(ms) => (Until::Time, self.now.wall_ms.saturating_add(ms)),
        };
        self.uniques.table[key].jobs += 1;
        self.side_mut(slot).unique = Some(UniqueOfJob { key, until });
        self.uniques.hold(key, id, ends_at);
    }

    /// The job was delivered: it no longer holds a key that lasts until it starts.
    #[inline]
    pub(super) fn start_unique(&mut self, slot: u32) {
        if self.unique_of(slot).is_some_and(|unique| unique.until == Until::Start) {
            self.release_unique(slot);
        }
    }

    /// The job is dead: it holds no key, unless for a period. When it is revived, it may hold the
    /// key again.
    pub(super) fn bury_unique(&mut self, slot: u32) {
        match self.unique_of(slot) {
            Some(unique) if unique.until == Until::Time => self.forget_unique(slot),
            Some(_) => self.release_unique(slot),
            None => {}
        }
    }

    fn release_unique(&mut self, slot: u32) {
        let Some(UniqueOfJob { key, until }) = self.unique_of(slot) else { return };
        let id = self.rows[slot].id;
        if until != Until::Time && self.uniques.table[key].holder == Some(id) {
            self.uniques.release(key);
        }
    }

    /// The job has ended for good: it holds no key, unless for a period.
    #[inline]
    pub(super) fn forget_unique(&mut self, slot: u32) {
        // Most jobs have no side row: this check is all that unique keys cost them.
        if self.rows[slot].side != NONE {
            self.forget_some_unique(slot);
        }
    }

    #[inline(never)]
    fn forget_some_unique(&mut self, slot: u32) {
        self.release_unique(slot);
        if let Some(unique) = self.take_unique(slot) {
            self.drop_unique(unique);
        }
    }

    /// Takes the key from the job's side row, for another job or for [`State::drop_unique`].
    pub(super) fn take_unique(&mut self, slot: u32) -> Option<UniqueOfJob> {
        self.unique_of(slot)?;
        self.side_mut(slot).unique.take()
    }

    fn drop_unique(&mut self, unique: UniqueOfJob) {
        self.uniques.table[unique.key].jobs -= 1;
        self.uniques.remove_unused(unique.key);
    }

    /// Gives a dead job's key to its replacement, which may have ended at once.
    pub(super) fn pass_unique(&mut self, unique: UniqueOfJob, to: &JobId) {
        match self.rows.find(to).filter(|&slot| self.rows[slot].substate.is_open()) {
            Some(slot) => {
                self.side_mut(slot).unique = Some(unique);
                self.revive_unique(slot);
            }
            None => self.drop_unique(unique),
        }
    }

    /// The other job that holds the key which this dead one would hold once it is revived.
    pub(super) fn rival_of(&self, slot: u32) -> Option<JobId> {
        let unique = self.unique_of(slot)?;
        self.holder_of(unique.key).filter(|holder| *holder != self.rows[slot].id)
    }

    /// The job is revived: it holds its key as a new job does.
    pub(super) fn revive_unique(&mut self, slot: u32) {
        if let Some(unique) = self.unique_of(slot) {
            self.uniques.hold(unique.key, self.rows[slot].id, OPEN);
        }
    }

    /// Ends the holds whose time has passed, the oldest first, in one bounded step.
    pub(super) fn end_uniques(&mut self) {
        for _ in 0..self.rules.step_jobs {
            let Some(&(at, number)) = self.uniques.ends.first() else { break };
            if at > self.now.wall_ms {
                break;
            }
            self.uniques.release(number);
            self.uniques.remove_unused(number);
        }
    }

    /// Counts the jobs of each key, after a restore.
    pub(super) fn count_jobs_of_uniques(&mut self) {
        for slot in 0..self.rows.allocated() {
            if let Some(unique) = self.unique_of(slot) {
                self.uniques.table[unique.key].jobs += 1;
            }
        }
    }
}

impl Encode for UniqueKey {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.queue));
        self.text.encode(out);
        self.holder.encode(out);
        out.u64(self.ends_at);
    }
}

/// Its jobs count themselves when they are restored.
impl Decode for UniqueKey {
    fn decode(r: &mut Reader) -> Result<UniqueKey, WireError> {
        let (queue, text) = (r.u32()?, KeyText::decode(r)?);
        Ok(UniqueKey { queue, text, holder: r.option()?, ends_at: r.u64()?, jobs: 0 })
    }
}

impl Encode for UniqueOfJob {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.key));
        out.u8(self.until as u8);
    }
}

impl Decode for UniqueOfJob {
    fn decode(r: &mut Reader) -> Result<UniqueOfJob, WireError> {
        let key = r.u32()?;
        let invalid = r.invalid("end of a unique key");
        let all = [Until::End, Until::Start, Until::Time];
        let until = all.get(usize::from(r.u8()?)).copied().ok_or(invalid)?;
        Ok(UniqueOfJob { key, until })
    }
}
