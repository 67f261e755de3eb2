//! The guarantees of the fault-tolerance documentation about read connections, each as a test in
//! virtual time.

mod batches;
mod hostile;
mod path_watches;
mod questions;
mod rounds;
mod timeouts;
mod warming;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    self as wire, FromReplica, Resolved, SetMember, Tracker,
};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, ResolverTiming, Terms,
};

use crate::read_client::answer::{Answer, PathAnswer, Publication, ReadError};
use crate::read_client::core::{
    Action, Event, LINKS_MAX, Question, REQUESTS_IN_FLIGHT_MAX, ReadCore, WatchUpdate,
};
use crate::read_client::path_view::PathView;

const INSTANT: Duration = Duration::from_nanos(1);

/// A client, and a clock that only the test advances.
struct Scenario {
    now: Instant,
    core: ReadCore,
    /// Every replica that was dialled, in order.
    dialled: Vec<usize>,
    /// Links that were dialled and have not ended, with their replicas.
    links: BTreeMap<u64, usize>,
    /// The requests without their last answer: number, and paths.
    requests: Vec<(u64, usize)>,
    /// The link of each request.
    sent_over: BTreeMap<u64, u64>,
    finished: Vec<(u64, Result<Answer, ReadError>)>,
    /// The active watches, by link.
    watched: BTreeSet<(u64, u32)>,
    /// The number of the latest request for each watch over each link.
    watch_requests: BTreeMap<(u64, u32), u64>,
    delivered: Vec<(u32, usize)>,
    /// Every watch that was sent, in order, by link.
    sent_watches: Vec<(u64, u32)>,
    views: BTreeMap<u32, PathView>,
    closed: bool,
}

impl Scenario {
    fn new(replicas: usize, seed: u64) -> Scenario {
        let names = (0..replicas).map(|n| format!("replica-{n}:4800")).collect();
        Scenario {
            now: Instant::now(),
            core: ReadCore::new(ResolverTiming::default(), names, seed),
            dialled: Vec::new(),
            links: BTreeMap::new(),
            requests: Vec::new(),
            sent_over: BTreeMap::new(),
            finished: Vec::new(),
            watched: BTreeSet::new(),
            watch_requests: BTreeMap::new(),
            delivered: Vec::new(),
            sent_watches: Vec::new(),
            views: BTreeMap::new(),
            closed: false,
        }
    }

    fn step(&mut self, event: Event) {
        if let Event::Unlinked { link, .. } = &event {
            self.unlink(*link);
        }
        for action in self.core.step(self.now, event) {
            match action {
                Action::Dial { link, replica } => {
                    self.dialled.push(replica);
                    self.links.insert(link, replica);
                    assert!(self.links.len() <= LINKS_MAX, "{:?}", self.links);
                }
                Action::Close { link } => {
                    self.unlink(link);
                    self.closed = true;
                }
                Action::Ask { link, request, range, .. } => {
                    self.requests.push((request, range.len()));
                    self.sent_over.insert(request, link);
                }
                Action::Watch { link, request, watch, .. } => {
                    self.watch_requests.insert((link, watch), request);
                    self.watched.insert((link, watch));
                    self.sent_watches.push((link, watch));
                }
                Action::Unwatch { link, watch, .. } => {
                    self.watched.remove(&(link, watch));
                }
                Action::Finish { batch, answer } => self.finished.push((batch, answer)),
                Action::Update { link, watch, replica, update } => {
                    self.deliver(link, watch, replica, update);
                }
            }
        }
    }

    fn deliver(&mut self, link: u64, watch: u32, replica: usize, update: WatchUpdate) {
        let name = format!("replica-{replica}:4800");
        if let Some(view) = self.views.get_mut(&watch) {
            match update {
                WatchUpdate::Snapshot(part) => assert!(view.snapshot(link, &name, part)),
                WatchUpdate::Changes(changes) => assert!(view.changes(link, &changes)),
                WatchUpdate::Refused(reason) => view.refused(&name, reason),
                WatchUpdate::Publishers(_) | WatchUpdate::Gone(_) => panic!("a watch over paths"),
            }
        } else if !matches!(update, WatchUpdate::Refused(_)) {
            self.delivered.push((watch, replica));
        }
    }

