//! Timeouts of answers.

use super::*;

#[test]
fn an_answer_may_take_15_s_or_50_us_for_each_read() {
    for (paths, allowed) in [
        (1, Duration::from_secs(15)),
        (1_000, Duration::from_secs(15)),
        (300_001, Duration::from_nanos(15_000_050_000)),
        (1_000_000, Duration::from_secs(50)),
    ] {
        let mut scenario = Scenario::new(1, 7);
        scenario.ask(1, paths);
        scenario.linked();
        assert_eq!(scenario.wait(), allowed, "{paths} paths");
        assert!(scenario.closed);
    }
}

#[test]
fn list_matching_may_take_longer() {
    let mut scenario = Scenario::new(1, 7);
    let globs = vec![Glob::new("/**").unwrap()].into();
    scenario.step(Event::Ask { batch: 1, question: Question::ListMatching(globs) });
    scenario.linked();
    assert_eq!(scenario.wait(), Duration::from_secs(30));
}

#[test]
fn the_timeout_is_for_the_next_answer_not_for_the_batch() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 100);
    scenario.linked();
    let (id, _) = scenario.requests[0];
    // One path every 14.9 s: 25 minutes in all, and never a hang.
    for n in 1..=100 {
        scenario.now += Duration::from_millis(14_900);
        scenario.step(Event::Tick);
        scenario.received(resolved(id, n == 100, true, vec![FOUND]));
        assert!(!scenario.closed);
    }
    assert_eq!(scenario.complete(), (true, vec![found(false); 100]));
    assert_eq!(scenario.dialled, [0]);
}

#[test]
fn a_stream_of_new_batches_does_not_hide_a_hanging_replica() {
    let mut scenario = Scenario::new(1, 7);
    let begun = scenario.now;
    scenario.ask(1, 1);
    scenario.linked();
    for batch in 2..5 {
        scenario.now += Duration::from_secs(4);
        scenario.ask(batch, 1);
    }
    assert_eq!(scenario.core.next_deadline(), Some(begun + Duration::from_secs(15)));
}

#[test]
fn a_small_batch_does_not_get_the_timeout_of_a_huge_one_behind_it() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 1);
    scenario.linked();
    scenario.ask(2, 1_000_000);
    assert_eq!(scenario.core.next_deadline(), Some(scenario.now + Duration::from_secs(15)));
    scenario.answer(true, FOUND);
    assert_eq!(scenario.core.next_deadline(), Some(scenario.now + Duration::from_secs(50)));
}
