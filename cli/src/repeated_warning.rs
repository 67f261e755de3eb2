//! A warning that is logged at once, and again from time to time while its reason persists.

use std::time::{Duration, Instant};

/// How often a failure that lasts is logged again: whoever looks at the log of an hour sees it.
pub(crate) const FAILURE_EVERY: Duration = Duration::from_secs(60 * 60);

/// When a warning was last logged, and about what.
#[derive(Debug, Default)]
pub(crate) struct RepeatedWarning {
    last: Option<(String, Instant)>,
}

impl RepeatedWarning {
    /// Whether to log a warning about `what`: it is another one than before, or `every` has passed
    /// since it was logged. `None` if there is nothing to warn of any more.
    pub(crate) fn is_due(&mut self, what: Option<&str>, every: Duration, now: Instant) -> bool {
        let Some(what) = what else {
            self.last = None;
            return false;
        };
        let is_due = self
            .last
            .as_ref()
            .is_none_or(|(last, at)| last != what || now.saturating_duration_since(*at) >= every);
        if is_due {
            self.last = Some((what.to_owned(), now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_repeated_while_it_lasts() {
        let (began, every) = (Instant::now(), FAILURE_EVERY);
        let mut warning = RepeatedWarning::default();
        let mut is_due =
            |what, seconds| warning.is_due(what, every, began + Duration::from_secs(seconds));
        assert!(!is_due(None, 0));
        assert!(is_due(Some("a"), 1));
        assert!(!is_due(Some("a"), 3_600));
        assert!(is_due(Some("b"), 3_600), "another one");
        assert!(!is_due(Some("b"), 7_199));
        assert!(is_due(Some("b"), 7_200), "an hour later");
        assert!(!is_due(None, 7_201));
        assert!(is_due(Some("b"), 7_202), "it had ended");
    }
}
