//! Timeouts report correctly whether a publisher may have the jobs.

use super::*;

#[test]
fn an_unanswered_batch_is_unknown_exactly_at_its_deadline() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.pass(ms(500));
    let pushed_at = scenario.now;
    scenario.push(1);
    let sent = scenario.next_sent();
    let bytes = u32::try_from(weight(&job(1))).expect("small");
    let deadline = pushed_at + secs(30) + ANSWER_TIME_PER_BYTE * bytes;
    scenario.until(deadline - Duration::from_nanos(1));
    assert!(scenario.ended.is_empty());
    scenario.until(deadline);
    let end = scenario.next_end();
    assert_eq!((end.at, &end.jobs), (deadline, &vec![1]));
    let BatchOutcome::Unknown { publisher, why } = end.end else { panic!("{:?}", end.end) };
    assert_eq!(publisher, a.id);
    assert!(why.contains("its link is up"), "{why}");
    scenario.answer_all(&sent);
    assert!(scenario.ended.is_empty(), "a late answer changes nothing");
}

#[test]
fn a_large_batch_has_more_time_than_a_small_one() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(
        StreamLimits { in_flight_bytes_max: 64 << 20, batch_bytes_max: 16 << 20, ..single() },
        std::slice::from_ref(&a),
    );
    let began = scenario.now;
    let large: &'static [u8] = Box::leak(vec![0; 10_000_000].into_boxed_slice());
    scenario.try_push(&job_of(1, large)).expect("taken");
    scenario.until(began + secs(39));
    assert!(scenario.ended.is_empty(), "ten megabytes add ten seconds");
    scenario.until(began + secs(41));
    assert_eq!(scenario.ended.len(), 1);
}

#[test]
fn an_unknown_batch_reports_that_the_link_is_down() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let sent = scenario.next_sent();
    scenario.lose_link(a.id, sent.link);
    scenario.pass(secs(31));
    let BatchOutcome::Unknown { publisher, why } = scenario.next_end().end else {
        panic!("unknown")
    };
    assert_eq!(publisher, a.id);
    assert!(why.contains("gone"), "{why}");
}

#[test]
fn unsent_jobs_report_the_error_of_each_publisher() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::new(single());
    scenario.request_route();
    scenario.resolve(&[a, b]);
    scenario.push(1);
    for _ in 0..400 {
        while let Some(dials) = scenario.dials.pop_front() {
            scenario.core.link_lost(
                scenario.now,
                dials.publisher,
                dials.link,
                "connection refused",
            );
            scenario.drain();
        }
        scenario.pass(ms(100));
    }
    let BatchOutcome::Failed(EnqueueError::NotSent { waited, why }) = scenario.next_end().end
    else {
        panic!("not sent")
    };
    assert!(waited >= secs(30) && waited < secs(31), "{waited:?}");
    assert!(
        why.contains("p1: connection refused") && why.contains("p2: connection refused"),
        "{why}"
    );
}

#[test]
fn a_timed_out_batch_leaves_no_sequence_gap() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    scenario.push(1);
    let first = scenario.next_sent();
    scenario.lose_link(a.id, first.link);
    scenario.pass(secs(29));
    scenario.push(2);
    scenario.pass(secs(2));
    assert_eq!(scenario.next_end().jobs, [1]);
    scenario.dials.drain(..scenario.dials.len() - 1);
    scenario.attach_next(first.sequence);
    let second = scenario.next_sent();
    assert_eq!(second.sequence, first.sequence, "the publisher waits for that number");
    scenario.answer_all(&second);
    assert_eq!(scenario.next_end().jobs, [2]);
}

#[test]
fn jobs_of_a_partial_batch_time_out_together() {
    let a = publisher(1);
    let mut scenario = Scenario::new(StreamLimits { batch_jobs_max: 10, ..single() });
    scenario.request_route();
    scenario.resolve(std::slice::from_ref(&a));
    scenario.push(1);
    scenario.push(2);
    scenario.until(secs(30));
    assert!(scenario.ended.is_empty());
    scenario.until(secs(30) + ms(1));
    let end = scenario.next_end();
    assert_eq!(end.jobs, [1, 2]);
    assert!(matches!(end.end, BatchOutcome::Failed(EnqueueError::NotSent { .. })));
}
