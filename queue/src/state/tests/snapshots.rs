//! The same commands give the same bytes, and bytes give back the same state.

use longshore_protocol::messages::work::{NewSettle, Order};

use super::sources::sources;
use super::story::*;
use crate::command::Command;
use crate::outcome::Outcomes;
use crate::state::limits::Limits;
use crate::state::{SnapshotError, State};

/// Applies a log from the beginning.
pub(super) fn replay(story: &Story, limits: Limits) -> State {
    let mut state = State::with_limits(limits);
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
    assert_eq!(replay(&story, Limits::STANDARD).snapshot_bytes(), bytes);
}

#[test]
fn a_cut_or_changed_snapshot_is_refused_or_harmless_and_never_a_panic() {
    let bytes = busy().state.snapshot_bytes();
    for length in 0..bytes.len() {
        assert!(State::restore(&bytes[..length]).is_err(), "cut at {length}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        let _ = State::restore(&changed);
    }
    assert!(matches!(State::restore(&[9]), Err(SnapshotError::Version(9))));
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
