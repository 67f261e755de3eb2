//! When time is up, the word is honest: unknown, or nowhere.

use super::*;

#[test]
fn a_batch_without_an_answer_is_unknown_at_its_publisher_exactly_when_its_time_is_up() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.pass(ms(500));
    let pushed_at = story.now;
    story.push(1);
    let sent = story.next_sent();
    let bytes = u32::try_from(weight(&job(1))).expect("small");
    let deadline = pushed_at + secs(30) + ANSWER_TIME_PER_BYTE * bytes;
    story.until(deadline - Duration::from_nanos(1));
    assert!(story.ended.is_empty());
    story.until(deadline);
    let end = story.next_end();
    assert_eq!((end.at, &end.jobs), (deadline, &vec![1]));
    let BatchEnd::Unknown { publisher, why } = end.end else { panic!("{:?}", end.end) };
    assert_eq!(publisher, a.id);
    assert!(why.contains("its link stands"), "{why}");
    story.answer_all(&sent);
    assert!(story.ended.is_empty(), "a late answer changes nothing");
}

#[test]
fn a_large_batch_has_more_time_than_a_small_one() {
    let a = publisher(1);
    let mut story = Story::linked_to(
        LaneRules { in_flight_bytes_max: 64 << 20, batch_bytes_max: 16 << 20, ..single() },
        std::slice::from_ref(&a),
    );
    let began = story.now;
    let large: &'static [u8] = Box::leak(vec![0; 10_000_000].into_boxed_slice());
    story.try_push(&job_of(1, large)).expect("taken");
    story.until(began + secs(39));
    assert!(story.ended.is_empty(), "ten megabytes are given ten more seconds");
    story.until(began + secs(41));
    assert_eq!(story.ended.len(), 1);
}

#[test]
fn a_batch_whose_publisher_stays_away_is_unknown_and_says_that_the_link_is_down() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let sent = story.next_sent();
    story.lose(a.id, sent.link);
    story.pass(secs(31));
    let BatchEnd::Unknown { publisher, why } = story.next_end().end else { panic!("unknown") };
    assert_eq!(publisher, a.id);
    assert!(why.contains("gone"), "{why}");
}

#[test]
fn jobs_that_no_publisher_could_be_reached_for_are_nowhere_and_the_error_names_each_publisher() {
    let (a, b) = (publisher(1), publisher(2));
    let mut story = Story::new(single());
    story.ask();
    story.resolve(&[a, b]);
    story.push(1);
    for _ in 0..400 {
        while let Some(dialled) = story.dialled.pop_front() {
            story.core.link_lost(story.now, dialled.publisher, dialled.link, "connection refused");
            story.drain();
        }
        story.pass(ms(100));
    }
    let BatchEnd::Failed(EnqueueError::NotSent { waited, why }) = story.next_end().end else {
        panic!("not sent")
    };
    assert!(waited >= secs(30) && waited < secs(31), "{waited:?}");
    assert!(
        why.contains("p1: connection refused") && why.contains("p2: connection refused"),
        "{why}"
    );
}

#[test]
fn a_number_whose_batch_was_given_up_does_not_leave_a_gap() {
    let a = publisher(1);
    let mut story = Story::linked_to(single(), std::slice::from_ref(&a));
    story.push(1);
    let first = story.next_sent();
    story.lose(a.id, first.link);
    story.pass(secs(29));
    story.push(2);
    story.pass(secs(2));
    assert_eq!(story.next_end().jobs, [1]);
    story.dialled.drain(..story.dialled.len() - 1);
    story.attach_next(first.sequence);
    let second = story.next_sent();
    assert_eq!(second.sequence, first.sequence, "the publisher waits for that number");
    story.answer_all(&second);
    assert_eq!(story.next_end().jobs, [2]);
}

#[test]
fn jobs_in_a_batch_that_was_never_full_have_their_end_at_the_same_time() {
    let a = publisher(1);
    let mut story = Story::new(LaneRules { batch_jobs_max: 10, ..single() });
    story.ask();
    story.resolve(std::slice::from_ref(&a));
    story.push(1);
    story.push(2);
    story.until(secs(30));
    assert!(story.ended.is_empty());
    story.until(secs(30) + ms(1));
    let end = story.next_end();
    assert_eq!(end.jobs, [1, 2]);
    assert!(matches!(end.end, BatchEnd::Failed(EnqueueError::NotSent { .. })));
}
