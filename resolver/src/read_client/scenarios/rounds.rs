//! Which replica is tried when, and when a batch fails.

use super::*;

#[test]
fn replicas_are_tried_in_random_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..200 {
        let mut scenario = Scenario::new(3, seed);
        scenario.ask(1, 1);
        for _ in 0..3 {
            scenario.unlinked("refused");
        }
        orders.insert(scenario.dialled);
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn a_replica_without_a_proper_handshake_is_skipped_at_once() {
    let mut scenario = Scenario::new(3, 7);
    let begun = scenario.now;
    scenario.ask(1, 1);
    scenario.unlinked("TLS failed");
    scenario.unlinked("busy");
    scenario.linked();
    assert_eq!(scenario.dialled.iter().collect::<BTreeSet<_>>().len(), 3);
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1, [found(false)]);
    assert_eq!(scenario.now, begun);
}

#[test]
fn after_a_crash_the_client_reconnects_after_1_to_12_s() {
    let mut waits = Vec::new();
    for seed in 0..500 {
        let mut scenario = Scenario::new(3, seed);
        scenario.ask(1, 1);
        scenario.linked();
        let crashed = scenario.replica();
        scenario.unlinked("the other side closed the link");
        waits.push(scenario.wait());
        assert_ne!(scenario.replica(), crashed, "another one comes first");
        scenario.linked();
        scenario.answer(true, FOUND);
        assert_eq!(scenario.complete().1, [found(false)]);
    }
    waits.sort();
    let (shortest, longest) = (waits[0], waits[waits.len() - 1]);
    let s = Duration::from_secs_f64;
    assert!(s(1.0) <= shortest && shortest < s(1.2), "{shortest:?}");
    assert!(s(11.8) < longest && longest <= s(12.0), "{longest:?}");
    let middle = waits[waits.len() / 2];
    assert!(s(5.5) < middle && middle < s(7.5), "{middle:?}");
}

#[test]
fn a_hang_becomes_a_crash() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 1);
    scenario.linked();
    let hung = scenario.replica();
    scenario.wait();
    assert!(std::mem::take(&mut scenario.closed));
    scenario.wait();
    assert_ne!(scenario.replica(), hung);
    scenario.linked();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1, [found(false)]);
}

#[test]
fn a_batch_fails_after_three_rounds_with_each_replica_and_its_reason() {
    for seed in 0..50 {
        let mut scenario = Scenario::new(3, seed);
        scenario.ask(1, 1);
        for round in 0..3 {
            if round > 0 {
                let wait = scenario.wait();
                assert!((1.0..=12.0).contains(&wait.as_secs_f64()));
            }
            for _ in 0..3 {
                assert!(scenario.finished.is_empty());
                let why = format!("refused by {}", scenario.replica());
                scenario.unlinked(&why);
            }
        }
        for replica in 0..3 {
            assert_eq!(scenario.dialled.iter().filter(|&&r| r == replica).count(), 3);
        }
        let Err(error) = scenario.only_answer() else { panic!("it was answered") };
        assert_eq!(
            error.to_string(),
            "no resolver replica answered: replica-0:4800: refused by 0; \
             replica-1:4800: refused by 1; replica-2:4800: refused by 2"
        );
        assert_eq!(scenario.core.next_deadline(), None);
    }
}

#[test]
fn a_replica_that_hangs_on_every_answer_costs_three_rounds() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    for round in 1..=3 {
        scenario.linked();
        assert_eq!(scenario.wait(), Duration::from_secs(15));
        assert!(std::mem::take(&mut scenario.closed));
        if round < 3 {
            scenario.wait();
        }
    }
    let Err(error) = scenario.only_answer() else { panic!("it was answered") };
    assert_eq!(
        error.to_string(),
        "no resolver replica answered: replica-0:4800: no answer for 15s"
    );
}

#[test]
fn a_batch_fails_only_if_every_replica_fails() {
    // Four of five accept and never answer: more than there are rounds.
    for seed in 0..100 {
        let mut scenario = Scenario::new(5, seed);
        scenario.ask(1, 1);
        while scenario.finished.is_empty() {
            scenario.linked();
            if scenario.replica() == 3 {
                scenario.answer(true, FOUND);
            } else {
                scenario.unlinked("it crashed");
                scenario.wait();
            }
        }
        assert_eq!(scenario.complete().1, [found(false)]);
    }
}

#[test]
fn after_a_failed_batch_the_next_one_starts_afresh() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    for round in 0..3 {
        if round > 0 {
            scenario.wait();
        }
        scenario.unlinked("refused");
    }
    assert!(scenario.only_answer().is_err());
    scenario.ask(2, 1);
    // At once, and with all three rounds.
    assert_eq!(scenario.dialled.len(), 4);
    scenario.unlinked("refused");
    scenario.wait();
    scenario.unlinked("refused");
    scenario.wait();
    scenario.linked();
    scenario.answer(true, FOUND);
    assert_eq!(scenario.complete().1, [found(false)]);
}

#[test]
fn a_batch_that_joins_during_a_round_gets_three_whole_ones() {
    let mut scenario = Scenario::new(2, 7);
    scenario.ask(1, 1);
    scenario.unlinked("refused");
    scenario.ask(2, 1);
    scenario.unlinked("refused");
    for round in 2..=4 {
        scenario.wait();
        scenario.unlinked("refused");
        scenario.unlinked("refused");
        let ended: Vec<u64> = scenario.finished.iter().map(|(batch, _)| *batch).collect();
        let expected: &[u64] = match round {
            2 => &[],
            3 => &[1],
            _ => &[1, 2],
        };
        assert_eq!(ended, expected, "after {round} rounds");
    }
}

/// The client as a whole waits before it connects again: a batch that arrives meanwhile shares the
/// wait, and has all three rounds after it.
#[test]
fn a_batch_that_arrives_during_the_wait_gets_three_rounds_after_it() {
    let mut scenario = Scenario::new(1, 7);
    scenario.ask(1, 1);
    scenario.unlinked("refused");
    let until = scenario.core.next_deadline();
    scenario.ask(2, 1);
    assert_eq!((scenario.core.next_deadline(), scenario.dialled.len()), (until, 1));
    for round in 2..=4 {
        scenario.wait();
        assert_eq!(scenario.dialled.len(), round);
        scenario.unlinked("refused");
    }
    let ended: Vec<u64> = scenario.finished.iter().map(|(batch, _)| *batch).collect();
    assert_eq!(ended, [1, 2]);
}
