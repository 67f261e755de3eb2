//! Watches: which replica they are at, and when they move on.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{FromReplica, Publishers, RequestRefusal};

use super::{FOUND, INSTANT, Story, tracker};
use crate::read_client::core::{Input, LINKS_MAX, Subject};

const TURN: Duration = Duration::from_secs(60);

fn jobs() -> Subject {
    Subject::Publishers(Glob::new("/jobs/**").unwrap())
}

impl Story {
    /// A client of so many replicas that watches, and is linked to one of them.
    fn watching(replicas: usize, seed: u64) -> Story {
        let mut story = Story::new(replicas, seed);
        story.step(Input::Watch { watch: 5, subject: jobs() });
        story.linked();
        story
    }

    /// The replica that was dialled last tells of the watch.
    fn publishers(&mut self) {
        self.told(FromReplica::Publishers(Publishers {
            watch: 5,
            tracker: tracker(),
            complete: true,
            publishers: Vec::new(),
        }));
    }

    fn watch_refused(&mut self, link: u64) {
        let message = FromReplica::Refused {
            id: self.watch_requests[&(link, 5)],
            code: RequestRefusal::TooManyWatches,
            reason: "the table is full".into(),
        };
        self.step(Input::Told { link, message });
    }

    /// Goes on to what is due next.
    fn tick(&mut self) {
        self.now = self.core.next_deadline().expect("it waits for nothing");
        self.step(Input::Tick);
    }
}

#[test]
fn a_watch_is_made_again_at_one_replica_after_the_other_for_ever() {
    let mut story = Story::new(2, 7);
    story.step(Input::Watch { watch: 5, subject: jobs() });
    for _ in 0..100 {
        story.linked();
        assert!(story.is_watched(5));
        let replica = story.replica();
        story.publishers();
        assert_eq!(story.told.pop(), Some((5, replica)));
        story.unlinked("it crashed");
        let wait = story.wait();
        assert!((1.0..=12.0).contains(&wait.as_secs_f64()));
        assert_ne!(story.replica(), replica);
        story.unlinked("refused");
    }
    story.linked();
    story.step(Input::Unwatch { watch: 5 });
    assert!(story.watched.is_empty());
    story.unlinked("it crashed");
    assert_eq!(story.core.next_deadline(), None, "nobody wants anything any more");
}

#[test]
fn a_watch_asks_every_replica_in_turn_as_one_may_know_of_a_publisher_that_another_cannot() {
    let mut story = Story::watching(3, 7);
    let mut asked = vec![story.replica()];
    for _ in 0..5 {
        story.publishers();
        assert_eq!(story.wait(), TURN);
        story.linked();
        assert!(story.is_watched(5));
        story.publishers();
        assert!(std::mem::take(&mut story.hung_up));
        asked.push(story.replica());
    }
    let first: BTreeSet<usize> = asked[..3].iter().copied().collect();
    assert_eq!((first.len(), &asked[..3]), (3, &asked[3..]), "all of them, in turn");
}

#[test]
fn a_watch_hears_one_replica_until_the_next_has_answered() {
    // Nobody listens; a hello that never comes; a link that breaks; a replica that accepts the watch and says nothing.
    type Fault = fn(&mut Story);
    let faults: [Fault; 4] = [
        |story| story.unlinked("refused"),
        |story| story.unlinked("no hello within 10 s"),
        |story| {
            story.linked();
            story.unlinked("it crashed");
        },
        |story| {
            story.linked();
            assert_eq!(story.wait(), Duration::from_secs(15));
            assert!(std::mem::take(&mut story.hung_up));
        },
    ];
    for fault in faults {
        let mut story = Story::watching(2, 7);
        let (link, good) = (story.link(), story.replica());
        story.publishers();
        story.wait();
        assert_ne!(story.replica(), good);
        assert!(!story.hung_up && story.watched.contains(&(link, 5)), "it is heard all the while");
        fault(&mut story);
        assert_eq!(story.link(), link, "the link to the good one stands");
        assert!(story.watched.contains(&(link, 5)));
        // What is asked meanwhile is answered by it.
        story.ask(1, 1);
        story.answer(true, FOUND);
        assert!(story.only_answer().is_ok());
    }
}

#[test]
fn a_batch_that_is_asked_while_the_next_replica_is_dialled_waits_for_nothing() {
    let mut story = Story::watching(2, 7);
    story.publishers();
    story.wait();
    story.ask(1, 1);
    story.answer(true, FOUND);
    assert!(story.only_answer().is_ok());
    // Owed an answer, the client stays; then the next one is there already.
    story.ask(2, 1);
    story.linked();
    story.publishers();
    assert!(!story.hung_up);
    story.ask(3, 1);
    assert_eq!(story.requests.len(), 1, "for the next replica");
    story.answer(true, FOUND);
    assert!(std::mem::take(&mut story.hung_up));
    story.answer(true, FOUND);
    let answered: Vec<u64> = story.finished.iter().map(|(batch, _)| *batch).collect();
    assert_eq!(answered, [2, 3]);
}

