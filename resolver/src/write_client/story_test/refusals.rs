//! A path that a replica refuses costs the others nothing.

use super::replica::{Kind, with};
use super::*;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn a_path_refused_just_before_digests_are_compared_makes_no_difference() {
    let mut story = Story::published(3);
    story.pass(CONFIRM_QUIET);
    story.pass(HALF_TTL - CONFIRM_QUIET - INSTANT);
    story.sent.clear();
    story.now += INSTANT;
    story.want([key("/")], true);
    assert_eq!(story.sent, [Sent::Write(1), Sent::Announce], "behind what is under way");
    story.settle();
    // What is refused is tried again, and nothing else is written.
    assert_eq!(story.sent, [Sent::Write(1), Sent::Announce, Sent::Write(1)]);
    assert_eq!((story.core.refused(), story.core.lacking()), (1, 0));
}

#[test]
fn a_path_that_is_refused_costs_the_others_nothing_and_is_tried_again_with_the_heartbeat() {
    let mut story = Story::published(10);
    story.pass(CONFIRM_QUIET);
    story.want([key("/")], true);
    story.settle();
    assert_eq!((story.core.refused(), story.core.lacking()), (1, 0));
    assert!(story.core.is_whole());
    story.sent.clear();
    story.pass(3 * HALF_TTL);
    assert_eq!(story.sent, [Sent::Announce, Sent::Write(1)].repeat(3));
    story.want([key("/")], false);
    story.settle();
    assert_eq!(story.core.refused(), 0);
    assert!(story.holds_all());
}

/// One path of a thousand, and all of one bucket.
fn refuses(hash: KeyHash) -> bool {
    hash.bits().is_multiple_of(1_000) || hash.bucket(16) == 3
}

#[test]
fn what_is_refused_is_left_out_of_every_bucket() {
    for buckets in [1, 4, 16_384] {
        with(Kind::Model(buckets), || {
            let mut story = Story::new(7);
            story.replica.as_mut().unwrap().refuse(refuses);
            story.want(keys(20_000), true);
            story.pass(CONFIRM_QUIET);
            let refused = keys(20_000).iter().filter(|key| refuses(key.hash())).count();
            assert_eq!((story.core.refused(), story.core.lacking()), (refused, 0));
            assert!(story.core.is_whole());

            story.sent.clear();
            story.pass(HALF_TTL);
            assert_eq!(story.count(Sent::Announce), 1, "the digests agree: {:?}", story.sent);
            assert_eq!(story.written(), refused, "what is refused is tried again");
            assert_eq!(story.count(Sent::Confirm), 0);

            story.cut();
            story.sent.clear();
            story.pass(Duration::from_secs(12));
            assert_eq!(story.count(Sent::Announce), 1, "after a link was lost, too");
            assert_eq!(story.written(), refused);

            // Something else differs, and some of what was refused is no longer wanted.
            let fewer = keys(10_000).into_iter().filter(|key| refuses(key.hash()));
            story.cut();
            story.want(fewer, false);
            story.want([key("/new")], true);
            story.replica.as_mut().unwrap().refuse(|_| false);
            story.pass(Duration::from_secs(12) + HALF_TTL);
            assert_eq!((story.core.refused(), story.core.lacking()), (0, 0));
            assert!(story.holds_all());
        });
    }
}

#[test]
fn what_is_refused_and_then_no_longer_wanted_costs_nothing_later() {
    with(Kind::Model(16_384), || {
        let mut story = Story::new(7);
        story.replica.as_mut().unwrap().refuse(refuses);
        story.want(keys(20_000), true);
        story.pass(CONFIRM_QUIET);
        story.cut();
        story.want(keys(20_000).into_iter().filter(|key| refuses(key.hash())), false);
        story.pass(Duration::from_secs(12) + CONFIRM_QUIET);
        story.sent.clear();
        story.pass(3 * HALF_TTL);
        assert_eq!(story.sent, [Sent::Announce; 3]);
        assert!(story.holds_all());
    });
}
