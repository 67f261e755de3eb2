//! Both sides compare digests, and only what differs is written.

use super::replica::{Kind, with, with_each};
use super::*;
use crate::write_client::changes::CHANGES_MAX;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn digests_are_compared_under_steady_writes_too() {
    let mut story = Story::published(3);
    story.pass(CONFIRM_QUIET);
    story.sent.clear();
    for minute in 1..=5 {
        story.lose(&key("/jobs/1"));
        for second in 0..60 {
            story.want([key(&format!("/steady/{minute}/{second}"))], true);
            story.settle();
            story.pass(Duration::from_secs(1));
        }
        assert!(story.holds_all(), "minute {minute}: what a replica has lost is found out");
        story.pass(CONFIRM_QUIET);
    }
    let announces = story.count(Sent::Announce);
    assert!((5..=6).contains(&announces), "{announces} in five minutes");
    assert_eq!(story.tries.len(), 1);
}

#[test]
fn after_a_dropped_link_equal_digests_mean_that_nothing_is_sent_again() {
    let mut story = Story::published(1_000);
    story.pass(CONFIRM_QUIET);
    story.sent.clear();
    story.cut();
    assert!(story.holds_all(), "a dropped connection removes nothing");
    story.pass(Duration::from_secs(12));
    assert_eq!(story.sent, [Sent::Announce]);
    assert!(story.core.is_whole());
}

/// The replica tells apart as many buckets as there may be.
fn finely(story: impl FnOnce()) {
    with(Kind::Model(16_384), story);
}

/// The link is lost, and something is done before the next one.
fn back_after(story: &mut Story, meanwhile: impl FnOnce(&mut Story)) {
    story.cut();
    story.sent.clear();
    story.bytes = 0;
    meanwhile(story);
    story.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(story.core.is_whole() && story.holds_all());
}

#[test]
fn a_million_paths_cost_a_reconnect_what_has_changed() {
    finely(|| {
        let path = |n| key(&format!("/jobs/mail/welcome/{n:011}"));
        assert_eq!(path(0).path.as_str().len(), 30);
        let mut story = Story::new(7);
        story.want((0..1_000_000).map(path), true);
        story.pass(CONFIRM_QUIET);
        assert!(story.core.is_whole() && story.holds_all());

        back_after(&mut story, |_| {});
        assert_eq!(story.sent, [Sent::Announce]);
        println!("unchanged: {} bytes", story.bytes);
        assert!(story.bytes < 256, "{} bytes", story.bytes);

        type Make = fn(&mut Story, Key);
        let changes: [(&str, Make); 4] = [
            ("gone", |story, key| story.want([key], false)),
            ("come", |story, key| story.want([key], true)),
            ("on other terms", |story, key| story.want_on([key], Some(&terms(7)))),
            ("lost by the replica", |story, key| story.lose(&key)),
        ];
        for (what, change) in changes {
            back_after(&mut story, |story| change(story, path(4_711)));
            let buckets = story.sent.iter().filter(|sent| matches!(sent, Sent::Write(_))).count();
            println!("one path {what}: {} written, {} bytes", story.written(), story.bytes);
            assert_eq!(buckets, 1);
            assert!((150..=400).contains(&story.written()), "{:?}", story.sent);
            assert!(story.bytes < 256 * 1024, "one path {what}: {} bytes", story.bytes);
        }

        // With a link that stands, one path is one path.
        story.sent.clear();
        story.want([path(4_711)], false);
        story.settle();
        assert_eq!(story.sent, [Sent::Write(1)]);

        // The same paths, a higher epoch.
        let mut after = Story::restarted(&mut story);
        after.want((0..1_000_000).map(path).filter(|key| *key != path(4_711)), true);
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.sent, [Sent::Announce]);
        assert!(after.holds_all() && after.bytes < 256);
    });
}

#[test]
fn ten_thousand_changed_paths_cost_their_buckets_or_themselves_while_the_link_stands() {
    finely(|| {
        let mut story = Story::published(200_000);
        story.pass(CONFIRM_QUIET);
        story.sent.clear();
        let new = |from: usize| (from..from + 10_000).map(|n| key(&format!("/new/{n}")));
        story.want(new(0), true);
        story.settle();
        assert_eq!(story.written(), 10_000);

        // All of one part of the hashes: as many buckets, and not one more.
        let buckets = 1 << story.wanted.keys().level();
        let few = |key: &Key| key.hash().bucket(buckets) < 40;
        back_after(&mut story, |story| story.want(keys(200_000).into_iter().filter(few), false));
        let left = story.wanted.keys().digests(buckets.ilog2());
        assert_eq!(story.written() as u64, left[..40].iter().map(|digest| digest.count).sum());

        back_after(&mut story, |story| story.want(new(10_000), true));
        println!("10,000 anywhere among 200,000: {} written", story.written());
        assert!(story.written() <= story.wanted.keys().len());
        assert_eq!(story.count(Sent::Announce), 2);
    });
}

