//! The suites, told of the stores and logs that there are.

use std::panic::AssertUnwindSafe;
use std::path::Path as FilePath;

use longshore_protocol::{Durability, PublisherId};

use super::store::{STORIES, tell};
use super::*;
use crate::clock::{ClockCore, Reading};
use crate::journal::{Journal, JournalOptions};
use crate::{LogStore, Replay, SEGMENT_BYTES_MIN, Store, StoreOptions};

const PUBLISHER: PublisherId = PublisherId([9; 16]);

#[tokio::test]
async fn the_memory_is_a_log() {
    let mut disk = MemoryDisk::new(PUBLISHER);
    log_conformance(|fresh| {
        if fresh {
            disk = MemoryDisk::new(PUBLISHER);
        }
        MemoryLog::open(&disk, &mut |_| Ok(())).unwrap()
    })
    .await;
}

fn start<L: crate::Log>(log: L, replay: Replay, opening: Opening) -> LogStore<L> {
    let Opening { now, paths, defaults, .. } = opening;
    let reading = Reading { boot_ms: now.mono_ms, wall_ms: now.wall_ms };
    let stamp = ClockCore::start([1; 8], reading, None).stamp();
    let options = StoreOptions { paths, defaults, ..StoreOptions::default() };
    LogStore::start(log, replay, PUBLISHER, now, stamp, options).unwrap()
}

fn in_memory() -> impl FnMut(Opening) -> LogStore<MemoryLog> {
    let mut disk = MemoryDisk::new(PUBLISHER);
    move |opening| {
        if opening.fresh {
            disk = MemoryDisk::new(PUBLISHER);
        }
        let mut replay = Replay::new();
        let log = MemoryLog::open(&disk, &mut |replayed| replay.apply(replayed)).unwrap();
        start(log, replay, opening)
    }
}

fn over_the_journal(dir: &FilePath) -> impl FnMut(Opening) -> LogStore<Journal> {
    let (dir, mut runs) = (dir.to_owned(), 0);
    move |opening| {
        runs += u32::from(opening.fresh);
        let options = JournalOptions {
            segment_bytes: SEGMENT_BYTES_MIN,
            // Each command is a commit here; those that are synced are looked at elsewhere.
            durability: Durability::None,
            accept_loss: false,
            new_publisher: PUBLISHER,
        };
        let (dir, mut replay) = (dir.join(runs.to_string()), Replay::new());
        let (log, _) = Journal::open(&dir, options, &mut replay).unwrap();
        start(log, replay, opening)
    }
}

/// Tells every story, whatever became of the one before.
fn tell_all<S: Store>(mut open: impl FnMut(Opening) -> S) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let broken: Vec<&str> = STORIES
        .iter()
        .copied()
        .filter(|name| {
            let told = || runtime.block_on(tell(Some(name), &mut open));
            std::panic::catch_unwind(AssertUnwindSafe(told)).is_err()
        })
        .collect();
    assert!(broken.is_empty(), "{} of {} do not hold: {broken:#?}", broken.len(), STORIES.len());
}

#[test]
fn the_state_machine_in_memory_keeps_the_semantics_of_jobs() {
    tell_all(in_memory());
}

#[test]
fn the_state_machine_over_the_journal_keeps_the_semantics_of_jobs() {
    let dir = tempfile::tempdir().unwrap();
    tell_all(over_the_journal(dir.path()));
}
