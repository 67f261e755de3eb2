//! The core against subscribers that read as they like, without sockets and in a time of the test's
//! own.

mod model;
mod subscriber;

use std::time::Duration;

use longshore_protocol::Value;
use longshore_protocol::messages::values::{
    Policy, SubscriptionEnd, ValueRefusal, WriteRefusal, WriteRefused, WriteValue, Written,
};

use self::subscriber::{Heard, Subscriber, path};
use super::*;
use crate::values::limits::*;

const MS: Duration = Duration::from_millis(1);

pub(super) struct World {
    pub(super) core: Core<Subscriber>,
    pub(super) now: Instant,
}

impl World {
    pub(super) fn new() -> World {
        World { core: Core::new(), now: Instant::now() }
    }

    fn publish(&mut self, text: &str, value: impl Into<Value>) -> SlotKey {
        self.core.publish(&path(text), value.into()).unwrap()
    }

    /// A link that reads everything at once, until it is told to stop.
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

fn update(text: &str, value: impl Into<Value>) -> Heard {
    Heard::Update(text.to_owned(), value.into())
}

#[test]
fn updates_are_encoded_once_for_all_links_of_a_set() {
    let mut world = World::new();
    let keys: Vec<_> = (0..50).map(|n| world.publish(&format!("/{n}"), 0u64)).collect();
    let links: Vec<_> = (0..4).map(|_| world.link()).collect();
    for (n, _) in keys.iter().enumerate() {
        // Half of the values have all links, half only the first two.
        for link in &links[..if n < 25 { 4 } else { 2 }] {
            world.subscribe(link, n as u32, &format!("/{n}"), Policy::Conflate);
        }
    }
    links.iter().for_each(|link| drop(link.frames()));
    let updates: Vec<_> = keys.iter().map(|key| (*key, Value::U64(7))).collect();
    world.core.commit(&updates);
    let frames: Vec<_> = links.iter().map(Subscriber::frames).collect();
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1, 1]);
    let at = |link: usize, frame: usize| frames[link][frame].parts()[0].as_ptr();
    assert!(at(0, 0) == at(3, 0) && at(1, 0) == at(2, 0), "one set's bytes are shared");
    assert!(at(0, 1) == at(1, 1) && at(0, 0) != at(0, 1));
    // Nobody's, the two, and no more: the sets on the way there are gone.
    assert_eq!(world.core.sets.len(), 3);
}

#[test]
fn a_link_without_room_gets_the_newest_of_each_value_once_there_is() {
    let mut world = World::new();
    let (a, b) = (world.publish("/a", 0u64), world.publish("/b", 0u64));
    let link = world.link();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    world.subscribe(&link, 1, "/b", Policy::DropOldest);
    drop(link.heard());
    link.stop();
    for n in 1..=5u64 {
        world.core.commit(&[(b, (10 * n).into()), (a, n.into())]);
    }
    assert_eq!(link.heard(), []);
    link.go_on(&mut world.core);
    let heard: Vec<_> =
        (1..=5u64).map(|n| update("/b", 10 * n)).chain([update("/a", 5u64)]).collect();
    assert_eq!(link.heard(), heard);
    world.set(a, 6u64);
    assert_eq!(link.heard(), [update("/a", 6u64)], "and from then on all again");
}

#[test]
fn a_subscription_that_leaves_out_nothing_ends_alone_when_something_would_be() {
    let mut world = World::new();
    let (a, b) = (world.publish("/a", 0u64), world.publish("/b", 0u64));
    let (link, other) = (world.link(), world.link());
    world.subscribe(&link, 0, "/a", Policy::Disconnect);
    world.subscribe(&link, 1, "/b", Policy::Conflate);
    world.subscribe(&other, 0, "/a", Policy::Disconnect);
    drop(link.heard());
    link.stop();
    world.core.commit(&[(a, 1u64.into()), (b, 1u64.into()), (a, 2u64.into())]);
    assert_eq!((link.ended(), world.core.subscribers(a)), (None, 1));
    world.core.commit(&[(a, 3u64.into()), (b, 3u64.into())]);
    link.go_on(&mut world.core);
    let ended = Heard::Ended("/a".into(), SubscriptionEnd::TooSlow);
    assert_eq!(link.heard(), [ended, update("/b", 3u64)], "the link and its other one go on");
    world.subscribe(&link, 0, "/a", Policy::Disconnect);
    world.set(a, 4u64);
    assert_eq!(link.heard(), [Heard::Subscribed("/a".into(), 3u64.into()), update("/a", 4u64)]);
    assert_eq!(other.ended(), None);
    assert_eq!(other.heard()[1..], [1u64, 2, 3, 4].map(|n| update("/a", n)));
}

