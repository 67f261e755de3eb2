//! Both sides compare digests, and only what differs is written.

use super::replica::{Kind, with, with_each};
use super::*;
use crate::write_client::changes::CHANGES_MAX;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn digests_are_compared_under_steady_writes_too() {
    let mut scenario = Scenario::published(3);
    scenario.pass(CONFIRM_QUIET);
    scenario.sent.clear();
    for minute in 1..=5 {
        scenario.lose(&key("/jobs/1"));
        for second in 0..60 {
            scenario.want([key(&format!("/steady/{minute}/{second}"))], true);
            scenario.settle();
            scenario.pass(Duration::from_secs(1));
        }
        assert!(scenario.holds_all(), "minute {minute}: what a replica has lost is found out");
        scenario.pass(CONFIRM_QUIET);
    }
    let announces = scenario.count(Sent::Announce);
    assert!((5..=6).contains(&announces), "{announces} in five minutes");
    assert_eq!(scenario.tries.len(), 1);
}

#[test]
fn after_a_dropped_link_equal_digests_mean_that_nothing_is_sent_again() {
    let mut scenario = Scenario::published(1_000);
    scenario.pass(CONFIRM_QUIET);
    scenario.sent.clear();
    scenario.cut();
    assert!(scenario.holds_all(), "a dropped connection removes nothing");
    scenario.pass(Duration::from_secs(12));
    assert_eq!(scenario.sent, [Sent::Announce]);
    assert!(scenario.core.is_whole());
}

/// The replica tells apart as many buckets as there may be.
fn finely(scenario: impl FnOnce()) {
    with(Kind::Model(16_384), scenario);
}

/// The link is lost, and something is done before the next one.
fn back_after(scenario: &mut Scenario, meanwhile: impl FnOnce(&mut Scenario)) {
    scenario.cut();
    scenario.sent.clear();
    scenario.bytes = 0;
    meanwhile(scenario);
    scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(scenario.core.is_whole() && scenario.holds_all());
}

#[test]
fn a_million_paths_cost_a_reconnect_what_has_changed() {
    finely(|| {
        let path = |n| key(&format!("/jobs/mail/welcome/{n:011}"));
        assert_eq!(path(0).path.as_str().len(), 30);
        let mut scenario = Scenario::new(7);
        scenario.want((0..1_000_000).map(path), true);
        scenario.pass(CONFIRM_QUIET);
        assert!(scenario.core.is_whole() && scenario.holds_all());

        back_after(&mut scenario, |_| {});
        assert_eq!(scenario.sent, [Sent::Announce]);
        println!("unchanged: {} bytes", scenario.bytes);
        assert!(scenario.bytes < 256, "{} bytes", scenario.bytes);

        type Make = fn(&mut Scenario, Key);
        let changes: [(&str, Make); 4] = [
            ("gone", |scenario, key| scenario.want([key], false)),
            ("come", |scenario, key| scenario.want([key], true)),
            ("on other terms", |scenario, key| scenario.want_on([key], Some(&terms(7)))),
            ("lost by the replica", |scenario, key| scenario.lose(&key)),
        ];
        for (what, change) in changes {
            back_after(&mut scenario, |scenario| change(scenario, path(4_711)));
            let buckets =
                scenario.sent.iter().filter(|sent| matches!(sent, Sent::Write(_))).count();
            println!("one path {what}: {} written, {} bytes", scenario.written(), scenario.bytes);
            assert_eq!(buckets, 1);
            assert!((150..=400).contains(&scenario.written()), "{:?}", scenario.sent);
            assert!(scenario.bytes < 256 * 1024, "one path {what}: {} bytes", scenario.bytes);
        }

        // With a link that stands, one path is one path.
        scenario.sent.clear();
        scenario.want([path(4_711)], false);
        scenario.settle();
        assert_eq!(scenario.sent, [Sent::Write(1)]);

        // The same paths, a higher epoch.
        let mut after = Scenario::restarted(&mut scenario);
        after.want((0..1_000_000).map(path).filter(|key| *key != path(4_711)), true);
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.sent, [Sent::Announce]);
        assert!(after.holds_all() && after.bytes < 256);
    });
}

#[test]
fn ten_thousand_changed_paths_cost_their_buckets_or_themselves_while_the_link_stands() {
    finely(|| {
        let mut scenario = Scenario::published(200_000);
        scenario.pass(CONFIRM_QUIET);
        scenario.sent.clear();
        let new = |from: usize| (from..from + 10_000).map(|n| key(&format!("/new/{n}")));
        scenario.want(new(0), true);
        scenario.settle();
        assert_eq!(scenario.written(), 10_000);

        // All of one part of the hashes: as many buckets, and not one more.
        let buckets = 1 << scenario.wanted.keys().level();
        let few = |key: &Key| key.hash().bucket(buckets) < 40;
        back_after(&mut scenario, |scenario| {
            scenario.want(keys(200_000).into_iter().filter(few), false)
        });
        let left = scenario.wanted.keys().digests(buckets.ilog2());
        assert_eq!(scenario.written() as u64, left[..40].iter().map(|digest| digest.count).sum());

        back_after(&mut scenario, |scenario| scenario.want(new(10_000), true));
        println!("10,000 anywhere among 200,000: {} written", scenario.written());
        assert!(scenario.written() <= scenario.wanted.keys().len());
        assert_eq!(scenario.count(Sent::Announce), 2);
    });
}

