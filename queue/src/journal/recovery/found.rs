//! The files of a journal as found on the disk, before recovery changes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::JournalOpenError;
use super::super::files::{JournalFile, unless_unreadable};
use super::super::snapshots;
use super::{Damage, FIRST_INDEX};
use crate::journal::files::directory::{Directory, UNFINISHED};
use crate::journal::wal::format::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader, crc_seed};
use crate::journal::wal::header_proof;
use crate::journal::wal::locations::{Locations, Run};
use crate::journal::wal::walk::Walk;

/// A file whose header is known. It is opened on demand: there may be more files than a process may
/// have open.
#[derive(Debug)]
pub(super) struct FoundSegment {
    pub(super) header: SegmentHeader,
    /// The header is damaged and was derived from the records: it must be rewritten.
    pub(super) has_damaged_header: bool,
    pub(super) path: PathBuf,
    pub(super) length: u64,
}

/// A segment without a valid record: preallocated, or begun and torn.
#[derive(Debug)]
pub(super) struct UnusedSegment {
    pub(super) sequence: u64,
    pub(super) path: PathBuf,
    pub(super) length: u64,
    /// The disk cannot read the place of the first record: there may be one.
    pub(super) is_unreadable: bool,
}

/// All files of a journal.
#[derive(Debug)]
pub(super) struct FoundFiles {
    /// Segments of the log, by their first index.
    pub(super) segments: Vec<FoundSegment>,
    /// By sequence.
    pub(super) unused: Vec<UnusedSegment>,
    /// By sequence.
    pub(super) compacted: Vec<FoundSegment>,
    /// Compacted files whose header is unknown.
    pub(super) damaged_compacted: Vec<UnusedSegment>,
    /// The indexes of the snapshots, the newest first.
    pub(super) snapshots: Vec<u64>,
    /// Unfinished files of the previous run.
    pub(super) unfinished: Vec<PathBuf>,
}

impl FoundSegment {
    pub(super) fn open(
        &self,
        directory: &Directory,
    ) -> Result<Arc<dyn JournalFile>, JournalOpenError> {
        open(directory, &self.path)
    }

    /// Rewrites a damaged header durably. Until it is synced the file is as damaged as before, also
    /// after a power cut.
    pub(super) fn repair_header(&self, directory: &Directory) -> Result<(), JournalOpenError> {
        if !self.has_damaged_header {
            return Ok(());
        }
        let first_index = self.header.first_index;
        tracing::warn!(file = ?self.path, first_index, "rewriting a damaged header");
        let file = self.open(directory)?;
        let written = file.write_at(&self.header.encode(), 0).and_then(|()| file.sync_data());
        written
            .map_err(|error| JournalOpenError::io("writing the header again of", &self.path, error))
    }
}

impl UnusedSegment {
    pub(super) fn open(
        &self,
        directory: &Directory,
    ) -> Result<Arc<dyn JournalFile>, JournalOpenError> {
        open(directory, &self.path)
    }
}

fn open(directory: &Directory, path: &Path) -> Result<Arc<dyn JournalFile>, JournalOpenError> {
    directory.files.open(path).map_err(|error| JournalOpenError::io("opening", path, error))
}

