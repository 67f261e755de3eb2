//! Commits: everything since the last one, in one write and one sync.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use longshore_protocol::Durability;

use crate::journal::files::JournalFile;
use crate::journal::files::directory::{Directory, Segment, poisoned};
use crate::journal::wal::commit_watermark::CommitWatermark;
use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::journal::wal::progress::CommitProgress;
use crate::journal::wal::record::{FLAG_FIRST, RecordHeader, record_len};
use crate::journal::wal::records::JournalRecords;
use crate::{Now, Poisoned};

/// Most bytes of records in one commit, unless one record is longer: a command waits at most for
/// this many bytes to reach the disk (about 10 ms at 400 MB/s).
pub(crate) const COMMIT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A small commit that reaches unwritten blocks also writes zeros this far ahead. A sync of blocks
/// written before takes half the time, because the file system has no extent to convert (0.09 ms
/// instead of 0.16 ms, measured). Large commits do not: they would write every byte twice.
const ZEROS_AHEAD_BYTES: u64 = 256 * 1024;

/// A command waiting for its commit.
pub(crate) struct PendingCommand {
    pub(crate) index: u64,
    pub(crate) now: Now,
    pub(crate) kind: u8,
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
    /// Its commit is synced at every durability level.
    pub(crate) must_sync: bool,
}

impl PendingCommand {
    pub(crate) fn record_len(&self) -> usize {
        record_len(self.head.len() + self.body.len())
    }
}

/// Prepares segments, and is notified of commits.
pub(crate) trait BackgroundWork: Send {
    /// A prepared segment of at least `least` bytes: of the usual size, unless the disk is full.
    fn segment(&mut self, least: u64) -> Result<Segment, Poisoned>;

    /// Syncs a file that the background work may sync at the same time.
    fn sync(&mut self, file: &Arc<dyn JournalFile>, path: &Path) -> Result<(), Poisoned> {
        file.sync_data().map_err(|error| poisoned("syncing", path, error))
    }

    /// Everything up to `index` is committed, the last of it to `file`: sync the commit watermark
    /// soon, and the file before it if it was not synced.
    fn committed(&mut self, index: u64, file: &Arc<dyn JournalFile>, synced: bool);
}

/// Writes commits, independent of time: commands passed to [`Writer::write`] together are committed
/// together.
pub(crate) struct Writer<C> {
    directory: Arc<Directory>,
    records: Arc<JournalRecords>,
    progress: Arc<CommitProgress>,
    watermark: Arc<CommitWatermark>,
    background: C,
    durability: Durability,
    segment: Option<Segment>,
    /// The current commit, to be written at the segment's `at`.
    buffer: Vec<u8>,
    /// The offsets of its records in the segment.
    offsets: Vec<u32>,
    first_index: u64,
    last_index: u64,
    record_bytes: usize,
    /// Whether the current commit must be synced.
    must_sync: bool,
}

impl<C: BackgroundWork> Writer<C> {
    #[allow(clippy::too_many_arguments, reason = "called once, when a journal is opened")]
    pub(crate) fn new(
        directory: Arc<Directory>,
        records: Arc<JournalRecords>,
        progress: Arc<CommitProgress>,
        watermark: Arc<CommitWatermark>,
        background: C,
        durability: Durability,
        segment: Option<Segment>,
    ) -> Writer<C> {
        Writer {
            directory,
            records,
            progress,
            watermark,
            background,
            durability,
            segment,
            buffer: Vec::new(),
            offsets: Vec::new(),
            first_index: 0,
            last_index: 0,
            record_bytes: 0,
            must_sync: false,
        }
    }

    /// Commits the batch, in one write and one sync unless it is large or a segment is full. After
    /// an error the writer must not be used again.
    pub(crate) fn write(&mut self, batch: &[PendingCommand]) -> Result<(), Poisoned> {
        for command in batch {
            let length = command.record_len();
            if !self.buffer.is_empty() && self.record_bytes + length > COMMIT_BYTES_MAX {
                self.commit()?;
            }
            let fits = self.segment.as_ref().is_some_and(|segment| {
                segment.at + (self.buffer.len() + length) as u64 <= segment.capacity
            });
            if !fits {
                self.commit()?;
                self.rotate(command.index, length)?;
            }
            self.add(command);
        }
        self.commit()
    }

