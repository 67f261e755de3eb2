//! Registrations of an earlier start are removed, and nothing else is.

use super::replica::with_each;
use super::*;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn registrations_of_an_earlier_start_are_removed_during_steady_writes() {
    let mut before = Scenario::published(50);
    let mut after = Scenario::restarted(&mut before);
    after.set_desired(keys(49), true);
    after.settle();
    let begun = after.now;
    for n in 0.. {
        if after.now > begun + HALF_TTL {
            break;
        }
        assert!(after.registered().count >= 49 + n, "desired paths stay");
        after.set_desired([key(&format!("/steady/{n}"))], true);
        after.pass(CONFIRM_QUIET - Duration::from_millis(1));
    }
    after.set_desired([key("/last")], true);
    after.settle();
    assert!(after.is_in_sync());
}

#[test]
fn a_link_lost_before_its_confirm_removes_nothing() {
    let mut scenario = Scenario::published(3);
    assert!(scenario.sent.is_empty(), "it has written everything, and confirmed nothing");
    scenario.lose_link();
    scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(scenario.is_in_sync(), "a lost link makes nothing stale");
    assert_eq!(scenario.sent, [Sent::Announce], "equal digests: there is nothing to confirm");
    assert!(scenario.core.is_up_to_date());
}

#[test]
fn a_restart_with_the_same_paths_never_removes_any_of_them() {
    let mut before = Scenario::published(50);
    before.pass(Duration::from_secs(5));
    // The same data directory, a higher epoch; the paths come one by one, with pauses.
    let mut after = Scenario::restarted(&mut before);
    after.settle();
    for key in keys(50) {
        assert!(after.registered().count >= 50, "a path is gone");
        after.set_desired([key], true);
        after.settle();
        after.pass(Duration::from_millis(100));
    }
    // Desired neither before nor now.
    after.pass(HALF_TTL);
    assert!(after.is_in_sync());
}

#[test]
fn a_restart_without_a_path_removes_it_once_the_state_is_stable() {
    let mut before = Scenario::published(50);
    let mut after = Scenario::restarted(&mut before);
    after.set_desired(keys(49), true);
    after.pass(CONFIRM_QUIET - INSTANT);
    assert_eq!(after.registered().count, 50);
    after.pass(INSTANT);
    assert_eq!(after.registered().count, 49);
    assert!(after.is_in_sync());
}

/// A path of the earlier start for each of the later one, so that many buckets have the right
/// number of keys.
#[test]
fn stale_paths_are_removed_from_buckets_with_the_right_count() {
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
        before.set_desired(gone.into_iter().chain(paths(40, 2_000)), true);
        before.pass(CONFIRM_QUIET);
        assert!(before.is_in_sync());

        let mut after = Scenario::restarted(&mut before);
        after.set_desired(come.into_iter().chain(paths(40, 2_000)), true);
        after.settle();
        assert_eq!(after.registered().count, 2_040, "none is removed before the confirm");
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.registered().count, 2_000);
        assert!(after.is_in_sync());
        // In equal buckets nothing was written or removed.
        assert_eq!(after.count(Sent::Confirm), 1);
    });
}

#[test]
fn a_restart_during_a_rewriting_removes_no_desired_path() {
    with_each(|| {
        let mut before = Scenario::published(2_000);
        let mut after = Scenario::restarted(&mut before);
        // The first half exists before the link, the others come during comparison and rewriting.
        after.set_desired(keys(1_000), true);
        let mut rest = keys(2_000).into_iter().skip(1);
        loop {
            assert!(after.registered().count >= 2_000);
            let some: Vec<Key> = rest.by_ref().take(97).collect();
            if some.is_empty() {
                break;
            }
            after.set_desired(some, true);
            if let Some(message) = after.inbox.pop_front() {
                after.step(Event::Received(message));
            }
        }
        after.settle();
        after.pass(2 * CONFIRM_QUIET);
        assert!(after.is_in_sync() && after.core.is_up_to_date());
    });
}

#[test]
fn a_confirm_waits_for_all_pending_writes() {
    with_each(|| {
        // More than fit in flight: eight requests of 1,024 paths.
        let mut before = Scenario::published(12_000);
        before.lose(&key("/jobs/7"));
        let mut after = Scenario::restarted(&mut before);
        // Each on other terms.
        after.set_desired_on(keys(12_000), Some(&terms(1)));
        let mut rounds = 0;
        while !after.is_in_sync() {
            let message = after.inbox.pop_front().expect("no message is queued");
            // Heartbeats are due meanwhile.
            after.now += 3 * CONFIRM_QUIET;
            after.step(Event::Received(message));
            // It may be in flight behind the last of them: a replica handles requests in order.
            assert!(
                after.count(Sent::Confirm) == 0 || after.written() == 12_000,
                "{:?}",
                after.sent
            );
            rounds += 1;
        }
        assert!(rounds >= 2);
        assert!(after.registered().count >= 12_000);
        after.settle();
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.count(Sent::Confirm), 1);
        assert!(after.is_in_sync());
    });
}
