//! Paths and defaults by the topmost bits of their hashes, with a digest for each bucket: two sides
//! compare the digests, and rewrite the buckets that differ.
//!
//! There are 2ᵏ buckets of about [`BUCKET_KEYS`]. As they fill up, each is split in two, one with
//! every [`KEYS_PER_SPLIT`] new keys: recording some hundreds of keys under one lock includes
//! only a few splits. The order within a bucket is arbitrary.

use longshore_protocol::Path;
use longshore_protocol::limits::RESOLVER_BUCKETS_MAX;
use longshore_protocol::messages::resolver::{Digest, KeyHash};

use crate::write_client::terms::CheckedTerms;

/// The approximate keys of a bucket: it is split when the average is half as much again.
const BUCKET_KEYS: usize = 256;
/// New keys between two splits. A split moves a bucket's keys, in some 10 µs; at this rate all are
/// split long before the next doubling, when the average has grown by as many.
const KEYS_PER_SPLIT: usize = 64;
/// Most bits of a bucket's number: enough for 268 million keys.
const LEVEL_MAX: u32 = 20;
/// Tags that are compared at once.
const TAGS_AT_ONCE: usize = 64;
/// One past the last [`position`].
pub(super) const POSITIONS: u64 = 1 << 32;

/// A path, or a default at a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    pub(super) path: Path,
    pub(super) default: bool,
}

impl Key {
    pub(super) fn hash(&self) -> KeyHash {
        KeyHash::of(self.path.as_str(), self.default)
    }
}

/// The position of a hash among all, in the order of buckets, however many there are.
pub(super) fn position(hash: KeyHash) -> u64 {
    hash.bucket(1 << 32) as u64
}

/// A path, or a default, and its terms. Its tag distinguishes paths and defaults.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Stored, in 16 bytes: computing it would load the path's text into the cache whenever a key
    /// is looked up or its bucket is split.
    pub(super) hash: KeyHash,
    pub(super) path: Path,
    pub(super) terms: CheckedTerms,
}

impl Entry {
    /// Whether its position is from `from` up to, not at, `end`.
    pub(super) fn is_within(&self, from: u64, end: u64) -> bool {
        (from..end).contains(&position(self.hash))
    }
}

#[derive(Default, Debug)]
struct Bucket {
    digest: Digest,
    /// Fifteen bits of each hash, and whether it is a default's: in an array of their own, so that
    /// one key of 256 is found in nine cache lines.
    tags: Vec<u16>,
    entries: Vec<Entry>,
}

/// Keys with their terms.
#[derive(Debug)]
pub(super) struct Buckets {
    level: u32,
    /// 2^level buckets. During a split those already split are empty.
    buckets: Vec<Bucket>,
    /// The first of the buckets of the next level: two for each that was split.
    finer: Vec<Bucket>,
    /// New keys since the last split.
    since_split: usize,
    len: usize,
}

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets {
            level: 0,
            buckets: vec![Bucket::default()],
            finer: Vec::new(),
            since_split: 0,
            len: 0,
        }
    }
}

impl Buckets {
    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Inserts a key; returns its earlier terms, if it was there.
    pub(super) fn insert(
        &mut self,
        hash: KeyHash,
        key: Key,
        terms: CheckedTerms,
    ) -> Option<CheckedTerms> {
        let bucket = self.bucket_mut(hash);
        let digest = terms.digest();
        let before = match bucket.find(hash, &key) {
            Some(at) => {
                let before = std::mem::replace(&mut bucket.entries[at].terms, terms);
                bucket.digest.remove(hash, before.digest());
                Some(before)
            }
            None => {
                if bucket.entries.len() == bucket.entries.capacity() {
                    // Doubling would leave a third of the memory of entries empty.
                    let more = (bucket.entries.len() / 4).max(4);
                    bucket.entries.reserve_exact(more);
                    bucket.tags.reserve_exact(more);
                }
                bucket.tags.push(tag(hash, key.default));
                bucket.entries.push(Entry { hash, path: key.path, terms });
                None
            }
        };
        bucket.digest.add(hash, digest);
        if before.is_none() {
            self.len += 1;
            self.split_next();
        }
        before
    }

