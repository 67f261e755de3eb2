//! An index from hashes to numbers, in shards: growing one moves some thousand entries, not all of
//! them. And the hash of a path.

use hashbrown::HashTable;

/// The number of shards, as a power of two. With 16 million entries each has 16,384, and growing it
/// takes less than 1 ms.
const SHARD_BITS: u32 = 10;

/// Numbers by 32 bits of hash. Indexed objects store their hash, so that growing need not recompute
/// it.
#[derive(Debug)]
pub(super) struct Index {
    shards: Vec<HashTable<u32>>,
}

impl Index {
    pub(super) fn new() -> Index {
        Index { shards: (0..1 << SHARD_BITS).map(|_| HashTable::new()).collect() }
    }

    /// The entry with this hash for which `is` returns true.
    pub(super) fn find(&self, hash: u32, is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut is = is;
        self.shards[shard(hash)].find(spread(hash), |&entry| is(entry)).copied()
    }

    /// Adds an entry that is not there yet.
    pub(super) fn insert(&mut self, hash: u32, entry: u32, hash_of: impl Fn(u32) -> u32) {
        let hash_of = |&entry: &u32| spread(hash_of(entry));
        self.shards[shard(hash)].insert_unique(spread(hash), entry, hash_of);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, hash: u32, entry: u32) {
        let found = self.shards[shard(hash)].find_entry(spread(hash), |&other| other == entry);
        if let Ok(found) = found {
            found.remove();
        }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.shards.iter().flat_map(|shard| shard.iter().copied())
    }
}

/// Bits from the middle of the hash: a table uses the low bits for the position, and the top 7 for
/// a tag.
fn shard(hash: u32) -> usize {
    (hash >> (25 - SHARD_BITS)) as usize % (1 << SHARD_BITS)
}

fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// The hash of paths: segment by segment, so that the hashes of all ancestors are computed on the
/// way. Keyed with a secret that no client learns, so that nobody can prepare paths that all
/// collide: every lookup in their slot would walk through all of them. No answer shows a hash, nor
/// the order of the index. Folded products of words, because SipHash-1-3 made a resolution 12 %
/// slower: 627 instructions for a path of 23 bytes, where this takes 328.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathHasher {
    start: u64,
    word: u64,
    end: u64,
}

/// The hash of a path so far.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PathHash(u64);

/// The hash of a path, and what is known on the way to it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PathHashes {
    pub(super) own: PathHash,
    /// The hash of its parent.
    pub(super) above: PathHash,
    /// The offset of its last segment; 0 for the root.
    pub(super) name: usize,
}

impl PathHasher {
    pub(super) fn new(secret: [u8; 16]) -> PathHasher {
        let (low, high) = secret.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let (low, high) = (word(low), word(high));
        // Odd, with bits all over, whatever the secret.
        let key = |n: u64| mix(low ^ n, high ^ 0x9e37_79b9_7f4a_7c15) | 1;
        PathHasher {
            start: key(0x243f_6a88_85a3_08d3),
            word: key(0x1319_8a2e_0370_7344) ^ 0xa409_3822_299f_31d0,
            end: key(0x082e_fa98_ec4e_6c89) ^ 0x4528_21e6_38d0_1376,
        }
    }

    /// A secret word for other tables.
    pub(super) fn word(&self) -> u64 {
        mix(self.start, self.end)
    }

    /// The hash of the root.
    pub(super) fn root(&self) -> PathHash {
        PathHash(self.start)
    }

    /// The hash of the child with this segment.
    pub(super) fn below(&self, above: PathHash, segment: &[u8]) -> PathHash {
        let mut hash = above.0;
        let (words, tail) = segment.as_chunks::<8>();
        for word in words {
            hash = mix(hash ^ u64::from_le_bytes(*word), self.word);
        }
        let last = match (tail.len(), segment.last_chunk::<8>()) {
            (0, _) => 0,
            (len, Some(last)) => u64::from_le_bytes(*last) >> (64 - 8 * len),
            (_, None) => tail.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
        PathHash(mix(hash ^ last, self.end))
    }

    /// The hashes of the text of a path; of any other bytes, those of some path.
    pub(super) fn path(&self, text: &[u8]) -> PathHashes {
        let mut hashes = PathHashes { own: self.root(), ..PathHashes::default() };
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let len = segment_len(rest);
            if len > 0 {
                let own = self.below(hashes.own, &rest[..len]);
                hashes = PathHashes { own, above: hashes.own, name: at };
            }
            at += len + 1;
        }
        hashes
    }
}

impl PathHash {
    /// The 32 bits that an [`Index`] uses.
    pub(super) fn short(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The bytes before the first slash, or all of them. It compares eight at a time.
fn segment_len(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let (words, tail) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let differ = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'/'));
        let slashes = differ.wrapping_sub(ONES) & !differ & (ONES << 7);
        if slashes != 0 {
            return 8 * index + slashes.trailing_zeros() as usize / 8;
        }
    }
    let slash = tail.iter().position(|&byte| byte == b'/');
    slash.map_or(text.len(), |slash| 8 * words.len() + slash)
}

/// The two halves of a product: every bit of the inputs affects every bit of the result.
pub(super) fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn hash(hasher: &PathHasher, segments: &[&str]) -> u32 {
        let below = |above, segment: &&str| hasher.below(above, segment.as_bytes());
        segments.iter().fold(hasher.root(), below).short()
    }

    #[test]
    fn similar_paths_spread_over_all_shards_and_two_replicas_hash_differently() {
        let hasher = PathHasher::new([7; 16]);
        let mut shards = vec![0; 1 << SHARD_BITS];
        let mut hashes = HashSet::new();
        for n in 0..100_000 {
            let hash = hash(&hasher, &["jobs", &format!("{}", n / 1_000), &format!("{n:020}")]);
            shards[shard(hash)] += 1;
            hashes.insert(hash);
        }
        assert!(hashes.len() > 99_990, "{} hashes of 32 bits", hashes.len());
        let (least, most) = (shards.iter().min(), shards.iter().max());
        assert!(least > Some(&50) && most < Some(&160), "{least:?} to {most:?} of 98 on average");
        for pair in [[&["ab", "c"], &["a", "bc"]], [&["a", "b"], &["b", "a"]]] {
            assert_ne!(hash(&hasher, pair[0]), hash(&hasher, pair[1]));
        }
        let other = PathHasher::new([8; 16]);
        assert_ne!(hash(&hasher, &["a"]), hash(&other, &["a"]));
    }

    #[test]
    fn entries_of_the_same_hash_are_distinguished() {
        let mut index = Index::new();
        for entry in 0..10 {
            index.insert(77, entry, |_| 77);
        }
        index.remove(77, 4);
        assert_eq!(index.find(77, |entry| entry == 5), Some(5));
        assert_eq!(index.find(77, |entry| entry == 4), None);
        assert_eq!(index.iter().count(), 9);
    }
}