#[test]
fn a_replica_with_fewer_buckets_is_compared_by_those() {
    let written = |kind| {
        let mut written = 0;
        with(kind, || {
            let mut scenario = Scenario::published(20_000);
            scenario.pass(CONFIRM_QUIET);
            back_after(&mut scenario, |scenario| scenario.want([key("/new")], true));
            assert_eq!(scenario.count(Sent::Announce), 2);
            written = scenario.written();
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
        let mut scenario = Scenario::published(2_000);
        scenario.pass(CONFIRM_QUIET);
        let group = Group {
            change: Change::Publish,
            terms: Terms { priority: 3, ..Terms::default() },
            paths: [&key("/jobs/5").path].into_iter().collect(),
        };
        scenario.replica.as_mut().unwrap().write(scenario.link, &[group]).unwrap();
        scenario.lost = true;
        assert!(!scenario.holds_all());
        scenario.sent.clear();
        scenario.pass(HALF_TTL);
        assert!(scenario.holds_all());
        assert!(scenario.written() <= 400, "{:?}", scenario.sent);
    });
}

#[test]
fn while_one_digest_differs_and_no_bucket_is_known_yet_the_replica_is_not_whole() {
    with_each(|| {
        let mut scenario = Scenario::published(2_000);
        scenario.pass(CONFIRM_QUIET);
        scenario.lose(&key("/jobs/5"));
        scenario.sent.clear();
        scenario.pass_until(scenario.now + HALF_TTL - CONFIRM_QUIET - INSTANT);
        assert!(scenario.core.is_whole(), "it cannot know");
        scenario.now += INSTANT;
        scenario.step(Input::Tick);
        assert!(!scenario.core.is_whole(), "it asks");
        let answer = scenario.inbox.pop_front().unwrap();
        scenario.step(Input::Told(answer));
        assert_eq!(scenario.sent, [Sent::Announce; 2]);
        assert!(!scenario.core.is_whole());
        scenario.settle();
        assert!(scenario.core.is_whole() && scenario.holds_all());
    });
}

/// Half of the buckets are written again, and meanwhile something changes before, behind and beside
/// where that has come to.
#[test]
fn what_changes_while_buckets_are_written_again_is_written_too() {
    with_each(|| {
        let mut scenario = Scenario::published(40_000);
        scenario.pass(CONFIRM_QUIET);
        scenario.cut();
        scenario.sent.clear();
        let half = keys(40_000).into_iter().filter(|key| key.hash().bucket(2) == 0);
        scenario.want_on(half, Some(&terms(7)));
        scenario.now = scenario.core.next_deadline().unwrap();
        scenario.step(Input::Tick);
        while scenario.written() == 0 {
            let answer = scenario.inbox.pop_front().unwrap();
            scenario.step(Input::Told(answer));
        }
        assert!(scenario.core.lacking() > scenario.written(), "eight requests, and more to come");
        let announces = scenario.count(Sent::Announce);
        scenario.want((40_000..44_000).map(|n| key(&format!("/jobs/{n}"))), true);
        scenario.want((0..1_000).map(|n| key(&format!("/jobs/{n}"))), false);
        scenario.settle();
        assert!(scenario.core.is_whole() && scenario.holds_all());
        assert_eq!(scenario.count(Sent::Announce), announces, "no comparison had to find it");
        scenario.pass(2 * CONFIRM_QUIET);
        assert!(scenario.holds_all());
    });
}

/// More changes than are kept, in the middle of a rewriting: what they were is found out at once,
/// and no confirm comes before it.
#[test]
fn changes_that_were_forgotten_are_found_by_comparing() {
    with_each(|| {
        let mut before = Scenario::published(20_000);
        let mut scenario = Scenario::restarted(&mut before);
        let mut paths = keys(20_000).into_iter();
        scenario.want(paths.by_ref().take(12_000), true);
        // Until eight requests are on their way; their answers are not taken in yet.
        while scenario.written() == 0 {
            let answer = scenario.inbox.pop_front().unwrap();
            scenario.step(Input::Told(answer));
        }
        assert!(scenario.core.has_more() || scenario.core.lacking() > 0);
        for key in paths {
            scenario.wanted.set_one(key, Some(&PublicationTerms::default()));
        }
        for n in 0..CHANGES_MAX / 2 {
            let key = key(&format!("/busy/{}", n % 5_000));
            scenario.wanted.set_one(key.clone(), Some(&terms(1)));
            scenario.wanted.set_one(key, None);
        }
        let announces = scenario.count(Sent::Announce);
        while let Some(answer) = scenario.inbox.pop_front() {
            scenario.step(Input::Told(answer));
            assert!(scenario.held().count >= 20_000, "a path that is wanted is gone");
        }
        assert!(scenario.count(Sent::Announce) > announces, "at once");
        assert!(scenario.core.is_whole() && scenario.holds_all());
    });
}
