//! What is written arrives, whatever happens.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::replica::with_each;
use super::*;
use crate::write_client::core::CONFIRM_QUIET;
use crate::write_client::lacking::{Lacking, WRITE_PATHS_MAX};

#[test]
fn a_batch_never_fails_what_was_published_while_the_server_was_away_arrives_when_it_is_back() {
    let mut scenario = Scenario::down(7);
    scenario.want(keys(5), true);
    scenario.pass(Duration::from_secs(3_600));
    scenario.want([key("/while/away")], true);
    scenario.want([key("/jobs/0")], false);
    assert_eq!(scenario.core.lacking(), 5, "of which no more than all are wanted");
    scenario.returns();
    scenario.pass(HALF_TTL);
    assert!(scenario.core.is_whole() && scenario.holds_all());
    assert_eq!(scenario.held().count, 5);
}

#[test]
fn after_a_dropped_link_only_what_changed_meanwhile_makes_a_difference() {
    let mut scenario = Scenario::published(100);
    scenario.cut();
    scenario.want([key("/jobs/7")], false);
    scenario.want([key("/new")], true);
    scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(scenario.holds_all());
    assert_eq!(scenario.core.lacking(), 0);
}

#[test]
fn a_huge_publish_goes_out_in_requests_of_bounded_size() {
    let mut scenario = Scenario::published(0);
    scenario.want(keys(WRITE_PATHS_MAX * 12 + 5), true);
    assert_eq!(scenario.sent, [const { Sent::Write(WRITE_PATHS_MAX) }; 8]);
    scenario.settle();
    assert!(scenario.core.is_whole() && scenario.holds_all());
}

#[test]
fn a_publisher_that_was_forgotten_announces_itself_again_at_once() {
    let mut scenario = Scenario::published(10);
    // It was stopped for so long that the replica has hidden it, and yet its link stands.
    let silent = scenario.now + 3 * HALF_TTL;
    scenario.replica.as_mut().unwrap().tick(silent);
    scenario.now = silent;
    scenario.want([key("/new")], true);
    scenario.settle();
    assert!(scenario.core.is_whole() && scenario.holds_all());
    assert_eq!(scenario.tries.len(), 1);
}

/// The replica stays, links come and go in the middle of anything, the wanted set only grows: so
/// does what is held.
#[test]
fn links_that_drop_at_any_moment_remove_nothing() {
    with_each(|| (0..60).for_each(only_grows));
}

fn only_grows(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut scenario, mut held) = (Scenario::new(seed), 0);
    scenario.want(keys(crowd(seed)), true);
    for _ in 0..80 {
        match random.random_range(0..8) {
            0 | 1 if scenario.linked => scenario.cut(),
            2 => scenario.pass(Duration::from_millis(random.random_range(0..90_000))),
            3 | 4 if !scenario.inbox.is_empty() => {
                let message = scenario.inbox.pop_front().unwrap();
                scenario.step(Input::Told(message));
            }
            5 => scenario.settle(),
            6 => scenario.pass(Duration::from_millis(random.random_range(0..3_000))),
            _ => scenario.want([key(&format!("/q/{}", random.random_range(0..40)))], true),
        }
        let now = scenario.held().count;
        assert!(now >= held, "seed {seed}: {held} paths were held, {now} are left");
        held = now;
    }
}

/// Enough for several buckets, in some scenarios.
fn crowd(seed: u64) -> usize {
    if seed.is_multiple_of(4) { 1_500 } else { 0 }
}

/// Whatever goes wrong, in the end the replica holds what is wanted.
#[test]
fn after_any_series_of_faults_and_changes_the_replica_ends_up_with_what_is_wanted() {
    with_each(|| (0..120).for_each(ends_well));
}

