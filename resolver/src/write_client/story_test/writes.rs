//! What is written arrives, whatever happens.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::replica::with_each;
use super::*;
use crate::write_client::core::CONFIRM_QUIET;
use crate::write_client::lacking::{Lacking, WRITE_PATHS_MAX};

#[test]
fn a_batch_never_fails_what_was_published_while_the_server_was_away_arrives_when_it_is_back() {
    let mut story = Story::down(7);
    story.want(keys(5), true);
    story.pass(Duration::from_secs(3_600));
    story.want([key("/while/away")], true);
    story.want([key("/jobs/0")], false);
    assert_eq!(story.core.lacking(), 5, "of which no more than all are wanted");
    story.returns();
    story.pass(HALF_TTL);
    assert!(story.core.is_whole() && story.holds_all());
    assert_eq!(story.held().count, 5);
}

#[test]
fn after_a_dropped_link_only_what_changed_meanwhile_makes_a_difference() {
    let mut story = Story::published(100);
    story.cut();
    story.want([key("/jobs/7")], false);
    story.want([key("/new")], true);
    story.pass(Duration::from_secs(12) + CONFIRM_QUIET);
    assert!(story.holds_all());
    assert_eq!(story.core.lacking(), 0);
}

#[test]
fn a_huge_publish_goes_out_in_requests_of_bounded_size() {
    let mut story = Story::published(0);
    story.want(keys(WRITE_PATHS_MAX * 12 + 5), true);
    assert_eq!(story.sent, [const { Sent::Write(WRITE_PATHS_MAX) }; 8]);
    story.settle();
    assert!(story.core.is_whole() && story.holds_all());
}

#[test]
fn a_publisher_that_was_forgotten_announces_itself_again_at_once() {
    let mut story = Story::published(10);
    // It was stopped for so long that the replica has hidden it, and yet its link stands.
    let silent = story.now + 3 * HALF_TTL;
    story.replica.as_mut().unwrap().tick(silent);
    story.now = silent;
    story.want([key("/new")], true);
    story.settle();
    assert!(story.core.is_whole() && story.holds_all());
    assert_eq!(story.tries.len(), 1);
}

/// The replica stays, links come and go in the middle of anything, the wanted set only grows: so does what is held.
#[test]
fn links_that_drop_at_any_moment_remove_nothing() {
    with_each(|| (0..60).for_each(only_grows));
}

fn only_grows(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut story, mut held) = (Story::new(seed), 0);
    story.want(keys(crowd(seed)), true);
    for _ in 0..80 {
        match random.random_range(0..8) {
            0 | 1 if story.linked => story.cut(),
            2 => story.pass(Duration::from_millis(random.random_range(0..90_000))),
            3 | 4 if !story.inbox.is_empty() => {
                let message = story.inbox.pop_front().unwrap();
                story.step(Input::Told(message));
            }
            5 => story.settle(),
            6 => story.pass(Duration::from_millis(random.random_range(0..3_000))),
            _ => story.want([key(&format!("/q/{}", random.random_range(0..40)))], true),
        }
        let now = story.held().count;
        assert!(now >= held, "seed {seed}: {held} paths were held, {now} are left");
        held = now;
    }
}

/// Enough for several buckets, in some stories.
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
    let mut story = Story::new(seed);
    story.want(keys(crowd(seed)), true);
    for _ in 0..60 {
        match random.random_range(0..13) {
            0 => story.crash(),
            1 if story.replica.is_none() => story.returns(),
            2 if story.linked => story.cut(),
            3 => story.hangs = random.random_bool(0.3),
            4 | 5 => story.pass(Duration::from_millis(random.random_range(0..90_000))),
            6 if !story.inbox.is_empty() => {
                let message = story.inbox.pop_front().unwrap();
                story.step(Input::Told(message));
            }
            7 => story.settle(),
            8 if story.replica.is_some() && !story.linked => {
                story = Story::restarted(&mut story);
                story.want(keys(crowd(seed) / 2), true);
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
                story.want_on(some, terms.as_ref());
            }
        }
    }
    story.hangs = false;
    if story.replica.is_none() {
        story.returns();
    }
    // The longest timeout, the longest wait, and the removal of what is not wanted any more.
    story.pass(Duration::from_secs(15) + HALF_TTL + 2 * CONFIRM_QUIET + HALF_TTL);
    assert!(story.core.is_whole(), "seed {seed}: {:?}", story.core);
    assert!(story.holds_all(), "seed {seed}");
}

#[test]
fn a_path_on_other_terms_is_a_change_that_is_written() {
    with_each(|| {
        let mut story = Story::published(10);
        story.pass(CONFIRM_QUIET);
        story.sent.clear();
        story.want_on([key("/jobs/1")], Some(&terms(7)));
        story.want_on([key("/jobs/2")], Some(&terms(7)));
        story.want_on([key("/jobs/3")], Some(&terms(100)));
        story.settle();
        assert_eq!(story.sent, [Sent::Write(1), Sent::Write(1)], "those of the third are the same");
        assert!(story.holds_all());
        story.pass(2 * HALF_TTL);
        assert_eq!(story.written(), 2, "and both sides' digests agree");
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
        let mut story = Story::published(10);
        story.pass(CONFIRM_QUIET);
        story.hangs = true;
        story.want(keys(30), true);
        assert_eq!(story.sent.last(), Some(&Sent::Write(20)));
        story.hangs = false;
        // It says that this is all, after five of twenty, of which it holds none.
        let id = story.newest_request();
        let answer = Written { id, last: true, done: 5, refused: Vec::new() };
        story.step(Input::Told(FromReplica::Written(answer)));
        assert_eq!(story.sent.last(), Some(&Sent::Announce), "at once");
        story.settle();
        assert!(story.holds_all() && story.core.is_whole());
    });
}
