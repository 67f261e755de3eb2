//! Data that the disk has lost is never silently missing.

use std::path::PathBuf;

use super::*;
use crate::journal::files::identity::{self, Identity, LOSSES_MAX};
use crate::journal::inspect::InspectError;
use crate::journal::simulated_disk::{Call, Failure, Fault};
use crate::journal::wal::format::crc_seed;
use crate::journal::wal::record::{FLAG_FIRST, RecordHeader};

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("segments/{number:010}.seg"))
}

/// Commits of one, two, three … commands, the watermark is synced after the first `synced_commits`
/// of them.
fn journal_of(commits: u64, synced_commits: u64, length: usize) -> (SimulatedDisk, u64) {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    for commit in 1..=commits {
        journal.write(commit, length).unwrap();
        if commit == synced_commits {
            journal.sync_watermark().unwrap();
        }
    }
    let committed = journal.committed();
    (disk, committed)
}

#[test]
fn later_commit_proves_damage_when_the_watermark_lags() {
    let (disk, _) = journal_of(4, 1, 30);
    disk.tamper(&Path::new(DIR).join("watermark"), |bytes| bytes[..4096].fill(0));
    // A bit of command 2, of the second of four commits.
    let record = 40 + 8 + body(1, 30).len();
    disk.tamper(&segment(1), |bytes| bytes[4096 + record + 45] ^= 1);
    let Err(JournalOpenError::Damaged { file, offset, index, why }) =
        SteppedJournal::open(&disk).map(|_| ())
    else {
        panic!("it is damage");
    };
    assert_eq!((file, offset, index), (segment(1), (4096 + record) as u64, 2));
    assert!(why.contains("later commit"), "{why}");
}

#[test]
fn payload_that_imitates_a_later_commit_is_a_torn_tail() {
    let disk = SimulatedDisk::default();
    let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
    journal.write(1, 30).unwrap();
    journal.sync_watermark().unwrap();
    // A producer knows the publisher's id, and can guess the rest.
    let (now, flags, index) = (Now::default(), FLAG_FIRST, 1_000);
    let header = RecordHeader { term: 0, flags, kind: 8, index, now, body_len: 0 };
    let mut forged = Vec::new();
    header.encode(crc_seed(PUBLISHER, 1), b"", b"", &mut forged);
    let forging = PendingCommand { body: forged.repeat(300).into(), ..command(2, 0) };
    journal.writer.write(&[forging]).unwrap();
    drop(journal);
    // A power cut during this commit leaves all but its first page.
    disk.tamper(&Path::new(DIR).join("watermark"), |bytes| bytes[..4096].fill(0));
    let end = 4096 + 40 + 8 + body(1, 30).len();
    disk.tamper(&segment(1), |bytes| bytes[end..8192].fill(0));
    let (_, read, recovered) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 30), 1);
    assert_eq!(recovered.cut.map(|cut| cut.offset), Some(end as u64));
}

#[test]
fn missing_segment_is_reported_as_damage() {
    let (disk, _) = journal_of(6, 6, 200_000);
    assert!(disk.paths().contains(&segment(3)), "the journal has segments");
    for number in 1..=3 {
        let bad = disk.after_kill();
        bad.remove(&segment(number)).unwrap();
        let opened = SteppedJournal::open(&bad).map(|_| ());
        assert!(matches!(opened, Err(JournalOpenError::Damaged { .. })), "{number}: {opened:?}");
    }
}

#[test]
fn accepted_damage_is_set_aside_and_the_journal_continues() {
    let (disk, committed) = journal_of(6, 6, 200_000);
    disk.tamper(&segment(2), |bytes| bytes[300_000] ^= 1);
    assert!(matches!(
        SteppedJournal::open(&disk).map(|_| ()),
        Err(JournalOpenError::Damaged { .. })
    ));
    let accepting = JournalOptions { accept_loss: true, ..options() };
    let (mut journal, read, recovered) = SteppedJournal::open_with(&disk, accepting).unwrap();
    let replayed = assert_is_a_prefix(&read, |_| 200_000);
    let dropped = recovered.dropped.unwrap();
    assert!(replayed < committed && dropped.index == replayed + 1 && dropped.file == segment(2));
    assert!(dropped.bytes > 200_000);
    let lost: Vec<_> = disk.paths();
    let lost = lost.iter().filter(|path| path.starts_with(Path::new(DIR).join("lost")));
    assert!(lost.count() >= 2, "the rest of the segment, and the ones after it");
    // From here on the journal behaves normally.
    journal.write(2, 200_000).unwrap();
    let (_, read, recovered) = SteppedJournal::open(&disk.after_power_cut(1)).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 200_000), replayed + 2);
    assert_eq!(recovered.dropped, None);
}

