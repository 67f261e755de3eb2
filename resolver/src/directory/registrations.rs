//! The registrations of one publisher, in buckets by the hash of their keys. Two sides compare a
//! digest for each bucket, write again only the buckets that differ, and remove what is not written
//! again in those.
//!
//! A bucket has the keys whose hash begins with its number, so adjacent buckets merge into one
//! of the coarser level. With 256 keys to each, their number grows 16-fold; they are split one at a
//! time, some with every few new keys.
//!
//! The hash of the buckets is public: anybody can choose paths that all fall into one. So entries
//! of a bucket far above its share are found by a hash keyed with the replica's secret, such a
//! bucket is not split, and work over a whole bucket counts towards the budget of the request.

use hashbrown::HashTable;
use longshore_protocol::messages::resolver::{Digest, KeyHash};

use crate::directory::index::mix;
use crate::directory::tree::{NODES_MAX, NodeId};

/// Most buckets, as a power of two.
const LEVEL_MAX: u32 = 14;
/// A bucket is split into 16.
const LEVEL_STEP: u32 = 4;
/// The average keys of a bucket from which on buckets are split.
const KEYS_PER_BUCKET: usize = 256;
/// Most keys of a bucket that is split: it is split in one step, which takes 1 to 2 ms for so many.
/// Without chosen keys a bucket has about 270 then. A bucket with more stops all further splits of
/// its publisher's buckets and keeps growing, so that it may stay whole until the replica restarts:
/// each difference then costs that publisher more paths to write again.
const SPLIT_KEYS_MAX: usize = 16 * KEYS_PER_BUCKET;
/// New keys between two splits.
const KEYS_PER_SPLIT: u32 = 16;

/// The number of a node, and two bits.
type Entry = u32;
const NODE: u32 = NODES_MAX as u32 - 1;
/// Set if the registration is the default at the node.
const DEFAULT: u32 = 1 << 30;
/// Set once it was written while its bucket is rewritten.
const WRITTEN: u32 = 1 << 31;

/// A registered path, or the default at it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Registration {
    pub(super) node: NodeId,
    pub(super) default: bool,
}

impl Registration {
    fn entry(self) -> Entry {
        self.node | if self.default { DEFAULT } else { 0 }
    }

    fn of(entry: Entry) -> Registration {
        Registration { node: entry & NODE, default: entry & DEFAULT != 0 }
    }
}

/// The contribution of a registration to the digest of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DigestEntry {
    pub(super) key: KeyHash,
    /// The digest of its terms.
    pub(super) terms: u64,
}

#[derive(Clone, Default, Debug)]
struct Bucket {
    digest: Digest,
    entries: Entries,
    /// The rewriting in which the entries were last marked.
    rewriting: u64,
}

