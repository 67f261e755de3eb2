//! Lists the records of a journal one by one: also of a damaged journal, and of a single file.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_protocol::{PublisherId, WireError};

use super::super::files::Files;
use super::super::snapshots::{self, SnapshotFileError};
use super::segments::{self, BadHeader, SegmentFile};
use super::source::{JournalSource, identity_of};
use super::{InspectError, disk, name_of};
use crate::Now;
use crate::command::Command;
use crate::journal::compaction::compacted::{self, CompactedPart};
use crate::journal::wal::format::SEGMENT_HEADER_BYTES;
use crate::journal::wal::record::{FLAG_COMPACTED, FLAG_FIRST};
use crate::journal::wal::walk::{Record, Walk};

/// The records to dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DumpOptions {
    /// The first index; by default the first that exists.
    pub from: u64,
    /// The last index, inclusive; by default the last that exists.
    pub to: u64,
}

impl Default for DumpOptions {
    fn default() -> DumpOptions {
        DumpOptions { from: 0, to: u64::MAX }
    }
}

/// An item of a journal, or a gap in it.
#[derive(Debug)]
pub enum Dumped {
    /// A snapshot.
    Snapshot {
        /// Its file.
        file: PathBuf,
        /// The last command that it reflects.
        index: u64,
        /// Bytes of its file.
        bytes: u64,
        /// The epoch of the last start that it reflects; or the offset and kind of its damage.
        epoch: Result<u64, (u64, &'static str)>,
    },
    /// A record as it was logged.
    Record {
        /// Its file.
        file: PathBuf,
        /// Its offset.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Its index.
        index: u64,
        /// When it was logged.
        now: Now,
        /// Its kind.
        kind: u8,
        /// Whether everything before it was durable when it was written.
        begins_commit: bool,
        /// The command; or why this program cannot decode it.
        command: Box<Result<Command, WireError>>,
    },
    /// A compacted record.
    Compacted {
        /// Its file.
        file: PathBuf,
        /// Its offset.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The command that these are parts of.
        index: u64,
        /// When that command was logged.
        now: Now,
        /// The parts; none if the record is inconsistent.
        parts: Option<Vec<CompactedPart>>,
    },
    /// Bytes that are no record. The next item is the next valid record after them.
    Damage {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// What is wrong.
        why: &'static str,
    },
}

/// Iterates over the items of a journal: snapshots, then records in order. Blocks while it reads.
pub struct Dump {
    files: Arc<dyn Files>,
    journal: PublisherId,
    options: DumpOptions,
    snapshots: VecDeque<Dumped>,
    pending: VecDeque<DumpFile>,
    cursor: Option<FileCursor>,
}

/// A file to be read.
struct DumpFile {
    path: PathBuf,
    /// The initial value of its records' checksums.
    seed: u32,
    /// The offset of its first record.
    from: u64,
    /// The end of a segment, without its header.
    is_end: bool,
    /// What is wrong with its header.
    header: Option<&'static str>,
}

struct FileCursor {
    path: PathBuf,
    walk: Walk,
    at: u64,
    /// The last returned command.
    last: u64,
}

impl Dump {
    /// Opens the journal in a directory, which may be in use, or one file with records, which may
    /// be from `lost/`.
    pub fn open(path: &Path, options: DumpOptions) -> Result<Dump, InspectError> {
        Dump::open_on(&disk(), path, options)
    }

    pub(in crate::journal) fn open_on(
        files: &Arc<dyn Files>,
        path: &Path,
        options: DumpOptions,
    ) -> Result<Dump, InspectError> {
        if let Some(named) = file_name(&name_of(path)) {
            return Dump::of_file(files, path, named, options);
        }
        let source = JournalSource::open(files, path)?;
        let directory = &source.directory;
        let mut snapshots = VecDeque::new();
        for index in source.snapshots()? {
            if (options.from..=options.to).contains(&index) {
                snapshots.extend(snapshot(&source, index)?);
            }
        }
        let journal = source.journal();
        let listed = segments::list(directory)?;
        let mut selected = VecDeque::new();
        for (position, segment) in listed.iter().enumerate() {
            let next = listed.get(position + 1).and_then(SegmentFile::first_index);
            let is_before = next.is_some_and(|next| next <= options.from) && !segment.is_compacted;
            let is_after = segment.first_index().is_some_and(|first| first > options.to);
            if !is_before && !is_after {
                selected.push_back(DumpFile::of(segment, journal));
            }
        }
        let files = Arc::clone(files);
        Ok(Dump { files, journal, options, snapshots, pending: selected, cursor: None })
    }

