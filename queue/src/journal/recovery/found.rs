//! The files of a journal as they were found, before anything is made of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::OpenError;
use super::super::directory::{Directory, UNFINISHED};
use super::super::files::JournalFile;
use super::super::format::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::super::locations::{Locations, RunRecords};
use super::super::snapshots;
use super::Damage;

/// A file whose header is good. It is opened when it is needed: there may be more of them than a process may have open.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) header: SegmentHeader,
    pub(super) path: PathBuf,
    pub(super) length: u64,
}

/// A segment without a record that counts: made ahead, or begun and torn.
#[derive(Debug)]
pub(super) struct Unused {
    pub(super) sequence: u64,
    pub(super) path: PathBuf,
    pub(super) length: u64,
}

/// All files of a journal.
#[derive(Debug)]
pub(super) struct FoundFiles {
    /// Segments of the log, by their first index.
    pub(super) segments: Vec<Found>,
    /// By sequence.
    pub(super) unused: Vec<Unused>,
    /// By sequence.
    pub(super) carried: Vec<Found>,
    /// Carried files without a good header.
    pub(super) bad_carried: Vec<Unused>,
    /// The indexes of the snapshots, the newest first.
    pub(super) snapshots: Vec<u64>,
    /// What was being written when the run before ended.
    pub(super) unfinished: Vec<PathBuf>,
}

impl Found {
    pub(super) fn open(&self, directory: &Directory) -> Result<Arc<dyn JournalFile>, OpenError> {
        open(directory, &self.path)
    }
}

impl Unused {
    pub(super) fn open(&self, directory: &Directory) -> Result<Arc<dyn JournalFile>, OpenError> {
        open(directory, &self.path)
    }
}

fn open(directory: &Directory, path: &Path) -> Result<Arc<dyn JournalFile>, OpenError> {
    directory.files.open(path).map_err(|error| OpenError::io("opening", path, error))
}

/// Looks at every file once. Changes nothing.
pub(super) fn find(directory: &Directory) -> Result<FoundFiles, OpenError> {
    let (segments_dir, snapshots_dir) = (directory.segments_dir(), directory.snapshots_dir());
    let list = |dir: &Path| -> Result<Vec<String>, OpenError> {
        directory.files.list(dir).map_err(|error| OpenError::io("listing", dir, error))
    };
    let mut found = FoundFiles {
        segments: Vec::new(),
        unused: Vec::new(),
        carried: Vec::new(),
        bad_carried: Vec::new(),
        snapshots: snapshots::list(directory)
            .map_err(|error| OpenError::io("listing", &snapshots_dir, error))?,
        unfinished: Vec::new(),
    };
    for dir in [&segments_dir, &snapshots_dir] {
        let names = list(dir)?;
        let unfinished = names.iter().filter(|name| name.ends_with(UNFINISHED));
        found.unfinished.extend(unfinished.map(|name| dir.join(name)));
    }
    for name in list(&segments_dir)? {
        if let Some(sequence) = Directory::sequence_of(&name) {
            let (good, length) = read_header(directory, &segments_dir.join(&name), sequence)?;
            let path = segments_dir.join(name);
            match good.filter(|header| !header.is_carried() && header.first_index != 0) {
                Some(header) => found.segments.push(Found { header, path, length }),
                None => found.unused.push(Unused { sequence, path, length }),
            }
        } else if let Some(sequence) = Directory::carried_sequence_of(&name) {
            let (good, length) = read_header(directory, &segments_dir.join(&name), sequence)?;
            let path = segments_dir.join(name);
            match good.filter(SegmentHeader::is_carried) {
                Some(header) => found.carried.push(Found { header, path, length }),
                None => found.bad_carried.push(Unused { sequence, path, length }),
            }
        }
    }
    found.segments.sort_unstable_by_key(|segment| segment.header.first_index);
    found.unused.sort_unstable_by_key(|segment| segment.sequence);
    found.carried.sort_unstable_by_key(|file| file.header.sequence);
    Ok(found)
}

/// The file's header, if it is whole and its own, and the file's length.
fn read_header(
    directory: &Directory,
    path: &Path,
    sequence: u64,
) -> Result<(Option<SegmentHeader>, u64), OpenError> {
    directory.taken(sequence);
    let io = |error| OpenError::io("reading", path, error);
    let file = directory.files.open(path).map_err(io)?;
    let length = file.len().map_err(io)?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    file.read_at(&mut bytes, 0).map_err(io)?;
    match SegmentHeader::decode(&bytes) {
        Ok(header) if header.journal != directory.journal => {
            let (expected, journal) = (directory.journal, header.journal);
            Err(OpenError::Foreign { file: path.to_owned(), journal, expected })
        }
        Ok(header) => Ok((Some(header).filter(|header| header.sequence == sequence), length)),
        Err(HeaderError::OtherFormat(version)) => {
            Err(OpenError::OtherFormat { file: path.to_owned(), version })
        }
        Err(HeaderError::Bad) => Ok((None, length)),
    }
}

impl FoundFiles {
    /// The first file that these locations name and that is not there as it was written.
    pub(super) fn missing(&self, directory: &Directory, locations: &Locations) -> Option<Damage> {
        let segments: BTreeSet<u64> =
            self.segments.iter().map(|segment| segment.header.sequence).collect();
        locations.runs().iter().find_map(|run| {
            let sequence = run.sequence;
            let (is_there, is_bad, path) = match run.records {
                RunRecords::Log { .. } => (
                    segments.contains(&sequence),
                    self.unused.iter().any(|segment| segment.sequence == sequence),
                    directory.segment_path(sequence),
                ),
                RunRecords::Carried(_) => (
                    self.carried.binary_search_by_key(&sequence, |it| it.header.sequence).is_ok(),
                    self.bad_carried.iter().any(|file| file.sequence == sequence),
                    directory.carried_path(sequence),
                ),
            };
            let why = match is_bad {
                true => "its header is not what was written, and a snapshot needs the file",
                false => "the file is missing, and a snapshot needs it",
            };
            (!is_there).then_some(Damage { file: path, offset: 0, why })
        })
    }
}
