//! Watches over paths: whatever replicas do, and however the client moves between them, the reader
//! ends with what the last of them knows.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::messages::resolver::{
    FromReplica, PathChanges, PathListed, PathSnapshot, RequestRefusal,
};
use longshore_protocol::{Glob, Path};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Scenario, tracker};
use crate::read_client::core::{Input, LINKS_MAX, Subject};
use crate::read_client::path_view::{PathEvent, PathView};

const WATCH: u32 = 5;
const PATHS: usize = 12;

/// What is published at a path: queue, value, default.
type Is = [bool; 3];
const NOTHING: Is = [false; 3];

/// A replica that does as it likes.
#[derive(Clone, Debug)]
struct Replica {
    paths: [Is; PATHS],
    complete: bool,
}

/// How far a watch is that a replica serves over one link.
#[derive(Clone, Debug, Default)]
struct Serving {
    /// How much of the snapshot has been told; all of it: changes follow.
    told: usize,
    /// What has changed since the snapshot began, and is to be told.
    changed: Vec<usize>,
    /// Something was told of this snapshot.
    begun: bool,
    whole: bool,
    /// Everything told so far was told by a complete replica.
    complete: bool,
}

struct Model {
    scenario: Scenario,
    random: StdRng,
    replicas: Vec<Replica>,
    serving: BTreeMap<u64, Serving>,
    /// What the reader believes.
    believed: BTreeMap<Path, Is>,
    /// Whether it was told that this is all.
    whole: Option<bool>,
}

fn path(n: usize) -> Path {
    Path::new(&format!("/jobs/{n}")).unwrap()
}

