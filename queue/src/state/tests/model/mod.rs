//! A naive model, written to be read: every question is answered by looking at every job. Random
//! commands with random clocks go to both, and everything that can be seen from outside must agree
//! after each.
//!
//! - [`draws`] and [`asks`] make commands, biased towards danger; [`driver`] plays them;
//!   [`comparing`] compares.
//! - [`naive`] is the model; its parts are [`jobs`], [`queues`], [`sessions`], [`leases`],
//!   [`acting`], [`time`] and
//!   [`dispatching`].
//!
//! `LONGSHORE_MODEL_CASES` asks for more cases; `LONGSHORE_MODEL_TRACE=1` prints the commands of
//! those that fail.

mod acting;
mod asks;
mod comparing;
mod dispatching;
mod draws;
mod driver;
mod jobs;
mod leases;
mod naive;
mod queues;
mod sessions;
mod time;

use std::collections::BTreeSet;

use longshore_protocol::{CheckpointOutcome, DeathReason, JobChange, JobState};
use proptest::prelude::*;

use self::driver::Harness;

const COMMANDS: usize = 200;

/// Cases; `LONGSHORE_MODEL_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("LONGSHORE_MODEL_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(3_000)
}

/// The seed of one command; shrinking leaves commands out, and does not change the others.
fn command() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.999, any::<u64>().no_shrink())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn the_state_does_what_the_model_does(
        mood in any::<u8>().no_shrink(),
        seeds in prop::collection::vec(command(), COMMANDS),
    ) {
        let mut harness = Harness::begin(mood);
        seeds.into_iter().flatten().for_each(|seed| harness.play(seed));
        harness.end();
    }
}

/// A model that never meets a danger proves nothing: these are met within the first few hundred
/// cases of any run.
#[test]
fn random_commands_meet_every_danger() {
    let mut draw = draws::Draw(1);
    let mut met = BTreeSet::new();
    for case in 0..600u32 {
        let mut harness = Harness::begin(case as u8);
        harness.met = Some(std::mem::take(&mut met));
        (0..COMMANDS).for_each(|_| harness.play(draw.next()));
        met = harness.met.take().unwrap_or_default();
    }
    let mut expected: Vec<String> = Vec::new();
    expected.extend(JobChange::ALL.iter().map(|change| format!("{change:?} ")));
    expected.extend(DeathReason::ALL.iter().map(|reason| format!("Dead {reason:?}")));
    // What is refused for want of room never comes so far.
    let stored = CheckpointOutcome::ALL.iter().filter(|o| **o != CheckpointOutcome::NoSpace);
    expected.extend(stored.map(|o| format!("Checkpoint {o:?}")));
    expected.extend(JobState::ALL.iter().map(|state| format!("Act NotInState({state:?})")));
    for text in [
        "Existing",
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
        "Act Unknown",
        "Act more",
        "32 attempts",
        "64 checkpoints",
    ] {
        expected.push(text.to_owned());
    }
    let is_met = |text: &String| met.iter().any(|met| met.starts_with(text.as_str()));
    let missed: Vec<&String> = expected.iter().filter(|text| !is_met(text)).collect();
    assert!(missed.is_empty(), "never met: {missed:?}");
}
