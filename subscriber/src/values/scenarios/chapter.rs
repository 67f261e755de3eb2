//! The fault-tolerance chapter's section "Subscriber & Publisher", sentence by sentence, as a
//! subscriber of values sees it.
//!
//! | Sentence | Test |
//! |---|---|
//! | Publisher sends a heartbeat to every subscriber that is connected to it every 5 seconds. | `heartbeats_every_five_seconds_keep_a_link_for_ever` |
//! | Subscriber disconnects if it doesn't receive at least 1 message every 100 seconds. | `silence_of_a_hundred_seconds_ends_a_link_to_the_nanosecond` |
//! | Once a hang is detected it is dealt with by disconnecting, and it essentially becomes a crash. | `a_hang_becomes_a_crash` |
//! | This will cause any subscriber that can't consume the flushed batch within the specified timeout to be disconnected. | `who_is_disconnected_by_a_flush_is_told_so` |
//! | If `subscribe` is used then on being disconnected unexpectedly by the publisher all subscriptions are notified and marked as dead. | `a_disconnect_tells_every_subscription_and_marks_it_dead` |
//! | The library user is free to retry. | `whoever_wants_may_subscribe_again` |
//! | `durable_subscribe` will diligently keep trying to resubscribe, with linear backoff, until it is successful. | `a_durable_subscription_is_tried_with_linear_backoff_until_it_is_held` |
//! | Each retry will go through the entire process again, so it will eventually try all the publishers publishing a value, | `each_try_goes_the_whole_way_and_reaches_every_publisher_in_turn`, `subscribing_again_by_hand_reaches_every_publisher_too` |
//! | and it will pick up any new publishers that appear in the resolver server. | `a_publisher_that_appears_is_picked_up` |

use std::collections::BTreeSet;

use longshore_protocol::messages::values::FromValuePublisher;
use longshore_protocol::{LinkTiming, PublisherId, Value};
use longshore_transport::{RETRY_STEP, RETRY_WAIT_MAX};
use tokio::time::{Instant, sleep};

use super::world::{Dialling, World, path};
use super::*;
use crate::values::SubscriberOptions;

#[tokio::test(start_paused = true)]
async fn heartbeats_every_five_seconds_keep_a_link_for_ever() {
    assert_eq!(SubscriberOptions::default().link.timing, LinkTiming::VALUES);
    assert_eq!(LinkTiming::VALUES.heartbeat, seconds(5));
    let world = World::default();
    world.publish(1, &[("/a", 7)]);
    let held = world.subscriber(1).subscribe(path("/a"), &plain()).await.unwrap();
    for _ in 0..720 {
        sleep(seconds(5)).await;
        world.heartbeat(1);
    }
    assert!(held.is_alive());
    assert_eq!((world.dials().len(), held.last()), (1, Value::U64(7)));
}

