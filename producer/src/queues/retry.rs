//! Deadlines, and the waits between attempts.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

/// The longest wait: longer ones are reduced to 10 years.
const WAIT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
/// The wait before the second attempt.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// The longest wait between attempts.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The time at which `limit` is over.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    Instant::now() + limit.min(WAIT_MAX)
}

/// Exponential back-off from 50 ms to 2 s. Each wait is shortened by a random part of up to a half,
/// so that many clients of one publisher do not retry together.
#[derive(Debug, Default)]
pub(super) struct RetryBackoff {
    attempts: u32,
}

impl RetryBackoff {
    pub(super) fn next(&mut self) -> Duration {
        let whole = (RETRY_FIRST * (1 << self.attempts.min(10))).min(RETRY_MAX);
        self.attempts += 1;
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Resets the back-off if the attempt that started at `since` lasted long enough. An attempt
    /// that ends as soon as it starts is no better than a failed one.
    pub(super) fn reset_if_lasted(&mut self, since: Instant) {
        if since.elapsed() >= RETRY_MAX {
            self.attempts = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_attempts_are_retried_more_and_more_slowly() {
        let mut backoff = RetryBackoff::default();
        let waited = |backoff: &mut RetryBackoff| {
            let began = Instant::now();
            backoff.reset_if_lasted(began);
            backoff.next()
        };
        assert!(waited(&mut backoff) <= RETRY_FIRST);
        let slow = (0..8).map(|_| waited(&mut backoff)).last();
        assert!(slow.is_some_and(|wait| wait >= RETRY_MAX / 2 && wait <= RETRY_MAX), "{slow:?}");
        backoff.reset_if_lasted(Instant::now() - RETRY_MAX);
        assert!(backoff.next() <= RETRY_FIRST, "the attempt lasted");
    }
}
