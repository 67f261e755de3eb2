//! All rows, by index and by id, and the linked lists of rows.

use std::ops::{Index, IndexMut};

use longshore_protocol::{JobId, Token};

use super::chunks::{Chunks, Shared};
use super::id_key::IdKey;
use super::row::{NONE, Row, Substate};
use super::slot_index::SlotIndex;
use crate::outcome::RecordRef;

/// Rows per chunk: growing never copies a row, and a frozen chunk, 24 KiB, is copied on its first
/// change. In tests a few jobs take several.
const CHUNK_ROWS: usize = if cfg!(test) { 4 } else { 256 };
/// Parts of the index of ids: each grows by itself, so no command waits for all of them.
const INDEX_PARTS: usize = 256;
/// Jobs of a command whose index lines are prefetched together. With ten million jobs a lookup is a
/// miss of the processor's caches; independent lookups miss together. The lines of 32 jobs stay in
/// the nearest cache until they are used.
pub(super) const PREFETCH: usize = 32;

type Table = Chunks<Row, CHUNK_ROWS>;

/// The rows of all jobs.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// Rows created so far, free ones included.
    rows: Table,
    /// The free row to use next; `Row::next` is the following one.
    pub(super) free: u32,
    /// Rows that hold a job.
    pub(super) used: u32,
    by_id: Vec<SlotIndex>,
    by_token: SlotIndex,
    /// Keys the hashes of ids, which producers choose. Tokens are the publisher's own and need no
    /// key.
    key: IdKey,
}

impl Default for Rows {
    fn default() -> Rows {
        Rows {
            rows: Table::default(),
            free: NONE,
            used: 0,
            by_id: vec![SlotIndex::default(); INDEX_PARTS],
            by_token: SlotIndex::default(),
            key: IdKey::default(),
        }
    }
}

impl Rows {
    /// Sets the key of the index of ids; only while it is empty.
    pub(super) fn set_key(&mut self, secret: &[u8; 16]) {
        debug_assert!(self.ids() == 0, "existing ids are indexed with the old key");
        self.key = IdKey::new(secret);
    }

    /// Rows created so far, free ones included: indexes are below it.
    pub(super) fn allocated(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Puts a job into a free row.
    pub(super) fn insert(&mut self, row: Row) -> u32 {
        let slot = match self.free {
            NONE => {
                self.push(row);
                self.allocated() - 1
            }
            slot => {
                self.free = self[slot].next;
                self[slot] = row;
                slot
            }
        };
        self.used += 1;
        self.index_id(slot);
        slot
    }

    /// Appends a row as it is: for restoring, and for a new index.
    pub(super) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// All rows as they are now, shared.
    pub(super) fn freeze(&mut self) -> Shared<Row> {
        self.rows.freeze()
    }

    /// Frees a row, which is in no list any more.
    pub(super) fn remove(&mut self, slot: u32) {
        let hash = self.key.hash(&self[slot].id.0);
        self.by_id[part(hash)].remove(hash, slot);
        let free = self.free;
        self[slot] = Row { next: free, ..Row::free() };
        self.free = slot;
        self.used -= 1;
    }

    pub(super) fn find(&self, id: &JobId) -> Option<u32> {
        let hash = self.key.hash(&id.0);
        self.by_id[part(hash)].find(hash, |slot| self[slot].id == *id)
    }

    pub(super) fn find_token(&self, token: Token) -> Option<u32> {
        self.by_token.find(mix(token.0), |slot| self[slot].when == token.0)
    }

    /// Prefetches the index lines of ids. Changes nothing.
    pub(super) fn fetch_ids<'a>(&self, ids: impl Iterator<Item = &'a JobId>) {
        for id in ids {
            let hash = self.key.hash(&id.0);
            self.by_id[part(hash)].fetch(hash);
        }
    }

    /// Prefetches what the end of these running jobs will access. Changes nothing.
    pub(super) fn fetch_tokens(&self, tokens: impl Iterator<Item = Token>) {
        let mut slots = [NONE; PREFETCH];
        for (slot, token) in slots.iter_mut().zip(tokens) {
            *slot = self.find_token(token).unwrap_or(NONE);
        }
        for &slot in slots.iter().filter(|&&slot| slot != NONE) {
            let hash = self.key.hash(&self[slot].id.0);
            self.by_id[part(hash)].fetch(hash);
        }
    }

    /// Indexes a row's id.
    pub(super) fn index_id(&mut self, slot: u32) {
        let (rows, key) = (&self.rows, self.key);
        let hash = key.hash(&rows[slot as usize].id.0);
        self.by_id[part(hash)].insert(hash, slot, |s| key.hash(&rows[s as usize].id.0));
    }