#[tokio::test(start_paused = true)]
async fn silence_of_a_hundred_seconds_ends_a_link_to_the_nanosecond() {
    assert_eq!(LinkTiming::VALUES.hang, seconds(100));
    let world = World::default();
    world.publish(1, &[("/a", 7)]);
    let mut held = world.subscriber(1).subscribe(path("/a"), &plain()).await.unwrap();
    sleep(seconds(10)).await;
    world.update(1, &[("/a", 8)]);
    let last = Instant::now();
    let dead = death(&mut held).await;
    // Tokio's clock counts in milliseconds: it wakes at the deadline or up to one later, and never
    // before.
    let silent = last.elapsed();
    assert!(
        silent >= seconds(100) && silent < seconds(100) + Duration::from_millis(2),
        "{silent:?}"
    );
    assert!(dead.starts_with("the other side was silent for 100"), "{dead}");
    assert!(!held.is_alive());

    // The rule itself, which has no clock to round it.
    let begun = std::time::Instant::now();
    let mut rule = longshore_transport::Liveness::new(begun, LinkTiming::VALUES);
    rule.sent(begun + seconds(100) - TICK);
    assert_eq!(rule.poll(begun + seconds(100) - TICK), None);
    assert!(rule.poll(begun + seconds(100)).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_hang_becomes_a_crash() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    let mut durable = world.subscriber(1).durable_subscribe(path("/a"), &plain());
    assert_eq!(next_value(&mut durable).await, 1);
    // Stopped: its link stands and says nothing; so does whoever dials it anew.
    world.with(1, |publisher| {
        publisher.mute = true;
        publisher.dialling = Dialling::Hangs;
    });
    world.publish(2, &[("/a", 2)]);
    let stopped = Instant::now();
    assert_eq!(next_value(&mut durable).await, 2);
    let took = stopped.elapsed();
    assert!(took >= seconds(100) && took < seconds(101), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_disconnected_by_a_flush_is_told_so() {
    let world = World::default();
    world.publish(1, &[("/a", 7)]);
    let mut held = world.subscriber(1).subscribe(path("/a"), &plain()).await.unwrap();
    world.update(1, &[("/a", 8)]);
    let reason = "it took no byte of a flushed batch for 1s".to_owned();
    world.say(1, &FromValuePublisher::Goodbye { reason: reason.clone() });
    update(&mut held, 7).await;
    update(&mut held, 8).await;
    assert_eq!(death(&mut held).await, format!("the publisher said goodbye: {reason}"));
    assert_eq!(held.next().await, None);
    assert_eq!((held.is_alive(), held.last()), (false, Value::U64(8)));
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_tells_every_subscription_and_marks_it_dead() {
    let world = World::default();
    let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 5)).collect();
    world.publish(1, &values);
    let subscriber = world.subscriber(1);
    let mut all = Vec::new();
    for at in &paths {
        all.push(subscriber.subscribe(path(at), &plain()).await.unwrap());
    }
    // Two of one path: both are told.
    all.push(subscriber.subscribe(path(&paths[0]), &plain()).await.unwrap());
    assert_eq!(world.dials().len(), 1, "one link for all of them");
    world.crash(1);
    for held in &mut all {
        update(held, 5).await;
        assert_eq!(death(held).await, "the other side closed the link");
        assert_eq!((held.is_alive(), held.last()), (false, Value::U64(5)));
        assert_eq!(held.next().await, None, "told once");
    }
    sleep(seconds(60)).await;
    assert_eq!(world.dials().len(), 1, "trying again is the user's");
}

#[tokio::test(start_paused = true)]
async fn whoever_wants_may_subscribe_again() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    let subscriber = world.subscriber(1);
    let mut held = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    world.disconnect(1, "broken pipe");
    assert_eq!(death(&mut held).await, "broken pipe");
    world.update(1, &[("/a", 2)]);
    let mut again = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    update(&mut again, 2).await;
    assert_eq!((held.last(), again.last()), (Value::U64(1), Value::U64(2)));
}

#[tokio::test(start_paused = true)]
async fn a_durable_subscription_is_tried_with_linear_backoff_until_it_is_held() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    let mut durable = world.subscriber(1).durable_subscribe(path("/a"), &plain());
    assert_eq!(durable.state(), ValueState::Pending);
    assert_eq!(next_value(&mut durable).await, 1);
    assert!(
        matches!(durable.state(), ValueState::Alive { publisher, .. } if publisher == PublisherId([1; 16]))
    );
    sleep(seconds(2)).await;
    world.crash(1);
    let mut state = durable.watch_state();
    soon(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    let ValueState::Dead { since, .. } = durable.state() else { panic!("dead") };
    let (mut last, mut sum) = (Instant::now(), Duration::ZERO);
    for attempt in 2..=200 {
        soon(state.wait_for(|state| attempts(state) == attempt)).await.unwrap();
        // Before try n: at most n × 100 ms, 12 s at most; a clock of milliseconds rounds up.
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
    // The waits' mean grows by 50 ms with each try, up to 6 s: 357 s for the first 120, 480 s for
    // 80 more.
    assert!(sum > seconds(650) && sum < seconds(1_020), "{sum:?}");
    assert_eq!(durable.last(), Some(Value::U64(1)), "the last known value");
    world.with(1, |publisher| publisher.dialling = Dialling::Answers(Duration::ZERO));
    assert_eq!(next_value(&mut durable).await, 1);
    assert!(matches!(durable.state(), ValueState::Alive { .. }));
}

/// Publishers of one value, all of which refuse in a way of their own, but the last.
fn five(world: &World) {
    for n in 1..=5 {
        world.publish(n, &[("/a", n.into())]);
        world.with(n, |publisher| match n {
            1 => publisher.dialling = Dialling::Refuses,
            2 => publisher.dialling = Dialling::Hangs,
            3 => publisher.mute = true,
            4 => publisher.refuses = true,
            _ => {}
        });
    }
}

#[tokio::test(start_paused = true)]
async fn each_try_goes_the_whole_way_and_reaches_every_publisher_in_turn() {
    for seed in 0..20 {
        let world = World::default();
        five(&world);
        world.with(5, |publisher| publisher.listed = false);
        let mut durable = world.subscriber(seed).durable_subscribe(path("/a"), &plain());
        let mut state = durable.watch_state();
        soon(state.wait_for(|state| attempts(state) == 3)).await.unwrap();
        assert_eq!(world.asked().len(), 3, "each try asks the resolver");
        let tried: BTreeSet<u8> = world.dials().iter().map(|(_, n)| *n).collect();
        assert_eq!(tried, BTreeSet::from([1, 2, 3, 4]));
        world.with(5, |publisher| publisher.listed = true);
        assert_eq!(next_value(&mut durable).await, 5);
    }
}

#[tokio::test(start_paused = true)]
async fn subscribing_again_by_hand_reaches_every_publisher_too() {
    for seed in 0..20 {
        let world = World::default();
        five(&world);
        let subscriber = world.subscriber(seed);
        let mut held = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
        update(&mut held, 5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_appears_is_picked_up() {
    let world = World::default();
    let subscriber = world.subscriber(1);
    let mut durable = subscriber.durable_subscribe(path("/a"), &plain());
    let mut state = durable.watch_state();
    soon(state.wait_for(|state| attempts(state) == 10)).await.unwrap();
    world.publish(1, &[("/a", 1)]);
    assert_eq!(next_value(&mut durable).await, 1);
    sleep(seconds(2)).await;
    world.publish(2, &[("/a", 2)]);
    world.crash(1);
    let lost = Instant::now();
    assert_eq!(next_value(&mut durable).await, 2);
    assert!(lost.elapsed() < seconds(1), "{:?}", lost.elapsed());
}
