//! The core against subscribers that read when the test lets them, without sockets and in virtual
//! time.

mod model;
mod subscriber;

use std::time::Duration;

use longshore_protocol::Value;
use longshore_protocol::messages::values::{
    Policy, SubscriptionEnd, ValueRefusal, WriteRefusal, WriteRefused, WriteValue, Written,
};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use self::subscriber::{Received, Subscriber, path};
use super::*;
use crate::values::limits::*;

const MS: Duration = Duration::from_millis(1);

pub(super) struct CoreHarness {
    pub(super) core: Core<Subscriber>,
    pub(super) now: Instant,
}

impl CoreHarness {
    pub(super) fn new() -> CoreHarness {
        CoreHarness { core: Core::new(), now: Instant::now() }
    }

    fn publish(&mut self, text: &str, value: impl Into<Value>) -> SlotKey {
        self.core.publish(&path(text), value.into()).unwrap()
    }

    /// A link that reads everything at once, until it is stopped.
    fn link(&mut self) -> Subscriber {
        let link = Subscriber::new(VALUE_QUEUE_BYTES_MAX);
        link.join(&mut self.core);
        link
    }

    fn subscribe(&mut self, link: &Subscriber, number: u32, text: &str, policy: Policy) {
        link.subscribe(&mut self.core, number, text, policy, self.now).unwrap();
    }

    fn set(&mut self, key: SlotKey, value: impl Into<Value>) {
        self.core.commit(&[(key, value.into())]);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.expire(self.now);
    }
}

fn update(text: &str, value: impl Into<Value>) -> Received {
    Received::Update(text.to_owned(), value.into())
}

#[test]
fn unchanged_updates_are_removed_as_if_each_was_applied_alone() {
    let mut random = StdRng::seed_from_u64(1);
    let mut harness = CoreHarness::new();
    let keys: Vec<_> = (0..3).map(|n| harness.publish(&format!("/{n}"), 0u64)).collect();
    for _ in 0..1_000 {
        let mut only_changes = Vec::new();
        let (mut updates, mut expected) = (Vec::new(), Vec::new());
        let mut current: Vec<_> = keys.iter().map(|key| harness.core.current(*key)).collect();
        for at in 0..random.random_range(0..20) {
            let n = random.random_range(0..keys.len());
            let value = Value::U64(random.random_range(0..3));
            let conditional = random.random_bool(0.5);
            only_changes.extend(conditional.then_some(at));
            if !conditional || current[n].as_ref() != Some(&value) {
                current[n] = Some(value.clone());
                expected.push((keys[n], value.clone()));
            }
            updates.push((keys[n], value));
        }
        harness.core.remove_unchanged(&mut updates, &only_changes);
        assert_eq!(updates, expected);
        harness.core.commit(&updates);
    }
}

#[test]
fn updates_are_encoded_once_per_set_of_links() {
    let mut harness = CoreHarness::new();
    let keys: Vec<_> = (0..50).map(|n| harness.publish(&format!("/{n}"), 0u64)).collect();
    let links: Vec<_> = (0..4).map(|_| harness.link()).collect();
    for (n, _) in keys.iter().enumerate() {
        // Half of the values have all links, half only the first two.
        for link in &links[..if n < 25 { 4 } else { 2 }] {
            harness.subscribe(link, n as u32, &format!("/{n}"), Policy::Conflate);
        }
    }
    links.iter().for_each(|link| drop(link.frames()));
    let updates: Vec<_> = keys.iter().map(|key| (*key, Value::U64(7))).collect();
    harness.core.commit(&updates);
    let frames: Vec<_> = links.iter().map(Subscriber::frames).collect();
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1, 1]);
    let at = |link: usize, frame: usize| frames[link][frame].parts()[0].as_ptr();
    assert!(at(0, 0) == at(3, 0) && at(1, 0) == at(2, 0), "one set's bytes are shared");
    assert!(at(0, 1) == at(1, 1) && at(0, 0) != at(0, 1));
    // The empty set, the two, and no intermediate ones.
    assert_eq!(harness.core.sets.len(), 3);
}

