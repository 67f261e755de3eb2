//! Which snapshot a start chooses, and the effect of its damage.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::cycles::IdleContext;
use super::*;
use crate::journal::compaction::compactor::Compactor;
use crate::journal::files::pin::Pin;
use crate::journal::simulated_disk::{Call, Fault};
use crate::journal::wal::format::SegmentHeader;
use crate::journal::wal::locations::CompactedAt;

#[test]
fn every_bit_flip_and_truncation_of_a_snapshot_is_located() {
    let disk = small();
    let length = disk.tamper(&snapshot_path(3), |bytes| bytes.len());
    assert!(length < 5_000);
    // With its first segment the log would replace the snapshot.
    disk.remove(&segment(1)).unwrap();
    let refused = |change: &mut dyn FnMut(&mut Vec<u8>), what: String| {
        let bad = disk.after_kill();
        bad.tamper(&snapshot_path(3), change);
        match SteppedJournal::open(&bad).map(|_| ()) {
            Err(JournalOpenError::Damaged { file, offset, index, .. }) => {
                assert_eq!((file, index), (snapshot_path(3), 1), "{what}");
                offset as usize
            }
            other => panic!("{what}: {other:?}"),
        }
    };
    for bit in 0..length * 8 {
        let offset = refused(&mut |bytes| bytes[bit / 8] ^= 1 << (bit % 8), format!("bit {bit}"));
        // The offset of the damaged block, or of the header.
        assert!(offset <= bit / 8 && bit / 8 < offset + 4096, "bit {bit}: {offset}");
    }
    for cut in 0..length {
        let offset = refused(&mut |bytes| bytes.truncate(cut), format!("cut at {cut}"));
        assert!(offset <= cut);
    }
    let offset = refused(&mut |bytes| bytes.push(0), "a byte more".to_owned());
    assert!(offset < length && offset > 4096);
}

#[test]
fn reordered_snapshot_blocks_are_damage() {
    let disk = small();
    disk.remove(&segment(1)).unwrap();
    // Blocks of the same length: the states of commands that differ only by their index.
    let blocks = disk.tamper(&snapshot_path(3), |bytes| {
        let (mut at, mut blocks) = (4096, Vec::new());
        while at < bytes.len() {
            let length = 8 + u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
            blocks.push(bytes[at..at + length].to_vec());
            at += length;
        }
        blocks
    });
    assert_eq!(blocks.iter().map(|block| block[8]).collect::<Vec<_>>(), [1, 2, 3, 3, 3, 255]);
    for (one, other) in (0..blocks.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let mut swapped = blocks.clone();
        swapped.swap(one, other);
        let bad = disk.after_kill();
        bad.tamper(&snapshot_path(3), |bytes| {
            bytes.truncate(4096);
            bytes.extend(swapped.concat());
        });
        let opened = SteppedJournal::open(&bad).map(|_| ());
        assert!(matches!(opened, Err(JournalOpenError::Damaged { .. })), "{one} and {other}");
    }
}

#[test]
fn complete_log_replaces_missing_snapshots() {
    let (disk, journal, last) = journal_of_segments();
    journal.snapshot(5, 200_000, |_| true).unwrap();
    journal.snapshot(12, 200_000, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let disk = disk.after_kill();
    for snapshot in snapshots_of(&disk) {
        disk.tamper(&snapshot, |bytes| bytes[5_000] ^= 1);
    }
    let gap = disk.after_kill();
    let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
    assert_eq!((recovered.snapshot, recovered.dropped), (None, None));
    assert!(snapshots_of(&disk).is_empty(), "the bad ones are gone");
    // In an incomplete log only the commands after the gap are lost.
    gap.remove(&segment(3)).unwrap();
    let refused = SteppedJournal::open(&gap).map(drop).unwrap_err();
    assert!(
        matches!(&refused, JournalOpenError::Damaged { file, .. } if *file == snapshot_path(12)),
        "{refused:?}"
    );
    let (_, read, recovered) = SteppedJournal::open_with(&gap, accepting()).unwrap();
    let replayed = assert_is_a_prefix(&read, |_| 200_000);
    assert!(replayed > 4 && recovered.dropped.unwrap().index == replayed + 1);
    assert!(gap.paths().contains(&segment(1)));
    assert!(gap.paths().contains(&path(&format!("lost/{}-0000000004.seg", replayed + 1))));
}

#[test]
fn log_with_a_gap_is_no_fallback() {
    let (disk, journal, last) = journal_of_segments();
    // A job of the first segment is still live; the next two segments are dead.
    journal.snapshot(12, 200_000, |run| run.sequence == 1 || run.last >= 12).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let whole = disk.after_kill();
    let missing = disk.after_kill();
    missing.remove(&segment(2)).unwrap();
    let corrupt = disk.after_kill();
    corrupt.tamper(&segment(2), |bytes| bytes[300_000] ^= 1);
    for (disk, falls_back) in [(whole, true), (missing, false), (corrupt, false)] {
        let (parts, read) = open_parts(&disk, options()).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
        let fallback = parts.fallback.map(|fallback| fallback.snapshot);
        assert_eq!(fallback, falls_back.then_some(0));
        assert_eq!(disk.paths().contains(&segment(2)), falls_back, "otherwise nothing needs it");
    }
}

#[test]
fn start_reads_old_log_only_if_files_depend_on_it() {
    for (needs_all, reads_more) in [(true, false), (false, true)] {
        let (disk, journal, last) = journal_of_segments();
        journal.snapshot(12, 200_000, |run| needs_all || run.last >= 12).unwrap();
        journal.sync_watermark().unwrap();
        drop(journal);
        let disk = disk.after_kill();
        let reads = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&reads);
        // Counts reads, and fails none.
        disk.fail(Fault::nth_where(1, move |call, path| {
            let is_it = call == Call::Read && *path == *segment(1);
            counted.fetch_add(is_it.into(), Ordering::Relaxed);
            false
        }));
        let (_, read, _) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
        let reads = reads.load(Ordering::Relaxed);
        assert!(reads >= 1 && (reads > 1) == reads_more, "its header, and more: {reads}");
    }
}

