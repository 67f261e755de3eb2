//! The journal under power cuts, kills, bad disks and failing calls.

mod cycles;
mod damage;
mod files;
mod headers;
mod inspect;
mod power;
mod rewriting;
mod snapshots;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::{Durability, PublisherId, WireError};

use super::files::{Files, JournalFile};
use super::simulated_disk::SimulatedDisk;
use super::{JournalOpenError, JournalOptions, Parts, Recovered, Replayed, SEGMENT_BYTES_MIN};
use crate::journal::files::directory::{Directory, Segment};
use crate::journal::wal::commit_watermark::CommitWatermark;
use crate::journal::wal::progress::CommitProgress;
use crate::journal::wal::records::JournalRecords;
use crate::journal::wal::writer::{BackgroundWork, PendingCommand, Writer};
use crate::log::Rebuild;
use crate::state::SnapshotError;
use crate::{Now, Poisoned};

const DIR: &str = "/data";
const PUBLISHER: PublisherId = PublisherId([9; 16]);
const JOURNAL: PublisherId = PublisherId([7; 16]);

fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes: SEGMENT_BYTES_MIN,
        durability: Durability::Fsync,
        accept_loss: false,
        new_publisher: PUBLISHER,
        new_journal: JOURNAL,
    }
}

/// The body of command `index`: each differs, also in length.
fn body(index: u64, length: usize) -> Bytes {
    let mut bytes = vec![index as u8; length + index as usize % 7];
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes.into()
}

fn command(index: u64, length: usize) -> PendingCommand {
    let now = Now { mono_ms: index, wall_ms: 1_000 + index };
    let head = Bytes::copy_from_slice(b"headhead");
    PendingCommand { index, now, kind: 8, head, body: body(index, length), must_sync: false }
}

/// A journal without threads: the test decides what it does, and in which order.
struct SteppedJournal {
    directory: Arc<Directory>,
    records: Arc<JournalRecords>,
    writer: Writer<InlineBackground>,
    progress: Arc<CommitProgress>,
    watermark: Arc<CommitWatermark>,
    next: u64,
}

/// Background work done synchronously.
struct InlineBackground {
    directory: Arc<Directory>,
    next: Option<Segment>,
}

impl BackgroundWork for InlineBackground {
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned> {
        match self.next.take() {
            Some(segment) => Ok(segment),
            None => self.directory.create_segment(least),
        }
    }

    fn committed(&mut self, _: u64, _: &Arc<dyn JournalFile>, _: bool) {}
}

/// A replayed command: index, time, kind, body.
type ReadBack = Vec<(u64, Now, u8, Bytes)>;

fn open_parts(
    disk: &SimulatedDisk,
    options: JournalOptions,
) -> Result<(Parts, ReadBack), JournalOpenError> {
    let mut rebuilt = Rebuilt::default();
    let files: Arc<dyn Files> = Arc::new(disk.clone());
    let parts = Parts::open(files, Path::new(DIR), options, &mut rebuilt)?;
    assert!(rebuilt.blocks == 0 || rebuilt.restored);
    Ok((parts, rebuilt.read))
}

/// A state that is just its list of commands: its snapshot has one block for each.
#[derive(Default)]
struct Rebuilt {
    read: ReadBack,
    blocks: u64,
    restored: bool,
}

impl Rebuild for Rebuilt {
    fn block(&mut self, block: Bytes) -> Result<(), SnapshotError> {
        assert!(!self.restored);
        self.blocks += 1;
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let now = Now { mono_ms: number(8), wall_ms: number(16) };
        let body = Bytes::copy_from_slice(&block[25..]);
        self.read.push((number(0), now, block[24], body));
        Ok(())
    }

    fn restored(&mut self) -> Result<(), SnapshotError> {
        self.restored = true;
        Ok(())
    }

    fn command(&mut self, replayed: Replayed) -> Result<(), WireError> {
        let body = Bytes::copy_from_slice(&replayed.body);
        self.read.push((replayed.index, replayed.now, replayed.kind, body));
        Ok(())
    }
}

impl SteppedJournal {
    fn open(
        disk: &SimulatedDisk,
    ) -> Result<(SteppedJournal, ReadBack, Recovered), JournalOpenError> {
        SteppedJournal::open_with(disk, options())
    }

    fn open_with(
        disk: &SimulatedDisk,
        options: JournalOptions,
    ) -> Result<(SteppedJournal, ReadBack, Recovered), JournalOpenError> {
        let durability = options.durability;
        let (parts, read) = open_parts(disk, options)?;
        let Parts { directory, records, progress, watermark, segment, recovered, .. } = parts;
        let background = InlineBackground { directory: Arc::clone(&directory), next: None };
        let writer = Writer::new(
            Arc::clone(&directory),
            Arc::clone(&records),
            Arc::clone(&progress),
            Arc::clone(&watermark),
            background,
            durability,
            segment,
        );
        let next = recovered.last_index + 1;
        Ok((
            SteppedJournal { directory, records, writer, progress, watermark, next },
            read,
            recovered,
        ))
    }

    /// Writes a batch of so many commands, as one call.
    fn write(&mut self, count: u64, length: usize) -> Result<(), Poisoned> {
        let batch: Vec<PendingCommand> =
            (self.next..self.next + count).map(|index| command(index, length)).collect();
        let bytes = batch.iter().map(PendingCommand::record_len).sum();
        self.progress.uncommitted_bytes.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        self.next += count;
        self.writer.write(&batch).inspect_err(|why| self.progress.poison(why.clone()))
    }

    fn sync_watermark(&self) -> std::io::Result<()> {
        self.watermark.write_durable(self.progress.committed())
    }

    fn committed(&self) -> u64 {
        self.progress.committed()
    }
}

/// Asserts that exactly the first commands were replayed, unchanged; returns how many.
fn assert_is_a_prefix(read: &ReadBack, length: impl Fn(u64) -> usize) -> u64 {
    for (position, (index, now, kind, body_read)) in read.iter().enumerate() {
        let expected_index = position as u64 + 1;
        assert_eq!((*index, *now), (expected_index, command(expected_index, 0).now));
        assert_eq!(*kind, 8);
        assert_eq!(&body_read[..8], b"headhead");
        assert_eq!(
            body_read.slice(8..),
            body(expected_index, length(expected_index)),
            "command {expected_index}"
        );
    }
    read.len() as u64
}
