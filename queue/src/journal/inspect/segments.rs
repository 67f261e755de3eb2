//! The files with records, by their names and headers.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_protocol::PublisherId;

use super::super::files::{Files, JournalFile, unless_unreadable};
use super::InspectError;
use crate::journal::files::directory::Directory;
use crate::journal::wal::format::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader, crc_seed};
use crate::journal::wal::header_proof;
use crate::journal::wal::locations::Run;

/// The kind of a file in `segments/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentKind {
    /// A segment of the log.
    Log,
    /// A preallocated segment without records, or one whose header was not finished.
    Unused,
    /// The live parts of compacted segments.
    Compacted,
}

/// A file for records.
pub(super) struct SegmentFile {
    pub(super) sequence: u64,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Whether its name is that of a compacted file.
    pub(super) is_compacted: bool,
    pub(super) header: Result<SegmentHeader, BadHeader>,
    /// The derived header, if a record proves it.
    proven: Cell<Option<SegmentHeader>>,
}

/// Why a header does not belong to a file of this journal and name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadHeader {
    /// Never written.
    Blank,
    NotAsWritten,
    OtherFormat(u16),
    Foreign(PublisherId),
}

impl SegmentFile {
    /// Reads a file's header. `sequence` is the number in its name, `journal` the expected id.
    pub(super) fn read(
        files: &dyn Files,
        path: PathBuf,
        sequence: u64,
        is_compacted: bool,
        journal: PublisherId,
    ) -> Result<SegmentFile, InspectError> {
        let file = files.open_to_read(&path).map_err(InspectError::io("opening", &path))?;
        let bytes = file.len().map_err(InspectError::io("reading", &path))?;
        let mut block = [0; SEGMENT_HEADER_BYTES];
        let is_read = unless_unreadable(file.read_at(&mut block, 0))
            .map_err(InspectError::io("reading", &path))?
            .is_some();
        let header = match SegmentHeader::decode(&block) {
            _ if !is_read => Err(BadHeader::NotAsWritten),
            Ok(known) if known.journal != journal => Err(BadHeader::Foreign(known.journal)),
            Ok(known) if known.sequence == sequence && known.is_compacted() == is_compacted => {
                Ok(known)
            }
            Err(HeaderError::OtherFormat(version)) => Err(BadHeader::OtherFormat(version)),
            Err(HeaderError::Bad) if block.iter().all(|&byte| byte == 0) => Err(BadHeader::Blank),
            Ok(_) | Err(HeaderError::Bad) => Err(BadHeader::NotAsWritten),
        };
        let proven = match header {
            Err(BadHeader::Blank | BadHeader::NotAsWritten) => {
                let first = header_proof::by_first_record(&*file, journal, sequence, is_compacted);
                unless_unreadable(first).map_err(InspectError::io("reading", &path))?.flatten()
            }
            _ => None,
        };
        let proven = Cell::new(proven);
        Ok(SegmentFile { sequence, path, bytes, is_compacted, header, proven })
    }

    pub(super) fn kind(&self) -> SegmentKind {
        match (self.is_compacted, self.first_index()) {
            (true, _) => SegmentKind::Compacted,
            (false, Some(_)) => SegmentKind::Log,
            (false, None) => SegmentKind::Unused,
        }
    }

    /// Its header, valid or derived.
    pub(super) fn known_header(&self) -> Option<SegmentHeader> {
        self.header.ok().or(self.proven.get())
    }

    /// Derives the header if a record of this run, which a snapshot names in the file, proves it.
    pub(super) fn prove_by(&self, run: &Run, directory: &Directory) -> Result<(), InspectError> {
        if self.known_header().is_some()
            || !matches!(self.header, Err(BadHeader::Blank | BadHeader::NotAsWritten))
        {
            return Ok(());
        }
        let file = self.open(&*directory.files)?;
        let proof = header_proof::by_run(&*file, directory.journal, run)
            .map_err(InspectError::io("reading", &self.path))?;
        self.proven.set(proof);
        Ok(())
    }

    /// The index of the first record of a segment of the log that has one.
    pub(super) fn first_index(&self) -> Option<u64> {
        let header = self.known_header()?;
        Some(header.first_index).filter(|&first| first != 0 && !self.is_compacted)
    }

    pub(super) fn open(&self, files: &dyn Files) -> Result<Arc<dyn JournalFile>, InspectError> {
        files.open_to_read(&self.path).map_err(InspectError::io("opening", &self.path))
    }

    /// The initial value of its records' checksums.
    pub(super) fn seed(&self, journal: PublisherId) -> u32 {
        crc_seed(journal, self.sequence)
    }
}

/// All files in `segments/`: those of the log by their first command, then unused and compacted
/// ones by sequence.
pub(super) fn list(directory: &Directory) -> Result<Vec<SegmentFile>, InspectError> {
    let dir = directory.segments_dir();
    let names = directory.files.list(&dir).map_err(InspectError::io("listing", &dir))?;
    let mut files = Vec::new();
    for name in names {
        let (sequence, is_compacted) = match numbered(&name) {
            Some(numbered) => numbered,
            None => continue,
        };
        let path = dir.join(&name);
        files.push(SegmentFile::read(
            &*directory.files,
            path,
            sequence,
            is_compacted,
            directory.journal,
        )?);
    }
    files.sort_by_key(|file| {
        (file.first_index().unwrap_or(u64::MAX), file.is_compacted, file.sequence)
    });
    Ok(files)
}

/// The sequence in a file's name, and whether it is a compacted file; none for other files.
pub(super) fn numbered(name: &str) -> Option<(u64, bool)> {
    Directory::sequence_of(name)
        .map(|sequence| (sequence, false))
        .or_else(|| Directory::compacted_sequence_of(name).map(|sequence| (sequence, true)))
}

/// Bytes of a file; none if it is missing.
pub(super) fn bytes_of(files: &dyn Files, path: &Path) -> Result<Option<u64>, InspectError> {
    match files.open_to_read(path).and_then(|file| file.len()) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(InspectError::io("reading", path)(error)),
    }
}
