//! A path that a replica refuses costs the others nothing.

use super::replica::{Kind, with};
use super::*;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn a_path_refused_just_before_digests_are_compared_makes_no_difference() {
    let mut scenario = Scenario::published(3);
    scenario.pass(CONFIRM_QUIET);
    scenario.pass(HALF_TTL - CONFIRM_QUIET - INSTANT);
    scenario.sent.clear();
    scenario.now += INSTANT;
    scenario.want([key("/")], true);
    assert_eq!(scenario.sent, [Sent::Write(1), Sent::Announce], "behind what is under way");
    scenario.settle();
    // What is refused is tried again, and nothing else is written.
    assert_eq!(scenario.sent, [Sent::Write(1), Sent::Announce, Sent::Write(1)]);
    assert_eq!((scenario.core.refused(), scenario.core.lacking()), (1, 0));
}

#[test]
fn a_path_that_is_refused_costs_the_others_nothing_and_is_tried_again_with_the_heartbeat() {
    let mut scenario = Scenario::published(10);
    scenario.pass(CONFIRM_QUIET);
    scenario.want([key("/")], true);
    scenario.settle();
    assert_eq!((scenario.core.refused(), scenario.core.lacking()), (1, 0));
    assert!(scenario.core.is_whole());
    scenario.sent.clear();
    scenario.pass(3 * HALF_TTL);
    assert_eq!(scenario.sent, [Sent::Announce, Sent::Write(1)].repeat(3));
    scenario.want([key("/")], false);
    scenario.settle();
    assert_eq!(scenario.core.refused(), 0);
    assert!(scenario.holds_all());
}

/// One path of a thousand, and all of one bucket.
fn refuses(hash: KeyHash) -> bool {
    hash.bits().is_multiple_of(1_000) || hash.bucket(16) == 3
}

#[test]
fn what_is_refused_is_left_out_of_every_bucket() {
    for buckets in [1, 4, 16_384] {
        with(Kind::Model(buckets), || {
            let mut scenario = Scenario::new(7);
            scenario.replica.as_mut().unwrap().refuse(refuses);
            scenario.want(keys(20_000), true);
            scenario.pass(CONFIRM_QUIET);
            let refused = keys(20_000).iter().filter(|key| refuses(key.hash())).count();
            assert_eq!((scenario.core.refused(), scenario.core.lacking()), (refused, 0));
            assert!(scenario.core.is_whole());

            scenario.sent.clear();
            scenario.pass(HALF_TTL);
            assert_eq!(scenario.count(Sent::Announce), 1, "the digests agree: {:?}", scenario.sent);
            assert_eq!(scenario.written(), refused, "what is refused is tried again");
            assert_eq!(scenario.count(Sent::Confirm), 0);

            scenario.cut();
            scenario.sent.clear();
            scenario.pass(Duration::from_secs(12));
            assert_eq!(scenario.count(Sent::Announce), 1, "after a link was lost, too");
            assert_eq!(scenario.written(), refused);

            // Something else differs, and some of what was refused is no longer wanted.
            let fewer = keys(10_000).into_iter().filter(|key| refuses(key.hash()));
            scenario.cut();
            scenario.want(fewer, false);
            scenario.want([key("/new")], true);
            scenario.replica.as_mut().unwrap().refuse(|_| false);
            scenario.pass(Duration::from_secs(12) + HALF_TTL);
            assert_eq!((scenario.core.refused(), scenario.core.lacking()), (0, 0));
            assert!(scenario.holds_all());
        });
    }
}

#[test]
fn what_is_refused_and_then_no_longer_wanted_costs_nothing_later() {
    with(Kind::Model(16_384), || {
        let mut scenario = Scenario::new(7);
        scenario.replica.as_mut().unwrap().refuse(refuses);
        scenario.want(keys(20_000), true);
        scenario.pass(CONFIRM_QUIET);
        scenario.cut();
        scenario.want(keys(20_000).into_iter().filter(|key| refuses(key.hash())), false);
        scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
        scenario.sent.clear();
        scenario.pass(3 * HALF_TTL);
        assert_eq!(scenario.sent, [Sent::Announce; 3]);
        assert!(scenario.holds_all());
    });
}
