//! Both sides compare digests, and only differences are written.

use super::replica::{ReplicaKind, with, with_each};
use super::*;
use crate::write_client::change_log::CHANGES_MAX;
use crate::write_client::core::CONFIRM_QUIET;

#[test]
fn digests_are_compared_during_steady_writes() {
    let mut scenario = Scenario::published(3);
    scenario.pass(CONFIRM_QUIET);
    scenario.sent.clear();
    for minute in 1..=5 {
        scenario.lose(&key("/jobs/1"));
        for second in 0..60 {
            scenario.set_desired([key(&format!("/steady/{minute}/{second}"))], true);
            scenario.settle();
            scenario.pass(Duration::from_secs(1));
        }
        assert!(scenario.is_in_sync(), "minute {minute}: a lost path is detected");
        scenario.pass(CONFIRM_QUIET);
    }
    let announces = scenario.count(Sent::Announce);
    assert!((5..=6).contains(&announces), "{announces} in five minutes");
    assert_eq!(scenario.attempts.len(), 1);
}

#[test]
fn after_a_lost_link_with_equal_digests_nothing_is_sent_again() {
    let mut scenario = Scenario::published(1_000);
    scenario.pass(CONFIRM_QUIET);
    scenario.sent.clear();
    scenario.lose_link();
    assert!(scenario.is_in_sync(), "a dropped connection removes nothing");
    scenario.pass(Duration::from_secs(12));
    assert_eq!(scenario.sent, [Sent::Announce]);
    assert!(scenario.core.is_up_to_date());
}

/// The replica has as many buckets as possible.
fn finely(scenario: impl FnOnce()) {
    with(ReplicaKind::Model(16_384), scenario);
}

/// The link is lost, and `meanwhile` runs before the next one.
fn back_after(scenario: &mut Scenario, meanwhile: impl FnOnce(&mut Scenario)) {
    scenario.lose_link();
    scenario.sent.clear();
    scenario.bytes = 0;
    meanwhile(scenario);
    scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
}

#[test]
fn with_many_paths_a_reconnect_costs_only_the_changes() {
    // A quarter of a million, in a quarter of the buckets, has as many paths in each.
    let all = if std::env::var_os("LONGSHORE_LONG").is_some() { 1_000_000 } else { 250_000 };
    finely(|| {
        let path = |n| key(&format!("/jobs/mail/welcome/{n:011}"));
        assert_eq!(path(0).path.as_str().len(), 30);
        let mut scenario = Scenario::new(7);
        scenario.set_desired((0..all).map(path), true);
        scenario.pass(CONFIRM_QUIET);
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());

        back_after(&mut scenario, |_| {});
        assert_eq!(scenario.sent, [Sent::Announce]);
        println!("unchanged: {} bytes", scenario.bytes);
        assert!(scenario.bytes < 256, "{} bytes", scenario.bytes);

        type Make = fn(&mut Scenario, Key);
        let changes: [(&str, Make); 4] = [
            ("gone", |scenario, key| scenario.set_desired([key], false)),
            ("come", |scenario, key| scenario.set_desired([key], true)),
            ("on other terms", |scenario, key| scenario.set_desired_on([key], Some(&terms(7)))),
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

        // While the link is up, one path costs one path.
        scenario.sent.clear();
        scenario.set_desired([path(4_711)], false);
        scenario.settle();
        assert_eq!(scenario.sent, [Sent::Write(1)]);

        // The same paths, a higher epoch.
        let mut after = Scenario::restarted(&mut scenario);
        after.set_desired((0..all).map(path).filter(|key| *key != path(4_711)), true);
        after.pass(CONFIRM_QUIET);
        assert_eq!(after.sent, [Sent::Announce]);
        assert!(after.is_in_sync() && after.bytes < 256);
    });
}

#[test]
fn ten_thousand_changes_cost_their_buckets_or_only_themselves_while_linked() {
    finely(|| {
        let mut scenario = Scenario::published(200_000);
        scenario.pass(CONFIRM_QUIET);
        scenario.sent.clear();
        let new = |from: usize| (from..from + 10_000).map(|n| key(&format!("/new/{n}")));
        scenario.set_desired(new(0), true);
        scenario.settle();
        assert_eq!(scenario.written(), 10_000);

        // All from one range of hashes: exactly that many buckets.
        let buckets = 1 << scenario.desired.keys().level();
        let few = |key: &Key| key.hash().bucket(buckets) < 40;
        back_after(&mut scenario, |scenario| {
            scenario.set_desired(keys(200_000).into_iter().filter(few), false)
        });
        let left = scenario.desired.keys().digests(buckets.ilog2());
        assert_eq!(
            scenario.written() as u64,
            left[..40].iter().map(|digest| digest.count).sum::<u64>()
        );

        back_after(&mut scenario, |scenario| scenario.set_desired(new(10_000), true));
        println!("10,000 anywhere among 200,000: {} written", scenario.written());
        assert!(scenario.written() <= scenario.desired.keys().len());
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
            back_after(&mut scenario, |scenario| scenario.set_desired([key("/new")], true));
            assert_eq!(scenario.count(Sent::Announce), 2);
            written = scenario.written();
        });
        written
    };
    assert_eq!(written(ReplicaKind::Model(1)), 20_001);
    assert!((4_500..=5_500).contains(&written(ReplicaKind::Model(4))));
    for finely in [ReplicaKind::Model(16_384), ReplicaKind::Directory] {
        let written = written(finely);
        assert!((150..=700).contains(&written), "{written} with {finely:?}");
    }
}

