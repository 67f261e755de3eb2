//! What the disk has not kept is never silently missing: each bad disk is refused with file and
//! offset, or everything that was told is there; a part that is rotten is told when it is read.

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::OpenError;
use super::super::simulated_disk::{Call, Fault, SimulatedDisk};
use super::world::World;
use super::{DIR, asked, options};

/// A record ends in no more zeros than this: they are there in a file that was allocated, and not
/// in one that was cut.
const ZEROS: u64 = 24;

/// What a start makes of a bad disk.
#[derive(Debug)]
enum Found {
    /// All that was told is there.
    Whole { last: u64, cut: bool },
    /// Some parts are told to be damaged when they are read, and all others are as they were
    /// written.
    Rotten,
    /// It does not start, and says which file, and where in it.
    Refused { file: PathBuf, offset: u64 },
}

/// Starts on that disk; what it finds was held against what was told.
fn start_on(world: &World, disk: SimulatedDisk, what: &str) -> Found {
    let mut world = world.fork(disk);
    match world.open() {
        Ok(mut run) => {
            let (last, cut) = (run.recovered.last_index, run.recovered.cut.is_some());
            let damaged = run.damaged;
            world.live(&mut run, 2).unwrap_or_else(|why| panic!("{what}: {why}"));
            drop(run);
            world.disk = world.disk.after_power_cut(last);
            world.open().unwrap_or_else(|why| panic!("{what}, at the next start: {why}"));
            if damaged > 0 { Found::Rotten } else { Found::Whole { last, cut } }
        }
        Err(OpenError::Damaged { file, offset, .. }) => Found::Refused { file, offset },
        Err(OpenError::PayloadsLost { file, .. } | OpenError::NoIdentity { file }) => {
            Found::Refused { file, offset: 0 }
        }
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

/// Runs the publisher and closes it; with a snapshot before the last so many of its steps.
pub(super) fn run_and_close(world: &mut World, steps: u32, after_snapshot: Option<u32>) {
    let mut run = world.open().expect("a good disk");
    world.live(&mut run, steps).expect("a good disk");
    if let Some(steps) = after_snapshot {
        world.snapshot(&mut run).expect("a good disk");
        world.steps(&mut run, steps).expect("a good disk");
    }
    run.hand.firm_mark().expect("a good disk");
}

/// What starts make of the last segment cut short at every byte: how often it is whole, rotten, and
/// refused, and how long it is.
fn cut_at_every_byte(world: &World) -> ([u64; 3], u64) {
    let segment = last_segment(&world.disk);
    let end = end_of_data(&world.disk, &segment);
    let mut found = [0; 3];
    for length in 0..=end + ZEROS {
        let disk = world.disk.after_kill();
        disk.tamper(&segment, |bytes| bytes.truncate(length as usize));
        match start_on(world, disk, &format!("cut at {length}")) {
            Found::Whole { .. } => found[0] += 1,
            Found::Rotten => found[1] += 1,
            Found::Refused { file, offset } => {
                // Where the next command would stand: behind what a snapshot covers, too.
                assert!(file == segment && offset <= length.max(end), "{length}: {offset}");
                found[2] += 1;
            }
        }
    }
    (found, end)
}

#[test]
fn the_last_segment_cut_short_at_any_byte_is_refused_or_whole() {
    for after_snapshot in [None, Some(8)] {
        let mut world = World::with_payloads(1, options(), 100);
        world.takes_snapshots = false;
        run_and_close(&mut world, 10, after_snapshot);
        let ([whole, rotten, refused], end) = cut_at_every_byte(&world);
        assert!(whole >= 1 && refused + ZEROS >= end, "{whole} {rotten} {refused} of {end}");
    }
}

#[test]
fn the_last_segment_cut_short_below_a_snapshot_is_told_when_it_is_read() {
    // A few KiB behind the header: there are as many starts as bytes.
    let closed = |seed| {
        let mut world = World::with_payloads(seed, options(), 100);
        world.takes_snapshots = false;
        run_and_close(&mut world, 10, Some(0));
        world
    };
    let is_short = |world: &World| {
        (5_000..6_500).contains(&end_of_data(&world.disk, &last_segment(&world.disk)))
    };
    let world = (1..200).map(closed).find(is_short).expect("some run is short");
    let ([whole, rotten, refused], end) = cut_at_every_byte(&world);
    // Without its header a file is not the one that the snapshot names.
    assert!(whole >= 1 && rotten > 100, "{whole} {rotten} {refused} of {end}");
}

#[test]
fn a_tail_that_nobody_was_told_of_is_cut_off_at_any_byte_and_said() {
    for seed in [1, 3] {
        let mut world = World::with_payloads(seed, options(), 300);
        let mut run = world.open().expect("a good disk");
        world.live(&mut run, 12).expect("a good disk");
        run.hand.firm_mark().expect("a good disk");
        let before = end_of_data(&world.disk, &last_segment(&world.disk));
        // One more commit, whose sync fails: it is written, and nobody is told.
        let is_segments = |call, path: &Path| call == Call::Sync && is_segment(path);
        world.disk.fail(Fault::nth_where(1, is_segments).for_good());
        assert!(world.live(&mut run, 10).is_err());
        drop(run);
        world.disk.heal();
        let segment = last_segment(&world.disk);
        let end = end_of_data(&world.disk, &segment);
        let (mut cuts, mut lasts) = (0, Vec::new());
        for length in before + ZEROS..=end + ZEROS {
            let disk = world.disk.after_kill();
            disk.tamper(&segment, |bytes| bytes.truncate(length as usize));
            let found = start_on(&world, disk, &format!("seed {seed}: cut at {length}"));
            let Found::Whole { last, cut } = found else {
                panic!("seed {seed}: cut at {length}: {found:?}")
            };
            cuts += u64::from(cut);
            lasts.push(last);
        }
        assert!(lasts.is_sorted(), "a longer file has no fewer commands");
        lasts.dedup();
        // Where a record ends there is nothing to cut off, nor in a few bytes that are zeros.
        let boundaries = ZEROS * (1 + lasts.len() as u64);
        assert!(cuts + boundaries > end - before, "{cuts} of {}, {lasts:?}", end - before);
        assert!(lasts.len() > 1, "some of it was whole: {lasts:?}");
    }
}

#[test]
fn a_rotten_newest_snapshot_loses_nothing() {
    let (mut older, mut without) = (0, 0);
    for seed in 0..asked("LONGSHORE_ROTTEN_SNAPSHOTS", 60) {
        let mut world = World::new(seed, options());
        // With a single one there is the whole log.
        world.takes_snapshots = seed % 4 != 0;
        let steps = if world.takes_snapshots { 150 } else { 10 };
        run_and_close(&mut world, steps, Some(10));
        let paths = world.disk.paths().into_iter();
        let snapshots: Vec<PathBuf> = paths.filter(|path| is_snapshot(path)).collect();
        assert!(snapshots.len() <= 2, "seed {seed}: {snapshots:?}");
        let newest = snapshots.last().expect("one was taken");
        let disk = world.disk.after_kill();
        let bits = disk.bytes(newest).len() as u64 * 8;
        disk.flip(newest, StdRng::seed_from_u64(seed).random_range(0..bits));
        let found = start_on(&world, disk, &format!("seed {seed}"));
        assert!(matches!(found, Found::Whole { .. }), "seed {seed}: {found:?}");
        match snapshots.len() {
            1 => without += 1,
            _ => older += 1,
        }
    }
    assert!(older > 20 && without > 5, "{older} {without}");
}

#[test]
fn one_flipped_bit_anywhere_is_never_silent() {
    let wanted = asked("LONGSHORE_BIT_FLIPS", 700);
    let (mut refused, mut whole, mut rotten) = (0, 0, 0);
    let mut random = StdRng::seed_from_u64(5);
    for seed in 0.. {
        let mut world = World::new(seed, options());
        run_and_close(&mut world, 60, (seed % 2 == 0).then_some(10));
        let files = world.disk.paths();
        for _ in 0..100 {
            let path = &files[random.random_range(0..files.len())];
            let data = match random.random_bool(0.9) {
                true => end_of_data(&world.disk, path),
                false => world.disk.bytes(path).len() as u64,
            };
            let bit = random.random_range(0..(data * 8).max(1));
            let disk = world.disk.after_kill();
            disk.flip(path, bit);
            let what = format!("seed {seed}: bit {bit} of {path:?}");
            match start_on(&world, disk, &what) {
                Found::Refused { file, offset } => {
                    refused += 1;
                    assert!(file.starts_with(DIR), "{what}: {file:?}");
                    assert!(file != *path || offset <= bit / 8, "{what}: told at {offset}");
                }
                Found::Whole { .. } => whole += 1,
                Found::Rotten => rotten += 1,
            }
        }
        if refused + whole + rotten >= wanted {
            break;
        }
    }
    let least = wanted / 100;
    assert!(refused > least && whole > least && rotten > least, "{refused} {whole} {rotten}");
}
