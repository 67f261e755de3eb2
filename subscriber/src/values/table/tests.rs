//! The subscription table against correct and faulty publishers.

use longshore_protocol::FrameWriter;
use longshore_protocol::messages::values::{SubscriptionEnd, ValueRefusal};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::*;
use crate::values::event::KeyedEvent;
use crate::values::subscription_core::SubscriptionKind;
use crate::values::updates::{UPDATES_BYTES_MAX, Updates as UpdatesReader};

const NOW: Duration = Duration::from_secs(7);

fn path(n: usize) -> Path {
    Path::new(&format!("/v/{n}")).unwrap()
}

struct Link {
    link: Arc<ValueLink>,
    refusals: RefusalSender,
    next: u64,
}

impl Link {
    fn new() -> Link {
        let link = ValueLink::new(PublisherId([1; 16]));
        Link { link, refusals: mpsc::unbounded_channel().0, next: 1 }
    }

    fn with<T>(&self, what: impl FnOnce(&mut SubscriptionTable) -> T) -> T {
        what(&mut self.link.table.lock())
    }

    fn subscribe(
        &mut self,
        n: usize,
        reader: &UpdatesReader,
        policy: Policy,
    ) -> Result<Arc<SubscriptionCore>, Arc<str>> {
        let kind = SubscriptionKind::Once(Mutex::new(None));
        let sub = SubscriptionCore::new(self.next, path(n), policy, reader.sink().0, kind);
        self.next += 1;
        self.with(|table| table.add(NOW, &self.link, &sub, &self.refusals))?;
        Ok(sub)
    }

    /// Subscribes to paths 0 to `count`, each with its own number at the publisher.
    fn subscribe_all(
        &mut self,
        count: usize,
        reader: &UpdatesReader,
        policy: Policy,
    ) -> Vec<Arc<SubscriptionCore>> {
        let subs = (0..count).map(|n| self.subscribe(n, reader, policy).unwrap()).collect();
        while let Some(ToValuePublisher::Subscribe(requests)) =
            self.with(SubscriptionTable::outgoing)
        {
            for request in requests {
                let number: u32 = request.path.as_str()[3..].parse().unwrap();
                self.subscribed(request.subscription, number).unwrap();
            }
        }
        subs
    }

    fn subscribed(&self, subscription: u32, number: u32) -> Result<(), ProtocolViolation> {
        let subscribed = Subscribed { subscription, number, value: Value::U64(0) };
        self.receive(FromValuePublisher::Subscribed(vec![subscribed]))
    }

    fn receive(&self, message: FromValuePublisher) -> Result<(), ProtocolViolation> {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        self.with(|table| table.take_frame(NOW, out.into_body()))
    }

    fn update(&self, updates: &[(u32, Value)]) {
        let updates = updates.iter().map(|(number, value)| (*number, value)).collect();
        self.receive(FromValuePublisher::Updates(updates)).unwrap();
    }
}

/// The updates that are pending now.
fn read(reader: &mut UpdatesReader) -> Vec<KeyedEvent> {
    let next = std::pin::pin!(reader.next());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match next.poll(&mut context) {
        std::task::Poll::Ready(batch) => batch.to_vec(),
        std::task::Poll::Pending => Vec::new(),
    }
}

#[test]
fn protocol_violations_end_the_link() {
    let reader = UpdatesReader::new(100);
    let fresh = || {
        let mut link = Link::new();
        link.subscribe_all(2, &reader, Policy::Conflate);
        link
    };
    let ended = |subscription| {
        let end = SubscriptionEnd::Unpublished;
        FromValuePublisher::Ended(vec![SubscriptionEnded { subscription, end }])
    };
    let refused = |subscription| {
        let (code, reason) = (ValueRefusal::NotHere, String::new());
        FromValuePublisher::Refused { subscription, code, reason }
    };
    assert_eq!(fresh().subscribed(0, 9), Err(ProtocolViolation::Unrequested), "already active");
    assert_eq!(fresh().subscribed(2, 9), Err(ProtocolViolation::Unrequested), "not requested");
    assert_eq!(fresh().receive(refused(0)), Err(ProtocolViolation::Unrequested));
    assert_eq!(fresh().receive(ended(2)), Err(ProtocolViolation::Unrequested));
    let mut link = fresh();
    link.subscribe(2, &reader, Policy::Conflate).unwrap();
    link.with(SubscriptionTable::outgoing);
    assert_eq!(link.subscribed(2, 1), Err(ProtocolViolation::SameNumber(1)));
    let mut link = fresh();
    link.subscribe(2, &reader, Policy::Conflate).unwrap();
    link.with(SubscriptionTable::outgoing);
    assert_eq!(link.subscribed(2, NUMBERS_MAX), Err(ProtocolViolation::Number(NUMBERS_MAX)));
}

