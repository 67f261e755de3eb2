//! Back-off between attempts. Pure: the randomness is an argument.

use std::time::Duration;

/// What each failed attempt adds to the longest wait before the next.
pub const RETRY_STEP: Duration = Duration::from_millis(100);
/// The longest wait between attempts while no caller waits for the link.
pub const RETRY_WAIT_MAX: Duration = Duration::from_secs(12);
/// The longest wait while a caller does.
pub const RETRY_WAIT_BUSY_MAX: Duration = Duration::from_secs(2);
/// A link that lasted this long was no failed attempt: after its loss the count starts at zero.
pub const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The wait before `attempt`, counted from 1 (0: no wait): a random part of [`RETRY_STEP`] for each
/// attempt so far, at most `longest`. It is random so that clients that lost a server together do
/// not reconnect together. `random` is from the whole range of u64.
pub fn retry_wait(attempt: u32, longest: Duration, random: u64) -> Duration {
    let bound = RETRY_STEP.saturating_mul(attempt).min(longest);
    bound.mul_f64(random as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_wait_is_bounded_by_its_attempts_and_by_the_longest(
            random: u64, attempt in 0u32..1_000,
        ) {
            let wait = retry_wait(attempt, RETRY_WAIT_MAX, random);
            prop_assert!(wait <= RETRY_STEP * attempt && wait <= RETRY_WAIT_MAX);
        }
    }

    #[test]
    fn waits_are_spread_over_the_whole_range() {
        for tenth in 0..=10 {
            let wait = retry_wait(20, RETRY_WAIT_MAX, u64::MAX / 10 * u64::from(tenth));
            assert_eq!(wait.as_millis(), (2 * RETRY_STEP * tenth).as_millis());
        }
    }
}
