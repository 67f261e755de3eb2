//! Inspection reports what a start will do; a copy is another journal with the same commands.

use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::RecordRef;
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::compaction::rewrite;
use crate::journal::files::Disk;
use crate::journal::files::pin::{PIN_FILE, Pin};
use crate::journal::inspect::{
    Copied, Dump, DumpOptions, Dumped, Effect, InspectError, SegmentKind, Verified, copy_on,
    stat_on, verify_on,
};

pub(super) const COPY: &str = "/copy";
const OTHER: PublisherId = PublisherId([5; 16]);

pub(super) fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("segments/{number:010}.seg"))
}

pub(super) fn verify(disk: &SimulatedDisk, dir: &str) -> Result<Verified, InspectError> {
    verify_on(&disk.files(), Path::new(dir), &|_, _| true, &mut |_, _| {})
}

pub(super) fn copy(disk: &SimulatedDisk) -> Result<Copied, InspectError> {
    copy_on(&disk.files(), Path::new(DIR), Path::new(COPY), OTHER, &mut |_, _| {})
}

/// A journal of a few segments; with a snapshot of the first commands, or without.
fn journal(commits: u64, length: usize, snapshot: Option<u64>) -> (SimulatedDisk, u64) {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for commit in 0..commits {
        journal.write(1 + commit % 3, length).unwrap();
    }
    if let Some(index) = snapshot {
        journal.snapshot(index, length, |_| true).unwrap();
    }
    journal.sync_watermark().unwrap();
    let committed = journal.committed();
    (disk, committed)
}

fn open_at(disk: &SimulatedDisk, dir: &str) -> Result<(Recovered, ReadBack), JournalOpenError> {
    let mut rebuilt = Rebuilt::default();
    let parts = Parts::open(disk.files(), Path::new(dir), options(), &mut rebuilt)?;
    Ok((parts.recovered, rebuilt.read))
}

#[test]
fn verifying_an_intact_journal_finds_and_changes_nothing() {
    for snapshot in [None, Some(1), Some(9), Some(19)] {
        let (disk, committed) = journal(10, 150_000, snapshot);
        let calls = disk.calls();
        let verified = verify(&disk, DIR).unwrap();
        assert_eq!(verified.findings, []);
        assert!(!verified.is_refused && !verified.is_damaged());
        assert_eq!((verified.last_index, verified.snapshot), (committed, snapshot));
        assert_eq!(verified.commit_watermark, Some(committed));
        // Covered commands are read where the snapshot names them.
        assert_eq!(verified.records, committed);
        let stat = stat_on(&disk.files(), Path::new(DIR)).unwrap();
        assert_eq!(
            (stat.journal, stat.publisher, stat.commit_watermark),
            (JOURNAL, PUBLISHER, Some(committed))
        );
        let log = stat.segments.iter().filter(|segment| segment.kind == SegmentKind::Log);
        let spans: Vec<_> = log.map(|segment| (segment.first_index, segment.last_index)).collect();
        assert!(spans.len() > 2 && spans[0].0 == Some(1), "{spans:?}");
        for pair in spans.windows(2) {
            assert_eq!(pair[0].1.map(|last| last + 1), pair[1].0);
        }
        assert_eq!(stat.snapshots.first().map(|snapshot| snapshot.index), snapshot);
        assert_eq!(disk.calls(), calls, "nothing was made, written, synced or removed");
    }
}

