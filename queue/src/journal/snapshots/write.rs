//! Writes a snapshot file beside the commits, in small chunks. It counts only after it was read
//! back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, End, KIND_END, KIND_LOCATIONS, KIND_RESUME, KIND_STATE,
    Resume, SnapshotHeader, seal_block,
};
use super::read::{SnapshotFileError, SnapshotReader};
use super::runs::LocationBlocks;
use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::compaction::paced_file::{Paced, PacedFile};
use crate::journal::files::directory::Directory;
use crate::journal::wal::locations::Locations;
use crate::log::Snapshot;

/// A complete and durable snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    pub(crate) index: u64,
    /// Bytes of the file.
    pub(crate) bytes: u64,
}

/// Why a snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Nothing has changed; the partial file was removed if possible.
    #[error("{what} {file:?} failed: {error}")]
    Io { what: &'static str, file: PathBuf, error: io::Error },
    /// The same: the file does not read back as written.
    #[error("reading {file:?} back: {why}")]
    NotAsWritten { file: PathBuf, why: SnapshotFileError },
    /// After a crash either this snapshot or the one before it may count: no file that either needs
    /// may be removed.
    #[error("syncing {file:?} failed: {error}")]
    NotSwitched { file: PathBuf, error: io::Error },
}

/// Writes a snapshot with the locations of the files it needs. `pace` is called for each chunk that
/// was written, and again for what was read back; its error aborts the snapshot. Once this returns
/// successfully, the snapshot counts. It buffers a few chunks, or one longer block.
pub(crate) fn write(
    directory: &Directory,
    snapshot: &mut dyn Snapshot,
    locations: &Locations,
    resume: Resume,
    pace: Paced<'_>,
) -> Result<Written, WriteError> {
    let (journal, index) = (directory.journal, snapshot.index());
    let header = SnapshotHeader { journal, index, epoch: snapshot.epoch() };
    let (path, unfinished) = (directory.snapshot_path(index), directory.new_snapshot_path(index));
    let wrote = write_unfinished(directory, &unfinished, header, snapshot, locations, resume, pace)
        .and_then(|bytes| {
            let io = |error| WriteError::Io { what: "renaming", file: unfinished.clone(), error };
            directory.files.rename(&unfinished, &path).map_err(io)?;
            Ok(bytes)
        });
    let bytes = wrote.inspect_err(|_| {
        // Otherwise the next start removes it.
        let _ = directory.files.remove(&unfinished);
    })?;
    let dir = directory.snapshots_dir();
    directory
        .files
        .sync_dir(&dir)
        .map_err(|error| WriteError::NotSwitched { file: dir.clone(), error })?;
    Ok(Written { path, index, bytes })
}

/// Writes, syncs, and reads back.
fn write_unfinished(
    directory: &Directory,
    path: &Path,
    header: SnapshotHeader,
    snapshot: &mut dyn Snapshot,
    locations: &Locations,
    resume: Resume,
    pace: Paced<'_>,
) -> Result<u64, WriteError> {
    let failed = |what| move |error| WriteError::Io { what, file: path.to_owned(), error };
    let file = directory.files.create(path).map_err(failed("making"))?;
    let paced = PacedFile::new(Arc::clone(&file), Some(&directory.ballast), pace);
    let mut output = SnapshotOutput { file: paced, header, number: 0 };
    output.file.buffer.extend_from_slice(&header.encode());
    output.all_blocks(snapshot, locations, resume).map_err(failed("writing"))?;
    let (bytes, blocks) = (output.file.end(), output.number);
    // Read back from the disk, not from the page cache.
    file.forget_cached().map_err(failed("reading back"))?;
    let not_as_written = |why| WriteError::NotAsWritten { file: path.to_owned(), why };
    let mut reader =
        SnapshotReader::open(directory, path.to_owned(), header.index).map_err(not_as_written)?;
    let mut paced = 0;
    while reader.next().map_err(not_as_written)?.is_some() {
        let read = (reader.at() - paced) as usize;
        // Always short chunks: no sync is needed. They are paced like writes: a disk prefers reads,
        // and reading back four times as fast delayed every second sync to 10 ms.
        if read >= CHUNK_BYTES {
            pace(read).map_err(failed("reading back"))?;
            paced = reader.at();
        }
    }
    if (reader.at(), reader.blocks()) != (bytes, blocks) || reader.header() != header {
        let why = "it does not end where writing ended";
        return Err(not_as_written(reader.damaged(reader.at(), why)));
    }
    // The next reader is the next start: leave the page cache to payloads.
    file.forget_cached().map_err(failed("reading back"))?;
    Ok(bytes)
}

/// A snapshot file being written.
struct SnapshotOutput<'a> {
    file: PacedFile<'a>,
    header: SnapshotHeader,
    /// The next block's number.
    number: u64,
}

impl SnapshotOutput<'_> {
    fn all_blocks(
        &mut self,
        snapshot: &mut dyn Snapshot,
        locations: &Locations,
        resume: Resume,
    ) -> io::Result<()> {
        self.block(KIND_RESUME, |out| {
            resume.encode(out);
            true
        })?;
        let mut blocks = LocationBlocks::of(locations);
        while self.block(KIND_LOCATIONS, |out| blocks.next_block(out))? {}
        while self.block(KIND_STATE, |out| snapshot.next_block(out))? {}
        let SnapshotHeader { index, epoch, .. } = self.header;
        let end = End { blocks: self.number, index, epoch };
        self.block(KIND_END, |out| {
            end.encode(out);
            true
        })?;
        self.file.finish()
    }

    /// Adds a block with what `fill` appends, unless `fill` returns false.
    fn block(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>) -> bool) -> io::Result<bool> {
        let buffer = &mut self.file.buffer;
        let start = buffer.len();
        buffer.resize(start + BLOCK_HEADER_BYTES, 0);
        if !fill(buffer) {
            buffer.truncate(start);
            return Ok(false);
        }
        if buffer.len() - start - BLOCK_HEADER_BYTES > BLOCK_BYTES_MAX {
            let why = "a block of a snapshot is over 64 MiB";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        seal_block(self.header.seed(), self.number, kind, start, buffer);
        self.number += 1;
        self.file.write_chunks()?;
        Ok(true)
    }
}
