//! Replicas that send other answers than they were asked for.

use longshore_protocol::Path;
use longshore_protocol::messages::resolver::{self as wire, FromReplica, Listed};

use super::*;

fn listed(id: u64, last: bool, paths: usize) -> FromReplica {
    let path = |n| wire::PathListed {
        path: Path::new(&format!("/{n:027}")).unwrap(),
        queue: true,
        value: false,
        default: false,
    };
    let paths = (0..paths).map(path).collect();
    FromReplica::Listed(Listed { id, last, complete: true, tracker: tracker(), paths })
}

/// The replica sends something every 14 s, 50 times, and none of it is an answer.
#[test]
fn unrequested_messages_do_not_extend_the_timeout() {
    let junk: [fn(u64) -> FromReplica; 5] = [
        |_| resolved(4_711, false, true, vec![FOUND]),
        |_| resolved(4_711, true, true, vec![FOUND]),
        |_| listed(4_711, false, 1),
        |_| FromReplica::Refused {
            id: 4_711,
            code: wire::RequestRefusal::Malformed,
            reason: "no".into(),
        },
        // A requested answer, but empty.
        |id| resolved(id, false, true, Vec::new()),
    ];
    for junk in junk {
        let mut scenario = Scenario::new(2, 7);
        let begun = scenario.now;
        scenario.ask(1, 2);
        scenario.linked();
        let (id, _) = scenario.requests[0];
        scenario.now += Duration::from_secs(14);
        scenario.received(junk(id));
        assert!(!scenario.closed);
        assert_eq!(scenario.core.next_deadline(), Some(begun + Duration::from_secs(15)));
        scenario.wait();
        assert!(std::mem::take(&mut scenario.closed));
        scenario.wait();
        scenario.linked();
        scenario.answer(true, FOUND);
        assert_eq!(scenario.complete().1.len(), 2);
    }
}

#[test]
fn a_replica_that_sends_more_answers_than_asked_is_left_at_once() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 150_000);
    scenario.linked();
    // The first request has 100,000 paths; the second 50,000, which would compensate for it.
    let (id, _) = scenario.requests[0];
    scenario.received(resolved(id, false, true, vec![FOUND; 100_000]));
    assert!(!scenario.closed);
    scenario.received(resolved(id, false, true, vec![FOUND]));
    assert!(std::mem::take(&mut scenario.closed) && scenario.finished.is_empty());
    scenario.wait();
    scenario.linked();
    scenario.answer(true, FOUND);
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1.len(), 150_000);
}

#[test]
fn answers_missing_from_one_request_cannot_come_with_the_next() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 150_000);
    scenario.linked();
    let (id, _) = scenario.requests[0];
    scenario.received(resolved(id, true, true, vec![FOUND; 99_999]));
    assert!(scenario.closed && scenario.finished.is_empty());
}

#[test]
fn a_listing_without_end_is_refused_and_its_replica_left() {
    let mut scenario = Scenario::new(2, 7);
    scenario.core.limit_answers(10 * (28 + 32));
    scenario.step(Event::Ask { batch: 1, question: Question::List(Path::root()) });
    scenario.ask(2, 1);
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    let endless = scenario.replica();
    scenario.received(listed(id, false, 5));
    scenario.received(listed(id, false, 5));
    assert!(scenario.finished.is_empty() && !scenario.closed, "ten are the limit");
    scenario.received(listed(id, false, 1));
    let replica = format!("replica-{endless}:4800");
    assert_eq!(scenario.only_answer(), Err(ReadError::TooLong { replica, limit: 600 }));
    assert!(std::mem::take(&mut scenario.closed));
    // The batch behind it is sent to the other replica.
    scenario.wait();
    assert_ne!(scenario.replica(), endless);
    scenario.linked();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1, [found(false)]);
}

/// Its caller no longer waits, but later batches do.
#[test]
fn a_forgotten_listing_without_end_is_left_too() {
    let mut scenario = Scenario::new(2, 7);
    scenario.core.limit_answers(600);
    scenario.step(Event::Ask { batch: 1, question: Question::List(Path::root()) });
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.step(Event::Forget { batch: 1 });
    scenario.received(listed(id, false, 10));
    assert!(!scenario.closed);
    scenario.received(listed(id, false, 1));
    assert!(scenario.closed && scenario.finished.is_empty());
}