#[test]
fn verify_predicts_what_a_start_does_with_damage() {
    let mut seen = [0; 4];
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let snapshot = [None, Some(3), Some(7)][random.random_range(0..3)];
        // Small records, so that random damage hits everything; sometimes several segments.
        let length = if random.random_bool(0.2) { 250_000 } else { 30 };
        let (disk, _) = journal(6, length, snapshot);
        let disk = disk.after_kill();
        // As after a power cut: the commit watermark lags behind the last commits, or all.
        if random.random_bool(0.7) {
            let file = disk.open(&Path::new(DIR).join("watermark")).unwrap();
            let nothing = CommitWatermark::read(&*file, JOURNAL).unwrap();
            let watermark =
                CommitWatermark::new(file, Path::new(DIR).join("watermark"), JOURNAL, nothing);
            watermark.reset(random.random_range(0..8)).unwrap();
        }
        let paths: Vec<PathBuf> =
            disk.paths().into_iter().filter(|path| path.parent() == segment(1).parent()).collect();
        for _ in 0..random.random_range(1..3) {
            let path = &paths[random.random_range(0..paths.len())];
            if random.random_bool(0.2) {
                let end = disk.bytes(path).iter().rposition(|&byte| byte != 0).unwrap_or(0);
                disk.break_page(path, random.random_range(0..=end as u64));
                continue;
            }
            disk.tamper(path, |bytes| {
                let end = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
                let from = if random.random_bool(0.3) { 0 } else { 4096.min(end - 1) };
                let at = random.random_range(from..end);
                match random.random_range(0..3) {
                    0 => bytes[at] ^= 1 << random.random_range(0..8),
                    1 => bytes[at..end].fill(0),
                    _ => bytes.truncate(at),
                }
            });
        }
        let verified = verify(&disk, DIR).unwrap();
        let effects: Vec<Effect> = verified.findings.iter().map(|finding| finding.effect).collect();
        match open_at(&disk.after_kill(), DIR) {
            Ok((recovered, _)) => {
                assert!(!verified.is_refused, "{seed}: {verified:?}");
                assert_eq!(verified.last_index, recovered.last_index, "{seed}: {verified:?}");
                if let Some(cut) = recovered.cut {
                    seen[0] += 1;
                    let found = verified.findings.iter().any(|finding| {
                        finding.effect == Effect::ErasesTail
                            && (&finding.file, finding.offset) == (&cut.file, cut.offset)
                    });
                    assert!(found, "{seed}: {cut:?}, {verified:?}");
                }
                seen[1] += usize::from(effects.contains(&Effect::Buries));
                seen[2] += usize::from(verified.findings.is_empty());
            }
            Err(JournalOpenError::Damaged { file, offset, index, .. }) => {
                seen[3] += 1;
                assert!(verified.is_refused, "{seed}: {file:?} {offset}, {verified:?}");
                assert!(
                    verified.findings.iter().any(|finding| {
                        finding.effect == Effect::Refuses && finding.index == Some(index)
                    }) || index <= 1,
                    "{seed}: {index} in {file:?} at {offset}, {verified:?}"
                );
            }
            Err(JournalOpenError::PayloadsLost { .. }) => {
                assert!(verified.is_refused, "{seed}: {verified:?}")
            }
            Err(error) => panic!("{seed}: {error}"),
        }
    }
    assert!(seen.iter().all(|&times| times > 5), "not every case occurred: {seen:?}");
}

#[test]
fn verify_refuses_a_directory_in_use_and_names_the_holder() {
    let (disk, _) = journal(3, 30, None);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    let error = verify(&disk, DIR).unwrap_err().to_string();
    assert!(error.contains("in use by process 0 (simulated)") && error.contains("copy"), "{error}");
    assert_eq!(
        stat_on(&disk.files(), Path::new(DIR)).unwrap().holder.as_deref(),
        Some("process 0 (simulated)")
    );
    drop(parts);
    verify(&disk, DIR).unwrap();
}

#[test]
fn copy_has_all_commands_and_its_own_id() {
    for (length, snapshot) in [(30, None), (200_000, None), (200_000, Some(4)), (200_000, Some(12))]
    {
        let (disk, committed) = journal(8, length, snapshot);
        let (parts, _) = open_parts(&disk, options()).unwrap();
        let copied = copy(&disk).unwrap();
        assert_eq!((copied.journal, copied.publisher), (JOURNAL, OTHER));
        assert_eq!((copied.last_index, copied.snapshot), (committed, snapshot));
        drop(parts);
        let verified = verify(&disk, COPY).unwrap();
        assert_eq!((verified.findings, verified.last_index), (vec![], committed));
        let (recovered, read) = open_at(&disk, COPY).unwrap();
        assert_eq!((recovered.publisher, recovered.last_index), (OTHER, committed));
        assert_eq!(assert_is_a_prefix(&read, |_| length), committed);
        let (original, _) = open_at(&disk, DIR).unwrap();
        assert_eq!((original.publisher, original.last_index), (PUBLISHER, committed));
        assert!(matches!(copy(&disk), Err(InspectError::NotEmpty { .. })));
    }
}

