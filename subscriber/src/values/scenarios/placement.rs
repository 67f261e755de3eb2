//! Which publisher serves a subscription, and with how many links and messages.

use longshore_protocol::messages::values::{
    FromValuePublisher, Subscribed, SubscriptionEnd, ValueRefusal,
};
use longshore_protocol::{PublicationKind, Terms, Value};
use tokio::time::{Instant, sleep};

use super::harness::{DialBehavior, Harness, path};
use super::*;
use crate::values::connection_manager::ATTEMPT_TIMEOUT;
use crate::values::link::IDLE_CLOSE_AFTER;
use crate::values::race::RACE_DELAY;
use crate::values::subscribe_batch::ANSWER_TIMEOUT;
use crate::values::{SubscribeError, Updates};

#[tokio::test(start_paused = true)]
async fn a_thousand_subscriptions_are_made_and_retried_in_few_messages() {
    let harness = Harness::default();
    let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
    harness.publish(1, &values);
    harness.publish(2, &values);
    let subscriber = harness.subscriber(1);
    let all = paths.iter().map(|at| path(at)).collect();
    let subscription = subscriber.durable_subscribe_all(all, &default_options());
    for durable in &subscription {
        durable.alive().await;
    }
    assert_eq!(harness.resolve_requests().len(), 1);
    assert_eq!(harness.dials().len(), 1, "paths with the same publishers go to the same one");
    let first = harness.dials()[0].1;
    assert_eq!(harness.with(first, |publisher| publisher.subscribe_requests.clone()), [1_000]);

    sleep(seconds(2)).await;
    harness.crash(first);
    settle().await;
    assert!(subscription.iter().all(|durable| attempts(&durable.state()) == 1));
    for durable in &subscription {
        durable.alive().await;
    }
    assert_eq!(harness.resolve_requests().last().unwrap().1, 1_000, "all at once");
    let subscribe_requests =
        harness.with(3 - first, |publisher| publisher.subscribe_requests.clone());
    assert_eq!(subscribe_requests, [1_000], "at the other publisher");
}

