//! The same commands give the same bytes, and bytes give back the same state.

use bytes::Bytes;
use longshore_protocol::messages::work::{NewSettle, Order};
use longshore_protocol::{JobOptions, NewJob};

use super::sources::sources;
use super::story::*;
use crate::Rules;
use crate::command::Command;
use crate::log::Snapshot;
use crate::outcome::{Outcomes, RecordRef};
use crate::state::snapshot::BLOCK_BYTES;
use crate::state::{Frozen, Restoring, SnapshotError, State};

/// Applies a log from the beginning.
pub(super) fn replay(story: &Story, rules: Rules) -> State {
    let mut state = State::with_rules(rules);
    let mut out = Outcomes::default();
    for (index, now, command) in &story.log {
        out.clear();
        state.apply(*index, *now, command, &mut out);
    }
    state
}

fn busy() -> Story {
    let mut story = Story::begin();
    story.fill(1..=20);
    let (a, handed) = story.worker("a", QUEUE, 8);
    story.worker("b", "/jobs/**", 3);
    story.complete(a, handed[0].token);
    story.settle(a, handed[1].token, &fail());
    story.settle(a, handed[2].token, &NewSettle::Bury(error("no")));
    story.settle(a, handed[3].token, &NewSettle::Release);
    story.expire(handed[4].token, true);
    story.taker("c", sources(Order::Weighted, &[("/jobs/x", 2), ("/jobs/{x,y}", 1)]), 5);
    story.fill_path("/jobs/y", 31..=32);
    story.fill_path("/jobs/x", 33..=36);
    story.pause("/jobs/y*");
    story.pause("/jobs/none");
    story
}

#[test]
fn a_restored_state_is_the_same_state() {
    let story = busy();
    let bytes = story.state.snapshot_bytes();
    let restored = State::restore(&bytes).unwrap();
    restored.invariant().unwrap();
    assert_eq!(restored.snapshot_bytes(), bytes);
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), bytes);
}

/// Jobs with everything that a job can have beside its row.
fn laden() -> Story {
    let mut story = busy();
    let producer = story.link("producer");
    let keeps = JobOptions { keep_result: true, ..JobOptions::default() };
    for number in 41..=42 {
        story.enqueue(producer, &[NewJob { path: path("/jobs/z"), ..with(number, keeps.clone()) }]);
    }
    let (link, handed) = story.worker("d", "/jobs/z", 1);
    let token = handed[0].token;
    for sequence in 1..=3 {
        story.apply(checkpoint(link, token, sequence, "so far so good"));
    }
    story.settle(link, token, &fail());
    let (link, handed) = story.worker("e", "/jobs/z", 1);
    let result = Bytes::from_static(b"forty-two");
    story.settle(link, handed[0].token, &NewSettle::Complete { result: Some(result) });
    story
}

fn blocks(mut frozen: Frozen) -> Vec<Vec<u8>> {
    let mut blocks = vec![Vec::new()];
    while frozen.next_block(blocks.last_mut().unwrap()) {
        blocks.push(Vec::new());
    }
    blocks.pop();
    blocks
}

/// Every part of the log that stands anywhere in the state, however it is kept: read off what the state says of itself.
pub(super) fn naive_parts(state: &State) -> Vec<RecordRef> {
    let text = format!("{state:?}");
    let numbers = |text: &str| {
        let inside = text.split_once(" }").unwrap().0;
        let fields = inside.split(", ").map(|field| field.split_once(": ").unwrap().1.parse());
        let fields: Vec<u64> = fields.collect::<Result<_, _>>().unwrap();
        RecordRef { index: fields[0], at: fields[1] as u32, length: fields[2] as u32 }
    };
    let parts = text.split("RecordRef { ").skip(1).map(numbers);
    // A free row names nothing.
    let mut parts: Vec<RecordRef> = parts.filter(|part| part.index > 0).collect();
    parts.sort_unstable();
    parts
}

pub(super) fn parts_of(frozen: &Frozen) -> Vec<RecordRef> {
    let mut parts = Vec::new();
    frozen.parts(&mut |part| parts.push(part));
    parts.sort_unstable();
    parts
}

