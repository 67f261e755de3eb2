//! Compaction: live parts read unchanged, dead parts are gone, and failures lose nothing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::RecordRef;
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::compaction::rewrite::{self, CompactedFile, RewriteError};
use crate::journal::simulated_disk::{Call, Fault};
use crate::journal::wal::locations::{Bounds, Locations, Run, RunRecords};
use crate::journal::wal::record::RECORD_HEADER_BYTES;
use crate::journal::wal::records::JournalRecords;
use crate::log::{LogReadError, Records};

/// Length of the bodies, so that a segment has a few.
const LENGTH: usize = 150_000;
/// Length of the parts of a body.
const PART: u32 = 5_000;

/// A journal of `commands` commands.
fn journal_of(commands: u64, length: usize) -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for _ in 0..commands {
        journal.write(1, length).unwrap();
    }
    journal.sync_watermark().unwrap();
    disk.after_kill()
}

/// The body of a command, as it was logged.
fn whole(index: u64, length: usize) -> Vec<u8> {
    [&b"headhead"[..], &body(index, length)].concat()
}

fn slice(part: RecordRef, length: usize) -> Vec<u8> {
    whole(part.index, length)[part.at as usize..(part.at + part.length) as usize].to_vec()
}

/// Every part of these commands.
fn parts_of(commands: impl Iterator<Item = u64>) -> BTreeSet<RecordRef> {
    let parts = |index| {
        (0..LENGTH as u32 / PART).map(move |n| RecordRef { index, at: n * PART, length: PART })
    };
    commands.flat_map(parts).collect()
}

fn rewrite_parts(parts: &Parts, live: &[RecordRef]) -> Result<CompactedFile, RewriteError> {
    rewrite::write(&parts.directory, &parts.records, live, &mut |_| Ok(CHUNK_BYTES))
}

