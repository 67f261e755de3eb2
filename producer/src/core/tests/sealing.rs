//! When batches are sealed, and the in-flight limits.

use super::*;
use longshore_protocol::limits::{HEADERS_BYTES_MAX, LEASE_MS_MIN, PAYLOAD_BYTES_MAX};

fn pipelined() -> StreamLimits {
    StreamLimits { batch_jobs_max: 10, eager_batches: 1, ..single() }
}

#[test]
fn jobs_behind_the_first_batch_collect_until_its_answer() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(pipelined(), std::slice::from_ref(&a));
    (1..=6).for_each(|n| scenario.push(n));
    let first = scenario.next_sent();
    assert_eq!((first.jobs, scenario.sent.len()), (1, 0));
    scenario.answer_all(&first);
    assert_eq!(scenario.next_sent().jobs, 5);
}

#[test]
fn a_full_batch_is_sent_without_waiting() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(pipelined(), std::slice::from_ref(&a));
    (1..=22).for_each(|n| scenario.push(n));
    let sizes: Vec<usize> = scenario.sent.iter().map(|sent| sent.jobs).collect();
    assert_eq!(sizes, [1, 10, 10]);
}

#[test]
fn bytes_fill_a_batch_and_large_jobs_go_alone() {
    let a = publisher(1);
    let limits = StreamLimits { batch_bytes_max: 1_000, ..pipelined() };
    let mut scenario = Scenario::linked_to(limits, std::slice::from_ref(&a));
    scenario.push(1);
    for n in 2..=5 {
        scenario.try_push(&job_of(n, &[0; 400])).expect("taken");
    }
    scenario.try_push(&job_of(6, &[0; 5_000])).expect("taken");
    let sizes: Vec<usize> = scenario.sent.iter().map(|sent| sent.jobs).collect();
    assert_eq!(sizes, [1, 2, 2, 1]);
}

#[test]
fn a_partial_batch_is_sent_exactly_after_its_linger() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(pipelined(), std::slice::from_ref(&a));
    scenario.push(1);
    scenario.next_sent();
    scenario.push(2);
    let opened = scenario.now;
    scenario.until(opened + ms(1) - Duration::from_nanos(1));
    assert!(scenario.sent.is_empty());
    scenario.until(opened + ms(1));
    assert_eq!(scenario.next_sent().jobs, 1);
}

#[test]
fn jobs_collect_in_large_batches_without_a_publisher() {
    let a = publisher(1);
    let mut scenario = Scenario::new(pipelined());
    scenario.request_route();
    scenario.resolve(std::slice::from_ref(&a));
    for n in 0..25 {
        scenario.push(n);
        scenario.pass(ms(10));
    }
    scenario.attach_next(1);
    scenario.pass(ms(1));
    let sizes: Vec<usize> = scenario.sent.iter().map(|sent| sent.jobs).collect();
    assert_eq!(sizes, [10, 10, 5]);
}

#[test]
fn a_stream_is_never_replaced_by_a_later_one() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    // One for each `enqueue_all`.
    scenario.core.next_stream = u32::MAX.into();
    let later = [(); 2].map(|()| scenario.core.open_stream(single()));
    later.into_iter().for_each(|stream| scenario.core.close_stream(scenario.now, stream));
    scenario.drain();
    scenario.push(1);
    assert_eq!(scenario.next_sent().jobs, 1);
}

#[test]
fn a_flush_sends_open_batches() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(pipelined(), std::slice::from_ref(&a));
    (1..=3).for_each(|n| scenario.push(n));
    scenario.core.flush_stream(scenario.now, scenario.stream);
    scenario.drain();
    assert_eq!(scenario.sent.iter().map(|sent| sent.jobs).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn unanswered_batches_per_publisher_are_bounded() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    (0..100).for_each(|n| scenario.push(n));
    assert_eq!(scenario.sent.len(), UNANSWERED_BATCHES_MAX);
    let first = scenario.next_sent();
    scenario.answer_all(&first);
    assert_eq!(scenario.sent.len(), UNANSWERED_BATCHES_MAX, "one answered, one more sent");
}

