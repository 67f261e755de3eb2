//! A publisher that is to be removed. What becomes of batches is the store's: see the conformance
//! suite.

use longshore_protocol::LinkId;

use super::story::*;
use crate::command::Command;
use crate::state::State;

#[test]
fn a_drain_holds_over_snapshots_and_starts() {
    let mut story = Story::begin();
    let drain = |draining| Command::Drain { link: LinkId(900), request: 5, draining };
    story.apply(drain(true));
    story.state = State::restore(&story.state.snapshot_bytes()).unwrap();
    story.start();
    assert!(story.state.is_draining());
    story.apply(drain(false));
    assert!(!story.state.is_draining());
}
