//! A bound on the extensions of deadlines for a replica's own stalls.

use std::time::{Duration, Instant};

/// The long-term part of time, one in so many, by which deadlines may be extended.
const REFILL_PART: i128 = 4;

/// After a stall a replica extends its publishers' deadlines, since none could be heard. A replica
/// that is slow all the time would do so for ever, and never detect a silent publisher. So the sum
/// of extensions is bounded: in any time `t`, by `t / 4` and twice `most`, whatever happens.
#[derive(Debug)]
pub(super) struct StallAllowance {
    /// Nanoseconds of extension left. Below 0 after one stall that was longer, which is granted
    /// whole.
    left: i128,
    most: i128,
    refilled_at: Instant,
}

impl StallAllowance {
    pub(super) fn new(now: Instant, most: Duration) -> StallAllowance {
        let most = nanos(most);
        StallAllowance { left: most, most, refilled_at: now }
    }

    /// Whether deadlines are extended by a stall of `gap` that ends now.
    pub(super) fn covers(&mut self, now: Instant, gap: Duration) -> bool {
        let passed = nanos(now.saturating_duration_since(self.refilled_at));
        self.refilled_at = now.max(self.refilled_at);
        self.left = (self.left + passed / REFILL_PART).min(self.most);
        let covers = self.left > 0;
        if covers {
            self.left -= nanos(gap).min(self.most);
        }
        covers
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}