#[test]
fn copy_is_refused_on_a_full_disk_in_use() {
    let (disk, _) = journal(8, 30, None);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    disk.leave_free(2 * 1024 * 1024 - 1);
    let refused = copy(&disk).unwrap_err();
    assert!(matches!(refused, InspectError::NoSpace { .. }), "{refused}");
    assert!(!disk.paths().iter().any(|path| path.starts_with(COPY)), "the copy created no file");
    // At rest nothing waits for it: copying to another disk may be the remedy.
    drop(parts);
    copy(&disk).unwrap();
}

#[test]
fn damaged_header_is_not_also_reported_torn() {
    let (disk, _) = journal(3, 30, None);
    let disk = disk.after_kill();
    disk.tamper(&segment(1), |bytes| bytes[300] ^= 1);
    let verified = verify(&disk, DIR).unwrap();
    let effects: Vec<Effect> = verified.findings.iter().map(|finding| finding.effect).collect();
    assert_eq!(effects, [Effect::Repairs], "{verified:?}");
    // Nothing in a segment without a commit was acknowledged.
    let (disk, committed) = journal(3, 30, None);
    let empty = segment(2);
    let header = disk.open(&segment(1)).unwrap();
    let mut bytes = vec![0; 4096];
    header.read_at(&mut bytes, 0).unwrap();
    bytes[300] ^= 1;
    disk.create(&empty).unwrap().write_at(&bytes, 0).unwrap();
    let verified = verify(&disk.after_kill(), DIR).unwrap();
    let effects: Vec<Effect> = verified.findings.iter().map(|finding| finding.effect).collect();
    assert_eq!((effects, verified.last_index), (vec![Effect::ErasesTail], committed));
}

#[test]
fn copy_stops_at_a_torn_tail_and_refuses_damage() {
    let (disk, committed) = journal(6, 30, None);
    let end =
        disk.tamper(&segment(1), |bytes| bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1);
    let torn = disk.after_kill();
    torn.tamper(&segment(1), |bytes| bytes[end + 60..end + 80].fill(7));
    assert_eq!(copy(&torn).unwrap().last_index, committed);
    assert_eq!(verify(&torn, COPY).unwrap().findings, []);
    let damaged = disk.after_kill();
    damaged.tamper(&segment(1), |bytes| bytes[end - 20] ^= 1);
    assert!(matches!(copy(&damaged), Err(InspectError::Damaged { .. })));
    assert!(
        matches!(open_at(&damaged, COPY), Err(JournalOpenError::NotEmpty { .. })),
        "the partial copy cannot be opened"
    );
}

/// As of a source whose volume is not mounted: an empty copy would replace good ones.
#[test]
fn copy_without_what_was_committed_is_refused() {
    for (snapshot, commits) in [(None, 6), (Some(4), 8)] {
        let (disk, _) = journal(commits, 200_000, snapshot);
        let segments: Vec<u64> =
            (1..100).filter(|number| disk.open(&segment(*number)).is_ok()).collect();
        segments.iter().for_each(|number| disk.remove(&segment(*number)).unwrap());
        assert!(matches!(copy(&disk), Err(InspectError::Damaged { .. })), "{snapshot:?}");
        let refused = open_at(&disk, COPY).err();
        assert!(matches!(refused, Some(JournalOpenError::NotEmpty { .. })), "{refused:?}");
    }
}

/// A copy by root does not make the file that a publisher locks before it removes others.
#[test]
fn the_pin_belongs_to_the_publisher() {
    let dir = tempfile::tempdir().unwrap();
    Parts::open(Arc::new(Disk), dir.path(), options(), &mut Rebuilt::default()).unwrap();
    assert!(dir.path().join(PIN_FILE).exists());
}

#[test]
fn interrupted_copy_is_never_opened() {
    let (disk, committed) = journal(4, 300_000, Some(4));
    let (before, whole) = (disk.calls(), disk.after_kill());
    copy(&disk).unwrap();
    let calls = disk.calls() - before;
    assert!(calls > 20);
    let mut refused = 0;
    for call in 1..=calls {
        for seed in 0..3 {
            let cut = whole.after_kill();
            cut.fail_at(cut.calls() + call);
            assert!(copy(&cut).is_err());
            let after = cut.after_power_cut(seed * 1_000 + call);
            match open_at(&after, COPY) {
                Ok((recovered, read)) if recovered.last_index > 0 => {
                    assert_eq!(assert_is_a_prefix(&read, |_| 300_000), committed);
                    assert_eq!(recovered.publisher, OTHER);
                }
                // Nothing of it is durable yet.
                Ok((recovered, _)) if call <= 6 => {
                    assert_eq!(recovered.publisher, options().new_publisher);
                }
                Ok(_) => panic!("call {call}: the copy is empty"),
                Err(JournalOpenError::NotEmpty { .. } | JournalOpenError::NoIdentity { .. }) => {
                    refused += 1;
                }
                Err(error) => panic!("call {call}: {error}"),
            }
            open_at(&after, DIR).unwrap();
        }
    }
    assert!(refused > 10);
}