#[test]
fn in_flight_jobs_are_bounded() {
    let a = publisher(1);
    let limits = StreamLimits { in_flight_jobs_max: 5, ..single() };
    let mut scenario = Scenario::linked_to(limits, std::slice::from_ref(&a));
    (0..5).for_each(|n| scenario.push(n));
    assert!(matches!(scenario.try_push(&job(6)), Err(PushError::Full)));
    let first = scenario.next_sent();
    scenario.answer_all(&first);
    scenario.push(6);
    assert!(matches!(scenario.try_push(&job(7)), Err(PushError::Full)));
}

#[test]
fn in_flight_bytes_are_bounded_unless_the_stream_is_empty() {
    let a = publisher(1);
    let limits = StreamLimits { in_flight_bytes_max: 1_000, ..single() };
    let mut scenario = Scenario::linked_to(limits, std::slice::from_ref(&a));
    scenario.try_push(&job_of(1, &[0; 5_000])).expect("an empty stream accepts it");
    assert!(matches!(scenario.try_push(&job(2)), Err(PushError::Full)));
    let first = scenario.next_sent();
    scenario.answer_all(&first);
    scenario.push(2);
}

/// Callers that give up leave their batches here until these time out.
#[test]
fn atomic_batches_keep_to_the_limits_in_flight() {
    let a = publisher(1);
    let limits = StreamLimits { in_flight_jobs_max: 5, ..single() };
    let mut scenario = Scenario::linked_to(limits, std::slice::from_ref(&a));
    let jobs = |n: u64| -> Vec<NewJob> { (n..n + 4).map(job).collect() };
    assert!(scenario.core.push_atomic(scenario.now, scenario.stream, &jobs(0)).is_ok());
    scenario.drain();
    let full = scenario.core.push_atomic(scenario.now, scenario.stream, &jobs(10));
    assert!(matches!(full, Err(PushError::Full)));
    let first = scenario.next_sent();
    scenario.answer_all(&first);
    assert!(scenario.core.push_atomic(scenario.now, scenario.stream, &jobs(10)).is_ok());
}

#[test]
fn an_atomic_batch_must_fit_into_one_batch() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(pipelined(), std::slice::from_ref(&a));
    let jobs: Vec<NewJob> = (0..50).map(job).collect();
    assert!(scenario.core.push_atomic(scenario.now, scenario.stream, &jobs).is_ok());
    scenario.drain();
    let sent = scenario.next_sent();
    assert_eq!(sent.jobs, 50);
    assert!(sent.batch.to_batch(1).expect("a batch").atomic);
    let too_many: Vec<NewJob> = (0..10_001).map(job).collect();
    let refused = scenario.core.push_atomic(scenario.now, scenario.stream, &too_many);
    assert!(matches!(refused, Err(PushError::Never(EnqueueError::NotAtomic(_)))));
}

#[test]
fn a_job_over_a_limit_is_refused_locally() {
    let a = publisher(1);
    let mut scenario = Scenario::linked_to(single(), std::slice::from_ref(&a));
    let refused = |scenario: &mut Scenario, job: &NewJob| match scenario.try_push(job) {
        Err(PushError::Never(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let large = NewJob::new(path("/jobs"), JobId([1; 16]), vec![0; PAYLOAD_BYTES_MAX + 1]);
    let text = refused(&mut scenario, &large);
    assert!(text.contains("payload") && text.contains("16777216"), "{text}");
    let mut headers = job(1);
    headers.headers.0.push(("a".into(), "x".repeat(HEADERS_BYTES_MAX)));
    let text = refused(&mut scenario, &headers);
    assert!(text.contains("headers") && text.contains("8192"), "{text}");
    let mut lease = job(1);
    lease.options.lease_ms = Some(LEASE_MS_MIN - 1);
    let text = refused(&mut scenario, &lease);
    assert!(text.contains("BadOptions: lease_ms is"), "{text}");
    for (bad, code) in [("/", "BadPath"), ("/sys/x", "Reserved")] {
        let text = refused(&mut scenario, &NewJob { path: path(bad), ..job(1) });
        assert!(text.contains(code), "{text}");
    }
    assert!(scenario.sent.is_empty());
}
