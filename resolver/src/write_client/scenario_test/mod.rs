//! The sentences of the fault-tolerance chapter about write connections, each as a test in virtual
//! time.

mod confirms;
mod digests;
mod holds;
mod refusals;
mod replica;
mod size;
mod tries;
mod whole;
mod writes;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::resolver::{
    Announce, Announced, Change, Digest, FromReplica, Group, KeyHash, RequestRefusal, ToReplica,
    Write, Written,
};
use longshore_protocol::{Epoch, Path, PublisherId, PublisherInfo, ResolverTiming, Terms};

use crate::directory::Client;
use crate::write_client::ReplicaStanding;
use crate::write_client::buckets::Key;
use crate::write_client::core::{Action, Input, WriteCore};
use crate::write_client::terms::PublicationTerms;
use crate::write_client::wanted::Wanted;
use replica::Replica;

const INSTANT: Duration = Duration::from_nanos(1);
const HALF_TTL: Duration = Duration::from_secs(60);

/// A client of one replica, and a clock that moves when it is told to.
struct Scenario {
    now: Instant,
    wanted: Wanted,
    core: WriteCore,
    /// The replica; none while it is down.
    replica: Option<Replica>,
    /// It takes links and requests, and answers none.
    hangs: bool,
    epoch: u64,
    link: Client,
    linked: bool,
    /// What was said on the link and not taken in yet.
    inbox: VecDeque<FromReplica>,
    tries: Vec<Instant>,
    failures: Vec<(bool, Duration)>,
    sent: Vec<Sent>,
    /// The number of the last of them.
    requests: u64,
    /// What both sides have said, in bytes.
    bytes: usize,
    closed: bool,
    /// The replica has lost something: no writer can know that before the next comparison.
    lost: bool,
    was_whole: bool,
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

fn terms(weight: u16) -> PublicationTerms {
    PublicationTerms::new(Terms { weight, ..Terms::default() }).unwrap()
}

impl Scenario {
    /// A replica that is up, and a client that has just started.
    fn new(seed: u64) -> Scenario {
        let scenario = Scenario::down(seed);
        Scenario { replica: Some(Replica::new(scenario.now)), ..scenario }
    }