/// Reads the header of every file. Changes nothing.
pub(super) fn find(directory: &Directory) -> Result<FoundFiles, JournalOpenError> {
    let (segments_dir, snapshots_dir) = (directory.segments_dir(), directory.snapshots_dir());
    let list = |dir: &Path| -> Result<Vec<String>, JournalOpenError> {
        directory.files.list(dir).map_err(|error| JournalOpenError::io("listing", dir, error))
    };
    let mut found = FoundFiles {
        segments: Vec::new(),
        unused: Vec::new(),
        compacted: Vec::new(),
        damaged_compacted: Vec::new(),
        snapshots: snapshots::list(directory)
            .map_err(|error| JournalOpenError::io("listing", &snapshots_dir, error))?,
        unfinished: Vec::new(),
    };
    for dir in [&segments_dir, &snapshots_dir] {
        let names = list(dir)?;
        let unfinished = names.iter().filter(|name| name.ends_with(UNFINISHED));
        found.unfinished.extend(unfinished.map(|name| dir.join(name)));
    }
    for name in list(&segments_dir)? {
        if let Some(sequence) = Directory::sequence_of(&name) {
            let path = segments_dir.join(name);
            match read_file(directory, &path, sequence, false)? {
                Ok(file) if file.header.first_index != 0 => found.segments.push(file),
                Ok(FoundSegment { path, length, .. }) => {
                    let is_unreadable = false;
                    found.unused.push(UnusedSegment { sequence, path, length, is_unreadable });
                }
                Err(unused) => found.unused.push(unused),
            }
        } else if let Some(sequence) = Directory::compacted_sequence_of(&name) {
            let path = segments_dir.join(name);
            match read_file(directory, &path, sequence, true)? {
                Ok(file) => found.compacted.push(file),
                Err(bad) => found.damaged_compacted.push(bad),
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The file, if its header is valid, or if its first record proves the header.
fn read_file(
    directory: &Directory,
    path: &Path,
    sequence: u64,
    is_compacted: bool,
) -> Result<Result<FoundSegment, UnusedSegment>, JournalOpenError> {
    directory.reserve_sequence(sequence);
    let io = |error| JournalOpenError::io("reading", path, error);
    let file = directory.files.open(path).map_err(io)?;
    let length = file.len().map_err(io)?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    // A rewrite may remap the bad sector.
    if unless_unreadable(file.read_at(&mut bytes, 0)).map_err(io)?.is_none() {
        bytes.fill(0);
    }
    let good = match SegmentHeader::decode(&bytes) {
        Ok(header) if header.journal != directory.journal => {
            let (expected, journal) = (directory.journal, header.journal);
            return Err(JournalOpenError::Foreign { file: path.to_owned(), journal, expected });
        }
        Err(HeaderError::OtherFormat(version)) => {
            return Err(JournalOpenError::OtherFormat { file: path.to_owned(), version });
        }
        Ok(header) => Some(header)
            .filter(|header| header.sequence == sequence && header.is_compacted() == is_compacted),
        Err(HeaderError::Bad) => None,
    };
    let first = || header_proof::by_first_record(&*file, directory.journal, sequence, is_compacted);
    let known = match good {
        Some(header) => Some(Some(header)),
        None => unless_unreadable(first()).map_err(io)?,
    };
    let (path, has_damaged_header) = (path.to_owned(), good.is_none());
    Ok(match known {
        Some(Some(header)) => Ok(FoundSegment { header, has_damaged_header, path, length }),
        none => Err(UnusedSegment { sequence, path, length, is_unreadable: none.is_none() }),
    })
}

impl FoundFiles {
    fn sort(&mut self) {
        // A segment that got no record before a power cut begins with the same command as the one
        // that was written instead.
        self.segments
            .sort_unstable_by_key(|found| (found.header.first_index, found.header.sequence));
        self.unused.sort_unstable_by_key(|segment| segment.sequence);
        self.compacted.sort_unstable_by_key(|file| file.header.sequence);
    }

    /// Whether the log is complete from its first command to `index`. Reads every record up to the
    /// first gap, maybe all of a large log: call it only if the decision depends on it.
    pub(super) fn is_complete_up_to(&self, directory: &Directory, index: u64) -> bool {
        let mut next = FIRST_INDEX;
        for segment in &self.segments {
            if next > index || segment.header.first_index != next {
                break;
            }
            // An unreadable file is no better than a missing one.
            let Ok(file) = segment.open(directory) else { return false };
            let seed = crc_seed(directory.journal, segment.header.sequence);
            let Ok(mut walk) = Walk::new(file, seed) else { return false };
            let mut at = SEGMENT_HEADER_BYTES as u64;
            while let Ok(Ok(record)) = walk.record(at)
                && record.header.index == next
            {
                (next, at) = (next + 1, record.end());
            }
        }
        next > index
    }

    /// The missing or damaged files, each by one of its runs. A file whose header alone is damaged
    /// is not missing if a record of any of its runs proves the header.
    pub(super) fn missing<'a>(
        &mut self,
        directory: &Directory,
        locations: &'a Locations,
    ) -> Result<Vec<&'a Run>, JournalOpenError> {
        let mut good: BTreeSet<u64> =
            self.segments.iter().chain(&self.compacted).map(|file| file.header.sequence).collect();
        let mut missing = BTreeMap::new();
        for run in locations.runs() {
            if good.contains(&run.sequence) {
                continue;
            }
            let proof = match self.damaged_file(run) {
                None => None,
                Some(bad) => header_proof::by_run(&*bad.open(directory)?, directory.journal, run)
                    .map_err(|error| JournalOpenError::io("reading", &bad.path, error))?,
            };
            match proof {
                Some(header) => {
                    self.set_header(run, header, directory);
                    good.insert(run.sequence);
                    missing.remove(&run.sequence);
                }
                None => _ = missing.entry(run.sequence).or_insert(run),
            }
        }
        self.sort();
        Ok(missing.into_values().collect())
    }

    /// The damage of a missing run's file.
    pub(super) fn damage_of(&self, directory: &Directory, run: &Run) -> Damage {
        let why = match self.damaged_file(run) {
            Some(_) => "its header is not what was written, and a snapshot needs the file",
            None => "the file is missing, and a snapshot needs it",
        };
        Damage { file: directory.path_of(run.sequence, run.is_compacted()), offset: 0, why }
    }

    /// Accepts the files of these runs with the headers that the snapshot implies, whatever their
    /// content: each damaged record in them is detected when it is read. The headers are written
    /// together with all other repairs; until then an interrupted start leaves the files as damaged
    /// as they were.
    pub(super) fn accept(
        &mut self,
        directory: &Directory,
        runs: &[Run],
    ) -> Result<(), JournalOpenError> {
        for run in runs {
            // An older snapshot may have proven it already.
            let mut known = self.segments.iter().chain(&self.compacted);
            if known.any(|file| file.header.sequence == run.sequence) {
                continue;
            }
            let Damage { file: path, why, .. } = self.damage_of(directory, run);
            let commands = (run.first, run.last);
            let file = &path;
            tracing::error!(?file, ?commands, why, "accepting the loss of this file's payloads");
            // An existing file is never emptied, even if it is unreadable.
            match directory.files.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    directory.files.create(&path).map(drop)
                }
                opened => opened.map(drop),
            }
            .map_err(|error| JournalOpenError::io("making", &path, error))?;
            self.set_header(run, header_proof::of_run(directory.journal, run), directory);
        }
        self.sort();
        Ok(())
    }

    /// The run's file, if its header is unknown.
    fn damaged_file(&self, run: &Run) -> Option<&UnusedSegment> {
        let bad = if run.is_compacted() { &self.damaged_compacted } else { &self.unused };
        bad.iter().find(|file| file.sequence == run.sequence)
    }

    /// Records the header of a run's damaged file.
    fn set_header(&mut self, run: &Run, header: SegmentHeader, directory: &Directory) {
        let (known, bad) = match run.is_compacted() {
            true => (&mut self.compacted, &mut self.damaged_compacted),
            false => (&mut self.segments, &mut self.unused),
        };
        let position = bad.iter().position(|file| file.sequence == run.sequence);
        let length = match position.map(|position| bad.remove(position)) {
            Some(file) => file.length.max(SEGMENT_HEADER_BYTES as u64),
            None => SEGMENT_HEADER_BYTES as u64,
        };
        let path = directory.path_of(run.sequence, run.is_compacted());
        known.push(FoundSegment { header, has_damaged_header: true, path, length });
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::PublisherId;

    use super::*;

    #[test]
    fn segments_with_one_first_index_are_sorted_by_sequence() {
        let segment = |sequence| FoundSegment {
            header: SegmentHeader::log(PublisherId([9; 16]), sequence, 101),
            has_damaged_header: false,
            path: PathBuf::new(),
            length: SEGMENT_HEADER_BYTES as u64,
        };
        // As the directory may list them.
        for order in [[2, 3], [3, 2]] {
            let mut found = FoundFiles {
                segments: order.map(segment).into(),
                unused: Vec::new(),
                compacted: Vec::new(),
                damaged_compacted: Vec::new(),
                snapshots: Vec::new(),
                unfinished: Vec::new(),
            };
            found.sort();
            let sorted = found.segments.iter().map(|segment| segment.header.sequence);
            assert_eq!(sorted.collect::<Vec<u64>>(), [2, 3]);
        }
    }
}