#[test]
fn files_pinned_during_a_start_go_with_the_first_cycle() {
    let (disk, journal, _) = journal_of_segments();
    journal.snapshot(12, 200_000, |run| run.last >= 12).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let disk = disk.after_kill();
    // No fallback needs the first segment.
    disk.remove(&segment(2)).unwrap();
    let copy = Pin::to_read(&disk, Path::new(DIR)).unwrap();
    let (parts, _) = open_parts(&disk, options()).unwrap();
    assert!(disk.paths().contains(&segment(1)) && parts.fallback.is_none());
    assert_eq!(parts.obsolete.len(), 1);
    drop(copy);
    let bytes = parts.directory.bytes.load(Ordering::Relaxed);
    let length = parts.obsolete[0].bytes;
    let directory = Arc::clone(&parts.directory);
    let metrics = Arc::default();
    let mut compactor =
        Compactor::new(parts.directory, parts.records, metrics, Some(12), None, parts.obsolete);
    let state = Commands { index: 16, blocks: VecDeque::new(), parts: Vec::new() };
    compactor.cycle(Box::new(state), &mut IdleContext::default()).unwrap();
    assert!(!disk.paths().contains(&segment(1)));
    assert_eq!(directory.bytes.load(Ordering::Relaxed), bytes - length);
}

#[test]
fn damaged_snapshot_falls_back_to_an_older_one_without_loss() {
    let (disk, journal, last) = journal_of_segments();
    journal.snapshot(5, 200_000, |_| true).unwrap();
    let newer = journal.snapshot(11, 200_000, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let length = newer.bytes as usize;
    for at in [0, 20, 4096, 4105, length / 2, length - 40, length - 1] {
        let disk = disk.after_kill();
        disk.tamper(&newer.path, |bytes| bytes[at] ^= 1);
        let (mut journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
        assert_eq!(recovered.snapshot.unwrap().index, 5, "byte {at}");
        assert_eq!((recovered.dropped, recovered.losses), (None, 0));
        assert_eq!(snapshots_of(&disk), [snapshot_path(5)], "the bad one is gone");
        journal.write(1, 200_000).unwrap();
    }
    // Also if the compacted file of the newer one is missing.
    let missing = disk.after_kill();
    let (journal, _, _) = SteppedJournal::open(&missing).unwrap();
    journal.snapshot(5, 200_000, |_| true).unwrap();
    snapshot_with_compacted(&journal, 11);
    drop(journal);
    let (_, read, recovered) = SteppedJournal::open(&missing).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
    assert_eq!(recovered.snapshot.unwrap().index, 5);
}

#[test]
fn damaged_snapshot_still_proves_committed_commands() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(2, 50).unwrap();
    journal.sync_watermark().unwrap();
    journal.snapshot(1, 50, |_| true).unwrap();
    journal.write(1, 50).unwrap();
    journal.write(1, 50).unwrap();
    let newer = journal.snapshot(4, 50, |_| true).unwrap();
    let end = resume_after(&journal.records.locations_up_to(3)).offset as usize;
    drop(journal);
    let disk = disk.after_kill();
    disk.tamper(&newer.path, |bytes| bytes[4097] ^= 1);
    disk.tamper(&segment(1), |bytes| bytes[end..].fill(0));
    disk.tamper(&path("watermark"), |bytes| bytes[..4096].fill(0));
    let opened = SteppedJournal::open(&disk).map(|_| ());
    let Err(JournalOpenError::Damaged { offset, index, why, .. }) = opened else {
        panic!("{opened:?}")
    };
    assert_eq!((offset, index), (end as u64, 4));
    assert!(why.contains("snapshot"), "{why}");
    let (_, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 50), 3);
    assert_eq!(recovered.dropped.unwrap().index, 4);
    let (_, read, _) = SteppedJournal::open(&disk.after_kill()).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 50), 3, "the bad snapshot no longer counts");
}

