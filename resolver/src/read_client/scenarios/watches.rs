//! Watches: at which replica they are, and when they move.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{FromReplica, Publishers, RequestRefusal};

use super::{FOUND, INSTANT, Scenario, tracker};
use crate::read_client::core::{Event, LINKS_MAX, Subject};

const TURN: Duration = Duration::from_secs(60);

fn jobs() -> Subject {
    Subject::Publishers(Glob::new("/jobs/**").unwrap())
}

impl Scenario {
    /// A client of so many replicas that watches, and is linked to one of them.
    fn watching(replicas: usize, seed: u64) -> Scenario {
        let mut scenario = Scenario::new(replicas, seed);
        scenario.step(Event::Watch { watch: 5, subject: jobs() });
        scenario.linked();
        scenario
    }

    /// The replica that was dialled last sends the publishers of the watch.
    fn publishers(&mut self) {
        self.received(FromReplica::Publishers(Publishers {
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
        self.step(Event::Received { link, message });
    }

    /// Advances to the next deadline.
    fn tick(&mut self) {
        self.now = self.core.next_deadline().expect("there is no deadline");
        self.step(Event::Tick);
    }
}

#[test]
fn a_watch_is_resumed_at_one_replica_after_the_other_for_ever() {
    let mut scenario = Scenario::new(2, 7);
    scenario.step(Event::Watch { watch: 5, subject: jobs() });
    for _ in 0..100 {
        scenario.linked();
        assert!(scenario.is_watched(5));
        let replica = scenario.replica();
        scenario.publishers();
        assert_eq!(scenario.delivered.pop(), Some((5, replica)));
        scenario.unlinked("it crashed");
        let wait = scenario.wait();
        assert!((1.0..=12.0).contains(&wait.as_secs_f64()));
        assert_ne!(scenario.replica(), replica);
        scenario.unlinked("refused");
    }
    scenario.linked();
    scenario.step(Event::Unwatch { watch: 5 });
    assert!(scenario.watched.is_empty());
    scenario.unlinked("it crashed");
    assert_eq!(scenario.core.next_deadline(), None, "no batch and no watch is left");
}

#[test]
fn a_watch_visits_every_replica_in_turn() {
    let mut scenario = Scenario::watching(3, 7);
    let mut outstanding = vec![scenario.replica()];
    for _ in 0..5 {
        scenario.publishers();
        assert_eq!(scenario.wait(), TURN);
        scenario.linked();
        assert!(scenario.is_watched(5));
        scenario.publishers();
        assert!(std::mem::take(&mut scenario.closed));
        outstanding.push(scenario.replica());
    }
    let first: BTreeSet<usize> = outstanding[..3].iter().copied().collect();
    assert_eq!((first.len(), &outstanding[..3]), (3, &outstanding[3..]), "all of them, in turn");
}

#[test]
fn a_watch_stays_with_its_replica_until_the_next_has_answered() {
    // A refused connection; a handshake that never comes; a link that breaks; a replica that
    // accepts the watch and sends nothing.
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
            assert!(std::mem::take(&mut scenario.closed));
        },
    ];
    for fault in faults {
        let mut scenario = Scenario::watching(2, 7);
        let (link, good) = (scenario.link(), scenario.replica());
        scenario.publishers();
        scenario.wait();
        assert_ne!(scenario.replica(), good);
        assert!(
            !scenario.closed && scenario.watched.contains(&(link, 5)),
            "it serves all the while"
        );
        fault(&mut scenario);
        assert_eq!(scenario.link(), link, "the link to the good one remains");
        assert!(scenario.watched.contains(&(link, 5)));
        // It answers batches that are asked meanwhile.
        scenario.ask(1, 1);
        scenario.answer(true, FOUND);
        assert!(scenario.only_answer().is_ok());
    }
}

#[test]
fn a_batch_asked_while_the_next_replica_is_dialled_is_sent_at_once() {
    let mut scenario = Scenario::watching(2, 7);
    scenario.publishers();
    scenario.wait();
    scenario.ask(1, 1);
    scenario.answer(true, FOUND);
    assert!(scenario.only_answer().is_ok());
    // While an answer is awaited the client stays; then the next replica takes over.
    scenario.ask(2, 1);
    scenario.linked();
    scenario.publishers();
    assert!(!scenario.closed);
    scenario.ask(3, 1);
    assert_eq!(scenario.requests.len(), 1, "for the next replica");
    scenario.answer(true, FOUND);
    assert!(std::mem::take(&mut scenario.closed));
    scenario.answer(true, FOUND);
    let answered: Vec<u64> = scenario.finished.iter().map(|(batch, _)| *batch).collect();
    assert_eq!(answered, [2, 3]);
}

#[test]
fn batches_for_a_candidate_that_breaks_go_to_the_current_replica() {
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
fn a_watching_client_does_not_retry_a_bad_replica_at_every_turn() {
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
            // The remaining replicas are dialled at once, if there are any.
            if scenario.links.len() == LINKS_MAX {
                scenario.linked();
                scenario.publishers();
            }
            turns.push(scenario.links[&scenario.link()]);
        }
        assert!(!turns.contains(&bad));
        // Skipped for 2 turns, then 4, then 8 each: 0, 2, 6, 14, 22, 30, 38.
        let tried = scenario.dialled.iter().filter(|&&replica| replica == bad).count();
        assert!((3..=9).contains(&tried), "{tried} times in 40 turns");
        // It has recovered: within 8 turns it is used like any other.
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
fn a_watch_leaves_neither_a_replica_with_a_request_nor_the_only_one() {
    let mut scenario = Scenario::watching(2, 7);
    scenario.now += TURN - INSTANT;
    scenario.ask(1, 1);
    scenario.now += INSTANT;
    scenario.step(Event::Tick);
    assert_eq!(scenario.dialled.len(), 1);
    scenario.answer(true, FOUND);
    assert!(scenario.only_answer().is_ok());
    scenario.step(Event::Tick);
    assert_eq!(scenario.dialled.len(), 2, "it moves as soon as no answer is awaited");

    let scenario = Scenario::watching(1, 7);
    assert_eq!(scenario.core.next_deadline(), None);
}

/// A replica that a publisher cannot reach does not know it, and its answers would stay wrong.
#[test]
fn a_client_that_only_asks_visits_every_replica_too() {
    let mut scenario = Scenario::new(3, 5);
    let mut visited = BTreeSet::new();
    scenario.step(Event::Tick);
    for batch in 1..=6 {
        scenario.ask(batch, 1);
        if batch == 1 {
            scenario.linked();
        }
        visited.insert(scenario.links[&scenario.link()]);
        scenario.answer(true, FOUND);
        assert!(scenario.only_answer().is_ok());
        scenario.now += TURN - INSTANT;
        scenario.step(Event::Tick);
        assert_eq!(scenario.links.len(), 1, "not before its time");
        scenario.now += INSTANT;
        scenario.step(Event::Tick);
        assert_eq!(scenario.links.len(), 2);
        scenario.linked();
        assert_eq!(scenario.links.len(), 1, "it replaces the one before");
    }
    assert_eq!(visited.len(), 3);
    assert_eq!(scenario.core.next_deadline(), None, "an idle client costs nothing");
}

/// Its set would have the departed for another turn: the new replica tells only its own changes.
#[test]
fn a_watch_that_both_replicas_report_is_sent_again() {
    let mut scenario = Scenario::watching(2, 7);
    scenario.publishers();
    let old = scenario.link();
    scenario.now += TURN;
    scenario.step(Event::Tick);
    scenario.linked();
    scenario.ask(1, 1);
    scenario.publishers();
    assert_eq!(scenario.links.len(), 2, "an answer is awaited");
    let message = FromReplica::Publishers(Publishers {
        watch: 5,
        tracker: tracker(),
        complete: true,
        publishers: Vec::new(),
    });
    scenario.step(Event::Received { link: old, message });
    let sent = scenario.sent_watches.len();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.links.len(), 1);
    assert_eq!(scenario.sent_watches[sent..], [(scenario.link(), 5)]);
}

#[test]
fn a_watch_refused_for_lack_of_room_is_tried_elsewhere_1_to_12_s_later() {
    let mut scenario = Scenario::watching(2, 7);
    let full = scenario.replica();
    scenario.watch_refused(scenario.link());
    assert!(!scenario.closed);
    let wait = scenario.wait();
    assert!((1.0..=12.0).contains(&wait.as_secs_f64()), "{wait:?}");
    assert_ne!(scenario.replica(), full);
    scenario.linked();
    assert!(scenario.is_watched(5) && !scenario.closed);
    scenario.publishers();
    assert!(scenario.closed);
}

#[test]
fn a_full_watch_table_does_not_fail_reads_over_the_same_link() {
    // With one replica there is no other; with three, no earlier request to this one is lost.
    for replicas in [1, 3] {
        let mut scenario = Scenario::watching(replicas, 7);
        scenario.ask(1, 1);
        for batch in 2..=20 {
            let newest = scenario.link();
            let oldest = *scenario.links.keys().next().unwrap();
            scenario.watch_refused(oldest);
            assert!(!scenario.closed, "the link is of use for reads");
            scenario.ask(batch, 1);
            // The older one is answered late: it is awaited, however often the watch is to be tried
            // elsewhere.
            scenario.now += Duration::from_secs(13);
            scenario.step(Event::Tick);
            assert!(!scenario.closed);
            if scenario.link() != newest {
                scenario.linked();
                scenario.publishers();
            }
            scenario.answer(true, FOUND);
            let (number, answer) = scenario.finished.pop().expect("an answer");
            assert!(number < batch && answer.is_ok());
            scenario.closed = false;
        }
        assert_eq!(scenario.dialled.len() > 1, replicas > 1, "the watch is tried elsewhere");
    }
}

#[test]
fn a_watch_that_no_replica_has_room_for_is_retried_every_reader_ttl() {
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
            assert!(std::mem::take(&mut scenario.closed), "of no use");
        }
        assert!(scenario.is_watched(5), "here, too, there may be room by now");
        scenario.watch_refused(link);
    }
    let is_long: Vec<bool> = waits.iter().map(|wait| *wait == TURN).collect();
    assert_eq!(is_long, [false, true, true, true, true, true], "{waits:?}");
    // The only replica is not left: the watch is sent to it again.
    let mut scenario = Scenario::watching(1, 7);
    scenario.watched.clear();
    scenario.watch_refused(scenario.link());
    assert_eq!(scenario.wait(), TURN);
    assert!(!scenario.closed && scenario.is_watched(5));
}