#[test]
fn unreadable_page_loses_nothing_silently_and_leaves_a_way_out() {
    let length = 3_000;
    // With a lagging watermark only the page itself tells that something was there.
    for (snapshot, synced_commits) in [(None, 20), (None, 1), (Some(150), 20)] {
        let disk = SimulatedDisk::default();
        let (mut journal, _, _) = SteppedJournal::open(&disk).unwrap();
        for commit in 1..=20 {
            journal.write(commit, length).unwrap();
            if commit == synced_commits {
                journal.sync_watermark().unwrap();
            }
        }
        if let Some(index) = snapshot {
            journal.snapshot(index, length, |_| true).unwrap();
        }
        let committed = journal.committed();
        drop(journal);
        let watermark = Path::new(DIR).join("watermark");
        if synced_commits == 1 {
            disk.tamper(&watermark, |bytes| bytes[..4096].fill(0));
        }
        let (mut intact, mut refused, mut payloads) = (0, 0, 0);
        for path in disk.paths() {
            let is_log = path.extension().is_some_and(|end| end == "seg");
            if !is_log && path.extension().is_none_or(|end| end != "snap") && path != watermark {
                continue;
            }
            let bytes = disk.bytes(&path);
            let end = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) as u64 + 4096;
            for page in (0..end.min(bytes.len() as u64)).step_by(4096) {
                let bad = disk.after_kill();
                bad.break_page(&path, page);
                let what = format!("{path:?} at {page}, {snapshot:?}, {synced_commits}");
                let verified = super::inspect::verify(&bad, DIR).unwrap();
                match SteppedJournal::open(&bad).map(|(_, read, _)| read) {
                    Ok(read) => {
                        assert_eq!(assert_is_a_prefix(&read, |_| length), committed, "{what}");
                        assert!(!verified.is_refused, "{what}: {verified:?}");
                        intact += 1;
                        payloads += u64::from(verified.is_damaged() && is_log);
                        continue;
                    }
                    Err(JournalOpenError::Damaged { .. }) => refused += 1,
                    Err(why) => panic!("{what}: {why}"),
                }
                assert!(verified.is_refused, "{what}: {verified:?}");
                let copied = super::inspect::copy(&bad);
                assert!(matches!(copied, Err(InspectError::Damaged { .. })), "{what}: {copied:?}");
                let accepting = JournalOptions { accept_loss: true, ..options() };
                let (mut journal, read, _) = SteppedJournal::open_with(&bad, accepting).unwrap();
                let replayed = assert_is_a_prefix(&read, |_| length);
                assert!(replayed < committed, "{what}");
                // The lost part was written over: the page can be read again.
                journal.write(2, length).unwrap();
                drop(journal);
                let (_, read, recovered) = SteppedJournal::open(&bad.after_kill()).unwrap();
                assert_eq!(assert_is_a_prefix(&read, |_| length), replayed + 2, "{what}");
                assert_eq!(recovered.dropped, None);
            }
        }
        assert!(intact >= 5 && refused > 20 && (payloads > 50 || snapshot.is_none()));
    }
}

#[test]
fn segment_with_holes_on_a_full_disk_continues_in_the_next() {
    let (disk, committed) = journal_of(3, 3, 20);
    let disk = disk.after_kill();
    disk.fail(Fault::nth_of(Call::Allocate, 1).with(Failure::Full));
    let (mut journal, _, recovered) = SteppedJournal::open(&disk).unwrap();
    assert_eq!(disk.hit(), Some((Call::Allocate, segment(1))));
    assert_eq!(recovered.last_index, committed);
    journal.write(1, 20).unwrap();
    assert!(disk.paths().contains(&segment(2)));
    let (_, read, _) = SteppedJournal::open(&disk.after_kill()).unwrap();
    assert_eq!(assert_is_a_prefix(&read, |_| 20), committed + 1);
}

