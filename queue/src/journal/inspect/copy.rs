//! Copies a journal, also one that is in use: a backup. A publisher started on the copy has another
//! id.
//!
//! ```text
//! pin ─▶ read the commit watermark ─▶ choose a snapshot ─▶ copy its files ─▶ copy the later log ─▶
//! copy the snapshot ─▶ write the commit watermark ─▶ write `publisher`, last
//! ```
//! Until the last step no publisher can start on the copy: a directory with records and without
//! `publisher` is refused.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_protocol::PublisherId;

use super::super::SEGMENT_BYTES;
use super::super::files::{Files, JournalFile, LOCK_FILE, LockError, UNREADABLE, is_unreadable};
use super::super::snapshots::{self, Checked, SnapshotFileError};
use super::findings::{Effect, Findings};
use super::segments::{self, SegmentFile};
use super::source::JournalSource;
use super::{CHUNK_BYTES, Finding, InspectError, Progress, disk};
use crate::journal::files::directory::{Directory, SEGMENTS_DIR};
use crate::journal::files::identity::{self, IDENTITY_FILE, Identity};
use crate::journal::files::pin::Pin;
use crate::journal::wal::commit_watermark::{CommitWatermark, WATERMARK_FILE};
use crate::journal::wal::format::SEGMENT_HEADER_BYTES;
use crate::journal::wal::locations::{Run, RunRecords};
use crate::journal::wal::record::NoRecord;
use crate::journal::wal::walk::Walk;

/// How often planning is retried if a file disappears between listing and reading.
const TRIES_MAX: usize = 5;
/// Bytes of the copy between two syncs: a commit on the same disk waits for no more than these.
const SYNC_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes copied between two checks of the source disk's free space.
const ROOM_EVERY: u64 = 16 * 1024 * 1024;

/// How many losses a copy counts, so that it uses no epoch of the original: until more are accepted
/// there after the copy.
const LOSSES_OF_A_COPY: u64 = 16;

/// A finished copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copied {
    /// The id of the journal.
    pub journal: PublisherId,
    /// The id of a publisher that is started on the copy.
    pub publisher: PublisherId,
    /// The last command in it.
    pub last_index: u64,
    /// The last command of the snapshot in it; none without one.
    pub snapshot: Option<u64>,
    /// Files of records and snapshots.
    pub files: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Damage in the source, which is copied unchanged.
    pub findings: Vec<Finding>,
    /// How much more there is that is not listed.
    pub more_findings: u64,
}

/// Copies the journal in `dir`, which may be in use, into `dest`, which must be missing or empty.
/// `publisher` is a random id for a publisher that is started on the copy. The copy has everything
/// that was acknowledged before the call. Blocks while it copies. After an error no publisher can
/// start on `dest`.
pub fn copy(
    dir: &Path,
    dest: &Path,
    publisher: PublisherId,
    progress: &mut Progress<'_>,
) -> Result<Copied, InspectError> {
    copy_on(&disk(), dir, dest, publisher, progress)
}

pub(crate) fn copy_on(
    files: &Arc<dyn Files>,
    dir: &Path,
    dest: &Path,
    publisher: PublisherId,
    progress: &mut Progress<'_>,
) -> Result<Copied, InspectError> {
    let source = JournalSource::open(files, dir)?;
    source.check_room()?;
    let identity = Identity { publisher, ..source.identity }
        .after_losses(LOSSES_OF_A_COPY)
        .ok_or_else(|| InspectError::TooManyLosses { file: dir.join(IDENTITY_FILE) })?;
    let target = CopyTarget::make(files, dest, source.journal())?;
    let pin = pin(&**files, dir)?;
    let copied = copy_pinned(&source, &target, publisher, progress);
    // Without a valid pin files may have been removed, which explains any error.
    if let Some(pin) = &pin
        && !pin.is_valid().map_err(InspectError::io("pinning", dir))?
    {
        return Err(source.no_space()?);
    }
    let copied = copied?;
    drop(pin);
    target.finish(copied.last_index, identity)?;
    Ok(copied)
}

