//! Watches over paths: whatever replicas do, and however the client moves between them, the reader
//! ends with the state of the last one.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::messages::resolver::{
    FromReplica, PathChanges, PathListed, PathSnapshot, RequestRefusal,
};
use longshore_protocol::{Glob, Path};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Scenario, tracker};
use crate::read_client::core::{Event, LINKS_MAX, Subject};
use crate::read_client::path_view::{PathEvent, PathView};

const WATCH: u32 = 5;
const PATHS: usize = 12;

/// The state of a path: queue, value, default.
type PathState = [bool; 3];
const NOTHING: PathState = [false; 3];

/// A replica with arbitrary behaviour.
#[derive(Clone, Debug)]
struct Replica {
    paths: [PathState; PATHS],
    complete: bool,
}

/// The progress of a watch that a replica serves over one link.
#[derive(Clone, Debug, Default)]
struct Serving {
    /// Paths of the snapshot sent so far; after all of them changes follow.
    sent: usize,
    /// Paths that have changed since the snapshot began, still to be sent.
    changed: Vec<usize>,
    /// A part of this snapshot was sent.
    begun: bool,
    /// All parts of this snapshot were sent.
    snapshot_sent: bool,
    /// All parts so far were sent while the replica was complete.
    complete: bool,
}

struct Model {
    scenario: Scenario,
    random: StdRng,
    replicas: Vec<Replica>,
    serving: BTreeMap<u64, Serving>,
    /// The paths that the reader knows.
    known: BTreeMap<Path, PathState>,
    /// The last `Whole` event.
    caught_up: Option<bool>,
}

fn path(n: usize) -> Path {
    Path::new(&format!("/jobs/{n}")).unwrap()
}

fn listed(n: usize, [queue, value, default]: PathState) -> PathListed {
    PathListed { path: path(n), queue, value, default }
}