#[test]
fn link_without_room_receives_newest_values_later() {
    let mut harness = CoreHarness::new();
    let (a, b) = (harness.publish("/a", 0u64), harness.publish("/b", 0u64));
    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    harness.subscribe(&link, 1, "/b", Policy::DropOldest);
    drop(link.received());
    link.stop();
    for n in 1..=5u64 {
        harness.core.commit(&[(b, (10 * n).into()), (a, n.into())]);
    }
    assert_eq!(link.received(), []);
    link.go_on(&mut harness.core);
    let received: Vec<_> =
        (1..=5u64).map(|n| update("/b", 10 * n)).chain([update("/a", 5u64)]).collect();
    assert_eq!(link.received(), received);
    harness.set(a, 6u64);
    assert_eq!(link.received(), [update("/a", 6u64)], "and then every update again");
}

#[test]
fn disconnect_policy_ends_one_subscription_and_not_the_link() {
    let mut harness = CoreHarness::new();
    let (a, b) = (harness.publish("/a", 0u64), harness.publish("/b", 0u64));
    let (link, other) = (harness.link(), harness.link());
    harness.subscribe(&link, 0, "/a", Policy::Disconnect);
    harness.subscribe(&link, 1, "/b", Policy::Conflate);
    harness.subscribe(&other, 0, "/a", Policy::Disconnect);
    drop(link.received());
    link.stop();
    harness.core.commit(&[(a, 1u64.into()), (b, 1u64.into()), (a, 2u64.into())]);
    assert_eq!((link.ended(), harness.core.subscribers(a)), (None, 1));
    harness.core.commit(&[(a, 3u64.into()), (b, 3u64.into())]);
    link.go_on(&mut harness.core);
    let ended = Received::Ended("/a".into(), SubscriptionEnd::TooSlow);
    assert_eq!(
        link.received(),
        [ended, update("/b", 3u64)],
        "the link and its other subscription continue"
    );
    harness.subscribe(&link, 0, "/a", Policy::Disconnect);
    harness.set(a, 4u64);
    assert_eq!(
        link.received(),
        [Received::Subscribed("/a".into(), 3u64.into()), update("/a", 4u64)]
    );
    assert_eq!(other.ended(), None);
    assert_eq!(other.received()[1..], [1u64, 2, 3, 4].map(|n| update("/a", n)));
}

#[test]
fn backlog_of_a_stopped_link_is_bounded() {
    let mut harness = CoreHarness::new();
    let payload = |n: u64| Value::Bytes(vec![n as u8; 1_000].into());
    let keys: Vec<_> = (0..500).map(|n| harness.publish(&format!("/{n}"), payload(0))).collect();
    let link = harness.link();
    for number in 0..500 {
        let policy = if number < 250 { Policy::Conflate } else { Policy::DropOldest };
        harness.subscribe(&link, number, &format!("/{number}"), policy);
    }
    drop(link.received());
    link.stall();
    for n in 1..=200 {
        let updates: Vec<_> = keys.iter().map(|key| (*key, payload(n))).collect();
        harness.core.commit(&updates);
    }
    assert!(link.queued() > VALUE_QUEUE_BYTES_MAX / 2 && link.queued() <= VALUE_QUEUE_BYTES_MAX);
    let backlog = harness.core.backlog_of(&link);
    // The bound, and one value each that may not be dropped.
    assert!(backlog.0 <= VALUE_BACKLOG_BYTES_MAX + 250 * 2_000, "{backlog:?}");
    assert!(backlog.0 > VALUE_BACKLOG_BYTES_MAX / 2, "{backlog:?}");
    assert_eq!(backlog.1, 500, "one backlog entry each");

    let one = harness.publish("/one", 0u64);
    harness.subscribe(&link, 500, "/one", Policy::DropOldest);
    link.go_on(&mut harness.core);
    link.stall();
    link.fill();
    for n in 0..5_000u64 {
        harness.set(one, n);
    }
    drop(link.received());
    link.go_on(&mut harness.core);
    let received = link.received();
    assert_eq!(received.len(), VALUE_BACKLOG_UPDATES_MAX, "of one value");
    assert_eq!(received.last(), Some(&update("/one", 4_999u64)));
    assert_eq!(harness.core.backlog_of(&link), (0, 0));
}