/// Replaces the runs of these files, and removes the files.
fn exchange(parts: &Parts, victims: &BTreeSet<u64>, compacted: CompactedFile) {
    let bounds: Vec<Bounds> = parts.records.bounds();
    parts.records.replace(compacted.runs);
    for run in bounds.iter().filter(|run| victims.contains(&run.sequence)) {
        parts.records.forget(run.sequence);
        let path = parts.directory.path_of(run.sequence, run.compacted);
        if let Err(error) = parts.directory.files.remove(&path) {
            // Another run of the same file was handled before it.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
}

/// Some files, and their live parts.
fn choose(
    parts: &Parts,
    live: &BTreeSet<RecordRef>,
    random: &mut StdRng,
) -> (BTreeSet<u64>, Vec<RecordRef>) {
    let bounds = parts.records.bounds();
    let mut victims: BTreeSet<u64> = bounds.iter().map(|run| run.sequence).collect();
    victims.retain(|_| random.random_bool(0.5));
    let is_in = |part: &&RecordRef| {
        let run = bounds.iter().find(|run| (run.first..=run.last).contains(&part.index));
        victims.contains(&run.unwrap().sequence)
    };
    let selected = live.iter().filter(is_in).copied().collect();
    (victims, selected)
}

#[test]
fn live_parts_read_unchanged_after_repeated_compaction() {
    for seed in 0..15 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = journal_of(30, LENGTH);
        let (parts, _) = open_parts(&disk, options()).unwrap();
        let all = parts_of(1..=30);
        let mut live = all.clone();
        for _ in 0..6 {
            let keep = random.random_range(0.3..1.0);
            live.retain(|_| random.random_bool(keep));
            let (victims, selected) = choose(&parts, &live, &mut random);
            let compacted = rewrite_parts(&parts, &selected).unwrap();
            let path = parts.directory.compacted_path(compacted.sequence);
            let length = disk.tamper(&path, |bytes| bytes.len()) as u64;
            assert_eq!(length, compacted.bytes);
            let payload = selected.len() as u64 * u64::from(PART);
            assert!(length - 4096 - payload <= 58 * selected.len() as u64, "and not much more");
            exchange(&parts, &victims, compacted);
            for part in &all {
                match parts.records.part(*part) {
                    Ok(bytes) => assert_eq!(bytes, slice(*part, LENGTH)),
                    Err(LogReadError::NotFound { .. }) => {
                        assert!(!live.contains(part), "{part:?}");
                    }
                    Err(why) => panic!("{why}"),
                }
            }
        }
        let files = parts.directory.files.list(&parts.directory.segments_dir()).unwrap();
        let named: BTreeSet<u64> = parts.records.bounds().iter().map(|it| it.sequence).collect();
        assert!(files.len() >= named.len());
        assert!(parts.records.open_files().is_subset(&named), "dropped files are closed");
        assert!(!files.iter().any(|name| name.ends_with(".new")), "{files:?}");
    }
}

#[test]
fn compacted_runs_retain_bounds_and_empty_runs_vanish() {
    let disk = journal_of(30, LENGTH);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let before = parts.records.bounds();
    assert!(before.len() >= 4, "{before:?}");
    // One part each of the first and the third.
    let part = |run: &Bounds| RecordRef { index: run.last, at: PART, length: PART };
    let live = [part(&before[0]), part(&before[2])];
    let compacted = rewrite_parts(&parts, &live).unwrap();
    let bounds = |run: &Run| (run.first, run.last, run.sequence);
    let runs: Vec<_> = compacted.runs.iter().map(bounds).collect();
    let sequence = compacted.sequence;
    let expected_runs = [&before[0], &before[2]].map(|run| (run.first, run.last, sequence));
    assert_eq!(runs, expected_runs);
    assert_eq!(parts.records.bounds(), before, "nothing has changed yet");
}

#[test]
fn small_parts_share_records_and_one_part_may_be_20_mib() {
    let long = 20 * 1024 * 1024;
    let disk = journal_of(2, long);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let small = (0..200).map(|n| RecordRef { index: 1, at: n * 100, length: 7 });
    let large = RecordRef { index: 2, at: 3, length: long as u32 };
    let live: Vec<RecordRef> = small.chain([large]).collect();
    let mut chunks = Vec::new();
    let compacted = rewrite::write(&parts.directory, &parts.records, &live, &mut |bytes| {
        chunks.push(bytes);
        Ok(CHUNK_BYTES)
    });
    let compacted = compacted.unwrap();
    let records = |run: usize| match &compacted.runs[run].records {
        RunRecords::Compacted(records) => records.len(),
        RunRecords::Log { .. } => panic!("it was compacted"),
    };
    assert_eq!((records(0), records(1)), (4, 1));
    let heads = 5 * (RECORD_HEADER_BYTES + 2) + 201 * 8;
    assert_eq!(compacted.bytes, (4096 + heads + 200 * 7 + long) as u64);
    assert!(chunks.iter().all(|&bytes| bytes <= 256 * 1024), "in small chunks");
    assert_eq!(chunks.iter().sum::<usize>() as u64, compacted.bytes);
    exchange(&parts, &BTreeSet::from([1, 2, 3]), compacted);
    for part in live {
        assert_eq!(parts.records.part(part).unwrap(), slice(part, long), "{}", part.index);
    }
}

#[test]
fn corrupt_part_stays_corrupt_and_its_neighbours_survive() {
    let disk = journal_of(8, LENGTH);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let live: Vec<RecordRef> = parts_of(1..=3).into_iter().collect();
    let corrupt = RecordRef { index: 2, at: 9 * PART, length: PART };
    // In a block without bytes of a neighbour.
    let bytes = slice(corrupt, LENGTH)[2_000..2_100].to_vec();
    let segment = parts.directory.segment_path(parts.records.bounds()[0].sequence);
    disk.tamper(&segment, |file| {
        let record = file.windows(8).position(|bytes| bytes == 2_u64.to_le_bytes()).unwrap();
        let at = record + 24 + 4 * 37 + (corrupt.at + 2_000) as usize;
        assert_eq!(&file[at..at + 100], &bytes);
        file[at + 50] ^= 16;
    });
    let victims = |parts: &Parts| -> BTreeSet<u64> {
        parts.records.bounds().iter().map(|run| run.sequence).collect()
    };
    // Compact twice.
    for _ in 0..2 {
        let compacted = rewrite_parts(&parts, &live).unwrap();
        let file = parts.directory.compacted_path(compacted.sequence);
        assert_eq!(disk.tamper(&file, |bytes| bytes.len()) as u64, compacted.bytes);
        exchange(&parts, &victims(&parts), compacted);
        for part in &live {
            let read = parts.records.part(*part);
            if *part == corrupt {
                assert!(matches!(read, Err(LogReadError::Damaged { .. })), "{read:?}");
            } else {
                assert_eq!(read.unwrap(), slice(*part, LENGTH), "{part:?}");
            }
        }
    }
}

#[test]
fn missing_or_unreadable_part_aborts_the_rewrite() {
    let disk = journal_of(12, LENGTH);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let live: Vec<RecordRef> = parts_of(1..=2).into_iter().collect();
    let unknown = RecordRef { index: 99, at: 0, length: 1 };
    let both = [&live[..], &[unknown]].concat();
    let refused = rewrite_parts(&parts, &both);
    assert!(
        matches!(refused, Err(RewriteError::Read { why: LogReadError::NotFound { .. }, .. })),
        "{refused:?}"
    );
    for nth in 1..8 {
        disk.heal();
        disk.fail(Fault::nth_of(Call::Read, nth));
        // Without what lies ahead it is read again.
        disk.fail(Fault::nth_of(Call::Read, nth + 1));
        let refused = rewrite_parts(&parts, &live);
        assert!(
            matches!(refused, Err(RewriteError::Read { why: LogReadError::Io { .. }, .. })),
            "{refused:?}"
        );
    }
    disk.heal();
    assert!(!disk.paths().iter().any(|path| path.to_string_lossy().contains("compacted")));
    assert!(rewrite_parts(&parts, &live).is_ok(), "once it can be read again");
}

#[test]
fn interrupted_rewrite_leaves_no_file() {
    let disk = journal_of(12, LENGTH);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let live: Vec<RecordRef> = parts_of(1..=6).into_iter().collect();
    let before = disk.paths();
    let mut left = 2;
    let abandoned = rewrite::write(&parts.directory, &parts.records, &live, &mut |_| {
        left -= 1;
        if left == 0 { Err(std::io::ErrorKind::Interrupted.into()) } else { Ok(CHUNK_BYTES) }
    });
    assert!(matches!(abandoned, Err(RewriteError::Io { .. })), "{abandoned:?}");
    assert_eq!(disk.paths(), before);
}

#[test]
fn compacted_file_is_complete_or_absent_after_any_failing_call() {
    let live: Vec<RecordRef> = parts_of(1..=20).into_iter().step_by(3).collect();
    let pristine = journal_of(20, LENGTH);
    let (parts, _) = open_parts(&pristine.after_kill(), options()).unwrap();
    let runs = rewrite_parts(&parts, &live).unwrap().runs;
    let mut call = 1;
    loop {
        let disk = pristine.after_kill();
        let (parts, _) = open_parts(&disk, options()).unwrap();
        disk.fail_at(disk.calls() + call);
        let compacted = rewrite_parts(&parts, &live);
        for seed in 0..10 {
            let cut = disk.after_power_cut(seed);
            let files: Arc<dyn Files> = Arc::new(cut.clone());
            let journal = parts.directory.journal;
            let directory = Directory::new(files, DIR.into(), journal, SEGMENT_BYTES_MIN);
            let names = directory.files.list(&directory.segments_dir()).unwrap();
            let name = names.iter().find(|name| name.ends_with(".compacted"));
            let Some(name) = name else {
                assert!(compacted.is_err(), "call {call}: what is sealed lasts");
                continue;
            };
            // If its name exists, its content is complete.
            let sequence = Directory::compacted_sequence_of(name).unwrap();
            let runs = runs.iter().map(|run| Run { sequence, ..run.clone() });
            let locations = Locations::of(runs.collect());
            let records = JournalRecords::new(Arc::new(directory), locations);
            for part in &live {
                assert_eq!(records.part(*part).unwrap(), slice(*part, LENGTH));
            }
        }
        // Until the file is complete, the old files are unchanged.
        if compacted.is_err() {
            disk.heal();
            for part in &live {
                assert_eq!(parts.records.part(*part).unwrap(), slice(*part, LENGTH));
            }
        } else {
            break;
        }
        call += 1;
    }
    assert!(call >= 10, "it makes many calls: {call}");
}

#[test]
fn readers_never_miss_a_part_while_its_file_is_replaced() {
    let disk = journal_of(30, LENGTH);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let live: Vec<RecordRef> = parts_of(1..=30).into_iter().step_by(7).collect();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (live, parts, done, reads) = (&live, &parts, &done, &reads);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                while !done.load(Ordering::Relaxed) {
                    let part = live[random.random_range(0..live.len())];
                    let read = parts.records.part(part).unwrap_or_else(|why| {
                        done.store(true, Ordering::Relaxed);
                        panic!("{part:?}: {why}")
                    });
                    assert_eq!(read[..20], slice(part, LENGTH)[..20]);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all: BTreeSet<RecordRef> = live.iter().copied().collect();
        let mut random = StdRng::seed_from_u64(9);
        for _ in 0..150 {
            let (victims, selected) = choose(&parts, &all, &mut random);
            if done.load(Ordering::Relaxed) {
                break;
            }
            let compacted = rewrite_parts(&parts, &selected).unwrap();
            exchange(&parts, &victims, compacted);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 100);
    let named: BTreeSet<u64> = parts.records.bounds().iter().map(|it| it.sequence).collect();
    assert!(parts.records.open_files().is_subset(&named), "dropped files are closed");
}
