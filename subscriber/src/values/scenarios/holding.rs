//! Where subscriptions are held, and over how many links and messages.

use longshore_protocol::{PublicationKind, Terms, Value};
use tokio::time::{Instant, sleep};

use super::world::{Dialling, World, path};
use super::*;
use crate::values::director::TRY_WAIT_MAX;
use crate::values::link::LINGER;
use crate::values::party::ANSWER_WAIT_MAX;
use crate::values::race::NEXT_AFTER;
use crate::values::{SubscribeError, Updates};

#[tokio::test(start_paused = true)]
async fn a_thousand_subscriptions_are_made_and_made_again_in_few_messages() {
    let world = World::default();
    let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
    let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
    world.publish(1, &values);
    world.publish(2, &values);
    let subscriber = world.subscriber(1);
    let all = paths.iter().map(|at| path(at)).collect();
    let held = subscriber.durable_subscribe_all(all, &plain());
    for durable in &held {
        durable.alive().await;
    }
    assert_eq!(world.asked().len(), 1);
    assert_eq!(world.dials().len(), 1, "paths with the same publishers go to the same one");
    let first = world.dials()[0].1;
    assert_eq!(world.with(first, |publisher| publisher.asks.clone()), [1_000]);

    sleep(seconds(2)).await;
    world.crash(first);
    settle().await;
    assert!(held.iter().all(|durable| attempts(&durable.state()) == 1));
    for durable in &held {
        durable.alive().await;
    }
    assert_eq!(world.asked().last().unwrap().1, 1_000, "all at once");
    let asks = world.with(3 - first, |publisher| publisher.asks.clone());
    assert_eq!(asks, [1_000], "at the other one");
}

