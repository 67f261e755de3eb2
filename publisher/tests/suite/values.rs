//! Live values over sockets, with a subscriber that sends raw messages.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::client::{A_WHILE, Client, LONG};
use crate::pem::Pem;
use longshore_protocol::messages::values::*;
use longshore_protocol::messages::work::{Answer, Request};
use longshore_protocol::{
    EnqueueOutcome, FrameWriter, Handshake, JobId, LinkTiming, Messages, NewJob, Path,
    QueueSettings, Refusal, Role, SessionId, SocketPath, TlsName, Value,
};
use longshore_publisher::{
    PublishError, Published, Publisher, PublisherOptions, UpdateError, ValuePublisher,
    ValuePublisherError,
};
use longshore_transport::{LinkOptions, LinkReceiver, LinkSender, dial, dial_unix};
use tokio::time::timeout;

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

async fn publisher() -> ValuePublisher {
    ValuePublisher::connect("").await.unwrap()
}

/// A subscriber that reads when the test lets it.
struct Follower {
    sender: LinkSender,
    receiver: LinkReceiver,
    read: VecDeque<FromValuePublisher>,
    paths: BTreeMap<u32, String>,
    last: BTreeMap<String, Value>,
}

impl Follower {
    async fn dial(to: SocketAddr) -> Follower {
        let handshake = Handshake::new(Role::Values, SessionId([7; 16]), "f1", LinkTiming::VALUES);
        Follower::dial_as(to, handshake).await
    }

    async fn dial_as(to: SocketAddr, handshake: Handshake) -> Follower {
        let options = LinkOptions { timing: LinkTiming::VALUES, ..LinkOptions::default() };
        let link = dial(to, &handshake, &options).await.unwrap();
        assert_eq!(link.timing(), LinkTiming::VALUES);
        let (sender, receiver) = link.split();
        let (paths, last) = <_>::default();
        Follower { sender, receiver, read: VecDeque::new(), paths, last }
    }

    fn send(&self, message: ToValuePublisher) {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        self.sender.send(out.finish()).unwrap();
    }

    fn subscribe(&self, subscription: u32, text: &str, policy: Policy) {
        let wanted = SubscribeValue { subscription, path: path(text), policy };
        self.send(ToValuePublisher::Subscribe(vec![wanted]));
    }

    async fn next(&mut self) -> FromValuePublisher {
        while self.read.is_empty() {
            let body = timeout(LONG, self.receiver.recv()).await.unwrap().unwrap();
            for message in Messages::new(body) {
                let (tag, body) = message.unwrap();
                self.read.extend(FromValuePublisher::decode(tag, body).unwrap());
            }
        }
        self.read.pop_front().unwrap()
    }

    /// Subscribes and waits for the value.
    async fn follow(&mut self, subscription: u32, text: &str) -> Value {
        self.subscribe(subscription, text, Policy::Conflate);
        let FromValuePublisher::Subscribed(mut answer) = self.next().await else {
            panic!("a value")
        };
        let Subscribed { number, value, .. } = answer.remove(0);
        self.paths.insert(number, text.to_owned());
        value
    }

