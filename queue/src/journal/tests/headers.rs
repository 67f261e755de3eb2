//! A damaged header loses nothing if the records prove it.

use std::path::PathBuf;

use super::inspect::{COPY, copy, segment, verify};
use super::snapshots::path;
use super::*;
use crate::RecordRef;
use crate::journal::LostPayloads;
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::compaction::rewrite;
use crate::journal::inspect::Effect;
use crate::journal::simulated_disk::{Call, Fault};
use crate::journal::wal::locations::{Run, RunRecords};
use crate::log::{LogReadError, Records};

const LENGTH: usize = 200_000;
const ALL: u64 = 16;

/// A journal of four segments with two snapshots, which both name the first segment.
fn journal() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for _ in 0..8 {
        journal.write(2, LENGTH).unwrap();
    }
    journal.snapshot(5, LENGTH, |_| true).unwrap();
    journal.snapshot(12, LENGTH, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    assert!(disk.paths().contains(&segment(4)) && journal.committed() == ALL);
    drop(journal);
    disk.after_kill()
}

fn accepting() -> JournalOptions {
    JournalOptions { accept_loss: true, ..options() }
}

fn header(disk: &SimulatedDisk, path: &Path) -> Vec<u8> {
    disk.tamper(path, |bytes| bytes[..4096].to_vec())
}

/// Possible damage of a header: a flipped bit, zeros, noise, another segment's header.
fn damages(disk: &SimulatedDisk, number: u64) -> Vec<Vec<u8>> {
    let good = header(disk, &segment(number));
    let mut flipped = good.clone();
    flipped[41] ^= 1;
    let noise = (0..4096).map(|n| (n * 31) as u8).collect();
    let another = header(disk, &segment(number % 4 + 1));
    vec![flipped, vec![0; 4096], noise, another]
}

#[test]
fn damaged_header_is_rewritten_without_loss() {
    let whole = journal();
    for number in 1..=4 {
        let good = header(&whole, &segment(number));
        for (case, damage) in damages(&whole, number).into_iter().enumerate() {
            for has_snapshots in [true, false] {
                let disk = whole.after_kill();
                disk.tamper(&segment(number), |bytes| bytes[..4096].copy_from_slice(&damage));
                if !has_snapshots {
                    for snapshot in super::snapshots::snapshots_of(&disk) {
                        disk.remove(&snapshot).unwrap();
                    }
                }
                let verified = verify(&disk, DIR).unwrap();
                let [finding] = &verified.findings[..] else { panic!("{verified:?}") };
                assert_eq!((finding.effect, &finding.file), (Effect::Repairs, &segment(number)));
                assert!(
                    verified.is_damaged() && !verified.is_refused && verified.last_index == ALL
                );

                let (journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
                assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL, "{number}, case {case}");
                let taken = recovered.snapshot.map(|snapshot| snapshot.index);
                assert_eq!(taken, has_snapshots.then_some(12));
                assert_eq!((recovered.dropped, recovered.cut), (None, None));
                drop(journal);
                let disk = disk.after_power_cut(case as u64);
                assert_eq!(header(&disk, &segment(number)), good, "it is good again, and lasts");
                let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
                journal.write(1, LENGTH).unwrap();
            }
        }
    }
}

#[test]
fn snapshot_proves_a_header_with_a_damaged_first_record() {
    let disk = journal();
    disk.tamper(&segment(1), |bytes| bytes[..4200].fill(0));
    let verified = verify(&disk, DIR).unwrap();
    let effects: Vec<Effect> = verified.findings.iter().map(|finding| finding.effect).collect();
    assert_eq!(effects, [Effect::Repairs, Effect::Buries], "{verified:?}");
    let (journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL);
    assert_eq!((recovered.snapshot.unwrap().index, recovered.dropped), (12, None));
    let part = |index| RecordRef { index, at: 8, length: 100 };
    assert!(matches!(journal.records.part(part(1)), Err(LogReadError::Damaged { .. })));
    assert_eq!(journal.records.part(part(2)).unwrap(), body(2, LENGTH)[..100]);
    drop(journal);
    SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
}

