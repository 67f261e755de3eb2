//! Writing snapshots, and recovery after them.

use super::*;
use crate::journal::files::pin::Pin;
use crate::journal::space::removal;
use crate::journal::wal::record::record_len;

/// The checksum of a whole snapshot file, computed by another program from the description alone.
const GOLDEN_CRC: u32 = 0x269a_2357;

#[test]
fn replay_and_writing_continue_after_a_snapshot_at_any_index() {
    let (disk, _, last) = journal_of_segments();
    for index in 1..=last {
        for syncs_watermark in [true, false] {
            let disk = disk.after_kill();
            let (journal, _, _) = SteppedJournal::open(&disk).unwrap();
            let written = journal.snapshot(index, 200_000, |_| true).unwrap();
            assert_eq!((written.index, &written.path), (index, &snapshot_path(index)));
            assert_eq!(written.bytes, disk.tamper(&written.path, |bytes| bytes.len()) as u64);
            if syncs_watermark {
                journal.sync_watermark().unwrap();
            }
            drop(journal);
            let disk = disk.after_kill();
            let (mut journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
            let found = recovered.snapshot.unwrap();
            assert_eq!((found.index, found.bytes), (index, written.bytes));
            assert_eq!((recovered.last_index, recovered.records), (last, last - index));
            assert_eq!((recovered.cut, recovered.dropped), (None, None));
            for index in [1, index, last] {
                let length = 8 + body(index, 200_000).len() as u32;
                let whole = crate::log::Records::part(
                    &*journal.records,
                    RecordRef { index, at: 0, length },
                );
                assert_eq!(whole.unwrap().slice(8..), body(index, 200_000));
            }
            journal.write(1, 200_000).unwrap();
            journal.write(2, 200_000).unwrap();
            let (_, read, recovered) = SteppedJournal::open(&disk.after_power_cut(index)).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last + 3);
            assert_eq!(recovered.snapshot.map(|found| found.index), Some(index));
        }
    }
}

#[test]
fn start_removes_files_the_snapshot_does_not_need() {
    let (disk, _, last) = journal_of_segments();
    for index in [6, 10, last] {
        let disk = disk.after_kill();
        let (journal, _, _) = SteppedJournal::open(&disk).unwrap();
        // The snapshot needs the second segment and the resume segment only.
        let resume = resume_after(&journal.records.locations_up_to(index));
        let is_needed = |run: &Run| run.sequence == 2 || run.sequence == resume.sequence;
        journal.snapshot(index, 200_000, is_needed).unwrap();
        // Without the first segment there is no fallback.
        disk.remove(&segment(1)).unwrap();
        disk.create(&path("segments/0000000009.compacted.new")).unwrap();
        disk.create(&path("segments/0000000010.compacted")).unwrap();
        disk.create(&path("snapshots/00000000000000000900.snap.new")).unwrap();
        drop(journal);
        let disk = disk.after_kill();
        let (mut journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
        assert_eq!(recovered.snapshot.unwrap().index, index);
        assert_eq!(snapshots_of(&disk), [snapshot_path(index)]);
        let remaining: Vec<PathBuf> = disk.paths();
        let remaining: Vec<&PathBuf> = remaining
            .iter()
            .filter(|path| path.starts_with(Path::new(DIR).join("segments")))
            .collect();
        let segments: Vec<PathBuf> =
            (2..=4).filter(|&n| n == 2 || n >= resume.sequence).map(segment).collect();
        assert_eq!(remaining, segments.iter().collect::<Vec<_>>());
        let bytes: usize = segments.iter().map(|path| disk.tamper(path, |bytes| bytes.len())).sum();
        let counted = journal.directory.bytes.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(counted, bytes as u64);
        // New numbers are above all used ones.
        assert!(journal.directory.create_segment(1 << 20).unwrap().sequence > 10);
        journal.write(3, 200_000).unwrap();
        let (_, read, _) = SteppedJournal::open(&disk.after_power_cut(index)).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last + 3);
    }
}

#[test]
fn log_continues_in_a_new_segment_when_the_resume_segment_is_gone() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(3, 50).unwrap();
    journal.snapshot(3, 50, |_| false).unwrap();
    // The segment was full, and the next one had no commit yet: so this one was removed.
    disk.remove(&segment(1)).unwrap();
    drop(journal);
    let mut disk = disk.after_kill();
    for round in 0..3 {
        let (mut journal, read, recovered) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 50), 3 + round);
        assert_eq!((recovered.records, recovered.cut), (round, None));
        assert!(journal.directory.create_segment(1 << 20).unwrap().sequence > 1);
        journal.write(1, 50).unwrap();
        disk = disk.after_power_cut(round);
    }
}