#[test]
fn what_is_asked_for_a_replica_that_then_breaks_goes_to_the_one_before() {
    let mut story = Story::watching(2, 7);
    story.publishers();
    story.wait();
    story.ask(1, 1);
    story.linked();
    story.publishers();
    story.ask(2, 1);
    story.unlinked("it crashed");
    assert_eq!(story.requests.len(), 2);
    story.answer(true, FOUND);
    story.answer(true, FOUND);
    assert_eq!(story.finished.len(), 2);
}

#[test]
fn a_client_that_only_watches_does_not_return_to_a_bad_replica_at_every_turn() {
    for bad in 0..3 {
        let mut story = Story::watching(3, bad as u64);
        while story.replica() == bad {
            story.unlinked("it crashed");
            story.wait();
            story.linked();
        }
        story.publishers();
        let (begun, mut turns) = (story.now, Vec::new());
        while story.now < begun + 40 * TURN {
            story.tick();
            if story.replica() == bad {
                story.unlinked("refused");
            }
            // Whoever is left is dialled at once, if anybody is.
            if story.links.len() == LINKS_MAX {
                story.linked();
                story.publishers();
            }
            turns.push(story.links[&story.link()]);
        }
        assert!(!turns.contains(&bad));
        // Passed over for 2 turns, then 4, then 8 each: 0, 2, 6, 14, 22, 30, 38.
        let tried = story.dialled.iter().filter(|&&replica| replica == bad).count();
        assert!((3..=9).contains(&tried), "{tried} times in 40 turns");
        // It is good again: within 8 turns it is of use as any other.
        while story.now < begun + 60 * TURN {
            story.tick();
            story.linked();
            story.publishers();
            turns.push(story.replica());
        }
        let last: BTreeSet<usize> = turns[turns.len() - 3..].iter().copied().collect();
        assert_eq!(last.len(), 3, "{turns:?}");
    }
}

#[test]
fn a_watch_does_not_leave_a_replica_that_owes_an_answer_nor_the_only_one() {
    let mut story = Story::watching(2, 7);
    story.now += TURN - INSTANT;
    story.ask(1, 1);
    story.now += INSTANT;
    story.step(Input::Tick);
    assert_eq!(story.dialled.len(), 1);
    story.answer(true, FOUND);
    assert!(story.only_answer().is_ok());
    story.step(Input::Tick);
    assert_eq!(story.dialled.len(), 2, "it goes on as soon as nothing is owed");

    let story = Story::watching(1, 7);
    assert_eq!(story.core.next_deadline(), None);
}

#[test]
fn a_watch_that_a_replica_has_no_room_for_is_tried_at_another_1_to_12_s_later() {
    let mut story = Story::watching(2, 7);
    let full = story.replica();
    story.watch_refused(story.link());
    assert!(!story.hung_up);
    let wait = story.wait();
    assert!((1.0..=12.0).contains(&wait.as_secs_f64()), "{wait:?}");
    assert_ne!(story.replica(), full);
    story.linked();
    assert!(story.is_watched(5) && !story.hung_up);
    story.publishers();
    assert!(story.hung_up);
}

#[test]
fn a_full_watch_table_does_not_fail_the_reads_of_the_same_link() {
    // With one replica there is no other; with three, nothing is lost of what this one was asked before.
    for replicas in [1, 3] {
        let mut story = Story::watching(replicas, 7);
        story.ask(1, 1);
        for batch in 2..=20 {
            let newest = story.link();
            let oldest = *story.links.keys().next().unwrap();
            story.watch_refused(oldest);
            assert!(!story.hung_up, "the link is of use for reads");
            story.ask(batch, 1);
            // The older one is answered late: it is waited for, however often the watch is to be tried elsewhere.
            story.now += Duration::from_secs(13);
            story.step(Input::Tick);
            assert!(!story.hung_up);
            if story.link() != newest {
                story.linked();
                story.publishers();
            }
            story.answer(true, FOUND);
            let (number, answer) = story.finished.pop().expect("an answer");
            assert!(number < batch && answer.is_ok());
            story.hung_up = false;
        }
        assert_eq!(story.dialled.len() > 1, replicas > 1, "the watch is tried elsewhere");
    }
}

#[test]
fn a_watch_that_nobody_has_room_for_is_tried_again_every_reader_ttl() {
    let mut story = Story::watching(2, 7);
    let link = story.link();
    story.watch_refused(link);
    let mut waits = Vec::new();
    for _ in 0..6 {
        story.watched.clear();
        waits.push(story.wait());
        if story.link() != link {
            story.linked();
            story.watch_refused(story.link());
            assert!(std::mem::take(&mut story.hung_up), "of no use");
        }
        assert!(story.is_watched(5), "here, too, there may be room by now");
        story.watch_refused(link);
    }
    let is_long: Vec<bool> = waits.iter().map(|wait| *wait == TURN).collect();
    assert_eq!(is_long, [false, true, true, true, true, true], "{waits:?}");
    // The only replica is not left: it is asked again.
    let mut story = Story::watching(1, 7);
    story.watched.clear();
    story.watch_refused(story.link());
    assert_eq!(story.wait(), TURN);
    assert!(!story.hung_up && story.is_watched(5));
}
