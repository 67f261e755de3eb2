//! Fails the nth call, for every n: later responses stay truthful, and the next start loses
//! nothing.

use super::super::simulated_disk::{Call, Failure, Fault};
use super::super::{JournalOpenError, JournalOptions, SEGMENT_BYTES_MIN};
use super::harness::SimulationHarness;
use super::phase::{Phase, PhaseCoverage};
use super::{SEGMENT_BYTES, options};

/// A seed whose workers keep up, so that segments die and their rest is compacted.
const SEED: u64 = 8;
/// Steps of each run: together they create segments, and make every kind of call.
const STEPS: u32 = 40;
/// Segment length, and most bytes of a payload: commits that write zeros ahead, and commits too
/// long for that.
const SIZES: [(u64, usize); 2] = [(SEGMENT_BYTES, 20_000), (SEGMENT_BYTES_MIN, 200_000)];
/// Runs of the publisher: the second one has something to recover.
const RUNS: u32 = 2;

/// Runs with that fault, then a power cut or a kill, and a start that must recover everything.
/// False if the fault never occurred.
fn run_with_fault(
    (segment_bytes, payload_max): (u64, usize),
    fault: Fault,
    power_fails: bool,
    what: &str,
    coverage: &mut PhaseCoverage,
) -> bool {
    let options = JournalOptions { segment_bytes, ..options() };
    let mut harness = SimulationHarness::with_payloads(SEED, options, payload_max);
    // A full disk is no failure while there is a ballast.
    let may_continue = fault.failure == Failure::Full;
    harness.disk.fail(fault);
    let mut starting = false;
    for _ in 0..RUNS {
        let opened = harness.open();
        starting = harness.disk.hit().is_some();
        let mut run = match opened {
            Ok(run) => run,
            Err(JournalOpenError::Io { .. }) if starting => break,
            Err(why) => panic!("{what}: {why}"),
        };
        let outcome = harness.run_clients(&mut run, STEPS);
        let hit = harness.disk.hit();
        assert!(outcome.is_ok() || hit.is_some(), "{what}: {outcome:?}");
        let is_fatal = hit.as_ref().is_some_and(|(call, path)| {
            let phase = Phase::of(*call, path);
            call.is_change()
                && matches!(phase, Phase::Commit | Phase::CommitWatermark | Phase::Rotation)
        });
        let has_failed = outcome.is_err() || is_fatal && !starting && !may_continue;
        if has_failed {
            // What was committed before the failure may still be reported.
            let committed = run.store.committed();
            let has_ended = (0..2).any(|_| harness.release(&mut run).is_err());
            assert!(has_ended, "{what}: it continues after {hit:?}");
            assert_eq!(harness.model.index, committed, "{what}: it reports more after {hit:?}");
        }
        if hit.is_some() {
            break;
        }
    }
    let met = harness.disk.hit().is_some();
    coverage.note(&harness.disk, starting);
    harness.disk.heal();
    harness.disk = match power_fails {
        true => harness.disk.after_power_cut(1),
        false => harness.disk.after_kill(),
    };
    let mut run = harness.open().unwrap_or_else(|why| panic!("{what}, at the next start: {why}"));
    harness
        .run_clients(&mut run, 5)
        .unwrap_or_else(|why| panic!("{what}, after the next start: {why}"));
    met
}

/// Fails the first call, the second one, and so on, until the workload passes without a failure.
/// Returns the number of failed calls.
fn fail_each(
    what: &str,
    sizes: (u64, usize),
    coverage: &mut PhaseCoverage,
    fault: impl Fn(u64) -> Fault,
) -> u64 {
    for nth in 1.. {
        let power_fails = nth % 2 == 0;
        if !run_with_fault(sizes, fault(nth), power_fails, &format!("{what} {nth}"), coverage) {
            return nth - 1;
        }
    }
    unreachable!("the workload ends")
}

#[test]
fn any_failing_call_leaves_responses_truthful() {
    let mut coverage = PhaseCoverage::default();
    let failing_calls = fail_each("call", SIZES[0], &mut coverage, Fault::nth);
    assert!(failing_calls > 150, "{failing_calls} calls");
    let failing_calls = fail_each("call of long commits", SIZES[1], &mut coverage, Fault::nth);
    assert!(failing_calls > 150, "{failing_calls} calls");
    let phases = [Phase::Recovery, Phase::Commit, Phase::CommitWatermark, Phase::Rotation];
    let of_cycles =
        [Phase::SnapshotWrite, Phase::SnapshotSwitch, Phase::Compaction, Phase::Deletion];
    coverage.assert(&phases, 2);
    coverage.assert(&of_cycles, 2);
}

#[test]
fn any_full_disk_error_leaves_responses_truthful() {
    let coverage = &mut PhaseCoverage::default();
    // Also of calls that only change names and metadata: those need blocks of their own.
    for (call, least) in [
        (Call::Allocate, 3),
        (Call::Write, 20),
        (Call::Create, 3),
        (Call::Sync, 20),
        (Call::Rename, 3),
        (Call::SyncDir, 3),
    ] {
        let full = |nth| Fault::nth_of(call, nth).with(Failure::Full);
        let met = fail_each("full disk", SIZES[0], coverage, full);
        assert!(met > least, "{met} calls to {call:?}");
    }
}

#[test]
fn any_unopenable_file_loses_nothing() {
    let coverage = &mut PhaseCoverage::default();
    for call in [Call::Open, Call::Create] {
        let few = |nth| Fault::nth_of(call, nth).with(Failure::TooManyFiles);
        let met = fail_each("opening", SIZES[0], coverage, few);
        assert!(met > 3, "{met} calls to {call:?}");
    }
}
