//! K0: the link goes between a batch and its answer.

use super::*;

#[test]
fn a_batch_whose_answer_was_lost_goes_again_to_the_same_publisher_under_the_same_number() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::linked_to(single(), &[a, b]);
    story.push(1);
    let first = story.next_sent();
    story.lose(first.publisher, first.link);
    assert!(story.sent.is_empty(), "another publisher is up, and gets nothing of it");
    let link = story.attach_next(first.sequence + 1);
    let again = story.next_sent();
    assert_eq!((again.publisher, again.link), (first.publisher, link));
    assert_eq!((again.sequence, again.jobs), (first.sequence, 1));
    story.answer_all(&again);
    let end = story.next_end();
    assert_eq!((end.jobs, held_by(&end.end)), (vec![1], first.publisher));
    assert!(story.ended.is_empty() && story.sent.is_empty(), "the job exists once");
}

#[test]
fn batches_that_never_arrived_are_sent_again_in_order_without_a_gap() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    (1..=4).for_each(|n| story.push(n));
    let sent: Vec<Sent> = std::iter::from_fn(|| story.sent.pop_front()).collect();
    assert_eq!(sent.iter().map(|s| s.sequence).collect::<Vec<_>>(), [2, 3, 4, 5]);
    story.lose(a.id, sent[0].link);
    story.attach_next(4);
    let again: Vec<u64> =
        std::iter::from_fn(|| story.sent.pop_front()).map(|s| s.sequence).collect();
    assert_eq!(
        again,
        [2, 3, 4, 5],
        "the first two for their receipts, the others for the first time"
    );
}

#[test]
fn an_answer_of_an_older_link_is_ignored() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let first = story.next_sent();
    story.lose(a.id, first.link);
    story.answer_all(&first);
    assert!(story.ended.is_empty());
    story.attach_next(3);
    story.answer_all(&first);
    assert!(story.ended.is_empty());
}

#[test]
fn after_a_missing_batch_the_link_is_made_anew_and_the_numbers_begin_where_the_publisher_says() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    (1..=3).for_each(|n| story.push(n));
    let sent: Vec<Sent> = std::iter::from_fn(|| story.sent.pop_front()).collect();
    story.answer(&sent[0], Err(BatchRefusal::Malformed));
    assert!(matches!(story.next_end().end, BatchEnd::Failed(EnqueueError::BatchRefused { .. })));
    story.answer(&sent[1], Err(BatchRefusal::SequenceGap));
    assert_eq!(story.closed, [(a.id, sent[1].link)]);
    assert!(story.sent.is_empty(), "the link is no longer used");
    story.pass(ms(100));
    story.attach_next(2);
    let again: Vec<Sent> = std::iter::from_fn(|| story.sent.pop_front()).collect();
    assert_eq!(again.iter().map(|s| s.sequence).collect::<Vec<_>>(), [2, 3]);
    again.iter().for_each(|sent| story.answer_all(sent));
    let held: Vec<u64> = story.ended.iter().flat_map(|end| end.jobs.clone()).collect();
    assert_eq!(held, [2, 3], "in the order in which they were handed in");
}

#[test]
fn what_follows_a_first_batch_that_was_refused_is_sent_again_and_not_unknown() {
    let a = publisher(1);
    let mut story = Story::new(single());
    story.ask();
    story.resolve(std::slice::from_ref(&a));
    (1..=3).for_each(|n| story.push(n));
    story.attach_next(1);
    let sent: Vec<Sent> = std::iter::from_fn(|| story.sent.pop_front()).collect();
    story.answer(&sent[0], Err(BatchRefusal::TooLarge));
    assert!(matches!(story.next_end().end, BatchEnd::Failed(EnqueueError::BatchRefused { .. })));
    // It has accepted nothing of this producer yet.
    story.answer(&sent[1], Err(BatchRefusal::UnknownProducer));
    assert!(story.ended.is_empty());
    story.pass(ms(100));
    story.attach_next(1);
    let again: Vec<Sent> = std::iter::from_fn(|| story.sent.pop_front()).collect();
    assert_eq!(again.iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 2]);
    again.iter().for_each(|sent| story.answer_all(sent));
    let held: Vec<u64> = story.ended.iter().flat_map(|end| end.jobs.clone()).collect();
    assert_eq!(held, [2, 3]);
}

#[test]
fn a_batch_that_is_told_of_a_gap_over_and_over_fails_instead_of_looping() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    for _ in 0..GAPS_MAX {
        let sent = story.next_sent();
        story.answer(&sent, Err(BatchRefusal::SequenceGap));
        story.pass(secs(2));
        story.attach_next(2);
    }
    let sent = story.next_sent();
    story.answer(&sent, Err(BatchRefusal::SequenceGap));
    let refusal = BatchRefusal::SequenceGap;
    let expected = BatchEnd::Failed(EnqueueError::BatchRefused { publisher: a.id, refusal });
    assert_eq!(story.next_end().end, expected);
}

#[test]
fn a_publisher_that_no_longer_knows_the_producer_leaves_its_batch_unknown() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let sent = story.next_sent();
    story.lose(a.id, sent.link);
    story.attach_next(sent.sequence + 1);
    let sent = story.next_sent();
    story.answer(&sent, Err(BatchRefusal::UnknownProducer));
    let end = story.next_end();
    assert!(matches!(end.end, BatchEnd::Unknown { publisher, .. } if publisher == a.id));
    assert_eq!(end.jobs, [1]);
    story.push(2);
    story.pass(ms(100));
    story.attach_next(1);
    assert_eq!(story.next_sent().sequence, 1, "the numbers begin anew");
}

#[test]
fn a_publisher_that_knows_less_than_it_acknowledged_leaves_what_it_had_not_answered_unknown() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let sent = story.next_sent();
    story.lose(a.id, sent.link);
    story.attach_next(1);
    let end = story.next_end();
    assert!(matches!(end.end, BatchEnd::Unknown { publisher, .. } if publisher == a.id));
    assert!(story.sent.is_empty(), "it is not sent again under a new number: it might run twice");
    story.push(2);
    assert_eq!(story.next_sent().sequence, 1);
}

#[test]
fn a_producer_that_was_away_for_long_goes_on_with_the_number_that_it_is_told() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    let link = LinkNumber(0);
    story.lose(a.id, link);
    story.pass(secs(4_000));
    story.ask();
    while !story.asked.is_empty() {
        story.resolve(std::slice::from_ref(&a));
    }
    story.dialled.clear();
    story.push(1);
    if let Some(dialled) = story.dialled.pop_front() {
        story.attach(a.id, dialled.link, 1);
    }
    assert_eq!(story.next_sent().sequence, 1);
    assert!(story.ended.is_empty());
}

#[test]
fn an_answer_for_another_number_of_jobs_is_not_believed() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let sent = story.next_sent();
    story.answer(&sent, Ok(Runs::all(EnqueueOutcome::Created, 2)));
    assert!(matches!(story.next_end().end, BatchEnd::Unknown { .. }));
    assert_eq!(story.closed.len(), 1);
}

#[test]
fn a_batch_is_the_same_bytes_when_it_goes_again() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let first = story.next_sent();
    story.lose(a.id, first.link);
    story.attach_next(first.sequence);
    let again = story.next_sent();
    let bytes = |sent: &Sent| sent.batch.to_batch(sent.sequence).expect("a batch");
    assert_eq!(bytes(&first), bytes(&again));
}