    async fn updates(&mut self) -> Vec<(u32, Value)> {
        match self.next().await {
            FromValuePublisher::Updates(updates) => updates.iter().map(Result::unwrap).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Reads updates until the path has this value.
    async fn until(&mut self, text: &str, value: Value) {
        while self.last.get(text) != Some(&value) {
            for (number, value) in self.updates().await {
                self.last.insert(self.paths[&number].clone(), value);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn value_is_received_over_a_socket_until_it_ends() {
    let publisher = publisher().await;
    let values = publisher.values();
    let load = values.publish(path("/host/load"), 1.5).unwrap();
    let state = values.publish(path("/host/state"), "up").unwrap();
    let mut follower = Follower::dial(publisher.local_address()).await;
    assert_eq!(follower.follow(0, "/host/load").await, Value::F64(1.5));
    assert_eq!(follower.follow(1, "/host/state").await, Value::from("up"));
    timeout(LONG, load.subscribed()).await.unwrap();
    assert_eq!(load.subscribers(), 1);

    let mut batch = values.batch();
    batch.update(&load, 2.5).unwrap();
    batch.update(&state, "busy").unwrap();
    batch.update(&load, 3.5).unwrap();
    batch.commit();
    assert!(batch.is_empty());
    let updates = follower.updates().await;
    let values_of: Vec<_> = updates.iter().map(|(_, value)| value.clone()).collect();
    assert_eq!(values_of, [2.5.into(), "busy".into(), 3.5.into()]);
    assert_eq!(load.current(), Value::F64(3.5));

    assert_eq!((load.set_changed(3.5), load.set_changed(4.5)), (Ok(false), Ok(true)));
    batch.update_changed(&load, 4.5).unwrap();
    batch.update_changed(&state, "idle").unwrap();
    batch.commit();
    let expected = [4.5.into(), "idle".into()];
    for value in expected {
        assert_eq!(follower.updates().await.remove(0).1, value);
    }

    drop(state);
    let ended = SubscriptionEnded { subscription: 1, end: SubscriptionEnd::Unpublished };
    assert_eq!(follower.next().await, FromValuePublisher::Ended(vec![ended]));
    drop(follower);
    timeout(LONG, load.unsubscribed()).await.unwrap();
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_or_dropped_batch_changes_nothing() {
    let (publisher, other) = (publisher().await, publisher().await);
    let values = publisher.values();
    let a = values.publish(path("/a"), 1u64).unwrap();
    let foreign = other.values().publish(path("/a"), 1u64).unwrap();
    let mut batch = values.batch();
    batch.update(&a, 2u64).unwrap();
    let large = Value::Bytes(vec![0; 2 * 1024 * 1024].into());
    assert!(matches!(batch.update(&a, large.clone()), Err(UpdateError::Value(_))));
    assert_eq!(batch.update(&foreign, 3u64), Err(UpdateError::OtherPublisher));
    assert_eq!(batch.len(), 1);
    drop(batch);
    assert_eq!((a.current(), foreign.current()), (1u64.into(), 1u64.into()));
    assert!(matches!(a.set(large.clone()), Err(UpdateError::Value(_))));

    let refused = |text, value| values.publish(path(text), value).unwrap_err();
    assert_eq!(refused("/a", Value::Null), PublishError::Taken(path("/a")));
    assert_eq!(refused("/sys/x", Value::Null), PublishError::Reserved(path("/sys/x")));
    assert_eq!(refused("/", Value::Null), PublishError::Root);
    assert!(matches!(refused("/b", large), PublishError::Value(_)));
    let all = ["/b", "/c", "/a"].map(|text| (path(text), Value::Null));
    assert!(values.publish_all(all).is_err());
    assert_eq!(values.len(), 1, "all of them or none");
    values.publish_reserved(path("/sys/x"), 1u64).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriber_that_resumes_reading_receives_last_values() {
    let publisher = publisher().await;
    let values = publisher.values();
    let published: Vec<Published> =
        (0..32).map(|n| values.publish(path(&format!("/{n}")), 0u64).unwrap()).collect();
    let mut follower = Follower::dial(publisher.local_address()).await;
    for number in 0..32 {
        follower.follow(number, &format!("/{number}")).await;
    }
    let mut batch = values.batch();
    for n in 0..16u8 {
        for value in &published {
            batch.update(value, bytes::Bytes::from(vec![n; 64 * 1024])).unwrap();
        }
        batch.commit();
    }
    for (n, value) in published.iter().enumerate() {
        value.set(n as u64).unwrap();
    }
    let flushing = tokio::spawn(async move { values.flush(None).await });
    for n in 0..32u64 {
        follower.until(&format!("/{n}"), n.into()).await;
    }
    assert_eq!(timeout(LONG, flushing).await.unwrap().unwrap().flushed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_reach_the_program_and_answers_the_subscriber() {
    let publisher = publisher().await;
    let switch = publisher.values().publish(path("/switch"), false).unwrap();
    let mut follower = Follower::dial(publisher.local_address()).await;
    follower.follow(0, "/switch").await;
    let write = |request, deadline_ms| {
        let (subscription, value) = (0, true.into());
        ToValuePublisher::Write(WriteValue {
            request,
            subscription,
            receipt: true,
            deadline_ms,
            value,
        })
    };
    let mut writes = switch.writes().unwrap();
    assert!(switch.writes().is_none());
    for request in 1..=4 {
        follower.send(write(request, if request == 1 { 300 } else { 0 }));
    }
    let first = timeout(LONG, writes.next()).await.unwrap().unwrap();
    assert_eq!(
        (first.value(), first.by(), first.wants_receipt()),
        (&Value::Bool(true), "f1", true)
    );
    timeout(LONG, writes.next()).await.unwrap().unwrap().answer(2u64);
    timeout(LONG, writes.next()).await.unwrap().unwrap().refuse("not now");
    drop(timeout(LONG, writes.next()).await.unwrap().unwrap());
    let mut answers = Vec::new();
    for _ in 0..4 {
        let FromValuePublisher::Written(written) = follower.next().await else {
            panic!("an answer")
        };
        let outcome = written.outcome.map_err(|refused| (refused.code, refused.reason));
        answers.push((written.request, outcome));
    }
    let refused = |reason: &str| Err((WriteRefusal::Refused, reason.to_owned()));
    assert_eq!(
        answers,
        [
            (2, Ok(Value::U64(2))),
            (3, refused("not now")),
            (4, refused("the program has not answered")),
            (1, Err((WriteRefusal::Late, String::new()))),
        ]
    );
    first.accept();
    drop(writes);
    follower.send(write(5, 0));
    let FromValuePublisher::Written(written) = follower.next().await else { panic!("an answer") };
    assert_eq!(written.outcome.unwrap_err().code, WriteRefusal::NotWritable);
    let mut again = switch.writes().unwrap();
    drop(switch);
    assert!(timeout(LONG, again.next()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn default_creates_requested_values() {
    let publisher = publisher().await;
    let values = publisher.values();
    let mut default = values.publish_default(path("/made")).unwrap();
    assert!(matches!(values.publish_default(path("/made")), Err(PublishError::Taken(_))));
    let making = tokio::spawn(async move {
        let made = default.next().await.unwrap();
        assert_eq!(made.path(), &path("/made/a"));
        let made = made.publish("here").unwrap();
        default.next().await.unwrap().refuse("none of these");
        drop(default.next().await.unwrap());
        (made, default)
    });
    let mut follower = Follower::dial(publisher.local_address()).await;
    assert_eq!(follower.follow(0, "/made/a").await, Value::from("here"));
    for (text, expected) in [("/made/b", "none of these"), ("/made/c", "does not make")] {
        follower.subscribe(1, text, Policy::Conflate);
        let FromValuePublisher::Refused { subscription: 1, code, reason } = follower.next().await
        else {
            panic!("a refusal")
        };
        assert_eq!(code, ValueRefusal::Declined);
        assert!(reason.contains(expected), "{reason}");
    }
    drop(timeout(LONG, making).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn publisher_with_queues_serves_values_at_other_paths() {
    let dir = tempfile::tempdir().unwrap();
    let options = PublisherOptions {
        paths: vec![path("/jobs/mail")],
        defaults: vec![path("/jobs")],
        ..PublisherOptions::new(dir.path())
    };
    let publisher = Publisher::open(options).await.unwrap();
    let (values, address) = (publisher.values(), publisher.local_address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(publisher.run(async { stopped.await.unwrap_or(()) }));

    let load = values.publish(path("/load"), 1u64).unwrap();
    let taken = values.publish(path("/jobs/mail"), 1u64).unwrap_err();
    assert_eq!(taken, PublishError::IsQueue(path("/jobs/mail")));
    let taken = values.publish_default(path("/jobs")).unwrap_err();
    assert_eq!(taken, PublishError::IsQueue(path("/jobs")));

    let mut follower = Follower::dial(address).await;
    assert_eq!(follower.follow(0, "/load").await, Value::U64(1));
    follower.subscribe(1, "/jobs/mail", Policy::Conflate);
    let FromValuePublisher::Refused { code, .. } = follower.next().await else {
        panic!("a refusal")
    };
    assert_eq!(code, ValueRefusal::IsQueue);

    stop.send(()).unwrap();
    let goodbye = follower.next().await;
    assert!(matches!(goodbye, FromValuePublisher::Goodbye { .. }), "{goodbye:?}");
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
    drop(load);
}

#[tokio::test(flavor = "multi_thread")]
async fn publisher_serves_its_metrics_unless_disabled() {
    for metrics in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let options = PublisherOptions { metrics, ..PublisherOptions::new(dir.path()) };
        let publisher = Publisher::open(options).await.unwrap();
        let address = publisher.local_address();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(publisher.run(async { stopped.await.unwrap_or(()) }));
        let mut follower = Follower::dial(address).await;
        follower.subscribe(0, "/sys/publishers/publisher", Policy::Conflate);
        let answer = follower.next().await;
        let not_here =
            matches!(answer, FromValuePublisher::Refused { code: ValueRefusal::NotHere, .. });
        assert_eq!(matches!(answer, FromValuePublisher::Subscribed(_)), metrics, "{answer:?}");
        assert_eq!(not_here, !metrics, "{answer:?}");
        stop.send(()).unwrap();
        timeout(LONG, serving).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn value_at_the_path_of_a_created_queue_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = Publisher::open(PublisherOptions::new(dir.path())).await.unwrap();
    let (values, address) = (publisher.values(), publisher.local_address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(publisher.run(async { stopped.await.unwrap_or(()) }));
    let mut client = Client::attach_at(address, Role::Producer, 1).await;
    let id = longshore_protocol::JobId([1; 16]);
    client.enqueue([NewJob::new(path("/made/by/job"), id, &b"x"[..])]).await;
    let taken = values.publish(path("/made/by/job"), 1u64).unwrap_err();
    assert_eq!(taken, PublishError::IsQueue(path("/made/by/job")));
    stop.send(()).unwrap();
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_jobs_for_the_path_of_a_value_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = Publisher::open(PublisherOptions::new(dir.path())).await.unwrap();
    let (values, address) = (publisher.values(), publisher.local_address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(publisher.run(async { stopped.await.unwrap_or(()) }));
    let live = values.publish(path("/jobs/live"), 1u64).unwrap();
    let mut client = Client::attach_at(address, Role::Producer, 1).await;
    let job = |text: &str, n| NewJob::new(path(text), JobId([n; 16]), &b"x"[..]);
    let refused = EnqueueOutcome::Refused(Refusal::IsValue);
    let answer = client.enqueue([job("/jobs/a", 1), job("/jobs/live", 2), job("/jobs/a", 3)]).await;
    let outcomes: Vec<EnqueueOutcome> = answer.outcome.unwrap().iter().collect();
    assert_eq!(outcomes, [EnqueueOutcome::Created, refused, EnqueueOutcome::Created]);
    let mut tool = Client::attach_at(address, Role::Tool, 2).await;
    let (at, changes) = (path("/jobs/live"), QueueSettings::default());
    let configured = tool.ask(Request::Configure { path: at, changes, reset: false }).await;
    assert_eq!(configured, Answer::Configured(Err(Refusal::IsValue)));
    // It created no queue: the value continues, and can be withdrawn and published again.
    live.set(2u64).unwrap();
    drop(live);
    let live = values.publish(path("/jobs/live"), 3u64).unwrap();
    drop(live);
    let answer = client.enqueue([job("/jobs/live", 2)]).await;
    assert_eq!(
        answer.outcome.unwrap().iter().next(),
        Some(EnqueueOutcome::Created),
        "no longer a value"
    );
    let taken = values.publish(path("/jobs/live"), 1u64).unwrap_err();
    assert_eq!(taken, PublishError::IsQueue(path("/jobs/live")));
    stop.send(()).unwrap();
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn link_that_violates_the_protocol_is_closed_with_a_reason() {
    let publisher = publisher().await;
    let _a = publisher.values().publish(path("/a"), 1u64).unwrap();
    let address = publisher.local_address();
    let mut small = Handshake::new(Role::Values, SessionId([7; 16]), "small", LinkTiming::VALUES);
    small.frame_bytes_max = 64 * 1024;
    let mut follower = Follower::dial_as(address, small).await;
    let FromValuePublisher::Goodbye { reason } = follower.next().await else { panic!("a goodbye") };
    assert!(reason.contains("2097152"), "{reason}");

    let mut follower = Follower::dial(address).await;
    follower.follow(0, "/a").await;
    follower.subscribe(0, "/a", Policy::Conflate);
    let FromValuePublisher::Goodbye { reason } = follower.next().await else { panic!("a goodbye") };
    assert_eq!(reason, "subscription 0 already exists");
    timeout(LONG, follower.receiver.recv()).await.unwrap().unwrap_err();

    let mut follower = Follower::dial(address).await;
    let mut out = FrameWriter::new();
    out.message(tag::SUBSCRIBE_VALUES, |out| out.u64(5));
    follower.sender.send(out.finish()).unwrap();
    let FromValuePublisher::Goodbye { reason } = follower.next().await else { panic!("a goodbye") };
    assert!(reason.contains("malformed"), "{reason}");

    let handshake = Handshake::new(Role::Worker, SessionId([7; 16]), "w", LinkTiming::WORK);
    let refused = dial(address, &handshake, &LinkOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("does not serve"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_value_subscriber_does_not_affect_work_links() {
    let dir = tempfile::tempdir().unwrap();
    let options = PublisherOptions {
        timing: LinkTiming { heartbeat: Duration::from_millis(50), hang: Duration::from_secs(1) },
        ..PublisherOptions::new(dir.path())
    };
    let publisher = Publisher::open(options).await.unwrap();
    let (values, address) = (publisher.values(), publisher.local_address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(publisher.run(async { stopped.await.unwrap_or(()) }));
    let value = values.publish(path("/v"), 0u64).unwrap();
    let mut follower = Follower::dial(address).await;
    follower.follow(0, "/v").await;
    let mut client = Client::attach_at(address, Role::Producer, 1).await;
    let end = Instant::now() + A_WHILE;
    let mut n = 0u8;
    while Instant::now() < end {
        value.set(bytes::Bytes::from(vec![n; 512 * 1024])).unwrap();
        n = n.wrapping_add(1);
        tokio::task::yield_now().await;
    }
    let id = longshore_protocol::JobId([1; 16]);
    client.enqueue([NewJob::new(path("/jobs"), id, &b"x"[..])]).await;
    assert_eq!(value.subscribers(), 1, "it is behind and still subscribed");
    stop.send(()).unwrap();
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_publisher_of_values_has_a_socket_and_the_name_of_its_certificate() {
    let (pem, dir) = (Pem::new(), tempfile::tempdir().unwrap());
    let socket: SocketPath = dir.path().join("a.sock").to_str().unwrap().parse().unwrap();
    let named = |name: &str| {
        let name: TlsName = name.parse().unwrap();
        ValuePublisher::builder().tls_name(name).listen_unix(socket.clone())
    };
    let error = named("127.0.0.1").connect("").await.unwrap_err();
    assert!(matches!(error, ValuePublisherError::BadTlsName(_)), "{error}");
    let tls = pem.acceptor(None);
    let error = named("elsewhere.example").tls(tls.clone()).connect("").await.unwrap_err();
    assert!(matches!(error, ValuePublisherError::BadTlsName(_)), "{error}");
    let publisher = named("longshore.test").tls(tls).connect("").await.unwrap();
    // As it registers.
    let shown = format!("{publisher:?}");
    assert!(shown.contains("longshore.test") && shown.contains(socket.as_str()), "{shown}");
    let handshake = Handshake::new(Role::Values, SessionId([7; 16]), "f", LinkTiming::VALUES);
    dial_unix(&socket, &handshake, &LinkOptions::default()).await.unwrap();
    publisher.stop().await;
}
