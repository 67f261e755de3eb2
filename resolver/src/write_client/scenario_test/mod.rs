//! The guarantees of the fault-tolerance documentation about write connections, each as a test in
//! virtual time.

mod attempts;
mod confirms;
mod digests;
mod refusals;
mod replica;
mod size;
mod up_to_date;
mod writes;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::resolver::{
    Announce, Announced, Change, Digest, FromReplica, Group, KeyHash, RequestRefusal, ToReplica,
    Write, Written,
};
use longshore_protocol::{Epoch, Homes, Path, PublisherId, PublisherInfo, ResolverTiming, Terms};

use crate::directory::Client;
use crate::write_client::ReplicaHealth;
use crate::write_client::buckets::Key;
use crate::write_client::core::{Action, Event, WriteCore};
use crate::write_client::desired_state::DesiredState;
use crate::write_client::terms::CheckedTerms;
use replica::Replica;

const INSTANT: Duration = Duration::from_nanos(1);
const HALF_TTL: Duration = Duration::from_secs(60);

/// A client of one replica, and a clock that only the test advances.
struct Scenario {
    now: Instant,
    desired: DesiredState,
    core: WriteCore,
    /// The replica; `None` while it is down.
    replica: Option<Replica>,
    /// It accepts links and requests, and answers none.
    hangs: bool,
    /// Its policy refuses the publisher.
    forbids: bool,
    epoch: u64,
    link: Client,
    linked: bool,
    /// Messages of the replica that are not handled yet.
    inbox: VecDeque<FromReplica>,
    attempts: Vec<Instant>,
    failures: Vec<(bool, Duration)>,
    sent: Vec<Sent>,
    /// The number of the last of them.
    requests: u64,
    /// The bytes that both sides have sent.
    bytes: usize,
    closed: bool,
    /// The replica has lost something: a writer cannot know before the next comparison.
    lost: bool,
    was_up_to_date: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Sent {
    Announce,
    Write(usize),
    Confirm,
    Clear,
}

fn key(path: &str) -> Key {
    Key { path: Path::new(path).unwrap(), default: false }
}

fn keys(count: usize) -> BTreeSet<Key> {
    (0..count).map(|n| key(&format!("/jobs/{n}"))).collect()
}

fn terms(weight: u16) -> CheckedTerms {
    CheckedTerms::new(Terms { weight, ..Terms::default() }).unwrap()
}

impl Scenario {
    /// A replica that is up, and a client that has just started.
    fn new(seed: u64) -> Scenario {
        let scenario = Scenario::down(seed);
        Scenario { replica: Some(Replica::new(scenario.now)), ..scenario }
    }

    /// The same publisher, restarted while the replica continues.
    fn restarted(before: &mut Scenario) -> Scenario {
        Scenario {
            now: before.now,
            epoch: 2,
            link: Client(1_000),
            core: WriteCore::new(before.now, ResolverTiming::default(), 8),
            replica: before.replica.take(),
            ..Scenario::down(8)
        }
    }

    /// A replica that is down, and a client that has just started.
    fn down(seed: u64) -> Scenario {
        let now = Instant::now();
        Scenario {
            now,
            desired: DesiredState::default(),
            core: WriteCore::new(now, ResolverTiming::default(), seed),
            replica: None,
            hangs: false,
            forbids: false,
            epoch: 1,
            link: Client(0),
            linked: false,
            inbox: VecDeque::new(),
            attempts: Vec::new(),
            failures: Vec::new(),
            sent: Vec::new(),
            requests: 0,
            bytes: 0,
            closed: false,
            lost: false,
            was_up_to_date: false,
        }
    }

    /// A client that has published `count` paths.
    fn published(count: usize) -> Scenario {
        let mut scenario = Scenario::new(7);
        scenario.set_desired(keys(count), true);
        scenario.settle();
        assert!(scenario.core.is_up_to_date());
        scenario.sent.clear();
        scenario
    }