/// Copies everything but the commit watermark and the identity.
fn copy_pinned(
    source: &JournalSource,
    target: &CopyTarget,
    publisher: PublisherId,
    progress: &mut Progress<'_>,
) -> Result<Copied, InspectError> {
    let mut tries = 0;
    let plan = loop {
        tries += 1;
        match CopyPlan::of(source) {
            // A start removes obsolete files, even while they are read.
            Err(error) if error.is_not_found() && tries < TRIES_MAX => {}
            planned => break planned?,
        }
    };
    let mut copier = Copier {
        source,
        target,
        findings: Findings::default(),
        files: 0,
        bytes: 0,
        total: plan.bytes(),
        progress,
    };
    let last_index = copier.copy_all(&plan)?;
    let Copier { findings, files, bytes, .. } = copier;
    Ok(Copied {
        journal: source.journal(),
        publisher,
        last_index,
        snapshot: plan.base.map(|base| base.header.index),
        files,
        bytes,
        findings: findings.listed,
        more_findings: findings.more,
    })
}

/// Whether the copy has everything that was committed.
fn is_complete(watermark: u64, last: u64, file: &Path, offset: u64) -> Result<(), InspectError> {
    if watermark <= last {
        return Ok(());
    }
    let why = "the commit watermark shows that more commands were committed";
    Err(InspectError::Damaged { file: file.to_owned(), offset, index: last + 1, why })
}

/// Prevents the removal of the source's files.
fn pin(files: &dyn Files, dir: &Path) -> Result<Option<Pin>, InspectError> {
    match Pin::to_read(files, dir) {
        Ok(pin) => Ok(Some(pin)),
        // On a read-only file system nobody can delete files either.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(None),
        Err(error) => Err(InspectError::io("pinning", dir)(error)),
    }
}

/// The files to copy.
struct CopyPlan {
    /// The last command known to be committed.
    watermark: u64,
    base: Option<Checked>,
    /// Files that the snapshot names, with their runs; then those with commands after it.
    segments: Vec<PlannedSegment>,
}

struct PlannedSegment {
    segment: SegmentFile,
    /// The runs that the snapshot names in it: in a compacted file, one for each source segment.
    runs: Vec<Run>,
    /// The offset of the commands after the snapshot.
    log_from: Option<u64>,
}

impl CopyPlan {
    fn of(source: &JournalSource) -> Result<CopyPlan, InspectError> {
        let directory = &source.directory;
        // First: everything found afterwards reaches at least as far.
        let watermark = source.watermark()?.ok_or_else(|| InspectError::Damaged {
            file: directory.dir.join(WATERMARK_FILE),
            offset: 0,
            index: 0,
            why: "without the commit watermark it is unknown how much was committed",
        })?;
        let listed = segments::list(directory)?;
        let mut base = None;
        let mut bad = None;
        for index in source.snapshots()? {
            match snapshots::check(directory, index) {
                Ok(checked) => {
                    base = Some(checked);
                    break;
                }
                Err(error) => bad = Some(refused(error, index)?),
            }
        }
        let begins = listed.iter().any(|segment| segment.first_index() == Some(1));
        if let (None, Some(bad), false) = (&base, bad, begins) {
            return Err(bad);
        }
        let index = base.as_ref().map_or(0, |base| base.header.index);
        let runs = base.as_ref().map(|base| base.locations.runs().to_vec());
        let mut named = runs.unwrap_or_default();
        let mut planned = Vec::new();
        for segment in listed {
            let is_of = |run: &Run| {
                run.sequence == segment.sequence && run.is_compacted() == segment.is_compacted
            };
            for run in named.iter().filter(|run| is_of(run)) {
                segment.prove_by(run, directory)?;
            }
            let resume = base.as_ref().map(|base| base.resume);
            let resumed =
                resume.filter(|at| at.sequence == segment.sequence && !segment.is_compacted);
            let log_from = match resumed {
                Some(resume) => segment.known_header().map(|_| resume.offset),
                None => segment
                    .first_index()
                    .filter(|&first| first > index)
                    .map(|_| SEGMENT_HEADER_BYTES as u64),
            };
            let is_known = segment.known_header().is_some();
            let runs: Vec<Run> = named.extract_if(.., |run| is_known && is_of(run)).collect();
            if !runs.is_empty() || log_from.is_some() {
                planned.push(PlannedSegment { segment, runs, log_from });
            }
        }
        // Files without log to copy come first; the log is in order.
        planned.sort_by_key(|planned| planned.log_from.is_some());
        if let Some(run) = named.first() {
            return Err(InspectError::Damaged {
                file: directory.path_of(run.sequence, run.is_compacted()),
                offset: 0,
                index: run.first,
                why: "a snapshot needs the file",
            });
        }
        Ok(CopyPlan { watermark, base, segments: planned })
    }

