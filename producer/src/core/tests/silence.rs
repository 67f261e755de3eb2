//! Attached publishers that answer nothing, beside others that answer.

use super::*;

/// Pushes a job each millisecond for `time`. All publishers but `silent` answer at once. Returns
/// the number of answered jobs, and of jobs sent to the silent one.
fn flood(scenario: &mut Scenario, silent: PublisherId, time: Duration) -> (usize, usize) {
    let (mut answered, mut stuck) = (0, 0);
    let until = scenario.now + time;
    let mut n = 1;
    while scenario.now < until {
        n += u64::from(scenario.try_push(&job(n)).is_ok());
        while let Some(sent) = scenario.sent.pop_front() {
            if sent.publisher == silent {
                stuck += sent.jobs;
            } else {
                answered += sent.jobs;
                scenario.answer_all(&sent);
            }
        }
        scenario.pass(ms(1));
    }
    (answered, stuck)
}

#[test]
fn a_silent_publisher_leaves_others_their_share() {
    let (a, b) = (publisher(1), publisher(2));
    let limits = StreamLimits { in_flight_jobs_max: 20, ..single() };
    let mut scenario = Scenario::linked_to(limits, &[a.clone(), b]);
    let (answered, stuck) = flood(&mut scenario, a.id, secs(20));
    assert!(stuck <= 10, "{stuck} of 20 in flight at the silent one");
    assert!(answered > 19_000, "{answered} of about 20,000 jobs answered");
}

#[test]
fn seven_of_eight_publishers_may_be_silent() {
    let all: Vec<PublisherInfo> = (1..=8).map(publisher).collect();
    let limits = StreamLimits { in_flight_jobs_max: 80, ..single() };
    let mut scenario = Scenario::linked_to(limits, &all);
    let mut answered = 0;
    for n in 0..10_000 {
        let _ = scenario.try_push(&job(n));
        while let Some(sent) = scenario.sent.pop_front() {
            if sent.publisher == all[7].id {
                answered += sent.jobs;
                scenario.answer_all(&sent);
            }
        }
        scenario.pass(ms(1));
    }
    assert!(answered > 5_000, "{answered} jobs answered");
}

#[test]
fn a_silent_publisher_gets_only_probe_batches() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a.clone(), b]);
    let (_, first) = flood(&mut scenario, a.id, secs(2));
    assert!(first > 0);
    let (answered, later) = flood(&mut scenario, a.id, secs(100));
    assert!(later <= 4, "{later} jobs for the silent one, whose batches time out after 30 s");
    assert!(answered > 99_000, "{answered} of about 100,000 jobs answered");
}

#[test]
fn a_publisher_that_answers_again_regains_its_part() {
    let (a, b) = (publisher(1), publisher(2));
    let mut scenario = Scenario::linked_to(single(), &[a.clone(), b]);
    flood(&mut scenario, a.id, secs(40));
    let (_, stuck) = flood(&mut scenario, PublisherId([9; 16]), secs(60));
    assert_eq!(stuck, 0);
    let mut at_a = 0;
    for n in 0..2_000 {
        scenario.push(1_000_000 + n);
        let sent = scenario.next_sent();
        at_a += usize::from(sent.publisher == a.id);
        scenario.answer_all(&sent);
        scenario.pass(ms(50));
    }
    assert!((600..1_400).contains(&at_a), "{at_a} of 2000 at one of two");
}

#[test]
fn the_only_publisher_may_use_the_whole_limit() {
    let a = publisher(1);
    let limits = StreamLimits { in_flight_jobs_max: 20, ..single() };
    let mut scenario = Scenario::linked_to(limits, std::slice::from_ref(&a));
    let (_, stuck) = flood(&mut scenario, a.id, secs(5));
    assert_eq!(stuck, 20);
}

#[test]
fn a_stream_without_share_does_not_delay_others() {
    let a = publisher(1);
    let b = publisher(2);
    let limits = StreamLimits { in_flight_jobs_max: 4, ..single() };
    let mut scenario = Scenario::linked_to(limits, &[a, b]);
    // Each publisher has two jobs of the stream, and answers none.
    for n in 0..4 {
        scenario.push(n);
        scenario.pass(ms(300));
    }
    assert_eq!(scenario.sent.len(), 4);
    let other = scenario.core.open_stream(limits);
    scenario
        .core
        .push(scenario.now, other, 0, &job(100), false)
        .expect("the other stream has room");
    scenario.drain();
    assert_eq!(scenario.sent.len(), 5);
}
