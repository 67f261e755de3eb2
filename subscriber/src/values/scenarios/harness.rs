//! A simulated network in virtual time: publishers of values, links between them and a subscriber,
//! and a scripted resolver. It opens no socket, and time passes only while all tasks wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::messages::values::{
    FromValuePublisher, Subscribed, SubscriptionEnd, SubscriptionEnded, ToValuePublisher,
    Updates as UpdatesMessage, ValueRefusal, WriteRefusal, WriteRefused, Written,
};
use longshore_protocol::{
    Epoch, Frame, FrameWriter, Glob, LinkTiming, Messages, Path, PublicationKind, PublisherId,
    PublisherInfo, Terms, Value,
};
use longshore_resolver::{PathAnswer, PathEvent, Publication, Resolution, WatchEnded};
use longshore_transport::{Liveness, LivenessAction, SendError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::values::network::{FrameReceiver, FrameSender, Network, PathSource};
use crate::values::subscriber::GenericSubscriber;

/// The simulated network. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Harness {
    state: Arc<Mutex<HarnessState>>,
}

#[derive(Default)]
struct HarnessState {
    publishers: BTreeMap<u8, Publisher>,
    /// The state of the resolver, and the requests that it received.
    resolver_down: bool,
    incomplete: bool,
    watches_ended: Option<WatchEnded>,
    /// The resolver answers in slices of this many paths, each with sets of its own; all at once if
    /// `None`.
    slices_of: Option<usize>,
    /// Most bytes in the subscriber's send queues; any number if `None`.
    send_queue_bytes_max: Option<usize>,
    resolve_requests: Vec<(Duration, usize)>,
    dials: Vec<(Duration, u8)>,
    started: Option<Instant>,
}

/// A simulated publisher.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    pub(super) values: BTreeMap<Path, Value>,
    pub(super) listed: bool,
    pub(super) terms: Terms,
    pub(super) dial_behavior: DialBehavior,
    /// Accepts links and sends nothing.
    pub(super) silent: bool,
    /// Refuses all paths though they are listed.
    pub(super) refuses: bool,
    /// Does not answer subscriptions to this path.
    pub(super) silent_for: Option<Path>,
    /// Refuses this path only.
    pub(super) refuses_only: Option<Path>,
    pub(super) local: bool,
    links: Vec<Arc<FakeLink>>,
    /// The number of subscriptions in each `Subscribe` message that it received.
    pub(super) subscribe_requests: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum DialBehavior {
    Answers(Duration),
    Refuses,
    /// Fails after the connect timeout.
    Hangs,
}

/// One link: the frames to the subscriber, and the reason of its end.
#[derive(Debug)]
pub(super) struct FakeLink {
    publisher: u8,
    state: Mutex<FakeLinkState>,
    changed: Notify,
}

#[derive(Debug)]
struct FakeLinkState {
    to_subscriber: VecDeque<Bytes>,
    ended: Option<Arc<str>>,
    /// The subscription's number and the publisher's number of each path.
    subscriptions: BTreeMap<Path, (u32, u32)>,
    next_number: u32,
    free_numbers: Vec<u32>,
    unanswered: Vec<u32>,
    /// Bytes in the subscriber's send queue.
    queued: usize,
    liveness: Liveness,
    read: u64,
}

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

impl Harness {
    pub(super) fn subscriber(&self, seed: u64) -> GenericSubscriber<Harness> {
        self.state.lock().started.get_or_insert_with(Instant::now);
        GenericSubscriber::new(self.clone(), false, seed)
    }

    /// Adds a publisher of `values`, and registers it at the resolver.
    pub(super) fn publish(&self, n: u8, values: &[(&str, u64)]) {
        let values = values.iter().map(|(at, value)| (path(at), Value::U64(*value))).collect();
        let terms = Terms { kind: PublicationKind::Value, ..Terms::default() };
        let publisher = Publisher {
            values,
            listed: true,
            terms,
            dial_behavior: DialBehavior::Answers(Duration::from_millis(1)),
            silent: false,
            refuses: false,
            silent_for: None,
            refuses_only: None,
            local: false,
            links: Vec::new(),
            subscribe_requests: Vec::new(),
        };
        self.state.lock().publishers.insert(n, publisher);
    }

