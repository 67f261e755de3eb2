//! Crash point K0: the link breaks between a batch and its answer.

use super::*;

#[test]
fn an_unanswered_batch_is_resent_with_the_same_number() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a, b]);
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(first.publisher, first.link);
    assert!(scenario.sent.is_empty(), "another publisher is up, and gets no copy");
    let link = scenario.attach_next(first.sequence + 1);
    let again = scenario.next_sent();
    assert_eq!((again.publisher, again.link), (first.publisher, link));
    assert_eq!((again.sequence, again.jobs), (first.sequence, 1));
    scenario.answer_all(&again);
    let end = scenario.next_end();
    assert_eq!((end.jobs, answered_by(&end.end)), (vec![1], first.publisher));
    assert!(scenario.ended.is_empty() && scenario.sent.is_empty(), "the job exists once");
}

#[test]
fn lost_batches_are_resent_in_order_without_a_gap() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    (1..=4).for_each(|n| scenario.push(n));
    let sent: Vec<SentBatch> = std::iter::from_fn(|| scenario.sent.pop_front()).collect();
    assert_eq!(sent.iter().map(|s| s.sequence).collect::<Vec<_>>(), [2, 3, 4, 5]);
    scenario.lose_link(a.id, sent[0].link);
    scenario.attach_next(4);
    let again: Vec<u64> =
        std::iter::from_fn(|| scenario.sent.pop_front()).map(|s| s.sequence).collect();
    assert_eq!(again, [2, 3, 4, 5], "the first two for their receipts, the others were lost");
}

/// The publisher has them, and forgot this producer before it could send their receipts.
#[test]
fn batches_that_have_arrived_are_unknown_once_the_publisher_forgot_them() {
    let a = publisher(1);
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve(std::slice::from_ref(&a));
    scenario.push(1);
    let link = scenario.attach_next(1);
    assert_eq!(scenario.next_sent().sequence, 1);
    scenario.lose_link(a.id, link);
    scenario.pass(secs(13));
    let link = scenario.attach_next(2);
    assert_eq!(scenario.next_sent().sequence, 1, "for its receipt");
    scenario.lose_link(a.id, link);
    scenario.pass(secs(13));
    scenario.attach_next(1);
    assert!(scenario.sent.is_empty(), "it would be created a second time");
    assert!(matches!(scenario.next_end().end, BatchOutcome::Unknown { .. }));
}

#[test]
fn an_answer_on_an_older_link_is_ignored() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(a.id, first.link);
    scenario.answer_all(&first);
    assert!(scenario.ended.is_empty());
    scenario.attach_next(3);
    scenario.answer_all(&first);
    assert!(scenario.ended.is_empty());
}

#[test]
fn a_sequence_gap_makes_a_new_link_and_new_numbers() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    (1..=3).for_each(|n| scenario.push(n));
    let sent: Vec<SentBatch> = std::iter::from_fn(|| scenario.sent.pop_front()).collect();
    scenario.answer(&sent[0], Err(BatchRefusal::Malformed));
    assert!(matches!(
        scenario.next_end().end,
        BatchOutcome::Failed(EnqueueError::BatchRefused { .. })
    ));
    scenario.answer(&sent[1], Err(BatchRefusal::SequenceGap));
    assert_eq!(scenario.closed, [(a.id, sent[1].link)]);
    assert!(scenario.sent.is_empty(), "the link is no longer used");
    scenario.pass(ms(100));
    scenario.attach_next(2);
    let again: Vec<SentBatch> = std::iter::from_fn(|| scenario.sent.pop_front()).collect();
    assert_eq!(again.iter().map(|s| s.sequence).collect::<Vec<_>>(), [2, 3]);
    again.iter().for_each(|sent| scenario.answer_all(sent));
    let answered: Vec<u64> = scenario.ended.iter().flat_map(|end| end.jobs.clone()).collect();
    assert_eq!(answered, [2, 3], "in the order in which they were enqueued");
}