#[test]
fn accepted_losses_are_counted_durably() {
    let (disk, _) = journal_of(4, 4, 30);
    let accepting = JournalOptions { accept_loss: true, ..options() };
    for losses in 1..=3 {
        // The disk has lost everything in the last segment.
        let paths = disk.paths().into_iter();
        let last = paths.filter(|path| path.extension().is_some_and(|it| it == "seg")).max();
        disk.tamper(&last.unwrap(), |bytes| bytes.truncate(4096));
        let (mut journal, read, recovered) =
            SteppedJournal::open_with(&disk, accepting.clone()).unwrap();
        assert!(read.is_empty() && recovered.dropped.is_some());
        assert_eq!(recovered.losses, losses);
        journal.write(3, 30).unwrap();
        journal.sync_watermark().unwrap();
        drop(journal);
        let (_, _, recovered) = SteppedJournal::open(&disk.after_power_cut(losses)).unwrap();
        assert_eq!((recovered.losses, recovered.dropped), (losses, None));
    }
    // A start that fails repeatedly before it sets anything aside has lost nothing.
    let failing = disk.after_kill();
    let paths = failing.paths().into_iter();
    let last = paths.filter(|path| path.extension().is_some_and(|it| it == "seg")).max();
    failing.tamper(&last.unwrap(), |bytes| bytes[4100] ^= 1);
    for _ in 0..3 {
        failing.fail(Fault::nth_where(1, |call, path| {
            call == Call::Create && path.starts_with(Path::new(DIR).join("lost"))
        }));
        assert!(SteppedJournal::open_with(&failing, accepting.clone()).is_err());
    }
    let (_, _, recovered) = SteppedJournal::open_with(&failing, accepting.clone()).unwrap();
    assert_eq!(recovered.losses, 4);
    // Without the commit watermark it is unknown how much of the end is missing.
    disk.remove(&Path::new(DIR).join("watermark")).unwrap();
    let (_, _, recovered) = SteppedJournal::open_with(&disk, accepting).unwrap();
    assert_eq!(recovered.losses, 4);
}

#[test]
fn loss_without_remaining_epochs_is_refused() {
    let (disk, _) = journal_of(4, 4, 30);
    let last = Identity { journal: JOURNAL, publisher: PUBLISHER, losses: LOSSES_MAX };
    identity::write(&disk, Path::new(DIR), last).unwrap();
    assert_eq!(SteppedJournal::open(&disk).unwrap().2.losses, LOSSES_MAX);
    let copied = super::inspect::copy(&disk);
    assert!(matches!(copied, Err(InspectError::TooManyLosses { .. })), "{copied:?}");
    disk.tamper(&segment(1), |bytes| bytes.truncate(4096));
    let accepting = JournalOptions { accept_loss: true, ..options() };
    for _ in 0..2 {
        let refused = SteppedJournal::open_with(&disk, accepting.clone()).map(drop).unwrap_err();
        assert!(matches!(refused, JournalOpenError::TooManyLosses { .. }), "{refused}");
    }
    disk.remove(&Path::new(DIR).join("watermark")).unwrap();
    let refused = SteppedJournal::open_with(&disk, accepting).map(drop).unwrap_err();
    assert!(matches!(refused, JournalOpenError::TooManyLosses { .. }), "{refused}");
}

#[test]
fn corrupt_record_is_reported_on_read() {
    let (disk, _) = journal_of(3, 3, 30);
    let (parts, _) = open_parts(&disk, options()).unwrap();
    use crate::RecordRef;
    use crate::log::{LogReadError, Records};
    let part = |index| RecordRef { index, at: 8, length: body(index, 30).len() as u32 };
    assert_eq!(parts.records.part(part(2)).unwrap(), body(2, 30));
    disk.tamper(&segment(1), |bytes| bytes[4096 + 45] ^= 1);
    assert!(matches!(parts.records.part(part(1)), Err(LogReadError::Damaged { offset: 4096, .. })));
    assert!(matches!(parts.records.part(part(7)), Err(LogReadError::NotFound { index: 7 })));
}

#[test]
fn directory_without_identity_or_watermark_is_refused() {
    for name in ["publisher", "watermark"] {
        let (disk, _) = journal_of(2, 2, 30);
        disk.remove(&Path::new(DIR).join(name)).unwrap();
        assert!(SteppedJournal::open(&disk).is_err(), "{name}");
    }
}

#[test]
fn file_of_another_journal_is_refused() {
    let (disk, _) = journal_of(2, 2, 30);
    let other = SimulatedDisk::default();
    let other_options = JournalOptions { new_journal: PublisherId([8; 16]), ..options() };
    SteppedJournal::open_with(&other, other_options).unwrap().0.write(1, 30).unwrap();
    let other_segment = other.tamper(&segment(1), |bytes| bytes.clone());
    disk.tamper(&segment(1), |bytes| *bytes = other_segment);
    assert!(matches!(
        SteppedJournal::open(&disk).map(|_| ()),
        Err(JournalOpenError::Foreign { .. })
    ));
}
