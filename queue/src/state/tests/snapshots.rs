//! Snapshots are cut into blocks, and any bytes are refused or harmless.

use bytes::Bytes;
use longshore_protocol::messages::work::{NewSettle, Order};
use longshore_protocol::{Gate, JobOptions, NewJob};

use super::fairness::sources;
use super::scenario::*;
use crate::command::Command;
use crate::log::Snapshot;
use crate::outcome::RecordRef;
use crate::state::snapshot::BLOCK_BYTES;
use crate::state::{Frozen, Restoring, SnapshotError, State};

/// Jobs with everything that a job can have beside its row.
fn laden() -> Scenario {
    let mut scenario = Scenario::begin();
    scenario.fill(1..=20);
    let (a, handed) = scenario.worker("a", QUEUE, 8);
    scenario.worker("b", "/jobs/**", 3);
    scenario.complete(a, handed[0].token);
    scenario.settle(a, handed[1].token, &fail());
    scenario.settle(a, handed[2].token, &NewSettle::Bury(error("no")));
    scenario.settle(a, handed[3].token, &NewSettle::Release);
    scenario.expire(handed[4].token, true);
    let link = scenario.link("c");
    let sources = sources(Order::Weighted, &[("/jobs/x", 2), ("/jobs/{x,y}", 1)]);
    scenario.apply(Command::Subscribe { link, subscription: 1, sources });
    scenario.credit(link, 1, 5);
    for pattern in ["/jobs/y*", "/jobs/none"] {
        let (gate, pattern) = (Gate::Delivery, glob(pattern));
        scenario.apply(Command::Pause { link, request: 5, gate, pattern, paused: true });
    }
    let producer = scenario.link("producer");
    let keeps = JobOptions { keep_result: true, ..JobOptions::default() };
    for (number, text) in (31..).zip(["/jobs/y", "/jobs/y", "/jobs/x", "/jobs/x", "/jobs/z"]) {
        let job = NewJob { path: path(text), ..with(number, keeps.clone()) };
        scenario.enqueue(producer, &[job]);
    }
    let (link, handed) = scenario.worker("d", "/jobs/z", 1);
    for sequence in 1..=3 {
        scenario.apply(checkpoint(link, handed[0].token, sequence, "so far so good"));
    }
    scenario.settle(link, handed[0].token, &fail());
    let handed = scenario.tick_when_due().handed;
    let token = match &handed[..] {
        [handed] => handed.token,
        _ => scenario.credit(link, 1, 1)[0].token,
    };
    let result = Bytes::from_static(b"forty-two");
    scenario.settle(link, token, &NewSettle::Complete { result: Some(result) });
    scenario
}

fn blocks(mut frozen: Frozen) -> Vec<Vec<u8>> {
    let mut blocks = vec![Vec::new()];
    while frozen.next_block(blocks.last_mut().unwrap()) {
        blocks.push(Vec::new());
    }
    blocks.pop();
    blocks
}

/// Every part of the log that stands anywhere in the state, however it is kept: read off what the
/// state says of itself.
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
fn a_block_ends_with_the_thing_that_fills_it() {
    let mut scenario = laden();
    scenario.fill(200..=300);
    let blocks = blocks(scenario.state.freeze());
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
