//! Every write arrives in the end, whatever happens.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::replica::with_each;
use super::*;
use crate::write_client::core::CONFIRM_QUIET;
use crate::write_client::pending_changes::{PendingChanges, WRITE_PATHS_MAX};

#[test]
fn paths_published_while_the_replica_is_down_arrive_after_its_return() {
    let mut scenario = Scenario::down(7);
    scenario.set_desired(keys(5), true);
    scenario.pass(Duration::from_secs(3_600));
    scenario.set_desired([key("/while/away")], true);
    scenario.set_desired([key("/jobs/0")], false);
    assert_eq!(scenario.core.pending(), 5, "limited by the number of desired keys");
    scenario.restart_replica();
    scenario.pass(HALF_TTL);
    assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    assert_eq!(scenario.registered().count, 5);
}

#[test]
fn after_a_lost_link_only_changes_meanwhile_make_a_difference() {
    let mut scenario = Scenario::published(100);
    scenario.lose_link();
    scenario.set_desired([key("/jobs/7")], false);
    scenario.set_desired([key("/new")], true);
    scenario.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(scenario.is_in_sync());
    assert_eq!(scenario.core.pending(), 0);
}

#[test]
fn a_huge_publish_is_sent_in_requests_of_bounded_size() {
    let mut scenario = Scenario::published(0);
    scenario.set_desired(keys(WRITE_PATHS_MAX * 12 + 5), true);
    assert_eq!(scenario.sent, [const { Sent::Write(WRITE_PATHS_MAX) }; 8]);
    scenario.settle();
    assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
}

#[test]
fn a_publisher_that_was_removed_announces_itself_again_at_once() {
    let mut scenario = Scenario::published(10);
    // The client was stopped for so long that the replica has hidden it, but its link remains.
    let silent = scenario.now + 3 * HALF_TTL;
    scenario.replica.as_mut().unwrap().tick(silent);
    scenario.now = silent;
    scenario.set_desired([key("/new")], true);
    scenario.settle();
    assert!(scenario.core.is_up_to_date() && scenario.is_in_sync());
    assert_eq!(scenario.attempts.len(), 1);
}

/// The replica stays, links come and go at any time, and the desired state only grows: so do the
/// registrations.
#[test]
fn links_lost_at_any_moment_remove_nothing() {
    with_each(|| (0..60).for_each(only_grows));
}

fn only_grows(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut scenario, mut registered) = (Scenario::new(seed), 0);
    scenario.set_desired(keys(crowd(seed)), true);
    for _ in 0..80 {
        match random.random_range(0..8) {
            0 | 1 if scenario.linked => scenario.lose_link(),
            2 => scenario.pass(Duration::from_millis(random.random_range(0..90_000))),
            3 | 4 if !scenario.inbox.is_empty() => {
                let message = scenario.inbox.pop_front().unwrap();
                scenario.step(Event::Received(message));
            }
            5 => scenario.settle(),
            6 => scenario.pass(Duration::from_millis(random.random_range(0..3_000))),
            _ => scenario.set_desired([key(&format!("/q/{}", random.random_range(0..40)))], true),
        }
        let now = scenario.registered().count;
        assert!(now >= registered, "seed {seed}: {now} of {registered} paths are left");
        registered = now;
    }
    scenario.replica.as_ref().unwrap().invariant();
}

/// Enough for several buckets, in some scenarios.
fn crowd(seed: u64) -> usize {
    if seed.is_multiple_of(4) { 1_500 } else { 0 }
}

/// Whatever goes wrong, in the end the replica matches the desired state.
#[test]
fn after_any_faults_and_changes_the_replica_matches_the_desired_state() {
    with_each(|| (0..120).for_each(ends_well));
}

fn ends_well(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut scenario = Scenario::new(seed);
    scenario.set_desired(keys(crowd(seed)), true);
    for _ in 0..60 {
        match random.random_range(0..13) {
            0 => scenario.crash(),
            1 if scenario.replica.is_none() => scenario.restart_replica(),
            2 if scenario.linked => scenario.lose_link(),
            3 => scenario.hangs = random.random_bool(0.3),
            4 | 5 => scenario.pass(Duration::from_millis(random.random_range(0..90_000))),
            6 if !scenario.inbox.is_empty() => {
                let message = scenario.inbox.pop_front().unwrap();
                scenario.step(Event::Received(message));
            }
            7 => scenario.settle(),
            8 if scenario.replica.is_some() && !scenario.linked => {
                scenario = Scenario::restarted(&mut scenario);
                scenario.set_desired(keys(crowd(seed) / 2), true);
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
                scenario.set_desired_on(some, terms.as_ref());
            }
        }
    }
    scenario.hangs = false;
    if scenario.replica.is_none() {
        scenario.restart_replica();
    }
    // The longest timeout, the longest wait, and the removal of stale paths.
    scenario.pass(Duration::from_secs(15) + HALF_TTL + 2 * CONFIRM_QUIET + HALF_TTL);
    assert!(scenario.core.is_up_to_date(), "seed {seed}: {:?}", scenario.core);
    assert!(scenario.is_in_sync(), "seed {seed}");
}

#[test]
fn changed_terms_are_a_change_that_is_written() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.sent.clear();
        scenario.set_desired_on([key("/jobs/1")], Some(&terms(7)));
        scenario.set_desired_on([key("/jobs/2")], Some(&terms(7)));
        scenario.set_desired_on([key("/jobs/3")], Some(&terms(100)));
        scenario.settle();
        assert_eq!(scenario.sent, [Sent::Write(1), Sent::Write(1)], "the third has the same terms");
        assert!(scenario.is_in_sync());
        scenario.pass(2 * HALF_TTL);
        assert_eq!(scenario.written(), 2, "and both sides' digests agree");
    });
}

#[test]
fn a_request_has_a_group_for_each_change_and_terms() {
    let (mut desired, mut pending) = (DesiredState::default(), PendingChanges::new());
    for n in 0..100 {
        let key = Key { default: n % 10 == 0, ..key(&format!("/jobs/{n}")) };
        desired.set_one(key, Some(&terms(n % 2)));
    }
    for n in 50..60 {
        let key = Key { default: n % 10 == 0, ..key(&format!("/jobs/{n}")) };
        desired.set_one(key, None);
    }
    let batch = pending.next(&desired).unwrap();
    let mut groups: Vec<_> = batch
        .groups
        .iter()
        .map(|group| (group.change, group.terms.weight, group.paths.len()))
        .collect();
    groups.sort_unstable_by_key(|(change, weight, _)| (change.code(), *weight));
    let default = Terms::default().weight;
    assert_eq!(
        groups,
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
    assert!(pending.next(&desired).is_none() && !pending.any(desired.summary()));
}

#[test]
fn the_rest_of_a_request_that_a_replica_ended_early_is_found_by_comparing() {
    with_each(|| {
        let mut scenario = Scenario::published(10);
        scenario.pass(CONFIRM_QUIET);
        scenario.hangs = true;
        scenario.set_desired(keys(30), true);
        assert_eq!(scenario.sent.last(), Some(&Sent::Write(20)));
        scenario.hangs = false;
        // It marks its answer as the last after five of twenty, and has done none.
        let id = scenario.newest_request();
        let answer = Written { id, last: true, done: 5, refused: Vec::new() };
        scenario.step(Event::Received(FromReplica::Written(answer)));
        assert_eq!(scenario.sent.last(), Some(&Sent::Announce), "at once");
        scenario.settle();
        assert!(scenario.is_in_sync() && scenario.core.is_up_to_date());
    });
}
