//! The sentences of the fault-tolerance chapter about read connections, each as a test in virtual time.

mod hostile;
mod path_watches;
mod questions;
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
    Action, Input, LINKS_MAX, News, Question, REQUESTS_IN_FLIGHT_MAX, ReadCore,
};
use crate::read_client::path_view::PathView;

const INSTANT: Duration = Duration::from_nanos(1);

/// A client, and a clock that moves when it is told to.
struct Story {
    now: Instant,
    core: ReadCore,
    /// Every replica that was dialled, in order.
    dialled: Vec<usize>,
    /// Links that were dialled and have not ended, each to which replica.
    links: BTreeMap<u64, usize>,
    /// The requests that were sent, without their last answer: number, how many paths.
    requests: Vec<(u64, usize)>,
    /// Over which link each was sent.
    sent_over: BTreeMap<u64, u64>,
    finished: Vec<(u64, Result<Answer, ReadError>)>,
    /// What is watched, and over which link.
    watched: BTreeSet<(u64, u32)>,
    told: Vec<(u32, usize)>,
    /// Every watch that was sent, in order, and over which link.
    sent_watches: Vec<(u64, u32)>,
    views: BTreeMap<u32, PathView>,
    hung_up: bool,
}

impl Story {
    fn new(replicas: usize, seed: u64) -> Story {
        let names = (0..replicas).map(|n| format!("replica-{n}:4800")).collect();
        Story {
            now: Instant::now(),
            core: ReadCore::new(ResolverTiming::default(), names, seed),
            dialled: Vec::new(),
            links: BTreeMap::new(),
            requests: Vec::new(),
            sent_over: BTreeMap::new(),
            finished: Vec::new(),
            watched: BTreeSet::new(),
            told: Vec::new(),
            sent_watches: Vec::new(),
            views: BTreeMap::new(),
            hung_up: false,
        }
    }

    fn step(&mut self, input: Input) {
        if let Input::Unlinked { link, .. } = &input {
            self.unlink(*link);
        }
        for action in self.core.step(self.now, input) {
            match action {
                Action::Dial { link, replica } => {
                    self.dialled.push(replica);
                    self.links.insert(link, replica);
                    assert!(self.links.len() <= LINKS_MAX, "{:?}", self.links);
                }
                Action::Hangup { link } => {
                    self.unlink(link);
                    self.hung_up = true;
                }
                Action::Ask { link, request, range, .. } => {
                    self.requests.push((request, range.len()));
                    self.sent_over.insert(request, link);
                }
                Action::Watch { link, watch, .. } => {
                    self.watched.insert((link, watch));
                    self.sent_watches.push((link, watch));
                }
                Action::Unwatch { link, watch } => {
                    self.watched.remove(&(link, watch));
                }
                Action::Finish { batch, answer } => self.finished.push((batch, answer)),
                Action::Tell { link, watch, replica, news } => {
                    self.tell(link, watch, replica, news);
                }
            }
        }
    }

