//! The secret key of the hash of ids.

use super::rows::mix;

/// The key of the index of ids.
///
/// The hash multiplies the id's halves, each with half of the key added: NH of UMAC (Black, Halevi,
/// Krawczyk, Krovetz, Rogaway 1999), for which two ids, chosen without the key, have the same
/// 128-bit product for one key in 2⁶⁴. Folded to 64 bits it is good for an index, and for nothing
/// else. SipHash-1-3 took 7 % of a job's end-to-end cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdKey(u64, u64);

impl Default for IdKey {
    /// For a state without a secret, which has no ids yet. (With zeros all ids with a zero half
    /// would have one hash.)
    fn default() -> IdKey {
        IdKey::new(&[0x5a; 16])
    }
}

impl IdKey {
    pub(super) fn new(secret: &[u8; 16]) -> IdKey {
        let [first, second] = words(secret);
        IdKey(first, second)
    }

    #[inline]
    pub(super) fn hash(self, id: &[u8; 16]) -> u64 {
        let [a, b] = words(id);
        let (a, b) = (a.wrapping_add(self.0), b.wrapping_add(self.1));
        let product = u128::from(a) * u128::from(b);
        // The plain xor of both halves would be constant for all ids with a factor of 2⁶⁴ − 1.
        mix(mix(product as u64) ^ (product >> 64) as u64)
    }
}

#[inline]
fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_le_bytes(*bytes);
    [whole as u64, (whole >> 64) as u64]
}