#[test]
fn what_waits_for_a_stopped_link_is_bounded() {
    let mut world = World::new();
    let payload = |n: u64| Value::Bytes(vec![n as u8; 1_000].into());
    let keys: Vec<_> = (0..500).map(|n| world.publish(&format!("/{n}"), payload(0))).collect();
    let link = world.link();
    for number in 0..500 {
        let policy = if number < 250 { Policy::Conflate } else { Policy::DropOldest };
        world.subscribe(&link, number, &format!("/{number}"), policy);
    }
    drop(link.heard());
    link.stall();
    for n in 1..=200 {
        let updates: Vec<_> = keys.iter().map(|key| (*key, payload(n))).collect();
        world.core.commit(&updates);
    }
    assert!(link.queued() > VALUE_QUEUE_BYTES_MAX / 2 && link.queued() <= VALUE_QUEUE_BYTES_MAX);
    let backlog = world.core.backlog_of(&link);
    // The bound, and one value of each that may not go.
    assert!(backlog.0 <= VALUE_BACKLOG_BYTES_MAX + 250 * 2_000, "{backlog:?}");
    assert!(backlog.0 > VALUE_BACKLOG_BYTES_MAX / 2, "{backlog:?}");
    assert_eq!(backlog.1, 500, "one place in the line for each");

    let one = world.publish("/one", 0u64);
    world.subscribe(&link, 500, "/one", Policy::DropOldest);
    link.go_on(&mut world.core);
    link.stall();
    link.fill();
    for n in 0..5_000u64 {
        world.set(one, n);
    }
    drop(link.heard());
    link.go_on(&mut world.core);
    let heard = link.heard();
    assert_eq!(heard.len(), VALUE_BACKLOG_UPDATES_MAX, "of one value");
    assert_eq!(heard.last(), Some(&update("/one", 4_999u64)));
    assert_eq!(world.core.backlog_of(&link), (0, 0));
}

#[test]
fn a_value_that_ends_while_its_subscriber_is_stopped_still_shows_its_last() {
    let mut world = World::new();
    for policy in [Policy::Conflate, Policy::DropOldest] {
        let a = world.publish("/a", 0u64);
        let link = world.link();
        world.subscribe(&link, 0, "/a", policy);
        drop(link.heard());
        link.stop();
        world.set(a, 1u64);
        assert_eq!(world.core.unpublish(a), Some(path("/a")));
        // Another value takes the place, and its number.
        let b = world.publish("/b", 100u64);
        assert_eq!(b.slot, a.slot);
        world.subscribe(&link, 1, "/b", policy);
        world.set(b, 101u64);
        link.go_on(&mut world.core);
        assert_eq!(
            link.heard(),
            [
                update("/a", 1u64),
                Heard::Ended("/a".into(), SubscriptionEnd::Unpublished),
                Heard::Subscribed("/b".into(), 101u64.into()),
            ]
        );
        world.set(a, 7u64);
        assert_eq!(world.core.current(b), Some(Value::U64(101)), "the old handle reaches nothing");
        world.core.unpublish(b);
    }
}

#[test]
fn what_cannot_be_followed_is_refused_with_its_code_and_the_number_is_free_again() {
    let mut world = World::new();
    world.publish("/a", 0u64);
    let link = world.link();
    let mut heard = Vec::new();
    for text in ["/nowhere", "/queue"] {
        world.subscribe(&link, 0, text, Policy::Conflate);
        heard.extend(link.heard());
    }
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    world.subscribe(&link, 1, "/a", Policy::Conflate);
    link.subscribe(&mut world.core, 1 << 20, "/a", Policy::Conflate, world.now).unwrap();
    let refused = |text: &str, code| Heard::Refused(text.to_owned(), code);
    heard.extend(link.heard());
    assert_eq!(
        heard,
        [
            refused("/nowhere", ValueRefusal::NotHere),
            refused("/queue", ValueRefusal::IsQueue),
            Heard::Subscribed("/a".into(), 0u64.into()),
            refused("/a", ValueRefusal::AlreadySubscribed),
            refused("/a", ValueRefusal::TooMany),
        ]
    );
    let taken = link.subscribe(&mut world.core, 0, "/a", Policy::Conflate, world.now);
    assert_eq!(taken, Err(Misuse::NumberTaken(0)));
    let far = link.subscribe(&mut world.core, 900_000, "/a", Policy::Conflate, world.now);
    assert_eq!(far, Err(Misuse::NumberTooFar(900_000)));
}

