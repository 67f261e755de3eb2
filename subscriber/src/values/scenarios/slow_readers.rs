//! Slow readers: their queues are bounded, droppable updates are dropped, and the last value always
//! arrives.

use longshore_protocol::Value;
use longshore_protocol::messages::values::{Policy, SubscriptionEnd};

use super::harness::{Harness, path};
use super::*;
use crate::values::Updates;

fn too_slow() -> Event {
    Event::Dead(SubscriptionEnd::TooSlow.to_string().into())
}

fn all_values(batch: &[crate::values::KeyedEvent]) -> Vec<u64> {
    let value = |(_, event): &crate::values::KeyedEvent| match event {
        Event::Update(Value::U64(n)) => *n,
        other => panic!("{other:?}"),
    };
    batch.iter().map(value).collect()
}

#[tokio::test(start_paused = true)]
async fn a_slow_conflating_reader_gets_the_latest_value() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 0)]);
    let subscriber = harness.subscriber(1);
    let mut updates = Updates::new(10);
    let into = SubscribeOptions { into: Some(updates.sink()), ..default_options() };
    let subscription = subscriber.subscribe(path("/a"), &into).await.unwrap();
    for n in 1..=1_000 {
        harness.publish_update(1, &[("/a", n)]);
    }
    while harness.unread(1) > 0 {
        settle().await;
    }
    assert_eq!(subscription.last(), Value::U64(1_000), "the link continues to read");
    let mut expected: Vec<u64> = (0..10).collect();
    expected.push(1_000);
    assert_eq!(all_values(updates.next().await), expected);
    harness.publish_update(1, &[("/a", 1_001)]);
    assert_eq!(all_values(updates.next().await), [1_001], "no update is delivered twice");
}

#[tokio::test(start_paused = true)]
async fn a_slow_disconnect_reader_loses_only_that_subscription() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 0), ("/b", 0)]);
    let subscriber = harness.subscriber(1);
    let mut updates = Updates::new(10);
    let sink = Some(updates.sink());
    let into = SubscribeOptions { into: sink, policy: Policy::Disconnect, ..default_options() };
    let slow = subscriber.subscribe(path("/a"), &into).await.unwrap();
    let other = subscriber.subscribe(path("/b"), &default_options()).await.unwrap();
    for n in 1..=1_000 {
        harness.publish_update(1, &[("/a", n), ("/b", n)]);
    }
    while harness.unread(1) > 0 {
        settle().await;
    }
    assert_eq!((slow.is_alive(), other.is_alive()), (false, true), "one link");
    assert_eq!(other.last(), Value::U64(1_000));
    let batch = updates.next().await;
    let (end, values) = batch.split_last().unwrap();
    assert_eq!(all_values(values), (0..10).collect::<Vec<_>>());
    assert_eq!(end.1, too_slow());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_reader_delays_no_link() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 0)]);
    let subscriber = harness.subscriber(1);
    let updates = Updates::new(10);
    let sink = Some(updates.sink());
    let into = SubscribeOptions { into: sink, policy: Policy::Disconnect, ..default_options() };
    let subscription = subscriber.subscribe(path("/a"), &into).await.unwrap();
    drop(updates);
    for n in 1..=1_000 {
        harness.publish_update(1, &[("/a", n)]);
    }
    while harness.unread(1) > 0 {
        settle().await;
    }
    assert_eq!(subscription.last(), Value::U64(1_000));
}

#[tokio::test(start_paused = true)]
async fn the_latest_value_arrives_before_the_end() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 0)]);
    let subscriber = harness.subscriber(1);
    let mut updates = Updates::new(1);
    let into = SubscribeOptions { into: Some(updates.sink()), ..default_options() };
    let _subscription = subscriber.subscribe(path("/a"), &into).await.unwrap();
    for n in 1..=50 {
        harness.publish_update(1, &[("/a", n)]);
    }
    while harness.unread(1) > 0 {
        settle().await;
    }
    harness.crash(1);
    settle().await;
    let events: Vec<Event> = updates.next().await.iter().map(|(_, event)| event.clone()).collect();
    let is = |n| Event::Update(Value::U64(n));
    assert_eq!(events, [is(0), is(50), Event::Dead("the other side closed the link".into())]);
}

/// A reader that never reads, and a link that is lost repeatedly.
async fn lost_often(policy: Policy) -> (Vec<Event>, usize) {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 0)]);
    let subscriber = harness.subscriber(1);
    let mut updates = Updates::new(2);
    let into = SubscribeOptions { into: Some(updates.sink()), policy, ..default_options() };
    let subscription = subscriber.durable_subscribe_all(vec![path("/a")], &into);
    for n in 1..=100 {
        tokio::time::sleep(seconds(20)).await;
        harness.publish_update(1, &[("/a", n)]);
        harness.publish_update(1, &[("/a", 1_000 + n)]);
        settle().await;
        harness.disconnect(1, &format!("loss {n}"));
        settle().await;
    }
    let dials = harness.dials().len();
    let (items, lagging) = updates.sink().0.waiting();
    assert!(items <= 4 && lagging <= 1, "{items} updates, {lagging} lagging");
    let events = updates.next().await.iter().map(|(_, event)| event.clone()).collect();
    tokio::time::sleep(seconds(20)).await;
    let (key, event) = updates.next().await.last().unwrap().clone();
    assert_eq!((key, event), (subscription[0].key(), Event::Update(Value::U64(1_100))));
    (events, dials)
}

#[tokio::test(start_paused = true)]
async fn repeated_losses_without_a_reader_use_bounded_memory() {
    let is = |n| Event::Update(Value::U64(n));
    let (events, dials) = lost_often(Policy::Conflate).await;
    assert_eq!(events, [is(0), is(1), is(1_100), Event::Dead("loss 100".into())]);
    assert_eq!(dials, 100, "it is subscribed, for `last`");
    let (events, dials) = lost_often(Policy::DropOldest).await;
    assert_eq!(events, [is(0), is(1), is(1_100), Event::Dead("loss 100".into())]);
    assert_eq!(dials, 100, "it is subscribed, for `last`");
    let (events, dials) = lost_often(Policy::Disconnect).await;
    assert_eq!(events, [is(0), is(1), too_slow()]);
    assert_eq!(dials, 1, "it is not retried before it is read");
}