#[test]
fn batches_after_a_refused_first_one_are_resent() {
    let a = publisher(1);
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve(std::slice::from_ref(&a));
    (1..=3).for_each(|n| scenario.push(n));
    scenario.attach_next(1);
    let sent: Vec<SentBatch> = std::iter::from_fn(|| scenario.sent.pop_front()).collect();
    scenario.answer(&sent[0], Err(BatchRefusal::TooLarge));
    assert!(matches!(
        scenario.next_end().end,
        BatchOutcome::Failed(EnqueueError::BatchRefused { .. })
    ));
    // It has accepted nothing of this producer yet.
    scenario.answer(&sent[1], Err(BatchRefusal::UnknownProducer));
    assert!(scenario.ended.is_empty());
    scenario.pass(ms(100));
    scenario.attach_next(1);
    let again: Vec<SentBatch> = std::iter::from_fn(|| scenario.sent.pop_front()).collect();
    assert_eq!(again.iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 2]);
    again.iter().for_each(|sent| scenario.answer_all(sent));
    let answered: Vec<u64> = scenario.ended.iter().flat_map(|end| end.jobs.clone()).collect();
    assert_eq!(answered, [2, 3]);
}

#[test]
fn repeated_sequence_gaps_fail_the_batch() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    for _ in 0..GAPS_MAX {
        let sent = scenario.next_sent();
        scenario.answer(&sent, Err(BatchRefusal::SequenceGap));
        scenario.pass(secs(2));
        scenario.attach_next(2);
    }
    let sent = scenario.next_sent();
    scenario.answer(&sent, Err(BatchRefusal::SequenceGap));
    let refusal = BatchRefusal::SequenceGap;
    let expected = BatchOutcome::Failed(EnqueueError::BatchRefused { publisher: a.id, refusal });
    assert_eq!(scenario.next_end().end, expected);
}

#[test]
fn a_publisher_that_forgot_the_producer_leaves_batches_unknown() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let sent = scenario.next_sent();
    scenario.lose_link(a.id, sent.link);
    scenario.attach_next(sent.sequence + 1);
    let sent = scenario.next_sent();
    scenario.answer(&sent, Err(BatchRefusal::UnknownProducer));
    let end = scenario.next_end();
    assert!(matches!(end.end, BatchOutcome::Unknown { publisher, .. } if publisher == a.id));
    assert_eq!(end.jobs, [1]);
    scenario.push(2);
    scenario.pass(ms(100));
    scenario.attach_next(1);
    assert_eq!(scenario.next_sent().sequence, 1, "the numbers start again");
}

#[test]
fn a_publisher_that_lost_state_leaves_batches_unknown() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let sent = scenario.next_sent();
    scenario.lose_link(a.id, sent.link);
    scenario.attach_next(1);
    let end = scenario.next_end();
    assert!(matches!(end.end, BatchOutcome::Unknown { publisher, .. } if publisher == a.id));
    assert!(
        scenario.sent.is_empty(),
        "it is not sent again under a new number: it might run twice"
    );
    scenario.push(2);
    assert_eq!(scenario.next_sent().sequence, 1);
}

#[test]
fn a_long_absence_continues_with_the_publishers_number() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    let link = LinkNumber(0);
    scenario.lose_link(a.id, link);
    scenario.pass(secs(4_000));
    scenario.request_route();
    while !scenario.resolve_requests.is_empty() {
        scenario.resolve(std::slice::from_ref(&a));
    }
    scenario.dials.clear();
    scenario.push(1);
    if let Some(dials) = scenario.dials.pop_front() {
        scenario.attach(a.id, dials.link, 1);
    }
    assert_eq!(scenario.next_sent().sequence, 1);
    assert!(scenario.ended.is_empty());
}

#[test]
fn an_answer_with_a_wrong_count_is_rejected() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let sent = scenario.next_sent();
    scenario.answer(&sent, Ok(Runs::all(EnqueueOutcome::Created, 2)));
    assert!(matches!(scenario.next_end().end, BatchOutcome::Unknown { .. }));
    assert_eq!(scenario.closed.len(), 1);
}

#[test]
fn a_resent_batch_has_the_same_bytes() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(a.id, first.link);
    scenario.attach_next(first.sequence);
    let again = scenario.next_sent();
    let bytes = |sent: &SentBatch| sent.batch.to_batch(sent.sequence).expect("a batch");
    assert_eq!(bytes(&first), bytes(&again));
}