#[test]
fn stopped_subscriber_receives_the_last_update_of_a_removed_value() {
    let mut harness = CoreHarness::new();
    for policy in [Policy::Conflate, Policy::DropOldest] {
        let a = harness.publish("/a", 0u64);
        let link = harness.link();
        harness.subscribe(&link, 0, "/a", policy);
        drop(link.received());
        link.stop();
        harness.set(a, 1u64);
        assert_eq!(harness.core.unpublish(a), Some(path("/a")));
        // Another value reuses the slot, and its number.
        let b = harness.publish("/b", 100u64);
        assert_eq!(b.slot, a.slot);
        harness.subscribe(&link, 1, "/b", policy);
        harness.set(b, 101u64);
        link.go_on(&mut harness.core);
        assert_eq!(
            link.received(),
            [
                update("/a", 1u64),
                Received::Ended("/a".into(), SubscriptionEnd::Unpublished),
                Received::Subscribed("/b".into(), 101u64.into()),
            ]
        );
        harness.set(a, 7u64);
        assert_eq!(harness.core.current(b), Some(Value::U64(101)), "the old handle has no effect");
        harness.core.unpublish(b);
    }
}

#[test]
fn value_removed_before_there_is_room_is_sent_with_its_end() {
    let mut harness = CoreHarness::new();
    let (id, _) = harness.core.publish_default(&path("/d")).unwrap();
    let link = harness.link();
    link.stop();
    harness.subscribe(&link, 0, "/d/a", Policy::Conflate);
    assert!(matches!(harness.core.next_request(&path("/d"), id), NextRequest::Ready(..)));
    let a = harness.publish("/d/a", 1u64);
    harness.set(a, 2u64);
    harness.core.unpublish(a);
    // Another value reuses the slot, and its number.
    let b = harness.publish("/b", 3u64);
    assert_eq!(b.slot, a.slot);
    harness.subscribe(&link, 1, "/b", Policy::Conflate);
    link.go_on(&mut harness.core);
    assert_eq!(
        link.received(),
        [
            Received::Subscribed("/d/a".into(), 2u64.into()),
            Received::Ended("/d/a".into(), SubscriptionEnd::Unpublished),
            Received::Subscribed("/b".into(), 3u64.into()),
        ]
    );

    // Values that were never sent do not end the link.
    link.stop();
    let large = || Value::Bytes(vec![7; 1000 * 1024].into());
    let removed: Vec<_> = (0..10).map(|n| harness.publish(&format!("/{n}"), large())).collect();
    (0..10).for_each(|n| harness.subscribe(&link, 2 + n, &format!("/{n}"), Policy::Conflate));
    removed.iter().for_each(|key| _ = harness.core.unpublish(*key));
    link.go_on(&mut harness.core);
    let refused =
        |it: &&Received| matches!(it, Received::Refused(_, code) if *code == ValueRefusal::NotHere);
    let fit = VALUE_BACKLOG_BYTES_MAX / links::bytes_of(&large());
    assert_eq!(link.received().iter().filter(refused).count(), 10 - fit);
    assert_eq!((link.ended(), harness.core.backlog_of(&link)), (None, (0, 0)));
}

#[test]
fn refused_subscription_has_a_code_and_frees_its_number() {
    let mut harness = CoreHarness::new();
    harness.publish("/a", 0u64);
    let link = harness.link();
    let mut received = Vec::new();
    for text in ["/nowhere", "/queue"] {
        harness.subscribe(&link, 0, text, Policy::Conflate);
        received.extend(link.received());
    }
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    harness.subscribe(&link, 1, "/a", Policy::Conflate);
    link.subscribe(&mut harness.core, 1 << 20, "/a", Policy::Conflate, harness.now).unwrap();
    let refused = |text: &str, code| Received::Refused(text.to_owned(), code);
    received.extend(link.received());
    assert_eq!(
        received,
        [
            refused("/nowhere", ValueRefusal::NotHere),
            refused("/queue", ValueRefusal::IsQueue),
            Received::Subscribed("/a".into(), 0u64.into()),
            refused("/a", ValueRefusal::AlreadySubscribed),
            refused("/a", ValueRefusal::TooMany),
        ]
    );
    let taken = link.subscribe(&mut harness.core, 0, "/a", Policy::Conflate, harness.now);
    assert_eq!(taken, Err(Violation::NumberTaken(0)));
    let far = link.subscribe(&mut harness.core, 900_000, "/a", Policy::Conflate, harness.now);
    assert_eq!(far, Err(Violation::NumberTooFar(900_000)));
}