    fn base_index(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.header.index)
    }

    /// Approximate bytes to read.
    fn bytes(&self) -> u64 {
        let segments: u64 = self.segments.iter().map(|planned| planned.segment.bytes).sum();
        segments + self.base.as_ref().map_or(0, |base| base.bytes)
    }
}

/// Copies the planned files.
struct Copier<'a, 'p> {
    source: &'a JournalSource,
    target: &'a CopyTarget,
    findings: Findings,
    files: u64,
    bytes: u64,
    total: u64,
    progress: &'a mut Progress<'p>,
}

impl Copier<'_, '_> {
    /// Copies everything; returns the last copied command.
    fn copy_all(&mut self, plan: &CopyPlan) -> Result<u64, InspectError> {
        let mut last = plan.base_index();
        let mut log = plan.segments.iter().filter(|planned| planned.log_from.is_some()).count();
        for planned in &plan.segments {
            log -= usize::from(planned.log_from.is_some());
            self.source.check_room()?;
            self.copy_segment(planned, &mut last, log == 0, plan.watermark)?;
        }
        // Without a segment of the log nothing has shown it: it may be missing.
        is_complete(plan.watermark, last, &self.source.directory.segments_dir(), 0)?;
        // A directory with segments but without the identity file is never taken for a new one;
        // with a snapshot alone it might be.
        let dir = self.target.directory.segments_dir();
        let synced = self.target.directory.files.sync_dir(&dir);
        synced.map_err(InspectError::io("syncing", &dir))?;
        if let Some(base) = &plan.base {
            let from = self.source.directory.snapshot_path(base.header.index);
            let to = self.target.directory.snapshot_path(base.header.index);
            self.copy_snapshot(&from, &to, base.bytes)?;
            // Verify the state: opening the copy checks nothing else again.
            snapshots::check(&self.target.directory, base.header.index)
                .map_err(|_| InspectError::NotAsWritten { file: to, offset: 0 })?;
        }
        Ok(last)
    }

    fn copy_snapshot(&mut self, from: &Path, to: &Path, bytes: u64) -> Result<(), InspectError> {
        let files = &self.source.directory.files;
        let file = files.open(from).map_err(InspectError::io("opening", from))?;
        let mut output = CopiedFile::make(self.target, to.to_owned())?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < bytes {
            let n = chunk.len().min((bytes - at) as usize);
            let n = file.read_at(&mut chunk[..n], at).map_err(InspectError::io("reading", from))?;
            if n == 0 {
                break;
            }
            output.write(at, &chunk[..n])?;
            at += n as u64;
            self.add_progress(n)?;
        }
        file.forget_cached().map_err(InspectError::io("reading", from))?;
        self.finish_file(output)
    }

    /// Copies one file with records. `is_last` marks the segment in which the log continues.
    fn copy_segment(
        &mut self,
        planned: &PlannedSegment,
        last: &mut u64,
        is_last: bool,
        watermark: u64,
    ) -> Result<(), InspectError> {
        let PlannedSegment { segment, runs, log_from } = planned;
        let is_later = segment.first_index().is_some_and(|first| first > *last + 1);
        if log_from.is_some() && is_later {
            let why = "commands before this segment are missing";
            let file = segment.path.clone();
            return Err(InspectError::Damaged { file, offset: 0, index: *last + 1, why });
        }
        let io = || InspectError::io("reading", &segment.path);
        let file = segment.open(&*self.source.directory.files)?;
        let mut walk = Walk::once(file, segment.seed(self.source.journal())).map_err(io())?;
        let target = &self.target.directory;
        let to = target.path_of(segment.sequence, segment.is_compacted);
        let mut output = CopiedFile::make(self.target, to)?;
        if let Some(header) = segment.known_header() {
            output.write(0, &header.encode())?;
        }
        for run in runs {
            self.copy_run(segment, run, &mut walk, &mut output)?;
        }
        if segment.is_compacted {
            // It was finished: it never changes.
            self.copy_span(
                segment,
                &mut walk,
                SEGMENT_HEADER_BYTES as u64,
                segment.bytes,
                &mut output,
            )?;
        }
        if let Some(from) = *log_from {
            let is_unreadable = self.copy_log(segment, from, &mut walk, &mut output, last)?;
            if is_last {
                let offset = output.end.max(from);
                if is_unreadable {
                    let why = UNREADABLE;
                    let file = segment.path.clone();
                    return Err(InspectError::Damaged { file, offset, index: *last + 1, why });
                }
                is_complete(watermark, *last, &segment.path, offset)?;
                // The log continues in it: allocate its length.
                output.allocate(segment.bytes)?;
            }
        }
        walk.forget().map_err(io())?;
        self.finish_file(output)
    }

