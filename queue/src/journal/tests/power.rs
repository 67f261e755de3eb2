//! What a failed sync or a power cut leaves of the last commit. The simulation covers whole runs
//! over power cuts.

use super::*;

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