#[test]
fn any_number_of_refused_subscriptions_leaves_the_link_open() {
    let mut harness = CoreHarness::new();
    harness.publish("/a", 0u64);
    let link = harness.link();
    for number in 0..70_000 {
        link.subscribe(&mut harness.core, number, "/x", Policy::Conflate, harness.now).unwrap();
        link.received();
    }
    harness.subscribe(&link, 70_000, "/a", Policy::Conflate);
    assert_eq!(link.received(), [Received::Subscribed("/a".into(), 0u64.into())]);
}

#[test]
fn link_that_attaches_after_all_were_ended_ends_at_once() {
    let mut harness = CoreHarness::new();
    let before = harness.link();
    harness.core.end_all("it is stopping");
    let after = harness.link();
    for link in [before, after] {
        assert_eq!(link.ended().as_deref(), Some("it is stopping"));
    }
}

#[test]
fn unsubscribed_value_can_be_subscribed_again() {
    let mut harness = CoreHarness::new();
    let a = harness.publish("/a", 0u64);
    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    assert_eq!(harness.core.subscribers(a), 1);
    link.unsubscribe(&mut harness.core, &[0, 0, 17]);
    assert_eq!(harness.core.subscribers(a), 0);
    harness.set(a, 1u64);
    let mut received = link.received();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    harness.set(a, 2u64);
    received.extend(link.received());
    let expected = [
        Received::Subscribed("/a".into(), 0u64.into()),
        Received::Ended("/a".into(), SubscriptionEnd::Unsubscribed),
        Received::Subscribed("/a".into(), 1u64.into()),
        update("/a", 2u64),
    ];
    assert_eq!(received, expected);
    let (left, _) = harness.core.link_down(link.number());
    assert_eq!(left, [a]);
    harness.core.leave(link.number(), &left);
    assert_eq!((harness.core.subscribers(a), harness.core.sets.len()), (0, 1));
}

#[test]
fn nearest_default_creates_declines_or_times_out() {
    let mut harness = CoreHarness::new();
    let (above, _) = harness.core.publish_default(&path("/d")).unwrap();
    let (id, _) = harness.core.publish_default(&path("/d/near")).unwrap();
    let link = harness.link();
    for (number, text) in
        ["/d/near/a", "/d/near/b", "/d/near/c", "/dx", "/d/near/a"].iter().enumerate()
    {
        harness.subscribe(&link, number as u32, text, Policy::Conflate);
    }
    assert_eq!(link.received(), [Received::Refused("/dx".into(), ValueRefusal::NotHere)]);
    assert_eq!(harness.core.next_request(&path("/d"), above), NextRequest::Empty);
    let near = path("/d/near");
    let request_result = ["/d/near/a", "/d/near/b", "/d/near/c"].map(|text| {
        let NextRequest::Ready(at, request) = harness.core.next_request(&near, id) else {
            panic!()
        };
        assert_eq!(at, path(text));
        request
    });
    assert_eq!(harness.core.next_request(&near, id), NextRequest::Empty);
    harness.publish("/d/near/a", 1u64);
    harness.core.decline(&path("/d/near/b"), request_result[1], Some("no"));
    harness.pass(VALUE_REQUEST_WAIT - MS);
    assert_eq!(
        link.received(),
        [
            Received::Subscribed("/d/near/a".into(), 1u64.into()),
            Received::Refused("/d/near/a".into(), ValueRefusal::AlreadySubscribed),
            Received::Refused("/d/near/b".into(), ValueRefusal::Declined),
        ]
    );
    harness.pass(MS);
    assert_eq!(link.received(), [Received::Refused("/d/near/c".into(), ValueRefusal::NoAnswer)]);
    assert_eq!(harness.core.next_deadline(), None);

    harness.subscribe(&link, 1, "/d/near/e", Policy::Conflate);
    assert!(harness.core.unpublish_default(&near, id));
    assert_eq!(link.received(), [Received::Refused("/d/near/e".into(), ValueRefusal::Declined)]);
    assert_eq!(harness.core.next_request(&near, id), NextRequest::Gone);
}

