//! How long a publisher's jobs are certain to be this worker's. A publisher that loses the link
//! gives them to other workers after a grace. It lost the link no earlier than it sent the last
//! byte that arrived here.

use std::time::Duration;

/// A link that was silent for this fraction of the grace may be lost. A healthy link delivers a
/// heartbeat every 2 s.
const SILENCE_DIVISOR: u32 = 2;

/// A publisher's grace. Times count from the worker's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReconnectGrace {
    /// How long leases outlive their link there; unknown before it is attached.
    length: Option<Duration>,
    /// When the last byte arrived.
    last_byte: Duration,
}

impl ReconnectGrace {
    /// The publisher reported how long leases outlive their link.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = Some(length);
    }

    /// A byte arrived.
    pub(crate) fn byte_received(&mut self, at: Duration) {
        self.last_byte = self.last_byte.max(at);
    }

    /// True while no other worker can have received the jobs held here: until then jobs may start.
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
    fn jobs_are_owned_until_the_grace_after_the_last_byte() {
        let mut grace = ReconnectGrace::default();
        assert!(grace.protects(at(1_000)), "its grace is unknown");
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
    fn silence_shortens_the_deadline_to_the_grace() {
        let mut grace = ReconnectGrace::default();
        assert_eq!(grace.deadline(at(1), false, at(40)), at(40), "its grace is unknown");
        grace.set_length(at(6));
        grace.byte_received(at(10));
        assert_eq!(grace.deadline(at(12), true, at(40)), at(40));
        assert_eq!(grace.deadline(at(13), true, at(40)), at(16), "silent for half of the grace");
        assert_eq!(grace.deadline(at(11), false, at(40)), at(16), "without a link");
        assert_eq!(grace.deadline(at(11), false, at(14)), at(14), "over before");
    }
}