    pub(super) fn with<T>(&self, n: u8, change: impl FnOnce(&mut Publisher) -> T) -> T {
        change(self.state.lock().publishers.get_mut(&n).unwrap())
    }

    /// The process dies: its links end, and new dials are refused.
    pub(super) fn crash(&self, n: u8) {
        let links = self.with(n, |publisher| {
            publisher.dial_behavior = DialBehavior::Refuses;
            std::mem::take(&mut publisher.links)
        });
        links.iter().for_each(|link| link.end("the other side closed the link"));
    }

    /// The links end; the publisher keeps running.
    pub(super) fn disconnect(&self, n: u8, reason: &str) {
        let links = self.with(n, |publisher| std::mem::take(&mut publisher.links));
        links.iter().for_each(|link| link.end(reason));
    }

    pub(super) fn set_resolver_down(&self, down: bool) {
        self.state.lock().resolver_down = down;
    }

    pub(super) fn set_incomplete(&self, incomplete: bool) {
        self.state.lock().incomplete = incomplete;
    }

    pub(super) fn end_watches(&self, why: WatchEnded) {
        self.state.lock().watches_ended = Some(why);
    }

    pub(super) fn answer_in_slices(&self, of: usize) {
        self.state.lock().slices_of = Some(of);
    }

    /// Bounds the subscriber's send queues. An empty one takes a frame of any length.
    pub(super) fn limit_send_queues(&self, bytes: usize) {
        self.state.lock().send_queue_bytes_max = Some(bytes);
    }

    /// Publishes new values, in one batch.
    pub(super) fn publish_update(&self, n: u8, updates: &[(&str, u64)]) {
        let updates: Vec<(Path, Value)> =
            updates.iter().map(|(at, value)| (path(at), Value::U64(*value))).collect();
        self.with(n, |publisher| {
            publisher.values.extend(updates.iter().cloned());
            for link in publisher.links.iter().filter(|_| !publisher.silent) {
                link.update(&updates);
            }
        });
    }

    pub(super) fn unpublish(&self, n: u8, at: &str) {
        self.with(n, |publisher| {
            publisher.values.remove(&path(at));
            publisher.links.iter().for_each(|link| link.unpublish(&path(at)));
        });
    }

    pub(super) fn send(&self, n: u8, message: &FromValuePublisher) {
        self.with(n, |publisher| publisher.links.iter().for_each(|link| link.send(message)));
    }

    /// Delivers a heartbeat, or any bytes that are no message.
    pub(super) fn heartbeat(&self, n: u8) {
        let now = Instant::now().into_std();
        self.with(n, |publisher| {
            publisher.links.iter().for_each(|link| link.state.lock().liveness.received(now));
        });
    }

    /// The number of open links.
    pub(super) fn links(&self, n: u8) -> usize {
        self.with(n, |publisher| {
            publisher.links.retain(|link| link.state.lock().ended.is_none());
            publisher.links.len()
        })
    }

    /// Frames on its links that the subscriber has not read.
    pub(super) fn unread(&self, n: u8) -> usize {
        self.with(n, |publisher| {
            publisher.links.iter().map(|link| link.state.lock().to_subscriber.len()).sum()
        })
    }

    /// The dials of the subscriber: when, and which publisher.
    pub(super) fn dials(&self) -> Vec<(Duration, u8)> {
        self.state.lock().dials.clone()
    }

    /// The resolve requests: when, and of how many paths.
    pub(super) fn resolve_requests(&self) -> Vec<(Duration, usize)> {
        self.state.lock().resolve_requests.clone()
    }