#[test]
fn late_decline_does_not_affect_a_new_request() {
    let mut harness = CoreHarness::new();
    let (id, _) = harness.core.publish_default(&path("/d")).unwrap();
    let link = harness.link();
    harness.subscribe(&link, 0, "/d/a", Policy::Conflate);
    let NextRequest::Ready(_, first) = harness.core.next_request(&path("/d"), id) else { panic!() };
    harness.subscribe(&link, 1, "/d/unseen", Policy::Conflate);
    harness.pass(VALUE_REQUEST_WAIT);
    assert_eq!(link.received().len(), 2, "no program answered");
    assert_eq!(harness.core.next_request(&path("/d"), id), NextRequest::Empty);
    harness.subscribe(&link, 0, "/d/a", Policy::Conflate);
    harness.core.decline(&path("/d/a"), first, None);
    assert_eq!(link.received(), [], "it declined the first request");
    assert!(matches!(harness.core.next_request(&path("/d"), id), NextRequest::Ready(..)));
    assert_eq!(harness.core.next_request(&path("/d"), id), NextRequest::Empty, "requested once");
}

#[test]
fn hot_value_does_not_starve_other_values() {
    let mut harness = CoreHarness::new();
    let payload = |n: u64| Value::Bytes(vec![n as u8; 4_096].into());
    let (hot, other) = (harness.publish("/hot", payload(0)), harness.publish("/other", 0u64));
    let link = harness.link();
    harness.subscribe(&link, 0, "/hot", Policy::DropOldest);
    harness.subscribe(&link, 1, "/other", Policy::Conflate);
    drop(link.received());
    link.stop();
    let more = |harness: &mut CoreHarness| (0..200).for_each(|n| harness.set(hot, payload(n)));
    (0..5).for_each(|_| more(&mut harness));
    harness.set(other, 7u64);
    let mut received = Vec::new();
    for _ in 0..20 {
        assert!(link.go_on_once(&mut harness.core), "the hot value never ends");
        received.extend(link.received());
        more(&mut harness);
    }
    assert!(received.contains(&update("/other", 7u64)));
    link.go_on(&mut harness.core);
    assert_eq!(link.received().last(), Some(&update("/hot", payload(199))));
}

#[test]
fn flush_covers_the_updates_since_a_turn_began() {
    let mut harness = CoreHarness::new();
    let payload = |n: u8| Value::Bytes(vec![n; CHUNK_BYTES / 2].into());
    let hot = harness.publish("/hot", payload(0));
    // It has room for one frame of two updates at a time.
    let link = Subscriber::new(2 * CHUNK_BYTES);
    link.join(&mut harness.core);
    harness.subscribe(&link, 0, "/hot", Policy::DropOldest);
    link.stop();
    (1..=4).for_each(|n| harness.set(hot, payload(n)));
    assert!(link.go_on_once(&mut harness.core));
    harness.set(hot, payload(5));
    let end = harness.core.backlog_ends()[0].1;
    let sent =
        |core: &mut Core<Subscriber>| core.links.get_mut(link.number()).unwrap().backlog.sent();
    while sent(&mut harness.core) < end {
        assert!(link.go_on_once(&mut harness.core));
    }
    assert_eq!(link.received().last(), Some(&update("/hot", payload(5))));
}

#[test]
fn stopping_writes_does_not_block_updates() {
    let mut harness = CoreHarness::new();
    let a = harness.publish("/a", 0u64);
    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    let _bell = harness.core.accept_writes(a).unwrap();
    harness.core.write(link.number(), write(1, true, 0), |_| true, harness.now).unwrap();
    drop(link.received());
    harness.core.stop_writes(a);
    assert_eq!(link.received(), [answered(1, Err(WriteRefusal::NotWritable))]);
    harness.set(a, 1u64);
    assert_eq!(link.received(), [update("/a", 1u64)]);
}

#[test]
fn unread_answers_and_waiting_writes_are_bounded_in_bytes() {
    let mut harness = CoreHarness::new();
    let a = harness.publish("/a", 0u64);
    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    let _bell = harness.core.accept_writes(a).unwrap();
    drop(link.received());
    let large = || Value::Bytes(vec![7; 1_000_000].into());
    link.stop();
    let mut sent = 0;
    while link.ended().is_none() {
        sent += 1;
        harness.core.write(link.number(), write(sent, true, 0), |_| true, harness.now).unwrap();
        let write = harness.core.next_write(a, harness.now).unwrap().unwrap();
        harness.core.answer(write.id.unwrap(), Ok(large()));
        assert!(sent < 100, "the answers are not bounded");
    }
    assert!(link.ended().unwrap().contains("answers to its writes"));

    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    drop(link.received());
    let written = |n| WriteValue { value: large(), ..write(n, true, 0) };
    for n in 0..20 {
        harness.core.write(link.number(), written(n), |_| true, harness.now).unwrap();
    }
    let refused = link.received().len();
    assert_eq!(refused, 20 - VALUE_WRITES_BYTES_MAX / 1_000_100);
}