    fn tell(&mut self, link: u64, watch: u32, replica: usize, news: News) {
        let name = format!("replica-{replica}:4800");
        if let Some(view) = self.views.get_mut(&watch) {
            match news {
                News::Snapshot(part) => assert!(view.snapshot(link, &name, part)),
                News::Changes(changes) => assert!(view.changes(link, &changes)),
                News::Refused(reason) => view.refused(&name, reason),
                News::Publishers(_) | News::Gone(_) => panic!("a watch over paths"),
            }
        } else if !matches!(news, News::Refused(_)) {
            self.told.push((watch, replica));
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
        *self.links.last_key_value().expect("nobody was dialled").0
    }

    fn linked(&mut self) {
        self.step(Input::Linked { link: self.link() });
    }

    fn ask(&mut self, batch: u64, paths: usize) {
        let paths: Arc<[Path]> = vec![Path::new("/a").unwrap(); paths].into();
        self.step(Input::Ask { batch, question: Question::Resolve(paths) });
    }

    fn unlinked(&mut self, why: &str) {
        self.step(Input::Unlinked { link: self.link(), why: why.to_owned() });
    }

    /// Answers the oldest request.
    fn answer(&mut self, complete: bool, answer: wire::PathAnswer) {
        let (id, paths) = self.requests.remove(0);
        let (link, message) =
            (self.sent_over[&id], resolved(id, true, complete, vec![answer; paths]));
        self.step(Input::Told { link, message });
    }

    /// The replica that was dialled last says something.
    fn told(&mut self, message: FromReplica) {
        self.step(Input::Told { link: self.link(), message });
    }

    fn is_watched(&self, watch: u32) -> bool {
        self.watched.contains(&(self.link(), watch))
    }

    /// The replica that was dialled last.
    fn replica(&self) -> usize {
        *self.dialled.last().expect("nobody was dialled")
    }

    fn wait(&mut self) -> Duration {
        let deadline = self.core.next_deadline().expect("it waits for nothing");
        let wait = deadline - self.now;
        let dialled = self.dialled.len();
        self.now = deadline - INSTANT;
        self.step(Input::Tick);
        assert_eq!((self.dialled.len(), self.hung_up), (dialled, false), "too early");
        self.now = deadline;
        self.step(Input::Tick);
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
    PublisherInfo {
        id: PublisherId([1; 16]),
        epoch: Epoch(1),
        name: "left".into(),
        addresses: vec![([127, 0, 0, 1], 4000).into()],
    }
}

fn tracker() -> Tracker {
    Tracker { incarnation: Incarnation([9; 16]), revision: 1 }
}

fn resolved(id: u64, last: bool, complete: bool, answers: Vec<wire::PathAnswer>) -> FromReplica {
    let sets = vec![vec![SetMember { publisher: 0, terms: 0 }]];
    let publishers = vec![publisher()];
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
    PathAnswer::Publishers { set: [publication].into(), by_default }
}

const FOUND: wire::PathAnswer = wire::PathAnswer::Published { set: 0 };
const BY_DEFAULT: wire::PathAnswer = wire::PathAnswer::ByDefault { set: 0 };
const NOT_FOUND: wire::PathAnswer = wire::PathAnswer::NotFound;

#[test]
fn an_answer_may_take_15_s_or_50_us_for_each_read_whichever_is_longer() {
    for (paths, allowed) in [
        (1, Duration::from_secs(15)),
        (1_000, Duration::from_secs(15)),
        (300_001, Duration::from_nanos(15_000_050_000)),
        (1_000_000, Duration::from_secs(50)),
    ] {
        let mut story = Story::new(1, 7);
        story.ask(1, paths);
        story.linked();
        assert_eq!(story.wait(), allowed, "{paths} paths");
        assert!(story.hung_up);
    }
}

#[test]
fn list_matching_may_take_longer() {
    let mut story = Story::new(1, 7);
    let globs = vec![Glob::new("/**").unwrap()].into();
    story.step(Input::Ask { batch: 1, question: Question::ListMatching(globs) });
    story.linked();
    assert_eq!(story.wait(), Duration::from_secs(30));
}

#[test]
fn the_timeout_is_to_get_an_answer_not_to_finish_the_batch() {
    let mut story = Story::new(1, 7);
    story.ask(1, 100);
    story.linked();
    let (id, _) = story.requests[0];
    // One path every 14.9 s: 25 minutes in all, and never a hang.
    for n in 1..=100 {
        story.now += Duration::from_millis(14_900);
        story.step(Input::Tick);
        story.told(resolved(id, n == 100, true, vec![FOUND]));
        assert!(!story.hung_up);
    }
    assert_eq!(story.complete(), (true, vec![found(false); 100]));
    assert_eq!(story.dialled, [0]);
}

#[test]
fn a_stream_of_new_batches_does_not_hide_that_the_replica_hangs() {
    let mut story = Story::new(1, 7);
    let begun = story.now;
    story.ask(1, 1);
    story.linked();
    for batch in 2..5 {
        story.now += Duration::from_secs(4);
        story.ask(batch, 1);
    }
    assert_eq!(story.core.next_deadline(), Some(begun + Duration::from_secs(15)));
}

#[test]
fn the_list_of_all_servers_is_permuted() {
    let mut orders = BTreeSet::new();
    for seed in 0..200 {
        let mut story = Story::new(3, seed);
        story.ask(1, 1);
        for _ in 0..3 {
            story.unlinked("refused");
        }
        orders.insert(story.dialled);
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn a_server_that_does_not_say_a_proper_hello_is_passed_over_at_once() {
    let mut story = Story::new(3, 7);
    let begun = story.now;
    story.ask(1, 1);
    story.unlinked("TLS failed");
    story.unlinked("busy");
    story.linked();
    assert_eq!(story.dialled.iter().collect::<BTreeSet<_>>().len(), 3);
    story.answer(true, FOUND);
    assert_eq!(story.complete().1, [found(false)]);
    assert_eq!(story.now, begun);
}

#[test]
fn after_a_crash_it_waits_a_random_time_between_1_and_12_s_and_connects_again() {
    let mut waits = Vec::new();
    for seed in 0..500 {
        let mut story = Story::new(3, seed);
        story.ask(1, 1);
        story.linked();
        let crashed = story.replica();
        story.unlinked("the other side closed the link");
        waits.push(story.wait());
        assert_ne!(story.replica(), crashed, "another one comes first");
        story.linked();
        story.answer(true, FOUND);
        assert_eq!(story.complete().1, [found(false)]);
    }
    waits.sort();
    let (shortest, longest) = (waits[0], waits[waits.len() - 1]);
    let s = Duration::from_secs_f64;
    assert!(s(1.0) <= shortest && shortest < s(1.2), "{shortest:?}");
    assert!(s(11.8) < longest && longest <= s(12.0), "{longest:?}");
    let middle = waits[waits.len() / 2];
    assert!(s(5.5) < middle && middle < s(7.5), "{middle:?}");
}

#[test]
fn a_hang_becomes_a_crash() {
    let mut story = Story::new(2, 7);
    story.ask(1, 1);
    story.linked();
    let hung = story.replica();
    story.wait();
    assert!(std::mem::take(&mut story.hung_up));
    story.wait();
    assert_ne!(story.replica(), hung);
    story.linked();
    story.answer(true, FOUND);
    assert_eq!(story.complete().1, [found(false)]);
}

#[test]
fn every_server_is_tried_3_times_then_the_batch_fails_naming_each_and_why() {
    for seed in 0..50 {
        let mut story = Story::new(3, seed);
        story.ask(1, 1);
        for round in 0..3 {
            if round > 0 {
                let wait = story.wait();
                assert!((1.0..=12.0).contains(&wait.as_secs_f64()));
            }
            for _ in 0..3 {
                assert!(story.finished.is_empty());
                let why = format!("refused by {}", story.replica());
                story.unlinked(&why);
            }
        }
        for replica in 0..3 {
            assert_eq!(story.dialled.iter().filter(|&&r| r == replica).count(), 3);
        }
        let Err(error) = story.only_answer() else { panic!("it was answered") };
        assert_eq!(
            error.to_string(),
            "no resolver replica answered: replica-0:4800: refused by 0; \
             replica-1:4800: refused by 1; replica-2:4800: refused by 2"
        );
        assert_eq!(story.core.next_deadline(), None);
    }
}

#[test]
fn a_server_that_hangs_on_every_answer_costs_three_rounds() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    for round in 1..=3 {
        story.linked();
        assert_eq!(story.wait(), Duration::from_secs(15));
        assert!(std::mem::take(&mut story.hung_up));
        if round < 3 {
            story.wait();
        }
    }
    let Err(error) = story.only_answer() else { panic!("it was answered") };
    assert_eq!(
        error.to_string(),
        "no resolver replica answered: replica-0:4800: no answer for 15s"
    );
}

#[test]
fn it_gives_up_on_a_batch_only_if_every_server_is_down_or_unable_to_answer() {
    // Four of five accept and never answer: more than there are rounds.
    for seed in 0..100 {
        let mut story = Story::new(5, seed);
        story.ask(1, 1);
        while story.finished.is_empty() {
            story.linked();
            if story.replica() == 3 {
                story.answer(true, FOUND);
            } else {
                story.unlinked("it crashed");
                story.wait();
            }
        }
        assert_eq!(story.complete().1, [found(false)]);
    }
}

#[test]
fn after_a_batch_has_failed_the_next_one_starts_afresh() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    for round in 0..3 {
        if round > 0 {
            story.wait();
        }
        story.unlinked("refused");
    }
    assert!(story.only_answer().is_err());
    story.ask(2, 1);
    // At once, and with all three rounds.
    assert_eq!(story.dialled.len(), 4);
    story.unlinked("refused");
    story.wait();
    story.unlinked("refused");
    story.wait();
    story.linked();
    story.answer(true, FOUND);
    assert_eq!(story.complete().1, [found(false)]);
}

#[test]
fn a_link_that_is_lost_while_nobody_asks_costs_nothing() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    story.linked();
    story.answer(true, FOUND);
    story.only_answer().unwrap();
    story.unlinked("it crashed");
    assert_eq!((story.dialled.len(), story.core.next_deadline()), (1, None));
    story.ask(2, 1);
    assert_eq!(story.dialled.len(), 2);
}

#[test]
fn many_batches_share_the_link_and_each_gets_its_own_answer() {
    let mut story = Story::new(1, 7);
    story.ask(1, 2);
    story.ask(2, 3);
    story.linked();
    story.ask(3, 1);
    assert_eq!(story.dialled.len(), 1);
    let lengths: Vec<usize> = story.requests.iter().map(|(_, paths)| *paths).collect();
    assert_eq!(lengths, [2, 3, 1]);
    for _ in 0..3 {
        story.answer(true, FOUND);
    }
    let answered: Vec<(u64, usize)> = story
        .finished
        .iter()
        .map(|(batch, answer)| match answer {
            Ok(Answer::Resolved(resolution)) => (*batch, resolution.answers.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answered, [(1, 2), (2, 3), (3, 1)]);
}

#[test]
fn a_huge_batch_is_cut_and_only_some_of_it_is_on_its_way() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1_500_000);
    story.linked();
    assert_eq!(story.requests.len(), REQUESTS_IN_FLIGHT_MAX);
    while !story.requests.is_empty() {
        assert!(story.requests.iter().all(|(_, paths)| *paths <= 100_000));
        story.answer(true, FOUND);
    }
    assert_eq!(story.complete().1.len(), 1_500_000);
}

#[test]
fn a_batch_without_paths_is_answered_and_one_without_replicas_refused() {
    let mut story = Story::new(1, 7);
    story.ask(1, 0);
    story.linked();
    assert_eq!(story.complete(), (true, Vec::new()));
    let mut story = Story::new(0, 7);
    story.ask(1, 1);
    assert_eq!(story.only_answer(), Err(ReadError::NoReplicas));
}

#[test]
fn a_replica_that_answers_something_else_is_left() {
    let mut story = Story::new(2, 7);
    story.ask(1, 2);
    story.linked();
    let (id, _) = story.requests[0];
    story.told(resolved(id, true, true, vec![FOUND]));
    assert!(std::mem::take(&mut story.hung_up) && story.finished.is_empty());
    story.wait();
    story.linked();
    story.answer(true, FOUND);
    assert_eq!(story.complete().1.len(), 2);
}

#[test]
fn a_batch_that_joins_in_the_middle_of_a_round_has_three_whole_ones_of_its_own() {
    let mut story = Story::new(2, 7);
    story.ask(1, 1);
    story.unlinked("refused");
    story.ask(2, 1);
    story.unlinked("refused");
    for round in 2..=4 {
        story.wait();
        story.unlinked("refused");
        story.unlinked("refused");
        let ended: Vec<u64> = story.finished.iter().map(|(batch, _)| *batch).collect();
        let expected: &[u64] = match round {
            2 => &[],
            3 => &[1],
            _ => &[1, 2],
        };
        assert_eq!(ended, expected, "after {round} rounds");
    }
}

#[test]
fn a_small_batch_is_not_allowed_the_time_of_a_huge_one_behind_it() {
    let mut story = Story::new(2, 7);
    story.ask(1, 1);
    story.linked();
    story.ask(2, 1_000_000);
    assert_eq!(story.core.next_deadline(), Some(story.now + Duration::from_secs(15)));
    story.answer(true, FOUND);
    assert_eq!(story.core.next_deadline(), Some(story.now + Duration::from_secs(50)));
}

#[test]
fn who_no_longer_waits_is_forgotten() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    story.linked();
    story.unlinked("it crashed");
    story.step(Input::Forget { batch: 1 });
    story.wait();
    assert_eq!((story.dialled.len(), story.core.next_deadline()), (1, None));
    assert!(story.finished.is_empty());
}
