//! Many batches over one link, and divided, empty or forgotten ones.

use super::*;

#[test]
fn a_link_lost_while_idle_is_not_dialled_again_until_a_batch() {
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
fn a_huge_batch_is_divided_and_only_some_requests_are_in_flight() {
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
fn a_replica_that_sends_a_wrong_answer_is_left() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 2);
    scenario.linked();
    let (id, _) = scenario.requests[0];
    scenario.received(resolved(id, true, true, vec![FOUND]));
    assert!(std::mem::take(&mut scenario.closed) && scenario.finished.is_empty());
    scenario.wait();
    scenario.linked();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1.len(), 2);
}

#[test]
fn a_batch_whose_caller_has_gone_is_forgotten() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    scenario.linked();
    scenario.unlinked("it crashed");
    scenario.step(Event::Forget { batch: 1 });
    scenario.wait();
    assert_eq!((scenario.dialled.len(), scenario.core.next_deadline()), (1, None));
    assert!(scenario.finished.is_empty());
}