    /// Removes a key; returns its terms, if it was there.
    pub(super) fn remove(&mut self, hash: KeyHash, key: &Key) -> Option<CheckedTerms> {
        let bucket = self.bucket_mut(hash);
        let at = bucket.find(hash, key)?;
        bucket.tags.swap_remove(at);
        let entry = bucket.entries.swap_remove(at);
        bucket.digest.remove(hash, entry.terms.digest());
        self.len -= 1;
        Some(entry.terms)
    }

    /// The terms of a key.
    pub(super) fn get(&self, hash: KeyHash, key: &Key) -> Option<&CheckedTerms> {
        let bucket = self.bucket_at(position(hash)).0;
        bucket.find(hash, key).map(|at| &bucket.entries[at].terms)
    }

    /// The key of a hash, true for a default.
    pub(super) fn by_hash(&self, hash: KeyHash) -> Option<(bool, &Entry)> {
        let bucket = self.bucket_at(position(hash)).0;
        let at = bucket.find_by(hash, |_| true)?;
        Some((bucket.tags[at] & 1 == 1, &bucket.entries[at]))
    }

    /// The keys of the bucket at `position`, true for defaults, and the position at which the next
    /// bucket begins.
    pub(super) fn keys_at(
        &self,
        position: u64,
    ) -> (impl ExactSizeIterator<Item = (bool, &Entry)>, u64) {
        let (bucket, bits) = self.bucket_at(position);
        (bucket.keys(), end_of(position, bits))
    }

    /// Removes the keys at the positions from `from` up to, not at, `end`.
    pub(super) fn clear(&mut self, from: u64, end: u64) {
        let mut at = from;
        while at < end && self.len > 0 {
            let next = end_of(at, self.bucket_at(at).1);
            let bucket = self.slot_mut(at);
            let mut gone = 0;
            for index in (0..bucket.entries.len()).rev() {
                if bucket.entries[index].is_within(from, end) {
                    let hash = bucket.entries[index].hash;
                    bucket.tags.swap_remove(index);
                    let entry = bucket.entries.swap_remove(index);
                    bucket.digest.remove(hash, entry.terms.digest());
                    gone += 1;
                }
            }
            self.len -= gone;
            at = next;
        }
    }

    /// The best number of hash bits for comparing digests: one bucket for about [`BUCKET_KEYS`]
    /// keys, as far as the buckets are split.
    pub(super) fn level(&self) -> u32 {
        let enough = (0..).find(|&level| self.len >> level <= BUCKET_KEYS * 3 / 2);
        enough.unwrap_or(LEVEL_MAX).min(self.level).min(RESOLVER_BUCKETS_MAX.ilog2())
    }

    /// The digests by the topmost `level` bits of the hash. Visits every bucket, and every key of
    /// larger ones.
    pub(super) fn digests(&self, level: u32) -> Vec<Digest> {
        let mut digests = vec![Digest::default(); 1 << level];
        let mut at = 0;
        while at < POSITIONS && self.len > 0 {
            let (bucket, bits) = self.bucket_at(at);
            if bits >= level {
                digests[(at >> (32 - level)) as usize].merge(bucket.digest);
            } else {
                for Entry { hash, terms, .. } in &bucket.entries {
                    digests[hash.bucket(1 << level)].add(*hash, terms.digest());
                }
            }
            at = end_of(at, bits);
        }
        digests
    }

    /// The bucket at `position`, and the bits of its number.
    fn bucket_at(&self, position: u64) -> (&Bucket, u32) {
        let (index, bits) = self.index(position);
        (if bits > self.level { &self.finer[index] } else { &self.buckets[index] }, bits)
    }

    fn slot_mut(&mut self, position: u64) -> &mut Bucket {
        let (index, bits) = self.index(position);
        if bits > self.level { &mut self.finer[index] } else { &mut self.buckets[index] }
    }

