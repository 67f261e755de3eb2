//! Power cuts at any call: what was told is true afterwards, and nothing is there that nobody has
//! asked for.

use rand::RngExt;

use super::super::OpenError;
use super::super::simulated_disk::Fault;
use super::command_coverage::{COMMANDS, CommandCoverage};
use super::damage::is_snapshot;
use super::harness::Harness;
use super::phase::{Phase, PhaseCoverage};
use super::{env_or, options_of};

/// Phases that cuts have to fall into.
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

/// Lives of one seed, each of which ends with a power cut, or a kill. Gives the cuts, and what
/// tells runs apart.
fn run_seed(
    seed: u64,
    coverage: &mut PhaseCoverage,
    command_coverage: &mut CommandCoverage,
) -> (u64, u32) {
    let mut harness = Harness::new(seed, options_of(seed));
    let mut cuts = 0;
    for _ in 0..harness.random.random_range(2..7) {
        schedule_power_cut(&mut harness);
        let starting = run_until_fault(&mut harness, seed);
        coverage.note(&harness.disk, starting);
        let power_goes = harness.random.random_bool(0.9);
        let next = harness.random.random();
        harness.disk = match power_goes {
            true => harness.disk.after_power_cut(next),
            false => harness.disk.after_kill(),
        };
        cuts += u64::from(power_goes);
        if harness.once_in(4) {
            corrupt_newest_snapshot(&mut harness);
        }
    }
    // In the end nothing fails, and everything is there.
    assert!(!run_until_fault(&mut harness, seed), "seed {seed}: a start without a fault");
    command_coverage.add(&harness.command_coverage());
    (cuts, harness.disk.trace())
}

/// A bit of the newest snapshot is not what it was, if there is another: whenever that may be, the
/// other is as good.
fn corrupt_newest_snapshot(harness: &mut Harness) {
    let snapshots: Vec<_> =
        harness.disk.paths().into_iter().filter(|path| is_snapshot(path)).collect();
    if let [_, .., newest] = &snapshots[..] {
        let bits = harness.disk.bytes(newest).len() as u64 * 8;
        harness.disk.flip(newest, harness.random.random_range(0..bits));
    }
}

/// The power goes at some call, or at one of a kind that is rare.
pub(super) fn schedule_power_cut(harness: &mut Harness) {
    let random = &mut harness.random;
    let fault = match random.random_range(0..10) {
        0..5 => Fault::nth_where(random.random_range(1..150), |call, _| call.is_change()),
        5 | 6 => Fault::nth_where(random.random_range(1..15), |call, _| call.is_change()),
        _ => {
            // Those that are rare and short more often than the others.
            let phases = [&PHASES[..], &[Phase::Compaction, Phase::Compaction, Phase::Deletion]];
            let phases = phases.concat();
            let phase = phases[random.random_range(0..phases.len())];
            let of = move |call, path: &_| Phase::of(call, path) == phase;
            Fault::nth_where(random.random_range(1..6), of)
        }
    };
    harness.disk.fail(fault.for_good());
}

/// The publisher starts and runs until the disk fails, or for a while. True when it failed while it
/// started.
pub(super) fn run_until_fault(harness: &mut Harness, seed: u64) -> bool {
    let mut run = match harness.open() {
        Ok(run) => run,
        Err(OpenError::Io { .. }) if harness.disk.hit().is_some() => return true,
        Err(why) => panic!("seed {seed}: {why}"),
    };
    let steps = harness.random.random_range(5..80);
    let outcome = harness.run_clients(&mut run, steps);
    assert!(outcome.is_ok() || harness.disk.hit().is_some(), "seed {seed}: {outcome:?}");
    false
}

/// Says of which seed it was.
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
    let (target, mut cuts, mut seed) = (env_or("LONGSHORE_POWER_CUTS", 3_000), 0, 0);
    while cuts < target {
        // Whatever is wrong says of which seed it is.
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
