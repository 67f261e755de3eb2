//! A rate with a burst, exact in log order: the generic cell rate algorithm (ITU-T I.371).
//!
//! A bucket stores one time, the *arrival*: when all units taken so far would have come in at the
//! rate. Units fit while the arrival is at most a burst ahead of the clock. Nothing runs between
//! deliveries, and no unit is given back.

use longshore_protocol::JobRate;

const NS_PER_MS: u64 = 1_000_000;

/// When something may be delivered. Sorted: the later is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Opening {
    Now,
    /// At that time, in monotonic milliseconds.
    At(u64),
    /// Not before other jobs have been delivered, or have ended.
    Later,
}

/// The time of one unit in nanoseconds, rounded up: never faster than the rate.
fn unit_ns(rate: &JobRate) -> u64 {
    rate.per_ms.saturating_mul(NS_PER_MS).div_ceil(u64::from(rate.units.max(1)))
}

/// The arrival of a bucket whose rate is now this one: at most a burst ahead of the clock.
pub(super) fn changed(rate: &JobRate, arrival: u64, now_ms: u64) -> u64 {
    let burst_ns = u64::from(rate.burst).saturating_mul(unit_ns(rate));
    arrival.min(now_ms.saturating_mul(NS_PER_MS).saturating_add(burst_ns))
}

/// When `cost` units fit behind `ahead` others that have not started. Units beyond the burst count
/// as the whole of it.
pub(super) fn opening(rate: &JobRate, arrival: u64, ahead: u64, cost: u64, now_ms: u64) -> Opening {
    let burst = u64::from(rate.burst);
    let units = ahead.saturating_add(cost.min(burst));
    if units > burst {
        return Opening::Later;
    }
    let (unit_ns, now_ns) = (unit_ns(rate), now_ms.saturating_mul(NS_PER_MS));
    let (burst_ns, units_ns) = (burst.saturating_mul(unit_ns), units.saturating_mul(unit_ns));
    let arrival = arrival.max(now_ns);
    let at_ns = arrival.saturating_add(units_ns).saturating_sub(burst_ns);
    if at_ns <= now_ns { Opening::Now } else { Opening::At(at_ns.div_ceil(NS_PER_MS)) }
}

/// The arrival after `cost` units have started.
pub(super) fn take(rate: &JobRate, arrival: u64, cost: u64, now_ms: u64) -> u64 {
    let (unit_ns, now_ns) = (unit_ns(rate), now_ms.saturating_mul(NS_PER_MS));
    let cost = cost.min(u64::from(rate.burst));
    arrival.max(now_ns).saturating_add(cost.saturating_mul(unit_ns))
}

/// The first millisecond at which the bucket has its whole burst again.
pub(super) fn full_at_ms(arrival: u64) -> u64 {
    arrival.div_ceil(NS_PER_MS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A checker that knows nothing of arrivals counts the units of every window.
        #[test]
        fn no_window_exceeds_rate_times_time_plus_burst(
            units in 1..200_u32,
            per_ms in 1..5_000_u64,
            burst in 1..50_u32,
            start in 0..10_000_u64,
            tries in prop::collection::vec((0..100_u64, 1..60_u64), 1..200),
        ) {
            let rate = JobRate { units, per_ms, burst };
            let (mut now, mut arrival, mut taken) = (start, 0, Vec::<(u64, u64)>::new());
            for (wait, cost) in tries {
                now += wait;
                if let Opening::At(at) = opening(&rate, arrival, 0, cost, now) {
                    prop_assert!(at > now);
                    prop_assert_ne!(opening(&rate, arrival, 0, cost, at - 1), Opening::Now);
                    prop_assert_eq!(opening(&rate, arrival, 0, cost, at), Opening::Now);
                    continue;
                }
                arrival = take(&rate, arrival, cost, now);
                taken.push((now, cost.min(u64::from(burst))));
                let mut sum = 0;
                for &(at, cost) in taken.iter().rev() {
                    sum += cost;
                    let allowed = (now - at) * u64::from(units) + u64::from(burst) * per_ms;
                    prop_assert!(sum * per_ms <= allowed, "{} since {}", sum, at);
                }
            }
            let full = full_at_ms(arrival);
            prop_assert!(full <= now + (u64::from(burst) * per_ms).div_ceil(u64::from(units)) + 1);
        }
    }

    #[test]
    fn a_fully_loaded_bucket_reaches_its_rate() {
        let rate = JobRate { units: 100, per_ms: 1_000, burst: 10 };
        let (mut arrival, mut taken) = (0, 0);
        for now in 0..600_000 {
            while opening(&rate, arrival, 0, 1, now) == Opening::Now {
                arrival = take(&rate, arrival, 1, now);
                taken += 1;
            }
        }
        assert!((60_000..=60_010).contains(&taken), "{taken}");
    }
}