    /// Reserves room for `ids` ids.
    pub(super) fn reserve_ids(&mut self, ids: usize) {
        // Parts do not fill evenly: a part that has to grow hashes all of its ids again.
        let ids = ids / INDEX_PARTS + ids / (32 * INDEX_PARTS) + 12;
        for part in &mut self.by_id {
            let (rows, key) = (&self.rows, self.key);
            part.reserve(ids, |s| key.hash(&rows[s as usize].id.0));
        }
    }

    /// Indexes a running row's token.
    pub(super) fn index_token(&mut self, slot: u32) {
        let rows = &self.rows;
        let hash = mix(rows[slot as usize].when);
        self.by_token.insert(hash, slot, |s| mix(rows[s as usize].when));
    }

    pub(super) fn remove_token(&mut self, slot: u32) {
        let hash = mix(self[slot].when);
        self.by_token.remove(hash, slot);
    }

    /// The hash of an id.
    #[cfg(test)]
    pub(super) fn hash_of(&self, id: &JobId) -> u64 {
        self.key.hash(&id.0)
    }

    /// How many slots the fullest line of the index of ids had no room for.
    #[cfg(test)]
    pub(super) fn most_overflows(&self) -> u8 {
        self.by_id.iter().map(SlotIndex::most_overflows).max().unwrap_or(0)
    }

    /// Indexed tokens.
    pub(super) fn tokens(&self) -> usize {
        self.by_token.len()
    }

    /// Indexed ids.
    pub(super) fn ids(&self) -> usize {
        self.by_id.iter().map(SlotIndex::len).sum()
    }

    /// Bytes of memory of rows and ids.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes() + self.by_id.iter().map(SlotIndex::memory_bytes).sum::<usize>()
    }
}

impl Index<u32> for Rows {
    type Output = Row;

    fn index(&self, slot: u32) -> &Row {
        &self.rows[slot as usize]
    }
}

impl IndexMut<u32> for Rows {
    fn index_mut(&mut self, slot: u32) -> &mut Row {
        &mut self.rows[slot as usize]
    }
}

impl Row {
    /// An empty row.
    pub(super) fn free() -> Row {
        Row {
            id: JobId::default(),
            entry: RecordRef { index: 0, at: 0, length: 0 },
            crc: 0,
            delivered: 0,
            enqueued_wall_ms: 0,
            when: 0,
            prev: NONE,
            next: NONE,
            queue_prev: NONE,
            queue_next: NONE,
            queue: 0,
            profile: 0,
            session: NONE,
            side: NONE,
            attempts: 0,
            deliveries: 0,
            head_len: 0,
            unstarted_deliveries: 0,
            substate: Substate::Free,
        }
    }
}

/// A linked list of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct List {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE }
    }
}

/// Which of a row's two pairs of links a list uses.
#[derive(Clone, Copy)]
pub(super) enum Links {
    /// `prev` and `next`.
    Main,
    /// `queue_prev` and `queue_next`.
    Queue,
}

impl Links {
    fn of(self, row: &mut Row) -> (&mut u32, &mut u32) {
        match self {
            Links::Main => (&mut row.prev, &mut row.next),
            Links::Queue => (&mut row.queue_prev, &mut row.queue_next),
        }
    }
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn push_back(&mut self, rows: &mut Rows, links: Links, slot: u32) {
        let (prev, next) = links.of(&mut rows[slot]);
        (*prev, *next) = (self.tail, NONE);
        match self.tail {
            NONE => self.head = slot,
            tail => *links.of(&mut rows[tail]).1 = slot,
        }
        self.tail = slot;
    }

    pub(super) fn unlink(&mut self, rows: &mut Rows, links: Links, slot: u32) {
        let (prev, next) = links.of(&mut rows[slot]);
        let (before, after) = (std::mem::replace(prev, NONE), std::mem::replace(next, NONE));
        match before {
            NONE => self.head = after,
            before => *links.of(&mut rows[before]).1 = after,
        }
        match after {
            NONE => self.tail = before,
            after => *links.of(&mut rows[after]).0 = before,
        }
    }
}

/// The random number of a job's attempt, a function of its arguments.
pub(super) fn random_of(id: &JobId, attempt: u16) -> u64 {
    let (high, low) = halves(id);
    mix(mix(mix(high) ^ low) ^ u64::from(attempt))
}

fn halves(id: &JobId) -> (u64, u64) {
    let whole = u128::from_be_bytes(id.0);
    ((whole >> 64) as u64, whole as u64)
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014): every bit of the input affects every bit
/// of the output.
pub(super) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn part(hash: u64) -> usize {
    // A part itself uses the hash's lowest byte and its upper half.
    (hash >> 8) as usize % INDEX_PARTS
}
