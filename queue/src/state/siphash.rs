//! SipHash-1-3 (Aumasson, Bernstein 2012) of 16 bytes: without its key nobody can choose ids that share a place in an index.
//! The standard library's tables use the same function, but let nobody set its key.

/// A key of 128 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SipKey(u64, u64);

impl SipKey {
    pub(super) fn new(secret: &[u8; 16]) -> SipKey {
        let [first, second] = words(secret);
        SipKey(first, second)
    }

    #[inline]
    pub(super) fn hash(self, bytes: &[u8; 16]) -> u64 {
        self.sip::<1, 3>(bytes)
    }

    /// SipHash with so many rounds for each word, and at the end.
    #[inline]
    fn sip<const EACH: usize, const LAST: usize>(self, bytes: &[u8; 16]) -> u64 {
        let SipKey(first, second) = self;
        let mut v = [
            first ^ 0x736f_6d65_7073_6575,
            second ^ 0x646f_7261_6e64_6f6d,
            first ^ 0x6c79_6765_6e65_7261,
            second ^ 0x7465_6462_7974_6573,
        ];
        let [a, b] = words(bytes);
        // The last word is the length.
        for word in [a, b, 16 << 56] {
            v[3] ^= word;
            rounds::<EACH>(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        rounds::<LAST>(&mut v);
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_le_bytes(*bytes);
    [whole as u64, (whole >> 64) as u64]
}

#[inline]
fn rounds<const N: usize>(v: &mut [u64; 4]) {
    for _ in 0..N {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    fn counted(from: u8) -> [u8; 16] {
        std::array::from_fn(|n| from + n as u8)
    }

    /// The paper's key and the reference implementation's message of 16 bytes.
    #[test]
    fn siphash_2_4_gives_the_reference_vector() {
        let key = SipKey::new(&counted(0));
        assert_eq!(key.sip::<2, 4>(&counted(0)), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn siphash_1_3_without_a_key_is_the_standard_librarys() {
        for from in [0, 1, 7, 200] {
            let mut hasher = DefaultHasher::new();
            hasher.write(&counted(from));
            assert_eq!(SipKey::default().hash(&counted(from)), hasher.finish(), "{from}");
        }
    }
}