#[test]
fn missing_or_empty_file_a_snapshot_needs_is_damage() {
    let (disk, journal, _) = journal_of_segments();
    journal.snapshot(12, 200_000, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    for number in 1..=2 {
        let missing = disk.after_kill();
        missing.remove(&segment(number)).unwrap();
        let empty = disk.after_kill();
        empty.tamper(&segment(number), |bytes| bytes.fill(0));
        for disk in [missing, empty] {
            match SteppedJournal::open(&disk).map(|_| ()) {
                Err(JournalOpenError::PayloadsLost { file, why }) => {
                    assert_eq!(file, segment(number));
                    assert!(why.contains("a snapshot needs"), "{why}");
                }
                other => panic!("{number}: {other:?}"),
            }
        }
    }
}

/// Writes a snapshot that names compacted file 20 in place of the first segment.
fn snapshot_with_compacted(journal: &SteppedJournal, index: u64) -> Locations {
    let located = journal.records.locations_up_to(index);
    let mut runs = located.runs().to_vec();
    let records = vec![CompactedAt { index: 2, at: 0, offset: 4096 }];
    let (first, sequence) = (runs.remove(0), 20);
    runs.insert(0, Run { sequence, records: RunRecords::Compacted(records), ..first });
    let (resume, mut state) = (resume_after(&located), Commands::up_to(index, 200_000));
    let locations = Locations::of(runs);
    snapshots::write(&journal.directory, &mut state, &locations, resume, &mut |_| Ok(CHUNK_BYTES))
        .unwrap();
    locations
}

/// Creates a compacted file without records: only its header is checked.
fn compacted(disk: &SimulatedDisk, sequence: u64) -> PathBuf {
    let path = path(&format!("segments/{sequence:010}.compacted"));
    let header = SegmentHeader::compacted(JOURNAL, sequence).encode();
    let file = disk.create(&path).unwrap();
    file.write_at(&header, 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(path.parent().unwrap()).unwrap();
    path
}

#[test]
fn compacted_files_stay_while_needed_and_are_missed_otherwise() {
    let (disk, journal, last) = journal_of_segments();
    let (needed, garbage) = (compacted(&disk, 20), compacted(&disk, 21));
    disk.remove(&segment(1)).unwrap();
    let locations = snapshot_with_compacted(&journal, 12);
    drop(journal);
    let disk = disk.after_kill();
    let (journal, read, _) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
    let replayed = disk.paths();
    assert!(
        replayed.contains(&needed)
            && !replayed.contains(&garbage)
            && !replayed.contains(&segment(1))
    );
    assert_eq!(journal.records.locations_up_to(12), locations);
    assert!(journal.directory.create_segment(1 << 20).unwrap().sequence > 21);
    drop(journal);

    let missing = disk.after_kill();
    missing.remove(&needed).unwrap();
    let bad = disk.after_kill();
    bad.tamper(&needed, |bytes| bytes[48] ^= 1);
    for disk in [missing, bad] {
        let opened = SteppedJournal::open(&disk).map(|_| ());
        let Err(JournalOpenError::PayloadsLost { file, .. }) = opened else { panic!("{opened:?}") };
        assert_eq!(file, needed);
        let (_, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
        assert_eq!((assert_is_a_prefix(&read, |_| 200_000), recovered.dropped), (last, None));
        assert!(disk.paths().contains(&needed));
        SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
    }
}

#[test]
fn directory_with_only_a_snapshot_gets_no_new_id() {
    let (disk, journal, last) = journal_of_segments();
    journal.snapshot(last, 200_000, |_| false).unwrap();
    drop(journal);
    for path in disk.paths() {
        if !path.starts_with(Path::new(DIR).join("snapshots")) {
            disk.remove(&path).unwrap();
        }
    }
    for options in [options(), accepting()] {
        let refused = SteppedJournal::open_with(&disk, options).map(drop).unwrap_err();
        assert!(matches!(refused, JournalOpenError::NoIdentity { .. }), "{refused:?}");
        assert_eq!(disk.paths(), [snapshot_path(last)], "nothing was made");
    }
}

#[test]
fn accepted_damage_after_a_snapshot_retains_earlier_commands() {
    let (disk, journal, last) = journal_of_segments();
    journal.snapshot(3, 200_000, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let disk = disk.after_kill();
    disk.tamper(&segment(2), |bytes| bytes[300_000] ^= 1);
    assert!(matches!(
        SteppedJournal::open(&disk).map(|_| ()),
        Err(JournalOpenError::Damaged { .. })
    ));
    let (journal, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
    let replayed = assert_is_a_prefix(&read, |_| 200_000);
    assert!((3..last).contains(&replayed));
    let dropped = recovered.dropped.unwrap();
    assert_eq!((dropped.index, dropped.file), (replayed + 1, segment(2)));
    assert_eq!(recovered.losses, 1);
    drop(journal);
    let (mut journal, _, _) = SteppedJournal::open(&disk.after_kill()).unwrap();
    journal.write(1, 200_000).unwrap();
    let (_, read, recovered) = SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), replayed);
    assert_eq!((recovered.losses, recovered.dropped), (1, None));
}

#[test]
fn accepted_damage_of_the_only_snapshot_starts_an_empty_journal() {
    let (whole, journal, _) = journal_of_segments();
    let written = journal.snapshot(12, 200_000, |run| run.sequence > 1).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    whole.remove(&segment(1)).unwrap();

    let flip = |at: usize| {
        let disk = whole.after_kill();
        disk.tamper(&written.path, |bytes| bytes[at] ^= 1);
        disk
    };
    let nothing = whole.after_kill();
    nothing.tamper(&written.path, |bytes| bytes.truncate(100));
    for disk in [flip(5_000), flip(17), nothing] {
        let refused = SteppedJournal::open(&disk).map(|_| ());
        assert!(matches!(refused, Err(JournalOpenError::Damaged { index: 1, .. })), "{refused:?}");
        let (journal, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
        assert!(read.is_empty() && recovered.last_index == 0 && recovered.snapshot.is_none());
        assert_eq!(recovered.losses, 1);
        let dropped = recovered.dropped.unwrap();
        assert_eq!((dropped.index, dropped.moved_to), (1, path("lost")));
        assert!(dropped.bytes > 1_000_000);
        let in_lost = |path: &PathBuf| path.starts_with(Path::new(DIR).join("lost"));
        let (lost, retained): (Vec<_>, Vec<_>) = disk.paths().into_iter().partition(in_lost);
        assert!(lost.contains(&path("lost/1-00000000000000000012.snap")), "{lost:?}");
        assert!(lost.contains(&path("lost/1-0000000003.seg")), "{lost:?}");
        assert_eq!(retained, [path("publisher"), path("watermark")]);
        drop(journal);
        // The run ended before its start was logged.
        let disk = disk.after_power_cut(1);
        let (mut journal, _, recovered) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(recovered.losses, 1);
        journal.write(2, 50).unwrap();
        drop(journal);
        let (_, read, recovered) = SteppedJournal::open(&disk.after_power_cut(2)).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 50), 2);
        assert_eq!((recovered.dropped, recovered.losses), (None, 1));
    }
}

#[test]
fn setting_files_aside_survives_a_power_cut_at_any_call() {
    let (disk, journal, last) = journal_of_segments();
    let written = journal.snapshot(12, 200_000, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    disk.tamper(&written.path, |bytes| bytes[5_000] ^= 1);
    disk.remove(&segment(1)).unwrap();
    disk.sync_dir(&path("segments")).unwrap();
    let mut call = 1;
    loop {
        let disk = disk.after_kill();
        disk.fail_at(call);
        let done = SteppedJournal::open_with(&disk, accepting()).is_ok();
        let disk = disk.after_power_cut(call);
        if !done && let Ok((_, read, recovered)) = SteppedJournal::open(&disk) {
            // Everything was set aside, and the commit watermark was reset.
            assert!(read.is_empty() && recovered.losses > 0, "call {call}");
        }
        let (_, read, recovered) = SteppedJournal::open_with(&disk, accepting()).unwrap();
        assert!(read.is_empty(), "call {call}: {} of {last}", read.len());
        assert!(recovered.losses > 0, "call {call}");
        if done {
            break;
        }
        call += 1;
    }
    assert!(call > 8, "{call}");
}
