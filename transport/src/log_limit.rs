//! A bound on how often strangers can make this process write to its log. Pure.

use std::time::{Duration, Instant};

/// Lines in one period.
const LINES_MAX: u32 = 10;
/// How long a period lasts.
const PERIOD: Duration = Duration::from_secs(10);

/// Counts lines by period.
#[derive(Debug)]
pub(crate) struct LogLimit {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    pub(crate) fn new(now: Instant) -> LogLimit {
        LogLimit { since: now, lines: 0, left_out: 0 }
    }

    /// Whether a line may be written at `now`, and if so, how many were left out since the last one.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= PERIOD {
            self.since = now;
            self.lines = 0;
        }
        if self.lines == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_in_ten_seconds_then_the_rest_is_counted() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        for _ in 0..10 {
            assert_eq!(limit.admit(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit(start + PERIOD - Duration::from_nanos(1)), None);
        }
        assert_eq!(limit.admit(start + PERIOD), Some(7));
        assert_eq!(limit.admit(start + PERIOD), Some(0));
    }
}