#[test]
fn a_full_table_refuses_subscriptions_until_a_number_is_freed() {
    let reader = UpdatesReader::new(100);
    let mut link = Link::new();
    link.with(|table| table.subscriptions_max = 2);
    let subs = link.subscribe_all(2, &reader, Policy::Conflate);
    let full = link.subscribe(2, &reader, Policy::Conflate).unwrap_err();
    assert_eq!(&*full, "the link has reached its limit of subscriptions");
    link.subscribe(0, &reader, Policy::Conflate).expect("it is shared");
    subs[1].cancel();
    assert_eq!(
        link.with(SubscriptionTable::outgoing),
        Some(ToValuePublisher::Unsubscribe(vec![1]))
    );
    assert!(
        link.subscribe(2, &reader, Policy::Conflate).is_err(),
        "the number is free once the publisher confirms"
    );
    let end = SubscriptionEnd::Unsubscribed;
    link.receive(FromValuePublisher::Ended(vec![SubscriptionEnded { subscription: 1, end }]))
        .unwrap();
    link.subscribe(2, &reader, Policy::Conflate).unwrap();
    let Some(ToValuePublisher::Subscribe(requests)) = link.with(SubscriptionTable::outgoing) else {
        panic!()
    };
    assert_eq!((requests[0].subscription, &requests[0].path), (1, &path(2)));
}

#[test]
fn subscriptions_are_requested_in_the_order_of_their_numbers() {
    let reader = UpdatesReader::new(100);
    let mut link = Link::new();
    for n in 0..70_000 {
        link.subscribe(n, &reader, Policy::Conflate).unwrap();
    }
    let mut next = 0;
    while let Some(ToValuePublisher::Subscribe(requests)) = link.with(SubscriptionTable::outgoing) {
        for request in requests {
            assert_eq!(request.subscription, next, "publishers refuse numbers far beyond the last");
            next += 1;
        }
    }
    assert_eq!(next, 70_000);
}

#[test]
fn subscriptions_take_the_numbers_of_those_dropped_before_their_request() {
    let reader = UpdatesReader::new(100);
    let mut link = Link::new();
    let subs: Vec<_> =
        (0..70_000).map(|n| link.subscribe(n, &reader, Policy::Conflate).unwrap()).collect();
    subs[..66_000].iter().for_each(|sub| sub.cancel());
    let mut next = 0;
    while let Some(ToValuePublisher::Subscribe(requests)) = link.with(SubscriptionTable::outgoing) {
        for request in requests {
            let SubscribeValue { subscription, path: requested, .. } = request;
            assert_eq!((subscription, requested), (next, path(66_000 + next as usize)));
            link.subscribed(subscription, subscription).unwrap();
            next += 1;
        }
    }
    assert_eq!(next, 4_000);
    assert!(subs[66_000..].iter().all(|sub| sub.is_alive()));
    link.subscribe(66_000, &reader, Policy::Conflate).unwrap();
    assert_eq!(link.with(SubscriptionTable::outgoing), None, "the path is found at its number");
    subs[66_001].cancel();
    assert_eq!(
        link.with(SubscriptionTable::outgoing),
        Some(ToValuePublisher::Unsubscribe(vec![1]))
    );
}

#[test]
fn writes_go_only_to_their_own_subscription() {
    let reader = UpdatesReader::new(100);
    let mut link = Link::new();
    let subs = link.subscribe_all(1, &reader, Policy::Conflate);
    let write = |sub: &SubscriptionCore| sub.write(Value::U64(1), None).unwrap();
    write(&subs[0]);
    subs[0].cancel();
    let Some(ToValuePublisher::Write(_)) = link.with(SubscriptionTable::outgoing) else { panic!() };
    assert_eq!(
        link.with(SubscriptionTable::outgoing),
        Some(ToValuePublisher::Unsubscribe(vec![0]))
    );

    let mut link = Link::new();
    let subs = link.subscribe_all(1, &reader, Policy::Conflate);
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    subs[0].write(Value::U64(1), Some((answer, NOW))).unwrap();
    let end = SubscriptionEnd::Unpublished;
    link.receive(FromValuePublisher::Ended(vec![SubscriptionEnded { subscription: 0, end }]))
        .unwrap();
    link.subscribe(7, &reader, Policy::Conflate).unwrap();
    let Some(ToValuePublisher::Subscribe(requests)) = link.with(SubscriptionTable::outgoing) else {
        panic!()
    };
    assert_eq!((requests[0].subscription, &requests[0].path), (0, &path(7)));
    assert_eq!(link.with(SubscriptionTable::outgoing), None, "the write was for another value");
    assert_eq!(answered.try_recv().unwrap(), Err(crate::WriteError::Dead));
}

