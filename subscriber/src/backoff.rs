//! How long to wait between tries: the rule that all durable subscriptions share. Pure: the randomness is an argument.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

/// What each try adds to the longest wait before the next.
pub(crate) const WAIT_STEP: Duration = Duration::from_millis(100);
/// The longest wait between tries.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(12);
/// A link that stood this long was no failed try: after its loss the count begins anew.
pub(crate) const STEADY: Duration = Duration::from_secs(1);

/// The wait before try `attempt`, counted from 1: random, between nothing and a hundred milliseconds for each try so far,
/// at most `longest`. Linear, as the fault-tolerance chapter has it; random, so that those who lost something together do
/// not come back together.
pub(crate) fn wait(attempt: u32, longest: Duration, random: &mut StdRng) -> Duration {
    WAIT_STEP.saturating_mul(attempt).min(longest).mul_f64(random.random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    proptest! {
        #[test]
        fn a_wait_is_at_most_a_hundred_milliseconds_for_each_try_and_twelve_seconds_in_all(
            seed: u64, attempt in 1u32..1_000,
        ) {
            let wait = wait(attempt, WAIT_MAX, &mut StdRng::seed_from_u64(seed));
            prop_assert!(wait <= WAIT_STEP * attempt && wait <= WAIT_MAX);
        }
    }

    #[test]
    fn waits_are_spread_over_the_whole_range() {
        let mut random = StdRng::seed_from_u64(7);
        let waits: Vec<Duration> = (0..1_000).map(|_| wait(20, WAIT_MAX, &mut random)).collect();
        for tenth in 0..10 {
            let (from, to) = (WAIT_STEP * 2 * tenth, WAIT_STEP * 2 * (tenth + 1));
            let within = waits.iter().filter(|wait| (from..to).contains(*wait)).count();
            assert!((60..=140).contains(&within), "{within} of 1,000 within {from:?} to {to:?}");
        }
    }
}
