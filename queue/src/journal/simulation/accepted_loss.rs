//! Accepted damage: a start refuses it unchanged until the loss is accepted, then sets everything
//! damaged aside. Earlier commands survive, no token is reused, and the publisher goes on normally.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::RngExt;

use super::super::simulated_disk::{Fault, SimulatedDisk};
use super::super::{JournalOpenError, LostPayloads};
use super::damage::{end_of_data, is_segment, run_and_close};
use super::harness::SimulationHarness;
use super::power::SeedReport;
use super::{DIR, env_or, options};
use crate::journal::files::directory::{Directory, LOST_DIR};
use crate::journal::wal::format::SEGMENT_HEADER_BYTES;

/// Damages tried on one journal.
const TIMES: u64 = 20;

/// Counts of what the damages caused.
#[derive(Default, Debug)]
struct DamageCounts {
    /// Not refused: nothing that counts was damaged.
    harmless: u64,
    accepted: u64,
    /// Accepted, and the journal began anew.
    all_lost: u64,
    /// A power cut interrupted the accepting start.
    cut_short: u64,
    /// The commands before the damage were known, and survived.
    exact: u64,
}

/// The content of all files, by name.
fn contents(disk: &SimulatedDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = disk.paths().into_iter();
    paths.map(|path| (path.clone(), disk.bytes(&path))).collect()
}

/// Damages a disk at random; returns the file, and its first damaged byte.
fn damage(harness: &mut SimulationHarness, disk: &SimulatedDisk) -> (PathBuf, u64) {
    let counts = |path: &PathBuf| !path.ends_with("publisher") && !path.ends_with("ballast");
    let mut files: Vec<PathBuf> = disk.paths().into_iter().filter(counts).collect();
    let segments: Vec<PathBuf> = files.iter().filter(|path| is_segment(path)).cloned().collect();
    // Half of the damages hit segments, of which there are few.
    files = if harness.random.random_bool(0.5) { segments } else { files };
    let path = files[harness.random.random_range(0..files.len())].clone();
    let end = end_of_data(disk, &path).max(1);
    let at = harness.random.random_range(0..end);
    match harness.random.random_range(0..3) {
        0 => disk.flip(&path, at * 8 + harness.random.random_range(0..8)),
        1 => disk.tamper(&path, |bytes| bytes.truncate(at as usize)),
        _ => disk.tamper(&path, |bytes| {
            let to = bytes.len().min(at as usize + 3_000);
            bytes[at as usize..to].fill(0xa5);
        }),
    }
    (path, at)
}

/// The first command that damage in a segment can lose, if it is among the replayed ones.
fn first_hit(positions: &[(u64, u64, u64)], path: &Path, at: u64) -> Option<u64> {
    let name = path.file_name()?.to_string_lossy();
    let sequence = Directory::sequence_of(&name)?;
    if at < SEGMENT_HEADER_BYTES as u64 {
        return None;
    }
    let within = positions.iter().filter(|&&(_, file, offset)| file == sequence && offset <= at);
    within.map(|&(index, _, _)| index).max()
}

/// Checks that files in `lost/` are unchanged: whole files, and the end of the partly replayed one.
fn check_set_aside(before: &BTreeMap<PathBuf, Vec<u8>>, after: &SimulatedDisk, what: &str) {
    let lost = Path::new(DIR).join(LOST_DIR);
    let now = contents(after);
    let aside: BTreeMap<String, &Vec<u8>> = now
        .iter()
        .filter(|(path, _)| path.parent() == Some(&lost) && !before.contains_key(*path))
        .filter_map(|(path, bytes)| {
            let name = path.file_name()?.to_string_lossy();
            Some((name.split_once('-')?.1.to_owned(), bytes))
        })
        .collect();
    for (name, bytes) in &aside {
        let original = |name: &str| {
            let path = before.keys().find(|path| path.file_name().is_some_and(|it| it == name));
            before[path.unwrap_or_else(|| panic!("{what}: {name} was never there"))].as_slice()
        };
        match name.split_once("-from-") {
            None => assert!(bytes.as_slice() == original(name), "{what}: {name}"),
            Some((sequence, from)) => {
                let from: usize =
                    from.strip_suffix(".part").and_then(|it| it.parse().ok()).unwrap();
                let rest = &original(&format!("{sequence}.seg"))[from..];
                let end = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                assert!(bytes.as_slice() == &rest[..end], "{what}: {name}");
            }
        }
    }
}

