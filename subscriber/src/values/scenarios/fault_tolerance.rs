//! The fault-tolerance rules between subscribers and publishers, one sentence of the specification
//! per row, as a subscriber of values observes them.
//!
//! | Sentence | Test |
//! |---|---|
//! | Publisher sends a heartbeat to every subscriber that is connected to it every 5 seconds. | `heartbeats_every_five_seconds_keep_a_link_alive` |
//! | Subscriber disconnects if it doesn't receive at least 1 message every 100 seconds. | `a_link_ends_after_exactly_a_hundred_silent_seconds` |
//! | Once a hang is detected it is dealt with by disconnecting, and it essentially becomes a crash. | `a_hung_link_is_treated_as_a_crash` |
//! | This will cause any subscriber that can't consume the flushed batch within the specified timeout to be disconnected. | `a_flush_timeout_is_reported_as_the_end_reason` |
//! | If `subscribe` is used then on being disconnected unexpectedly by the publisher all subscriptions are notified and marked as dead. | `a_disconnect_ends_every_subscription_of_the_link` |
//! | The library user is free to retry. | `a_lost_path_can_be_subscribed_again` |
//! | `durable_subscribe` will diligently keep trying to resubscribe, with linear backoff, until it is successful. | `a_durable_subscription_is_retried_with_linear_backoff` |
//! | Each retry will go through the entire process again, so it will eventually try all the publishers publishing a value, | `retries_resolve_again_and_reach_every_publisher`, `a_plain_subscription_reaches_every_publisher_too` |
//! | and it will pick up any new publishers that appear in the resolver server. | `a_new_publisher_is_picked_up` |

use std::collections::BTreeSet;

use longshore_protocol::messages::values::FromValuePublisher;
use longshore_protocol::{LinkTiming, PublisherId, Value};
use longshore_transport::{RETRY_STEP, RETRY_WAIT_MAX};
use tokio::time::{Instant, sleep};

use super::harness::{DialBehavior, Harness, path};
use super::*;
use crate::Subscriber;

#[tokio::test(start_paused = true)]
async fn heartbeats_every_five_seconds_keep_a_link_alive() {
    assert_eq!(Subscriber::builder().link.timing, LinkTiming::VALUES);
    assert_eq!(LinkTiming::VALUES.heartbeat, seconds(5));
    let harness = Harness::default();
    harness.publish(1, &[("/a", 7)]);
    let subscription =
        harness.subscriber(1).subscribe(path("/a"), &default_options()).await.unwrap();
    for _ in 0..720 {
        sleep(seconds(5)).await;
        harness.heartbeat(1);
    }
    assert!(subscription.is_alive());
    assert_eq!((harness.dials().len(), subscription.last()), (1, Value::U64(7)));
}

#[tokio::test(start_paused = true)]
async fn a_link_ends_after_exactly_a_hundred_silent_seconds() {
    assert_eq!(LinkTiming::VALUES.hang, seconds(100));
    let harness = Harness::default();
    harness.publish(1, &[("/a", 7)]);
    let mut subscription =
        harness.subscriber(1).subscribe(path("/a"), &default_options()).await.unwrap();
    sleep(seconds(10)).await;
    harness.publish_update(1, &[("/a", 8)]);
    let last = Instant::now();
    let dead = end_reason(&mut subscription).await;
    // Tokio's clock has a resolution of a millisecond: a timer fires up to one late, and never
    // early.
    let silent = last.elapsed();
    assert!(
        silent >= seconds(100) && silent < seconds(100) + Duration::from_millis(2),
        "{silent:?}"
    );
    assert!(dead.starts_with("the other side was silent for 100"), "{dead}");
    assert!(!subscription.is_alive());

    // The rule itself, without a clock that rounds.
    let start = std::time::Instant::now();
    let mut rule = longshore_transport::Liveness::new(start, LinkTiming::VALUES);
    rule.sent(start + seconds(100) - TICK);
    assert_eq!(rule.poll(start + seconds(100) - TICK), None);
    assert!(rule.poll(start + seconds(100)).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_hung_link_is_treated_as_a_crash() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let mut durable = harness.subscriber(1).durable_subscribe(path("/a"), &default_options());
    assert_eq!(next_value(&mut durable).await, 1);
    // The process is stopped: its link stays open and silent, and new dials hang.
    harness.with(1, |publisher| {
        publisher.silent = true;
        publisher.dial_behavior = DialBehavior::Hangs;
    });
    harness.publish(2, &[("/a", 2)]);
    let stopped = Instant::now();
    assert_eq!(next_value(&mut durable).await, 2);
    let took = stopped.elapsed();
    assert!(took >= seconds(100) && took < seconds(101), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flush_timeout_is_reported_as_the_end_reason() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 7)]);
    let mut subscription =
        harness.subscriber(1).subscribe(path("/a"), &default_options()).await.unwrap();
    harness.publish_update(1, &[("/a", 8)]);
    let reason = "it took no byte of a flushed batch for 1s".to_owned();
    harness.send(1, &FromValuePublisher::Goodbye { reason: reason.clone() });
    expect_update(&mut subscription, 7).await;
    expect_update(&mut subscription, 8).await;
    assert_eq!(
        end_reason(&mut subscription).await,
        format!("the publisher closed the link: {reason}")
    );
    assert_eq!(subscription.next().await, None);
    assert_eq!((subscription.is_alive(), subscription.last()), (false, Value::U64(8)));
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_ends_every_subscription_of_the_link() {
    let harness = Harness::default();
    let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 5)).collect();
    harness.publish(1, &values);
    let subscriber = harness.subscriber(1);
    let mut all = Vec::new();
    for at in &paths {
        all.push(subscriber.subscribe(path(at), &default_options()).await.unwrap());
    }
    // Two subscriptions of one path: both are notified.
    all.push(subscriber.subscribe(path(&paths[0]), &default_options()).await.unwrap());
    assert_eq!(harness.dials().len(), 1, "one link for all of them");
    harness.crash(1);
    for subscription in &mut all {
        expect_update(subscription, 5).await;
        assert_eq!(end_reason(subscription).await, "the other side closed the link");
        assert_eq!((subscription.is_alive(), subscription.last()), (false, Value::U64(5)));
        assert_eq!(subscription.next().await, None, "the end is reported once");
    }
    sleep(seconds(60)).await;
    assert_eq!(harness.dials().len(), 1, "a plain subscription is not retried");
}

