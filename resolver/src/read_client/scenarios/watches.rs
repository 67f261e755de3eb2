//! Watches: which replica they are at, and when they move on.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{FromReplica, Publishers, RequestRefusal};

use super::{FOUND, INSTANT, Scenario, tracker};
use crate::read_client::core::{Input, LINKS_MAX, Subject};

const TURN: Duration = Duration::from_secs(60);

fn jobs() -> Subject {
    Subject::Publishers(Glob::new("/jobs/**").unwrap())
}

impl Scenario {
    /// A client of so many replicas that watches, and is linked to one of them.
    fn watching(replicas: usize, seed: u64) -> Scenario {
        let mut scenario = Scenario::new(replicas, seed);
        scenario.step(Input::Watch { watch: 5, subject: jobs() });
        scenario.linked();
        scenario
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
    let mut scenario = Scenario::new(2, 7);
    scenario.step(Input::Watch { watch: 5, subject: jobs() });
    for _ in 0..100 {
        scenario.linked();
        assert!(scenario.is_watched(5));
        let replica = scenario.replica();
        scenario.publishers();
        assert_eq!(scenario.told.pop(), Some((5, replica)));
        scenario.unlinked("it crashed");
        let wait = scenario.wait();
        assert!((1.0..=12.0).contains(&wait.as_secs_f64()));
        assert_ne!(scenario.replica(), replica);
        scenario.unlinked("refused");
    }
    scenario.linked();
    scenario.step(Input::Unwatch { watch: 5 });
    assert!(scenario.watched.is_empty());
    scenario.unlinked("it crashed");
    assert_eq!(scenario.core.next_deadline(), None, "nobody wants anything any more");
}

#[test]
fn a_watch_asks_every_replica_in_turn_as_one_may_know_of_a_publisher_that_another_cannot() {
    let mut scenario = Scenario::watching(3, 7);
    let mut asked = vec![scenario.replica()];
    for _ in 0..5 {
        scenario.publishers();
        assert_eq!(scenario.wait(), TURN);
        scenario.linked();
        assert!(scenario.is_watched(5));
        scenario.publishers();
        assert!(std::mem::take(&mut scenario.hung_up));
        asked.push(scenario.replica());
    }
    let first: BTreeSet<usize> = asked[..3].iter().copied().collect();
    assert_eq!((first.len(), &asked[..3]), (3, &asked[3..]), "all of them, in turn");
}

#[test]
fn a_watch_hears_one_replica_until_the_next_has_answered() {
    // Nobody listens; a handshake that never comes; a link that breaks; a replica that accepts the
    // watch and says nothing.
    type Fault = fn(&mut Scenario);
    let faults: [Fault; 4] = [
        |scenario| scenario.unlinked("refused"),
        |scenario| scenario.unlinked("no handshake within 10 s"),
        |scenario| {
            scenario.linked();
            scenario.unlinked("it crashed");
        },
        |scenario| {
            scenario.linked();
            assert_eq!(scenario.wait(), Duration::from_secs(15));
            assert!(std::mem::take(&mut scenario.hung_up));
        },
    ];
    for fault in faults {
        let mut scenario = Scenario::watching(2, 7);
        let (link, good) = (scenario.link(), scenario.replica());
        scenario.publishers();
        scenario.wait();
        assert_ne!(scenario.replica(), good);
        assert!(
            !scenario.hung_up && scenario.watched.contains(&(link, 5)),
            "it is heard all the while"
        );
        fault(&mut scenario);
        assert_eq!(scenario.link(), link, "the link to the good one stands");
        assert!(scenario.watched.contains(&(link, 5)));
        // What is asked meanwhile is answered by it.
        scenario.ask(1, 1);
        scenario.answer(true, FOUND);
        assert!(scenario.only_answer().is_ok());
    }
}

#[test]
fn a_batch_that_is_asked_while_the_next_replica_is_dialled_waits_for_nothing() {
    let mut scenario = Scenario::watching(2, 7);
    scenario.publishers();
    scenario.wait();
    scenario.ask(1, 1);
    scenario.answer(true, FOUND);
    assert!(scenario.only_answer().is_ok());
    // Owed an answer, the client stays; then the next one is there already.
    scenario.ask(2, 1);
    scenario.linked();
    scenario.publishers();
    assert!(!scenario.hung_up);
    scenario.ask(3, 1);
    assert_eq!(scenario.requests.len(), 1, "for the next replica");
    scenario.answer(true, FOUND);
    assert!(std::mem::take(&mut scenario.hung_up));
    scenario.answer(true, FOUND);
    let answered: Vec<u64> = scenario.finished.iter().map(|(batch, _)| *batch).collect();
    assert_eq!(answered, [2, 3]);
}

#[test]
fn what_is_asked_for_a_replica_that_then_breaks_goes_to_the_one_before() {
    let mut scenario = Scenario::watching(2, 7);
    scenario.publishers();
    scenario.wait();
    scenario.ask(1, 1);
    scenario.linked();
    scenario.publishers();
    scenario.ask(2, 1);
    scenario.unlinked("it crashed");
    assert_eq!(scenario.requests.len(), 2);
    scenario.answer(true, FOUND);
    scenario.answer(true, FOUND);
    assert_eq!(scenario.finished.len(), 2);
}

#[test]
fn a_client_that_only_watches_does_not_return_to_a_bad_replica_at_every_turn() {
    for bad in 0..3 {
        let mut scenario = Scenario::watching(3, bad as u64);
        while scenario.replica() == bad {
            scenario.unlinked("it crashed");
            scenario.wait();
            scenario.linked();
        }
        scenario.publishers();
        let (begun, mut turns) = (scenario.now, Vec::new());
        while scenario.now < begun + 40 * TURN {
            scenario.tick();
            if scenario.replica() == bad {
                scenario.unlinked("refused");
            }
            // Whoever is left is dialled at once, if anybody is.
            if scenario.links.len() == LINKS_MAX {
                scenario.linked();
                scenario.publishers();
            }
            turns.push(scenario.links[&scenario.link()]);
        }
        assert!(!turns.contains(&bad));
        // Passed over for 2 turns, then 4, then 8 each: 0, 2, 6, 14, 22, 30, 38.
        let tried = scenario.dialled.iter().filter(|&&replica| replica == bad).count();
        assert!((3..=9).contains(&tried), "{tried} times in 40 turns");
        // It is good again: within 8 turns it is of use as any other.
        while scenario.now < begun + 60 * TURN {
            scenario.tick();
            scenario.linked();
            scenario.publishers();
            turns.push(scenario.replica());
        }
        let last: BTreeSet<usize> = turns[turns.len() - 3..].iter().copied().collect();
        assert_eq!(last.len(), 3, "{turns:?}");
    }
}

#[test]
fn a_watch_does_not_leave_a_replica_that_owes_an_answer_nor_the_only_one() {
    let mut scenario = Scenario::watching(2, 7);
    scenario.now += TURN - INSTANT;
    scenario.ask(1, 1);
    scenario.now += INSTANT;
    scenario.step(Input::Tick);
    assert_eq!(scenario.dialled.len(), 1);
    scenario.answer(true, FOUND);
    assert!(scenario.only_answer().is_ok());
    scenario.step(Input::Tick);
    assert_eq!(scenario.dialled.len(), 2, "it goes on as soon as nothing is owed");

    let scenario = Scenario::watching(1, 7);
    assert_eq!(scenario.core.next_deadline(), None);
}

#[test]
fn a_watch_that_a_replica_has_no_room_for_is_tried_at_another_1_to_12_s_later() {
    let mut scenario = Scenario::watching(2, 7);
    let full = scenario.replica();
    scenario.watch_refused(scenario.link());
    assert!(!scenario.hung_up);
    let wait = scenario.wait();
    assert!((1.0..=12.0).contains(&wait.as_secs_f64()), "{wait:?}");
    assert_ne!(scenario.replica(), full);
    scenario.linked();
    assert!(scenario.is_watched(5) && !scenario.hung_up);
    scenario.publishers();
    assert!(scenario.hung_up);
}

#[test]
fn a_full_watch_table_does_not_fail_the_reads_of_the_same_link() {
    // With one replica there is no other; with three, nothing is lost of what this one was asked
    // before.
    for replicas in [1, 3] {
        let mut scenario = Scenario::watching(replicas, 7);
        scenario.ask(1, 1);
        for batch in 2..=20 {
            let newest = scenario.link();
            let oldest = *scenario.links.keys().next().unwrap();
            scenario.watch_refused(oldest);
            assert!(!scenario.hung_up, "the link is of use for reads");
            scenario.ask(batch, 1);
            // The older one is answered late: it is waited for, however often the watch is to be
            // tried elsewhere.
            scenario.now += Duration::from_secs(13);
            scenario.step(Input::Tick);
            assert!(!scenario.hung_up);
            if scenario.link() != newest {
                scenario.linked();
                scenario.publishers();
            }
            scenario.answer(true, FOUND);
            let (number, answer) = scenario.finished.pop().expect("an answer");
            assert!(number < batch && answer.is_ok());
            scenario.hung_up = false;
        }
        assert_eq!(scenario.dialled.len() > 1, replicas > 1, "the watch is tried elsewhere");
    }
}

#[test]
fn a_watch_that_nobody_has_room_for_is_tried_again_every_reader_ttl() {
    let mut scenario = Scenario::watching(2, 7);
    let link = scenario.link();
    scenario.watch_refused(link);
    let mut waits = Vec::new();
    for _ in 0..6 {
        scenario.watched.clear();
        waits.push(scenario.wait());
        if scenario.link() != link {
            scenario.linked();
            scenario.watch_refused(scenario.link());
            assert!(std::mem::take(&mut scenario.hung_up), "of no use");
        }
        assert!(scenario.is_watched(5), "here, too, there may be room by now");
        scenario.watch_refused(link);
    }
    let is_long: Vec<bool> = waits.iter().map(|wait| *wait == TURN).collect();
    assert_eq!(is_long, [false, true, true, true, true, true], "{waits:?}");
    // The only replica is not left: it is asked again.
    let mut scenario = Scenario::watching(1, 7);
    scenario.watched.clear();
    scenario.watch_refused(scenario.link());
    assert_eq!(scenario.wait(), TURN);
    assert!(!scenario.hung_up && scenario.is_watched(5));
}
