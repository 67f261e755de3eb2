//! A refused path does not affect the others.

use super::replica::{ReplicaKind, with};
use super::*;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn a_path_refused_just_before_a_comparison_makes_no_difference() {
    let mut scenario = Scenario::published(3);
    scenario.pass(CONFIRM_QUIET);
    scenario.pass(HALF_TTL - CONFIRM_QUIET - INSTANT);
    scenario.sent.clear();
    scenario.now += INSTANT;
    scenario.set_desired([key("/")], true);
    assert_eq!(scenario.sent, [Sent::Write(1), Sent::Announce], "behind the requests in flight");
    scenario.settle();
    // Refused keys are sent again, and nothing else is written.
    assert_eq!(scenario.sent, [Sent::Write(1), Sent::Announce, Sent::Write(1)]);
    assert_eq!((scenario.core.refused(), scenario.core.pending()), (1, 0));
}

#[test]
fn a_refused_path_is_sent_again_with_the_heartbeat_without_affecting_others() {
    let mut scenario = Scenario::published(10);
    scenario.pass(CONFIRM_QUIET);
    scenario.set_desired([key("/")], true);
    scenario.settle();
    assert_eq!((scenario.core.refused(), scenario.core.pending()), (1, 0));
    assert!(scenario.core.is_up_to_date());
    scenario.sent.clear();
    scenario.pass(3 * HALF_TTL);
    assert_eq!(scenario.sent, [Sent::Announce, Sent::Write(1)].repeat(3));
    scenario.set_desired([key("/")], false);
    scenario.settle();
    assert_eq!(scenario.core.refused(), 0);
    assert!(scenario.is_in_sync());
}

#[test]
fn a_forbidden_publisher_tries_again_with_the_heartbeat_only() {
    let mut scenario = Scenario::new(7);
    scenario.forbids = true;
    scenario.set_desired(keys(10), true);
    scenario.pass(4 * HALF_TTL);
    assert_eq!(scenario.failures, [(true, HALF_TTL); 5]);
    assert_eq!(scenario.sent, [Sent::Announce; 5]);
    assert_eq!(scenario.core.last_error(), Some("Forbidden"));
    // The policy changes.
    scenario.forbids = false;
    scenario.pass(HALF_TTL);
    assert!(scenario.is_in_sync() && !scenario.is_degraded());
}

/// Refuses one path of a thousand, and all of one bucket.
fn refuses(hash: KeyHash) -> bool {
    hash.bits().is_multiple_of(1_000) || hash.bucket(16) == 3
}

#[test]
fn refused_keys_are_excluded_from_every_bucket() {
    for buckets in [1, 4, 16_384] {
        with(ReplicaKind::Model(buckets), || {
            let mut scenario = Scenario::new(7);
            scenario.replica.as_mut().unwrap().refuse(refuses);
            scenario.set_desired(keys(20_000), true);
            scenario.pass(CONFIRM_QUIET);
            let refused = keys(20_000).iter().filter(|key| refuses(key.hash())).count();
            assert_eq!((scenario.core.refused(), scenario.core.pending()), (refused, 0));
            assert!(scenario.core.is_up_to_date());

            scenario.sent.clear();
            scenario.pass(HALF_TTL);
            assert_eq!(scenario.count(Sent::Announce), 1, "the digests agree: {:?}", scenario.sent);
            assert_eq!(scenario.written(), refused, "refused keys are sent again");
            assert_eq!(scenario.count(Sent::Confirm), 0);

            scenario.lose_link();
            scenario.sent.clear();
            scenario.pass(Duration::from_secs(12));
            assert_eq!(scenario.count(Sent::Announce), 1, "after a lost link, too");
            assert_eq!(scenario.written(), refused);

            // Something else differs, and some refused keys are no longer desired.
            let fewer = keys(10_000).into_iter().filter(|key| refuses(key.hash()));
            scenario.lose_link();
            scenario.set_desired(fewer, false);
            scenario.set_desired([key("/new")], true);
            scenario.replica.as_mut().unwrap().refuse(|_| false);
            scenario.pass(Duration::from_secs(12) + HALF_TTL);
            assert_eq!((scenario.core.refused(), scenario.core.pending()), (0, 0));
            assert!(scenario.is_in_sync());
        });
    }
}

#[test]
fn refused_keys_that_are_no_longer_desired_cost_nothing_later() {
    with(ReplicaKind::Model(16_384), || {
        let mut scenario = Scenario::new(7);
        scenario.replica.as_mut().unwrap().refuse(refuses);
        scenario.set_desired(keys(20_000), true);
        scenario.pass(CONFIRM_QUIET);
        scenario.lose_link();
        scenario.set_desired(keys(20_000).into_iter().filter(|key| refuses(key.hash())), false);
        scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
        scenario.sent.clear();
        scenario.pass(3 * HALF_TTL);
        assert_eq!(scenario.sent, [Sent::Announce; 3]);
        assert!(scenario.is_in_sync());
    });
}