#[tokio::test(start_paused = true)]
async fn a_lost_path_can_be_subscribed_again() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let subscriber = harness.subscriber(1);
    let mut subscription = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    harness.disconnect(1, "broken pipe");
    assert_eq!(end_reason(&mut subscription).await, "broken pipe");
    harness.publish_update(1, &[("/a", 2)]);
    let mut again = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    expect_update(&mut again, 2).await;
    assert_eq!((subscription.last(), again.last()), (Value::U64(1), Value::U64(2)));
}

#[tokio::test(start_paused = true)]
async fn a_durable_subscription_is_retried_with_linear_backoff() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let mut durable = harness.subscriber(1).durable_subscribe(path("/a"), &default_options());
    assert_eq!(durable.state(), ValueState::Pending);
    assert_eq!(next_value(&mut durable).await, 1);
    let ValueState::Alive { publisher, .. } = durable.state() else { panic!("alive") };
    assert_eq!(publisher, PublisherId([1; 16]));
    sleep(seconds(2)).await;
    harness.crash(1);
    let mut state = durable.watch_state();
    within_an_hour(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    let ValueState::Dead { since, .. } = durable.state() else { panic!("dead") };
    let (mut last, mut sum) = (Instant::now(), Duration::ZERO);
    for attempt in 2..=200 {
        within_an_hour(state.wait_for(|state| attempts(state) == attempt)).await.unwrap();
        // Attempt n waits at most n × 100 ms, and at most 12 s; a clock of milliseconds rounds up.
        let (waited, longest) = (last.elapsed(), (RETRY_STEP * (attempt - 1)).min(RETRY_WAIT_MAX));
        assert!(waited <= longest + Duration::from_millis(2), "{waited:?} before {attempt}");
        (last, sum) = (Instant::now(), sum + waited);
        match durable.state() {
            ValueState::Dead { since: still, reason, .. } => {
                assert_eq!(still, since, "since it was lost");
                assert!(reason.contains("connection refused"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    // The mean wait grows by 50 ms with each attempt, up to 6 s: 357 s for the first 120, 480 s for
    // 80 more.
    assert!(sum > seconds(650) && sum < seconds(1_020), "{sum:?}");
    assert_eq!(durable.last(), Some(Value::U64(1)), "the last known value");
    harness.with(1, |publisher| publisher.dial_behavior = DialBehavior::Answers(Duration::ZERO));
    assert_eq!(next_value(&mut durable).await, 1);
    assert!(matches!(durable.state(), ValueState::Alive { .. }));
}

/// Five publishers of one value; each but the last fails in a different way.
fn five_publishers(harness: &Harness) {
    for n in 1..=5 {
        harness.publish(n, &[("/a", n.into())]);
        harness.with(n, |publisher| match n {
            1 => publisher.dial_behavior = DialBehavior::Refuses,
            2 => publisher.dial_behavior = DialBehavior::Hangs,
            3 => publisher.silent = true,
            4 => publisher.refuses = true,
            _ => {}
        });
    }
}

#[tokio::test(start_paused = true)]
async fn retries_resolve_again_and_reach_every_publisher() {
    for seed in 0..20 {
        let harness = Harness::default();
        five_publishers(&harness);
        harness.with(5, |publisher| publisher.listed = false);
        let mut durable =
            harness.subscriber(seed).durable_subscribe(path("/a"), &default_options());
        let mut state = durable.watch_state();
        within_an_hour(state.wait_for(|state| attempts(state) == 3)).await.unwrap();
        assert_eq!(harness.resolve_requests().len(), 3, "each try asks the resolver");
        let tried: BTreeSet<u8> = harness.dials().iter().map(|(_, n)| *n).collect();
        assert_eq!(tried, BTreeSet::from([1, 2, 3, 4]));
        harness.with(5, |publisher| publisher.listed = true);
        assert_eq!(next_value(&mut durable).await, 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_plain_subscription_reaches_every_publisher_too() {
    for seed in 0..20 {
        let harness = Harness::default();
        five_publishers(&harness);
        let subscriber = harness.subscriber(seed);
        let mut subscription = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
        expect_update(&mut subscription, 5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_publisher_is_picked_up() {
    let harness = Harness::default();
    let subscriber = harness.subscriber(1);
    let mut durable = subscriber.durable_subscribe(path("/a"), &default_options());
    let mut state = durable.watch_state();
    within_an_hour(state.wait_for(|state| attempts(state) == 10)).await.unwrap();
    harness.publish(1, &[("/a", 1)]);
    assert_eq!(next_value(&mut durable).await, 1);
    sleep(seconds(2)).await;
    harness.publish(2, &[("/a", 2)]);
    harness.crash(1);
    let lost = Instant::now();
    assert_eq!(next_value(&mut durable).await, 2);
    assert!(lost.elapsed() < seconds(1), "{:?}", lost.elapsed());
}
