//! What an earlier start held goes, and nothing else does.

use super::replica::with_each;
use super::*;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn what_an_earlier_start_held_goes_within_half_a_writer_ttl_though_writes_go_on() {
    let mut before = Scenario::published(50);
    let mut after = Scenario::restarted(&mut before);
    after.want(keys(49), true);
    after.settle();
    let begun = after.now;
    for n in 0.. {
        if after.now > begun + HALF_TTL {
            break;
        }
        assert!(after.held().count >= 49 + n, "what is wanted stays");
        after.want([key(&format!("/steady/{n}"))], true);
        after.pass(CONFIRM_QUIET - Duration::from_millis(1));
    }
    after.want([key("/last")], true);
    after.settle();
    assert!(after.holds_all());
}

#[test]
fn a_link_lost_before_its_confirm_removes_nothing() {
    let mut scenario = Scenario::published(3);
    assert!(scenario.sent.is_empty(), "it has written everything, and confirmed nothing");
    scenario.cut();
    scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(scenario.holds_all(), "what the replica held is not stale because a link was");
    assert_eq!(scenario.sent, [Sent::Announce], "equal digests: there is nothing to confirm");
    assert!(scenario.core.is_whole());
}

#[test]
fn a_restart_with_the_same_paths_removes_none_of_them_for_a_moment() {
    let mut before = Scenario::published(50);
    before.pass(Duration::from_secs(5));
    // The same data directory, a higher epoch; the paths come one by one, with some time between
    // them.
    let mut after = Scenario::restarted(&mut before);
    after.settle();
    for key in keys(50) {
        assert!(after.held().count >= 50, "a path is gone");
        after.want([key], true);
        after.settle();
        after.pass(Duration::from_millis(100));
    }
    // Not wanted before, nor now.
    after.pass(HALF_TTL);
    assert!(after.holds_all());
}

#[test]
fn a_restart_without_a_path_has_it_removed_once_the_wanted_set_is_still() {
    let mut before = Scenario::published(50);
    let mut after = Scenario::restarted(&mut before);
    after.want(keys(49), true);
    after.pass(CONFIRM_QUIET - INSTANT);
    assert_eq!(after.held().count, 50);
    after.pass(INSTANT);
    assert_eq!(after.held().count, 49);
    assert!(after.holds_all());
}

/// A path of the earlier start for each of the later one: as many in every bucket, where they fall
/// so.
#[test]
fn what_an_earlier_start_held_goes_from_buckets_that_hold_as_many_as_they_should() {
    with_each(|| {
        let paths = |from, to| (from..to).map(|n| key(&format!("/jobs/{n}")));
        let bucket = |key: &Key| key.hash().bucket(4);
        let gone: Vec<Key> = paths(0, 40).collect();
        let mut spare: Vec<Key> = paths(2_000, 3_000).collect();
        let come: Vec<Key> = gone
            .iter()
            .map(|gone| {
                let at = spare.iter().position(|spare| bucket(spare) == bucket(gone)).unwrap();
                spare.swap_remove(at)
            })
            .collect();
        let mut before = Scenario::new(7);
        before.want(gone.into_iter().chain(paths(40, 2_000)), true);
        before.pass(CONFIRM_QUIET);
        assert!(before.holds_all());

        let mut after = Scenario::restarted(&mut before);
        after.want(come.into_iter().chain(paths(40, 2_000)), true);
        after.settle();
        assert_eq!(after.held().count, 2_040, "none goes before it is confirmed");
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.held().count, 2_000);
        assert!(after.holds_all());
        // Of a bucket that was equal nothing was written, nor removed.
        assert_eq!(after.count(Sent::Confirm), 1);
    });
}

#[test]
fn a_restart_in_the_middle_of_a_rewriting_removes_none_that_is_wanted() {
    with_each(|| {
        let mut before = Scenario::published(2_000);
        let mut after = Scenario::restarted(&mut before);
        // The first half is there before the link, the others come while it is compared and
        // written.
        after.want(keys(1_000), true);
        let mut rest = keys(2_000).into_iter().skip(1);
        loop {
            assert!(after.held().count >= 2_000);
            let some: Vec<Key> = rest.by_ref().take(97).collect();
            if some.is_empty() {
                break;
            }
            after.want(some, true);
            if let Some(message) = after.inbox.pop_front() {
                after.step(Input::Told(message));
            }
        }
        after.settle();
        after.pass(2 * CONFIRM_QUIET);
        assert!(after.holds_all() && after.core.is_whole());
    });
}

#[test]
fn a_confirm_waits_for_all_that_is_to_be_written() {
    with_each(|| {
        let mut before = Scenario::published(60_000);
        before.lose(&key("/jobs/7"));
        let mut after = Scenario::restarted(&mut before);
        // Each on other terms.
        after.want_on(keys(60_000), Some(&terms(1)));
        let mut rounds = 0;
        while !after.holds_all() {
            let message = after.inbox.pop_front().expect("it waits for nothing");
            // Heartbeats are due meanwhile.
            after.now += 3 * CONFIRM_QUIET;
            after.step(Input::Told(message));
            // It may be on its way behind the last of them: a replica does things in their order.
            assert!(
                after.count(Sent::Confirm) == 0 || after.written() == 60_000,
                "{:?}",
                after.sent
            );
            rounds += 1;
        }
        assert!(rounds >= 2);
        assert!(after.held().count >= 60_000);
        after.settle();
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.count(Sent::Confirm), 1);
        assert!(after.holds_all());
    });
}