    /// Publishes keys on default terms, or removes them.
    fn set_desired(&mut self, keys: impl IntoIterator<Item = Key>, desired: bool) {
        let terms = desired.then(CheckedTerms::default);
        self.set_desired_on(keys, terms.as_ref());
    }

    fn set_desired_on(
        &mut self,
        keys: impl IntoIterator<Item = Key>,
        terms: Option<&CheckedTerms>,
    ) {
        for key in keys {
            self.desired.set_one(key, terms);
        }
        self.step(Event::Tick);
    }

    fn step(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.core.step(self.now, &self.desired, event) {
                match action {
                    Action::Dial => {
                        self.attempts.push(self.now);
                        self.linked = self.replica.is_some();
                        self.link.0 += 1;
                        events.push_back(match self.linked {
                            true => Event::Linked,
                            false => Event::Unlinked { why: "refused".into() },
                        });
                    }
                    Action::Close => self.unlink(),
                    Action::Failed { degraded, again, .. } => {
                        self.failures.push((degraded, again - self.now));
                    }
                    Action::Closed => self.closed = true,
                    Action::PathRefused { .. } => {}
                    request => self.serve(request),
                }
            }
            self.check_up_to_date();
            // Like the tasks of the replicas, with one replica.
            self.desired.forget(self.core.needs_changes().unwrap_or(u64::MAX));
            if events.is_empty() && self.core.has_more() {
                events.push_back(Event::Tick);
            }
        }
    }

    /// Checks that the client never reports a replica as up to date that is not.
    fn check_up_to_date(&mut self) {
        let is_up_to_date = self.core.is_up_to_date();
        assert!(!is_up_to_date || self.core.pending() == 0, "it is up to date, and lacks some");
        let became_up_to_date = is_up_to_date && !self.was_up_to_date;
        self.was_up_to_date = is_up_to_date;
        // Checking very many keys at every step would take minutes.
        if is_up_to_date && (became_up_to_date || self.desired.keys().len() <= 2_000) {
            let replica = self.replica.as_ref().expect("there is a link");
            let core = &self.core;
            let missing = replica.first_pending(&self.desired, |hash| core.has_refused(hash));
            self.lost &= missing.is_some();
            assert!(missing.is_none() || self.lost, "it lacks {missing:?}: {core:?}");
        }
    }

    fn unlink(&mut self) {
        self.linked = false;
        self.inbox.clear();
        if let Some(replica) = &mut self.replica {
            replica.link_gone(self.link);
        }
    }

    /// The link is lost, and the client notices.
    fn lose_link(&mut self) {
        self.unlink();
        self.step(Event::Unlinked { why: "a cable".into() });
    }

    /// The replica handles a request; its answer is queued in the inbox.
    fn serve(&mut self, request: Action) {
        let Some(replica) = &mut self.replica else { return };
        let (sent, id, message) = request_message(request, self.epoch);
        self.sent.push(sent);
        self.requests = id;
        self.bytes += len(|out| message.encode(out));
        if self.hangs {
            return;
        }
        replica.tick(self.now);
        replica.record_activity(self.link, self.now);
        let answer = match message {
            ToReplica::Announce(_) if self.forbids => Err(RequestRefusal::Forbidden),
            ToReplica::Announce(Announce { desired, .. }) => {
                let digests = replica.announce(self.now, self.link, self.epoch, &desired);
                let writer_ttl_ms = (2 * HALF_TTL).as_millis() as u64;
                digests
                    .map(|stored| FromReplica::Announced(Announced { id, stored, writer_ttl_ms }))
            }
            ToReplica::Write(Write { groups, .. }) => {
                let done = groups.iter().map(|group| group.paths.len() as u64).sum();
                replica
                    .write(self.link, &groups)
                    .map(|refused| FromReplica::Written(Written { id, last: true, done, refused }))
            }
            ToReplica::Confirm { .. } => replica.confirm(self.link).map(|()| written(id)),
            ToReplica::Clear { .. } => replica.clear(self.link).map(|()| written(id)),
            other => panic!("a writer sends {other:?}"),
        };
        let refused = |code| FromReplica::Refused { id, code, reason: format!("{code:?}") };
        let answer = answer.unwrap_or_else(refused);
        self.bytes += len(|out| answer.encode(out));
        self.inbox.push_back(answer);
    }

