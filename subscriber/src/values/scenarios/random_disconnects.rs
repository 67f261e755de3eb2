//! Random disconnects: every durable subscription receives published values in order, nothing else,
//! and finally the last value. The short version always runs; `LONGSHORE_LONG=1` runs 10,000
//! disconnects.

#[path = "../../../../tests/long.rs"]
pub(super) mod long;

use std::collections::BTreeMap;

use long::long;
use longshore_protocol::Value;
use longshore_protocol::messages::values::Policy;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use super::harness::{DialBehavior, Harness, path};
use super::*;
use crate::values::Updates;

const PATHS: usize = 20;
const PUBLISHERS: u8 = 3;

async fn run_scenario(seed: u64, disconnects: u32, policy: Policy) {
    let mut random = StdRng::seed_from_u64(seed);
    let harness = Harness::default();
    let paths: Vec<String> = (0..PATHS).map(|n| format!("/v/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 0)).collect();
    (1..=PUBLISHERS).for_each(|n| harness.publish(n, &values));
    let subscriber = harness.subscriber(seed);
    // Small, so that it is often full.
    let mut updates = Updates::new(8);
    let into = SubscribeOptions { into: Some(updates.sink()), policy, ..default_options() };
    let all = paths.iter().map(|at| path(at)).collect();
    let subscription = subscriber.durable_subscribe_all(all, &into);
    let mut newest: BTreeMap<_, u64> = BTreeMap::new();
    let mut read = |updates: &[crate::values::KeyedEvent]| {
        for (key, event) in updates {
            if let Event::Update(Value::U64(n)) = event {
                let before = newest.insert(*key, *n).unwrap_or(0);
                assert!(before <= *n, "{n} after {before}");
            }
        }
        newest.clone()
    };
    let mut published = vec![0; PATHS];
    let mut left = disconnects;
    while left > 0 {
        match random.random_range(0..10u8) {
            // All publishers of a path publish the same value.
            0..=4 => {
                let at = random.random_range(0..PATHS);
                for _ in 0..random.random_range(1..20u8) {
                    published[at] += 1;
                    for n in 1..=PUBLISHERS {
                        harness.publish_update(n, &[(&paths[at], published[at])]);
                    }
                }
            }
            5 => {
                left -= 1;
                let n = random.random_range(1..=PUBLISHERS);
                match random.random_range(0..3u8) {
                    0 => harness.crash(n),
                    _ => harness.disconnect(n, "broken pipe"),
                }
            }
            6 => {
                let n = random.random_range(1..=PUBLISHERS);
                let after = Duration::from_millis(random.random_range(0..400));
                harness.with(n, |publisher| publisher.dial_behavior = DialBehavior::Answers(after));
            }
            7 => {
                tokio::select! {
                    batch = updates.next() => { read(batch); }
                    () = sleep(Duration::from_millis(1)) => {}
                }
            }
            8 => sleep(Duration::from_millis(random.random_range(0..300))).await,
            _ => settle().await,
        }
    }
    for n in 1..=PUBLISHERS {
        harness
            .with(n, |publisher| publisher.dial_behavior = DialBehavior::Answers(Duration::ZERO));
    }
    let expected: BTreeMap<_, u64> =
        subscription.iter().map(|one| one.key()).zip(published).collect();
    let arrived = async { while read(updates.next().await) != expected {} };
    tokio::time::timeout(seconds(600), arrived).await.expect("the last values arrive");
    for durable in &subscription {
        durable.alive().await;
        assert_eq!(durable.last(), Some(Value::U64(expected[&durable.key()])));
    }
}

#[tokio::test(start_paused = true)]
async fn values_stay_in_order_over_random_disconnects() {
    let (seeds, disconnects) = if long() { (50, 100) } else { (4, 25) };
    for seed in 0..seeds {
        run_scenario(seed, disconnects, Policy::Conflate).await;
        run_scenario(seed, disconnects, Policy::DropOldest).await;
        run_scenario(seed, disconnects, Policy::Disconnect).await;
    }
}
