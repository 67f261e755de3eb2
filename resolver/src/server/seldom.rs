//! A bound on how often a thing that can happen often is said in the log. Pure.

use std::time::{Duration, Instant};

/// It is said once in that time at most.
const PERIOD: Duration = Duration::from_secs(10);

/// When it was said last, and how often it was not since.
#[derive(Default, Debug)]
pub(super) struct Seldom {
    said_at: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// Whether it may be said at `now`, and if so, how many were left out since the last one.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.said_at.is_some_and(|said| now.saturating_duration_since(said) < PERIOD) {
            self.left_out += 1;
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_in_ten_seconds_and_then_with_how_many_were_left_out() {
        let start = Instant::now();
        let mut seldom = Seldom::default();
        assert_eq!(seldom.admit(start), Some(0));
        for _ in 0..7 {
            assert_eq!(seldom.admit(start + PERIOD - Duration::from_nanos(1)), None);
        }
        assert_eq!(seldom.admit(start + PERIOD), Some(7));
        assert_eq!(seldom.admit(start + PERIOD), None);
        assert_eq!(seldom.admit(start + 2 * PERIOD), Some(1));
    }
}
