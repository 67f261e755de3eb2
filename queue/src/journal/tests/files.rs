//! The journal on real files, with its threads.

use std::time::Duration;

use tempfile::tempdir;

use super::*;
use crate::RecordRef;
use crate::conformance::log_conformance;
use crate::journal::Journal;
use crate::journal::files::LOCK_FILE;
use crate::journal::files::directory::SEGMENTS_DIR;
use crate::journal::space::budget::Budget;
use crate::log::Log;

fn open(dir: &Path, options: JournalOptions) -> Result<(Journal, ReadBack), JournalOpenError> {
    let mut read = ReadBack::new();
    let (journal, _) = Journal::open(dir, options, &mut |replayed: Replayed| {
        read.push((replayed.index, replayed.now, replayed.kind, replayed.body));
        Ok(())
    })?;
    Ok((journal, read))
}

fn append(journal: &mut Journal, index: u64, length: usize) {
    let PendingCommand { now, kind, head, body, .. } = command(index, length);
    assert_eq!(journal.append(now, kind, head, body).unwrap(), index);
}

async fn wait_for_commit(journal: &mut Journal, index: u64) {
    while journal.committed() < index {
        journal.committed_beyond(journal.committed()).await.unwrap();
    }
}

#[tokio::test]
async fn journal_passes_log_conformance() {
    let dir = tempdir().unwrap();
    let mut run = 0;
    log_conformance(|fresh| {
        run += u32::from(fresh);
        open(&dir.path().join(run.to_string()), options()).unwrap().0
    })
    .await;
}

#[tokio::test]
async fn oversized_records_get_their_own_segment_and_read_back() {
    let dir = tempdir().unwrap();
    let lengths = |index: u64| if index.is_multiple_of(3) { 1_500_000 } else { 400_000 };
    let (mut journal, _) = open(dir.path(), options()).unwrap();
    for index in 1..=12 {
        append(&mut journal, index, lengths(index));
        journal.flush();
    }
    wait_for_commit(&mut journal, 12).await;
    let reader = journal.reader();
    for index in (1..=12).rev() {
        let length = body(index, lengths(index)).len() as u32;
        let whole = reader.read(RecordRef { index, at: 8, length }).unwrap();
        assert_eq!(whole, body(index, lengths(index)));
    }
    drop(journal);
    let (journal, read) = open(dir.path(), options()).unwrap();
    assert_eq!(assert_is_a_prefix(&read, lengths), 12);
    let length = body(6, lengths(6)).len() as u32;
    assert!(journal.reader().read(RecordRef { index: 6, at: 8, length }).is_ok());
}

#[test]
fn second_process_learns_the_lock_holder() {
    let dir = tempdir().unwrap();
    let (journal, _) = open(dir.path(), options()).unwrap();
    let refused = open(dir.path(), options()).unwrap_err();
    assert!(matches!(refused, JournalOpenError::InUse { .. }));
    let (pid, message) = (std::process::id().to_string(), refused.to_string());
    assert!(message.contains(&pid) && message.contains("in use"), "{message}");
    drop(journal);
    assert!(open(dir.path(), options()).is_ok(), "free again once it is closed");
}

/// An identity file of another format.
fn identity_of_format(version: u16) -> String {
    let message =
        format!("longshore journal {version}\njournal {JOURNAL}\npublisher {PUBLISHER}\n");
    format!("{message}crc32c {:08x}\n", crc32c::crc32c(message.as_bytes()))
}

#[tokio::test]
async fn directory_of_another_format_is_refused_with_both_versions() {
    let dir = tempdir().unwrap();
    let (mut journal, _) = open(dir.path(), options()).unwrap();
    append(&mut journal, 1, 10);
    journal.flush();
    wait_for_commit(&mut journal, 1).await;
    drop(journal);
    let identity = dir.path().join("publisher");
    assert_eq!(std::fs::read_to_string(&identity).unwrap(), identity_of_format(5));
    let files = || {
        let segments = dir.path().join("segments").read_dir().unwrap();
        segments.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect::<Vec<_>>()
    };
    let before = files();
    for accept_loss in [false, true] {
        std::fs::write(&identity, identity_of_format(4)).unwrap();
        let refused = open(dir.path(), JournalOptions { accept_loss, ..options() }).unwrap_err();
        assert!(matches!(refused, JournalOpenError::OtherFormat { version: 4, .. }), "{refused:?}");
        let message = refused.to_string();
        let named = [dir.path().to_str().unwrap(), "format 4", "format 5", "a new directory"];
        assert!(named.iter().all(|part| message.contains(part)), "{message}");
    }
    assert!(files() == before, "and nothing is changed");
    std::fs::write(&identity, identity_of_format(5)).unwrap();
    assert_eq!(open(dir.path(), options()).unwrap().1.len(), 1);
}

#[tokio::test]
async fn segment_of_another_format_is_refused_not_damaged() {
    let dir = tempdir().unwrap();
    let (mut journal, _) = open(dir.path(), options()).unwrap();
    append(&mut journal, 1, 10);
    journal.flush();
    wait_for_commit(&mut journal, 1).await;
    drop(journal);
    let segments = dir.path().join("segments").read_dir().unwrap();
    let first = segments.map(|entry| entry.unwrap().path()).min().unwrap();
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[8] = 1;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..60]), &bytes[64..4096]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&first, bytes).unwrap();
    for accept_loss in [false, true] {
        let refused = open(dir.path(), JournalOptions { accept_loss, ..options() }).unwrap_err();
        assert!(matches!(refused, JournalOpenError::OtherFormat { version: 1, .. }), "{refused:?}");
    }
}

