//! Without durability: a process kill loses nothing that was acknowledged, and a power cut at most
//! the end. What remains is the state after the first commands, and neither tokens nor epochs
//! repeat.

use longshore_protocol::Durability;
use rand::RngExt;

use super::super::JournalOptions;
use super::harness::SimulationHarness;
use super::power::{SeedReport, run_until_fault, schedule_power_cut};
use super::{env_or, options_of};

/// Counts of the runs of one seed.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct UnsyncedTotals {
    cuts: u64,
    kills: u64,
    /// Cuts that lost acknowledged commands.
    losses: u64,
    trace: u32,
}

fn run_seed(seed: u64) -> UnsyncedTotals {
    let options = JournalOptions { durability: Durability::None, ..options_of(seed) };
    let mut harness = SimulationHarness::new(seed, options);
    let mut totals = UnsyncedTotals::default();
    for _ in 0..harness.random.random_range(2..7) {
        if harness.random.random_bool(0.7) {
            schedule_power_cut(&mut harness);
        }
        run_until_fault(&mut harness, seed);
        let before = harness.lost;
        let power_fails = harness.random.random_bool(0.7);
        let next = harness.random.random();
        harness.disk = match power_fails {
            true => harness.disk.after_power_cut(next),
            false => harness.disk.after_kill(),
        };
        harness.may_lose_unsynced |= power_fails;
        totals.cuts += u64::from(power_fails);
        totals.kills += u64::from(!power_fails);
        // A start without a fault shows the loss; a second power cut may come before anything new
        // is acknowledged.
        if harness.random.random_bool(0.5) {
            assert!(!run_until_fault(&mut harness, seed), "seed {seed}: a start without a fault");
        }
        totals.losses += u64::from(harness.lost > before);
    }
    assert!(!run_until_fault(&mut harness, seed), "seed {seed}: a start without a fault");
    totals.trace = harness.disk.trace();
    totals
}

#[test]
fn without_syncs_only_a_power_cut_loses_the_end() {
    let (target, mut all, mut seed) =
        (env_or("LONGSHORE_UNSYNCED_CUTS", 250), UnsyncedTotals::default(), 0);
    while all.cuts < target {
        let report = SeedReport(seed);
        let totals = run_seed(seed);
        drop(report);
        all.cuts += totals.cuts;
        all.kills += totals.kills;
        all.losses += totals.losses;
        seed += 1;
    }
    let least = target / 10;
    assert!(all.kills >= least && all.losses >= least, "{all:?}");
}

#[test]
fn same_seed_gives_the_same_unsynced_run() {
    for seed in 0..5 {
        assert_eq!(run_seed(seed), run_seed(seed), "seed {seed}");
    }
}