/// A journal with one compacted file for two removed segments, the file, and its records' offsets:
/// of commands 1 and 3 in one run, 8 and 10 in the other.
fn compacted() -> (SimulatedDisk, PathBuf, [usize; 4]) {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(12, LENGTH).unwrap();
    journal.sync_watermark().unwrap();
    let live = COMPACTED.map(part);
    let rewritten =
        rewrite::write(&journal.directory, &journal.records, &live, &mut |_| Ok(CHUNK_BYTES))
            .unwrap();
    let offsets = |run: &Run| match &run.records {
        RunRecords::Compacted(records) => [records[0].offset as usize, records[1].offset as usize],
        RunRecords::Log { .. } => panic!("it was compacted"),
    };
    let [one, other] = &rewritten.runs[..] else { panic!("{:?}", rewritten.runs) };
    let positions = [offsets(one), offsets(other)].concat().try_into().unwrap();
    let file = journal.directory.compacted_path(rewritten.sequence);
    journal.records.replace(rewritten.runs);
    journal.snapshot(12, LENGTH, |_| true).unwrap();
    disk.remove(&segment(1)).unwrap();
    disk.remove(&segment(2)).unwrap();
    drop(journal);
    (disk.after_kill(), file, positions)
}

const COMPACTED: [u64; 4] = [1, 3, 8, 10];

fn part(index: u64) -> RecordRef {
    RecordRef { index, at: 8, length: 5_000 }
}

/// Which of the compacted commands can be read; the others are damaged.
fn readable(journal: &SteppedJournal) -> Vec<u64> {
    let is_there = |index: &u64| match journal.records.part(part(*index)) {
        Ok(bytes) => bytes == body(*index, LENGTH)[..5_000],
        Err(LogReadError::Damaged { .. }) => false,
        Err(why) => panic!("{why}"),
    };
    COMPACTED.into_iter().filter(is_there).collect()
}

#[test]
fn compacted_file_header_is_proven_by_any_run() {
    let (whole, file, positions) = compacted();
    // Damage to its header alone, its first record too, and all records of one run or of the other.
    let cases = [
        (0..4096, 0..0, &[1, 3, 8, 10][..]),
        (0..4200, 0..0, &[3, 8, 10]),
        (0..positions[2], 0..0, &[8, 10]),
        (0..4200, positions[2]..positions[3] + 100, &[3]),
    ];
    for (first, second, left) in cases {
        for accept_loss in [false, true] {
            let disk = whole.after_kill();
            disk.tamper(&file, |bytes| {
                bytes[first.clone()].fill(0);
                bytes[second.clone()].fill(0);
            });
            assert!(!verify(&disk, DIR).unwrap().is_refused, "{first:?}");
            let options = JournalOptions { accept_loss, ..options() };
            let (journal, read, _) = SteppedJournal::open_with(&disk, options).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), 12);
            assert_eq!(readable(&journal), left);
            drop(journal);
            let disk = disk.after_power_cut(1);
            assert_eq!(header(&disk, &file), header(&whole, &file));
        }
    }
}

#[test]
fn compacted_file_of_several_runs_is_copied_whole() {
    let (whole, file, positions) = compacted();
    for (to, left) in [(0, &[1, 3, 8, 10][..]), (4200, &[3, 8, 10]), (positions[2], &[8, 10])] {
        let disk = whole.after_kill();
        disk.tamper(&file, |bytes| bytes[..to].fill(0));
        let copied = copy(&disk).unwrap();
        assert_eq!((copied.last_index, copied.findings.len()), (12, 4 - left.len()));
        let at_source = |path: PathBuf| Path::new(DIR).join(path.strip_prefix(COPY).unwrap());
        let copies = disk.paths().into_iter().filter(|path| path.starts_with(COPY));
        let disk = copies.fold(SimulatedDisk::default(), |restored, path| {
            let to = at_source(path.clone());
            restored.create_dir(to.parent().unwrap()).unwrap();
            restored.create(&to).unwrap().write_at(&disk.bytes(&path), 0).unwrap();
            restored
        });
        assert_eq!(disk.bytes(&file)[..positions[0]], whole.bytes(&file)[..positions[0]]);
        let (journal, read, _) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), 12);
        assert_eq!(readable(&journal), left);
    }
}

#[test]
fn unreadable_header_is_rewritten() {
    let journal = journal();
    let (compacted, rewritten, _) = compacted();
    for (whole, file, last) in [(journal, segment(1), ALL), (compacted, rewritten, 12)] {
        // The header, then the first record as well: only the snapshot knows the others.
        for reads in 1..=2 {
            let disk = whole.after_kill();
            for nth in 1..=reads {
                let of = file.clone();
                let fault = move |call, path: &Path| call == Call::Read && *path == *of;
                disk.fail(Fault::nth_where(nth, fault));
            }
            let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), last, "{file:?}, {reads}");
            assert_eq!(recovered.dropped, None);
            assert!(disk.hit().is_some());
        }
    }
}