fn ends_well(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut scenario = Scenario::new(seed);
    scenario.want(keys(crowd(seed)), true);
    for _ in 0..60 {
        match random.random_range(0..13) {
            0 => scenario.crash(),
            1 if scenario.replica.is_none() => scenario.returns(),
            2 if scenario.linked => scenario.cut(),
            3 => scenario.hangs = random.random_bool(0.3),
            4 | 5 => scenario.pass(Duration::from_millis(random.random_range(0..90_000))),
            6 if !scenario.inbox.is_empty() => {
                let message = scenario.inbox.pop_front().unwrap();
                scenario.step(Input::Told(message));
            }
            7 => scenario.settle(),
            8 if scenario.replica.is_some() && !scenario.linked => {
                scenario = Scenario::restarted(&mut scenario);
                scenario.want(keys(crowd(seed) / 2), true);
            }
            _ => {
                let key = |n: u32| Key {
                    path: Path::new(&format!("/q/{n}")).unwrap(),
                    default: n.is_multiple_of(5),
                };
                let some: Vec<Key> = (0..random.random_range(1..6))
                    .map(|_| key(random.random_range(0..20)))
                    .collect();
                let terms = random.random_bool(0.6).then(|| terms(random.random_range(98..102)));
                scenario.want_on(some, terms.as_ref());
            }
        }
    }
    scenario.hangs = false;
    if scenario.replica.is_none() {
        scenario.returns();
    }
    // The longest timeout, the longest wait, and the removal of what is not wanted any more.
    scenario.pass(Duration::from_secs(15) + HALF_TTL + 2 * CONFIRM_QUIET + HALF_TTL);
    assert!(scenario.core.is_whole(), "seed {seed}: {:?}", scenario.core);
    assert!(scenario.holds_all(), "seed {seed}");
}

#[test]
fn a_path_on_other_terms_is_a_change_that_is_written() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.sent.clear();
        scenario.want_on([key("/jobs/1")], Some(&terms(7)));
        scenario.want_on([key("/jobs/2")], Some(&terms(7)));
        scenario.want_on([key("/jobs/3")], Some(&terms(100)));
        scenario.settle();
        assert_eq!(
            scenario.sent,
            [Sent::Write(1), Sent::Write(1)],
            "those of the third are the same"
        );
        assert!(scenario.holds_all());
        scenario.pass(2 * HALF_TTL);
        assert_eq!(scenario.written(), 2, "and both sides' digests agree");
    });
}

#[test]
fn one_request_has_a_group_for_each_change_and_terms() {
    let (mut wanted, mut lacking) = (Wanted::default(), Lacking::new());
    for n in 0..100 {
        let key = Key { default: n % 10 == 0, ..key(&format!("/jobs/{n}")) };
        wanted.set_one(key, Some(&terms(n % 2)));
    }
    for n in 50..60 {
        let key = Key { default: n % 10 == 0, ..key(&format!("/jobs/{n}")) };
        wanted.set_one(key, None);
    }
    let batch = lacking.next(&wanted).unwrap();
    let mut said: Vec<_> = batch
        .groups
        .iter()
        .map(|group| (group.change, group.terms.weight, group.paths.len()))
        .collect();
    said.sort_unstable_by_key(|(change, weight, _)| (change.code(), *weight));
    let default = Terms::default().weight;
    assert_eq!(
        said,
        [
            (Change::Publish, 0, 36),
            (Change::Publish, 1, 45),
            (Change::Unpublish, default, 9),
            (Change::PublishDefault, 0, 9),
            (Change::UnpublishDefault, default, 1),
        ]
    );
    // The hashes are in the order of the paths.
    let paths = batch.groups.iter().flat_map(|group| {
        let default = matches!(group.change, Change::PublishDefault | Change::UnpublishDefault);
        group.paths.iter().map(move |path| KeyHash::of(path.as_str().unwrap(), default))
    });
    assert!(paths.eq(batch.keys.iter().copied()));
    assert!(lacking.next(&wanted).is_none() && !lacking.any(wanted.extent()));
}

#[test]
fn what_a_replica_did_not_do_of_a_request_that_it_ended_is_found_by_comparing() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.hangs = true;
        scenario.want(keys(30), true);
        assert_eq!(scenario.sent.last(), Some(&Sent::Write(20)));
        scenario.hangs = false;
        // It says that this is all, after five of twenty, of which it holds none.
        let id = scenario.newest_request();
        let answer = Written { id, last: true, done: 5, refused: Vec::new() };
        scenario.step(Input::Told(FromReplica::Written(answer)));
        assert_eq!(scenario.sent.last(), Some(&Sent::Announce), "at once");
        scenario.settle();
        assert!(scenario.holds_all() && scenario.core.is_whole());
    });
}
