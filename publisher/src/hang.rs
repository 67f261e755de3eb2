//! Detects a disk that neither fails nor answers. Nothing is acknowledged meanwhile, so nothing is
//! lost; but another publisher could serve the clients that wait. Pure: its input is the age of the
//! oldest command that is not yet durable.

use std::time::Duration;

/// A change of the disk's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HangChange {
    /// The disk hangs: no client is served until it recovers.
    Hung,
    /// The disk has recovered.
    Recovered,
}

/// Whether the disk hangs.
#[derive(Debug)]
pub(crate) struct HangDetector {
    after: Duration,
    hung: bool,
}

impl HangDetector {
    /// The disk hangs once a command has waited for `after`.
    pub(crate) fn after(after: Duration) -> HangDetector {
        HangDetector { after, hung: false }
    }

    /// True while it hangs.
    pub(crate) fn is_hung(&self) -> bool {
        self.hung
    }

    /// Updates the state from the age of the oldest command that is not yet durable; 0 for none.
    pub(crate) fn observe(&mut self, oldest: Duration) -> Option<HangChange> {
        // A hung disk has recovered only below half of the limit: a disk that takes 29 s per sync
        // would otherwise flap.
        let hung = if self.hung { oldest >= self.after / 2 } else { oldest >= self.after };
        let change = if hung { HangChange::Hung } else { HangChange::Recovered };
        (std::mem::replace(&mut self.hung, hung) != hung).then_some(change)
    }

    /// When to check again if nothing becomes durable before: when the oldest command would be too
    /// old. A later command cannot reach that age any sooner. `oldest` was observed.
    pub(crate) fn next_check_in(&self, oldest: Duration) -> Duration {
        match self.hung {
            // A recovery shows with the commit; this check is only a safeguard.
            true => self.after / 8,
            false => self.after.saturating_sub(oldest).max(Duration::from_millis(1)),
        }
    }

    /// The reason that clients receive and the log shows.
    pub(crate) fn reason(oldest: Duration) -> String {
        format!(
            "the publisher's disk hangs: its oldest command has not become durable for {} s; \
             nothing is acknowledged meanwhile",
            oldest.as_secs()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(30);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn disk_hangs_at_its_limit_and_recovers_below_half_of_it() {
        let mut hang = HangDetector::after(AFTER);
        assert_eq!((hang.observe(Duration::ZERO), hang.observe(AFTER - MS)), (None, None));
        assert!(!hang.is_hung());
        assert_eq!(hang.observe(AFTER), Some(HangChange::Hung));
        assert!(hang.is_hung());
        assert_eq!((hang.observe(AFTER * 3), hang.observe(AFTER / 2)), (None, None));
        assert_eq!(hang.observe(AFTER / 2 - MS), Some(HangChange::Recovered));
        assert!(!hang.is_hung());
        assert_eq!(hang.observe(AFTER / 2), None, "slow is not hanging");
        assert_eq!(hang.observe(AFTER), Some(HangChange::Hung), "and once more");
        assert_eq!(hang.observe(Duration::ZERO), Some(HangChange::Recovered));
    }

    #[test]
    fn next_check_is_when_the_oldest_may_be_too_old_never_at_once() {
        let mut hang = HangDetector::after(AFTER);
        assert_eq!(hang.next_check_in(Duration::ZERO), AFTER);
        for left in [20_000 * MS, 1_000 * MS, MS] {
            assert_eq!(hang.next_check_in(AFTER - left), left);
        }
        assert_eq!(hang.next_check_in(AFTER), MS);
        hang.observe(AFTER);
        for old in [AFTER - MS, AFTER, AFTER * 9] {
            assert_eq!(hang.next_check_in(old), AFTER / 8, "while it hangs");
        }
    }

    #[test]
    fn reason_contains_the_age() {
        let reason = HangDetector::reason(Duration::from_millis(31_900));
        assert!(reason.contains("hangs") && reason.contains("for 31 s"), "{reason}");
    }
}
