//! A naive model, written for readability: every query scans every job. Random commands with random
//! clocks go to both, and everything visible from outside must agree after each.
//!
//! - [`draw_commands`] and [`draw_jobs`] make commands, biased towards edge cases; [`driver`] runs
//!   them; [`compare`] compares.
//! - [`naive`] is the model; its parts are [`jobs`], [`keys`], [`order`], [`fair`], [`queues`],
//!   [`sessions`], [`leases`], [`actions`], [`timers`], [`unique`], [`limit`],
//!   [`schedules`] and [`dispatch`].
//!
//! `LONGSHORE_MODEL_CASES` sets the number of cases; `LONGSHORE_MODEL_TRACE=1` prints the commands
//! of failing ones.

mod actions;
mod compare;
mod dispatch;
mod draw_commands;
mod draw_jobs;
mod driver;
mod fair;
mod jobs;
mod keys;
mod leases;
mod limit;
mod naive;
mod order;
mod queues;
mod schedules;
mod sessions;
mod timers;
mod unique;

use std::collections::BTreeSet;

use longshore_protocol::{CheckpointOutcome, DeathReason, JobChange, JobState};
use proptest::prelude::*;

use self::driver::Harness;

const COMMANDS: usize = 200;

/// The number of cases: `LONGSHORE_MODEL_CASES`, or 200, beside those of the other test.
fn cases() -> u32 {
    let cases = std::env::var("LONGSHORE_MODEL_CASES").ok();
    cases.and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// The seed of one command; shrinking removes commands without changing the others.
fn command() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.999, any::<u64>().no_shrink())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn state_agrees_with_the_model(
        focus in any::<u8>().no_shrink(),
        seeds in prop::collection::vec(command(), COMMANDS),
    ) {
        let mut harness = Harness::begin(focus);
        seeds.into_iter().flatten().for_each(|seed| harness.run_seed(seed));
        harness.end();
    }
}

/// A model that never meets an edge case proves nothing. The run ends when each has occurred, and
/// each move of a job that docs/JOBS.md draws; with `LONGSHORE_LONG=1` after 1,000 cases. A move
/// that is not drawn fails it.
#[test]
fn random_commands_reach_every_edge_case() {
    let expected = edge_cases();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/JOBS.md"))
        .expect("docs/JOBS.md");
    let arrows = page.lines().filter(|line| line.contains(" --> "));
    let drawn: BTreeSet<&str> =
        arrows.map(|line| line.split(':').next().unwrap_or(line).trim()).collect();
    // A seed that meets all soon; others take over a thousand cases.
    let mut draw = draw_commands::Draw(9);
    let is_long = std::env::var_os("LONGSHORE_LONG").is_some();
    let mut coverage = BTreeSet::new();
    let (mut missed, mut undrawn) = (Vec::new(), Vec::new());
    for case in 0..1_000u32 {
        let mut harness = Harness::begin(case as u8);
        harness.coverage = Some(std::mem::take(&mut coverage));
        (0..COMMANDS).for_each(|_| harness.run_seed(draw.next()));
        coverage = harness.coverage.take().unwrap_or_default();
        harness.end();

        let is_met =
            |text: &String| coverage.iter().any(|coverage| coverage.starts_with(text.as_str()));
        missed = expected.iter().filter(|text| !is_met(text)).collect();
        let moves: BTreeSet<&str> =
            coverage.iter().filter_map(|c| c.strip_prefix("Move ")).collect();
        assert!(moves.is_subset(&drawn), "{:?} is not drawn", moves.difference(&drawn));
        undrawn = drawn.difference(&moves).copied().collect();
        if missed.is_empty() && undrawn.is_empty() && !is_long {
            println!("all are met within {} cases", case + 1);
            return;
        }
    }
    assert!(missed.is_empty(), "never met: {missed:?}");
    assert!(undrawn.is_empty(), "never moved: {undrawn:?}");
}

fn edge_cases() -> Vec<String> {
    let mut expected: Vec<String> = Vec::new();
    // Batches have a model of their own.
    let changes = JobChange::ALL.iter().filter(|change| **change != JobChange::MemberDead);
    expected.extend(changes.map(|change| format!("{change:?} ")));
    let reasons = DeathReason::ALL.iter().filter(|reason| **reason != DeathReason::MemberDead);
    expected.extend(reasons.map(|reason| format!("Dead {reason:?}")));
    // A refusal for lack of space is decided before the state.
    let stored = CheckpointOutcome::ALL.iter().filter(|o| **o != CheckpointOutcome::NoSpace);
    expected.extend(stored.map(|o| format!("Checkpoint {o:?}")));
    expected.extend(JobState::ALL.iter().map(|state| format!("Act NotInState({state:?})")));
    for text in [
        "Existing",
        "ExistingKey",
        "Refused(KeyConflict)",
        "Refused(KeysFull)",
        "Refused(NotUnique)",
        "Refused(IdConflict)",
        "Refused(NotHere)",
        "Refused(Reserved)",
        "Refused(QueueFull)",
        "Refused(BatchRefused)",
        "Refused(BadPath)",
        "Refused(TooManyQueues)",
        "Refused(QueueClosed)",
        "Refused(NoSpace)",
        "SequenceGap",
        "UnknownProducer",
        "Settle StaleToken",
        "Replace Replaced",
        "Replace Unknown",
        "Replace NotDead",
        "Replace IdConflict",
        "Replace QueueFull",
        "Replace BadOptions",
        "Replace NotUnique",
        "Act Unknown",
        "TooManyLimits",
        "Limit Key",
        "Limit Shared",
        "Limit Queue",
        "Throttled",
        "TooManySchedules",
        "Schedule Added",
        "Schedule Changed",
        "Schedule Unchanged",
        "Schedule Older",
        "Schedule VersionTaken",
        "Schedule Refused(BadOptions)",
        "Schedule Refused(NotHere)",
        "Schedule Unknown",
        "Run Enqueued",
        "Run Refused",
        "Run Unknown",
        "Occurred",
        "Overlapped Skip",
        "Overlapped Buffer",
        "Occurrence refused",
        "Act NotUnique",
        "Act by filter NotUnique",
        "Act more",
        "32 attempts",
        "64 checkpoints",
    ] {
        expected.push(text.to_owned());
    }
    expected
}
