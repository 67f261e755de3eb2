//! Waits, timeouts and back-off: exact at their bounds, and within them.

use std::time::Duration;

use longshore_protocol::limits::WAIT_MS_MAX;
use longshore_protocol::{Backoff, JobOptions, LinkTiming, ResolverTiming};
use proptest::prelude::*;

#[test]
fn request_timeouts_grow_with_the_batch_from_15_seconds() {
    let timing = ResolverTiming::default();
    let table = [(0, 15_000, 15_000), (1, 15_000, 15_000), (1_000, 15_000, 15_000)];
    let large =
        [(150_000, 15_000, 15_000), (300_000, 15_000, 30_000), (1_000_000, 50_000, 100_000)];
    for (operations, read, write) in table.into_iter().chain(large) {
        assert_eq!(timing.read_timeout(operations), Duration::from_millis(read), "{operations}");
        assert_eq!(timing.write_timeout(operations), Duration::from_millis(write), "{operations}");
    }
    assert!(timing.read_timeout(u64::MAX) > Duration::from_secs(1_000_000_000));
}

#[test]
fn retry_waits_are_between_1_and_12_seconds() {
    let timing = ResolverTiming::default();
    assert_eq!(timing.retry_wait(0), Duration::from_secs(1));
    assert_eq!(timing.retry_wait(u64::MAX), Duration::from_secs(12));
    let middle = timing.retry_wait(u64::MAX / 2);
    assert!(middle.abs_diff(Duration::from_millis(6_500)) < Duration::from_millis(1));
    assert_eq!(timing.heartbeat(), Duration::from_secs(60));
}

#[test]
fn extreme_settings_do_not_overflow() {
    let timing = ResolverTiming {
        retry_wait_min: Duration::MAX,
        retry_wait_max: Duration::MAX,
        ..ResolverTiming::default()
    };
    assert_eq!(timing.retry_wait(u64::MAX), Duration::MAX);
    let timing = ResolverTiming { retry_wait_min: Duration::ZERO, ..timing };
    assert!(timing.retry_wait(u64::MAX) > Duration::from_secs(1_000_000_000));
    let reversed = ResolverTiming {
        retry_wait_min: Duration::from_secs(9),
        retry_wait_max: Duration::from_secs(3),
        ..ResolverTiming::default()
    };
    assert_eq!(reversed.retry_wait(u64::MAX), Duration::from_secs(9));
}

#[test]
fn back_off_follows_its_curve() {
    let exponential = Backoff::Exponential { base_ms: 2_000, max_ms: 600_000 };
    let bounds = [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 600_000];
    for (n, bound) in (1..).zip(bounds) {
        assert_eq!(exponential.wait_ms(n, u64::MAX), bound, "attempt {n}");
        assert_eq!(exponential.wait_ms(n, 0), 0, "attempt {n}");
    }
    let linear = Backoff::Linear { step_ms: 500, max_ms: 1_200 };
    assert_eq!([1, 2, 3].map(|n| linear.wait_ms(n, 7)), [500, 1_000, 1_200]);
    let list = Backoff::List(vec![10, 20]);
    assert_eq!([1, 2, 3, u16::MAX].map(|n| list.wait_ms(n, 7)), [10, 20, 20, 20]);
    assert_eq!(Backoff::Fixed(9).wait_ms(u16::MAX, 7), 9);
    assert_eq!([0, u64::MAX].map(|r| Backoff::Hangfire.wait_ms(1, r)), [15_000, 44_000]);
    assert_eq!([0, u64::MAX].map(|r| Backoff::Hangfire.wait_ms(5, r)), [271_000, 416_000]);
}

#[test]
fn the_default_retries_25_times_over_about_three_weeks() {
    assert_eq!(Backoff::default(), Backoff::Quartic);
    assert_eq!(JobOptions::MAX_ATTEMPTS, 25);
    let table = [(1, 1), (2, 16), (3, 81), (4, 256), (5, 625), (10, 10_000), (24, 331_776)];
    for (n, seconds) in table {
        assert_eq!(Backoff::Quartic.wait_ms(n, u64::MAX / 2), seconds * 1_000, "after attempt {n}");
        assert_eq!(Backoff::Quartic.wait_ms(n, 0), seconds * 900, "after attempt {n}");
        assert_eq!(Backoff::Quartic.wait_ms(n, u64::MAX), seconds * 1_100, "after attempt {n}");
    }
    let sum = |random| (1..25).map(|n| Backoff::Quartic.wait_ms(n, random)).sum::<u64>();
    let hours = |ms: u64| ms / 3_600_000;
    assert_eq!(sum(u64::MAX / 2), 1_763_020_000, "20.4 days");
    assert_eq!((hours(sum(0)), hours(sum(u64::MAX))), (440, 538), "18.4 to 22.4 days");
    // An outage of half an hour uses six attempts, not all of them.
    let mut at = 0;
    let mut waits = (1..25).map(|n| Backoff::Quartic.wait_ms(n, u64::MAX / 2));
    let within = waits.by_ref().take_while(|wait| {
        at += wait;
        at <= 30 * 60_000
    });
    assert_eq!(within.count(), 5);
}

#[test]
fn full_jitter_is_uniform_over_the_whole_range() {
    let backoff = Backoff::Exponential { base_ms: 9, max_ms: 9 };
    let mut hits = [0u32; 10];
    for n in 0..10_000u64 {
        hits[backoff.wait_ms(1, n * (u64::MAX / 10_000)) as usize] += 1;
    }
    assert!(hits.iter().all(|&n| (999..=1_001).contains(&n)), "{hits:?}");
}

proptest! {
    #[test]
    fn back_off_never_overflows_or_exceeds_its_maximum(n: u16, random: u64, a: u32, b: u32) {
        let exponential = Backoff::Exponential { base_ms: a, max_ms: b };
        prop_assert!(exponential.wait_ms(n, random) <= u64::from(b));
        let linear = Backoff::Linear { step_ms: a, max_ms: b };
        prop_assert!(linear.wait_ms(n, random) <= u64::from(b));
        prop_assert_eq!(Backoff::Fixed(a).wait_ms(n, random), u64::from(a));
        prop_assert!(Backoff::Hangfire.wait_ms(n, random) <= WAIT_MS_MAX);
        prop_assert!(Backoff::Hangfire.wait_ms(n, random) >= 15_000);
        prop_assert!(Backoff::Quartic.wait_ms(n, random) <= WAIT_MS_MAX);
        prop_assert!(Backoff::List(vec![a, b]).wait_ms(n, random) <= u64::from(a.max(b)));
    }

    #[test]
    fn agreed_timing_is_valid_for_both_sides(
        a in (10u64..10_000, 1u64..10_000),
        b in (10u64..10_000, 1u64..10_000),
    ) {
        let timing = |(heartbeat, more)| LinkTiming {
            heartbeat: Duration::from_millis(heartbeat),
            hang: Duration::from_millis(heartbeat + more),
        };
        let (a, b) = (timing(a), timing(b));
        let agreed = a.agreed(b);
        prop_assert_eq!(agreed, b.agreed(a));
        prop_assert!(agreed.hang > agreed.heartbeat);
        prop_assert!(agreed.hang <= a.hang && agreed.hang <= b.hang);
        prop_assert!(agreed.heartbeat <= a.heartbeat && agreed.heartbeat <= b.heartbeat);
    }
}