    /// Answers the writes that were left unanswered, the last one first.
    pub(super) fn answer_writes(&self, n: u8) {
        self.with(n, |publisher| {
            for link in &publisher.links {
                let unanswered = std::mem::take(&mut link.state.lock().unanswered);
                for request in unanswered.into_iter().rev() {
                    let outcome = Ok(Value::U64(request.into()));
                    link.send(&FromValuePublisher::Written(Written { request, outcome }));
                }
            }
        });
    }
}

fn info(n: u8) -> PublisherInfo {
    let addresses = [([127, 0, 0, 1], 5_000 + u16::from(n))];
    PublisherInfo::new(PublisherId([n; 16]), Epoch(1), format!("p{n}"), addresses)
}

impl Network for Harness {
    type FrameSender = FakeLinkHalf;
    type FrameReceiver = FakeLinkHalf;
    type PathSource = FakeWatch;

    async fn resolve(&self, paths: Vec<Path>) -> Result<Resolution, Arc<str>> {
        let mut state = self.state.lock();
        let now = state.started.map_or(Duration::ZERO, |started| started.elapsed());
        state.resolve_requests.push((now, paths.len()));
        if state.resolver_down {
            return Err("no resolver replica answered".into());
        }
        let mut sets: Vec<Arc<[Publication]>> = Vec::new();
        let slices_of = state.slices_of.unwrap_or(usize::MAX);
        let answers = paths.iter().enumerate().map(|(n, at)| {
            if n % slices_of == 0 {
                sets.clear();
            }
            let has_path = |(_, p): &(&u8, &Publisher)| p.listed && p.values.contains_key(at);
            let set: Vec<Publication> = state
                .publishers
                .iter()
                .filter(has_path)
                .map(|(n, p)| Publication { publisher: info(*n), terms: p.terms.clone() })
                .collect();
            if set.is_empty() {
                return PathAnswer::NotFound;
            }
            let known = sets.iter().find(|known| known[..] == set[..]).cloned();
            let set = known.unwrap_or_else(|| {
                sets.push(set.into());
                sets.last().unwrap().clone()
            });
            PathAnswer::Publishers { set, by_default: false, fallback: None }
        });
        let answers = answers.collect();
        Ok(Resolution { complete: !state.incomplete, answers })
    }

    async fn dial(
        &self,
        publisher: &PublisherInfo,
    ) -> Result<(FakeLinkHalf, FakeLinkHalf), Arc<str>> {
        let n = publisher.id.0[0];
        let dial_behavior = {
            let mut state = self.state.lock();
            let now = state.started.map_or(Duration::ZERO, |started| started.elapsed());
            state.dials.push((now, n));
            state.publishers[&n].dial_behavior
        };
        match dial_behavior {
            DialBehavior::Refuses => return Err("connection refused".into()),
            DialBehavior::Hangs => {
                tokio::time::sleep(CONNECT_TIMEOUT).await;
                return Err("no answer within 3s".into());
            }
            DialBehavior::Answers(after) => tokio::time::sleep(after).await,
        }
        let link = Arc::new(FakeLink {
            publisher: n,
            state: Mutex::new(FakeLinkState {
                to_subscriber: VecDeque::new(),
                ended: None,
                subscriptions: BTreeMap::new(),
                next_number: 1,
                free_numbers: Vec::new(),
                unanswered: Vec::new(),
                queued: 0,
                liveness: Liveness::new(Instant::now().into_std(), LinkTiming::VALUES),
                read: 0,
            }),
            changed: Notify::new(),
        });
        self.with(n, |publisher| publisher.links.push(link.clone()));
        let half = || FakeLinkHalf { harness: self.clone(), link: link.clone() };
        Ok((half(), half()))
    }

    fn is_local(&self, publisher: &PublisherInfo) -> bool {
        self.with(publisher.id.0[0], |publisher| publisher.local)
    }