fn listed(n: usize, [queue, value, default]: Is) -> PathListed {
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
        scenario.step(Input::Watch { watch: WATCH, subject: everything() });
        let mut paths = [NOTHING; PATHS];
        paths.iter_mut().for_each(|is| *is = something(&mut random));
        let replica = Replica { paths, complete: random.random() };
        Model {
            scenario,
            replicas: vec![replica; replicas],
            serving: BTreeMap::new(),
            believed: BTreeMap::new(),
            whole: None,
            random,
        }
    }

    fn any_link(&mut self) -> Option<u64> {
        let links: Vec<u64> = self.serving.keys().copied().collect();
        (!links.is_empty()).then(|| links[self.random.random_range(0..links.len())])
    }

    /// Takes in which watches the client has made and which links it has closed.
    fn follow(&mut self) {
        for (link, _) in std::mem::take(&mut self.scenario.sent_watches) {
            self.serving.insert(link, Serving::default());
        }
        let links = &self.scenario.links;
        self.serving.retain(|link, _| links.contains_key(link));
        self.scenario.hung_up = false;
    }

    fn step(&mut self) {
        match self.random.random_range(0..20) {
            0..5 => self.change(),
            5..11 => {
                if let Some(link) = self.any_link() {
                    self.tell(link);
                }
            }
            11 => {
                if let Some(link) = self.any_link() {
                    self.serving.insert(link, Serving::default());
                }
            }
            12 => {
                if let Some(link) = self.any_link() {
                    self.scenario.step(Input::Unlinked { link, why: "it crashed".into() });
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

    /// A publisher is heard of, or leaves, at one replica or at all.
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

    /// A replica is complete from now on, or warms again; then it starts over, or says so with its
    /// next word.
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

    /// Some of what a replica has to say.
    fn tell(&mut self, link: u64) {
        let replica = self.replicas[self.scenario.links[&link]].clone();
        let serving = self.serving.get_mut(&link).unwrap();
        let complete = replica.complete;
        let message = if serving.whole {
            let count = self.random.random_range(0..=serving.changed.len());
            // What a replica has said until it is complete is whole once all changes have been
            // told.
            let changed: Vec<usize> = match complete && !serving.complete {
                true => serving.changed.drain(..).collect(),
                false => serving.changed.drain(..count).collect(),
            };
            serving.complete = complete;
            let paths = changed.into_iter().map(|n| listed(n, replica.paths[n])).collect();
            let (watches, tracker) = (vec![1, WATCH], tracker());
            FromReplica::PathChanges(PathChanges { watches, complete, tracker, paths })
        } else {
            let until = self.random.random_range(serving.told..=PATHS);
            let told = (serving.told..until).filter(|&n| replica.paths[n] != NOTHING);
            let paths = told.map(|n| listed(n, replica.paths[n])).collect();
            let (first, last) = (!serving.begun, until == PATHS);
            (serving.told, serving.begun, serving.whole) = (until, true, last);
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
        self.scenario.step(Input::Told { link, message });
    }

    fn time_passes(&mut self) {
        if let Some(deadline) = self.scenario.core.next_deadline() {
            self.scenario.now = deadline;
            self.scenario.step(Input::Tick);
        }
    }

    /// The replica that is being dialled answers, or does not.
    fn dialled(&mut self) {
        let dialling =
            self.scenario.links.keys().copied().find(|link| !self.serving.contains_key(link));
        let Some(link) = dialling else { return };
        if self.random.random_range(0..4) == 0 {
            self.scenario.step(Input::Unlinked { link, why: "refused".into() });
        } else {
            self.scenario.step(Input::Linked { link });
        }
    }

    /// The reader takes one event, which says something new to it.
    fn read(&mut self) -> bool {
        match self.scenario.views.get_mut(&WATCH).unwrap().take().unwrap() {
            None => return false,
            Some(PathEvent::Now(PathListed { path, queue, value, default })) => {
                let is = [queue, value, default];
                assert_ne!(is, NOTHING);
                assert_ne!(self.believed.insert(path, is), Some(is), "nothing new");
            }
            Some(PathEvent::Gone(path)) => {
                assert!(self.believed.remove(&path).is_some(), "{path:?} was not there");
            }
            Some(PathEvent::SnapshotBegins { .. }) => self.whole = None,
            Some(PathEvent::Whole { complete }) => {
                assert_ne!(self.whole.replace(complete), Some(complete), "nothing new");
            }
            Some(PathEvent::Refused { .. }) => panic!("nobody refuses"),
        }
        true
    }

    /// From here on nobody changes anything, and everything is told, by complete replicas.
    fn comes_to_rest(&mut self) -> usize {
        self.replicas.iter_mut().for_each(|replica| replica.complete = true);
        while self.scenario.links.len() != 1 || self.serving.len() != 1 {
            let dialling =
                self.scenario.links.keys().copied().find(|link| !self.serving.contains_key(link));
            match (dialling, self.scenario.links.len() == LINKS_MAX) {
                (Some(link), true) => {
                    self.scenario.step(Input::Unlinked { link, why: "refused".into() });
                }
                (Some(link), false) => self.scenario.step(Input::Linked { link }),
                (None, true) => {
                    let newest = self.scenario.link();
                    self.scenario.step(Input::Unlinked { link: newest, why: "it crashed".into() });
                }
                (None, false) => self.time_passes(),
            }
            self.follow();
        }
        let link = self.scenario.link();
        for _ in 0..100 {
            self.tell(link);
        }
        // Ten empty words after the last change, the last of which certainly held what was left.
        while !self.serving[&link].changed.is_empty() || !self.serving[&link].whole {
            self.tell(link);
        }
        while self.read() {}
        self.scenario.links[&link]
    }
}

fn something(random: &mut StdRng) -> Is {
    if random.random() { NOTHING } else { random.random() }
}

#[test]
fn what_the_reader_is_told_adds_up_to_what_the_last_replica_knows() {
    for seed in 0..2_000 {
        let mut model = Model::new(seed);
        for _ in 0..80 {
            model.step();
        }
        let last = model.comes_to_rest();
        let known = model.replicas[last].paths.iter().enumerate();
        let known: BTreeMap<Path, Is> =
            known.filter(|(_, is)| **is != NOTHING).map(|(n, is)| (path(n), *is)).collect();
        assert_eq!((&model.believed, model.whole), (&known, Some(true)), "seed {seed}");
    }
}

#[test]
fn a_watch_that_a_replica_refuses_is_told_so_and_tried_elsewhere() {
    let mut scenario = Scenario::new(2, 7);
    scenario.views.insert(WATCH, PathView::new(PATHS));
    scenario.step(Input::Watch { watch: WATCH, subject: everything() });
    scenario.linked();
    // The first request of the client is the watch.
    let (code, reason) = (RequestRefusal::TooManyWatches, String::from("the table is full"));
    scenario.told(FromReplica::Refused { id: 1, code, reason: reason.clone() });
    let replica = format!("replica-{}:4800", scenario.replica());
    let view = scenario.views.get_mut(&WATCH).unwrap();
    assert_eq!(view.take(), Ok(Some(PathEvent::Refused { replica, reason })));
    let wait = scenario.wait();
    assert!((Duration::from_secs(1)..=Duration::from_secs(12)).contains(&wait), "{wait:?}");
    scenario.linked();
    assert!(scenario.is_watched(WATCH));
}

#[test]
fn paths_told_while_the_link_still_owes_an_answer_are_asked_for_again() {
    let mut scenario = Scenario::new(2, 7);
    scenario.views.insert(WATCH, PathView::new(PATHS));
    scenario.step(Input::Watch { watch: WATCH, subject: everything() });
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
    scenario.told(snapshot(vec![queue(1)]));
    scenario.wait();
    scenario.ask(1, 1);
    scenario.linked();
    scenario.sent_watches.clear();
    scenario.told(snapshot(vec![queue(2)]));
    assert!(scenario.sent_watches.is_empty() && !scenario.hung_up);
    scenario.answer(true, super::FOUND);
    assert!(scenario.hung_up);
    assert_eq!(scenario.sent_watches, [(scenario.link(), WATCH)]);
    scenario.told(snapshot(vec![queue(2)]));
    let view = scenario.views.get_mut(&WATCH).unwrap();
    let events: Vec<PathEvent> = std::iter::from_fn(|| view.take().unwrap()).collect();
    assert_eq!(events[1..], [PathEvent::Now(queue(2)), PathEvent::Whole { complete: true }]);
}