fn dump(disk: &SimulatedDisk, path: &Path, options: DumpOptions) -> Vec<Dumped> {
    let mut dump = Dump::open_on(&disk.files(), path, options).unwrap();
    std::iter::from_fn(|| dump.next().unwrap()).collect()
}

fn indexes(dumped: &[Dumped]) -> Vec<u64> {
    dumped
        .iter()
        .filter_map(|dumped| match dumped {
            Dumped::Record { index, .. } => Some(*index),
            _ => None,
        })
        .collect()
}

#[test]
fn dump_shows_every_record_also_after_damage() {
    let (disk, committed) = journal(8, 200_000, Some(4));
    let all = dump(&disk, Path::new(DIR), DumpOptions::default());
    assert!(matches!(all[0], Dumped::Snapshot { index: 4, epoch: Ok(_), .. }));
    assert_eq!(indexes(&all), (1..=committed).collect::<Vec<_>>());
    let some = dump(&disk, Path::new(DIR), DumpOptions { from: 3, to: 9 });
    assert_eq!(indexes(&some), (3..=9).collect::<Vec<_>>());

    disk.tamper(&segment(1), |bytes| bytes[4096 + 100] ^= 1);
    let all = dump(&disk, Path::new(DIR), DumpOptions::default());
    assert!(
        matches!(all[1], Dumped::Damage { offset: 4096, bytes, .. } if bytes > 200_000),
        "{:?}",
        all[1]
    );
    assert_eq!(indexes(&all), (2..=committed).collect::<Vec<_>>());
    let one = dump(&disk, &segment(2), DumpOptions::default());
    let first = indexes(&one)[0];
    assert!(first > 1 && indexes(&one).len() > 1, "a file alone");
}

#[test]
fn files_set_aside_can_be_dumped() {
    let (disk, committed) = journal(8, 30, None);
    disk.tamper(&segment(1), |bytes| bytes[4096 + 200] ^= 1);
    let accepting = JournalOptions { accept_loss: true, ..options() };
    let (_, read, recovered) = SteppedJournal::open_with(&disk, accepting).unwrap();
    let dropped = recovered.dropped.unwrap();
    let lost: Vec<PathBuf> =
        disk.paths().into_iter().filter(|path| path.starts_with(&dropped.moved_to)).collect();
    assert_eq!(lost.len(), 1);
    let all = dump(&disk, &lost[0], DumpOptions::default());
    assert!(matches!(all[0], Dumped::Damage { offset: 0, .. }));
    let retained = read.len() as u64;
    assert_eq!(indexes(&all), (retained + 2..=committed).collect::<Vec<_>>());
}

#[test]
fn compacted_parts_are_verified_copied_and_dumped() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for _ in 0..12 {
        journal.write(1, 200_000).unwrap();
    }
    journal.sync_watermark().unwrap();
    // In the first segment one part each of two commands is live.
    let part = |index| RecordRef { index, at: 8, length: 5_000 };
    let live = [part(1), part(3)];
    let compacted =
        rewrite::write(&journal.directory, &journal.records, &live, &mut |_| Ok(CHUNK_BYTES))
            .unwrap();
    let file = journal.directory.compacted_path(compacted.sequence);
    journal.records.replace(compacted.runs);
    journal.snapshot(7, 200_000, |_| true).unwrap();
    disk.remove(&segment(1)).unwrap();
    assert_eq!(verify(&disk, DIR).unwrap().findings, []);
    let stat = stat_on(&disk.files(), Path::new(DIR)).unwrap();
    let kinds = stat.segments.iter().filter(|segment| segment.kind == SegmentKind::Compacted);
    assert_eq!(kinds.map(|segment| segment.first_index).collect::<Vec<_>>(), [Some(1)]);
    let all = dump(&disk, Path::new(DIR), DumpOptions::default());
    let compacted: Vec<(u64, u32)> = all
        .iter()
        .filter_map(|dumped| match dumped {
            Dumped::Compacted { index, parts, .. } => {
                parts.as_ref().map(|parts| (*index, parts[0].length))
            }
            _ => None,
        })
        .collect();
    assert_eq!(compacted, [(1, 5_000), (3, 5_000)]);

    disk.tamper(&file, |bytes| bytes[4096 + 100] ^= 1);
    for dir in [DIR, COPY] {
        let verified = verify(&disk, dir).unwrap();
        let [finding] = &verified.findings[..] else { panic!("{verified:?}") };
        assert_eq!(
            (finding.effect, finding.offset, finding.index),
            (Effect::Buries, 4096, Some(1))
        );
        assert!(!verified.is_refused && verified.is_damaged());
        if dir == DIR {
            let copied = copy(&disk).unwrap();
            assert_eq!((copied.last_index, copied.findings.len()), (12, 1), "as it was found");
        }
    }
    let (recovered, _) = open_at(&disk, COPY).unwrap();
    assert_eq!((recovered.publisher, recovered.last_index), (OTHER, 12));
    disk.remove(&file).unwrap();
    assert!(verify(&disk, DIR).unwrap().is_refused);
    assert!(matches!(
        copy_on(&disk.files(), Path::new(DIR), Path::new("/other"), OTHER, &mut |_, _| {}),
        Err(InspectError::Damaged { .. })
    ));
}