    fn watch(&self, globs: Vec<Glob>) -> FakeWatch {
        FakeWatch {
            harness: self.clone(),
            globs,
            listed: BTreeSet::new(),
            events: VecDeque::new(),
            whole: false,
            next_check: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }
}

/// Compares what the publishers list every 10 ms.
pub(super) struct FakeWatch {
    harness: Harness,
    globs: Vec<Glob>,
    listed: BTreeSet<Path>,
    events: VecDeque<PathEvent>,
    whole: bool,
    next_check: Pin<Box<tokio::time::Sleep>>,
}

impl FakeWatch {
    fn check(&mut self) {
        let state = self.harness.state.lock();
        if state.resolver_down {
            return;
        }
        let publishers = state.publishers.values().filter(|publisher| publisher.listed);
        let matches = |path: &&Path| self.globs.iter().any(|glob| glob.matches(path));
        let now = publishers.flat_map(|publisher| publisher.values.keys()).filter(matches);
        let now: BTreeSet<Path> = now.cloned().collect();
        let listed = |path: &Path| PathListed {
            path: path.clone(),
            queue: false,
            value: true,
            default: false,
        };
        self.events.extend(self.listed.difference(&now).cloned().map(PathEvent::Gone));
        let new = now.difference(&self.listed).map(listed).map(PathEvent::Now);
        self.events.extend(new);
        if !std::mem::replace(&mut self.whole, true) {
            self.events.push_back(PathEvent::Whole { complete: true });
        }
        self.listed = now;
    }
}

impl PathSource for FakeWatch {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<PathEvent, WatchEnded>> {
        loop {
            if let Some(why) = self.harness.state.lock().watches_ended.clone() {
                return Poll::Ready(Err(why));
            }
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Ok(event));
            }
            match self.next_check.as_mut().poll(context) {
                Poll::Ready(()) => {
                    self.check();
                    let next = Instant::now() + Duration::from_millis(10);
                    self.next_check.as_mut().reset(next);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Either half of the subscriber's end of a link.
pub(super) struct FakeLinkHalf {
    harness: Harness,
    link: Arc<FakeLink>,
}

impl FrameReceiver for FakeLinkHalf {
    /// Ends at the hang timeout after the last byte, to the nanosecond, as a real link does.
    async fn recv(&mut self) -> Result<Bytes, Arc<str>> {
        loop {
            let deadline = {
                let mut state = self.link.state.lock();
                if let Some(reason) = &state.ended {
                    return Err(reason.clone());
                }
                if let Some(frame) = state.to_subscriber.pop_front() {
                    state.read += 1;
                    return Ok(frame);
                }
                let now = Instant::now().into_std();
                state.liveness.sent(now);
                if let Some(LivenessAction::Hung { silent_for }) = state.liveness.poll(now) {
                    drop(state);
                    self.link.end(&format!("the other side was silent for {silent_for:?}"));
                    continue;
                }
                state.liveness.next_deadline()
            };
            tokio::select! {
                () = self.link.changed.notified() => {}
                () = tokio::time::sleep_until(deadline.into()) => {}
            }
        }
    }
}

impl FrameSender for FakeLinkHalf {
    fn send(&self, frame: Frame) -> Result<(), SendError> {
        let limit = self.harness.state.lock().send_queue_bytes_max.unwrap_or(usize::MAX);
        {
            let mut state = self.link.state.lock();
            if state.ended.is_some() {
                return Err(SendError::Closed);
            }
            let queued = state.queued;
            if queued > 0 && queued + frame.len() > limit {
                return Err(SendError::Full { queued, limit });
            }
            state.queued += frame.len();
        }
        let mut whole = Vec::new();
        frame.parts().iter().for_each(|part| whole.extend_from_slice(part));
        for message in Messages::new(Bytes::from(whole).slice(4..)) {
            let (tag, body) = message.unwrap();
            let message = ToValuePublisher::decode(tag, body).unwrap().unwrap();
            self.harness
                .with(self.link.publisher, |publisher| publisher.receive(&self.link, message));
        }
        Ok(())
    }

    /// The queue takes a millisecond to become empty.
    async fn ready(&self, _below: usize) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.link.state.lock().queued = 0;
    }

    fn is_congested(&self) -> bool {
        false
    }

    fn close(&self, reason: &str) {
        self.link.end(reason);
    }
}

impl Publisher {
    fn receive(&mut self, link: &FakeLink, message: ToValuePublisher) {
        if let ToValuePublisher::Subscribe(all) = &message {
            self.subscribe_requests.push(all.len());
        }
        if self.silent {
            return;
        }
        match message {
            ToValuePublisher::Subscribe(all) => {
                for request in all {
                    let subscription = request.subscription;
                    if self.silent_for.as_ref() == Some(&request.path) {
                        continue;
                    }
                    let refuses = self.refuses || self.refuses_only.as_ref() == Some(&request.path);
                    let value = self.values.get(&request.path).filter(|_| !refuses);
                    let Some(value) = value.cloned() else {
                        let code = ValueRefusal::NotHere;
                        let reason = code.to_string();
                        link.send(&FromValuePublisher::Refused { subscription, code, reason });
                        continue;
                    };
                    let mut state = link.state.lock();
                    assert!(
                        !state.subscriptions.contains_key(&request.path),
                        "{} is subscribed",
                        request.path
                    );
                    let number = state.free_numbers.pop().unwrap_or(state.next_number);
                    state.next_number = state.next_number.max(number + 1);
                    state.subscriptions.insert(request.path, (subscription, number));
                    drop(state);
                    let subscribed = Subscribed { subscription, number, value };
                    link.send(&FromValuePublisher::Subscribed(vec![subscribed]));
                }
            }
            ToValuePublisher::Unsubscribe(all) => {
                for subscription in all {
                    link.finish(
                        |_, subscriptions| subscriptions == subscription,
                        SubscriptionEnd::Unsubscribed,
                    );
                }
            }
            ToValuePublisher::Write(write) if write.value == Value::U64(0) => {
                link.state.lock().unanswered.push(write.request);
            }
            ToValuePublisher::Write(write) if write.receipt => {
                let outcome = match write.value {
                    Value::U64(n) => Ok(Value::U64(n + 1)),
                    _ => Err(WriteRefused {
                        code: WriteRefusal::Refused,
                        reason: "a number!".into(),
                    }),
                };
                let request = write.request;
                link.send(&FromValuePublisher::Written(Written { request, outcome }));
            }
            ToValuePublisher::Write(_) => {}
        }
    }
}

impl FakeLink {
    fn send(&self, message: &FromValuePublisher) {
        let mut out = FrameWriter::new();
        message.encode(&mut out);
        let mut state = self.state.lock();
        state.to_subscriber.push_back(out.into_body());
        state.liveness.received(Instant::now().into_std());
        drop(state);
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    fn update(&self, updates: &[(Path, Value)]) {
        let numbered: Vec<(u32, &Value)> = {
            let state = self.state.lock();
            let number =
                |(at, value)| state.subscriptions.get(at).map(|(_, number)| (*number, value));
            updates.iter().map(|(at, value)| (at, value)).filter_map(number).collect()
        };
        if !numbered.is_empty() {
            let updates: UpdatesMessage = numbered.into_iter().collect();
            self.send(&FromValuePublisher::Updates(updates));
        }
    }

    fn unpublish(&self, at: &Path) {
        self.finish(|subscriptions, _| subscriptions == at, SubscriptionEnd::Unpublished);
    }

    fn finish(&self, which: impl Fn(&Path, u32) -> bool, end: SubscriptionEnd) {
        let mut state = self.state.lock();
        let found =
            state.subscriptions.iter().find(|(at, (subscription, _))| which(at, *subscription));
        let Some((at, (subscription, number))) =
            found.map(|(at, subscriptions)| (at.clone(), *subscriptions))
        else {
            return;
        };
        state.subscriptions.remove(&at);
        state.free_numbers.push(number);
        drop(state);
        self.send(&FromValuePublisher::Ended(vec![SubscriptionEnded { subscription, end }]));
    }

    fn end(&self, reason: &str) {
        self.state.lock().ended.get_or_insert_with(|| reason.into());
        self.changed.notify_waiters();
        self.changed.notify_one();
    }
}