#[tokio::test(start_paused = true)]
async fn equal_publisher_sets_share_a_publisher_over_answer_slices() {
    for seed in 0..20 {
        let harness = Harness::default();
        let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
        let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
        (1..=5).for_each(|n| harness.publish(n, &values));
        harness.answer_in_slices(64);
        let subscriber = harness.subscriber(seed);
        let all = paths.iter().map(|at| path(at)).collect();
        let subscription = subscriber.durable_subscribe_all(all, &default_options());
        for durable in &subscription {
            durable.alive().await;
        }
        assert_eq!(harness.dials().len(), 1);
        let subscribe_requests =
            harness.with(harness.dials()[0].1, |publisher| publisher.subscribe_requests.clone());
        assert_eq!(subscribe_requests, [1_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_with_a_short_send_queue_sends_any_number_of_requests() {
    let harness = Harness::default();
    // 2.5 MB in all, in frames of about 1 MiB.
    let long = "x".repeat(200);
    let paths: Vec<String> = (0..6_000).map(|n| format!("/{long}/{long}/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
    harness.publish(1, &values);
    harness.limit_send_queues(1024 * 1024);
    let all = paths.iter().map(|at| path(at)).collect();
    let subscription = harness.subscriber(1).durable_subscribe_all(all, &default_options());
    for durable in &subscription {
        within_an_hour(durable.alive()).await;
    }
    let requests = harness.with(1, |publisher| publisher.subscribe_requests.clone());
    assert_eq!((requests.len(), requests.iter().sum::<usize>()), (3, 6_000), "in several frames");
    assert_eq!(harness.dials().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_wait_while_their_publisher_answers() {
    let harness = Harness::default();
    let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
    (1..=2).for_each(|n| harness.publish(n, &values));
    harness.with(2, |publisher| publisher.terms.priority = 1);
    // The test answers in its place, ten requests a second: longer than an attempt may take.
    harness.with(1, |publisher| publisher.silent = true);
    let all = paths.iter().map(|at| path(at)).collect();
    let subscription = harness.subscriber(1).durable_subscribe_all(all, &default_options());
    for number in 0..1_000 {
        sleep(Duration::from_millis(100)).await;
        let subscribed = Subscribed { subscription: number, number, value: Value::U64(1) };
        harness.send(1, &FromValuePublisher::Subscribed(vec![subscribed]));
    }
    settle().await;
    let alive = |durable: &DurableValue| matches!(durable.state(), ValueState::Alive { .. });
    assert!(subscription.iter().all(alive));
    assert_eq!(harness.dials().len(), 1, "no other publisher is asked");
}

#[tokio::test(start_paused = true)]
async fn answers_to_others_leave_time_for_another_publisher() {
    let harness = Harness::default();
    let paths: Vec<String> = (1..ATTEMPT_TIMEOUT.as_secs()).map(|n| format!("/v/{n}")).collect();
    let mut values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
    values.push(("/a", 1));
    harness.publish(1, &values);
    harness.publish(2, &[("/a", 2)]);
    harness.with(1, |publisher| publisher.silent_for = Some(path("/a")));
    harness.with(2, |publisher| publisher.terms.priority = 1);
    let subscriber = harness.subscriber(1);
    let subscription = subscriber.durable_subscribe(path("/a"), &default_options());
    let mut answered = Vec::new();
    for at in &paths {
        answered.push(subscriber.durable_subscribe(path(at), &default_options()));
        sleep(seconds(1)).await;
    }
    assert_eq!(subscription.last(), Some(Value::U64(2)), "within one attempt");
}

#[tokio::test(start_paused = true)]
async fn publishers_on_different_terms_are_ranked_separately() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    harness.publish(2, &[("/a", 2)]);
    harness.publish(3, &[("/a", 3), ("/b", 3)]);
    harness.with(3, |publisher| publisher.terms.priority = 1);
    let subscriber = harness.subscriber(1);
    let subscription = subscriber
        .durable_subscribe_all(vec![path("/a"), path("/b"), path("/a")], &default_options());
    for durable in &subscription {
        durable.alive().await;
    }
    assert_eq!(harness.with(3, |publisher| publisher.subscribe_requests.clone()), [1], "/b alone");
    assert_eq!(harness.dials().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_path_moves_on_without_waiting_for_others() {
    let harness = Harness::default();
    for n in 1..=3 {
        harness.publish(n, &[("/a", n.into()), ("/b", n.into()), ("/c", n.into())]);
        harness.with(n, |publisher| publisher.terms.priority = n.into());
    }
    harness.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.silent_for = Some(path("/b"));
    });
    harness.with(2, |publisher| publisher.refuses_only = Some(path("/a")));
    let subscriber = harness.subscriber(1);
    let start = Instant::now();
    let all = vec![path("/a"), path("/b"), path("/c")];
    let subscription = subscriber.durable_subscribe_all(all, &default_options());
    subscription[2].alive().await;
    subscription[0].alive().await;
    assert!(
        start.elapsed() < seconds(1),
        "{:?} for a path that two publishers refused",
        start.elapsed()
    );
    assert_eq!(subscription[0].last(), Some(Value::U64(3)));
    subscription[1].alive().await;
    assert_eq!(
        (subscription[1].last(), subscription[2].last()),
        (Some(Value::U64(2)), Some(Value::U64(1)))
    );
    let took = start.elapsed();
    assert!(took >= ANSWER_TIMEOUT && took < ANSWER_TIMEOUT + seconds(1), "{took:?}");
    // The idle link was closed, and is dialled again.
    let dials: Vec<u8> = harness.dials().iter().map(|(_, n)| *n).collect();
    assert_eq!(dials, [1, 2, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn later_refusals_do_not_wait_for_a_hung_publisher() {
    let harness = Harness::default();
    for n in 1..=3 {
        harness.publish(n, &[("/a", n.into()), ("/b", n.into())]);
        harness.with(n, |publisher| publisher.terms.priority = n.into());
    }
    harness.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.silent_for = Some(path("/b"));
    });
    harness.with(2, |publisher| publisher.dial_behavior = DialBehavior::Hangs);
    let start = Instant::now();
    let all = vec![path("/a"), path("/b")];
    let subscription = harness.subscriber(1).durable_subscribe_all(all, &default_options());
    subscription[0].alive().await;
    subscription[1].alive().await;
    let took = start.elapsed() - ANSWER_TIMEOUT;
    assert!(took < Duration::from_millis(50), "{took:?} after the first publisher's timeout");
    assert_eq!(
        (subscription[0].last(), subscription[1].last()),
        (Some(Value::U64(3)), Some(Value::U64(3)))
    );
    let dials: Vec<u8> = harness.dials().iter().map(|(_, n)| *n).collect();
    assert_eq!(dials, [1, 2, 3]);
}

/// Registers `publishers` publishers of `/a` and `/b`, in this order. The first refuses `/a` and
/// does not answer `/b` for [`ANSWER_TIMEOUT`]. The second has a link for `/a` until it refuses
/// that too, or until the subscription is dropped; then a dial takes very long. Returns the
/// subscriptions, and when they were requested.
async fn the_second_hangs_once_it_has_lost_its_link(
    harness: &Harness,
    publishers: u8,
    second_refuses: bool,
) -> (Vec<DurableValue>, Instant) {
    for n in 1..=publishers {
        harness.publish(n, &[("/a", n.into()), ("/b", n.into())]);
        harness.with(n, |publisher| publisher.terms.priority = n.into());
    }
    harness.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.silent_for = Some(path("/b"));
    });
    harness.with(2, |publisher| publisher.refuses_only = second_refuses.then(|| path("/a")));
    let start = Instant::now();
    let all = vec![path("/b"), path("/a")];
    let mut subscription = harness.subscriber(1).durable_subscribe_all(all, &default_options());
    subscription[1].alive().await;
    if !second_refuses {
        subscription.truncate(1);
    }
    sleep(2 * IDLE_CLOSE_AFTER).await;
    assert_eq!((harness.links(1), harness.links(2)), (1, 0));
    harness.with(2, |publisher| publisher.dial_behavior = DialBehavior::Answers(seconds(1_000)));
    (subscription, start)
}

#[tokio::test(start_paused = true)]
async fn a_redial_does_not_extend_the_attempt_timeout() {
    let harness = Harness::default();
    let (subscription, start) =
        the_second_hangs_once_it_has_lost_its_link(&harness, 2, false).await;
    let mut state = subscription[0].watch_state();
    within_an_hour(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    let took = start.elapsed();
    assert!(took >= ATTEMPT_TIMEOUT && took < ATTEMPT_TIMEOUT + seconds(1), "{took:?}");
    let ValueState::Dead { reason, .. } = subscription[0].state() else { panic!("dead") };
    assert!(reason.contains("p1: no answer within 15s"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_redialled_publisher_is_raced_with_the_next_one() {
    // If the second refuses `/a`, the third has a link for it.
    for second_refuses in [true, false] {
        let harness = Harness::default();
        let (subscription, start) =
            the_second_hangs_once_it_has_lost_its_link(&harness, 3, second_refuses).await;
        assert_eq!(harness.links(3), usize::from(second_refuses));
        subscription[0].alive().await;
        let took = start.elapsed() - ANSWER_TIMEOUT;
        assert!(took >= RACE_DELAY && took < RACE_DELAY + seconds(1), "{took:?}");
        assert_eq!(subscription[0].last(), Some(Value::U64(3)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_refused_by_all_fails_without_waiting_for_others() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1), ("/b", 1)]);
    harness.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.silent_for = Some(path("/b"));
    });
    let subscriber = harness.subscriber(1);
    let start = Instant::now();
    let subscription =
        subscriber.durable_subscribe_all(vec![path("/a"), path("/b")], &default_options());
    let mut state = subscription[0].watch_state();
    within_an_hour(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    assert!(start.elapsed() < seconds(1), "{:?}", start.elapsed());
    // The refused path is retried meanwhile; the other one has its full time.
    let mut state = subscription[1].watch_state();
    within_an_hour(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    let took = start.elapsed();
    assert!(took >= ANSWER_TIMEOUT && took < ANSWER_TIMEOUT + seconds(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn subscriptions_of_one_path_share_one_on_the_wire() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let subscriber = harness.subscriber(1);
    let mut first = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    let mut second = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    assert_eq!(harness.with(1, |publisher| publisher.subscribe_requests.clone()), [1]);
    harness.publish_update(1, &[("/a", 2)]);
    for subscription in [&mut first, &mut second] {
        expect_update(subscription, 1).await;
        expect_update(subscription, 2).await;
    }
    drop(first);
    settle().await;
    harness.publish_update(1, &[("/a", 3)]);
    expect_update(&mut second, 3).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_link_closes_after_exactly_the_idle_time() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let subscriber = harness.subscriber(1);
    let subscription = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    drop(subscription);
    sleep(IDLE_CLOSE_AFTER - Duration::from_millis(100)).await;
    assert_eq!(harness.links(1), 1);
    // A new subscription in time reuses the link.
    let subscription = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    sleep(10 * IDLE_CLOSE_AFTER).await;
    assert_eq!((harness.links(1), harness.dials().len()), (1, 1));
    drop(subscription);
    sleep(IDLE_CLOSE_AFTER + Duration::from_millis(5)).await;
    assert_eq!((harness.links(1), subscriber.manager.links()), (0, 0));
    let again = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    assert_eq!((again.last(), harness.dials().len()), (Value::U64(1), 2));
}

#[tokio::test(start_paused = true)]
async fn resubscribing_waits_for_the_end_of_the_old_subscription() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1), ("/b", 1)]);
    let subscriber = harness.subscriber(1);
    let _other = subscriber.subscribe(path("/b"), &default_options()).await.unwrap();
    for n in 0..100 {
        let mut subscription = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
        expect_update(&mut subscription, 1 + n).await;
        harness.publish_update(1, &[("/a", 2 + n)]);
        // Dropped with updates in flight, and subscribed again before any other task runs.
        drop(subscription);
    }
    assert_eq!(harness.dials().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_dial_is_raced_and_closed() {
    for seed in 0..10 {
        let harness = Harness::default();
        harness.publish(1, &[("/a", 1)]);
        harness.publish(2, &[("/a", 2)]);
        harness.with(1, |publisher| publisher.dial_behavior = DialBehavior::Hangs);
        harness.with(2, |publisher| publisher.terms.priority = 1);
        let subscriber = harness.subscriber(seed);
        let start = Instant::now();
        let subscription = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
        let took = start.elapsed().as_millis();
        assert!((250..260).contains(&took), "{took} ms");
        assert_eq!(subscription.last(), Value::U64(2));
        sleep(seconds(10)).await;
        assert_eq!((harness.links(1), harness.links(2)), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_loses_the_race_keeps_no_link() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    harness.publish(2, &[("/a", 2)]);
    harness.with(1, |publisher| {
        publisher.dial_behavior = DialBehavior::Answers(Duration::from_millis(260))
    });
    harness.with(2, |publisher| publisher.terms.priority = 1);
    let subscription =
        harness.subscriber(1).subscribe(path("/a"), &default_options()).await.unwrap();
    assert_eq!(subscription.last(), Value::U64(2));
    sleep(seconds(1)).await;
    assert_eq!((harness.links(1), harness.links(2)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_subscribe_timeout_includes_the_connect() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    harness.with(1, |publisher| publisher.dial_behavior = DialBehavior::Hangs);
    let options = SubscribeOptions { within: Duration::from_millis(700), ..default_options() };
    let start = Instant::now();
    let late = harness.subscriber(1).subscribe(path("/a"), &options).await;
    assert_eq!(late.unwrap_err(), SubscribeError::Late { after: options.within });
    assert!(start.elapsed() < Duration::from_millis(705));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_made_after_its_timeout_is_dropped() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    harness.with(1, |publisher| publisher.dial_behavior = DialBehavior::Answers(seconds(2)));
    let subscriber = harness.subscriber(1);
    let options = SubscribeOptions { within: seconds(1), ..default_options() };
    assert!(subscriber.subscribe(path("/a"), &options).await.is_err());
    sleep(seconds(2) + IDLE_CLOSE_AFTER).await;
    assert_eq!(harness.links(1), 0, "the subscription was dropped");
}

#[tokio::test(start_paused = true)]
async fn each_failure_has_its_own_error() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1), ("/b", 1)]);
    harness.publish(2, &[("/jobs", 1)]);
    harness.with(2, |publisher| {
        publisher.terms = Terms { kind: PublicationKind::Queue, ..Terms::default() };
    });
    let subscriber = harness.subscriber(1);
    let refused =
        async |at: &str| subscriber.subscribe(path(at), &default_options()).await.unwrap_err();
    assert_eq!(refused("/none").await, SubscribeError::NotFound { complete: true });
    assert_eq!(refused("/jobs").await, SubscribeError::NotFound { complete: true });
    harness.set_incomplete(true);
    assert_eq!(refused("/none").await, SubscribeError::NotFound { complete: false });
    harness.with(1, |publisher| publisher.refuses = true);
    let SubscribeError::Refused(reason) = refused("/a").await else { panic!("refused") };
    assert!(reason.starts_with(&format!("p1: {}", ValueRefusal::NotHere)), "{reason}");
    harness.crash(1);
    let SubscribeError::NoLink(reason) = refused("/a").await else { panic!("no link") };
    assert_eq!(&*reason, "p1: connection refused");
    harness.set_resolver_down(true);
    assert!(matches!(refused("/a").await, SubscribeError::Resolver(_)));
}

#[tokio::test(start_paused = true)]
async fn an_unpublished_value_moves_durable_subscriptions_to_another_publisher() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1), ("/b", 1)]);
    let subscriber = harness.subscriber(1);
    let mut once = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    let mut durable = subscriber.durable_subscribe(path("/a"), &default_options());
    let other = subscriber.subscribe(path("/b"), &default_options()).await.unwrap();
    assert_eq!(next_value(&mut durable).await, 1);
    harness.publish(2, &[("/a", 2)]);
    harness.unpublish(1, "/a");
    assert_eq!(end_reason(&mut once).await, SubscriptionEnd::Unpublished.to_string());
    assert_eq!(next_value(&mut durable).await, 2);
    assert!(other.is_alive(), "the link stays open");
}

#[tokio::test(start_paused = true)]
async fn a_lost_link_ranks_its_publisher_last_for_a_minute() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    harness.publish(2, &[("/a", 2)]);
    harness.with(2, |publisher| publisher.terms.priority = 1);
    let subscriber = harness.subscriber(1);
    let mut durable = subscriber.durable_subscribe(path("/a"), &default_options());
    assert_eq!(next_value(&mut durable).await, 1);
    harness.disconnect(1, "broken pipe");
    assert_eq!(next_value(&mut durable).await, 2);
    sleep(seconds(61)).await;
    let fresh = subscriber.subscribe(path("/a"), &default_options()).await.unwrap();
    assert_eq!(fresh.last(), Value::U64(1), "forgiven");
}

#[tokio::test(start_paused = true)]
async fn local_publishers_come_first_if_requested() {
    let harness = Harness::default();
    for n in 1..=9 {
        harness.publish(n, &[("/a", n.into())]);
        harness.with(n, |publisher| {
            publisher.local = n == 9;
            publisher.terms.priority = u16::from(n);
        });
    }
    let near = crate::values::subscriber::GenericSubscriber::new(harness.clone(), true, 1);
    let far = harness.subscriber(1);
    assert_eq!(near.subscribe(path("/a"), &default_options()).await.unwrap().last(), Value::U64(9));
    assert_eq!(far.subscribe(path("/a"), &default_options()).await.unwrap().last(), Value::U64(1));
}

#[tokio::test(start_paused = true)]
async fn subscriptions_outlive_their_subscriber_and_leave_no_task() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1)]);
    let mut durable = harness.subscriber(1).durable_subscribe(path("/a"), &default_options());
    assert_eq!(next_value(&mut durable).await, 1);
    harness.disconnect(1, "broken pipe");
    harness.publish_update(1, &[("/a", 2)]);
    assert_eq!(next_value(&mut durable).await, 2);
    drop(durable);
    sleep(IDLE_CLOSE_AFTER + Duration::from_millis(5)).await;
    assert_eq!(harness.links(1), 0);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_that_share_a_reader_have_distinct_keys() {
    let harness = Harness::default();
    harness.publish(1, &[("/a", 1), ("/b", 2)]);
    let subscriber = harness.subscriber(1);
    let mut updates = Updates::new(100);
    let into = SubscribeOptions { into: Some(updates.sink()), ..default_options() };
    let paths = vec![path("/a"), path("/b")];
    let subscription = subscriber.durable_subscribe_all(paths, &into);
    for durable in &subscription {
        durable.alive().await;
    }
    settle().await;
    let mut seen = updates.next().await.to_vec();
    seen.sort_by_key(|(key, _)| *key);
    let is = |n| Event::Update(Value::U64(n));
    assert_eq!(seen, [(subscription[0].key(), is(1)), (subscription[1].key(), is(2))]);
    harness.crash(1);
    settle().await;
    let mut seen = updates.next().await.to_vec();
    seen.sort_by_key(|(key, _)| *key);
    let dead = Event::Dead("the other side closed the link".into());
    assert_eq!(seen, [(subscription[0].key(), dead.clone()), (subscription[1].key(), dead)]);
}