    /// Copies a run that a snapshot names. A damaged record is copied unchanged: it buries its job
    /// in the copy as in the source.
    fn copy_run(
        &mut self,
        segment: &SegmentFile,
        run: &Run,
        walk: &mut Walk,
        output: &mut CopiedFile,
    ) -> Result<(), InspectError> {
        let io = || InspectError::io("reading", &segment.path);
        match &run.records {
            RunRecords::Log { offsets, end } => {
                for (position, &offset) in offsets.iter().enumerate() {
                    let index = run.first + position as u64;
                    let from = u64::from(offset);
                    let to = u64::from(*offsets.get(position + 1).unwrap_or(end));
                    let good = walk.record(from).map_err(io())?;
                    if !good.is_ok_and(|record| record.header.index == index) {
                        let what = "a record is not what was written";
                        self.findings.add(Effect::Buries, &segment.path, from, Some(index), what);
                    }
                    self.copy_span(segment, walk, from, to, output)?;
                }
            }
            RunRecords::Compacted(records) => {
                for known in records {
                    let from = u64::from(known.offset);
                    let good = walk.record(from).map_err(io())?;
                    if !good.is_ok_and(|record| record.header.index == known.index) {
                        let what = "a compacted record is not what was written";
                        let index = Some(known.index);
                        self.findings.add(Effect::Buries, &segment.path, from, index, what);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies consecutive valid records from `from` on. Later records were not acknowledged when
    /// the copy began, unless the commit watermark or a later segment proves it. Returns whether
    /// the disk cannot read what follows.
    fn copy_log(
        &mut self,
        segment: &SegmentFile,
        from: u64,
        walk: &mut Walk,
        output: &mut CopiedFile,
        last: &mut u64,
    ) -> Result<bool, InspectError> {
        let mut at = from;
        loop {
            match walk.record(at).map_err(InspectError::io("reading", &segment.path))? {
                Ok(record) if record.header.index == *last + 1 => {
                    output.write(at, &record.bytes)?;
                    at = record.end();
                    *last += 1;
                    self.add_progress(record.bytes.len())?;
                }
                none => return Ok(none.is_err_and(|none| none == NoRecord::Unreadable)),
            }
        }
    }

    fn copy_span(
        &mut self,
        segment: &SegmentFile,
        walk: &mut Walk,
        from: u64,
        to: u64,
        output: &mut CopiedFile,
    ) -> Result<(), InspectError> {
        let mut at = from;
        while at < to {
            let n = CHUNK_BYTES.min((to - at) as usize);
            let bytes = walk.span(at, n).map_err(InspectError::io("reading", &segment.path))?;
            if bytes.is_empty() {
                break;
            }
            output.write(at, &bytes)?;
            at += bytes.len() as u64;
            self.add_progress(bytes.len())?;
        }
        Ok(())
    }

    fn add_progress(&mut self, bytes: usize) -> Result<(), InspectError> {
        let before = self.bytes;
        self.bytes += bytes as u64;
        (self.progress)(self.bytes, self.total);
        // A snapshot may be longer than all segments: the source removes nothing while it is
        // copied.
        match before / ROOM_EVERY < self.bytes / ROOM_EVERY {
            true => self.source.check_room(),
            false => Ok(()),
        }
    }

    fn finish_file(&mut self, output: CopiedFile) -> Result<(), InspectError> {
        self.files += 1;
        output.finish()
    }
}

/// A file of the copy.
struct CopiedFile {
    path: PathBuf,
    file: Arc<dyn JournalFile>,
    /// The end of the last byte.
    end: u64,
    unsynced: u64,
}

impl CopiedFile {
    fn make(target: &CopyTarget, path: PathBuf) -> Result<CopiedFile, InspectError> {
        let made = target.directory.files.create(&path);
        let file = made.map_err(InspectError::io("making", &path))?;
        Ok(CopiedFile { path, file, end: 0, unsynced: 0 })
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), InspectError> {
        let io = || InspectError::io("writing", &self.path);
        self.file.write_at(bytes, at).map_err(io())?;
        self.end = self.end.max(at + bytes.len() as u64);
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data().map_err(io())?;
        }
        Ok(())
    }

    fn allocate(&mut self, bytes: u64) -> Result<(), InspectError> {
        self.file.allocate(bytes).map_err(InspectError::io("making room in", &self.path))
    }

    fn finish(self) -> Result<(), InspectError> {
        let io = || InspectError::io("syncing", &self.path);
        self.file.sync_data().map_err(io())?;
        self.file.forget_cached().map_err(io())
    }
}

/// A file of an unfinished copy: no publisher starts on a directory with foreign files.
const UNFINISHED_FILE: &str = "unfinished-copy";

/// The destination. No publisher can start there during the copy, nor on an unfinished copy.
struct CopyTarget {
    directory: Directory,
    _lock: Box<dyn Send + Sync>,
}

impl CopyTarget {
    fn make(
        files: &Arc<dyn Files>,
        dest: &Path,
        journal: PublisherId,
    ) -> Result<CopyTarget, InspectError> {
        let list = || match files.list(dest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(InspectError::io("listing", dest)),
        };
        let not_empty = || InspectError::NotEmpty { dir: dest.to_owned() };
        if !list()?.is_empty() {
            return Err(not_empty());
        }
        files.create_dir(dest).map_err(InspectError::io("making", dest))?;
        let lock = files.lock(dest).map_err(|error| match error {
            LockError::InUse(holder) => InspectError::InUse { dir: dest.to_owned(), holder },
            LockError::Io(error) => InspectError::io("locking", dest)(error),
        })?;
        // Another process may have used the directory meanwhile.
        if list()?.iter().any(|name| name != LOCK_FILE) {
            return Err(not_empty());
        }
        let path = dest.join(UNFINISHED_FILE);
        files.create(&path).map_err(InspectError::io("making", &path))?;
        files.sync_dir(dest).map_err(InspectError::io("syncing", dest))?;
        let directory = Directory::new(Arc::clone(files), dest.to_owned(), journal, SEGMENT_BYTES);
        for dir in [dest.join(SEGMENTS_DIR), directory.snapshots_dir()] {
            files.create_dir(&dir).map_err(InspectError::io("making", &dir))?;
        }
        Ok(CopyTarget { directory, _lock: lock })
    }

    /// Syncs all names, then writes the commit watermark, and last the identity file that makes it
    /// a journal.
    fn finish(&self, last_index: u64, identity: Identity) -> Result<(), InspectError> {
        let Directory { files, dir, journal, .. } = &self.directory;
        let snapshots = self.directory.snapshots_dir();
        files.sync_dir(&snapshots).map_err(InspectError::io("syncing", &snapshots))?;
        let path = dir.join(WATERMARK_FILE);
        let io = || InspectError::io("making", &path);
        let file = files.create(&path).map_err(io())?;
        let nothing = CommitWatermark::read(&*file, *journal).map_err(io())?;
        let watermark = CommitWatermark::new(file, path.clone(), *journal, nothing);
        watermark.reset(last_index).map_err(io())?;
        files.sync_dir(dir).map_err(InspectError::io("syncing", dir))?;
        identity::write(&**files, dir, identity).map_err(|error| match error {
            identity::IdentityError::Io(file, error) => {
                InspectError::Io { what: "making", file, error }
            }
            identity::IdentityError::Damaged(file)
            | identity::IdentityError::OtherFormat(file, _) => InspectError::NoIdentity { file },
        })?;
        // From here on it is a journal, with this file or without.
        let path = dir.join(UNFINISHED_FILE);
        files.remove(&path).map_err(InspectError::io("removing", &path))?;
        files.sync_dir(dir).map_err(InspectError::io("syncing", dir))
    }
}

/// Why a snapshot cannot be copied; fails at once if the disk fails otherwise than in reading a
/// sector.
fn refused(error: SnapshotFileError, index: u64) -> Result<InspectError, InspectError> {
    Ok(match error {
        SnapshotFileError::Damaged { file, offset, why } => {
            InspectError::Damaged { file, offset, index, why }
        }
        SnapshotFileError::OtherFormat { file, version } => {
            InspectError::OtherFormat { file, version }
        }
        SnapshotFileError::Foreign { file, .. } => {
            let why = "it belongs to another journal";
            InspectError::Damaged { file, offset: 0, index, why }
        }
        SnapshotFileError::Io { file, error, .. } if is_unreadable(&error) => {
            InspectError::Damaged { file, offset: 0, index, why: UNREADABLE }
        }
        SnapshotFileError::Io { what, file, error } => {
            return Err(InspectError::Io { what, file, error });
        }
    })
}
