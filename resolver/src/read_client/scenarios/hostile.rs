//! A replica that answers, and not what it was asked.

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

/// Every 14 s it says something, 50 times, and nothing of it is an answer.
#[test]
fn what_was_never_asked_for_buys_it_no_time() {
    let junk: [fn(u64) -> FromReplica; 5] = [
        |_| resolved(4_711, false, true, vec![FOUND]),
        |_| resolved(4_711, true, true, vec![FOUND]),
        |_| listed(4_711, false, 1),
        |_| FromReplica::Refused {
            id: 4_711,
            code: wire::RequestRefusal::Malformed,
            reason: "no".into(),
        },
        // One that was asked for, without anything in it.
        |id| resolved(id, false, true, Vec::new()),
    ];
    for junk in junk {
        let mut scenario = Scenario::new(2, 7);
        let begun = scenario.now;
        scenario.ask(1, 2);
        scenario.linked();
        let (id, _) = scenario.requests[0];
        scenario.now += Duration::from_secs(14);
        scenario.told(junk(id));
        assert!(!scenario.hung_up);
        assert_eq!(scenario.core.next_deadline(), Some(begun + Duration::from_secs(15)));
        scenario.wait();
        assert!(std::mem::take(&mut scenario.hung_up));
        scenario.wait();
        scenario.linked();
        scenario.answer(true, FOUND);
        assert_eq!(scenario.complete().1.len(), 2);
    }
}

#[test]
fn a_replica_that_gives_more_answers_than_it_was_asked_for_is_left_at_once() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 150_000);
    scenario.linked();
    // The first request has 100,000 paths; the second 50,000, which would make up for it.
    let (id, _) = scenario.requests[0];
    scenario.told(resolved(id, false, true, vec![FOUND; 100_000]));
    assert!(!scenario.hung_up);
    scenario.told(resolved(id, false, true, vec![FOUND]));
    assert!(std::mem::take(&mut scenario.hung_up) && scenario.finished.is_empty());
    scenario.wait();
    scenario.linked();
    scenario.answer(true, FOUND);
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1.len(), 150_000);
}

#[test]
fn answers_that_one_request_lacks_are_not_made_up_for_by_the_next() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 150_000);
    scenario.linked();
    let (id, _) = scenario.requests[0];
    scenario.told(resolved(id, true, true, vec![FOUND; 99_999]));
    assert!(scenario.hung_up && scenario.finished.is_empty());
}

#[test]
fn a_listing_without_end_is_refused_and_its_replica_left() {
    let mut scenario = Scenario::new(2, 7);
    scenario.core.limit_answers(10 * (28 + 32));
    scenario.step(Input::Ask { batch: 1, question: Question::List(Path::root()) });
    scenario.ask(2, 1);
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    let endless = scenario.replica();
    scenario.told(listed(id, false, 5));
    scenario.told(listed(id, false, 5));
    assert!(scenario.finished.is_empty() && !scenario.hung_up, "ten are as many as may be");
    scenario.told(listed(id, false, 1));
    let replica = format!("replica-{endless}:4800");
    assert_eq!(scenario.only_answer(), Err(ReadError::TooLong { replica, limit: 600 }));
    assert!(std::mem::take(&mut scenario.hung_up));
    // The batch behind it is asked of the other.
    scenario.wait();
    assert_ne!(scenario.replica(), endless);
    scenario.linked();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1, [found(false)]);
}

/// Nobody waits for it any more, and those behind it do.
#[test]
fn a_listing_that_was_forgotten_ends_too() {
    let mut scenario = Scenario::new(2, 7);
    scenario.core.limit_answers(600);
    scenario.step(Input::Ask { batch: 1, question: Question::List(Path::root()) });
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.step(Input::Forget { batch: 1 });
    scenario.told(listed(id, false, 10));
    assert!(!scenario.hung_up);
    scenario.told(listed(id, false, 1));
    assert!(scenario.hung_up && scenario.finished.is_empty());
}