#[test]
fn metrics_are_requested_only_from_their_own_default() {
    let mut harness = CoreHarness::new();
    let (everything, _) = harness.core.publish_default(&path("/")).unwrap();
    let (own, _) = harness.core.publish_default(&path("/sys/publishers/p")).unwrap();
    let link = harness.link();
    harness.subscribe(&link, 0, "/sys/publishers/p/workers", Policy::Conflate);
    harness.subscribe(&link, 1, "/sys/replicas/r", Policy::Conflate);
    assert_eq!(
        link.received(),
        [Received::Refused("/sys/replicas/r".into(), ValueRefusal::NotHere)]
    );
    assert_eq!(harness.core.next_request(&path("/"), everything), NextRequest::Empty);
    let request_result = harness.core.next_request(&path("/sys/publishers/p"), own);
    let own = path("/sys/publishers/p/workers");
    assert!(matches!(request_result, NextRequest::Ready(at, _) if at == own));
}

#[test]
fn requests_to_defaults_are_bounded() {
    let mut harness = CoreHarness::new();
    let _ = harness.core.publish_default(&path("/d")).unwrap();
    let link = harness.link();
    for number in 0..VALUE_REQUESTS_MAX as u32 {
        harness.subscribe(&link, number, &format!("/d/{number}"), Policy::Conflate);
    }
    assert_eq!(link.received(), []);
    harness.subscribe(&link, VALUE_REQUESTS_MAX as u32, "/d/more", Policy::Conflate);
    assert_eq!(link.received(), [Received::Refused("/d/more".into(), ValueRefusal::NoAnswer)]);
    for n in 1..VALUE_DEFAULTS_MAX {
        assert!(harness.core.publish_default(&path(&format!("/e/{n}"))).is_ok());
    }
    let more = harness.core.publish_default(&path("/e/more"));
    assert!(matches!(more, Err(SlotRefusal::Full)));
    assert!(matches!(harness.core.publish_default(&path("/d")), Err(SlotRefusal::Taken)));
}

fn write(request: u32, receipt: bool, deadline_ms: u32) -> WriteValue {
    WriteValue { request, subscription: 0, receipt, deadline_ms, value: u64::from(request).into() }
}

fn answered(request: u32, outcome: Result<Value, WriteRefusal>) -> Received {
    let refused = |code| WriteRefused { code, reason: String::new() };
    Received::Written(Written { request, outcome: outcome.map_err(refused) })
}

#[test]
fn writes_are_answered_in_any_order() {
    let mut harness = CoreHarness::new();
    let a = harness.publish("/a", 0u64);
    let link = harness.link();
    let number = link.number();
    harness.core.write(number, write(1, true, 0), |_| true, harness.now).unwrap();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    harness.core.write(number, write(2, true, 0), |_| true, harness.now).unwrap();
    assert_eq!(
        link.received(),
        [
            answered(1, Err(WriteRefusal::NotSubscribed)),
            Received::Subscribed("/a".into(), 0u64.into()),
            answered(2, Err(WriteRefusal::NotWritable)),
        ]
    );
    let _bell = harness.core.accept_writes(a).unwrap();
    assert!(harness.core.accept_writes(a).is_none(), "one receiver");
    for n in 3..=6 {
        harness
            .core
            .write(number, write(n, n != 5, if n == 4 { 100 } else { 0 }), |_| true, harness.now)
            .unwrap();
    }
    let third = harness.core.next_write(a, harness.now).unwrap().unwrap();
    assert_eq!((&third.value, &*third.by), (&Value::U64(3), "subscriber"));
    harness.pass(99 * MS);
    assert_eq!(link.received(), []);
    harness.pass(MS);
    assert_eq!(link.received(), [answered(4, Err(WriteRefusal::Late))]);
    let fifth = harness.core.next_write(a, harness.now).unwrap().unwrap();
    assert_eq!((fifth.id, &fifth.value), (None, &Value::U64(5)), "an expired write is skipped");
    let sixth = harness.core.next_write(a, harness.now).unwrap().unwrap();
    harness.core.answer(sixth.id.unwrap(), Ok(60u64.into()));
    harness.core.answer(third.id.unwrap(), Ok(30u64.into()));
    harness.core.answer(third.id.unwrap(), Ok(31u64.into()));
    assert_eq!(link.received(), [answered(6, Ok(60u64.into())), answered(3, Ok(30u64.into()))]);
    harness.core.write(number, write(7, true, 0), |_| true, harness.now).unwrap();
    harness.core.unpublish(a);
    assert_eq!(harness.core.next_write(a, harness.now).err(), Some(()));
    let ended = Received::Ended("/a".into(), SubscriptionEnd::Unpublished);
    assert_eq!(link.received(), [ended, answered(7, Err(WriteRefusal::NotWritable))]);
}