    fn add(&mut self, command: &PendingCommand) {
        let Some(segment) = &self.segment else { return };
        let first = self.offsets.is_empty();
        if first {
            self.first_index = command.index;
        }
        // Without syncs nothing is certain to be durable when the next commit is written.
        let flags = if first && self.durability == Durability::Fsync { FLAG_FIRST } else { 0 };
        let offset = segment.at + self.buffer.len() as u64;
        // A segment has at most 1 GiB, and a longer record is at the start of its own segment.
        self.offsets.push(offset as u32);
        let header = RecordHeader {
            term: 0,
            flags,
            kind: command.kind,
            index: command.index,
            now: command.now,
            body_len: command.head.len() + command.body.len(),
        };
        header.encode(segment.seed, &command.head, &command.body, &mut self.buffer);
        self.record_bytes += command.record_len();
        self.last_index = command.index;
        self.must_sync |= command.must_sync || self.durability == Durability::Fsync;
    }

    fn commit(&mut self) -> Result<(), Poisoned> {
        let Some(segment) = self.segment.as_mut().filter(|_| !self.offsets.is_empty()) else {
            return Ok(());
        };
        self.progress.check()?;
        let end = segment.at + self.buffer.len() as u64;
        self.directory.ballast.use_in_segments(self.record_bytes as u64);
        if end > segment.written_to {
            if (self.buffer.len() as u64) < ZEROS_AHEAD_BYTES / 2 {
                let ahead = end.next_multiple_of(ZEROS_AHEAD_BYTES).min(segment.capacity);
                self.buffer.resize((ahead - segment.at) as usize, 0);
            }
            segment.written_to = segment.at + self.buffer.len() as u64;
        }
        segment
            .file
            .write_at(&self.buffer, segment.at)
            .map_err(|error| poisoned("writing", &segment.path, error))?;
        let synced = std::mem::take(&mut self.must_sync);
        if synced && self.durability == Durability::None {
            self.background.sync(&segment.file, &segment.path)?;
        } else if synced {
            segment.file.sync_data().map_err(|error| poisoned("syncing", &segment.path, error))?;
        }
        self.progress.syncs.fetch_add(u64::from(synced), Ordering::Relaxed);
        self.progress.commits.fetch_add(1, Ordering::Relaxed);
        self.progress.log_bytes.fetch_add(self.buffer.len() as u64, Ordering::Relaxed);
        self.records.extend(segment.sequence, self.first_index, &self.offsets, end as u32);
        self.progress.uncommitted_bytes.fetch_sub(self.record_bytes, Ordering::Relaxed);
        self.progress.advance(self.last_index);
        segment.at = end;

        // The waiters were notified; the commit watermark follows.
        if synced {
            self.watermark
                .note(self.last_index)
                .map_err(|error| poisoned("writing", &self.watermark.path, error))?;
        }
        self.background.committed(self.last_index, &segment.file, synced);
        self.buffer.clear();
        self.offsets.clear();
        self.record_bytes = 0;
        Ok(())
    }

    /// Continues in a new segment, whose first commit writes the first index into its header.
    fn rotate(&mut self, first_index: u64, length: usize) -> Result<(), Poisoned> {
        let needed = (SEGMENT_HEADER_BYTES + length) as u64;
        let segment = if needed > self.directory.segment_bytes {
            self.directory.create_segment(needed)?
        } else {
            self.background.segment(needed)?
        };
        if let Some(old) = &self.segment {
            if self.durability == Durability::None {
                // A segment with records proves that everything before it was durable: a power cut
                // may lose only the end.
                self.background.sync(&old.file, &old.path)?;
                self.progress.syncs.fetch_add(1, Ordering::Relaxed);
            }
            self.directory.ballast.use_in_segments(old.capacity.saturating_sub(old.at));
        }
        let header = SegmentHeader::log(self.directory.journal, segment.sequence, first_index);
        self.buffer.extend_from_slice(&header.encode());
        self.segment = Some(segment);
        Ok(())
    }
}
