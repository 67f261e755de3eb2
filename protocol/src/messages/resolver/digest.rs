//! Digests that two sides compare to find out whether they have the same paths.

use twox_hash::XxHash3_128;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::RESOLVER_BUCKETS_MAX;
use crate::messages::resolver::Change;

/// The hash of a path, or of a default at a path: 128 bits, the same on both sides of every link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyHash(u128);

impl KeyHash {
    /// XXH3-128 of a path's text; paths and defaults have different seeds.
    pub fn of(path: &str, default: bool) -> KeyHash {
        let kind = if default { Change::PublishDefault } else { Change::Publish };
        KeyHash(XxHash3_128::oneshot_with_seed(u64::from(kind.code()), path.as_bytes()))
    }

    /// Returns its bucket among `buckets`, a power of two: its topmost bits. With twice as many
    /// buckets, each bucket is split in two.
    pub fn bucket(self, buckets: usize) -> usize {
        debug_assert!(buckets.is_power_of_two(), "{buckets} buckets");
        match buckets.trailing_zeros() {
            0 => 0,
            // The result is less than `buckets`.
            bits => (self.0 >> (128 - bits)) as usize,
        }
    }

    /// Bits that are independent of the bucket, for the caller's own hash tables.
    pub fn bits(self) -> u64 {
        self.0 as u64
    }

    /// The summand for a digest. A sum of bare hashes would not distinguish *a on terms 1, b on
    /// terms 2* from *a on terms 2, b on terms 1*.
    fn with_terms(self, terms: u64) -> u128 {
        XxHash3_128::oneshot_with_seed(terms, &self.0.to_le_bytes())
    }
}

/// A digest of a set of paths and defaults, each with its terms: their number, and the sum of their
/// hashes. Adding or removing one is one addition, in any order; the digest of a disjoint union is
/// the sum of both digests.
///
/// It distinguishes honest sets. It does not withstand an attacker, and need not: a publisher could
/// deceive only itself. Do not use it as a hash table key either: the author of a path can choose
/// its bucket, so a replica uses a different hash for its tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Digest {
    /// The number of elements.
    pub count: u64,
    /// The sum of their hashes, modulo 2¹²⁸.
    pub sum: u128,
}

impl Digest {
    /// Adds a path or a default. `terms` is [`crate::Terms::digest`].
    pub fn add(&mut self, key: KeyHash, terms: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(key.with_terms(terms));
    }

    /// Removes a path or a default.
    pub fn remove(&mut self, key: KeyHash, terms: u64) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(key.with_terms(terms));
    }

    /// Adds a whole disjoint set.
    pub fn merge(&mut self, other: Digest) {
        self.count = self.count.wrapping_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Removes a whole subset.
    pub fn part(&mut self, other: Digest) {
        self.count = self.count.wrapping_sub(other.count);
        self.sum = self.sum.wrapping_sub(other.sum);
    }

    /// Combines digests into fewer, larger buckets; both numbers are powers of two. If there are
    /// not more digests than that, they are returned unchanged.
    pub fn fold(digests: &[Digest], buckets: usize) -> Vec<Digest> {
        let each = (digests.len() / buckets.max(1)).max(1);
        let sum = |some: &[Digest]| {
            some.iter().fold(Digest::default(), |mut all, digest| {
                all.merge(*digest);
                all
            })
        };
        digests.chunks(each).map(sum).collect()
    }
}

/// The count, then the sum as 16 bytes, little-endian.
impl Encode for Digest {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.count);
        out.put(&self.sum.to_le_bytes());
    }
}

impl Decode for Digest {
    fn decode(r: &mut Reader) -> Result<Digest, WireError> {
        Ok(Digest { count: r.u64()?, sum: u128::from_le_bytes(r.id()?) })
    }
}

/// Reads the digests of all buckets: their number is a power of two, or zero if nothing is
/// compared.
pub(super) fn buckets(r: &mut Reader) -> Result<Vec<Digest>, WireError> {
    let invalid = r.invalid("number of digest buckets");
    let digests: Vec<Digest> = r.list("digest buckets", RESOLVER_BUCKETS_MAX)?;
    if digests.is_empty() || digests.len().is_power_of_two() { Ok(digests) } else { Err(invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::Terms;

    fn digest(paths: &[(&str, bool)]) -> Digest {
        let mut digest = Digest::default();
        for (path, default) in paths {
            digest.add(KeyHash::of(path, *default), Terms::default().digest());
        }
        digest
    }

    #[test]
    fn digests_ignore_order_and_removed_paths() {
        let mut changed = digest(&[("/b", true), ("/c", false), ("/a", false)]);
        changed.remove(KeyHash::of("/c", false), Terms::default().digest());
        assert_eq!(changed, digest(&[("/a", false), ("/b", true)]));
    }

    #[test]
    fn different_sets_have_different_digests() {
        assert_ne!(digest(&[("/a", false)]), digest(&[("/a", true)]));
        assert_ne!(digest(&[("/a", false)]), digest(&[("/b", false)]));
        for x in 'a'..='z' {
            for y in 'a'..='z' {
                if x != y {
                    let pair = |p: char, q: char| {
                        digest(&[(&format!("/{p}1"), false), (&format!("/{q}2"), false)])
                    };
                    assert_ne!(pair(x, y), pair(y, x), "{x} {y}");
                }
            }
        }
    }

    #[test]
    fn swapping_the_terms_of_two_paths_changes_the_digest() {
        let on = |a: u64, b: u64| {
            let mut digest = Digest::default();
            digest.add(KeyHash::of("/a", false), a);
            digest.add(KeyHash::of("/b", false), b);
            digest
        };
        assert_ne!(on(1, 2), on(2, 1));
        assert_ne!(on(1, 1), on(2, 2));
    }

    #[test]
    fn numbered_paths_fill_the_buckets_evenly() {
        let mut counts = [0u32; 1_024];
        for n in 0..256 * 1_024 {
            counts[KeyHash::of(&format!("/jobs/mail/{n}"), false).bucket(1_024)] += 1;
        }
        // 256 on average; the deviation is 16.
        assert!(counts.iter().all(|count| (150..=362).contains(count)), "{counts:?}");
    }

    #[test]
    fn digests_of_fewer_buckets_are_sums_of_finer_ones() {
        let mut fine = vec![Digest::default(); 16];
        let mut coarse = vec![Digest::default(); 4];
        for n in 0..100 {
            let key = KeyHash::of(&format!("/{n}"), n % 7 == 0);
            fine[key.bucket(16)].add(key, n);
            coarse[key.bucket(4)].add(key, n);
        }
        assert_eq!(Digest::fold(&fine, 4), coarse);
        assert_eq!(Digest::fold(&coarse, 16), coarse);
        let whole = Digest::fold(&fine, 1);
        assert_eq!(whole, Digest::fold(&coarse, 1));
        assert_eq!(whole[0].count, 100);
    }

    #[test]
    fn path_hashes_never_change() {
        let digest = digest(&[("/jobs/mail", false), ("/jobs", true)]);
        assert_eq!(
            format!("{} {:032x}", digest.count, digest.sum),
            "2 ca37b84bfc51f4a552adbb3fd491e65a"
        );
        assert_eq!(KeyHash::of("/jobs/mail", false).bucket(16_384), 13468);
    }
}