#[test]
fn verify_also_reads_snapshots_no_start_needs() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for _ in 0..12 {
        journal.write(1, 100).unwrap();
    }
    journal.sync_watermark().unwrap();
    for index in [4, 9] {
        journal.snapshot(index, 100, |_| true).unwrap();
    }
    assert_eq!(verify(&disk, DIR).unwrap().findings, []);
    let older = journal.directory.snapshot_path(4);
    disk.tamper(&older, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let verified = verify(&disk, DIR).unwrap();
    let [finding] = &verified.findings[..] else { panic!("{verified:?}") };
    assert_eq!((finding.effect, &finding.file), (Effect::IgnoresFile, &older));
    assert_eq!((verified.snapshot, verified.is_refused), (Some(9), false));
}

#[test]
fn copying_prevents_file_removal() {
    let (disk, _) = journal(8, 200_000, Some(4));
    let may_delete = || Pin::to_delete(&disk, Path::new(DIR)).unwrap().is_some();
    let mut calls = 0;
    let mut progress = |_, _| {
        assert!(!may_delete());
        calls += 1;
    };
    copy_on(&disk.files(), Path::new(DIR), Path::new(COPY), OTHER, &mut progress).unwrap();
    assert!(calls > 8, "{calls}");
    assert!(may_delete());
}

#[test]
fn copy_fails_when_a_full_publisher_removes_its_files() {
    let (disk, _) = journal(8, 200_000, Some(4));
    let mut calls = 0;
    // The copy hangs halfway; meanwhile the publisher needs the space and takes it.
    let mut progress = |_, _| {
        calls += 1;
        if calls == 4 {
            let dir = Path::new(DIR);
            assert!(Pin::to_delete(&disk, dir).unwrap().is_none());
            assert!(Pin::to_delete_from_readers(&disk, dir).unwrap().is_some());
            disk.open(&segment(1)).unwrap().truncate(4096).unwrap();
            disk.remove(&segment(2)).unwrap();
        }
    };
    let copied = copy_on(&disk.files(), Path::new(DIR), Path::new(COPY), OTHER, &mut progress);
    assert!(matches!(copied, Err(InspectError::NoSpace { .. })), "{copied:?}");
    assert!(calls >= 4);
    assert!(matches!(open_at(&disk, COPY), Err(JournalOpenError::NotEmpty { .. })));
}

#[test]
fn dump_reports_a_file_truncated_while_read() {
    let (disk, _) = journal(8, 200_000, None);
    let options = DumpOptions { from: 0, to: u64::MAX };
    let mut dump = Dump::open_on(&disk.files(), Path::new(DIR), options).unwrap();
    assert!(matches!(dump.next().unwrap(), Some(Dumped::Record { index: 1, .. })));
    disk.open(&segment(1)).unwrap().truncate(4096).unwrap();
    let error = loop {
        match dump.next() {
            // It was read ahead.
            Ok(Some(Dumped::Record { .. })) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    let gone = std::io::ErrorKind::NotFound;
    assert!(matches!(&error, InspectError::Io { error, .. } if error.kind() == gone), "{error}");
}