#[test]
fn the_wire_policy_is_that_of_the_oldest_subscription() {
    let reader = UpdatesReader::new(100);
    let mut link = Link::new();
    // Dropped before the answer; another subscription has a different policy.
    let first = link.subscribe(0, &reader, Policy::Conflate).unwrap();
    let policy = |message| match message {
        Some(ToValuePublisher::Subscribe(requests)) => requests[0].policy,
        other => panic!("{other:?}"),
    };
    assert_eq!(policy(link.with(SubscriptionTable::outgoing)), Policy::Conflate);
    first.cancel();
    let second = link.subscribe(0, &reader, Policy::Disconnect).unwrap();
    link.subscribed(0, 5).unwrap();
    assert!(!second.is_alive());
    let end = SubscriptionEnd::Unsubscribed;
    let ended = || FromValuePublisher::Ended(vec![SubscriptionEnded { subscription: 0, end }]);
    assert_eq!(
        link.with(SubscriptionTable::outgoing),
        Some(ToValuePublisher::Unsubscribe(vec![0]))
    );
    link.receive(ended()).unwrap();
    assert_eq!(policy(link.with(SubscriptionTable::outgoing)), Policy::Disconnect);
    link.subscribed(0, 5).unwrap();
    assert!(second.is_alive());
    // The same while it is unsubscribing.
    second.cancel();
    link.subscribe(0, &reader, Policy::DropOldest).unwrap();
    assert_eq!(
        link.with(SubscriptionTable::outgoing),
        Some(ToValuePublisher::Unsubscribe(vec![0]))
    );
    link.receive(ended()).unwrap();
    assert_eq!(policy(link.with(SubscriptionTable::outgoing)), Policy::DropOldest);
}

#[test]
fn updates_after_the_end_of_a_subscription_are_dropped() {
    let mut reader = UpdatesReader::new(100);
    let mut link = Link::new();
    let subs = link.subscribe_all(2, &reader, Policy::Conflate);
    read(&mut reader);
    subs[0].cancel();
    link.update(&[(0, Value::U64(1)), (1, Value::U64(2)), (777, Value::U64(3))]);
    assert_eq!(read(&mut reader), [(subs[1].key, Event::Update(Value::U64(2)))]);
}

#[test]
fn pending_updates_are_bounded_in_bytes() {
    let mut reader = UpdatesReader::new(1_000_000);
    let mut link = Link::new();
    let subs = link.subscribe_all(1, &reader, Policy::Conflate);
    read(&mut reader);
    let large = |n: u8| Value::from(&[n; 512 * 1024][..]);
    for n in 0..200 {
        link.update(&[(0, large(n))]);
    }
    let waiting = read(&mut reader);
    let bytes: usize = 512 * 1024 * (waiting.len() - 1);
    assert!(bytes <= UPDATES_BYTES_MAX + 1024 * 1024 && bytes > UPDATES_BYTES_MAX / 2, "{bytes}");
    assert_eq!(waiting.last(), Some(&(subs[0].key, Event::Update(large(199)))));
}

#[test]
fn updates_do_not_overtake_a_lagging_fetch() {
    let mut reader = UpdatesReader::new(1);
    let mut link = Link::new();
    let subs = link.subscribe_all(1, &reader, Policy::Conflate);
    link.update(&[(0, Value::U64(1))]);
    let is = |n| (subs[0].key, Event::Update(Value::U64(n)));
    let first = reader.read_around(|| {
        // There is room again, and the subscription still lags.
        link.update(&[(0, Value::U64(2))]);
        link.update(&[(0, Value::U64(3))]);
    });
    assert_eq!(first, [is(0), is(3)]);
    link.update(&[(0, Value::U64(4))]);
    assert_eq!(read(&mut reader), [is(4)]);
}