fn accept(
    harness: &mut SimulationHarness,
    seed: u64,
    met: &mut DamageCounts,
    positions: &[(u64, u64, u64)],
) {
    let disk = harness.disk.after_kill();
    let (path, at) = damage(harness, &disk);
    let what = format!("seed {seed}: {path:?} from {at} on");
    let before = contents(&disk);
    let mut after = harness.fork(disk);
    let mut lost_payloads = None;
    let index = match after.open().map(|_| ()) {
        Ok(()) => {
            met.harmless += 1;
            return;
        }
        Err(JournalOpenError::Damaged { index, .. }) => Some(index).filter(|&index| index > 0),
        // Only the payloads of one file are lost, nothing of the log.
        Err(JournalOpenError::PayloadsLost { file, .. }) => {
            assert_eq!(file, path, "{what}");
            lost_payloads = Some(LostPayloads { file, files: 1 });
            None
        }
        Err(why) => panic!("{what}: {why}"),
    };
    assert!(contents(&after.disk) == before, "{what}: the refused start changed files");
    after.options.accept_loss = true;
    let (mut found, uninterrupted) = (None, harness.random.random_bool(0.6));
    if !uninterrupted {
        let nth = harness.random.random_range(1..20);
        after.disk.fail(Fault::nth_where(nth, |call, _| call.is_change()).for_good());
        found = after.open().ok().map(|run| run.recovered.last_index);
        after.disk.heal();
        after.disk = after.disk.after_power_cut(harness.random.random());
        met.cut_short += 1;
    }
    let mut run = after.open().unwrap_or_else(|why| panic!("{what}: {why}"));
    let last = found.unwrap_or(run.recovered.last_index);
    // The interrupted start may have logged its own first command. Without a segment's header the
    // refusal names the first command after the snapshot, and acceptance finds the intact ones.
    if let Some(index) = index {
        let without_header = is_segment(&path) && at < SEGMENT_HEADER_BYTES as u64;
        let is_right = last + 1 == index
            || !uninterrupted && last == index
            || without_header && last + 1 > index;
        assert!(is_right, "{what}: {index} is lost, and {last} is the last");
    }
    if let Some(hit) = first_hit(positions, &path, at)
        && index.is_some_and(|index| index > 1)
    {
        assert!(last + 1 >= hit, "{what}: command {hit} is hit, and {last} is the last");
        met.exact += 1;
    }
    if lost_payloads.is_some() {
        let last_located = positions.iter().map(|&(index, ..)| index).max().unwrap_or(0);
        assert!(last >= last_located, "{what}: {last_located} was there, and {last} is the last");
        assert_eq!(run.recovered.dropped, None, "{what}");
        assert!(!uninterrupted || run.recovered.lost_payloads == lost_payloads, "{what}");
    }
    if let Some(dropped) = run.recovered.dropped.as_ref().filter(|_| uninterrupted) {
        assert_eq!(dropped.index, last + 1, "{what}");
        check_set_aside(&before, &after.disk, &what);
    }
    met.accepted += 1;
    met.all_lost += u64::from(last == 0);
    // From here on the publisher behaves normally.
    after.options.accept_loss = false;
    after.run_clients(&mut run, 15).unwrap_or_else(|why| panic!("{what}: {why}"));
    drop(run);
    for _ in 0..2 {
        after.disk = after.disk.after_power_cut(harness.random.random());
        let mut run = after.open().unwrap_or_else(|why| panic!("{what}, after a cut: {why}"));
        assert_eq!(run.recovered.dropped, None, "{what}");
        after.run_clients(&mut run, 5).unwrap_or_else(|why| panic!("{what}, after a cut: {why}"));
    }
}

#[test]
fn accepted_damage_is_set_aside_and_earlier_commands_survive() {
    let (target, mut met) = (env_or("LONGSHORE_LOSSES", 200), DamageCounts::default());
    for seed in 0.. {
        let report = SeedReport(seed);
        let mut harness = SimulationHarness::new(seed, options());
        let steps = harness.random.random_range(10..50);
        run_and_close(&mut harness, steps, (seed % 3 == 0).then_some(10));
        // Another start: the damage may be before or after it.
        let mut run = harness.open().expect("a good disk");
        harness.run_clients(&mut run, 10).expect("a good disk");
        run.background.sync_watermark().expect("a good disk");
        let positions = run.background.positions();
        drop(run);
        for _ in 0..TIMES {
            accept(&mut harness, seed, &mut met, &positions);
        }
        drop(report);
        if met.accepted >= target {
            break;
        }
    }
    let least = target / 20;
    let each = [met.harmless, met.cut_short, met.exact];
    assert!(each.iter().all(|&times| times >= least), "{met:?}");
    // About 5 in 100, of those in the first records.
    assert!(met.all_lost < target / 10, "one damage seldom costs everything: {met:?}");
}
