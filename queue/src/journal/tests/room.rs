//! The journal on a disk that fills up, with its threads.

use std::io;
use std::time::Duration;

use super::*;
use crate::SpaceLevel;
use crate::journal::Journal;
use crate::log::Log;

const MIB: u64 = 1024 * 1024;

fn open(disk: &SimulatedDisk) -> (Journal, Read) {
    let mut read = Read::new();
    let options = JournalOptions { segment_bytes: 4 * MIB, ..options() };
    let files: Arc<dyn Files> = Arc::new(disk.clone());
    let (journal, _) =
        Journal::open_on(files, Path::new(DIR), options, &mut |replayed: Replayed| {
            let body = Bytes::copy_from_slice(&replayed.body);
            read.push((replayed.index, replayed.now, replayed.kind, body));
            Ok(())
        })
        .unwrap();
    (journal, read)
}

async fn append(journal: &mut Journal, index: u64, length: usize) -> Result<(), Poisoned> {
    let Pending { now, kind, head, body, .. } = command(index, length);
    journal.append(now, kind, head, body)?;
    journal.flush();
    journal.committed_beyond(index - 1).await.map(drop)
}

/// Now and then one that fits in no short segment.
fn length(index: u64) -> usize {
    if index.is_multiple_of(5) { 1_500_000 } else { 300_000 }
}

#[tokio::test]
async fn on_a_full_disk_segments_are_short_and_made_of_the_reserve_until_nothing_is_left() {
    let disk = SimulatedDisk::default();
    disk.set_capacity(Some(40 * MIB));
    let (mut journal, _) = open(&disk);
    assert_eq!(journal.figures().reserve_bytes, 10 * MIB, "two segments and two MiB");
    assert_eq!(journal.space().level, SpaceLevel::Open);
    let (mut index, mut bytes, mut levels) = (0, 0, vec![SpaceLevel::Open]);
    let why = loop {
        index += 1;
        if let Err(why) = append(&mut journal, index, length(index)).await {
            break why;
        }
        bytes += length(index) as u64;
        let level = journal.space().level;
        if levels.last() != Some(&level) {
            levels.push(level);
        }
    };
    assert_eq!(why.error.kind(), io::ErrorKind::StorageFull, "{why}");
    assert_eq!(levels, SpaceLevel::ALL, "each in its turn");
    assert!(journal.figures().reserve_bytes < MIB, "nothing of it is left");
    // What is missing are the rests of segments in which the next record had no room.
    assert!(bytes > 26 * MIB, "{bytes} bytes of 40 MiB");
    drop(journal);
    let disk = disk.after_kill();
    disk.set_capacity(None);
    let (journal, read) = open(&disk);
    assert!(assert_is_a_prefix(&read, length) >= index - 1);
    assert_eq!(journal.figures().reserve_bytes, 10 * MIB, "the disk has room again");
}

#[tokio::test]
async fn while_the_present_segment_has_room_a_disk_without_any_fails_nobody() {
    let disk = SimulatedDisk::default();
    let (mut journal, _) = open(&disk);
    append(&mut journal, 1, 1_000).await.unwrap();
    let began = std::time::Instant::now();
    let segments =
        || disk.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).count();
    while segments() < 2 {
        assert!(began.elapsed() < Duration::from_secs(20), "the next segment is made ahead");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let used: u64 =
        disk.paths().iter().map(|path| disk.tamper(path, |file| file.len()) as u64).sum();
    disk.set_capacity(Some(used));
    // The reserve, the next segment, and what is left of this one.
    let mut index = 1;
    while index < 2_000 && append(&mut journal, index + 1, 100_000).await.is_ok() {
        index += 1;
    }
    // Two segments of 4 MiB have room for 41 such records each, ten of 1 MiB for 10 each.
    assert_eq!(index, 1 + 2 * 41 + 10 * 10);
}
