//! The records of a journal, one by one: also of one that no publisher starts on any more, and of a
//! single file of it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_protocol::{PublisherId, WireError};

use super::super::files::Files;
use super::super::snapshots::{self, SnapshotFileError};
use super::segments::{self, BadHeader, SegmentFile};
use super::source::{Source, identity_of};
use super::{InspectError, disk, name_of};
use crate::Now;
use crate::command::Command;
use crate::journal::compaction::compacted::{self, CarriedPart};
use crate::journal::wal::format::SEGMENT_HEADER_BYTES;
use crate::journal::wal::record::{FLAG_COMPACTED, FLAG_FIRST};
use crate::journal::wal::walk::{Record, Walk};

/// Which records are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DumpOptions {
    /// The first command, by its index. By default the first that there is.
    pub from: u64,
    /// The last command, by its index; it is wanted, too. By default the last that there is.
    pub to: u64,
}

impl Default for DumpOptions {
    fn default() -> DumpOptions {
        DumpOptions { from: 0, to: u64::MAX }
    }
}

/// Something that a journal holds, or that it should hold.
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
        /// The epoch of the last start that it reflects; or where it is damaged, and how.
        epoch: Result<u64, (u64, &'static str)>,
    },
    /// A record as it was logged.
    Record {
        /// Its file.
        file: PathBuf,
        /// Where it stands.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Its index.
        index: u64,
        /// When it was logged.
        now: Now,
        /// Its kind.
        kind: u8,
        /// Whether all before it was durable when it was written.
        begins_commit: bool,
        /// What it says; or why this program cannot read it.
        command: Box<Result<Command, WireError>>,
    },
    /// What was compacted of a record.
    Carried {
        /// Its file.
        file: PathBuf,
        /// Where it stands.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The command that these are parts of.
        index: u64,
        /// When that was logged.
        now: Now,
        /// The parts; none when they do not fit together.
        parts: Option<Vec<CarriedPart>>,
    },
    /// Bytes that are no record. What comes next is the next whole record after them.
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

/// Gives what a journal holds, piece by piece: snapshots, then records in order. Blocks the thread
/// while it reads.
pub struct Dump {
    files: Arc<dyn Files>,
    journal: PublisherId,
    options: DumpOptions,
    snapshots: VecDeque<Dumped>,
    pending: VecDeque<DumpFile>,
    cursor: Option<FileCursor>,
}

/// A file that is still to be read.
struct DumpFile {
    path: PathBuf,
    /// Where its records' checksums begin.
    seed: u32,
    /// Where its first record stands.
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
    /// The last command that was given.
    last: u64,
}

impl Dump {
    /// Of the journal in a directory, which may be in use; or of one file that holds records, also
    /// one that was set aside.
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
        let source = Source::open(files, path)?;
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

    /// A segment, a compacted file, or the end of a segment that was set aside: its name says which.
    fn of_file(
        files: &Arc<dyn Files>,
        path: &Path,
        (sequence, is_compacted, is_part): (u64, bool, bool),
        options: DumpOptions,
    ) -> Result<Dump, InspectError> {
        // Beside the directory of the file is the file that says whose records these are.
        let dir = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        let dir = if dir.as_os_str().is_empty() { Path::new("..") } else { dir };
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
            // A file that was taken out of its directory says itself whose it is.
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

    /// Whose records these are.
    pub fn journal(&self) -> PublisherId {
        self.journal
    }

    /// What comes next; none at the end.
    #[allow(clippy::should_implement_trait, reason = "an iterator would give errors for ever")]
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
            let gone = "it was removed while it was read; what it said is needed no more";
            return Err(io()(std::io::Error::new(std::io::ErrorKind::NotFound, gone)));
        }
        if skipped > 0 {
            let (file, offset) = (self.path.clone(), self.at);
            self.at += skipped;
            let why = match record {
                Some(_) => "no record; the next whole one follows",
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
            return Dumped::Carried { file, offset, bytes, index, now, parts };
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

/// The sequence in the name of a file that holds records, whether it is a compacted one, and whether
/// it is the end of one that was set aside: `0000000007.seg`, `901-0000000007.seg`,
/// `901-0000000007-from-8192.part`, and the same with a number after them.
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

/// What a snapshot file comes to; none when it is gone.
fn snapshot(source: &Source, index: u64) -> Result<Option<Dumped>, InspectError> {
    let file = source.directory.snapshot_path(index);
    let Some(bytes) = segments::bytes_of(&*source.directory.files, &file)? else { return Ok(None) };
    let checked = snapshots::check(&source.directory, index)
        .and_then(|_| snapshots::head(&source.directory, index));
    let epoch = match checked {
        Ok(head) => Ok(head.epoch),
        // Whoever has it in use shortens it before it removes it.
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