#[test]
fn replay_continues_in_the_segment_after_a_removed_one() {
    let (disk, journal, last) = journal_of_segments();
    let index = journal.records.locations_up_to(last).runs()[1].last;
    let nowhere = Resume { sequence: 0, offset: 4096 };
    let (needed, mut state) = (Locations::default(), Commands::up_to(index, 200_000));
    snapshots::write(&journal.directory, &mut state, &needed, nowhere, &mut |_| Ok(CHUNK_BYTES))
        .unwrap();
    drop(journal);
    for removed in 0..=2 {
        let disk = disk.after_kill();
        (1..=removed).for_each(|number| disk.remove(&segment(number)).unwrap());
        let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
        assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
        assert_eq!(recovered.records, last - index);
        let are_removed = (1..=2).all(|number| !disk.paths().contains(&segment(number)));
        // A log from its first command on is a fallback.
        assert_eq!(are_removed, removed > 0);
    }
}

#[test]
fn start_removes_no_pinned_files() {
    let (disk, journal, last) = journal_of_segments();
    journal.snapshot(3, 200_000, |_| true).unwrap();
    journal.snapshot(7, 200_000, |run| run.sequence > 1).unwrap();
    journal.snapshot(12, 200_000, |run| run.sequence > 1).unwrap();
    drop(journal);
    let disk = disk.after_kill();
    let pinned = Pin::to_read(&disk, Path::new(DIR)).unwrap();
    let (journal, read, _) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
    assert!(disk.paths().contains(&segment(1)) && disk.paths().contains(&snapshot_path(3)));
    drop((journal, pinned));
    let disk = disk.after_kill();
    let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last);
    assert_eq!(recovered.snapshot.unwrap().index, 12);
    // The files of the older of the last two exist, too.
    assert_eq!(snapshots_of(&disk), [snapshot_path(7), snapshot_path(12)]);
    assert!(disk.paths().contains(&segment(1)));
}

#[test]
fn power_cut_during_a_cycle_leaves_old_or_new_snapshot() {
    let (disk, journal, last) = journal_of_segments();
    journal.snapshot(5, 200_000, |_| true).unwrap();
    journal.sync_watermark().unwrap();
    drop(journal);
    let base = disk.after_kill();
    let (mut call, mut seen) = (1, [0, 0]);
    loop {
        let disk = base.after_kill();
        let (journal, _, _) = SteppedJournal::open(&disk).unwrap();
        disk.fail_at(disk.calls() + call);
        // One cycle: writes the new snapshot, retires the old one, and removes what neither needs.
        let cycle = || {
            let needed = |run: &Run| run.sequence >= 3;
            journal.snapshot(12, 200_000, needed).map_err(|why| why.to_string())?;
            // From here on the new snapshot counts.
            for seed in 0..20 {
                assert!(snapshots_of(&disk.after_power_cut(seed)).contains(&snapshot_path(12)));
            }
            let others = snapshots::retire_except(&journal.directory, &[12]);
            let mut retired = others.map_err(|why| why.to_string())?;
            for seed in 0..20 {
                let counting = snapshots_of(&disk.after_power_cut(seed)).into_iter();
                let counting = counting.filter(|path| !path.to_string_lossy().ends_with(".new"));
                assert!(counting.eq([snapshot_path(12)]));
            }
            let (dir, paths) = (journal.directory.segments_dir(), [1, 2].map(segment));
            let segments = removal::retire(&disk, &dir, paths).map_err(|why| why.to_string())?;
            retired.extend(segments.into_iter().flatten());
            retired.iter().try_for_each(|path| {
                removal::remove(&disk, path, &mut || Ok(())).map_err(|why| why.to_string())
            })
        };
        let cycled = cycle();
        drop(journal);
        for seed in 0..6 {
            let disk = disk.after_power_cut(call * 100 + seed);
            let (mut journal, read, recovered) = SteppedJournal::open(&disk)
                .unwrap_or_else(|why| panic!("call {call}, seed {seed}: {why}"));
            assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last, "call {call}");
            let found = recovered.snapshot.unwrap().index;
            assert!(found == 5 || found == 12);
            assert!(cycled.is_err() || found == 12);
            seen[usize::from(found == 12)] += 1;
            assert_eq!(snapshots_of(&disk).last(), Some(&snapshot_path(found)));
            journal.write(2, 200_000).unwrap();
            let (_, read, _) = SteppedJournal::open(&disk.after_power_cut(seed)).unwrap();
            assert_eq!(assert_is_a_prefix(&read, |_| 200_000), last + 2);
        }
        if cycled.is_ok() {
            break;
        }
        call += 1;
    }
    assert!(call > 15 && seen.iter().all(|&times| times > 20), "{call} calls: {seen:?}");
}

