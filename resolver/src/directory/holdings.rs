//! What one publisher holds, in buckets by the hash of its keys. Two sides compare a digest for
//! each bucket, write again only the buckets that differ, and what is not written again in those is
//! removed.
//!
//! A bucket is the keys whose hash begins with its number, so neighbours add up to a coarser one.
//! There are 16 times as many when there are 256 keys to each; they are parted one at a time, some
//! with every few keys that come.
//!
//! The hash that buckets go by is public: anybody can choose paths that all fall into one. Entries
//! of a bucket that has far more than its share are therefore found by a hash that is keyed with
//! the replica's secret, such a bucket is not parted, and work over a whole bucket is counted by
//! whoever asks for it.

use hashbrown::HashTable;
use longshore_protocol::messages::resolver::{Digest, KeyHash};

use crate::directory::index::mix;
use crate::directory::tree::{NODES_MAX, NodeId};

/// Most buckets, as a power of two.
const LEVEL_MAX: u32 = 14;
/// Buckets are parted into 16.
const LEVEL_STEP: u32 = 4;
/// Keys to a bucket, on average, from which on there are to be more buckets.
const KEYS_PER_BUCKET: usize = 256;
/// Most keys of a bucket that is parted: it is parted in one step, 1 to 2 ms for so many. A bucket
/// of keys that nobody has chosen has about 270 then. While one has more, its publisher's buckets
/// are not parted any further, and this one goes on growing, so that it may stay whole until the
/// replica starts again: what differs costs that publisher more paths to write again.
const PARTED_KEYS_MAX: usize = 16 * KEYS_PER_BUCKET;
/// Keys that come for each bucket that is parted meanwhile.
const KEYS_PER_PARTING: u32 = 16;

/// The number of a node, and two bits.
type Entry = u32;
const NODE: u32 = NODES_MAX as u32 - 1;
/// It is the default at that node that is held.
const DEFAULT: u32 = 1 << 30;
/// It has been written since its bucket is being rewritten.
const WRITTEN: u32 = 1 << 31;

/// A path, or the default at it, that is held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Held {
    pub(super) node: NodeId,
    pub(super) default: bool,
}

impl Held {
    fn entry(self) -> Entry {
        self.node | if self.default { DEFAULT } else { 0 }
    }

    fn of(entry: Entry) -> Held {
        Held { node: entry & NODE, default: entry & DEFAULT != 0 }
    }
}

/// What the digest of a bucket says of something that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) key: KeyHash,
    /// The digest of its terms.
    pub(super) terms: u64,
}

#[derive(Clone, Default, Debug)]
struct Bucket {
    digest: Digest,
    entries: Entries,
    /// In which rewriting the entries were last marked.
    rewriting: u64,
}

/// From so many entries on a bucket has an index: four times as many as buckets have when they are
/// parted, which without anybody's choosing takes over 16 million paths. Fewer are looked through:
/// an index costs a third more for each path that is registered. Tests have few, and are to meet
/// both.
const INDEXED_FROM: usize = if cfg!(test) { 8 } else { 4 * KEYS_PER_BUCKET };

/// The entries of a bucket.
#[derive(Clone, Debug)]
enum Entries {
    Few(Vec<Entry>),
    Many(HashTable<Entry>),
}

