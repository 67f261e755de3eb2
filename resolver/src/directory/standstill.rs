//! How much a replica's own slowness may put off.

use std::time::{Duration, Instant};

/// Of the time that passes, one part in so many may be put off for ever.
const REFILL_PART: i128 = 4;

/// A replica that does not run for a while gives its publishers that time back: nobody could be
/// heard. One that is slow all the time would do so for ever, and never find anybody silent. What
/// is put off in all is therefore bounded: in any time `t`, `t / 4` and twice `most`, whatever
/// happens.
#[derive(Debug)]
pub(super) struct Grace {
    /// Nanoseconds that may be put off. Below 0 after one stand-still that was longer: that one is
    /// returned whole.
    left: i128,
    most: i128,
    refilled_at: Instant,
}

impl Grace {
    pub(super) fn new(now: Instant, most: Duration) -> Grace {
        let most = nanos(most);
        Grace { left: most, most, refilled_at: now }
    }

    /// Whether deadlines are put off by a stand-still of `gap` that ends now.
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