#[test]
fn failing_call_leaves_no_partial_snapshot() {
    let (disk, journal, _) = journal_of_segments();
    drop(journal);
    let mut call = 1;
    loop {
        let disk = disk.after_kill();
        let (journal, _, _) = SteppedJournal::open(&disk).unwrap();
        disk.fail_at(disk.calls() + call);
        let wrote = journal.snapshot(4, 200_000, |_| true);
        let remaining = disk.paths().contains(&snapshot_path(4));
        match &wrote {
            Ok(_) => assert!(remaining),
            Err(WriteError::NotSwitched { .. }) => assert!(remaining),
            Err(why) => assert!(!remaining, "{why}"),
        }
        if wrote.is_ok() {
            break;
        }
        call += 1;
    }
    assert!(call > 8, "{call}");
}

#[test]
fn snapshot_that_fails_readback_never_counts() {
    let (disk, journal, _) = journal_of_segments();
    let located = journal.records.locations_up_to(4);
    let (resume, mut state) = (resume_after(&located), Commands::up_to(4, 200_000));
    let unfinished = path("snapshots/00000000000000000004.snap.new");
    let mut spoil = 2;
    let wrote = snapshots::write(&journal.directory, &mut state, &located, resume, &mut |_| {
        spoil -= 1;
        if spoil == 0 {
            disk.tamper(&unfinished, |bytes| bytes[100_000] ^= 4);
        }
        Ok(CHUNK_BYTES)
    });
    let Err(WriteError::NotAsWritten { why, .. }) = wrote else { panic!("{wrote:?}") };
    assert!(why.to_string().contains("snap.new") && why.to_string().contains("byte"), "{why}");
    assert_eq!(snapshots_of(&disk), Vec::<PathBuf>::new());
}

#[test]
fn snapshot_is_written_in_small_chunks() {
    let (_disk, journal, last) = journal_of_segments();
    let located = journal.records.locations_up_to(last);
    let (resume, mut state) = (resume_after(&located), Commands::up_to(last, 200_000));
    let mut chunks = Vec::new();
    let mut pace = |bytes| {
        chunks.push(bytes);
        Ok(CHUNK_BYTES)
    };
    let written =
        snapshots::write(&journal.directory, &mut state, &located, resume, &mut pace).unwrap();
    let wrote = (0..).find(|&n| chunks[..n].iter().sum::<usize>() == written.bytes as usize);
    let wrote = &chunks[..wrote.unwrap()];
    assert!(wrote.iter().all(|&bytes| bytes <= CHUNK_BYTES), "{wrote:?}");
    assert!(wrote.len() as u64 <= written.bytes / CHUNK_BYTES as u64 + 1);
    assert!(chunks.len() > wrote.len(), "reading back is paced too");
}

#[test]
fn snapshot_file_matches_golden_bytes() {
    let disk = small();
    let read = disk.tamper(&snapshot_path(3), |bytes| bytes.clone());
    assert_eq!((read.len(), crc32c::crc32c(&read)), (4394, GOLDEN_CRC));
    // Checks what `snapshots/format.rs` does not: the order of blocks, and the first and last
    // block.
    let end =
        (4096 + 3 * record_len(8) + body(1, 10).len() + body(2, 10).len() + body(3, 10).len())
            .to_le_bytes();
    assert_eq!(read[4105..4121], [&[1, 0, 0, 0, 0, 0, 0, 0], &end[..]].concat());
    let last = [&[255][..], &5u64.to_le_bytes(), &3u64.to_le_bytes(), &EPOCH.to_le_bytes()];
    assert_eq!(read[read.len() - 25..], last.concat());
}