    fn bucket_mut(&mut self, hash: KeyHash) -> &mut Bucket {
        self.slot_mut(position(hash))
    }

    fn index(&self, position: u64) -> (usize, u32) {
        debug_assert!(position < POSITIONS, "{position} is past the last bucket");
        // Shifted by 12 bits at least: it fits any `usize`.
        let finer = (position >> (32 - self.level - 1)) as usize;
        if finer < self.finer.len() { (finer, self.level + 1) } else { (finer >> 1, self.level) }
    }

    /// Splits the next bucket, if there are too many keys for the number of buckets.
    fn split_next(&mut self) {
        let full = self.len > (BUCKET_KEYS * 3 / 2) << self.level && self.level < LEVEL_MAX;
        self.since_split += 1;
        if !full && self.finer.is_empty() || self.since_split < KEYS_PER_SPLIT {
            return;
        }
        self.since_split = 0;
        if self.finer.is_empty() {
            self.finer = Vec::with_capacity(2 << self.level);
        }
        let split = std::mem::take(&mut self.buckets[self.finer.len() / 2]);
        let buckets = 2usize << self.level;
        let upper = |hash: KeyHash| hash.bucket(buckets) & 1 == 1;
        let (mut low, mut high) = (Bucket::default(), Bucket::default());
        let above = split.entries.iter().filter(|entry| upper(entry.hash)).count();
        low.reserve(split.entries.len() - above);
        high.reserve(above);
        for (tag, entry) in split.tags.into_iter().zip(split.entries) {
            let half = if upper(entry.hash) { &mut high } else { &mut low };
            half.digest.add(entry.hash, entry.terms.digest());
            half.tags.push(tag);
            half.entries.push(entry);
        }
        self.finer.extend([low, high]);
        if self.finer.len() == buckets {
            self.level += 1;
            self.buckets = std::mem::take(&mut self.finer);
        }
    }
}

impl Bucket {
    fn find(&self, hash: KeyHash, key: &Key) -> Option<usize> {
        self.find_by(hash, |entry| entry.path == key.path)
    }