#[test]
fn an_unsubscribed_value_is_followed_no_more_and_may_be_again() {
    let mut world = World::new();
    let a = world.publish("/a", 0u64);
    let link = world.link();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    assert_eq!(world.core.subscribers(a), 1);
    link.unsubscribe(&mut world.core, &[0, 0, 17]);
    assert_eq!(world.core.subscribers(a), 0);
    world.set(a, 1u64);
    let mut heard = link.heard();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    world.set(a, 2u64);
    heard.extend(link.heard());
    let expected = [
        Heard::Subscribed("/a".into(), 0u64.into()),
        Heard::Ended("/a".into(), SubscriptionEnd::Unsubscribed),
        Heard::Subscribed("/a".into(), 1u64.into()),
        update("/a", 2u64),
    ];
    assert_eq!(heard, expected);
    let left = world.core.link_down(link.number());
    assert_eq!(left, [a]);
    world.core.leave(link.number(), &left);
    assert_eq!((world.core.subscribers(a), world.core.sets.len()), (0, 1));
}

#[test]
fn the_nearest_default_is_asked_and_makes_or_declines_or_is_late() {
    let mut world = World::new();
    let (above, _) = world.core.publish_default(&path("/d")).unwrap();
    let (id, _) = world.core.publish_default(&path("/d/near")).unwrap();
    let link = world.link();
    for (number, text) in
        ["/d/near/a", "/d/near/b", "/d/near/c", "/dx", "/d/near/a"].iter().enumerate()
    {
        world.subscribe(&link, number as u32, text, Policy::Conflate);
    }
    assert_eq!(link.heard(), [Heard::Refused("/dx".into(), ValueRefusal::NotHere)]);
    assert_eq!(world.core.next_request(&path("/d"), above), Requests::Nothing);
    let near = path("/d/near");
    let asked = ["/d/near/a", "/d/near/b", "/d/near/c"].map(|text| {
        let Requests::Asked(at, request) = world.core.next_request(&near, id) else { panic!() };
        assert_eq!(at, path(text));
        request
    });
    assert_eq!(world.core.next_request(&near, id), Requests::Nothing);
    world.publish("/d/near/a", 1u64);
    world.core.decline(&path("/d/near/b"), asked[1], Some("no"));
    world.pass(VALUE_REQUEST_WAIT - MS);
    assert_eq!(
        link.heard(),
        [
            Heard::Subscribed("/d/near/a".into(), 1u64.into()),
            Heard::Refused("/d/near/a".into(), ValueRefusal::AlreadySubscribed),
            Heard::Refused("/d/near/b".into(), ValueRefusal::Declined),
        ]
    );
    world.pass(MS);
    assert_eq!(link.heard(), [Heard::Refused("/d/near/c".into(), ValueRefusal::NoAnswer)]);
    assert_eq!(world.core.next_deadline(), None);

    world.subscribe(&link, 1, "/d/near/e", Policy::Conflate);
    assert!(world.core.unpublish_default(&near, id));
    assert_eq!(link.heard(), [Heard::Refused("/d/near/e".into(), ValueRefusal::Declined)]);
    assert_eq!(world.core.next_request(&near, id), Requests::Gone);
}

#[test]
fn what_was_asked_in_vain_leaves_nothing_and_an_old_refusal_is_not_the_new_ones() {
    let mut world = World::new();
    let (id, _) = world.core.publish_default(&path("/d")).unwrap();
    let link = world.link();
    world.subscribe(&link, 0, "/d/a", Policy::Conflate);
    let Requests::Asked(_, first) = world.core.next_request(&path("/d"), id) else { panic!() };
    world.subscribe(&link, 1, "/d/unseen", Policy::Conflate);
    world.pass(VALUE_REQUEST_WAIT);
    assert_eq!(link.heard().len(), 2, "nobody answered");
    assert_eq!(world.core.next_request(&path("/d"), id), Requests::Nothing);
    world.subscribe(&link, 0, "/d/a", Policy::Conflate);
    world.core.decline(&path("/d/a"), first, None);
    assert_eq!(link.heard(), [], "that was the first one's");
    assert!(matches!(world.core.next_request(&path("/d"), id), Requests::Asked(..)));
    assert_eq!(world.core.next_request(&path("/d"), id), Requests::Nothing, "once");
}

