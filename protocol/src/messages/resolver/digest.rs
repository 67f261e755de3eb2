//! What two sides compare, to learn whether they hold the same paths.

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::messages::resolver::Change;
use crate::path::Path;

/// A digest of a set of paths and defaults: how many there are, and the sum of their hashes. It changes by one addition for
/// each path that comes or goes, in any order.
///
/// It tells apart honest sets; it does not withstand an opponent, and need not: a publisher could fool only itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Digest {
    /// How many.
    pub count: u64,
    /// The sum of their hashes, modulo 2¹²⁸.
    pub sum: u128,
}

impl Digest {
    /// Counts a path, or a default, in.
    pub fn add(&mut self, path: &Path, default: bool) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(hash(path, default));
    }

    /// Counts a path, or a default, out.
    pub fn remove(&mut self, path: &Path, default: bool) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(hash(path, default));
    }
}

/// FNV-1a of 128 bits over one byte ([`Change::Publish`] or [`Change::PublishDefault`] as on the wire) and the path, then mixed: the sum
/// of bare FNV hashes would not tell `{a1, b2}` from `{a2, b1}`.
fn hash(path: &Path, default: bool) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let kind = if default { Change::PublishDefault } else { Change::Publish };
    let mut fnv = BASIS;
    for byte in std::iter::once(kind.code()).chain(path.as_str().bytes()) {
        fnv = (fnv ^ u128::from(byte)).wrapping_mul(PRIME);
    }
    let (high, low) = ((fnv >> 64) as u64, fnv as u64);
    let high = mix(high ^ mix(low));
    let low = mix(low ^ high);
    u128::from(high) << 64 | u128::from(low)
}

/// The finalizer of MurmurHash3.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
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

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(paths: &[(&str, bool)]) -> Digest {
        let mut digest = Digest::default();
        for (path, default) in paths {
            digest.add(&Path::new(path).unwrap(), *default);
        }
        digest
    }

    #[test]
    fn the_order_in_which_paths_came_and_those_that_went_leave_no_trace() {
        let mut coming_and_going = digest(&[("/b", true), ("/c", false), ("/a", false)]);
        coming_and_going.remove(&Path::new("/c").unwrap(), false);
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
    fn the_hash_is_part_of_the_protocol() {
        let digest = digest(&[("/jobs/mail", false), ("/jobs", true)]);
        assert_eq!(
            format!("{} {:032x}", digest.count, digest.sum),
            "2 595b98a2fb3d60df7b69390130687b44"
        );
    }
}
