//! Live values end to end: a resolver, publishers of values and subscribers, in one process with
//! real sockets.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::long::long;
use longshore::Path;
use longshore::protocol::Value;
use longshore::protocol::limits::VALUE_BYTES_MAX;
use longshore::values::{
    CallError, DurableValue, Event, Policy, SubscribeError, SubscribeOptions, Subscriber, Updates,
    ValueSubscription, WriteError, limits,
};
use longshore_publisher::ValuePublisher;
use longshore_tests::Resolver;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(30);

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

async fn publisher(resolver: &Resolver, advertise: Vec<SocketAddr>) -> ValuePublisher {
    ValuePublisher::builder().advertise(advertise).connect(resolver.cluster()).await.unwrap()
}

async fn registered(publisher: &ValuePublisher) {
    timeout(TIMEOUT, publisher.ready()).await.unwrap();
}

async fn subscriber(resolver: &Resolver) -> Subscriber {
    Subscriber::connect(resolver.cluster())
}

async fn next(subscription: &mut ValueSubscription) -> Event {
    timeout(TIMEOUT, subscription.next()).await.unwrap().unwrap()
}

async fn until(durable: &mut DurableValue, expected: u64) {
    let arrived = async {
        loop {
            if durable.next().await == Some(Event::Update(Value::U64(expected))) {
                return;
            }
        }
    };
    timeout(TIMEOUT, arrived).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_subscribed_written_and_unpublished() {
    let resolver = Resolver::start().await;
    let publisher = publisher(&resolver, Vec::new()).await;
    let value = publisher.values().publish(path("/hall/temperature"), 20u64).unwrap();
    let mut writes = value.writes().unwrap();
    tokio::spawn(async move {
        while let Some(write) = writes.next().await {
            match write.value() {
                Value::U64(n) => {
                    let answer = n * 2;
                    write.answer(answer);
                }
                _ => write.refuse("a number, please"),
            }
        }
    });
    registered(&publisher).await;
    let subscriber = subscriber(&resolver).await;
    let mut subscription = subscriber.subscribe(path("/hall/temperature")).await.unwrap();
    assert_eq!(subscription.last(), Value::U64(20));
    for n in 21..1_000u64 {
        value.set(n).unwrap();
    }
    for n in 20..1_000u64 {
        assert_eq!(next(&mut subscription).await, Event::Update(Value::U64(n)));
    }
    assert_eq!(subscription.last(), Value::U64(999));
    assert_eq!(subscription.write_with_receipt(21u64, TIMEOUT).await, Ok(Value::U64(42)));
    let refused = subscription.write_with_receipt("x", TIMEOUT).await;
    assert!(
        matches!(refused, Err(WriteError::Refused(refusal)) if refusal.reason == "a number, please")
    );
    let called = subscriber.write(path("/hall/temperature"), 4u64, TIMEOUT).await;
    assert_eq!(called, Ok(Value::U64(8)));
    let missing = subscriber.subscribe(path("/nobody")).await;
    assert_eq!(missing.unwrap_err(), SubscribeError::NotFound { complete: true });

    drop(value);
    assert_eq!(
        next(&mut subscription).await,
        Event::Dead("the value is no longer published".into())
    );
    assert_eq!(subscription.last(), Value::U64(999));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_run_at_most_once_and_errors_say_whether_they_ran() {
    let resolver = Resolver::start().await;
    let publisher = publisher(&resolver, Vec::new()).await;
    let values = publisher.values();
    let _value = values.publish(path("/value"), 1u64).unwrap();
    let (runs, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, gate) = watch::channel(false);
    let (counted, highest) = (runs.clone(), most.clone());
    let gated = move |(name, n): (String, i32)| {
        let (runs, most, mut gate) = (counted.clone(), highest.clone(), gate.clone());
        async move {
            most.fetch_max(runs.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            assert!(name != "panic", "as the test requests");
            gate.wait_for(|open| *open).await.unwrap();
            runs.fetch_sub(1, Ordering::SeqCst);
            if n < 0 { Err(format!("{n} is negative")) } else { Ok(format!("{name} {n}")) }
        }
    };
    let procedure = values.procedure(path("/gated"), gated).unwrap();
    registered(&publisher).await;
    let subscriber = subscriber(&resolver).await;
    let call = async |at: &str, name: &str, n: i32, within| {
        subscriber.call::<String>(path(at), &(name, n), within).await
    };
    for missing in ["/nobody", "/value"] {
        assert_eq!(call(missing, "a", 1, TIMEOUT).await, Err(CallError::NoSuchProcedure));
    }
    let after = Duration::from_millis(200);
    assert_eq!(call("/gated", "late", 1, after).await, Err(CallError::TimedOut { after }));
    let panicked = call("/gated", "panic", 1, TIMEOUT).await;
    assert!(matches!(panicked, Err(CallError::Lost(_))), "{panicked:?}");
    let wrong = subscriber.call::<()>(path("/gated"), &true, TIMEOUT).await;
    assert!(matches!(wrong, Err(CallError::Unreadable(_))), "{wrong:?}");
    let bytes = |length: u32| async move { Ok::<_, String>("x".repeat(length as usize)) };
    let _bytes = values.procedure(path("/bytes"), bytes).unwrap();

    let mut calls = JoinSet::new();
    for n in 0..300 {
        let subscriber = subscriber.clone();
        let call = async move { subscriber.call(path("/gated"), &("many", n), TIMEOUT).await };
        calls.spawn(async move { assert_eq!(call.await, Ok(format!("many {n}"))) });
    }
    let running = async |n: usize| {
        while runs.load(Ordering::SeqCst) < n {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // The call that panicked counts for ever.
    timeout(TIMEOUT, running(limits::PROCEDURE_CALLS_MAX + 1)).await.unwrap();
    open.send_replace(true);
    calls.join_all().await;
    assert_eq!(most.load(Ordering::SeqCst), limits::PROCEDURE_CALLS_MAX + 1);
    let refused = call("/gated", "a", -1, TIMEOUT).await;
    assert_eq!(refused, Err(CallError::Refused("-1 is negative".into())));
    let other = subscriber.call::<u64>(path("/gated"), &("a", 1), TIMEOUT).await;
    assert!(matches!(other, Err(CallError::Reply(_))), "{other:?}");
    let large = subscriber.call::<String>(path("/bytes"), &VALUE_BYTES_MAX, TIMEOUT).await;
    assert!(matches!(large, Err(CallError::BadReply(_))), "{large:?}");

    open.send_replace(false);
    let withdrawn = async {
        running(2).await;
        drop(procedure);
    };
    let (lost, ()) = tokio::join!(call("/gated", "a", 1, TIMEOUT), withdrawn);
    assert!(matches!(lost, Err(CallError::Lost(_))), "{lost:?}");
}

/// Two subscriptions that are not read share a link with one that is read.
#[tokio::test(flavor = "multi_thread")]
async fn unread_subscriptions_do_not_delay_others_on_their_link() {
    let resolver = Resolver::start().await;
    let publisher = publisher(&resolver, Vec::new()).await;
    let values = publisher.values();
    let names = ["/drops", "/disconnects", "/read"];
    let published = names.map(|name| values.publish(path(name), 0u64).unwrap());
    registered(&publisher).await;
    let subscriber = subscriber(&resolver).await;
    let with = |policy| SubscribeOptions { policy, ..SubscribeOptions::default() };
    let drops = with(Policy::DropOldest);
    let mut drops = subscriber.subscribe_with(path("/drops"), &drops).await.unwrap();
    let disconnects = with(Policy::Disconnect);
    let mut disconnects =
        subscriber.subscribe_with(path("/disconnects"), &disconnects).await.unwrap();
    let mut read = subscriber.durable_subscribe(path("/read"));
    // Far more than the buffers of the kernel and of the publisher.
    let large = Value::from(&[7u8; 16 * 1024][..]);
    for n in 1..=3_000u64 {
        let mut batch = values.batch();
        for value in &published[..2] {
            batch.update(value, large.clone()).unwrap();
            batch.update(value, n).unwrap();
        }
        batch.update(&published[2], n).unwrap();
        batch.commit();
        assert_eq!(values.flush(Some(TIMEOUT)).await.disconnected.len(), 0);
    }
    until(&mut read, 3_000).await;
    assert!(drops.is_alive());
    let mut last = Event::Update(Value::Null);
    while last != Event::Update(Value::U64(3_000)) {
        last = next(&mut drops).await;
    }
    let mut end = next(&mut disconnects).await;
    while matches!(end, Event::Update(_)) {
        end = next(&mut disconnects).await;
    }
    let Event::Dead(reason) = end else { panic!("an end") };
    assert!(reason.contains("leaves out none"), "{reason}");
}

/// A proxy between subscribers and a publisher that cuts its connections on request.
struct CuttingProxy {
    address: SocketAddr,
    cut: watch::Sender<()>,
    open: Arc<AtomicUsize>,
}

impl CuttingProxy {
    async fn to(publisher: watch::Receiver<Option<SocketAddr>>) -> CuttingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, open) = (watch::Sender::new(()), Arc::new(AtomicUsize::new(0)));
        let (cuts, counter) = (cut.clone(), open.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mut cut, counter) = (cuts.subscribe(), counter.clone());
                let target = *publisher.borrow();
                tokio::spawn(async move {
                    let Some(target) = target else { return };
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    counter.fetch_add(1, Ordering::Relaxed);
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                    counter.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        CuttingProxy { address, cut, open }
    }
}

/// Connections are cut at random moments, including in the middle of frames. Each subscriber's
/// values only increase, and it finally receives the last ones. 10,000 disconnects with
/// `LONGSHORE_LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn values_arrive_in_order_over_many_disconnects() {
    let wanted = if long() { 10_000 } else { 200 };
    let resolver = Resolver::start().await;
    let target = watch::Sender::new(None);
    let proxy = CuttingProxy::to(target.subscribe()).await;
    let publisher = publisher(&resolver, vec![proxy.address]).await;
    target.send_replace(Some(publisher.local_address()));
    let names: Vec<Path> = (0..50).map(|n| path(&format!("/v/{n}"))).collect();
    let values = publisher.values();
    let published: Vec<_> =
        names.iter().map(|name| values.publish(name.clone(), 0u64).unwrap()).collect();
    registered(&publisher).await;

    let (finish, done) = watch::channel(None);
    let mut readers = Vec::new();
    for n in 0..40 {
        let subscriber = subscriber(&resolver).await;
        let names = names.clone();
        let mut done = done.clone();
        readers.push(tokio::spawn(async move {
            // Small for some readers, so that it overflows.
            let mut updates = Updates::new(if n % 2 == 0 { 16 } else { 10_000 });
            let policy = if n % 4 < 3 { Policy::Conflate } else { Policy::DropOldest };
            let into =
                SubscribeOptions { into: Some(updates.sink()), policy, ..Default::default() };
            let subscriptions = subscriber.durable_subscribe_all(names, &into);
            let first = subscriptions[0].key();
            let mut last = vec![0; subscriptions.len()];
            let index = |key| subscriptions.iter().position(|one| one.key() == key).unwrap();
            assert_eq!(index(first), 0);
            let mut deaths = 0u64;
            loop {
                let end: Option<u64> = *done.borrow();
                if end.is_some_and(|end| last.iter().all(|n| *n == end)) {
                    return deaths;
                }
                tokio::select! {
                    batch = updates.next() => for (key, event) in batch {
                        match event {
                            Event::Update(Value::U64(n)) => {
                                let before = &mut last[index(*key)];
                                assert!(*before <= *n, "{n} after {before}");
                                *before = *n;
                            }
                            Event::Update(other) => panic!("{other}"),
                            Event::Dead(_) => deaths += 1,
                        }
                    },
                    _ = done.changed() => {}
                }
            }
        }));
    }

    let (mut disconnects, mut n) = (0, 0u64);
    while disconnects < wanted {
        for _ in 0..10 {
            n += 1;
            let mut batch = values.batch();
            for value in &published {
                batch.update(value, n).unwrap();
            }
            batch.commit();
            tokio::task::yield_now().await;
        }
        if proxy.open.load(Ordering::Relaxed) >= 20 {
            disconnects += proxy.open.load(Ordering::Relaxed);
            proxy.cut.send_replace(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    finish.send_replace(Some(n));
    // On a busy machine a reader may connect after the last disconnect.
    let mut deaths = 0;
    for reader in readers {
        deaths += timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
    }
    assert!(deaths > 0);
}

/// Replicas see it as silent, as after a crash: it would be listed as long as the process lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_publisher_leaves_its_replicas_though_a_value_lives_on() {
    let resolver = Resolver::start().await;
    let reader = longshore::ReadClient::connect(resolver.cluster());
    let connections = async || match &reader.replica_status().await[..] {
        [(_, Ok(status))] => status.connections,
        other => panic!("{other:?}"),
    };
    let before = connections().await;
    let publisher = publisher(&resolver, Vec::new()).await;
    let value = publisher.values().publish(path("/v/a"), 1).unwrap();
    registered(&publisher).await;
    // The replica may still count the link of the status before.
    let linked = || async { connections().await == before + 1 };
    longshore_tests::eventually("only the publisher has a link", linked).await;
    drop(publisher);
    let left = async {
        while connections().await > before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, left).await.unwrap();
    assert_eq!(value.current(), Value::I64(1));
}
