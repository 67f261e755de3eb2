//! Damage is never silent: a start refuses a bad disk with file and offset, or everything reported
//! survives; a corrupt part is reported when it is read.

use std::path::{Path, PathBuf};

use longshore_protocol::messages::work::Action;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::JournalOpenError;
use super::super::simulated_disk::{Call, Fault, SimulatedDisk};
use super::harness::SimulationHarness;
use super::{DIR, env_or, options};

/// No record ends in more zeros than this. A truncated file lacks them, an allocated one has them.
const ZEROS: u64 = 24;

/// The result of a start on a bad disk.
#[derive(Debug)]
enum StartResult {
    /// Everything reported survived.
    Intact { last: u64, cut: bool },
    /// Some parts are reported damaged on read; all others are unchanged.
    DamagedParts,
    /// It refuses to start, with file and offset.
    Refused { file: PathBuf, offset: u64 },
}

/// Starts on that disk, and compares its state with the model.
fn start_on(harness: &SimulationHarness, disk: SimulatedDisk, what: &str) -> StartResult {
    let mut harness = harness.fork(disk);
    match harness.open() {
        Ok(mut run) => {
            let (last, cut) = (run.recovered.last_index, run.recovered.cut.is_some());
            let damaged = run.damaged;
            harness.run_clients(&mut run, 2).unwrap_or_else(|why| panic!("{what}: {why}"));
            drop(run);
            harness.disk = harness.disk.after_power_cut(last);
            harness.open().unwrap_or_else(|why| panic!("{what}, at the next start: {why}"));
            if damaged > 0 { StartResult::DamagedParts } else { StartResult::Intact { last, cut } }
        }
        Err(JournalOpenError::Damaged { file, offset, .. }) => {
            StartResult::Refused { file, offset }
        }
        Err(
            JournalOpenError::PayloadsLost { file, .. } | JournalOpenError::NoIdentity { file },
        ) => StartResult::Refused { file, offset: 0 },
        Err(why) => panic!("{what}: {why}"),
    }
}

fn last_segment(disk: &SimulatedDisk) -> PathBuf {
    let segments = disk.paths().into_iter().filter(|path| is_segment(path));
    segments.filter(|path| end_of_data(disk, path) > 4096).max().expect("there is a segment")
}

pub(super) fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "seg")
}

pub(super) fn is_snapshot(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "snap")
}

