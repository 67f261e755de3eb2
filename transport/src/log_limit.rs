//! A rate limit for one kind of log line. Pure.

use std::time::{Duration, Instant};

/// Admits a number of lines in each period, and counts the suppressed ones.
#[derive(Debug)]
pub struct LogLimit {
    lines_max: u32,
    period: Duration,
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    /// Admits at most `lines_max` lines in each `period`, which begins with its first line.
    pub const fn new(lines_max: u32, period: Duration) -> LogLimit {
        LogLimit { lines_max, period, since: None, lines: 0, left_out: 0 }
    }

    /// Admits or suppresses a line at `now`. If it is admitted: the number of lines suppressed
    /// since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= self.period) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines >= self.lines_max {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// From now on the suppressed lines of another limit are its own.
    pub(crate) fn take_over(&mut self, other: &mut LogLimit) {
        self.left_out += std::mem::take(&mut other.left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_of_a_period_are_counted() {
        let (start, period) = (Instant::now(), Duration::from_secs(10));
        let mut limit = LogLimit::new(10, period);
        for _ in 0..10 {
            assert_eq!(limit.admit(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit(start + period - Duration::from_nanos(1)), None);
        }
        assert_eq!(limit.admit(start + period), Some(7));
        assert_eq!(limit.admit(start + period), Some(0));
        let mut one = LogLimit::new(1, period);
        assert_eq!((one.admit(start), one.admit(start)), (Some(0), None));
        assert_eq!((one.admit(start + period), one.admit(start + period)), (Some(1), None));
    }
}