    fn find_by(&self, hash: KeyHash, is: impl Fn(&Entry) -> bool) -> Option<usize> {
        // The lowest bit is that of defaults, which the hash distinguishes too.
        let tag = tag(hash, true);
        for (row, tags) in self.tags.chunks(TAGS_AT_ONCE).enumerate() {
            // Without a branch for each tag: the compiler compares all of them in a few
            // instructions.
            if tags.iter().fold(false, |any, other| any | (*other | 1 == tag)) {
                let mut indexes = row * TAGS_AT_ONCE..row * TAGS_AT_ONCE + tags.len();
                let found = indexes.find(|&at| {
                    let entry = &self.entries[at];
                    self.tags[at] | 1 == tag && entry.hash == hash && is(entry)
                });
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    fn keys(&self) -> impl ExactSizeIterator<Item = (bool, &Entry)> {
        self.tags.iter().map(|tag| tag & 1 == 1).zip(&self.entries)
    }

    /// Reserves room for exactly `keys`.
    fn reserve(&mut self, keys: usize) {
        self.tags.reserve_exact(keys);
        self.entries.reserve_exact(keys);
    }
}

fn tag(hash: KeyHash, default: bool) -> u16 {
    // The lowest bits of the half that does not determine the bucket.
    hash.bits() as u16 & !1 | u16::from(default)
}

/// The end of the bucket with `bits` bits at `position`.
fn end_of(position: u64, bits: u32) -> u64 {
    ((position >> (32 - bits)) + 1) << (32 - bits)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use longshore_protocol::Terms;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn terms(weight: u16) -> CheckedTerms {
        CheckedTerms::new(Terms { weight, ..Terms::default() }).unwrap()
    }

    fn key(n: u32) -> Key {
        Key { path: Path::new(&format!("/jobs/mail/{n}")).unwrap(), default: n.is_multiple_of(7) }
    }

    fn check(buckets: &Buckets, model: &BTreeMap<Key, u16>) {
        assert_eq!(buckets.len(), model.len());
        for level in [0, 1, buckets.level(), buckets.level + 2] {
            let mut expected = vec![Digest::default(); 1 << level];
            for (key, &weight) in model {
                let hash = key.hash();
                expected[hash.bucket(1 << level)].add(hash, terms(weight).digest());
            }
            assert_eq!(buckets.digests(level), expected, "at {level} bits");
        }
        let (mut at, mut found) = (0, BTreeMap::new());
        while at < POSITIONS {
            let (keys, next) = buckets.keys_at(at);
            for (default, entry) in keys {
                let key = Key { path: entry.path.clone(), default };
                assert!((at..next).contains(&position(key.hash())));
                found.insert(key, entry.terms.weight);
            }
            at = next;
        }
        assert_eq!(found, *model);
    }

    #[test]
    fn digests_of_all_levels_match_the_keys_after_any_changes() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut buckets, mut model) = (Buckets::default(), BTreeMap::new());
        for round in 0..20 {
            for _ in 0..1_000 {
                let (key, weight) = (key(random.random_range(0..8_000)), random.random_range(1..4));
                let before = if random.random_bool(0.8) {
                    assert_eq!(
                        buckets.get(key.hash(), &key).map(|t| t.weight),
                        model.get(&key).copied()
                    );
                    (
                        buckets.insert(key.hash(), key.clone(), terms(weight)),
                        model.insert(key, weight),
                    )
                } else {
                    (buckets.remove(key.hash(), &key), model.remove(&key))
                };
                assert_eq!(before.0.map(|terms| terms.weight), before.1);
            }
            check(&buckets, &model);
            if round % 5 == 4 {
                let (from, end) = (
                    random.random_range(0..POSITIONS / 2),
                    random.random_range(POSITIONS / 2..POSITIONS),
                );
                buckets.clear(from, end);
                model.retain(|key, _| !(from..end).contains(&position(key.hash())));
                check(&buckets, &model);
            }
        }
        assert!(buckets.level >= 4, "{} bits for {} keys", buckets.level, buckets.len());
        while buckets.len() > 0 {
            let at = random.random_range(0..POSITIONS);
            let (keys, next) = buckets.keys_at(at);
            for (default, entry) in keys.filter(|(_, entry)| entry.is_within(at, next)) {
                let key = Key { path: entry.path.clone(), default };
                assert!(position(key.hash()) < next && model.remove(&key).is_some());
            }
            buckets.clear(at, next);
        }
        check(&buckets, &model);
    }

    /// A split moves a whole bucket: 512 keys under one lock must not cause 512 of them.
    #[test]
    fn few_buckets_are_split_with_many_keys() {
        let mut buckets = Buckets::default();
        // Each split removes one bucket of a level, so this counts all splits so far.
        let split = |buckets: &Buckets| (1 << buckets.level) - 1 + buckets.finer.len() / 2;
        for batch in 0..200 {
            let before = split(&buckets);
            for n in 512 * batch..512 * (batch + 1) {
                let key = key(n);
                buckets.insert(key.hash(), key, terms(1));
            }
            let now = split(&buckets) - before;
            assert!(now <= 512 / KEYS_PER_SPLIT, "{now} splits in batch {batch}");
        }
        assert!(split(&buckets) > 200, "{}", split(&buckets));
    }

    #[test]
    fn there_is_a_bucket_for_about_256_keys() {
        let mut buckets = Buckets::default();
        for n in 0..120_000 {
            let key = key(n);
            buckets.insert(key.hash(), key, terms(1));
            let each = buckets.len() >> buckets.level();
            // It is split while the average grows by another 64.
            let most = BUCKET_KEYS * 3 / 2 + KEYS_PER_SPLIT;
            assert!(each <= most, "{each} a bucket, of {n}");
        }
        assert_eq!(buckets.level(), 9);
        for key in [key(76), key(77)] {
            let (default, entry) = buckets.by_hash(key.hash()).unwrap();
            assert_eq!(Key { path: entry.path.clone(), default }, key);
        }
        assert!(buckets.by_hash(key(120_000).hash()).is_none());
    }
}
