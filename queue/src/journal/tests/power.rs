//! What was acknowledged is there after any power cut; what was not is there whole or not at all, and never without what
//! came before it.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// Power cuts in one run of the tests; `LONGSHORE_POWER_CUTS` makes it more.
fn power_cuts() -> u64 {
    std::env::var("LONGSHORE_POWER_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000)
}

/// Runs batches until the disk fails at some call, cuts the power, recovers, and goes on: several times on the same disk.
fn live_through_power_cuts(seed: u64) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut disk = SimulatedDisk::default();
    let mut acknowledged = 0;
    let mut cuts = 0;
    // Bodies of some seeds fill segments, so that cuts fall into new ones.
    let length = [20, 300, 200_000][random.random_range(0..3)];
    for _ in 0..random.random_range(1..4) {
        disk.fail_at(disk.calls() + random.random_range(1..40));
        if let Ok((mut journal, read, _)) = Stepped::open(&disk) {
            let there = assert_is_a_prefix(&read, |_| length);
            assert!(
                there >= acknowledged,
                "seed {seed}: {acknowledged} acknowledged, {there} there"
            );
            acknowledged = journal.committed();
            for _ in 0..random.random_range(0..20) {
                let wrote = journal.write(random.random_range(1..5), length);
                acknowledged = journal.committed();
                if wrote.is_err() || (random.random_bool(0.2) && journal.firm_mark().is_err()) {
                    break;
                }
            }
        }
        cuts += 1;
        disk = disk.after_power_cut(random.random());
    }
    let (journal, read, recovered) =
        Stepped::open(&disk).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    let there = assert_is_a_prefix(&read, |_| length);
    assert!(there >= acknowledged, "seed {seed}: {acknowledged} acknowledged, {there} there");
    assert_eq!((journal.committed(), recovered.records), (there, there));
    cuts
}

#[test]
fn whatever_the_power_cut_the_acknowledged_is_there_and_nothing_else() {
    let (mut cuts, mut seed) = (0, 0);
    while cuts < power_cuts() {
        cuts += live_through_power_cuts(seed);
        seed += 1;
    }
}

#[test]
fn after_a_kill_everything_written_is_there() {
    for batches in 0..12 {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = Stepped::open(&disk).unwrap();
        for _ in 0..batches {
            journal.write(3, 200_000).unwrap();
        }
        let (_, read, recovered) = Stepped::open(&disk.after_kill()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), batches * 3);
        assert_eq!(recovered.cut, None);
    }
}

#[test]
fn no_call_that_fails_is_followed_by_an_acknowledgement() {
    let batches = 8;
    let mut call = 1;
    loop {
        let disk = SimulatedDisk::default();
        disk.fail_at(call);
        let mut committed = 0;
        let mut failed = true;
        if let Ok((mut journal, _, _)) = Stepped::open(&disk) {
            failed = false;
            for _ in 0..batches {
                let before = disk.calls();
                if before >= call {
                    failed = true;
                }
                let wrote = journal.write(2, 200_000);
                if failed {
                    assert!(wrote.is_err(), "call {call} failed");
                    assert_eq!(journal.committed(), committed, "call {call} failed");
                }
                failed |= wrote.is_err();
                committed = journal.committed();
            }
        }
        // What was acknowledged before the failure is there.
        let (_, read, _) = Stepped::open(&disk.after_power_cut(call)).unwrap();
        assert!(assert_is_a_prefix(&read, |_| 200_000) >= committed);
        if !failed {
            assert!(call > 30, "the workload makes many calls: {call}");
            break;
        }
        call += 1;
    }
}

#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_written_again_before_it_counts() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = Stepped::open(&disk).unwrap();
    journal.write(2, 20).unwrap();
    disk.fail_at(disk.calls() + 2);
    assert!(journal.write(1, 20).is_err(), "its sync failed");
    drop(journal);
    // Linux counts the pages as clean now: they are read back, and no sync writes them again.
    let disk = disk.after_kill().with_clean_pages();
    let (journal, read, _) = Stepped::open(&disk).unwrap();
    let there = assert_is_a_prefix(&read, |_| 20);
    assert_eq!(journal.committed(), there);
    let (_, read, _) = Stepped::open(&disk.after_power_cut(1)).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 20), there, "what counted after the restart lasts");
}

#[test]
fn a_torn_tail_is_cut_off_and_said_and_never_comes_back() {
    for seed in 0..200 {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = Stepped::open(&disk).unwrap();
        journal.write(3, 50).unwrap();
        disk.fail_at(disk.calls() + 2);
        assert!(journal.write(5, 50).is_err());
        let disk = disk.after_power_cut(seed);
        let (mut journal, read, recovered) = Stepped::open(&disk).unwrap();
        let there = assert_is_a_prefix(&read, |_| 50);
        assert!((3..=8).contains(&there));
        if let Some(cut) = recovered.cut {
            assert!(cut.bytes > 0 && there < 8, "{cut:?}");
        }
        // Shorter records now stand where the torn ones stood.
        journal.write(1, 1).unwrap();
        let (_, read, recovered) = Stepped::open(&disk.after_kill()).unwrap();
        let length = |index| if index <= there { 50 } else { 1 };
        assert_eq!(assert_is_a_prefix(&read, length), there + 1);
        assert_eq!(recovered.cut, None);
    }
}

#[test]
fn whole_records_behind_a_torn_one_never_follow_the_one_that_takes_its_place() {
    // So long that the record in its place brings no zeros of its own with it.
    let length = 150_000;
    let mut behind = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = Stepped::open(&disk).unwrap();
        journal.write(2, length).unwrap();
        disk.fail_at(disk.calls() + 2);
        assert!(journal.write(3, length).is_err());
        let disk = disk.after_power_cut(seed);
        let (mut journal, read, recovered) = Stepped::open(&disk).unwrap();
        let there = assert_is_a_prefix(&read, |_| length);
        behind += u32::from(recovered.cut.is_some_and(|cut| cut.bytes > length as u64));
        journal.write(1, length).unwrap();
        let (_, read, _) = Stepped::open(&disk.after_kill()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| length), there + 1, "seed {seed}");
    }
    assert!(behind > 10, "there were whole records behind torn ones: {behind}");
}
