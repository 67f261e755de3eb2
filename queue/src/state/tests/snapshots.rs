//! Snapshots consist of blocks, and malformed ones are refused or harmless.

use bytes::Bytes;
use longshore_protocol::messages::work::{NewSettle, Order};
use longshore_protocol::{Gate, JobOptions, NewBatch, NewJob, ParentEnd};

use super::fairness::sources;
use super::scenario::*;
use crate::command::Command;
use crate::log::Snapshot;
use crate::outcome::RecordRef;
use crate::state::schedule::OCCURRENCE_AT;
use crate::state::snapshot::BLOCK_BYTES;
use crate::state::{Frozen, Restoring, SnapshotError, State};

/// Jobs with every kind of data beside their rows.
fn with_all_job_data() -> StateScenario {
    let mut scenario = StateScenario::begin();
    scenario.fill(1..=20);
    let (a, delivered) = scenario.worker("a", QUEUE, 8);
    scenario.worker("b", "/jobs/**", 3);
    scenario.complete(a, delivered[0].token);
    scenario.settle(a, delivered[1].token, &fail());
    scenario.settle(a, delivered[2].token, &NewSettle::Bury(error("no")));
    scenario.settle(a, delivered[3].token, &NewSettle::Release);
    scenario.expire(delivered[4].token, true);
    let link = scenario.link("c");
    let sources = sources(Order::Weighted, &[("/jobs/x", 2), ("/jobs/{x,y}", 1)]);
    scenario.apply(Command::Subscribe { link, subscription: 1, sources, handlers: 1_000 });
    scenario.credit(link, 1, 5);
    for pattern in ["/jobs/y*", "/jobs/none"] {
        let (gate, pattern) = (Gate::Delivery, glob(pattern));
        scenario.apply(Command::Pause { link, request: 5, gate, pattern, paused: true });
    }
    let producer = scenario.link("producer");
    let keep_result = JobOptions { keep_result: true, ..JobOptions::default() };
    for (number, text) in (31..).zip(["/jobs/y", "/jobs/y", "/jobs/x", "/jobs/x", "/jobs/z"]) {
        let job = NewJob { path: path(text), ..with(number, keep_result.clone()) };
        scenario.enqueue(producer, &[job]);
    }
    let (link, delivered) = scenario.worker("d", "/jobs/z", 1);
    for sequence in 1..=3 {
        scenario.apply(checkpoint(link, delivered[0].token, sequence, "so far so good"));
    }
    scenario.settle(link, delivered[0].token, &fail());
    let delivered = scenario.tick_at_next_timer().assignments;
    let token = match &delivered[..] {
        [delivered] => delivered.token,
        _ => scenario.credit(link, 1, 1)[0].token,
    };
    let result = Bytes::from_static(b"forty-two");
    scenario.settle(link, token, &NewSettle::Complete { result: Some(result) });
    // A batch that holds a member which its queue does not keep.
    scenario.enqueue(producer, &[plain(51).batch(NewBatch::Open)]);
    let keep_nothing = JobOptions { keep_ms: Some(0), ..JobOptions::default() };
    let member = NewJob { path: path("/jobs/batch"), ..with(52, keep_nothing).in_batch(id(51)) };
    scenario.enqueue(producer, &[member, after(53, &[(51, ParentEnd::Success)])]);
    let (link, delivered) = scenario.worker("e", "/jobs/batch", 1);
    scenario.complete(link, delivered[0].token);
    assert_eq!(scenario.counts_of("/jobs/batch").completed, 1);
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

/// Every reference to the log anywhere in the state, parsed from the state's `Debug` output.
pub(super) fn naive_parts(state: &State) -> Vec<RecordRef> {
    let text = format!("{state:?}");
    let numbers = |text: &str| {
        let inside = text.split_once(" }").unwrap().0;
        let fields = inside.split(", ").map(|field| field.split_once(": ").unwrap().1.parse());
        let fields: Vec<u64> = fields.collect::<Result<_, _>>().unwrap();
        RecordRef { index: fields[0], at: fields[1] as u32, length: fields[2] as u32 }
    };
    let parts = text.split("RecordRef { ").skip(1).map(numbers);
    // A free row refers to nothing, and the entry of a job with a template is elsewhere.
    let is_part = |part: &RecordRef| part.index > 0 && part.at < OCCURRENCE_AT;
    let mut parts: Vec<RecordRef> = parts.filter(is_part).collect();
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
fn snapshot_block_ends_with_the_entry_that_fills_it() {
    let mut scenario = with_all_job_data();
    scenario.fill(200..=300);
    let blocks = blocks(scenario.state.freeze());
    assert!(blocks.len() > 50, "{} blocks", blocks.len());
    let longest = blocks.iter().map(Vec::len).max();
    assert!(longest.is_some_and(|longest| longest < BLOCK_BYTES + 1_024), "{longest:?}");
}

#[test]
fn damaged_snapshot_never_causes_a_panic() {
    let bytes = with_all_job_data().state.snapshot_bytes();
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
    let version = [&1u32.to_le_bytes()[..], &[200]].concat();
    assert!(matches!(State::restore(&version), Err(SnapshotError::Version(200))));
}

#[test]
fn missing_duplicate_or_empty_block_is_refused() {
    let blocks = blocks(with_all_job_data().state.freeze());
    let restore = |blocks: &[Vec<u8>]| {
        let mut restoring = Restoring::new();
        blocks.iter().try_for_each(|block| restoring.block(block.clone().into()))?;
        restoring.finish().map(|_| ())
    };
    assert_eq!(restore(&blocks), Ok(()));
    for n in 0..blocks.len() {
        let mut changed = blocks.clone();
        changed.insert(n, blocks[n].clone());
        assert!(restore(&changed).is_err(), "block {n} is duplicated");
        changed[n].clear();
        assert!(restore(&changed).is_err(), "block {n} had an empty one before it");
        changed.remove(n);
        changed.remove(n);
        assert!(restore(&changed).is_err(), "block {n} is missing");
    }
}

#[test]
fn announced_count_without_data_takes_no_memory() {
    // The head's counts are only compared with what follows.
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
fn empty_state_has_a_snapshot() {
    let state = State::new();
    let restored = State::restore(&state.snapshot_bytes()).unwrap();
    assert_eq!(restored.snapshot_bytes(), state.snapshot_bytes());
}