/// A bucket with so many entries has an index: four times as many as a bucket has at a split, which
/// without chosen keys takes over 16 million paths. Smaller buckets are scanned: an index costs a
/// third more for each registered path. Tests have few paths, and have to cover both.
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

    fn insert(&mut self, entry: Entry, hasher: EntryHasher) {
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
                    many.insert_unique(hasher.hash(entry), entry, |&entry| hasher.hash(entry));
                }
                *self = Entries::Many(many);
            }
            Entries::Many(entries) => {
                entries.insert_unique(hasher.hash(entry), entry, |&entry| hasher.hash(entry));
            }
        }
    }

    /// False if it is not there.
    fn remove(&mut self, entry: Entry, hasher: EntryHasher) -> bool {
        let is_it = |other: &Entry| other & !WRITTEN == entry;
        match self {
            Entries::Few(entries) => {
                entries.iter().position(is_it).map(|at| entries.swap_remove(at)).is_some()
            }
            Entries::Many(entries) => {
                entries.find_entry(hasher.hash(entry), is_it).map(|found| found.remove()).is_ok()
            }
        }
    }

    fn find(&mut self, entry: Entry, hasher: EntryHasher) -> Option<&mut Entry> {
        let is_it = |other: &Entry| other & !WRITTEN == entry;
        match self {
            Entries::Few(entries) => entries.iter_mut().find(|other| is_it(other)),
            Entries::Many(entries) => entries.find_mut(hasher.hash(entry), is_it),
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

/// The buckets that are being rewritten.
#[derive(Debug)]
struct Rewriting {
    /// The bits of the hash at which the buckets were compared.
    level: u32,
    /// One bit for each of those buckets: set if it differs.
    differ: Vec<u64>,
}

/// All registrations of one publisher.
#[derive(Debug)]
pub(super) struct Registrations {
    level: u32,
    /// 2^level buckets. During a split those already split are empty.
    buckets: Vec<Bucket>,
    /// The first of the finer buckets: those that the already split ones were split into.
    finer: Option<Vec<Bucket>>,
    keys_since_split: u32,
    len: usize,
    rewriting: Option<Rewriting>,
    /// The number of rewritings so far.
    rewritings: u64,
    /// The rest of a bucket that is being emptied.
    emptied: Vec<Entry>,
    hasher: EntryHasher,
}

/// The hash of entries within a bucket.
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

impl Registrations {
    pub(super) fn new(hasher: EntryHasher) -> Registrations {
        Registrations {
            emptied: Vec::new(),
            hasher,
            level: 0,
            buckets: vec![Bucket::default()],
            finer: None,
            keys_since_split: 0,
            len: 0,
            rewriting: None,
            rewritings: 0,
        }
    }

    /// Registered paths and defaults.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a registration that was not there.
    pub(super) fn insert(&mut self, registration: Registration, digest_entry: DigestEntry) {
        let written = if self.is_rewriting(digest_entry.key) { WRITTEN } else { 0 };
        let (entry, hasher) = (registration.entry() | written, self.hasher);
        let bucket = self.bucket(digest_entry.key);
        bucket.entries.insert(entry, hasher);
        bucket.digest.add(digest_entry.key, digest_entry.terms);
        self.len += 1;
        self.keys_since_split += 1;
    }

    /// Removes a registration.
    pub(super) fn remove(&mut self, registration: Registration, digest_entry: DigestEntry) {
        let hasher = self.hasher;
        let bucket = self.bucket(digest_entry.key);
        if !bucket.entries.remove(registration.entry(), hasher) {
            return;
        }
        bucket.digest.remove(digest_entry.key, digest_entry.terms);
        self.len -= 1;
    }

    /// Changes the terms of a registration from `before`.
    pub(super) fn replace(
        &mut self,
        registration: Registration,
        before: u64,
        digest_entry: DigestEntry,
    ) {
        self.written_again(registration, digest_entry.key);
        let bucket = self.bucket(digest_entry.key);
        bucket.digest.remove(digest_entry.key, before);
        bucket.digest.add(digest_entry.key, digest_entry.terms);
    }

    /// True while buckets are being rewritten.
    pub(super) fn any_rewriting(&self) -> bool {
        self.rewriting.is_some()
    }

    /// Marks a registration as written again.
    pub(super) fn written_again(&mut self, registration: Registration, key: KeyHash) {
        if self.is_rewriting(key) {
            let (hasher, entry) = (self.hasher, registration.entry());
            if let Some(found) = self.bucket(key).entries.find(entry, hasher) {
                *found |= WRITTEN;
            }
        }
    }

    /// Whether the bucket of this key is being rewritten; its entries then have clean marks.
    fn is_rewriting(&mut self, key: KeyHash) -> bool {
        let Some(rewriting) = &self.rewriting else { return false };
        if !rewriting.differs(bucket_number(key, rewriting.level)) {
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

    /// Compares the registrations with the digests in `desired`. Returns their own digests, in as
    /// many buckets or fewer. From here on the buckets that differ are rewritten, and no others.
    pub(super) fn compare(&mut self, desired: &[Digest]) -> Vec<Digest> {
        self.rewritings += 1;
        if !desired.len().is_power_of_two() || desired.len() > 1 << LEVEL_MAX {
            // Not comparable: everything differs.
            self.rewriting = Some(Rewriting { level: 0, differ: vec![1] });
            return Vec::new();
        }
        let level = desired.len().ilog2().min(self.level);
        let digests = self.digests(level);
        let mut differ = vec![0u64; digests.len().div_ceil(64)];
        for (bucket, desired) in Digest::fold(desired, digests.len()).iter().enumerate() {
            differ[bucket / 64] |= u64::from(digests[bucket] != *desired) << (bucket % 64);
        }
        let any = differ.iter().any(|&word| word != 0);
        self.rewriting = any.then_some(Rewriting { level, differ });
        digests
    }

    /// The digests by the first `level` bits of the hash.
    fn digests(&self, level: u32) -> Vec<Digest> {
        let mut digests = vec![Digest::default(); 1 << level];
        for (first, bits, bucket) in self.by_hash() {
            digests[first >> (bits - level)].merge(bucket.digest);
        }
        digests
    }

    /// The digest of all registrations.
    #[cfg(test)]
    pub(super) fn digest(&self) -> Digest {
        self.digests(0)[0]
    }

    /// The buckets in the order of hashes, each with its number among 2^`bits`.
    fn by_hash(&self) -> impl Iterator<Item = (usize, u32, &Bucket)> {
        let finer = self.finer.as_deref().unwrap_or_default();
        let finer_level = self.level + self.step();
        let split = finer.len() >> self.step();
        let finer = finer.iter().enumerate().map(move |(at, bucket)| (at, finer_level, bucket));
        let rest = self.buckets.iter().enumerate().skip(split);
        finer.chain(rest.map(|(at, bucket)| (at, self.level, bucket)))
    }

    /// Collects the registrations that were not written again, in the next bucket that differs from
    /// the position `cursor` on, which advances. Returns the number of entries compared. `None`
    /// when there are no more buckets; the rewriting is over then.
    pub(super) fn stale(&mut self, cursor: &mut u32, out: &mut Vec<Registration>) -> Option<usize> {
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
                out.extend(stale.map(|&entry| Registration::of(entry)));
                return Some(bucket.entries.len());
            }
        }
        self.rewriting = None;
        None
    }

    /// Removes any registration: for a hidden publisher.
    pub(super) fn pop(&mut self) -> Option<Registration> {
        loop {
            if let Some(entry) = self.emptied.pop() {
                self.len -= 1;
                return Some(Registration::of(entry));
            }
            let buckets = match &mut self.finer {
                Some(finer) if !finer.is_empty() => finer,
                _ => &mut self.buckets,
            };
            self.emptied.extend(buckets.pop()?.entries.iter());
        }
    }

    /// Splits the next bucket, if more buckets are needed and a split is due. Returns the number of
    /// entries moved: at most [`SPLIT_KEYS_MAX`].
    pub(super) fn split_next(
        &mut self,
        mut digest_entry: impl FnMut(Registration) -> DigestEntry,
    ) -> usize {
        if self.keys_since_split < KEYS_PER_SPLIT {
            return 0;
        }
        self.keys_since_split = 0;
        let step = self.step();
        if self.finer.is_none() {
            if step == 0 || self.len < KEYS_PER_BUCKET << self.level {
                return 0;
            }
            self.finer = Some(Vec::with_capacity(1 << (self.level + step)));
        }
        let bits = self.level + step;
        let (hasher, Some(finer)) = (self.hasher, &mut self.finer) else { return 0 };
        let next = &mut self.buckets[finer.len() >> step];
        if next.entries.len() > SPLIT_KEYS_MAX {
            return 0;
        }
        let bucket = std::mem::take(next);
        let first = finer.len();
        finer.resize(first + (1 << step), Bucket::default());
        for finer_bucket in &mut finer[first..] {
            finer_bucket.rewriting = bucket.rewriting;
        }
        let moved = bucket.entries.len();
        for &entry in bucket.entries.iter() {
            let digest_entry = digest_entry(Registration::of(entry));
            let finer_bucket = &mut finer[bucket_number(digest_entry.key, bits)];
            finer_bucket.entries.insert(entry, hasher);
            finer_bucket.digest.add(digest_entry.key, digest_entry.terms);
        }
        if finer.len() == 1 << bits {
            self.buckets = self.finer.take().unwrap_or_default();
            self.level = bits;
        }
        moved
    }

    /// The additional bits of the hash for the finer buckets.
    fn step(&self) -> u32 {
        LEVEL_STEP.min(LEVEL_MAX - self.level)
    }

    fn bucket(&mut self, key: KeyHash) -> &mut Bucket {
        let (coarse, step) = (bucket_number(key, self.level), self.step());
        match &mut self.finer {
            Some(finer) if coarse < finer.len() >> step => {
                &mut finer[bucket_number(key, self.level + step)]
            }
            _ => &mut self.buckets[coarse],
        }
    }

    /// The bucket at a position among the most possible buckets, and the bits of its number.
    fn bucket_at(&self, at: usize) -> (u32, &Bucket) {
        let (coarse, step) = (at >> (LEVEL_MAX - self.level), self.step());
        let bits = self.level + step;
        match &self.finer {
            Some(finer) if coarse < finer.len() >> step => (bits, &finer[at >> (LEVEL_MAX - bits)]),
            _ => (self.level, &self.buckets[coarse]),
        }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Registration> {
        let entries = self.by_hash().flat_map(|(_, _, bucket)| bucket.entries.iter());
        entries.chain(&self.emptied).map(|&entry| Registration::of(entry))
    }

    /// Panics where the buckets are inconsistent.
    #[cfg(test)]
    pub(super) fn invariant(&self, digest_entry: impl Fn(Registration) -> DigestEntry) {
        assert_eq!(self.iter().count(), self.len, "registrations");
        for (number, bits, bucket) in self.by_hash() {
            let mut digest = Digest::default();
            for &entry in bucket.entries.iter() {
                let digest_entry = digest_entry(Registration::of(entry));
                assert_eq!(
                    bucket_number(digest_entry.key, bits),
                    number,
                    "in the bucket of another hash"
                );
                digest.add(digest_entry.key, digest_entry.terms);
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

/// The number of a key's bucket among 2^`bits`.
fn bucket_number(key: KeyHash, bits: u32) -> usize {
    key.bucket(1 << bits)
}

#[cfg(test)]
#[path = "registrations_test.rs"]
mod registrations_test;