    /// Opens a segment, a compacted file, or the end of a segment from `lost/`; its name tells
    /// which.
    fn of_file(
        files: &Arc<dyn Files>,
        path: &Path,
        (sequence, is_compacted, is_part): (u64, bool, bool),
        options: DumpOptions,
    ) -> Result<Dump, InspectError> {
        // The identity file is in the parent of the file's directory, of which a relative path may
        // have no name.
        let whole = std::path::absolute(path).map_err(InspectError::io("finding", path))?;
        let dir = whole.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let known = identity_of(&**files, dir);
        let expected = known.as_ref().ok().and_then(|known| known.map(|known| known.journal));
        let mut segment = SegmentFile::read(
            &**files,
            path.to_owned(),
            sequence,
            is_compacted,
            expected.unwrap_or_default(),
        )?;
        let journal = match (expected, segment.header) {
            // A file outside its directory names its journal in its header.
            (_, Err(BadHeader::Foreign(journal))) if !is_part => {
                segment =
                    SegmentFile::read(&**files, path.to_owned(), sequence, is_compacted, journal)?;
                journal
            }
            (Some(journal), _) => journal,
            (None, _) => {
                let known = known.map(|_| InspectError::NoJournal { dir: dir.to_owned() });
                return Err(known.unwrap_or_else(|error| error));
            }
        };
        let mut part = DumpFile::of(&segment, journal);
        if is_part {
            (part.from, part.header, part.is_end) = (0, None, true);
        }
        let pending = VecDeque::from([part]);
        let files = Arc::clone(files);
        Ok(Dump { files, journal, options, snapshots: VecDeque::new(), pending, cursor: None })
    }

    /// The id of the journal.
    pub fn journal(&self) -> PublisherId {
        self.journal
    }

    /// The next item; none at the end.
    #[allow(clippy::should_implement_trait, reason = "an iterator would return errors forever")]
    pub fn next(&mut self) -> Result<Option<Dumped>, InspectError> {
        if let Some(snapshot) = self.snapshots.pop_front() {
            return Ok(Some(snapshot));
        }
        loop {
            let Some(cursor) = &mut self.cursor else {
                let Some(part) = self.pending.pop_front() else { return Ok(None) };
                let file = self.files.open_to_read(&part.path);
                let walk = file.and_then(|file| match part.is_end {
                    true => Walk::of_part(file, part.seed),
                    false => Walk::once(file, part.seed),
                });
                let walk = walk.map_err(InspectError::io("reading", &part.path))?;
                let DumpFile { path, from: at, header, .. } = part;
                self.cursor = Some(FileCursor { path: path.clone(), walk, at, last: 0 });
                if let Some(why) = header {
                    return Ok(Some(Dumped::Damage { file: path, offset: 0, bytes: at, why }));
                }
                continue;
            };
            match cursor.step(self.options)? {
                Some(DumpStep::Emit(dumped)) => return Ok(Some(dumped)),
                Some(DumpStep::Skip) => {}
                None => self.cursor = None,
            }
        }
    }
}

impl std::fmt::Debug for Dump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dump").field("journal", &self.journal).finish_non_exhaustive()
    }
}

enum DumpStep {
    Emit(Dumped),
    Skip,
}

