//! Power cuts at any call: afterwards every response still holds, and nothing exists that no client
//! requested.

use rand::RngExt;

use super::super::JournalOpenError;
use super::super::simulated_disk::Fault;
use super::command_coverage::{COMMANDS, CommandCoverage};
use super::damage::is_snapshot;
use super::harness::SimulationHarness;
use super::phase::{Phase, PhaseCoverage};
use super::{env_or, options_of};

/// Phases that need power cuts.
const PHASES: [Phase; 8] = [
    Phase::Recovery,
    Phase::Commit,
    Phase::CommitWatermark,
    Phase::Rotation,
    Phase::SnapshotWrite,
    Phase::SnapshotSwitch,
    Phase::Compaction,
    Phase::Deletion,
];

/// Runs of one seed, each of which ends with a power cut or a kill. Returns the number of cuts, and
/// a trace that distinguishes runs.
fn run_seed(
    seed: u64,
    coverage: &mut PhaseCoverage,
    command_coverage: &mut CommandCoverage,
) -> (u64, u32) {
    let mut harness = SimulationHarness::new(seed, options_of(seed));
    let mut cuts = 0;
    for _ in 0..harness.random.random_range(2..7) {
        schedule_power_cut(&mut harness);
        let starting = run_until_fault(&mut harness, seed);
        coverage.note(&harness.disk, starting);
        let power_fails = harness.random.random_bool(0.9);
        let next = harness.random.random();
        harness.disk = match power_fails {
            true => harness.disk.after_power_cut(next),
            false => harness.disk.after_kill(),
        };
        cuts += u64::from(power_fails);
        if harness.once_in(4) {
            corrupt_newest_snapshot(&mut harness);
        }
    }
    // In the end nothing fails, and everything survives.
    assert!(!run_until_fault(&mut harness, seed), "seed {seed}: a start without a fault");
    command_coverage.add(&harness.command_coverage());
    (cuts, harness.disk.trace())
}

/// Flips a bit of the newest snapshot, if there is another one: the other must be as good.
fn corrupt_newest_snapshot(harness: &mut SimulationHarness) {
    let snapshots: Vec<_> =
        harness.disk.paths().into_iter().filter(|path| is_snapshot(path)).collect();
    if let [_, .., newest] = &snapshots[..] {
        let bits = harness.disk.bytes(newest).len() as u64 * 8;
        harness.disk.flip(newest, harness.random.random_range(0..bits));
    }
}

/// Schedules a power cut at some call, or at one of a rare kind.
pub(super) fn schedule_power_cut(harness: &mut SimulationHarness) {
    let random = &mut harness.random;
    let fault = match random.random_range(0..10) {
        0..5 => Fault::nth_where(random.random_range(1..150), |call, _| call.is_change()),
        5 | 6 => Fault::nth_where(random.random_range(1..15), |call, _| call.is_change()),
        _ => {
            // Rare and short phases more often than the others.
            let phases = [&PHASES[..], &[Phase::Compaction, Phase::Compaction, Phase::Deletion]];
            let phases = phases.concat();
            let phase = phases[random.random_range(0..phases.len())];
            let of = move |call, path: &_| Phase::of(call, path) == phase;
            Fault::nth_where(random.random_range(1..6), of)
        }
    };
    harness.disk.fail(fault.for_good());
}

/// Starts the publisher and runs it until the disk fails, or for a while. True if it failed during
/// the start.
pub(super) fn run_until_fault(harness: &mut SimulationHarness, seed: u64) -> bool {
    let mut run = match harness.open() {
        Ok(run) => run,
        Err(JournalOpenError::Io { .. }) if harness.disk.hit().is_some() => return true,
        Err(why) => panic!("seed {seed}: {why}"),
    };
    let steps = harness.random.random_range(5..80);
    let outcome = harness.run_clients(&mut run, steps);
    assert!(outcome.is_ok() || harness.disk.hit().is_some(), "seed {seed}: {outcome:?}");
    false
}

/// Prints the seed if the test panics.
pub(super) struct SeedReport(pub(super) u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FAULT seed {}", self.0);
        }
    }
}

#[test]
fn any_power_cut_preserves_responses_and_invents_nothing() {
    let (mut coverage, mut command_coverage) =
        (PhaseCoverage::default(), CommandCoverage::default());
    let (target, mut cuts, mut seed) = (env_or("LONGSHORE_POWER_CUTS", 1_500), 0, 0);
    while cuts < target {
        // A failure prints its seed.
        let report = SeedReport(seed);
        cuts += run_seed(seed, &mut coverage, &mut command_coverage).0;
        drop(report);
        seed += 1;
    }
    coverage.assert(&PHASES, target / 100);
    command_coverage.assert_commands(&COMMANDS, target / 500);
    command_coverage.assert_changes(target / 500);
}

#[test]
fn same_seed_gives_the_same_power_cut_run() {
    let mut traces = Vec::new();
    for seed in 0..10 {
        let (coverage, command_coverage) =
            (&mut PhaseCoverage::default(), &mut CommandCoverage::default());
        let once = run_seed(seed, coverage, command_coverage);
        assert_eq!(once, run_seed(seed, coverage, command_coverage), "seed {seed}");
        traces.push(once.1);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 10, "and another seed is another run");
}