fn everything() -> Subject {
    Subject::Paths([Glob::everything()].into())
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut random = StdRng::seed_from_u64(seed);
        let replicas = random.random_range(1..=3);
        let mut scenario = Scenario::new(replicas, seed);
        scenario.views.insert(WATCH, PathView::new(PATHS));
        scenario.step(Event::Watch { watch: WATCH, subject: everything() });
        let mut paths = [NOTHING; PATHS];
        paths.iter_mut().for_each(|is| *is = something(&mut random));
        let replica = Replica { paths, complete: random.random() };
        Model {
            scenario,
            replicas: vec![replica; replicas],
            serving: BTreeMap::new(),
            known: BTreeMap::new(),
            caught_up: None,
            random,
        }
    }

    fn any_link(&mut self) -> Option<u64> {
        let links: Vec<u64> = self.serving.keys().copied().collect();
        (!links.is_empty()).then(|| links[self.random.random_range(0..links.len())])
    }

    /// Takes over the watches that the client has sent and the links that it has closed.
    fn follow(&mut self) {
        for (link, _) in std::mem::take(&mut self.scenario.sent_watches) {
            self.serving.insert(link, Serving::default());
        }
        let links = &self.scenario.links;
        self.serving.retain(|link, _| links.contains_key(link));
        self.scenario.closed = false;
    }

    fn step(&mut self) {
        match self.random.random_range(0..20) {
            0..5 => self.change(),
            5..11 => {
                if let Some(link) = self.any_link() {
                    self.send_part(link);
                }
            }
            11 => {
                if let Some(link) = self.any_link() {
                    self.serving.insert(link, Serving::default());
                }
            }
            12 => {
                if let Some(link) = self.any_link() {
                    self.scenario.step(Event::Unlinked { link, why: "it crashed".into() });
                }
            }
            13 => self.warm(),
            14 => self.time_passes(),
            15 | 16 => self.dialled(),
            _ => {
                for _ in 0..self.random.random_range(0..6) {
                    self.read();
                }
            }
        }
        self.follow();
    }

    /// A publisher comes or goes, at one replica or at all.
    fn change(&mut self) {
        let (n, is) = (self.random.random_range(0..PATHS), something(&mut self.random));
        let only = self.random.random_range(0..=self.replicas.len());
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            if only < 2 || only == at {
                replica.paths[n] = is;
                for (link, serving) in &mut self.serving {
                    if self.scenario.links[link] == at {
                        serving.changed.push(n);
                    }
                }
            }
        }
    }

    /// A replica becomes complete, or warms again; then it starts over, or marks its next message.
    fn warm(&mut self) {
        let at = self.random.random_range(0..self.replicas.len());
        self.replicas[at].complete = !self.replicas[at].complete;
        let starts_over = !self.replicas[at].complete || self.random.random();
        for (link, serving) in &mut self.serving {
            if self.scenario.links[link] == at && starts_over {
                *serving = Serving::default();
            }
        }
    }

    /// Sends a part of what a replica has to send.
    fn send_part(&mut self, link: u64) {
        let replica = self.replicas[self.scenario.links[&link]].clone();
        let serving = self.serving.get_mut(&link).unwrap();
        let complete = replica.complete;
        let message = if serving.snapshot_sent {
            let count = self.random.random_range(0..=serving.changed.len());
            // After a replica becomes complete, its view is complete once all changes were sent.
            let changed: Vec<usize> = match complete && !serving.complete {
                true => serving.changed.drain(..).collect(),
                false => serving.changed.drain(..count).collect(),
            };
            serving.complete = complete;
            let paths = changed.into_iter().map(|n| listed(n, replica.paths[n])).collect();
            let (watches, tracker) = (vec![1, WATCH], tracker());
            FromReplica::PathChanges(PathChanges { watches, complete, tracker, paths })
        } else {
            let until = self.random.random_range(serving.sent..=PATHS);
            let sent = (serving.sent..until).filter(|&n| replica.paths[n] != NOTHING);
            let paths = sent.map(|n| listed(n, replica.paths[n])).collect();
            let (first, last) = (!serving.begun, until == PATHS);
            (serving.sent, serving.begun, serving.snapshot_sent) = (until, true, last);
            serving.complete = complete && (first || serving.complete);
            let tracker = tracker();
            FromReplica::PathSnapshot(PathSnapshot {
                watch: WATCH,
                first,
                last,
                complete,
                tracker,
                paths,
            })
        };
        self.scenario.step(Event::Received { link, message });
    }

    fn time_passes(&mut self) {
        if let Some(deadline) = self.scenario.core.next_deadline() {
            self.scenario.now = deadline;
            self.scenario.step(Event::Tick);
        }
    }

    /// The replica that is being dialled answers, or does not.
    fn dialled(&mut self) {
        let dialling =
            self.scenario.links.keys().copied().find(|link| !self.serving.contains_key(link));
        let Some(link) = dialling else { return };
        if self.random.random_range(0..4) == 0 {
            self.scenario.step(Event::Unlinked { link, why: "refused".into() });
        } else {
            self.scenario.step(Event::Linked { link });
        }
    }

    /// The reader takes one event, which has to be a difference.
    fn read(&mut self) -> bool {
        match self.scenario.views.get_mut(&WATCH).unwrap().take().unwrap() {
            None => return false,
            Some(PathEvent::Now(PathListed { path, queue, value, default })) => {
                let is = [queue, value, default];
                assert_ne!(is, NOTHING);
                assert_ne!(self.known.insert(path, is), Some(is), "nothing new");
            }
            Some(PathEvent::Gone(path)) => {
                assert!(self.known.remove(&path).is_some(), "{path:?} was not there");
            }
            Some(PathEvent::SnapshotBegins { .. }) => self.caught_up = None,
            Some(PathEvent::Whole { complete }) => {
                assert_ne!(self.caught_up.replace(complete), Some(complete), "nothing new");
            }
            Some(PathEvent::Refused { .. }) => panic!("no replica refuses"),
        }
        true
    }

    /// Stops all changes, and sends everything, from complete replicas.
    fn comes_to_rest(&mut self) -> usize {
        self.replicas.iter_mut().for_each(|replica| replica.complete = true);
        while self.scenario.links.len() != 1 || self.serving.len() != 1 {
            let dialling =
                self.scenario.links.keys().copied().find(|link| !self.serving.contains_key(link));
            match (dialling, self.scenario.links.len() == LINKS_MAX) {
                (Some(link), true) => {
                    self.scenario.step(Event::Unlinked { link, why: "refused".into() });
                }
                (Some(link), false) => self.scenario.step(Event::Linked { link }),
                (None, true) => {
                    let newest = self.scenario.link();
                    self.scenario.step(Event::Unlinked { link: newest, why: "it crashed".into() });
                }
                (None, false) => self.time_passes(),
            }
            self.follow();
        }
        let link = self.scenario.link();
        for _ in 0..100 {
            self.send_part(link);
        }
        // The last messages contain every change that was left.
        while !self.serving[&link].changed.is_empty() || !self.serving[&link].snapshot_sent {
            self.send_part(link);
        }
        while self.read() {}
        self.scenario.links[&link]
    }
}

