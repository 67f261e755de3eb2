//! Which replica is tried when, and when a batch has failed.

use super::*;

#[test]
fn the_list_of_all_servers_is_permuted() {
    let mut orders = BTreeSet::new();
    for seed in 0..200 {
        let mut story = Story::new(3, seed);
        story.ask(1, 1);
        for _ in 0..3 {
            story.unlinked("refused");
        }
        orders.insert(story.dialled);
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn a_server_that_does_not_say_a_proper_hello_is_passed_over_at_once() {
    let mut story = Story::new(3, 7);
    let begun = story.now;
    story.ask(1, 1);
    story.unlinked("TLS failed");
    story.unlinked("busy");
    story.linked();
    assert_eq!(story.dialled.iter().collect::<BTreeSet<_>>().len(), 3);
    story.answer(true, FOUND);
    assert_eq!(story.complete().1, [found(false)]);
    assert_eq!(story.now, begun);
}

#[test]
fn after_a_crash_it_waits_a_random_time_between_1_and_12_s_and_connects_again() {
    let mut waits = Vec::new();
    for seed in 0..500 {
        let mut story = Story::new(3, seed);
        story.ask(1, 1);
        story.linked();
        let crashed = story.replica();
        story.unlinked("the other side closed the link");
        waits.push(story.wait());
        assert_ne!(story.replica(), crashed, "another one comes first");
        story.linked();
        story.answer(true, FOUND);
        assert_eq!(story.complete().1, [found(false)]);
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
    let mut story = Story::new(2, 7);
    story.ask(1, 1);
    story.linked();
    let hung = story.replica();
    story.wait();
    assert!(std::mem::take(&mut story.hung_up));
    story.wait();
    assert_ne!(story.replica(), hung);
    story.linked();
    story.answer(true, FOUND);
    assert_eq!(story.complete().1, [found(false)]);
}

#[test]
fn every_server_is_tried_3_times_then_the_batch_fails_naming_each_and_why() {
    for seed in 0..50 {
        let mut story = Story::new(3, seed);
        story.ask(1, 1);
        for round in 0..3 {
            if round > 0 {
                let wait = story.wait();
                assert!((1.0..=12.0).contains(&wait.as_secs_f64()));
            }
            for _ in 0..3 {
                assert!(story.finished.is_empty());
                let why = format!("refused by {}", story.replica());
                story.unlinked(&why);
            }
        }
        for replica in 0..3 {
            assert_eq!(story.dialled.iter().filter(|&&r| r == replica).count(), 3);
        }
        let Err(error) = story.only_answer() else { panic!("it was answered") };
        assert_eq!(
            error.to_string(),
            "no resolver replica answered: replica-0:4800: refused by 0; \
             replica-1:4800: refused by 1; replica-2:4800: refused by 2"
        );
        assert_eq!(story.core.next_deadline(), None);
    }
}

#[test]
fn a_server_that_hangs_on_every_answer_costs_three_rounds() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    for round in 1..=3 {
        story.linked();
        assert_eq!(story.wait(), Duration::from_secs(15));
        assert!(std::mem::take(&mut story.hung_up));
        if round < 3 {
            story.wait();
        }
    }
    let Err(error) = story.only_answer() else { panic!("it was answered") };
    assert_eq!(
        error.to_string(),
        "no resolver replica answered: replica-0:4800: no answer for 15s"
    );
}

#[test]
fn it_gives_up_on_a_batch_only_if_every_server_is_down_or_unable_to_answer() {
    // Four of five accept and never answer: more than there are rounds.
    for seed in 0..100 {
        let mut story = Story::new(5, seed);
        story.ask(1, 1);
        while story.finished.is_empty() {
            story.linked();
            if story.replica() == 3 {
                story.answer(true, FOUND);
            } else {
                story.unlinked("it crashed");
                story.wait();
            }
        }
        assert_eq!(story.complete().1, [found(false)]);
    }
}

#[test]
fn after_a_batch_has_failed_the_next_one_starts_afresh() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    for round in 0..3 {
        if round > 0 {
            story.wait();
        }
        story.unlinked("refused");
    }
    assert!(story.only_answer().is_err());
    story.ask(2, 1);
    // At once, and with all three rounds.
    assert_eq!(story.dialled.len(), 4);
    story.unlinked("refused");
    story.wait();
    story.unlinked("refused");
    story.wait();
    story.linked();
    story.answer(true, FOUND);
    assert_eq!(story.complete().1, [found(false)]);
}

#[test]
fn a_batch_that_joins_in_the_middle_of_a_round_has_three_whole_ones_of_its_own() {
    let mut story = Story::new(2, 7);
    story.ask(1, 1);
    story.unlinked("refused");
    story.ask(2, 1);
    story.unlinked("refused");
    for round in 2..=4 {
        story.wait();
        story.unlinked("refused");
        story.unlinked("refused");
        let ended: Vec<u64> = story.finished.iter().map(|(batch, _)| *batch).collect();
        let expected: &[u64] = match round {
            2 => &[],
            3 => &[1],
            _ => &[1, 2],
        };
        assert_eq!(ended, expected, "after {round} rounds");
    }
}

/// The wait is the client's, before it connects again: who asks meanwhile shares it, and has all three rounds after it.
#[test]
fn a_batch_that_comes_while_the_client_waits_has_three_rounds_after_that() {
    let mut story = Story::new(1, 7);
    story.ask(1, 1);
    story.unlinked("refused");
    let until = story.core.next_deadline();
    story.ask(2, 1);
    assert_eq!((story.core.next_deadline(), story.dialled.len()), (until, 1));
    for round in 2..=4 {
        story.wait();
        assert_eq!(story.dialled.len(), round);
        story.unlinked("refused");
    }
    let ended: Vec<u64> = story.finished.iter().map(|(batch, _)| *batch).collect();
    assert_eq!(ended, [1, 2]);
}