/// The values that were read, and the reason of the end, which comes last.
fn values_of(events: &[KeyedEvent]) -> (Vec<u64>, Option<&str>) {
    let mut values = Vec::new();
    for (n, (_, event)) in events.iter().enumerate() {
        match event {
            Event::Update(Value::U64(value)) => values.push(*value),
            Event::Dead(reason) if n + 1 == events.len() => return (values, Some(reason)),
            other => panic!("{other:?}"),
        }
    }
    (values, None)
}

#[test]
fn an_unread_disconnect_subscription_ends_alone() {
    let (mut reader, mut other) = (UpdatesReader::new(4), UpdatesReader::new(100));
    let mut link = Link::new();
    let subs = link.subscribe_all(1, &reader, Policy::Disconnect);
    let conflating = link.subscribe(0, &other, Policy::Conflate).unwrap();
    for n in 1..10 {
        link.update(&[(0, Value::U64(n))]);
    }
    let reason = SubscriptionEnd::TooSlow.to_string();
    let events = read(&mut reader);
    assert_eq!(values_of(&events), (vec![0, 1, 2, 3], Some(reason.as_str())), "in order");
    assert!(!subs[0].is_alive() && conflating.is_alive());
    assert_eq!(values_of(&read(&mut other)).0, (0..10).collect::<Vec<_>>(), "the same value");
    assert_eq!(link.with(SubscriptionTable::outgoing), None, "another subscription remains");

    let mut link = Link::new();
    link.subscribe_all(2, &reader, Policy::Disconnect);
    read(&mut reader);
    for n in 1..10 {
        link.update(&[(0, Value::U64(n))]);
    }
    assert_eq!(
        link.with(SubscriptionTable::outgoing),
        Some(ToValuePublisher::Unsubscribe(vec![0]))
    );
    read(&mut reader);
    link.update(&[(1, Value::U64(7))]);
    assert_eq!(values_of(&read(&mut reader)), (vec![7], None), "the other subscription continues");
    assert_eq!(link.with(|table| table.locals), 1);
}

#[test]
fn an_unread_drop_oldest_subscription_keeps_its_newest_updates() {
    let mut reader = UpdatesReader::new(4);
    let mut link = Link::new();
    link.subscribe_all(2, &reader, Policy::DropOldest);
    read(&mut reader);
    for n in 1..=5_000 {
        link.update(&[(0, Value::U64(n))]);
    }
    link.update(&[(1, Value::U64(1_000_000))]);
    let first: Vec<u64> = (1..=4).chain(5_001 - 1_024..=5_000).chain([1_000_000]).collect();
    assert_eq!(values_of(&read(&mut reader)), (first, None));
    assert_eq!(link.with(|table| table.backlog_bytes), 0);
    link.update(&[(0, Value::U64(6_000))]);
    assert_eq!(
        values_of(&read(&mut reader)),
        (vec![6_000], None),
        "later updates are complete again"
    );
}

/// A publisher dies while the reader is slow, and another one has the path.
#[test]
fn what_lags_behind_a_new_link_comes_after_what_waits() {
    let mut reader = UpdatesReader::new(1);
    let (mut old, new) = (Link::new(), Link::new());
    let [sub]: [_; 1] = old.subscribe_all(1, &reader, Policy::Conflate).try_into().unwrap();
    old.update(&[(0, Value::U64(1))]);
    old.with(|table| table.end(&"gone".into()));
    let first = reader.read_around(|| {
        new.with(|table| table.add(NOW, &new.link, &sub, &new.refusals)).unwrap();
        new.with(SubscriptionTable::outgoing);
        new.subscribed(0, 0).unwrap();
        new.update(&[(0, Value::U64(10))]);
        new.update(&[(0, Value::U64(11))]);
    });
    assert_eq!(values_of(&first), (vec![0, 1], Some("gone")));
    assert_eq!(values_of(&read(&mut reader)), (vec![0, 11], None));
}

#[test]
fn the_backlog_is_read_before_the_end() {
    let mut reader = UpdatesReader::new(2);
    let mut link = Link::new();
    link.subscribe_all(1, &reader, Policy::DropOldest);
    for n in 1..10 {
        link.update(&[(0, Value::U64(n))]);
    }
    // There is room again, and the subscription still lags.
    let first = reader.read_around(|| _ = link.with(|table| table.end(&"over".into())));
    assert_eq!(first.len(), 2);
    let (values, reason) = (read(&mut reader), Some("over"));
    assert_eq!(values_of(&values), ((2..10).collect(), reason));
    assert_eq!(link.with(|table| table.backlog_bytes), 0);
}