#[test]
fn new_journal_requires_an_empty_directory() {
    let dir = tempdir().unwrap();
    for name in ["b letter", "a", "c", "d", "e", "f", "g"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let refused = open(dir.path(), options()).unwrap_err().to_string();
    assert!(refused.contains("\"a\", \"b letter\", \"c\", \"d\", \"e\" and 2 more"), "{refused}");
    assert!(!dir.path().join(LOCK_FILE).exists(), "nothing was changed");

    // Files of a fresh file system, and of an interrupted start.
    let dir = tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    std::fs::create_dir(dir.path().join(SEGMENTS_DIR)).unwrap();
    std::fs::write(dir.path().join(LOCK_FILE), "").unwrap();
    drop(open(dir.path(), options()).unwrap());
    // Other files beside an existing journal are the operator's.
    std::fs::write(dir.path().join("README"), "").unwrap();
    assert!(open(dir.path(), options()).is_ok());
}

#[test]
fn new_journal_requires_room_for_a_job() {
    let needed = Budget::min_free_bytes(SEGMENT_BYTES_MIN);
    let disk = SimulatedDisk::default();
    disk.leave_free(needed - 1);
    let refused = SteppedJournal::open(&disk).map(|_| ()).unwrap_err();
    let JournalOpenError::DiskTooSmall { free, needed: reported, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((free, reported), (needed - 1, needed));
    let refused = refused.to_string();
    assert!(
        refused.contains(&needed.to_string()) && refused.contains("--segment-bytes"),
        "{refused}"
    );
    disk.leave_free(needed);
    let files: Arc<dyn Files> = Arc::new(disk.clone());
    let nothing = &mut |_: Replayed| Ok(());
    let (journal, _) = Journal::open_on(files, Path::new(DIR), options(), nothing).unwrap();
    assert!(!journal.budget(0).short);
    drop(journal);
    // An existing journal is opened however full its disk is: it has jobs.
    disk.leave_free(0);
    assert!(SteppedJournal::open(&disk).is_ok());
}

#[test]
fn a_segment_size_out_of_range_is_refused() {
    let dir = tempdir().unwrap();
    for segment_bytes in [0, SEGMENT_BYTES_MIN - 1, super::super::SEGMENT_BYTES_MAX + 1] {
        let refused = open(dir.path(), JournalOptions { segment_bytes, ..options() });
        assert!(matches!(refused, Err(JournalOpenError::SegmentBytes(_))), "{segment_bytes}");
    }
}

#[tokio::test]
async fn one_sync_commits_everything_appended_during_the_previous_sync() {
    let disk = SimulatedDisk::default();
    let (mut journal, _) =
        Journal::open_on(Arc::new(disk.clone()), Path::new(DIR), options(), &mut |_| Ok(()))
            .unwrap();
    append(&mut journal, 1, 10);
    journal.flush();
    journal.committed_beyond(0).await.unwrap();
    disk.block_syncs(true);
    for index in 2..=500 {
        append(&mut journal, index, 10);
        journal.flush();
    }
    // Nothing is acknowledged while its sync waits.
    let waited = tokio::time::timeout(Duration::from_millis(50), journal.committed_beyond(1));
    assert!(waited.await.is_err());
    assert_eq!(journal.committed(), 1);
    disk.block_syncs(false);
    wait_for_commit(&mut journal, 500).await;
    assert!(journal.metrics().syncs <= 4, "{:?}", journal.metrics());
    assert_eq!(journal.uncommitted_bytes(), 0);
}

#[tokio::test]
async fn failure_reaches_every_waiter_and_later_append() {
    let disk = SimulatedDisk::default();
    let (mut journal, _) =
        Journal::open_on(Arc::new(disk.clone()), Path::new(DIR), options(), &mut |_| Ok(()))
            .unwrap();
    append(&mut journal, 1, 10);
    journal.flush();
    journal.committed_beyond(0).await.unwrap();
    disk.fail_at(disk.calls() + 1);
    append(&mut journal, 2, 10);
    journal.flush();
    assert_eq!(journal.committed_beyond(0).await.unwrap(), 1, "earlier commits are still reported");
    let why = journal.committed_beyond(1).await.unwrap_err();
    assert!(why.to_string().contains("Input/output error"), "{why}");
    assert!(journal.append(Now::default(), 8, Bytes::new(), Bytes::new()).is_err());
    assert_eq!(journal.committed(), 1);
}

#[tokio::test]
async fn without_durability_only_a_start_is_synced() {
    let disk = SimulatedDisk::default();
    let none = JournalOptions { durability: Durability::None, ..options() };
    let (mut journal, _) =
        Journal::open_on(Arc::new(disk.clone()), Path::new(DIR), none, &mut |_| Ok(())).unwrap();
    append(&mut journal, 1, 10);
    journal.sync();
    journal.flush();
    journal.committed_beyond(0).await.unwrap();
    assert_eq!(journal.metrics().syncs, 1);
    append(&mut journal, 2, 10);
    journal.flush();
    journal.committed_beyond(1).await.unwrap();
    assert_eq!(journal.metrics().syncs, 1);
    let (_, read, _) = SteppedJournal::open(&disk.after_power_cut(3)).unwrap();
    assert!(assert_is_a_prefix(&read, |_| 10) >= 1);
}