#[test]
fn preallocated_segment_with_damaged_header_is_removed() {
    let disk = journal();
    let (journal, _, _) = SteppedJournal::open(&disk).unwrap();
    let ahead = journal.directory.create_segment(SEGMENT_BYTES_MIN).unwrap().path;
    drop(journal);
    let disk = disk.after_kill();
    disk.tamper(&ahead, |bytes| bytes[41] ^= 1);
    let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL);
    assert_eq!(recovered.dropped, None);
    assert!(!disk.paths().contains(&ahead));
}

#[test]
fn header_rewrite_survives_a_power_cut_at_any_call() {
    let whole = journal();
    for number in [1, 4] {
        let mut call = 1;
        loop {
            let disk = whole.after_kill();
            disk.tamper(&segment(number), |bytes| bytes[..4096].fill(3));
            disk.fail_at(call);
            let done = SteppedJournal::open(&disk).is_ok();
            let disk = disk.after_power_cut(call);
            let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL, "segment {number}, call {call}");
            assert_eq!(recovered.dropped, None);
            if done {
                break;
            }
            call += 1;
        }
        assert!(call > 4, "{call}");
    }
}

#[test]
fn accepted_loss_of_one_file_costs_only_its_payloads() {
    let whole = journal();
    let missing = whole.after_kill();
    missing.remove(&segment(2)).unwrap();
    let empty = whole.after_kill();
    empty.tamper(&segment(2), |bytes| bytes.fill(0));
    let short = whole.after_kill();
    short.tamper(&segment(2), |bytes| bytes.truncate(30));
    for disk in [missing, empty, short] {
        let refused = SteppedJournal::open(&disk).map(drop).unwrap_err();
        assert!(
            matches!(&refused, JournalOpenError::PayloadsLost { file, .. } if *file == segment(2)),
            "{refused}"
        );
        let (mut journal, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL);
        assert_eq!((recovered.snapshot.unwrap().index, recovered.dropped), (12, None));
        assert_eq!(recovered.lost_payloads, Some(LostPayloads { file: segment(2), files: 1 }));
        assert_eq!(recovered.losses, 0, "no start was lost");
        let located = journal.records.locations_up_to(ALL);
        for Run { first, last, sequence, records } in located.runs() {
            assert!(matches!(records, RunRecords::Log { .. }));
            for index in *first..=*last {
                let read = journal.records.part(RecordRef { index, at: 8, length: 100 });
                match sequence {
                    2 => assert!(matches!(read, Err(LogReadError::Damaged { .. })), "{read:?}"),
                    _ => assert_eq!(read.unwrap(), body(index, LENGTH)[..100]),
                }
            }
        }
        journal.write(1, LENGTH).unwrap();
        drop(journal);
        let disk = disk.after_power_cut(1);
        assert!(!disk.paths().iter().any(|it| it.starts_with(path("lost"))));
        let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL + 1, "the loss is accepted once");
        assert_eq!(recovered.lost_payloads, None);
    }
}

/// A journal of four commands with a snapshot of the first three; the segment is lost. The commit
/// watermark lags: it does not prove the fourth.
fn cut_after_its_snapshot() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(3, 100).unwrap();
    journal.snapshot(3, 100, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    journal.write(1, 100).unwrap();
    drop(journal);
    let disk = disk.after_kill();
    disk.remove(&segment(1)).unwrap();
    disk.sync_dir(segment(1).parent().unwrap()).unwrap();
    disk
}

#[test]
fn losing_the_replay_segment_is_a_loss_of_commands() {
    let disk = cut_after_its_snapshot();
    let refused = SteppedJournal::open(&disk).map(drop).unwrap_err();
    assert!(
        matches!(&refused, JournalOpenError::Damaged { file, index: 4, .. } if *file == segment(1)),
        "{refused}"
    );
    let (mut journal, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 100), 3);
    assert_eq!(recovered.dropped.map(|dropped| dropped.index), Some(4));
    assert_eq!(recovered.lost_payloads, Some(LostPayloads { file: segment(1), files: 1 }));
    assert_eq!(recovered.losses, 1, "it may have held a start");
    journal.write(1, 100).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let (_, read, recovered) = SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 100), 4);
    assert_eq!((recovered.dropped, recovered.losses), (None, 1));
}

#[test]
fn losing_the_replay_segment_is_counted_across_interrupted_starts() {
    for call in 1.. {
        let disk = cut_after_its_snapshot();
        disk.fail_at(call);
        let done = SteppedJournal::open_with(&disk, accepting()).is_ok();
        let disk = disk.after_power_cut(call);
        let (_, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 100), 3);
        assert!((1..=2).contains(&recovered.losses), "call {call}");
        if done {
            assert!(call > 10, "{call}");
            break;
        }
    }
}
