//! A damaged header costs nothing where the records behind it prove what it was.

use super::inspect::{segment, verify};
use super::snapshots::path;
use super::*;
use crate::RecordRef;
use crate::journal::carry;
use crate::journal::inspect::Effect;
use crate::journal::locations::{Run, RunRecords};
use crate::journal::pace::PIECE_BYTES;
use crate::log::{ReadError, Records};

const LENGTH: usize = 200_000;
const ALL: u64 = 16;

/// A journal of four segments with two snapshots, the first of which is named in both.
fn journal() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = Stepped::open(&disk).unwrap();
    for _ in 0..8 {
        journal.write(2, LENGTH).unwrap();
    }
    journal.snapshot(5, LENGTH, |_| true).unwrap();
    journal.snapshot(12, LENGTH, |_| true).unwrap();
    journal.firm_mark().unwrap();
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

/// What a disk can make of a header: a flipped bit, zeros, noise, another segment's header.
fn damages(disk: &SimulatedDisk, number: u64) -> Vec<Vec<u8>> {
    let good = header(disk, &segment(number));
    let mut flipped = good.clone();
    flipped[41] ^= 1;
    let noise = (0..4096).map(|n| (n * 31) as u8).collect();
    let another = header(disk, &segment(number % 4 + 1));
    vec![flipped, vec![0; 4096], noise, another]
}

#[test]
fn a_damaged_header_is_written_again_and_nothing_is_lost() {
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
                let told = verify(&disk, DIR).unwrap();
                let [finding] = &told.findings[..] else { panic!("{told:?}") };
                assert_eq!((finding.effect, &finding.file), (Effect::Repairs, &segment(number)));
                assert!(told.is_damaged() && !told.is_refused && told.last_index == ALL);

                let (journal, read, recovered) = Stepped::open(&disk).unwrap();
                assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL, "{number}, case {case}");
                let taken = recovered.snapshot.map(|snapshot| snapshot.index);
                assert_eq!(taken, has_snapshots.then_some(12));
                assert_eq!((recovered.dropped, recovered.cut), (None, None));
                drop(journal);
                let disk = disk.after_power_cut(case as u64);
                assert_eq!(header(&disk, &segment(number)), good, "it is good again, and lasts");
                let (mut journal, _, _) = Stepped::open(&disk).unwrap();
                journal.write(1, LENGTH).unwrap();
            }
        }
    }
}

#[test]
fn a_snapshot_proves_a_header_whose_first_record_is_damaged_too() {
    let disk = journal();
    disk.tamper(&segment(1), |bytes| bytes[..4200].fill(0));
    let told = verify(&disk, DIR).unwrap();
    let effects: Vec<Effect> = told.findings.iter().map(|finding| finding.effect).collect();
    assert_eq!(effects, [Effect::Repairs, Effect::Buries], "{told:?}");
    let (journal, read, recovered) = Stepped::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL);
    assert_eq!((recovered.snapshot.unwrap().index, recovered.dropped), (12, None));
    let part = |index| RecordRef { index, at: 8, length: 100 };
    assert!(matches!(journal.records.part(part(1)), Err(ReadError::Damaged { .. })));
    assert_eq!(journal.records.part(part(2)).unwrap(), body(2, LENGTH)[..100]);
    drop(journal);
    Stepped::open(&disk.after_power_cut(1)).unwrap();
}

#[test]
fn a_carried_file_with_a_damaged_header_is_read() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = Stepped::open(&disk).unwrap();
    journal.write(12, LENGTH).unwrap();
    journal.firm_mark().unwrap();
    let part = |index| RecordRef { index, at: 8, length: 5_000 };
    let wanted = [part(1), part(3)];
    let carried =
        carry::write(&journal.directory, &journal.records, &wanted, &mut |_| Ok(PIECE_BYTES))
            .unwrap();
    let file = journal.directory.carried_path(carried.sequence);
    journal.records.replace(carried.runs);
    journal.snapshot(7, LENGTH, |_| true).unwrap();
    disk.remove(&segment(1)).unwrap();
    drop(journal);
    let whole = disk.after_kill();
    // Its header alone, and its first record too.
    for to in [4096, 4200] {
        let disk = whole.after_kill();
        disk.tamper(&file, |bytes| bytes[..to].fill(0));
        assert!(!verify(&disk, DIR).unwrap().is_refused);
        let (journal, read, _) = Stepped::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), 12);
        assert_eq!(journal.records.part(part(3)).unwrap(), body(3, LENGTH)[..5_000]);
        drop(journal);
        let disk = disk.after_power_cut(1);
        assert_eq!(header(&disk, &file), header(&whole, &file));
    }
}

#[test]
fn a_segment_made_ahead_with_a_damaged_header_is_removed() {
    let disk = journal();
    let (journal, _, _) = Stepped::open(&disk).unwrap();
    let ahead = journal.directory.create_segment(SEGMENT_BYTES_MIN).unwrap().path;
    drop(journal);
    let disk = disk.after_kill();
    disk.tamper(&ahead, |bytes| bytes[41] ^= 1);
    let (_, read, recovered) = Stepped::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL);
    assert_eq!(recovered.dropped, None);
    assert!(!disk.paths().contains(&ahead));
}

#[test]
fn a_header_can_be_written_again_after_a_cut_at_any_call() {
    let whole = journal();
    for number in [1, 4] {
        let mut call = 1;
        loop {
            let disk = whole.after_kill();
            disk.tamper(&segment(number), |bytes| bytes[..4096].fill(3));
            disk.fail_at(call);
            let done = Stepped::open(&disk).is_ok();
            let disk = disk.after_power_cut(call);
            let (_, read, recovered) = Stepped::open(&disk).unwrap();
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
fn accepted_loss_of_a_file_that_a_snapshot_needs_costs_what_lies_in_it_alone() {
    let whole = journal();
    let missing = whole.after_kill();
    missing.remove(&segment(2)).unwrap();
    let empty = whole.after_kill();
    empty.tamper(&segment(2), |bytes| bytes.fill(0));
    let short = whole.after_kill();
    short.tamper(&segment(2), |bytes| bytes.truncate(30));
    for disk in [missing, empty, short] {
        let refused = Stepped::open(&disk).map(drop).unwrap_err();
        assert!(
            matches!(&refused, OpenError::PayloadsLost { file, .. } if *file == segment(2)),
            "{refused}"
        );
        let (mut journal, read, recovered) = Stepped::open_with(&disk, accepting()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL);
        assert_eq!((recovered.snapshot.unwrap().index, recovered.dropped), (12, None));
        assert_eq!(recovered.losses, 0, "no start is lost");
        let located = journal.records.locations_up_to(ALL);
        for Run { first, last, sequence, records } in located.runs() {
            assert!(matches!(records, RunRecords::Log { .. }));
            for index in *first..=*last {
                let read = journal.records.part(RecordRef { index, at: 8, length: 100 });
                match sequence {
                    2 => assert!(matches!(read, Err(ReadError::Damaged { .. })), "{read:?}"),
                    _ => assert_eq!(read.unwrap(), body(index, LENGTH)[..100]),
                }
            }
        }
        journal.write(1, LENGTH).unwrap();
        drop(journal);
        let disk = disk.after_power_cut(1);
        assert!(!disk.paths().iter().any(|it| it.starts_with(path("lost"))));
        let (_, read, _) = Stepped::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| LENGTH), ALL + 1, "it is accepted once");
    }
}
