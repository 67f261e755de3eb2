//! Subscriptions to all values that match a glob.

use std::collections::BTreeMap;

use longshore_protocol::messages::values::Policy;
use longshore_protocol::{Glob, Path};
use longshore_resolver::WatchEnded;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use super::harness::{DialBehavior, Harness, path};
use super::random_disconnects::long::long;
use super::*;
use crate::values::MatchEvent;
use crate::values::link::IDLE_CLOSE_AFTER;
use crate::values::matching::GenericMatching;

const PUBLISHERS: u8 = 3;

/// The state of each path that has arrived and not gone: its last value, as events report it.
#[derive(Default)]
struct Model {
    paths: BTreeMap<String, Option<u64>>,
    whole: bool,
}

impl Model {
    fn apply(&mut self, event: MatchEvent) {
        let entry = |paths: &mut BTreeMap<String, Option<u64>>, path: &Path| {
            *paths.get(path.as_str()).unwrap_or_else(|| panic!("{path} has not arrived"))
        };
        match event {
            MatchEvent::Arrived(path) => {
                let before = self.paths.insert(path.as_str().to_owned(), None);
                assert_eq!(before, None, "{path} arrived twice");
            }
            MatchEvent::Update(path, value) => {
                let Value::U64(value) = value else { panic!("{value:?}") };
                let before = entry(&mut self.paths, &path);
                assert!(before.is_none_or(|before| before <= value), "{value} after {before:?}");
                self.paths.insert(path.as_str().to_owned(), Some(value));
            }
            MatchEvent::Dead(path, _) => {
                entry(&mut self.paths, &path);
            }
            MatchEvent::Gone(path) => {
                let before = self.paths.remove(path.as_str());
                assert!(before.is_some(), "{path} went without having arrived");
            }
            MatchEvent::Whole { .. } => self.whole = true,
        }
    }

    async fn read(&mut self, matching: &mut GenericMatching<Harness>) {
        let next = std::future::poll_fn(|context| matching.poll_next(context)).await;
        self.apply(next.expect("the watch stands").expect("no limit is reached"));
    }
}

/// Values come and go at three publishers, which crash and disconnect; the resolver is away now and
/// then. Each path's events are in order, and finally those that exist have their last value.
async fn run_scenario(seed: u64, steps: u32) {
    let mut random = StdRng::seed_from_u64(seed);
    let harness = Harness::default();
    (1..=PUBLISHERS).for_each(|n| harness.publish(n, &[("/v/always", 0), ("/other", 0)]));
    let subscriber = harness.subscriber(seed);
    let glob = Glob::new("/v/*").unwrap();
    let mut matching = GenericMatching::new(subscriber, glob, Policy::Conflate);
    let (mut model, mut published) =
        (Model::default(), BTreeMap::from([("/v/always".to_owned(), 0)]));
    let mut last = 0;
    for _ in 0..steps {
        let at = format!("/v/{}", random.random_range(0..10));
        let publisher = random.random_range(1..=PUBLISHERS);
        last += 1;
        match random.random_range(0..12u8) {
            0..=3 => {
                // All publishers of a path have the same value.
                published.insert(at.clone(), last);
                (1..=PUBLISHERS).for_each(|n| harness.publish_update(n, &[(&at, last)]));
            }
            4 => {
                published.remove(&at);
                (1..=PUBLISHERS).for_each(|n| harness.unpublish(n, &at));
            }
            5 => harness.crash(publisher),
            6 => harness.disconnect(publisher, "broken pipe"),
            7 => harness.set_resolver_down(random.random()),
            8 => {
                let after = Duration::from_millis(random.random_range(0..400));
                harness.with(publisher, |one| one.dial_behavior = DialBehavior::Answers(after));
            }
            9 => sleep(Duration::from_millis(random.random_range(0..300))).await,
            _ => {
                tokio::select! {
                    () = model.read(&mut matching) => {}
                    () = sleep(Duration::from_millis(1)) => {}
                }
            }
        }
    }
    harness.set_resolver_down(false);
    for n in 1..=PUBLISHERS {
        harness.with(n, |one| one.dial_behavior = DialBehavior::Answers(Duration::ZERO));
    }
    let expected: BTreeMap<_, _> = published.into_iter().map(|(at, n)| (at, Some(n))).collect();
    let settled = async {
        while !model.whole || model.paths != expected {
            model.read(&mut matching).await;
        }
    };
    tokio::time::timeout(seconds(600), settled).await.expect("the last values arrive");
    for (at, value) in expected {
        assert_eq!(matching.last(&path(&at)), value.map(Value::U64));
    }
}

#[tokio::test(start_paused = true)]
async fn matching_values_are_followed_over_arrivals_departures_and_disconnects() {
    let (seeds, steps) = if long() { (200, 1_000) } else { (10, 300) };
    for seed in 0..seeds {
        run_scenario(seed, steps).await;
    }
}

#[tokio::test(start_paused = true)]
async fn arrivals_are_subscribed_together_and_all_end_with_the_watch() {
    let harness = Harness::default();
    let values: Vec<(String, u64)> = (0..500).map(|n| (format!("/v/{n}"), n)).collect();
    let values: Vec<(&str, u64)> = values.iter().map(|(at, n)| (at.as_str(), *n)).collect();
    harness.publish(1, &values);
    let glob = Glob::new("/v/**").unwrap();
    let mut matching = GenericMatching::new(harness.subscriber(1), glob, Policy::Conflate);
    let mut model = Model::default();
    while model.paths.len() < 500 || model.paths.values().any(Option::is_none) {
        within_an_hour(model.read(&mut matching)).await;
    }
    assert_eq!(harness.resolve_requests().len(), 1);
    assert_eq!(harness.with(1, |publisher| publisher.subscribe_requests.clone()), [500]);

    harness.end_watches(WatchEnded::TooManyPaths { limit: 500 });
    let mut next =
        async || within_an_hour(std::future::poll_fn(|context| matching.poll_next(context))).await;
    assert_eq!(next().await, Some(Err(WatchEnded::TooManyPaths { limit: 500 })));
    assert_eq!(next().await, None);
    sleep(2 * IDLE_CLOSE_AFTER).await;
    assert_eq!(harness.links(1), 0);
}

/// The watch has moved to a replica that the publisher cannot reach.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_listed_stays_while_its_publisher_sends() {
    let harness = Harness::default();
    harness.publish(1, &[("/v/a", 1)]);
    let glob = Glob::new("/v/*").unwrap();
    let mut matching = GenericMatching::new(harness.subscriber(1), glob, Policy::Conflate);
    let mut model = Model::default();
    let mut until = async |model: &mut Model, value: Option<u64>| {
        while model.paths.get("/v/a").copied().flatten() != value {
            within_an_hour(model.read(&mut matching)).await;
        }
    };
    until(&mut model, Some(1)).await;
    for (value, listed) in [(2, false), (3, true), (4, false)] {
        harness.with(1, |publisher| publisher.listed = listed);
        sleep(seconds(1)).await;
        harness.publish_update(1, &[("/v/a", value)]);
        until(&mut model, Some(value)).await;
    }
    harness.crash(1);
    until(&mut model, None).await;
    assert!(model.paths.is_empty(), "it goes with its publisher");
}