    /// Handles all queued messages of the replica.
    fn settle(&mut self) {
        self.step(Event::Tick);
        while let Some(message) = self.inbox.pop_front() {
            self.step(Event::Received(message));
        }
    }

    /// Advances time up to `end`, stepping at every deadline.
    fn pass_until(&mut self, end: Instant) {
        self.settle();
        while let Some(deadline) = self.core.next_deadline().filter(|&deadline| deadline <= end) {
            assert!(deadline >= self.now, "a deadline has passed without a step");
            self.now = deadline;
            self.settle();
        }
        self.now = end;
        if let Some(replica) = &mut self.replica {
            replica.tick(end);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.pass_until(self.now + time);
    }

    fn crash(&mut self) {
        self.replica = None;
        if std::mem::take(&mut self.linked) {
            self.inbox.clear();
            self.step(Event::Unlinked { why: "it crashed".into() });
        }
    }

    fn restart_replica(&mut self) {
        self.replica = Some(Replica::new(self.now));
    }

    /// The replica loses a path, which none should.
    fn lose(&mut self, key: &Key) {
        let paths = [&key.path].into_iter().collect();
        let group = Group { change: Change::Unpublish, terms: Terms::default(), paths };
        self.lost = true;
        self.replica.as_mut().unwrap().write(self.link, &[group]).unwrap();
    }

    /// The replica's registrations of the publisher.
    fn registered(&self) -> Digest {
        self.replica.as_ref().expect("the replica is down").registered()
    }

    fn is_in_sync(&self) -> bool {
        self.replica.as_ref().unwrap().invariant();
        self.registered() == self.desired.keys().digests(0)[0]
    }

    fn is_degraded(&self) -> bool {
        matches!(self.core.health(), ReplicaHealth::Degraded { .. })
    }

    /// The number of paths written.
    fn written(&self) -> usize {
        let paths =
            self.sent.iter().map(|sent| if let Sent::Write(paths) = sent { *paths } else { 0 });
        paths.sum()
    }

    /// The number of the newest request.
    fn newest_request(&self) -> u64 {
        self.requests
    }

    /// How often that was sent.
    fn count(&self, sent: Sent) -> usize {
        self.sent.iter().filter(|other| **other == sent).count()
    }
}

/// The message of an action.
fn request_message(action: Action, epoch: u64) -> (Sent, u64, ToReplica) {
    match action {
        Action::Announce { request: id, desired } => {
            let publisher = PublisherInfo::new(
                PublisherId([1; 16]),
                Epoch(epoch),
                "left",
                [([127, 0, 0, 1], 4000)],
            );
            (Sent::Announce, id, ToReplica::Announce(Announce { id, publisher, desired }))
        }
        Action::Write { request: id, groups } => {
            let paths = groups.iter().map(|group| group.paths.len()).sum();
            (Sent::Write(paths), id, ToReplica::Write(Write { id, groups }))
        }
        Action::Confirm { request: id } => (Sent::Confirm, id, ToReplica::Confirm { id }),
        Action::Clear { request: id } => (Sent::Clear, id, ToReplica::Clear { id }),
        other => panic!("{other:?} is no request"),
    }
}

fn written(id: u64) -> FromReplica {
    FromReplica::Written(Written { id, last: true, done: 0, refused: Vec::new() })
}

/// The bytes of a message in a frame of its own.
fn len(encode: impl FnOnce(&mut FrameWriter)) -> usize {
    let mut out = FrameWriter::new();
    encode(&mut out);
    out.finish().len()
}