impl Default for Entries {
    fn default() -> Entries {
        Entries::Few(Vec::new())
    }
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::Few(entries) => entries.len(),
            Entries::Many(entries) => entries.len(),
        }
    }

    fn insert(&mut self, entry: Entry, by: EntryHasher) {
        match self {
            Entries::Few(entries) if entries.len() < INDEXED_FROM => {
                if entries.len() == entries.capacity() {
                    // Doubling would leave a third of all memory for entries empty.
                    entries.reserve_exact((entries.len() / 4).max(4));
                }
                entries.push(entry);
            }
            Entries::Few(entries) => {
                let mut many = HashTable::with_capacity(2 * INDEXED_FROM);
                for &entry in entries.iter().chain(&[entry]) {
                    many.insert_unique(by.hash(entry), entry, |&entry| by.hash(entry));
                }
                *self = Entries::Many(many);
            }
            Entries::Many(entries) => {
                entries.insert_unique(by.hash(entry), entry, |&entry| by.hash(entry));
            }
        }
    }

    /// False if it is not there.
    fn remove(&mut self, entry: Entry, by: EntryHasher) -> bool {
        let is_it = |other: &Entry| other & !WRITTEN == entry;
        match self {
            Entries::Few(entries) => {
                entries.iter().position(is_it).map(|at| entries.swap_remove(at)).is_some()
            }
            Entries::Many(entries) => {
                entries.find_entry(by.hash(entry), is_it).map(|found| found.remove()).is_ok()
            }
        }
    }

    fn find(&mut self, entry: Entry, by: EntryHasher) -> Option<&mut Entry> {
        let is_it = |other: &Entry| other & !WRITTEN == entry;
        match self {
            Entries::Few(entries) => entries.iter_mut().find(|other| is_it(other)),
            Entries::Many(entries) => entries.find_mut(by.hash(entry), is_it),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        let (few, many) = match self {
            Entries::Few(entries) => (Some(entries.iter()), None),
            Entries::Many(entries) => (None, Some(entries.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let (few, many) = match self {
            Entries::Few(entries) => (Some(entries.iter_mut()), None),
            Entries::Many(entries) => (None, Some(entries.iter_mut())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }
}

/// What is being written again.
#[derive(Debug)]
struct Rewriting {
    /// At how many bits of the hash it was compared.
    level: u32,
    /// One bit for each of those buckets: it differs.
    differ: Vec<u64>,
}

/// All that one publisher holds.
#[derive(Debug)]
pub(super) struct Holdings {
    level: u32,
    /// 2^level. While they are being parted, those that have been are empty.
    buckets: Vec<Bucket>,
    /// The first of the buckets that there are to be: as many as come of those that have been
    /// parted.
    finer: Option<Vec<Bucket>>,
    keys_since_parting: u32,
    len: usize,
    rewriting: Option<Rewriting>,
    /// How many rewritings there have been.
    rewritings: u64,
    /// What is left of a bucket that is being emptied.
    emptied: Vec<Entry>,
    by: EntryHasher,
}

/// How entries are hashed within a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryHasher {
    secret: u64,
}

impl EntryHasher {
    pub(super) fn new(secret: u64) -> EntryHasher {
        EntryHasher { secret: secret | 1 }
    }

    fn hash(self, entry: Entry) -> u64 {
        let word = u64::from(entry & !WRITTEN) ^ self.secret.rotate_left(32);
        mix(mix(word, self.secret), 0x9e37_79b9_7f4a_7c15)
    }
}

impl Holdings {
    pub(super) fn new(by: EntryHasher) -> Holdings {
        Holdings {
            emptied: Vec::new(),
            by,
            level: 0,
            buckets: vec![Bucket::default()],
            finer: None,
            keys_since_parting: 0,
            len: 0,
            rewriting: None,
            rewritings: 0,
        }
    }

    /// Paths and defaults that are held.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Notes that it holds what it did not.
    pub(super) fn insert(&mut self, held: Held, mark: Mark) {
        let written = if self.is_rewriting(mark.key) { WRITTEN } else { 0 };
        let (entry, by) = (held.entry() | written, self.by);
        let bucket = self.bucket(mark.key);
        bucket.entries.insert(entry, by);
        bucket.digest.add(mark.key, mark.terms);
        self.len += 1;
        self.keys_since_parting += 1;
    }

    /// Notes that it no longer holds it.
    pub(super) fn remove(&mut self, held: Held, mark: Mark) {
        let by = self.by;
        let bucket = self.bucket(mark.key);
        if !bucket.entries.remove(held.entry(), by) {
            return;
        }
        bucket.digest.remove(mark.key, mark.terms);
        self.len -= 1;
    }

    /// What it holds has other terms now than `before`.
    pub(super) fn replace(&mut self, held: Held, before: u64, mark: Mark) {
        self.written_again(held, mark.key);
        let bucket = self.bucket(mark.key);
        bucket.digest.remove(mark.key, before);
        bucket.digest.add(mark.key, mark.terms);
    }

    /// True while something is being written again.
    pub(super) fn any_rewriting(&self) -> bool {
        self.rewriting.is_some()
    }

    /// What it holds was written again.
    pub(super) fn written_again(&mut self, held: Held, key: KeyHash) {
        if self.is_rewriting(key) {
            let (by, entry) = (self.by, held.entry());
            if let Some(found) = self.bucket(key).entries.find(entry, by) {
                *found |= WRITTEN;
            }
        }
    }

    /// Whether the bucket of that key is being written again; its entries are then ready to be
    /// marked.
    fn is_rewriting(&mut self, key: KeyHash) -> bool {
        let Some(rewriting) = &self.rewriting else { return false };
        if !rewriting.differs(top(key, rewriting.level)) {
            return false;
        }
        let rewritings = self.rewritings;
        let bucket = self.bucket(key);
        if bucket.rewriting != rewritings {
            bucket.rewriting = rewritings;
            bucket.entries.iter_mut().for_each(|entry| *entry &= !WRITTEN);
        }
        true
    }

    /// What is `wanted`, by bucket, compared with what is held: the answer, by as many buckets or
    /// by fewer. From here on those that differ are being written again, and no others.
    pub(super) fn compare(&mut self, wanted: &[Digest]) -> Vec<Digest> {
        self.rewritings += 1;
        if !wanted.len().is_power_of_two() || wanted.len() > 1 << LEVEL_MAX {
            // It cannot be compared: all of it differs.
            self.rewriting = Some(Rewriting { level: 0, differ: vec![1] });
            return Vec::new();
        }
        let level = wanted.len().ilog2().min(self.level);
        let held = self.digests(level);
        let mut differ = vec![0u64; held.len().div_ceil(64)];
        for (place, wanted) in Digest::fold(wanted, held.len()).iter().enumerate() {
            differ[place / 64] |= u64::from(held[place] != *wanted) << (place % 64);
        }
        let any = differ.iter().any(|&word| word != 0);
        self.rewriting = any.then_some(Rewriting { level, differ });
        held
    }

    /// The digests of what is held, by the first `level` bits of the hash.
    fn digests(&self, level: u32) -> Vec<Digest> {
        let mut digests = vec![Digest::default(); 1 << level];
        for (first, bits, bucket) in self.by_hash() {
            digests[first >> (bits - level)].join(bucket.digest);
        }
        digests
    }

    /// Of all that is held.
    #[cfg(test)]
    pub(super) fn digest(&self) -> Digest {
        self.digests(0)[0]
    }

    /// The buckets in the order of hashes, each with its number among 2^`bits`.
    fn by_hash(&self) -> impl Iterator<Item = (usize, u32, &Bucket)> {
        let finer = self.finer.as_deref().unwrap_or_default();
        let finer_level = self.level + self.step();
        let parted = finer.len() >> self.step();
        let finer = finer.iter().enumerate().map(move |(at, bucket)| (at, finer_level, bucket));
        let rest = self.buckets.iter().enumerate().skip(parted);
        finer.chain(rest.map(|(at, bucket)| (at, self.level, bucket)))
    }

    /// What is held, was to be written again and was not: that of the next bucket of those that
    /// differ, from the place that `cursor` says, which is moved. Answers with how many entries it
    /// has looked at. None when there are no more; nothing is being written again from then on.
    pub(super) fn stale(&mut self, cursor: &mut u32, out: &mut Vec<Held>) -> Option<usize> {
        let Some(rewriting) = &self.rewriting else { return None };
        while *cursor < 1 << LEVEL_MAX {
            let at = *cursor as usize;
            let (bits, bucket) = self.bucket_at(at);
            let differs = rewriting.differs(at >> (LEVEL_MAX - rewriting.level));
            *cursor = ((*cursor >> (LEVEL_MAX - bits)) + 1) << (LEVEL_MAX - bits);
            if differs {
                let touched = bucket.rewriting == self.rewritings;
                let stale =
                    bucket.entries.iter().filter(|&&entry| !touched || entry & WRITTEN == 0);
                out.extend(stale.map(|&entry| Held::of(entry)));
                return Some(bucket.entries.len());
            }
        }
        self.rewriting = None;
        None
    }

    /// Takes one thing out, whichever: for a publisher that nobody sees any more.
    pub(super) fn pop(&mut self) -> Option<Held> {
        loop {
            if let Some(entry) = self.emptied.pop() {
                self.len -= 1;
                return Some(Held::of(entry));
            }
            let buckets = match &mut self.finer {
                Some(finer) if !finer.is_empty() => finer,
                _ => &mut self.buckets,
            };
            self.emptied.extend(buckets.pop()?.entries.iter());
        }
    }

    /// Parts a bucket, if there are to be more of them and it is time for the next. Answers with
    /// how many entries that has moved: at most [`PARTED_KEYS_MAX`].
    pub(super) fn part(&mut self, mut mark: impl FnMut(Held) -> Mark) -> usize {
        if self.keys_since_parting < KEYS_PER_PARTING {
            return 0;
        }
        self.keys_since_parting = 0;
        let step = self.step();
        if self.finer.is_none() {
            if step == 0 || self.len < KEYS_PER_BUCKET << self.level {
                return 0;
            }
            self.finer = Some(Vec::with_capacity(1 << (self.level + step)));
        }
        let bits = self.level + step;
        let (by, Some(finer)) = (self.by, &mut self.finer) else { return 0 };
        let next = &mut self.buckets[finer.len() >> step];
        if next.entries.len() > PARTED_KEYS_MAX {
            return 0;
        }
        let bucket = std::mem::take(next);
        let first = finer.len();
        finer.resize(first + (1 << step), Bucket::default());
        for part in &mut finer[first..] {
            part.rewriting = bucket.rewriting;
        }
        let moved = bucket.entries.len();
        for &entry in bucket.entries.iter() {
            let mark = mark(Held::of(entry));
            let part = &mut finer[top(mark.key, bits)];
            part.entries.insert(entry, by);
            part.digest.add(mark.key, mark.terms);
        }
        if finer.len() == 1 << bits {
            self.buckets = self.finer.take().unwrap_or_default();
            self.level = bits;
        }
        moved
    }

    /// By how many bits of the hash the finer buckets are finer.
    fn step(&self) -> u32 {
        LEVEL_STEP.min(LEVEL_MAX - self.level)
    }

    fn bucket(&mut self, key: KeyHash) -> &mut Bucket {
        let (coarse, step) = (top(key, self.level), self.step());
        match &mut self.finer {
            Some(finer) if coarse < finer.len() >> step => &mut finer[top(key, self.level + step)],
            _ => &mut self.buckets[coarse],
        }
    }

    /// The bucket at a place among as many as there may be, and by how many bits it is found.
    fn bucket_at(&self, at: usize) -> (u32, &Bucket) {
        let (coarse, step) = (at >> (LEVEL_MAX - self.level), self.step());
        let bits = self.level + step;
        match &self.finer {
            Some(finer) if coarse < finer.len() >> step => (bits, &finer[at >> (LEVEL_MAX - bits)]),
            _ => (self.level, &self.buckets[coarse]),
        }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Held> {
        let held = self.by_hash().flat_map(|(_, _, bucket)| bucket.entries.iter());
        held.chain(&self.emptied).map(|&entry| Held::of(entry))
    }

    /// Panics where the buckets contradict each other.
    #[cfg(test)]
    pub(super) fn invariant(&self, mark: impl Fn(Held) -> Mark) {
        assert_eq!(self.iter().count(), self.len, "things held");
        for (number, bits, bucket) in self.by_hash() {
            let mut digest = Digest::default();
            for &entry in bucket.entries.iter() {
                let mark = mark(Held::of(entry));
                assert_eq!(top(mark.key, bits), number, "in the bucket of another hash");
                digest.add(mark.key, mark.terms);
            }
            assert_eq!(digest, bucket.digest, "the digest of bucket {number} of {bits} bits");
        }
    }
}

impl Rewriting {
    fn differs(&self, bucket: usize) -> bool {
        self.differ[bucket / 64] >> (bucket % 64) & 1 == 1
    }
}

/// The place of a key among 2^`bits` buckets.
fn top(key: KeyHash, bits: u32) -> usize {
    key.bucket(1 << bits)
}

#[cfg(test)]
#[path = "holdings_test.rs"]
mod holdings_test;