#[test]
fn writes_of_a_client_that_lost_its_rights_are_dropped() {
    for unsubscribes in [false, true] {
        let mut harness = CoreHarness::new();
        let a = harness.publish("/a", 0u64);
        let (revoked, other) = (harness.link(), harness.link());
        let _bell = harness.core.accept_writes(a).unwrap();
        harness.subscribe(&revoked, 0, "/a", Policy::Conflate);
        harness.subscribe(&other, 0, "/a", Policy::Conflate);
        for (link, n, deadline_ms) in [(&revoked, 1, 100), (&other, 2, 0), (&revoked, 3, 0)] {
            let written = write(n, true, deadline_ms);
            harness.core.write(link.number(), written, |_| true, harness.now).unwrap();
        }
        if unsubscribes {
            revoked.unsubscribe(&mut harness.core, &[0]);
        }
        let (left, written) = harness.core.link_down(revoked.number());
        assert_eq!((left.len(), written.as_slice()), (usize::from(!unsubscribes), &[a][..]));
        harness.core.leave(revoked.number(), &left);
        harness.core.drop_writes_of(revoked.number(), &written);
        let next = harness.core.next_write(a, harness.now).unwrap().unwrap();
        assert_eq!(next.value, Value::U64(2));
        assert!(harness.core.next_write(a, harness.now).unwrap().is_none());
        assert_eq!(harness.core.next_deadline(), None, "nor do their deadlines remain");
    }
}

#[test]
fn waiting_writes_count_as_the_memory_that_they_take() {
    let mut harness = CoreHarness::new();
    let a = harness.publish("/a", 0u64);
    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    drop(link.received());
    let _bell = harness.core.accept_writes(a).unwrap();
    // 64 KiB on the wire.
    let nulls = Value::list(vec![Value::Null; 65_536]);
    let most = (VALUE_WRITES_BYTES_MAX / (65_536 * size_of::<Value>())) as u32;
    for n in 0..=most {
        let written = WriteValue { value: nulls.clone(), ..write(n, true, 0) };
        harness.core.write(link.number(), written, |_| true, harness.now).unwrap();
    }
    assert_eq!(link.received(), [answered(most, Err(WriteRefusal::TooMany))]);
}

#[test]
fn waiting_writes_are_bounded_per_value_and_link() {
    let mut harness = CoreHarness::new();
    let a = harness.publish("/a", 0u64);
    let link = harness.link();
    harness.subscribe(&link, 0, "/a", Policy::Conflate);
    drop(link.received());
    let _bell = harness.core.accept_writes(a).unwrap();
    for n in 0..VALUE_WRITES_WAITING_MAX as u32 {
        harness.core.write(link.number(), write(n, true, 0), |_| true, harness.now).unwrap();
    }
    harness.core.write(link.number(), write(9_999, true, 0), |_| true, harness.now).unwrap();
    assert_eq!(link.received(), [answered(9_999, Err(WriteRefusal::TooMany))]);
    // Received but not answered: they still count for the link.
    while harness.core.next_write(a, harness.now).unwrap().is_some() {}
    harness.core.write(link.number(), write(9_998, true, 0), |_| true, harness.now).unwrap();
    assert_eq!(link.received(), [answered(9_998, Err(WriteRefusal::TooMany))]);
    harness.core.write(link.number(), write(9_997, false, 0), |_| true, harness.now).unwrap();
    assert!(
        harness.core.next_write(a, harness.now).unwrap().is_some(),
        "a write without receipt does not count"
    );
}
