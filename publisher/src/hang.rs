//! A disk that neither fails nor answers. Nothing is acknowledged meanwhile, so nothing is lost;
//! but those who wait for this publisher could be served by another. Pure: it is told how old the
//! oldest command is that is not yet durable.

use std::time::Duration;

/// What has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turned {
    /// The disk hangs: nobody is served until it goes on.
    Hangs,
    /// It goes on.
    GoesOn,
}

/// Whether the disk hangs.
#[derive(Debug)]
pub(crate) struct Hang {
    after: Duration,
    hangs: bool,
}

impl Hang {
    /// It hangs once a command has waited for so long.
    pub(crate) fn after(after: Duration) -> Hang {
        Hang { after, hangs: false }
    }

    /// True while it hangs.
    pub(crate) fn is_on(&self) -> bool {
        self.hangs
    }

    /// The age of the oldest command that is not yet durable; 0 for none.
    pub(crate) fn look(&mut self, oldest: Duration) -> Option<Turned> {
        // Once it hung, half of that is not good enough to be trusted again: a disk that takes 29 s
        // for each sync would come and go.
        let hangs = if self.hangs { oldest >= self.after / 2 } else { oldest >= self.after };
        let turned = if hangs { Turned::Hangs } else { Turned::GoesOn };
        (std::mem::replace(&mut self.hangs, hangs) != hangs).then_some(turned)
    }

    /// When to look again if nothing becomes durable before: when the oldest command would be too
    /// old. One that is not there yet cannot be too old any sooner.
    pub(crate) fn look_in(&self, oldest: Duration) -> Duration {
        // While it hangs, a commit tells; to be safe it is looked at as often as before.
        self.after.saturating_sub(oldest).max(self.after / 8)
    }

    /// What clients are told, and what the log says.
    pub(crate) fn reason(oldest: Duration) -> String {
        format!(
            "the publisher's disk hangs: its oldest command has not become durable for {} s; nothing is acknowledged meanwhile",
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
    fn it_hangs_at_its_time_and_goes_on_once_the_oldest_is_young_again() {
        let mut hang = Hang::after(AFTER);
        assert_eq!((hang.look(Duration::ZERO), hang.look(AFTER - MS)), (None, None));
        assert!(!hang.is_on());
        assert_eq!(hang.look(AFTER), Some(Turned::Hangs));
        assert!(hang.is_on());
        assert_eq!((hang.look(AFTER * 3), hang.look(AFTER / 2)), (None, None));
        assert_eq!(hang.look(AFTER / 2 - MS), Some(Turned::GoesOn));
        assert!(!hang.is_on());
        assert_eq!(hang.look(AFTER / 2), None, "slow is not hanging");
        assert_eq!(hang.look(AFTER), Some(Turned::Hangs), "and once more");
        assert_eq!(hang.look(Duration::ZERO), Some(Turned::GoesOn));
    }

    #[test]
    fn it_is_looked_at_when_the_oldest_may_be_too_old_and_never_in_a_spin() {
        let hang = Hang::after(AFTER);
        assert_eq!(hang.look_in(Duration::ZERO), AFTER);
        assert_eq!(hang.look_in(Duration::from_secs(10)), Duration::from_secs(20));
        for old in [AFTER - MS, AFTER, AFTER * 9] {
            assert_eq!(hang.look_in(old), AFTER / 8);
        }
    }

    #[test]
    fn the_reason_tells_the_age() {
        let says = Hang::reason(Duration::from_millis(31_900));
        assert!(says.contains("hangs") && says.contains("for 31 s"), "{says}");
    }
}
