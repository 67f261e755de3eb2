//! What two sides compare, to learn whether they hold the same paths.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::RESOLVER_BUCKETS_MAX;
use crate::messages::resolver::Change;

/// The hash of a path, or of a default at a path: 128 bits, the same on both sides of every link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyHash {
    high: u64,
    low: u64,
}

impl KeyHash {
    /// Of a path's text, eight bytes a step: it is taken for every path that is registered.
    pub fn of(path: &str, default: bool) -> KeyHash {
        let kind = if default { Change::PublishDefault } else { Change::Publish };
        let text = path.as_bytes();
        let mut high = 0x9e37_79b9_7f4a_7c15 ^ u64::from(kind.code());
        let mut low = 0xc2b2_ae3d_27d4_eb4f ^ text.len() as u64;
        let mut step = |word: u64| {
            high = (high ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            high ^= high >> 32;
            low = (low.rotate_left(29) ^ word).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            low ^= low >> 29;
        };
        let (words, rest) = text.as_chunks::<8>();
        words.iter().for_each(|word| step(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            step(u64::from_le_bytes(word));
        }
        let high = mix(high ^ mix(low));
        KeyHash { high, low: mix(low ^ high) }
    }

    /// Its place among `buckets`, a power of two: its topmost bits. Of twice as many buckets, it is
    /// in one of the two that make up this one.
    pub fn bucket(self, buckets: usize) -> usize {
        debug_assert!(buckets.is_power_of_two(), "{buckets} buckets");
        match buckets.trailing_zeros() {
            0 => 0,
            // The result is less than `buckets`.
            bits => (self.high >> (64 - bits)) as usize,
        }
    }

    /// Bits that say nothing of the bucket: for tables of one's own.
    pub fn bits(self) -> u64 {
        self.low
    }

    /// What a digest adds for it. The sum of bare hashes would not tell *a on terms 1, b on terms
    /// 2* from *a on terms 2, b on terms 1*.
    fn on(self, terms: u64) -> u128 {
        let high = mix(self.high ^ terms);
        u128::from(high) << 64 | u128::from(mix(self.low ^ high))
    }
}

/// The finalizer of MurmurHash3.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

/// A digest of a set of paths and defaults, each with its terms: how many there are, and the sum of
/// their hashes. It changes by one addition for each that comes or goes, in any order; that of two
/// sets together is the sum of theirs.
///
/// It tells apart honest sets; it does not withstand an opponent, and need not: a publisher could
/// fool only itself. It is no key of a table either: whoever chooses paths chooses their buckets,
/// and a replica finds what is in one by a hash of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Digest {
    /// How many.
    pub count: u64,
    /// The sum of their hashes, modulo 2¹²⁸.
    pub sum: u128,
}

impl Digest {
    /// Counts a path, or a default, in. `terms` is [`crate::Terms::digest`].
    pub fn add(&mut self, key: KeyHash, terms: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(key.on(terms));
    }

    /// Counts it out.
    pub fn remove(&mut self, key: KeyHash, terms: u64) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(key.on(terms));
    }

    /// Counts a whole set in, of which nothing is in this one.
    pub fn join(&mut self, other: Digest) {
        self.count = self.count.wrapping_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Counts a whole set out, of which everything is in this one.
    pub fn part(&mut self, other: Digest) {
        self.count = self.count.wrapping_sub(other.count);
        self.sum = self.sum.wrapping_sub(other.sum);
    }

    /// The digests of fewer, larger buckets; both numbers are powers of two. Fewer digests than
    /// that stay as they are.
    pub fn fold(digests: &[Digest], buckets: usize) -> Vec<Digest> {
        let each = (digests.len() / buckets.max(1)).max(1);
        let sum = |some: &[Digest]| {
            some.iter().fold(Digest::default(), |mut all, digest| {
                all.join(*digest);
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

/// The digests of all buckets: a power of two of them, or none where nothing is compared.
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
    fn the_order_in_which_paths_came_and_those_that_went_leave_no_trace() {
        let mut coming_and_going = digest(&[("/b", true), ("/c", false), ("/a", false)]);
        coming_and_going.remove(KeyHash::of("/c", false), Terms::default().digest());
        assert_eq!(coming_and_going, digest(&[("/a", false), ("/b", true)]));
    }

    #[test]
    fn sets_that_differ_have_digests_that_differ() {
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
    fn the_same_paths_on_terms_that_changed_places_differ() {
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
    fn paths_that_differ_in_one_byte_differ_in_about_half_of_their_bits() {
        let text = "/jobs/mail/welcome/0123456789ab";
        let one = KeyHash::of(text, false);
        for at in 1..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[at] ^= 1;
            let other = KeyHash::of(std::str::from_utf8(&other).unwrap(), false);
            let bits = (one.high ^ other.high).count_ones() + (one.low ^ other.low).count_ones();
            assert!((32..=96).contains(&bits), "{bits} bits at byte {at}");
        }
        assert_ne!(KeyHash::of("/a", false), KeyHash::of("/a\0", false), "the length counts");
    }

    #[test]
    fn paths_that_are_counted_up_fill_the_buckets_evenly() {
        let mut counts = [0u32; 1_024];
        for n in 0..256 * 1_024 {
            counts[KeyHash::of(&format!("/jobs/mail/{n}"), false).bucket(1_024)] += 1;
        }
        // 256 on average; the deviation is 16.
        assert!(counts.iter().all(|count| (150..=362).contains(count)), "{counts:?}");
    }

    #[test]
    fn digests_of_fewer_buckets_are_sums_of_those_of_more() {
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
    fn the_hash_is_part_of_the_protocol() {
        let digest = digest(&[("/jobs/mail", false), ("/jobs", true)]);
        assert_eq!(
            format!("{} {:032x}", digest.count, digest.sum),
            "2 20cb0ce244e884562f34134ba3cd4c73"
        );
        assert_eq!(KeyHash::of("/jobs/mail", false).bucket(16_384), 10345);
    }
}
