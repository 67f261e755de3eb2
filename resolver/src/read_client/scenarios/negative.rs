//! A replica that a publisher cannot reach answers that its paths have none: another is asked.

use super::*;

fn nothing() -> (bool, Vec<PathAnswer>) {
    (true, vec![PathAnswer::NotFound])
}

#[test]
fn a_path_that_one_replica_does_not_know_is_found_at_the_next() {
    let mut scenario = Scenario::new(3, 7);
    let begun = scenario.now;
    scenario.ask(1, 2);
    scenario.linked();
    let (first, link) = (scenario.replica(), scenario.link());
    let (id, _) = scenario.requests.remove(0);
    scenario.received(resolved(id, true, true, vec![NOT_FOUND, FOUND]));
    assert!(scenario.finished.is_empty());
    assert_ne!(scenario.replica(), first);
    assert!(scenario.links.contains_key(&link), "it is dialled beside the link in use");
    scenario.linked();
    let (id, _) = scenario.requests.remove(0);
    scenario.received(resolved(id, true, true, vec![FOUND, NOT_FOUND]));
    assert_eq!(scenario.complete(), (true, vec![found(false), found(false)]), "the better of both");
    assert_eq!((scenario.now, scenario.dialled.len()), (begun, 2));
}

#[test]
fn two_replicas_are_enough_for_a_final_no() {
    for (second, complete) in [(NOT_FOUND, true), (BY_DEFAULT, true)] {
        let mut scenario = Scenario::new(3, 7);
        scenario.ask(1, 1);
        scenario.linked();
        scenario.answer(true, NOT_FOUND);
        scenario.linked();
        scenario.answer(complete, second);
        scenario.complete();
        assert_eq!(scenario.dialled.len(), 2);
    }
}

#[test]
fn the_first_answer_stands_if_no_other_replica_can_be_reached() {
    let mut scenario = Scenario::new(3, 7);
    let begun = scenario.now;
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(true, NOT_FOUND);
    scenario.unlinked("it is down");
    assert!(scenario.finished.is_empty(), "there is a third");
    scenario.unlinked("it is down");
    assert_eq!((scenario.complete(), scenario.now), (nothing(), begun));
    // Both are known to be down, and the link is still there.
    scenario.now += Duration::from_secs(10);
    scenario.ask(2, 1);
    scenario.answer(true, NOT_FOUND);
    assert_eq!((scenario.complete(), scenario.dialled.len()), (nothing(), 3));

    let mut alone = Scenario::new(1, 7);
    alone.ask(1, 1);
    alone.linked();
    alone.answer(true, NOT_FOUND);
    assert_eq!(alone.complete(), nothing());
}

#[test]
fn a_check_takes_two_seconds_at_most_and_holds_up_nothing_else() {
    let mut scenario = Scenario::new(2, 7);
    let begun = scenario.now;
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(true, NOT_FOUND);
    scenario.now += Duration::from_secs(1);
    scenario.ask(2, 1);
    scenario.step(Event::Received {
        link: 1,
        message: resolved(scenario.requests[0].0, true, true, vec![FOUND]),
    });
    assert_eq!(scenario.finished.remove(0).0, 2, "over the link in use");
    scenario.requests.clear();
    // Another negative answer joins the check.
    scenario.ask(3, 1);
    scenario.answer(true, NOT_FOUND);
    assert!(scenario.finished.is_empty());
    scenario.wait();
    assert_eq!(scenario.now - begun, Duration::from_secs(2));
    let ended: Vec<u64> = scenario.finished.iter().map(|(batch, _)| *batch).collect();
    assert_eq!(ended, [1, 3]);
}

#[test]
fn a_check_that_has_moved_on_ends_in_time_too() {
    let mut scenario = Scenario::new(2, 7);
    let begun = scenario.now;
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(true, NOT_FOUND);
    scenario.linked();
    assert_eq!(scenario.requests.len(), 1, "asked there");
    scenario.closed = false;
    scenario.wait();
    assert_eq!((scenario.complete(), scenario.now - begun), (nothing(), Duration::from_secs(2)));
    // Its late answer is ignored.
    scenario.answer(true, FOUND);
    assert!(scenario.finished.is_empty());

    // The link breaks while the other replica is dialled.
    let mut scenario = Scenario::new(2, 7);
    let begun = scenario.now;
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(true, NOT_FOUND);
    let why = String::from("it is down");
    scenario.step(Event::Unlinked { link: 1, why });
    while scenario.finished.is_empty() {
        scenario.now = scenario.core.next_deadline().expect("it waits");
        scenario.step(Event::Tick);
    }
    assert!(scenario.now - begun <= Duration::from_secs(2));
    assert_eq!(scenario.complete(), nothing());
}

#[test]
fn negative_answers_are_checked_once_in_five_seconds() {
    let mut scenario = Scenario::new(2, 7);
    let begun = scenario.now;
    for batch in 0..100 {
        scenario.ask(batch, 1);
        if scenario.requests.is_empty() {
            scenario.linked();
        }
        scenario.answer(true, NOT_FOUND);
        if scenario.finished.is_empty() {
            scenario.linked();
            scenario.answer(true, NOT_FOUND);
        }
        assert_eq!(scenario.complete(), nothing());
        scenario.now = begun + Duration::from_millis(100) * (batch as u32 + 1);
    }
    assert_eq!(scenario.dialled.len(), 1 + 2, "two checks in ten seconds");
}

#[test]
fn a_default_is_not_doubted() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(true, BY_DEFAULT);
    assert_eq!((scenario.complete().1, scenario.dialled.len()), (vec![found(true)], 1));
}