#[test]
fn wrong_terms_at_a_replica_are_detected() {
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
        assert!(!scenario.is_in_sync());
        scenario.sent.clear();
        scenario.pass(HALF_TTL);
        assert!(scenario.is_in_sync());
        assert!(scenario.written() <= 400, "{:?}", scenario.sent);
    });
}

#[test]
fn a_replica_is_not_up_to_date_while_its_digest_differs() {
    with_each(|| {
        let mut scenario = Scenario::published(2_000);
        scenario.pass(CONFIRM_QUIET);
        scenario.lose(&key("/jobs/5"));
        scenario.sent.clear();
        scenario.pass_until(scenario.now + HALF_TTL - CONFIRM_QUIET - INSTANT);
        assert!(scenario.core.is_up_to_date(), "it cannot know");
        scenario.now += INSTANT;
        scenario.step(Event::Tick);
        assert!(!scenario.core.is_up_to_date(), "it asks");
        let answer = scenario.inbox.pop_front().unwrap();
        scenario.step(Event::Received(answer));
        assert_eq!(scenario.sent, [Sent::Announce; 2]);
        assert!(!scenario.core.is_up_to_date());
        scenario.settle();
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    });
}

/// Half of the buckets are rewritten, and meanwhile keys change before, behind and beside the
/// current position.
#[test]
fn changes_during_a_rewriting_are_written_too() {
    with_each(|| {
        let mut scenario = Scenario::published(40_000);
        scenario.pass(CONFIRM_QUIET);
        scenario.lose_link();
        scenario.sent.clear();
        let half = keys(40_000).into_iter().filter(|key| key.hash().bucket(2) == 0);
        scenario.set_desired_on(half, Some(&terms(7)));
        scenario.now = scenario.core.next_deadline().unwrap();
        scenario.step(Event::Tick);
        while scenario.written() == 0 {
            let answer = scenario.inbox.pop_front().unwrap();
            scenario.step(Event::Received(answer));
        }
        assert!(scenario.core.pending() > scenario.written(), "eight requests, and more to come");
        let announces = scenario.count(Sent::Announce);
        scenario.set_desired((40_000..44_000).map(|n| key(&format!("/jobs/{n}"))), true);
        scenario.set_desired((0..1_000).map(|n| key(&format!("/jobs/{n}"))), false);
        scenario.settle();
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
        assert_eq!(scenario.count(Sent::Announce), announces, "no comparison had to find it");
        scenario.pass(2 * CONFIRM_QUIET);
        assert!(scenario.is_in_sync());
    });
}

/// More changes than are retained, during a rewriting: a comparison finds them at once, before any
/// confirm.
#[test]
fn dropped_changes_are_found_by_comparing() {
    with_each(|| {
        let mut before = Scenario::published(20_000);
        let mut scenario = Scenario::restarted(&mut before);
        let mut paths = keys(20_000).into_iter();
        scenario.set_desired(paths.by_ref().take(12_000), true);
        // Until eight requests are in flight; their answers are not handled yet.
        while scenario.written() == 0 {
            let answer = scenario.inbox.pop_front().unwrap();
            scenario.step(Event::Received(answer));
        }
        assert!(scenario.core.has_more() || scenario.core.pending() > 0);
        for key in paths {
            scenario.desired.set_one(key, Some(&CheckedTerms::default()));
        }
        let busy: Vec<_> = (0..5_000).map(|n| key(&format!("/busy/{n}"))).collect();
        for key in busy.iter().cycle().take(CHANGES_MAX as usize / 2) {
            let key = key.clone();
            scenario.desired.set_one(key.clone(), Some(&terms(1)));
            scenario.desired.set_one(key, None);
        }
        let announces = scenario.count(Sent::Announce);
        while let Some(answer) = scenario.inbox.pop_front() {
            scenario.step(Event::Received(answer));
            assert!(scenario.registered().count >= 20_000, "a desired path is gone");
        }
        assert!(scenario.count(Sent::Announce) > announces, "at once");
        assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    });
}