pub(super) fn end_of_data(disk: &SimulatedDisk, path: &Path) -> u64 {
    let bytes = disk.bytes(path);
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

/// Runs the publisher and closes it; with a snapshot before its last `after_snapshot` steps.
pub(super) fn run_and_close(
    harness: &mut SimulationHarness,
    steps: u32,
    after_snapshot: Option<u32>,
) {
    let mut run = harness.open().expect("a good disk");
    harness.run_clients(&mut run, steps).expect("a good disk");
    if let Some(steps) = after_snapshot {
        harness.snapshot(&mut run).expect("a good disk");
        harness.steps(&mut run, steps).expect("a good disk");
    }
    run.background.sync_watermark().expect("a good disk");
}

/// Truncates the last segment at every `step`th byte, and counts complete, damaged and refused
/// starts; also returns its length.
fn cut_at(step: usize, harness: &SimulationHarness) -> ([u64; 3], u64) {
    let segment = last_segment(&harness.disk);
    let end = end_of_data(&harness.disk, &segment);
    let mut found = [0; 3];
    for length in (0..=end + ZEROS).step_by(step) {
        let disk = harness.disk.after_kill();
        disk.tamper(&segment, |bytes| bytes.truncate(length as usize));
        match start_on(harness, disk, &format!("cut at {length}")) {
            StartResult::Intact { .. } => found[0] += 1,
            StartResult::DamagedParts => found[1] += 1,
            StartResult::Refused { file, offset } => {
                // Where the next command would be, also after what a snapshot covers.
                assert!(file == segment && offset <= length.max(end), "{length}: {offset}");
                found[2] += 1;
            }
        }
    }
    (found, end)
}

#[test]
fn last_segment_truncated_anywhere_is_refused_or_complete() {
    for after_snapshot in [None, Some(8)] {
        let mut harness = SimulationHarness::with_payloads(1, options(), 100);
        harness.takes_snapshots = false;
        run_and_close(&mut harness, 10, after_snapshot);
        let ([intact, damaged, refused], end) = cut_at(1, &harness);
        assert!(intact >= 1 && refused + ZEROS >= end, "{intact} {damaged} {refused} of {end}");
    }
}

#[test]
fn truncation_below_a_snapshot_is_reported_on_read() {
    // A few KiB after the header, one start for each three bytes; and jobs that need them.
    let closed = |seed| {
        let mut harness = SimulationHarness::with_payloads(seed, options(), 100);
        harness.takes_snapshots = false;
        run_and_close(&mut harness, 10, Some(0));
        harness
    };
    let is_short = |harness: &SimulationHarness| {
        (5_000..6_500).contains(&end_of_data(&harness.disk, &last_segment(&harness.disk)))
            && harness.model.jobs_for(Action::Cancel).len() > 3
    };
    let harness = (1..200).map(closed).find(is_short).expect("some run is short");
    let ([intact, damaged, refused], end) = cut_at(3, &harness);
    // Without its header a file is not recognized as the one that the snapshot names.
    assert!(intact >= 1 && damaged > 100, "{intact} {damaged} {refused} of {end}");
}

#[test]
fn unacknowledged_tail_is_erased_and_reported() {
    for seed in [1, 3] {
        let mut harness = SimulationHarness::with_payloads(seed, options(), 300);
        let mut run = harness.open().expect("a good disk");
        harness.run_clients(&mut run, 12).expect("a good disk");
        run.background.sync_watermark().expect("a good disk");
        let before = end_of_data(&harness.disk, &last_segment(&harness.disk));
        // One more commit, whose sync fails: it is written and not acknowledged.
        let is_segments = |call, path: &Path| call == Call::Sync && is_segment(path);
        harness.disk.fail(Fault::nth_where(1, is_segments).for_good());
        assert!(harness.run_clients(&mut run, 10).is_err());
        drop(run);
        harness.disk.heal();
        let segment = last_segment(&harness.disk);
        let end = end_of_data(&harness.disk, &segment);
        let (mut cuts, mut lasts) = (0, Vec::new());
        for length in before + ZEROS..=end + ZEROS {
            let disk = harness.disk.after_kill();
            disk.tamper(&segment, |bytes| bytes.truncate(length as usize));
            let found = start_on(&harness, disk, &format!("seed {seed}: cut at {length}"));
            let StartResult::Intact { last, cut } = found else {
                panic!("seed {seed}: cut at {length}: {found:?}")
            };
            cuts += u64::from(cut);
            lasts.push(last);
        }
        assert!(lasts.is_sorted(), "a longer file has no fewer commands");
        lasts.dedup();
        // At the end of a record there is nothing to truncate, nor within trailing zeros.
        let boundaries = ZEROS * (1 + lasts.len() as u64);
        assert!(cuts + boundaries > end - before, "{cuts} of {}, {lasts:?}", end - before);
        assert!(lasts.len() > 1, "some truncations end at a record: {lasts:?}");
    }
}

#[test]
fn corrupt_newest_snapshot_loses_nothing() {
    let (mut older, mut without) = (0, 0);
    for seed in 0..env_or("LONGSHORE_ROTTEN_SNAPSHOTS", 60) {
        let mut harness = SimulationHarness::new(seed, options());
        // With a single snapshot there is the whole log.
        harness.takes_snapshots = seed % 4 != 0;
        let steps = if harness.takes_snapshots { 150 } else { 10 };
        run_and_close(&mut harness, steps, Some(10));
        let paths = harness.disk.paths().into_iter();
        let snapshots: Vec<PathBuf> = paths.filter(|path| is_snapshot(path)).collect();
        assert!(snapshots.len() <= 2, "seed {seed}: {snapshots:?}");
        let newest = snapshots.last().expect("one was taken");
        let disk = harness.disk.after_kill();
        let bits = disk.bytes(newest).len() as u64 * 8;
        disk.flip(newest, StdRng::seed_from_u64(seed).random_range(0..bits));
        let found = start_on(&harness, disk, &format!("seed {seed}"));
        assert!(matches!(found, StartResult::Intact { .. }), "seed {seed}: {found:?}");
        match snapshots.len() {
            1 => without += 1,
            _ => older += 1,
        }
    }
    assert!(older > 20 && without > 5, "{older} {without}");
}

#[test]
fn single_bit_flip_anywhere_is_never_silent() {
    let target = env_or("LONGSHORE_BIT_FLIPS", 700);
    let (mut refused, mut intact, mut damaged) = (0, 0, 0);
    let mut random = StdRng::seed_from_u64(5);
    for seed in 0.. {
        let mut harness = SimulationHarness::new(seed, options());
        run_and_close(&mut harness, 60, (seed % 2 == 0).then_some(10));
        let files = harness.disk.paths();
        for _ in 0..100 {
            let path = &files[random.random_range(0..files.len())];
            let data = match random.random_bool(0.9) {
                true => end_of_data(&harness.disk, path),
                false => harness.disk.bytes(path).len() as u64,
            };
            let bit = random.random_range(0..(data * 8).max(1));
            let disk = harness.disk.after_kill();
            disk.flip(path, bit);
            let what = format!("seed {seed}: bit {bit} of {path:?}");
            match start_on(&harness, disk, &what) {
                StartResult::Refused { file, offset } => {
                    refused += 1;
                    assert!(file.starts_with(DIR), "{what}: {file:?}");
                    assert!(file != *path || offset <= bit / 8, "{what}: reported at {offset}");
                }
                StartResult::Intact { .. } => intact += 1,
                StartResult::DamagedParts => damaged += 1,
            }
        }
        if refused + intact + damaged >= target {
            break;
        }
    }
    let least = target / 100;
    assert!(refused > least && intact > least && damaged > least, "{refused} {intact} {damaged}");
}