#[test]
fn a_value_that_changes_all_the_time_keeps_no_other_from_being_said() {
    let mut world = World::new();
    let payload = |n: u64| Value::Bytes(vec![n as u8; 4_096].into());
    let (hot, other) = (world.publish("/hot", payload(0)), world.publish("/other", 0u64));
    let link = world.link();
    world.subscribe(&link, 0, "/hot", Policy::DropOldest);
    world.subscribe(&link, 1, "/other", Policy::Conflate);
    drop(link.heard());
    link.stop();
    let more = |world: &mut World| (0..200).for_each(|n| world.set(hot, payload(n)));
    (0..5).for_each(|_| more(&mut world));
    world.set(other, 7u64);
    let mut heard = Vec::new();
    for _ in 0..20 {
        assert!(link.go_on_once(&mut world.core), "the hot one never ends");
        heard.extend(link.heard());
        more(&mut world);
    }
    assert!(heard.contains(&update("/other", 7u64)));
    link.go_on(&mut world.core);
    assert_eq!(link.heard().last(), Some(&update("/hot", payload(199))));
}

#[test]
fn a_program_that_takes_no_more_writes_holds_up_no_update() {
    let mut world = World::new();
    let a = world.publish("/a", 0u64);
    let link = world.link();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    let _bell = world.core.take_writes(a).unwrap();
    world.core.write(link.number(), write(1, true, 0), world.now).unwrap();
    drop(link.heard());
    world.core.stop_writes(a);
    assert_eq!(link.heard(), [answered(1, Err(WriteRefusal::NotWritable))]);
    world.set(a, 1u64);
    assert_eq!(link.heard(), [update("/a", 1u64)]);
}

#[test]
fn answers_that_nobody_reads_are_bounded_and_so_are_the_bytes_of_writes() {
    let mut world = World::new();
    let a = world.publish("/a", 0u64);
    let link = world.link();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    let _bell = world.core.take_writes(a).unwrap();
    drop(link.heard());
    let large = || Value::Bytes(vec![7; 1_000_000].into());
    link.stop();
    let mut sent = 0;
    while link.ended().is_none() {
        sent += 1;
        world.core.write(link.number(), write(sent, true, 0), world.now).unwrap();
        let write = world.core.next_write(a, world.now).unwrap().unwrap();
        world.core.answer(write.id.unwrap(), Ok(large()));
        assert!(sent < 100, "it may fill the memory");
    }
    assert!(link.ended().unwrap().contains("answers to its writes"));

    let link = world.link();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    drop(link.heard());
    let written = |n| WriteValue { value: large(), ..write(n, true, 0) };
    for n in 0..20 {
        world.core.write(link.number(), written(n), world.now).unwrap();
    }
    let refused = link.heard().len();
    assert_eq!(refused, 20 - VALUE_WRITES_BYTES_MAX / 1_000_100);
}

#[test]
fn metrics_are_asked_of_their_own_default_alone() {
    let mut world = World::new();
    let (everything, _) = world.core.publish_default(&path("/")).unwrap();
    let (own, _) = world.core.publish_default(&path("/sys/publishers/p")).unwrap();
    let link = world.link();
    world.subscribe(&link, 0, "/sys/publishers/p/workers", Policy::Conflate);
    world.subscribe(&link, 1, "/sys/replicas/r", Policy::Conflate);
    assert_eq!(link.heard(), [Heard::Refused("/sys/replicas/r".into(), ValueRefusal::NotHere)]);
    assert_eq!(world.core.next_request(&path("/"), everything), Requests::Nothing);
    let asked = world.core.next_request(&path("/sys/publishers/p"), own);
    let own = path("/sys/publishers/p/workers");
    assert!(matches!(asked, Requests::Asked(at, _) if at == own));
}

#[test]
fn requests_of_defaults_are_bounded() {
    let mut world = World::new();
    let _ = world.core.publish_default(&path("/d")).unwrap();
    let link = world.link();
    for number in 0..VALUE_REQUESTS_MAX as u32 {
        world.subscribe(&link, number, &format!("/d/{number}"), Policy::Conflate);
    }
    assert_eq!(link.heard(), []);
    world.subscribe(&link, VALUE_REQUESTS_MAX as u32, "/d/more", Policy::Conflate);
    assert_eq!(link.heard(), [Heard::Refused("/d/more".into(), ValueRefusal::NoAnswer)]);
    for n in 1..VALUE_DEFAULTS_MAX {
        assert!(world.core.publish_default(&path(&format!("/e/{n}"))).is_ok());
    }
    let more = world.core.publish_default(&path("/e/more"));
    assert!(matches!(more, Err(SlotRefusal::Full)));
    assert!(matches!(world.core.publish_default(&path("/d")), Err(SlotRefusal::Taken)));
}

