//! Many batches over one link, and those that are cut, empty or forgotten.

use super::*;

#[test]
fn a_link_that_is_lost_while_nobody_asks_costs_nothing() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    scenario.linked();
    scenario.answer(true, FOUND);
    scenario.only_answer().unwrap();
    scenario.unlinked("it crashed");
    assert_eq!((scenario.dialled.len(), scenario.core.next_deadline()), (1, None));
    scenario.ask(2, 1);
    assert_eq!(scenario.dialled.len(), 2);
}

#[test]
fn many_batches_share_the_link_and_each_gets_its_own_answer() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 2);
    scenario.ask(2, 3);
    scenario.linked();
    scenario.ask(3, 1);
    assert_eq!(scenario.dialled.len(), 1);
    let lengths: Vec<usize> = scenario.requests.iter().map(|(_, paths)| *paths).collect();
    assert_eq!(lengths, [2, 3, 1]);
    for _ in 0..3 {
        scenario.answer(true, FOUND);
    }
    let answered: Vec<(u64, usize)> = scenario
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
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1_500_000);
    scenario.linked();
    assert_eq!(scenario.requests.len(), REQUESTS_IN_FLIGHT_MAX);
    while !scenario.requests.is_empty() {
        assert!(scenario.requests.iter().all(|(_, paths)| *paths <= 100_000));
        scenario.answer(true, FOUND);
    }
    assert_eq!(scenario.complete().1.len(), 1_500_000);
}

#[test]
fn a_batch_without_paths_is_answered_and_one_without_replicas_refused() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 0);
    scenario.linked();
    assert_eq!(scenario.complete(), (true, Vec::new()));
    let mut scenario = Scenario::new(0, 7);
    scenario.ask(1, 1);
    assert_eq!(scenario.only_answer(), Err(ReadError::NoReplicas));
}

#[test]
fn a_replica_that_answers_something_else_is_left() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 2);
    scenario.linked();
    let (id, _) = scenario.requests[0];
    scenario.told(resolved(id, true, true, vec![FOUND]));
    assert!(std::mem::take(&mut scenario.hung_up) && scenario.finished.is_empty());
    scenario.wait();
    scenario.linked();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1.len(), 2);
}

#[test]
fn who_no_longer_waits_is_forgotten() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    scenario.linked();
    scenario.unlinked("it crashed");
    scenario.step(Input::Forget { batch: 1 });
    scenario.wait();
    assert_eq!((scenario.dialled.len(), scenario.core.next_deadline()), (1, None));
    assert!(scenario.finished.is_empty());
}