impl FileCursor {
    fn step(&mut self, options: DumpOptions) -> Result<Option<DumpStep>, InspectError> {
        let io = || InspectError::io("reading", &self.path);
        let (record, skipped) = match self.walk.record(self.at).map_err(io())? {
            Ok(record) => (Some(record), 0),
            Err(_) => {
                let found = self.walk.next_good(self.at, 0).map_err(io())?;
                let to = match &found {
                    Some(record) => record.offset,
                    None => self.walk.end_of_data(self.at).map_err(io())?,
                };
                (found, to - self.at)
            }
        };
        if (record.is_none() || skipped > 0) && self.walk.became_shorter().map_err(io())? {
            let why = "it was removed while it was read; its records are no longer needed";
            return Err(io()(std::io::Error::new(std::io::ErrorKind::NotFound, why)));
        }
        if skipped > 0 {
            let (file, offset) = (self.path.clone(), self.at);
            self.at += skipped;
            let why = match record {
                Some(_) => "no record; the next valid one follows",
                None => "no record, and none after it: a torn tail, or damage",
            };
            return Ok(Some(DumpStep::Emit(Dumped::Damage { file, offset, bytes: skipped, why })));
        }
        let Some(record) = record else {
            self.walk.forget().map_err(io())?;
            return Ok(None);
        };
        self.at = record.end();
        self.last = record.header.index;
        Ok(Some(match (options.from..=options.to).contains(&self.last) {
            true => DumpStep::Emit(self.dumped(record)),
            false => DumpStep::Skip,
        }))
    }

    fn dumped(&self, record: Record) -> Dumped {
        let (file, offset, bytes) = (self.path.clone(), record.offset, record.bytes.len() as u64);
        let header = record.header;
        let (index, now, kind) = (header.index, header.now, header.kind);
        if header.flags & FLAG_COMPACTED != 0 {
            let parts = compacted::decode(&record.body());
            return Dumped::Compacted { file, offset, bytes, index, now, parts };
        }
        let begins_commit = header.flags & FLAG_FIRST != 0;
        let command = Box::new(Command::decode(kind, record.body()));
        Dumped::Record { file, offset, bytes, index, now, kind, begins_commit, command }
    }
}

impl DumpFile {
    fn of(segment: &SegmentFile, journal: PublisherId) -> DumpFile {
        let header = match segment.header {
            Ok(_) | Err(BadHeader::Blank) => None,
            Err(BadHeader::NotAsWritten) => Some("the header is not what was written"),
            Err(BadHeader::OtherFormat(_)) => Some("a program of another format wrote it"),
            Err(BadHeader::Foreign(_)) => Some("it belongs to another journal"),
        };
        let (path, seed) = (segment.path.clone(), segment.seed(journal));
        DumpFile { path, seed, from: SEGMENT_HEADER_BYTES as u64, is_end: false, header }
    }
}

/// The sequence in a file's name, whether it is a compacted file, and whether it is the end of a
/// segment from `lost/`: `0000000007.seg`, `901-0000000007.seg`, `901-0000000007-from-8192.part`,
/// and the same with a number after them.
fn file_name(name: &str) -> Option<(u64, bool, bool)> {
    let name = match name.rsplit_once('.') {
        Some((name, again)) if again.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    let whole = name.split_once('-').map_or(name, |(_, whole)| whole);
    if let Some((sequence, is_compacted)) = segments::numbered(whole) {
        return Some((sequence, is_compacted, false));
    }
    let (sequence, from) = whole.strip_suffix(".part")?.split_once("-from-")?;
    from.parse::<u64>().ok()?;
    Some((sequence.parse().ok()?, false, true))
}

/// The item of a snapshot file; none if it is gone.
fn snapshot(source: &JournalSource, index: u64) -> Result<Option<Dumped>, InspectError> {
    let file = source.directory.snapshot_path(index);
    let Some(bytes) = segments::bytes_of(&*source.directory.files, &file)? else { return Ok(None) };
    let checked = snapshots::check(&source.directory, index)
        .and_then(|_| snapshots::head(&source.directory, index));
    let epoch = match checked {
        Ok(head) => Ok(head.epoch),
        // The publisher truncates a file before it removes it.
        Err(SnapshotFileError::Damaged { .. })
            if segments::bytes_of(&*source.directory.files, &file)?.is_none() =>
        {
            return Ok(None);
        }
        Err(SnapshotFileError::Damaged { offset, why, .. }) => Err((offset, why)),
        Err(SnapshotFileError::OtherFormat { .. }) => Err((0, "it is of another format")),
        Err(SnapshotFileError::Foreign { .. }) => Err((0, "it belongs to another journal")),
        Err(SnapshotFileError::Io { what, file, error }) => {
            return Err(InspectError::Io { what, file, error });
        }
    };
    Ok(Some(Dumped::Snapshot { file, index, bytes, epoch }))
}
