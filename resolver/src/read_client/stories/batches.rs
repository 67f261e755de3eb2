//! Many batches over one link, and those that are cut, empty or forgotten.

use super::*;

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
