//! Until when the jobs of a publisher are this worker's whatever becomes of its link: a publisher
//! that loses the link gives them to other workers after a grace. It lost the link no earlier than
//! it sent the last byte that came from it.

use std::time::Duration;

/// A link from which nothing came for this part of the grace may be lost. A link that stands brings
/// a heartbeat every 2 s.
const SILENCE_DIVISOR: u32 = 2;

/// What is known of a publisher's grace. Times are counted from the worker's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReconnectGrace {
    /// How long leases outlive their link there; unknown before it is attached.
    length: Option<Duration>,
    /// When the last byte came.
    last_byte: Duration,
}

impl ReconnectGrace {
    /// The publisher reported how long leases outlive their link.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = Some(length);
    }

    /// A byte came.
    pub(crate) fn byte_received(&mut self, at: Duration) {
        self.last_byte = self.last_byte.max(at);
    }

    /// True while no other worker can have been given what is held here: until then jobs may be
    /// begun.
    pub(crate) fn protects(&self, now: Duration) -> bool {
        self.ends().is_none_or(|ends| now < ends)
    }

    /// Until when a lease that ends at `lease_ends` is certain to hold.
    pub(crate) fn deadline(&self, now: Duration, linked: bool, lease_ends: Duration) -> Duration {
        let silent = |length: Duration| now >= self.last_byte + length / SILENCE_DIVISOR;
        match (self.ends(), self.length) {
            (Some(ends), Some(length)) if !linked || silent(length) => lease_ends.min(ends),
            _ => lease_ends,
        }
    }

    fn ends(&self) -> Option<Duration> {
        Some(self.last_byte.saturating_add(self.length?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_held_is_ones_own_until_the_grace_after_the_last_byte() {
        let mut grace = ReconnectGrace::default();
        assert!(grace.protects(at(1_000)), "nothing is known of its grace");
        grace.set_length(at(5));
        grace.byte_received(at(10));
        assert!(grace.protects(at(15) - Duration::from_nanos(1)));
        assert!(!grace.protects(at(15)));
        grace.byte_received(at(12));
        grace.byte_received(at(11));
        assert!(grace.protects(at(16)), "an older byte changes nothing");
        assert!(!grace.protects(at(17)));
    }

    #[test]
    fn a_deadline_is_the_leases_own_while_bytes_come_and_the_graces_otherwise() {
        let mut grace = ReconnectGrace::default();
        assert_eq!(grace.deadline(at(1), false, at(40)), at(40), "nothing is known of its grace");
        grace.set_length(at(6));
        grace.byte_received(at(10));
        assert_eq!(grace.deadline(at(12), true, at(40)), at(40));
        assert_eq!(grace.deadline(at(13), true, at(40)), at(16), "silent for half of the grace");
        assert_eq!(grace.deadline(at(11), false, at(40)), at(16), "without a link");
        assert_eq!(grace.deadline(at(11), false, at(14)), at(14), "over before");
    }
}