    /// The same publisher, started again while the replica goes on.
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
            wanted: Wanted::default(),
            core: WriteCore::new(now, ResolverTiming::default(), seed),
            replica: None,
            hangs: false,
            epoch: 1,
            link: Client(0),
            linked: false,
            inbox: VecDeque::new(),
            tries: Vec::new(),
            failures: Vec::new(),
            sent: Vec::new(),
            requests: 0,
            bytes: 0,
            closed: false,
            lost: false,
            was_whole: false,
        }
    }

    /// A client that has published `count` paths.
    fn published(count: usize) -> Scenario {
        let mut scenario = Scenario::new(7);
        scenario.want(keys(count), true);
        scenario.settle();
        assert!(scenario.core.is_whole());
        scenario.sent.clear();
        scenario
    }

    /// Wants keys, on the terms of the default, or no longer.
    fn want(&mut self, keys: impl IntoIterator<Item = Key>, wanted: bool) {
        let terms = wanted.then(PublicationTerms::default);
        self.want_on(keys, terms.as_ref());
    }

    fn want_on(&mut self, keys: impl IntoIterator<Item = Key>, terms: Option<&PublicationTerms>) {
        for key in keys {
            self.wanted.set_one(key, terms);
        }
        self.step(Input::Tick);
    }

    fn step(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for action in self.core.step(self.now, &self.wanted, input) {
                match action {
                    Action::Dial => {
                        self.tries.push(self.now);
                        self.linked = self.replica.is_some();
                        self.link.0 += 1;
                        inputs.push_back(match self.linked {
                            true => Input::Linked,
                            false => Input::Unlinked { why: "refused".into() },
                        });
                    }
                    Action::Hangup => self.unlink(),
                    Action::Failed { degraded, again, .. } => {
                        self.failures.push((degraded, again - self.now));
                    }
                    Action::Closed => self.closed = true,
                    Action::PathRefused { .. } => {}
                    request => self.serve(request),
                }
            }
            self.check_whole();
            // As the replicas' tasks do, with one replica.
            self.wanted.forget(self.core.needs_changes().unwrap_or(u64::MAX));
            if inputs.is_empty() && self.core.has_more() {
                inputs.push_back(Input::Tick);
            }
        }
    }

    /// Whoever waits for the replica to hold everything is told no lie, at any moment.
    fn check_whole(&mut self) {
        let is_whole = self.core.is_whole();
        assert!(!is_whole || self.core.lacking() == 0, "it holds all, and lacks some");
        let came = is_whole && !self.was_whole;
        self.was_whole = is_whole;
        // Looking at very many at every step would take minutes.
        if is_whole && (came || self.wanted.keys().len() <= 2_000) {
            let replica = self.replica.as_ref().expect("the link stands");
            let core = &self.core;
            let lacks = replica.first_lacking(&self.wanted, |hash| core.has_refused(hash));
            self.lost &= lacks.is_some();
            assert!(lacks.is_none() || self.lost, "it does not hold {lacks:?}: {core:?}");
        }
    }

    fn unlink(&mut self) {
        self.linked = false;
        self.inbox.clear();
        if let Some(replica) = &mut self.replica {
            replica.link_gone(self.link);
        }
    }

    /// The link is lost, and the client hears of it.
    fn cut(&mut self) {
        self.unlink();
        self.step(Input::Unlinked { why: "a cable".into() });
    }

    /// What the replica does with a request; its answer waits in the inbox.
    fn serve(&mut self, request: Action) {
        let Some(replica) = &mut self.replica else { return };
        let (sent, id, message) = said(request, self.epoch);
        self.sent.push(sent);
        self.requests = id;
        self.bytes += len(|out| message.encode(out));
        if self.hangs {
            return;
        }
        replica.tick(self.now);
        replica.heard(self.link, self.now);
        let answer = match message {
            ToReplica::Announce(Announce { wanted, .. }) => {
                let held = replica.announce(self.now, self.link, self.epoch, &wanted);
                let writer_ttl_ms = (2 * HALF_TTL).as_millis() as u64;
                held.map(|held| FromReplica::Announced(Announced { id, held, writer_ttl_ms }))
            }
            ToReplica::Write(Write { groups, .. }) => {
                let done = groups.iter().map(|group| group.paths.len() as u64).sum();
                replica
                    .write(self.link, &groups)
                    .map(|refused| FromReplica::Written(Written { id, last: true, done, refused }))
            }
            ToReplica::Confirm { .. } => replica.confirm(self.link).map(|()| written(id)),
            ToReplica::Clear { .. } => replica.clear(self.link).map(|()| written(id)),
            other => panic!("a writer says {other:?}"),
        };
        let refused = |code| FromReplica::Refused { id, code, reason: format!("{code:?}") };
        let answer = answer.unwrap_or_else(refused);
        self.bytes += len(|out| answer.encode(out));
        self.inbox.push_back(answer);
    }

    /// Takes in everything that the replica has said.
    fn settle(&mut self) {
        self.step(Input::Tick);
        while let Some(message) = self.inbox.pop_front() {
            self.step(Input::Told(message));
        }
    }

    /// Lets time pass up to `end`, doing what is due when it is due.
    fn pass_until(&mut self, end: Instant) {
        self.settle();
        while let Some(deadline) = self.core.next_deadline().filter(|&deadline| deadline <= end) {
            assert!(deadline >= self.now, "it is late, and does nothing about it");
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
            self.step(Input::Unlinked { why: "it crashed".into() });
        }
    }

    fn returns(&mut self) {
        self.replica = Some(Replica::new(self.now));
    }

    /// The replica loses a path, as none should.
    fn lose(&mut self, key: &Key) {
        let paths = [&key.path].into_iter().collect();
        let group = Group { change: Change::Unpublish, terms: Terms::default(), paths };
        self.lost = true;
        self.replica.as_mut().unwrap().write(self.link, &[group]).unwrap();
    }

    /// What the replica holds of the publisher.
    fn held(&self) -> Digest {
        self.replica.as_ref().expect("the replica is down").held()
    }

    fn holds_all(&self) -> bool {
        self.held() == self.wanted.keys().digests(0)[0]
    }

    fn is_degraded(&self) -> bool {
        matches!(self.core.standing(), ReplicaStanding::Degraded { .. })
    }

    /// How many paths were written.
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

/// What an action says to the replica.
fn said(action: Action, epoch: u64) -> (Sent, u64, ToReplica) {
    match action {
        Action::Announce { request: id, wanted } => {
            let publisher = PublisherInfo::new(
                PublisherId([1; 16]),
                Epoch(epoch),
                "left",
                [([127, 0, 0, 1], 4000)],
            );
            (Sent::Announce, id, ToReplica::Announce(Announce { id, publisher, wanted }))
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