#[test]
fn a_frozen_state_names_every_part_of_the_log_that_is_still_wanted() {
    let mut story = laden();
    let expected = naive_parts(&story.state);
    let mut views = Vec::new();
    for row in (0..story.state.rows.made()).map(|slot| &story.state.rows[slot]) {
        let Some(view) = story.state.job(&row.id, story.now) else { continue };
        views.push(view.entry);
        views.extend(view.result);
        views.extend(view.attempt_errors.into_iter().flatten());
        views.extend(view.checkpoints);
    }
    views.sort_unstable();
    assert_eq!(views, expected, "what readers can ask for");
    assert_eq!(story.job(42).result.into_iter().count(), 1);
    assert_eq!(story.job(41).checkpoints.len(), 3);
    let frozen = story.state.freeze();
    assert_eq!(parts_of(&frozen), expected);
    assert_eq!(parts_of(&frozen), expected, "asked again");
}

#[test]
fn what_is_frozen_stays_as_it_was_while_the_state_goes_on() {
    let mut story = laden();
    let bytes = story.state.snapshot_bytes();
    let frozen = story.state.freeze();
    assert_eq!((frozen.index(), frozen.epoch()), (story.index, 1));
    story.fill(101..=120);
    let (link, handed) = story.worker("f", "/jobs/**", 40);
    for handed in &handed {
        story.complete(link, handed.token);
    }
    let later = story.state.freeze();
    let later_bytes = story.state.snapshot_bytes();
    story.start();
    let joined = |frozen| {
        let mut out = Vec::new();
        for block in blocks(frozen) {
            out.extend((block.len() as u32).to_le_bytes());
            out.extend(block);
        }
        out
    };
    assert_eq!(joined(frozen), bytes);
    assert_eq!(joined(later), later_bytes);
    assert_eq!(replay(&story, Rules::STANDARD).snapshot_bytes(), story.state.snapshot_bytes());
}

#[test]
fn a_block_ends_with_the_thing_that_fills_it() {
    let mut story = laden();
    story.fill(200..=300);
    let blocks = blocks(story.state.freeze());
    assert!(blocks.len() > 50, "{} blocks", blocks.len());
    let longest = blocks.iter().map(Vec::len).max();
    assert!(longest.is_some_and(|longest| longest < BLOCK_BYTES + 1_024), "{longest:?}");
}

#[test]
fn a_cut_or_changed_snapshot_is_refused_or_harmless_and_never_a_panic() {
    let bytes = laden().state.snapshot_bytes();
    for length in 0..bytes.len() {
        assert!(State::restore(&bytes[..length]).is_err(), "cut at {length}");
    }
    for at in 0..bytes.len() {
        for change in [0x55, 0xff, 1, 2, 4, 8, 16, 32, 64, 128] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            let _ = State::restore(&changed);
        }
    }
    let version = [&1u32.to_le_bytes()[..], &[9]].concat();
    assert!(matches!(State::restore(&version), Err(SnapshotError::Version(9))));
}

#[test]
fn a_block_that_is_left_out_doubled_or_empty_is_refused() {
    let blocks = blocks(laden().state.freeze());
    let restore = |blocks: &[Vec<u8>]| {
        let mut restoring = Restoring::new();
        blocks.iter().try_for_each(|block| restoring.block(block.clone().into()))?;
        restoring.finish().map(|_| ())
    };
    assert_eq!(restore(&blocks), Ok(()));
    for n in 0..blocks.len() {
        let mut changed = blocks.clone();
        changed.insert(n, blocks[n].clone());
        assert!(restore(&changed).is_err(), "block {n} came twice");
        changed[n].clear();
        assert!(restore(&changed).is_err(), "block {n} had an empty one before it");
        changed.remove(n);
        changed.remove(n);
        assert!(restore(&changed).is_err(), "block {n} was left out");
    }
}

#[test]
fn a_count_that_nothing_follows_takes_no_memory() {
    // Whatever the head says: it is only compared with what came.
    let mut head = blocks(State::new().freeze()).remove(0);
    let counts = head.split_off(head.len() - 12);
    for _ in counts {
        head.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    }
    let mut restoring = Restoring::new();
    restoring.block(head.into()).unwrap();
    assert!(restoring.finish().is_err());
}

#[test]
fn an_empty_state_has_a_snapshot() {
    let state = State::new();
    let restored = State::restore(&state.snapshot_bytes()).unwrap();
    assert_eq!(restored.snapshot_bytes(), state.snapshot_bytes());
}

#[test]
fn ticks_with_nothing_due_change_only_index_and_time() {
    let mut story = busy();
    let out = story.apply(Command::Tick);
    assert_eq!(out, Outcomes::default());
}
