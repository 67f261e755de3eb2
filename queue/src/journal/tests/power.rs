//! What a failed sync or a power cut leaves of the last commit. The simulation covers whole runs
//! over power cuts.

use super::snapshots::segment;
use super::*;
use crate::journal::simulated_disk::{Call, Fault};

#[test]
fn data_of_a_failed_sync_is_rewritten_at_the_next_start() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(2, 20).unwrap();
    disk.fail_at(disk.calls() + 2);
    assert!(journal.write(1, 20).is_err(), "its sync failed");
    drop(journal);
    // Linux considers the pages clean now: reads return them, and no sync writes them again.
    let disk = disk.after_kill().with_clean_pages();
    let (journal, read, _) = SteppedJournal::open(&disk).unwrap();
    let replayed = assert_is_a_prefix(&read, |_| 20);
    assert_eq!(journal.committed(), replayed);
    let (_, read, _) = SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 20), replayed, "what counted after the restart lasts");
}

#[test]
fn header_of_a_failed_sync_is_rewritten_even_without_a_record() {
    // The first segment has room for the first command only.
    let length = |index: u64| if index == 1 { 1_040_000 } else { 3_900 };
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(1, length(1)).unwrap();
    // Its first sync made the segment.
    let commits = |call: Call, path: &Path| call == Call::Sync && *path == *segment(2);
    disk.fail(Fault::nth_where(2, commits).for_good());
    assert!(journal.write(1, length(2)).is_err());
    drop(journal);
    // The kernel considers both pages clean, and drops that of the record.
    let disk = disk.after_kill().with_clean_pages();
    disk.evict_page(&segment(2), 4096);
    let (mut journal, read, _) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, length), 1);
    journal.write(1, length(2)).unwrap();
    let (_, read, _) = SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
    assert_eq!(assert_is_a_prefix(&read, length), 2, "what was acknowledged lasts");
}

#[test]
fn torn_tail_is_erased_reported_and_never_returns() {
    for seed in 0..200 {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
        journal.write(3, 50).unwrap();
        disk.fail_at(disk.calls() + 2);
        assert!(journal.write(5, 50).is_err());
        let disk = disk.after_power_cut(seed);
        let (mut journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
        let replayed = assert_is_a_prefix(&read, |_| 50);
        assert!((3..=8).contains(&replayed));
        if let Some(cut) = recovered.cut {
            assert!(cut.bytes > 0 && replayed < 8, "{cut:?}");
        }
        // Shorter records now replace the torn ones.
        journal.write(1, 1).unwrap();
        let (_, read, recovered) = SteppedJournal::open(&disk.after_kill()).unwrap();
        let length = |index| if index <= replayed { 50 } else { 1 };
        assert_eq!(assert_is_a_prefix(&read, length), replayed + 1);
        assert_eq!(recovered.cut, None);
    }
}

#[test]
fn records_after_a_torn_one_never_follow_its_replacement() {
    // So long that the replacing record writes no zeros after itself.
    let length = 150_000;
    let mut behind = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
        journal.write(2, length).unwrap();
        disk.fail_at(disk.calls() + 2);
        assert!(journal.write(3, length).is_err());
        let disk = disk.after_power_cut(seed);
        let (mut journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
        let replayed = assert_is_a_prefix(&read, |_| length);
        behind += u32::from(recovered.cut.is_some_and(|cut| cut.bytes > length as u64));
        journal.write(1, length).unwrap();
        let (_, read, _) = SteppedJournal::open(&disk.after_kill()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| length), replayed + 1, "seed {seed}");
    }
    assert!(behind > 10, "there were whole records behind torn ones: {behind}");
}
