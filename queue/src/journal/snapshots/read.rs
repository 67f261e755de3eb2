//! Reading a snapshot file, block by block.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::PublisherId;

use super::super::files::JournalFile;
use super::format::{
    BLOCK_HEADER_BYTES, End, HEADER_BYTES, KIND_END, KIND_LOCATIONS, KIND_RESUME, KIND_STATE,
    Resume, SnapshotHeader, body_len, is_block,
};
use super::runs::LocationsDecoder;
use crate::journal::files::directory::Directory;
use crate::journal::wal::format::HeaderError;
use crate::journal::wal::locations::Locations;

/// Why a snapshot file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotFileError {
    #[error("{what} {file:?} failed: {error}")]
    Io { what: &'static str, file: PathBuf, error: io::Error },
    #[error("{file:?} is damaged at byte {offset}: {why}")]
    Damaged { file: PathBuf, offset: u64, why: &'static str },
    #[error("{file:?} has journal format {version}")]
    OtherFormat { file: PathBuf, version: u16 },
    #[error("{file:?} belongs to journal {journal}")]
    Foreign { file: PathBuf, journal: PublisherId },
}

/// Bytes of one read, unless a block is longer: beside commits, each read waits its turn on the
/// disk, whatever its length.
const READ_BYTES: usize = 256 * 1024;

/// A block and where it begins.
pub(crate) struct SnapshotBlock {
    pub(crate) offset: u64,
    pub(crate) kind: u8,
    pub(crate) body: Bytes,
}

/// Reads the blocks of a snapshot file in order, each checked.
pub(crate) struct SnapshotReader {
    path: PathBuf,
    file: Arc<dyn JournalFile>,
    length: u64,
    header: SnapshotHeader,
    at: u64,
    /// Blocks read so far.
    blocks: u64,
    ended: bool,
    /// The bytes read last, and where they begin: the buffer is reused unless someone still has a
    /// slice of it.
    buffer: Bytes,
    buffer_at: u64,
}

/// A snapshot file whose every block is valid.
pub(crate) struct Checked {
    pub(crate) header: SnapshotHeader,
    pub(crate) resume: Resume,
    pub(crate) locations: Locations,
    pub(crate) bytes: u64,
}

/// Reads the whole file, and checks every block.
pub(crate) fn check(directory: &Directory, index: u64) -> Result<Checked, SnapshotFileError> {
    let mut reader = SnapshotReader::open(directory, directory.snapshot_path(index), index)?;
    let mut decoder = LocationsDecoder::up_to(index);
    let mut resume = None;
    while let Some(block) = reader.next()? {
        let fits = match block.kind {
            KIND_RESUME => {
                resume = Resume::decode(&block.body);
                resume.is_some()
            }
            KIND_LOCATIONS => decoder.add(&block.body).is_some(),
            _ => true,
        };
        if !fits {
            return Err(reader.damaged(block.offset, "a block of locations is inconsistent"));
        }
    }
    let Some(resume) = resume else {
        return Err(reader.damaged(HEADER_BYTES as u64, "its resume block is missing"));
    };
    let (header, bytes) = (reader.header, reader.length);
    Ok(Checked { header, resume, locations: decoder.locations(), bytes })
}

impl SnapshotReader {
    pub(crate) fn open(
        directory: &Directory,
        path: PathBuf,
        index: u64,
    ) -> Result<SnapshotReader, SnapshotFileError> {
        let io = |error| SnapshotFileError::Io { what: "reading", file: path.clone(), error };
        let file = directory.files.open(&path).map_err(io)?;
        let length = file.len().map_err(io)?;
        let mut bytes = [0; HEADER_BYTES];
        let read = file.read_at(&mut bytes, 0).map_err(io)?;
        let header = match SnapshotHeader::decode(&bytes) {
            Ok(header) if header.journal != directory.journal => {
                return Err(SnapshotFileError::Foreign { file: path, journal: header.journal });
            }
            Ok(header) if header.index == index && read == HEADER_BYTES => header,
            Err(HeaderError::OtherFormat(version)) => {
                return Err(SnapshotFileError::OtherFormat { file: path, version });
            }
            Ok(_) | Err(HeaderError::Bad) => {
                let why = "its header is not what was written";
                return Err(SnapshotFileError::Damaged { file: path, offset: 0, why });
            }
        };
        let at = HEADER_BYTES as u64;
        let (buffer, buffer_at) = (Bytes::new(), at);
        Ok(SnapshotReader {
            path,
            file,
            length,
            header,
            at,
            blocks: 0,
            ended: false,
            buffer,
            buffer_at,
        })
    }

    pub(crate) fn header(&self) -> SnapshotHeader {
        self.header
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Blocks read so far, including the last.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next block; none after a valid end block at the file's end.
    pub(crate) fn next(&mut self) -> Result<Option<SnapshotBlock>, SnapshotFileError> {
        if self.ended {
            return Ok(None);
        }
        let offset = self.at;
        let body_at = offset + BLOCK_HEADER_BYTES as u64;
        let header = self.bytes(offset, BLOCK_HEADER_BYTES)?;
        let header = header.first_chunk::<BLOCK_HEADER_BYTES>().copied();
        let length = header.as_ref().and_then(body_len);
        let length = length.filter(|&length| body_at + length as u64 <= self.length);
        let (Some(header), Some(length)) = (header, length) else {
            return Err(self.damaged(offset, "it is cut off"));
        };
        let body = self.bytes(body_at, length)?;
        if body.len() < length || !is_block(self.header.seed(), self.blocks, &header, &body) {
            return Err(self.damaged(offset, "a block is not what was written"));
        }
        self.at = body_at + length as u64;
        let kind = header[8];
        let in_order = match kind {
            KIND_RESUME => self.blocks == 0,
            KIND_LOCATIONS | KIND_STATE => self.blocks > 0,
            KIND_END => self.is_the_end(&body),
            _ => false,
        };
        if !in_order {
            return Err(self.damaged(offset, "a block is out of order"));
        }
        self.blocks += 1;
        if kind == KIND_END {
            self.ended = true;
            return Ok(None);
        }
        Ok(Some(SnapshotBlock { offset, kind, body }))
    }

    /// `length` bytes of the file; fewer only at its end.
    fn bytes(&mut self, at: u64, length: usize) -> Result<Bytes, SnapshotFileError> {
        let from = at.checked_sub(self.buffer_at).map(|from| from as usize);
        if let Some(from) = from
            && from + length <= self.buffer.len()
        {
            return Ok(self.buffer.slice(from..from + length));
        }
        let io = |error| SnapshotFileError::Io { what: "reading", file: self.path.clone(), error };
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut buffer = std::mem::take(&mut self.buffer).try_into_mut().unwrap_or_default();
        buffer.resize(length.max(READ_BYTES).min(left), 0);
        let read = self.file.read_at(&mut buffer, at).map_err(io)?;
        buffer.truncate(read);
        (self.buffer, self.buffer_at) = (buffer.freeze(), at);
        Ok(self.buffer.slice(..length.min(self.buffer.len())))
    }

    fn is_the_end(&self, body: &Bytes) -> bool {
        let SnapshotHeader { index, epoch, .. } = self.header;
        End::decode(body) == Some(End { blocks: self.blocks, index, epoch })
            && self.at == self.length
    }

    pub(crate) fn damaged(&self, offset: u64, why: &'static str) -> SnapshotFileError {
        SnapshotFileError::Damaged { file: self.path.clone(), offset, why }
    }
}