#[test]
fn a_replica_with_fewer_buckets_is_compared_by_those() {
    let written = |kind| {
        let mut written = 0;
        with(kind, || {
            let mut story = Story::published(20_000);
            story.pass(CONFIRM_QUIET);
            back_after(&mut story, |story| story.want([key("/new")], true));
            assert_eq!(story.count(Sent::Announce), 2);
            written = story.written();
        });
        written
    };
    assert_eq!(written(Kind::Model(1)), 20_001);
    assert!((4_500..=5_500).contains(&written(Kind::Model(4))));
    for finely in [Kind::Model(16_384), Kind::Directory] {
        let written = written(finely);
        assert!((150..=700).contains(&written), "{written} with {finely:?}");
    }
}

#[test]
fn terms_that_a_replica_has_wrong_are_found_out() {
    finely(|| {
        let mut story = Story::published(2_000);
        story.pass(CONFIRM_QUIET);
        let group = Group {
            change: Change::Publish,
            terms: Terms { priority: 3, ..Terms::default() },
            paths: [&key("/jobs/5").path].into_iter().collect(),
        };
        story.replica.as_mut().unwrap().write(story.link, &[group]).unwrap();
        story.lost = true;
        assert!(!story.holds_all());
        story.sent.clear();
        story.pass(HALF_TTL);
        assert!(story.holds_all());
        assert!(story.written() <= 400, "{:?}", story.sent);
    });
}

#[test]
fn while_one_digest_differs_and_no_bucket_is_known_yet_the_replica_is_not_whole() {
    with_each(|| {
        let mut story = Story::published(2_000);
        story.pass(CONFIRM_QUIET);
        story.lose(&key("/jobs/5"));
        story.sent.clear();
        story.pass_until(story.now + HALF_TTL - CONFIRM_QUIET - INSTANT);
        assert!(story.core.is_whole(), "it cannot know");
        story.now += INSTANT;
        story.step(Input::Tick);
        assert!(!story.core.is_whole(), "it asks");
        let answer = story.inbox.pop_front().unwrap();
        story.step(Input::Told(answer));
        assert_eq!(story.sent, [Sent::Announce; 2]);
        assert!(!story.core.is_whole());
        story.settle();
        assert!(story.core.is_whole() && story.holds_all());
    });
}

/// Half of the buckets are written again, and meanwhile something changes before, behind and beside where that has come to.
#[test]
fn what_changes_while_buckets_are_written_again_is_written_too() {
    with_each(|| {
        let mut story = Story::published(40_000);
        story.pass(CONFIRM_QUIET);
        story.cut();
        story.sent.clear();
        let half = keys(40_000).into_iter().filter(|key| key.hash().bucket(2) == 0);
        story.want_on(half, Some(&terms(7)));
        story.now = story.core.next_deadline().unwrap();
        story.step(Input::Tick);
        while story.written() == 0 {
            let answer = story.inbox.pop_front().unwrap();
            story.step(Input::Told(answer));
        }
        assert!(story.core.lacking() > story.written(), "eight requests, and more to come");
        let announces = story.count(Sent::Announce);
        story.want((40_000..44_000).map(|n| key(&format!("/jobs/{n}"))), true);
        story.want((0..1_000).map(|n| key(&format!("/jobs/{n}"))), false);
        story.settle();
        assert!(story.core.is_whole() && story.holds_all());
        assert_eq!(story.count(Sent::Announce), announces, "no comparison had to find it");
        story.pass(2 * CONFIRM_QUIET);
        assert!(story.holds_all());
    });
}

/// More changes than are kept, in the middle of a rewriting: what they were is found out at once, and no confirm comes before it.
#[test]
fn changes_that_were_forgotten_are_found_by_comparing() {
    with_each(|| {
        let mut before = Story::published(20_000);
        let mut story = Story::restarted(&mut before);
        let mut paths = keys(20_000).into_iter();
        story.want(paths.by_ref().take(12_000), true);
        // Until eight requests are on their way; their answers are not taken in yet.
        while story.written() == 0 {
            let answer = story.inbox.pop_front().unwrap();
            story.step(Input::Told(answer));
        }
        assert!(story.core.has_more() || story.core.lacking() > 0);
        for key in paths {
            story.wanted.set_one(key, Some(&PublicationTerms::default()));
        }
        for n in 0..CHANGES_MAX / 2 {
            let key = key(&format!("/busy/{}", n % 5_000));
            story.wanted.set_one(key.clone(), Some(&terms(1)));
            story.wanted.set_one(key, None);
        }
        let announces = story.count(Sent::Announce);
        while let Some(answer) = story.inbox.pop_front() {
            story.step(Input::Told(answer));
            assert!(story.held().count >= 20_000, "a path that is wanted is gone");
        }
        assert!(story.count(Sent::Announce) > announces, "at once");
        assert!(story.core.is_whole() && story.holds_all());
    });
}