fn something(random: &mut StdRng) -> PathState {
    if random.random() { NOTHING } else { random.random() }
}

#[test]
fn the_events_of_a_reader_add_up_to_the_state_of_the_last_replica() {
    for seed in 0..2_000 {
        let mut model = Model::new(seed);
        for _ in 0..80 {
            model.step();
        }
        let last = model.comes_to_rest();
        let known = model.replicas[last].paths.iter().enumerate();
        let known: BTreeMap<Path, PathState> =
            known.filter(|(_, is)| **is != NOTHING).map(|(n, is)| (path(n), *is)).collect();
        assert_eq!((&model.known, model.caught_up), (&known, Some(true)), "seed {seed}");
    }
}

#[test]
fn a_refused_watch_is_reported_and_tried_elsewhere() {
    let mut scenario = Scenario::new(2, 7);
    scenario.views.insert(WATCH, PathView::new(PATHS));
    scenario.step(Event::Watch { watch: WATCH, subject: everything() });
    scenario.linked();
    // The first request of the client is the watch.
    let (code, reason) = (RequestRefusal::TooManyWatches, String::from("the table is full"));
    scenario.received(FromReplica::Refused { id: 1, code, reason: reason.clone() });
    let replica = format!("replica-{}:4800", scenario.replica());
    let view = scenario.views.get_mut(&WATCH).unwrap();
    assert_eq!(view.take(), Ok(Some(PathEvent::Refused { replica, reason })));
    let wait = scenario.wait();
    assert!((Duration::from_secs(1)..=Duration::from_secs(12)).contains(&wait), "{wait:?}");
    scenario.linked();
    assert!(scenario.is_watched(WATCH));
}

#[test]
fn paths_reported_while_the_link_awaits_an_answer_are_requested_again() {
    let mut scenario = Scenario::new(2, 7);
    scenario.views.insert(WATCH, PathView::new(PATHS));
    scenario.step(Event::Watch { watch: WATCH, subject: everything() });
    scenario.linked();
    let snapshot = |paths| {
        let (first, last, complete) = (true, true, true);
        let tracker = tracker();
        FromReplica::PathSnapshot(PathSnapshot {
            watch: WATCH,
            first,
            last,
            complete,
            tracker,
            paths,
        })
    };
    let queue = |n| listed(n, [true, false, false]);
    scenario.received(snapshot(vec![queue(1)]));
    scenario.wait();
    scenario.ask(1, 1);
    scenario.linked();
    scenario.sent_watches.clear();
    scenario.received(snapshot(vec![queue(2)]));
    assert!(scenario.sent_watches.is_empty() && !scenario.closed);
    scenario.answer(true, super::FOUND);
    assert!(scenario.closed);
    assert_eq!(scenario.sent_watches, [(scenario.link(), WATCH)]);
    scenario.received(snapshot(vec![queue(2)]));
    let view = scenario.views.get_mut(&WATCH).unwrap();
    let events: Vec<PathEvent> = std::iter::from_fn(|| view.take().unwrap()).collect();
    assert_eq!(events[1..], [PathEvent::Now(queue(2)), PathEvent::Whole { complete: true }]);
}