#[tokio::test(start_paused = true)]
async fn paths_with_the_same_publishers_go_to_the_same_one_over_all_slices_of_an_answer() {
    for seed in 0..20 {
        let world = World::default();
        let paths: Vec<String> = (0..1_000).map(|n| format!("/v/{n}")).collect();
        let values: Vec<(&str, u64)> = paths.iter().map(|at| (at.as_str(), 1)).collect();
        (1..=5).for_each(|n| world.publish(n, &values));
        world.answer_in_slices(64);
        let subscriber = world.subscriber(seed);
        let all = paths.iter().map(|at| path(at)).collect();
        let held = subscriber.durable_subscribe_all(all, &plain());
        for durable in &held {
            durable.alive().await;
        }
        assert_eq!(world.dials().len(), 1);
        let asks = world.with(world.dials()[0].1, |publisher| publisher.asks.clone());
        assert_eq!(asks, [1_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn paths_of_the_same_publishers_on_other_terms_are_chosen_for_apart() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    world.publish(2, &[("/a", 2)]);
    world.publish(3, &[("/a", 3), ("/b", 3)]);
    world.with(3, |publisher| publisher.terms.priority = 1);
    let subscriber = world.subscriber(1);
    let held = subscriber.durable_subscribe_all(vec![path("/a"), path("/b"), path("/a")], &plain());
    for durable in &held {
        durable.alive().await;
    }
    assert_eq!(world.with(3, |publisher| publisher.asks.clone()), [1], "/b alone");
    assert_eq!(world.dials().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_refused_goes_on_at_once_whatever_the_others_wait_for() {
    let world = World::default();
    for n in 1..=3 {
        world.publish(n, &[("/a", n.into()), ("/b", n.into()), ("/c", n.into())]);
        world.with(n, |publisher| publisher.terms.priority = n.into());
    }
    world.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.mute_of = Some(path("/b"));
    });
    world.with(2, |publisher| publisher.refuses_only = Some(path("/a")));
    let subscriber = world.subscriber(1);
    let asked = Instant::now();
    let all = vec![path("/a"), path("/b"), path("/c")];
    let held = subscriber.durable_subscribe_all(all, &plain());
    held[2].alive().await;
    held[0].alive().await;
    assert!(asked.elapsed() < seconds(1), "{:?} for one that two refused", asked.elapsed());
    assert_eq!(held[0].last(), Some(Value::U64(3)));
    held[1].alive().await;
    assert_eq!((held[1].last(), held[2].last()), (Some(Value::U64(2)), Some(Value::U64(1))));
    let took = asked.elapsed();
    assert!(took >= ANSWER_WAIT_MAX && took < ANSWER_WAIT_MAX + seconds(1), "{took:?}");
    // What held nothing for a while was closed, and is dialled anew.
    let dials: Vec<u8> = world.dials().iter().map(|(_, n)| *n).collect();
    assert_eq!(dials, [1, 2, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn later_refusals_of_a_group_do_not_wait_for_a_publisher_that_hung() {
    let world = World::default();
    for n in 1..=3 {
        world.publish(n, &[("/a", n.into()), ("/b", n.into())]);
        world.with(n, |publisher| publisher.terms.priority = n.into());
    }
    world.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.mute_of = Some(path("/b"));
    });
    world.with(2, |publisher| publisher.dialling = Dialling::Hangs);
    let asked = Instant::now();
    let all = vec![path("/a"), path("/b")];
    let held = world.subscriber(1).durable_subscribe_all(all, &plain());
    held[0].alive().await;
    held[1].alive().await;
    let took = asked.elapsed() - ANSWER_WAIT_MAX;
    assert!(took < Duration::from_millis(50), "{took:?} after the first gave no answer");
    assert_eq!((held[0].last(), held[1].last()), (Some(Value::U64(3)), Some(Value::U64(3))));
    let dials: Vec<u8> = world.dials().iter().map(|(_, n)| *n).collect();
    assert_eq!(dials, [1, 2, 3]);
}

/// So many publishers, in this order, of `/a` and `/b`. The first refuses `/a` and says nothing of
/// `/b` for [`ANSWER_WAIT_MAX`]. The second has a link for `/a` until it refuses that too, or
/// nobody wants it any more; then it takes none for a long time. Gives the subscriptions, and when
/// they were made.
async fn the_second_hangs_once_it_has_lost_its_link(
    world: &World,
    publishers: u8,
    second_refuses: bool,
) -> (Vec<DurableValue>, Instant) {
    for n in 1..=publishers {
        world.publish(n, &[("/a", n.into()), ("/b", n.into())]);
        world.with(n, |publisher| publisher.terms.priority = n.into());
    }
    world.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.mute_of = Some(path("/b"));
    });
    world.with(2, |publisher| publisher.refuses_only = second_refuses.then(|| path("/a")));
    let asked = Instant::now();
    let all = vec![path("/b"), path("/a")];
    let mut held = world.subscriber(1).durable_subscribe_all(all, &plain());
    held[1].alive().await;
    if !second_refuses {
        held.truncate(1);
    }
    sleep(2 * LINGER).await;
    assert_eq!((world.links(1), world.links(2)), (1, 0));
    world.with(2, |publisher| publisher.dialling = Dialling::Answers(seconds(1_000)));
    (held, asked)
}

#[tokio::test(start_paused = true)]
async fn one_that_is_dialled_anew_has_no_more_time_than_the_try() {
    let world = World::default();
    let (held, asked) = the_second_hangs_once_it_has_lost_its_link(&world, 2, false).await;
    let mut state = held[0].watch_state();
    soon(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    let took = asked.elapsed();
    assert!(took >= TRY_WAIT_MAX && took < TRY_WAIT_MAX + seconds(1), "{took:?}");
    let ValueState::Dead { reason, .. } = held[0].state() else { panic!("dead") };
    assert!(reason.contains("p1: no answer within 15s"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_dialled_anew_is_raced_with_the_next_whether_that_has_a_link_or_not() {
    // Where the second refuses it, the third has a link for /a.
    for second_refuses in [true, false] {
        let world = World::default();
        let (held, asked) =
            the_second_hangs_once_it_has_lost_its_link(&world, 3, second_refuses).await;
        assert_eq!(world.links(3), usize::from(second_refuses));
        held[0].alive().await;
        let took = asked.elapsed() - ANSWER_WAIT_MAX;
        assert!(took >= NEXT_AFTER && took < NEXT_AFTER + seconds(1), "{took:?}");
        assert_eq!(held[0].last(), Some(Value::U64(3)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_that_all_refuse_fails_at_once_whatever_the_others_wait_for() {
    let world = World::default();
    world.publish(1, &[("/a", 1), ("/b", 1)]);
    world.with(1, |publisher| {
        publisher.refuses_only = Some(path("/a"));
        publisher.mute_of = Some(path("/b"));
    });
    let subscriber = world.subscriber(1);
    let asked = Instant::now();
    let held = subscriber.durable_subscribe_all(vec![path("/a"), path("/b")], &plain());
    let mut state = held[0].watch_state();
    soon(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    assert!(asked.elapsed() < seconds(1), "{:?}", asked.elapsed());
    // Tried again and refused again meanwhile, as often as it may be; the other has its whole time.
    let mut state = held[1].watch_state();
    soon(state.wait_for(|state| attempts(state) == 1)).await.unwrap();
    let took = asked.elapsed();
    assert!(took >= ANSWER_WAIT_MAX && took < ANSWER_WAIT_MAX + seconds(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn subscriptions_of_one_path_share_one_on_the_wire() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    let subscriber = world.subscriber(1);
    let mut first = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    let mut second = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    assert_eq!(world.with(1, |publisher| publisher.asks.clone()), [1]);
    world.update(1, &[("/a", 2)]);
    for held in [&mut first, &mut second] {
        update(held, 1).await;
        update(held, 2).await;
    }
    drop(first);
    settle().await;
    world.update(1, &[("/a", 3)]);
    update(&mut second, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_that_holds_nothing_is_closed_after_a_while_and_not_before() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    let subscriber = world.subscriber(1);
    let held = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    drop(held);
    sleep(LINGER - Duration::from_millis(100)).await;
    assert_eq!(world.links(1), 1);
    // Wanted again in time: the same link.
    let held = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    sleep(10 * LINGER).await;
    assert_eq!((world.links(1), world.dials().len()), (1, 1));
    drop(held);
    sleep(LINGER + Duration::from_millis(5)).await;
    assert_eq!((world.links(1), subscriber.director.links()), (0, 0));
    let again = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    assert_eq!((again.last(), world.dials().len()), (Value::U64(1), 2));
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_wanted_again_before_its_end_was_told_is_asked_for_after_it() {
    let world = World::default();
    world.publish(1, &[("/a", 1), ("/b", 1)]);
    let subscriber = world.subscriber(1);
    let _other = subscriber.subscribe(path("/b"), &plain()).await.unwrap();
    for n in 0..100 {
        let mut held = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
        update(&mut held, 1 + n).await;
        world.update(1, &[("/a", 2 + n)]);
        // Dropped with updates on their way, and wanted again before anybody else comes to its
        // turn.
        drop(held);
    }
    assert_eq!(world.dials().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_next_publisher_is_raced_while_one_hangs_and_the_loser_is_closed() {
    for seed in 0..10 {
        let world = World::default();
        world.publish(1, &[("/a", 1)]);
        world.publish(2, &[("/a", 2)]);
        world.with(1, |publisher| publisher.dialling = Dialling::Hangs);
        world.with(2, |publisher| publisher.terms.priority = 1);
        let subscriber = world.subscriber(seed);
        let asked = Instant::now();
        let held = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
        let took = asked.elapsed().as_millis();
        assert!((250..260).contains(&took), "{took} ms");
        assert_eq!(held.last(), Value::U64(2));
        sleep(seconds(10)).await;
        assert_eq!((world.links(1), world.links(2)), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_publisher_that_loses_the_race_is_not_left_with_a_link() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    world.publish(2, &[("/a", 2)]);
    world.with(1, |publisher| publisher.dialling = Dialling::Answers(Duration::from_millis(260)));
    world.with(2, |publisher| publisher.terms.priority = 1);
    let held = world.subscriber(1).subscribe(path("/a"), &plain()).await.unwrap();
    assert_eq!(held.last(), Value::U64(2));
    sleep(seconds(1)).await;
    assert_eq!((world.links(1), world.links(2)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_subscription_covers_the_connect_too() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    world.with(1, |publisher| publisher.dialling = Dialling::Hangs);
    let options = SubscribeOptions { within: Duration::from_millis(700), ..plain() };
    let asked = Instant::now();
    let late = world.subscriber(1).subscribe(path("/a"), &options).await;
    assert_eq!(late.unwrap_err(), SubscribeError::Late { after: options.within });
    assert!(asked.elapsed() < Duration::from_millis(705));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_came_too_late_is_not_kept() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    world.with(1, |publisher| publisher.dialling = Dialling::Answers(seconds(2)));
    let subscriber = world.subscriber(1);
    let options = SubscribeOptions { within: seconds(1), ..plain() };
    assert!(subscriber.subscribe(path("/a"), &options).await.is_err());
    sleep(seconds(2) + LINGER).await;
    assert_eq!(world.links(1), 0, "held for nobody");
}

#[tokio::test(start_paused = true)]
async fn each_refusal_says_what_it_is() {
    let world = World::default();
    world.publish(1, &[("/a", 1), ("/b", 1)]);
    world.publish(2, &[("/jobs", 1)]);
    world.with(2, |publisher| {
        publisher.terms = Terms { kind: PublicationKind::Queue, ..Terms::default() };
    });
    let subscriber = world.subscriber(1);
    let refused = async |at: &str| subscriber.subscribe(path(at), &plain()).await.unwrap_err();
    assert_eq!(refused("/none").await, SubscribeError::NotFound { complete: true });
    assert_eq!(refused("/jobs").await, SubscribeError::NotFound { complete: true });
    world.set_incomplete(true);
    assert_eq!(refused("/none").await, SubscribeError::NotFound { complete: false });
    world.with(1, |publisher| publisher.refuses = true);
    let SubscribeError::Refused(reason) = refused("/a").await else { panic!("refused") };
    assert!(reason.starts_with("p1: the publisher has no such value"), "{reason}");
    world.crash(1);
    let SubscribeError::NoLink(reason) = refused("/a").await else { panic!("no link") };
    assert_eq!(&*reason, "p1: connection refused");
    world.set_resolver_down(true);
    assert!(matches!(refused("/a").await, SubscribeError::Resolver(_)));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_unpublished_ends_its_subscription_and_a_durable_one_finds_the_next() {
    let world = World::default();
    world.publish(1, &[("/a", 1), ("/b", 1)]);
    let subscriber = world.subscriber(1);
    let mut once = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    let mut durable = subscriber.durable_subscribe(path("/a"), &plain());
    let other = subscriber.subscribe(path("/b"), &plain()).await.unwrap();
    assert_eq!(next_value(&mut durable).await, 1);
    world.publish(2, &[("/a", 2)]);
    world.unpublish(1, "/a");
    assert_eq!(death(&mut once).await, "the value is no longer published");
    assert_eq!(next_value(&mut durable).await, 2);
    assert!(other.is_alive(), "the link is well");
}

#[tokio::test(start_paused = true)]
async fn a_publisher_whose_link_was_lost_comes_after_the_others_for_a_minute() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    world.publish(2, &[("/a", 2)]);
    world.with(2, |publisher| publisher.terms.priority = 1);
    let subscriber = world.subscriber(1);
    let mut durable = subscriber.durable_subscribe(path("/a"), &plain());
    assert_eq!(next_value(&mut durable).await, 1);
    world.disconnect(1, "broken pipe");
    assert_eq!(next_value(&mut durable).await, 2);
    sleep(seconds(61)).await;
    let fresh = subscriber.subscribe(path("/a"), &plain()).await.unwrap();
    assert_eq!(fresh.last(), Value::U64(1), "forgiven");
}

#[tokio::test(start_paused = true)]
async fn local_publishers_come_first_when_asked_for() {
    let world = World::default();
    for n in 1..=9 {
        world.publish(n, &[("/a", n.into())]);
        world.with(n, |publisher| {
            publisher.local = n == 9;
            publisher.terms.priority = u16::from(n);
        });
    }
    let near = crate::values::subscriber::Subscribing::new(world.clone(), true, 1);
    let far = world.subscriber(1);
    assert_eq!(near.subscribe(path("/a"), &plain()).await.unwrap().last(), Value::U64(9));
    assert_eq!(far.subscribe(path("/a"), &plain()).await.unwrap().last(), Value::U64(1));
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_is_dropped_leaves_its_subscriptions_and_the_last_of_them_nothing() {
    let world = World::default();
    world.publish(1, &[("/a", 1)]);
    let mut durable = world.subscriber(1).durable_subscribe(path("/a"), &plain());
    assert_eq!(next_value(&mut durable).await, 1);
    world.disconnect(1, "broken pipe");
    world.update(1, &[("/a", 2)]);
    assert_eq!(next_value(&mut durable).await, 2);
    drop(durable);
    sleep(LINGER + Duration::from_millis(5)).await;
    assert_eq!(world.links(1), 0);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_share_one_reader_and_each_is_known_by_its_key() {
    let world = World::default();
    world.publish(1, &[("/a", 1), ("/b", 2)]);
    let subscriber = world.subscriber(1);
    let mut updates = Updates::new(100);
    let into = SubscribeOptions { into: Some(updates.sink()), ..plain() };
    let paths = vec![path("/a"), path("/b")];
    let held = subscriber.durable_subscribe_all(paths, &into);
    for durable in &held {
        durable.alive().await;
    }
    settle().await;
    let mut seen = updates.next().await.to_vec();
    seen.sort_by_key(|(key, _)| *key);
    let is = |n| Event::Update(Value::U64(n));
    assert_eq!(seen, [(held[0].key(), is(1)), (held[1].key(), is(2))]);
    world.crash(1);
    settle().await;
    let mut seen = updates.next().await.to_vec();
    seen.sort_by_key(|(key, _)| *key);
    let dead = Event::Dead("the other side closed the link".into());
    assert_eq!(seen, [(held[0].key(), dead.clone()), (held[1].key(), dead)]);
}