    fn unlink(&mut self, link: u64) {
        assert!(self.links.remove(&link).is_some(), "link {link} has ended before");
        let sent_over = &self.sent_over;
        self.requests.retain(|(request, _)| sent_over[request] != link);
        self.watched.retain(|(over, _)| *over != link);
    }

    /// The link that was dialled last, if it has not ended.
    fn link(&self) -> u64 {
        *self.links.last_key_value().expect("no replica was dialled").0
    }

    fn linked(&mut self) {
        self.step(Event::Linked { link: self.link() });
    }

    fn ask(&mut self, batch: u64, paths: usize) {
        self.ask_for(batch, paths, false);
    }

    fn ask_for(&mut self, batch: u64, paths: usize, all_publishers: bool) {
        let paths: Arc<[Path]> = vec![Path::new("/a").unwrap(); paths].into();
        let question = Question::Resolve { paths, all_publishers };
        self.step(Event::Ask { batch, question });
    }

    fn unlinked(&mut self, why: &str) {
        self.step(Event::Unlinked { link: self.link(), why: why.to_owned() });
    }

    /// Answers the oldest request.
    fn answer(&mut self, complete: bool, answer: wire::PathAnswer) {
        let (id, paths) = self.requests.remove(0);
        let (link, message) =
            (self.sent_over[&id], resolved(id, true, complete, vec![answer; paths]));
        self.step(Event::Received { link, message });
    }

    /// Receives a message of the replica that was dialled last.
    fn received(&mut self, message: FromReplica) {
        self.step(Event::Received { link: self.link(), message });
    }

    fn is_watched(&self, watch: u32) -> bool {
        self.watched.contains(&(self.link(), watch))
    }

    /// The replica that was dialled last.
    fn replica(&self) -> usize {
        *self.dialled.last().expect("no replica was dialled")
    }

    fn wait(&mut self) -> Duration {
        let deadline = self.core.next_deadline().expect("there is no deadline");
        let wait = deadline - self.now;
        let dialled = self.dialled.len();
        self.now = deadline - INSTANT;
        self.step(Event::Tick);
        assert_eq!((self.dialled.len(), self.closed), (dialled, false), "too early");
        self.now = deadline;
        self.step(Event::Tick);
        wait
    }

    fn only_answer(&mut self) -> Result<Answer, ReadError> {
        assert_eq!(self.finished.len(), 1, "{:?}", self.finished);
        self.finished.remove(0).1
    }

    fn complete(&mut self) -> (bool, Vec<PathAnswer>) {
        match self.only_answer() {
            Ok(Answer::Resolved(resolution)) => (resolution.complete, resolution.answers),
            other => panic!("{other:?}"),
        }
    }
}

fn publisher() -> PublisherInfo {
    PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "left", [([127, 0, 0, 1], 4000)])
}

fn tracker() -> Tracker {
    Tracker { incarnation: Incarnation([9; 16]), revision: 1 }
}

fn resolved(id: u64, last: bool, complete: bool, answers: Vec<wire::PathAnswer>) -> FromReplica {
    let [one, other] = [0, 1].map(|publisher| SetMember { publisher, terms: 0 });
    let sets = vec![vec![one], vec![one, other]];
    let right = PublisherInfo { id: PublisherId([2; 16]), name: "right".into(), ..publisher() };
    let publishers = vec![publisher(), right];
    let (tracker, terms) = (tracker(), vec![Terms::default()]);
    FromReplica::Resolved(Resolved {
        id,
        last,
        complete,
        tracker,
        publishers,
        terms,
        sets,
        answers,
    })
}

fn found(by_default: bool) -> PathAnswer {
    let publication = Publication { publisher: publisher(), terms: Terms::default() };
    PathAnswer::Publishers { set: [publication].into(), by_default, fallback: None }
}

const FOUND: wire::PathAnswer = wire::PathAnswer::Published { set: 0, default: None };
const BOTH_FOUND: wire::PathAnswer = wire::PathAnswer::Published { set: 1, default: None };
const BY_DEFAULT: wire::PathAnswer = wire::PathAnswer::ByDefault { set: 0 };
const NOT_FOUND: wire::PathAnswer = wire::PathAnswer::NotFound;