fn write(request: u32, receipt: bool, deadline_ms: u32) -> WriteValue {
    WriteValue { request, subscription: 0, receipt, deadline_ms, value: u64::from(request).into() }
}

fn answered(request: u32, outcome: Result<Value, WriteRefusal>) -> Heard {
    let refused = |code| WriteRefused { code, reason: String::new() };
    Heard::Written(Written { request, outcome: outcome.map_err(refused) })
}

#[test]
fn writes_are_answered_in_any_order_and_one_that_takes_long_holds_up_none() {
    let mut world = World::new();
    let a = world.publish("/a", 0u64);
    let link = world.link();
    let number = link.number();
    world.core.write(number, write(1, true, 0), world.now).unwrap();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    world.core.write(number, write(2, true, 0), world.now).unwrap();
    assert_eq!(
        link.heard(),
        [
            answered(1, Err(WriteRefusal::NotSubscribed)),
            Heard::Subscribed("/a".into(), 0u64.into()),
            answered(2, Err(WriteRefusal::NotWritable)),
        ]
    );
    let _bell = world.core.take_writes(a).unwrap();
    assert!(world.core.take_writes(a).is_none(), "one taker");
    for n in 3..=6 {
        world
            .core
            .write(number, write(n, n != 5, if n == 4 { 100 } else { 0 }), world.now)
            .unwrap();
    }
    let third = world.core.next_write(a, world.now).unwrap().unwrap();
    assert_eq!((&third.value, &*third.by), (&Value::U64(3), "subscriber"));
    world.pass(99 * MS);
    assert_eq!(link.heard(), []);
    world.pass(MS);
    assert_eq!(link.heard(), [answered(4, Err(WriteRefusal::Late))]);
    let fifth = world.core.next_write(a, world.now).unwrap().unwrap();
    assert_eq!((fifth.id, &fifth.value), (None, &Value::U64(5)), "a late one is not handed out");
    let sixth = world.core.next_write(a, world.now).unwrap().unwrap();
    world.core.answer(sixth.id.unwrap(), Ok(60u64.into()));
    world.core.answer(third.id.unwrap(), Ok(30u64.into()));
    world.core.answer(third.id.unwrap(), Ok(31u64.into()));
    assert_eq!(link.heard(), [answered(6, Ok(60u64.into())), answered(3, Ok(30u64.into()))]);
    world.core.write(number, write(7, true, 0), world.now).unwrap();
    world.core.unpublish(a);
    assert_eq!(world.core.next_write(a, world.now).err(), Some(()));
    let ended = Heard::Ended("/a".into(), SubscriptionEnd::Unpublished);
    assert_eq!(link.heard(), [ended, answered(7, Err(WriteRefusal::NotWritable))]);
}

#[test]
fn writes_that_wait_are_bounded_by_value_and_by_link() {
    let mut world = World::new();
    let a = world.publish("/a", 0u64);
    let link = world.link();
    world.subscribe(&link, 0, "/a", Policy::Conflate);
    drop(link.heard());
    let _bell = world.core.take_writes(a).unwrap();
    for n in 0..VALUE_WRITES_WAITING_MAX as u32 {
        world.core.write(link.number(), write(n, true, 0), world.now).unwrap();
    }
    world.core.write(link.number(), write(9_999, true, 0), world.now).unwrap();
    assert_eq!(link.heard(), [answered(9_999, Err(WriteRefusal::TooMany))]);
    // Taken, and not answered: they count for the link still.
    while world.core.next_write(a, world.now).unwrap().is_some() {}
    world.core.write(link.number(), write(9_998, true, 0), world.now).unwrap();
    assert_eq!(link.heard(), [answered(9_998, Err(WriteRefusal::TooMany))]);
    world.core.write(link.number(), write(9_997, false, 0), world.now).unwrap();
    assert!(
        world.core.next_write(a, world.now).unwrap().is_some(),
        "without an answer there is none to wait for"
    );
}
