//! Verifies a journal: reads everything in it, and reports how a start would handle damage.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::super::files::{Files, UNREADABLE, is_unreadable};
use super::super::snapshots::{self, Checked, SnapshotFileError};
use super::findings::{Effect, Findings};
use super::segments::{BadHeader, SegmentFile};
use super::source::JournalSource;
use super::{Finding, InspectError, Progress, disk, segments};
use crate::command::Command;
use crate::journal::compaction::compacted;
use crate::journal::files::directory::Directory;
use crate::journal::wal::commit_watermark::WATERMARK_FILE;
use crate::journal::wal::format::SEGMENT_HEADER_BYTES;
use crate::journal::wal::locations::{Locations, Run, RunRecords};
use crate::journal::wal::record::NoRecord;
use crate::journal::wal::walk::{Record, Walk};

/// The result of verifying a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The last command that a start would continue after, up to the first damage.
    pub last_index: u64,
    /// The last command known to be committed; none without a valid commit watermark.
    pub commit_watermark: Option<u64>,
    /// The last command of the snapshot that a start would begin with; none without one.
    pub snapshot: Option<u64>,
    /// Valid records read.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// All damage, in the order of discovery.
    pub findings: Vec<Finding>,
    /// Findings beyond the listed ones.
    pub more_findings: u64,
    /// Whether a start would refuse.
    pub is_refused: bool,
}

impl Verified {
    /// Whether any acknowledged command or any file is damaged. A torn tail is no damage.
    pub fn is_damaged(&self) -> bool {
        self.findings.iter().any(|finding| finding.effect != Effect::ErasesTail)
    }
}

/// Reads everything in the journal of `dir`, which no process may have open, and reports damage as
/// findings, not as an error. Writes nothing. Blocks while it reads.
pub fn verify(dir: &Path, progress: &mut Progress<'_>) -> Result<Verified, InspectError> {
    let decodes = |kind, body| Command::decode(kind, body).is_ok();
    verify_on(&disk(), dir, &decodes, progress)
}

pub(in crate::journal) fn verify_on(
    files: &Arc<dyn Files>,
    dir: &Path,
    decodes: &dyn Fn(u8, Bytes) -> bool,
    progress: &mut Progress<'_>,
) -> Result<Verified, InspectError> {
    let source = JournalSource::open(files, dir)?;
    if let Some(holder) = source.holder {
        return Err(InspectError::InUse { dir: dir.to_owned(), holder });
    }
    let commit_watermark = source.watermark()?;
    let segments = segments::list(&source.directory)?;
    let snapshots = source.snapshots()?;
    let mut total: u64 = segments.iter().map(|file| file.bytes).sum();
    for &index in &snapshots {
        let path = source.directory.snapshot_path(index);
        total += segments::bytes_of(&*source.directory.files, &path)?.unwrap_or(0);
    }
    let mut verifier = Verifier {
        directory: &source.directory,
        segments: &segments,
        decodes,
        findings: Findings::default(),
        records: 0,
        bytes: 0,
        total,
        progress,
    };
    if commit_watermark.is_none() {
        let what = "without the commit watermark it is unknown how much was committed";
        verifier.findings.add(Effect::Refuses, dir.join(WATERMARK_FILE), 0, None, what);
    }
    let base = verifier.base(&snapshots)?;
    verifier.headers();
    for run in base.locations.runs() {
        verifier.run(run)?;
    }
    let known = commit_watermark.unwrap_or(0).max(snapshots.first().copied().unwrap_or(0));
    let last_index = verifier.log(&base, known)?;
    let Verifier { findings, records, bytes, .. } = verifier;

    let holder = source.directory.files.holder(dir).map_err(InspectError::io("inspecting", dir))?;
    if holder.is_some() || source.watermark()? != commit_watermark {
        let what = match holder {
            Some(holder) => format!("{holder} has opened it"),
            None => "somebody has written to it".to_owned(),
        };
        return Err(InspectError::Changed { dir: dir.to_owned(), what });
    }
    Ok(Verified {
        last_index,
        commit_watermark,
        snapshot: base.resume.map(|_| base.index),
        records,
        bytes,
        is_refused: findings.refused,
        findings: findings.listed,
        more_findings: findings.more,
    })
}

/// The base of replay: a snapshot, or nothing.
#[derive(Default)]
struct ReplayBase {
    index: u64,
    resume: Option<snapshots::Resume>,
    locations: Locations,
}

/// How far the log was read.
struct LogReach {
    /// The last command.
    last: u64,
    /// The last command before the first damage: a start would continue after it.
    undamaged: Option<u64>,
}

impl LogReach {
    fn damaged(&mut self) {
        self.undamaged.get_or_insert(self.last);
    }
}

struct Verifier<'a, 'p> {
    directory: &'a Directory,
    segments: &'a [SegmentFile],
    /// Whether a command of that kind can be decoded.
    decodes: &'a dyn Fn(u8, Bytes) -> bool,
    findings: Findings,
    records: u64,
    bytes: u64,
    total: u64,
    progress: &'a mut Progress<'p>,
}

impl Verifier<'_, '_> {
    fn read(&mut self, bytes: u64) {
        self.bytes += bytes;
        (self.progress)(self.bytes, self.total);
    }

    /// Reads every snapshot, and returns the newest complete one. Without one a start replays the
    /// log, if it is complete.
    fn base(&mut self, snapshots: &[u64]) -> Result<ReplayBase, InspectError> {
        let mut base = None;
        let mut bad: Vec<(PathBuf, u64, u64, &'static str)> = Vec::new();
        // A missing log segment is missing for older snapshots too.
        let mut is_lost = false;
        for &index in snapshots {
            let path = self.directory.snapshot_path(index);
            let checked = match snapshots::check(self.directory, index) {
                Ok(checked) => checked,
                Err(error) => {
                    let (file, offset, why) = damage_of(error)?;
                    bad.push((file, offset, index, why));
                    let bytes = segments::bytes_of(&*self.directory.files, &path)?;
                    self.read(bytes.unwrap_or(0));
                    continue;
                }
            };
            let Checked { resume, locations, bytes, .. } = checked;
            self.read(bytes);
            let missing = self.missing(&locations)?;
            if let Some((run, file, why)) = missing {
                is_lost |= base.is_none() && !run.is_compacted();
                // The commands after the snapshot are lost with the resume segment.
                let resume_segment = self.file(resume.sequence, false);
                let is_cut = locations.references(resume.sequence)
                    && resume_segment.is_none_or(|file| file.known_header().is_none());
                bad.push((file, 0, index + u64::from(is_cut), why));
            } else if base.is_none() {
                base = Some(ReplayBase { index, resume: Some(resume), locations });
            }
        }
        let begins = self.segments.iter().any(|file| file.first_index() == Some(1));
        let effect = match !is_lost && (base.is_some() || begins) {
            true => Effect::IgnoresFile,
            false => Effect::Refuses,
        };
        for (file, offset, index, why) in bad {
            self.findings.add(effect, file, offset, Some(index), why);
        }
        Ok(base.unwrap_or_default())
    }

    /// The first run with a missing or damaged file: a log segment before a compacted file.
    fn missing<'l>(
        &self,
        locations: &'l Locations,
    ) -> Result<Option<(&'l Run, PathBuf, &'static str)>, InspectError> {
        // First: any run of a file may prove its header.
        for run in locations.runs() {
            if let Some(file) = self.file(run.sequence, run.is_compacted()) {
                file.prove_by(run, self.directory)?;
            }
        }
        let mut missing = None;
        for run in locations.runs() {
            let found = match self.file(run.sequence, run.is_compacted()) {
                Some(file) if file.known_header().is_some() => continue,
                Some(file) => {
                    let why = "its header is not what was written, and a snapshot needs the file";
                    (run, file.path.clone(), why)
                }
                None => {
                    let file = self.directory.path_of(run.sequence, run.is_compacted());
                    (run, file, "the file is missing, and a snapshot needs it")
                }
            };
            if !run.is_compacted() {
                return Ok(Some(found));
            }
            missing.get_or_insert(found);
        }
        Ok(missing)
    }

    fn file(&self, sequence: u64, compacted: bool) -> Option<&SegmentFile> {
        self.segments
            .iter()
            .find(|file| file.sequence == sequence && file.is_compacted == compacted)
    }

    /// Reports headers that refuse a start, and those that a start rewrites.
    fn headers(&mut self) {
        for file in self.segments {
            let (effect, what) = match file.header {
                Err(BadHeader::OtherFormat(_)) => {
                    (Effect::Refuses, "a program of another format wrote it")
                }
                Err(BadHeader::Foreign(_)) => {
                    (Effect::Refuses, "it belongs to another journal: files of two were mixed")
                }
                Err(BadHeader::Blank | BadHeader::NotAsWritten)
                    if file.known_header().is_some() =>
                {
                    (Effect::Repairs, "its header is not what was written; its records are there")
                }
                _ => continue,
            };
            self.findings.add(effect, &file.path, 0, None, what);
        }
    }

    /// Reads the records that a snapshot names in a file.
    fn run(&mut self, run: &Run) -> Result<(), InspectError> {
        let compacted = matches!(run.records, RunRecords::Compacted(_));
        let Some(file) = self.segments.iter().find(|file| {
            file.sequence == run.sequence
                && file.is_compacted == compacted
                && file.known_header().is_some()
        }) else {
            return Ok(());
        };
        let mut walk = self.walk(file)?;
        let io = || InspectError::io("reading", &file.path);
        match &run.records {
            RunRecords::Log { offsets, end } => {
                for (position, &offset) in offsets.iter().enumerate() {
                    let index = run.first + position as u64;
                    let next = offsets.get(position + 1).unwrap_or(end);
                    match walk.record(u64::from(offset)).map_err(io())? {
                        Ok(record) if record.header.index == index => self.records += 1,
                        _ => {
                            let what = "a record is not what was written";
                            let offset = u64::from(offset);
                            self.findings.add(
                                Effect::Buries,
                                &file.path,
                                offset,
                                Some(index),
                                what,
                            );
                        }
                    }
                    self.read(u64::from(next.saturating_sub(offset)));
                }
            }
            RunRecords::Compacted(records) => {
                for known in records {
                    let offset = u64::from(known.offset);
                    match walk.record(offset).map_err(io())? {
                        Ok(record) if record.header.index == known.index => {
                            self.records += 1;
                            self.read(record.bytes.len() as u64);
                            self.compacted_parts(file, &record);
                        }
                        _ => {
                            let what = "a compacted record is not what was written";
                            let index = Some(known.index);
                            self.findings.add(Effect::Buries, &file.path, offset, index, what);
                        }
                    }
                }
            }
        }
        walk.forget().map_err(io())
    }

    /// Reports parts that were corrupt before compaction.
    fn compacted_parts(&mut self, file: &SegmentFile, record: &Record) {
        let index = Some(record.header.index);
        match compacted::decode(&record.body()) {
            Some(parts) => {
                for _ in parts.iter().filter(|part| part.bytes.is_none()) {
                    let what = "a compacted part was corrupt before compaction";
                    self.findings.add(Effect::Buries, &file.path, record.offset, index, what);
                }
            }
            None => {
                let what = "a compacted record is inconsistent";
                self.findings.add(Effect::Buries, &file.path, record.offset, index, what);
            }
        }
    }

    fn walk(&self, file: &SegmentFile) -> Result<Walk, InspectError> {
        let opened = file.open(&*self.directory.files)?;
        Walk::once(opened, file.seed(self.directory.journal))
            .map_err(InspectError::io("reading", &file.path))
    }

    /// Reads the log from where replay begins; returns the last command before the first damage.
    /// `known` is the last one known to be committed.
    fn log(&mut self, base: &ReplayBase, known: u64) -> Result<u64, InspectError> {
        let resumed = |file: &SegmentFile| {
            base.resume.filter(|resume| resume.sequence == file.sequence && !file.is_compacted)
        };
        let log: Vec<&SegmentFile> = self
            .segments
            .iter()
            .filter(|file| {
                file.first_index()
                    .is_some_and(|first| first > base.index || resumed(file).is_some())
            })
            .collect();
        let unused: Vec<&SegmentFile> = self
            .segments
            .iter()
            .filter(|file| !file.is_compacted && file.first_index().is_none())
            .collect();
        let mut reach = LogReach { last: base.index, undamaged: None };
        // The expected position of the next record.
        let mut end = (self.directory.segments_dir(), 0);
        for (position, file) in log.iter().enumerate() {
            let first = file.first_index().unwrap_or(0);
            if resumed(file).is_none() && first != reach.last + 1 {
                let what = "commands before this segment are missing";
                let index = Some(reach.last + 1);
                reach.damaged();
                self.findings.add(Effect::Refuses, &file.path, 0, index, what);
                reach.last = first.saturating_sub(1);
            }
            let from = resumed(file).map_or(SEGMENT_HEADER_BYTES as u64, |resume| resume.offset);
            let next = log.get(position + 1).and_then(|next| next.first_index());
            end = (file.path.clone(), self.segment(file, from, next, known, &mut reach)?);
        }
        let named: BTreeSet<u64> = base.locations.runs().iter().map(|run| run.sequence).collect();
        // Find commits in segments whose header does not name a first index.
        for file in unused {
            let mut walk = self.walk(file)?;
            let io = || InspectError::io("reading", &file.path);
            let from = SEGMENT_HEADER_BYTES as u64;
            let is_unreadable = matches!(file.header, Err(BadHeader::NotAsWritten))
                && matches!(walk.record(from).map_err(io())?, Err(NoRecord::Unreadable));
            let what = match is_unreadable {
                true => Some(UNREADABLE),
                false => walk
                    .has_later_commit(from, reach.last)
                    .map_err(io())?
                    .then_some("its header is not what was written, and it has a later commit"),
            };
            self.read(file.bytes);
            if let Some(what) = what {
                reach.damaged();
                let index = Some(reach.last + 1);
                self.findings.add(Effect::Refuses, &file.path, 0, index, what);
            } else if matches!(file.header, Err(BadHeader::NotAsWritten))
                && !named.contains(&file.sequence)
            {
                let what = "its header is not what was written: it was begun, and torn";
                self.findings.add(Effect::ErasesTail, &file.path, 0, None, what);
            }
        }
        if known > reach.last && reach.undamaged.is_none() {
            reach.damaged();
            let what = "the commit watermark or a snapshot shows that more commands were committed";
            self.findings.add(Effect::Refuses, end.0, end.1, Some(reach.last + 1), what);
        }
        Ok(reach.undamaged.unwrap_or(reach.last))
    }

    /// Reads one segment of the log from `from` on. `next` is the first command of the following
    /// segment. Returns where its valid records end.
    fn segment(
        &mut self,
        file: &SegmentFile,
        from: u64,
        next: Option<u64>,
        known: u64,
        reach: &mut LogReach,
    ) -> Result<u64, InspectError> {
        let io = || InspectError::io("reading", &file.path);
        let mut walk = self.walk(file)?;
        let mut at = from;
        let end = loop {
            let last = reach.last;
            let bad = match walk.record(at).map_err(io())? {
                Ok(record) if record.header.index == last + 1 => {
                    at = record.end();
                    reach.last += 1;
                    self.command(file, &record);
                    self.read(record.bytes.len() as u64);
                    continue;
                }
                // The next segment continues where this one ends; the rest of this one is not
                // needed.
                _ if next.is_some_and(|next| next <= last + 1) => break at,
                Ok(_) => "a record of another command is here",
                Err(NoRecord::Empty) => "nothing is written here, and more was committed",
                Err(NoRecord::Bad) => "a record is not what was written, and more was committed",
                Err(NoRecord::Unreadable) => UNREADABLE,
            };
            let is_known = next.is_some() || known > last || bad == UNREADABLE;
            if !is_known && !walk.has_later_commit(at, last).map_err(io())? {
                let data_end = walk.end_of_data(at).map_err(io())?;
                if data_end > at {
                    let what = "a torn tail: the end of an unacknowledged commit";
                    self.findings.add(Effect::ErasesTail, &file.path, at, Some(last + 1), what);
                }
                break at;
            }
            reach.damaged();
            self.findings.add(Effect::Refuses, &file.path, at, Some(last + 1), bad);
            // Continue after the damage.
            match walk.next_good(at, last).map_err(io())? {
                Some(found) => {
                    self.read(found.offset - at);
                    (at, reach.last) = (found.offset, found.header.index - 1);
                }
                None => {
                    reach.last = next.map_or(last, |next| next - 1);
                    break at;
                }
            }
        };
        self.read(walk.length().saturating_sub(end));
        walk.forget().map_err(io())?;
        Ok(end)
    }

    fn command(&mut self, file: &SegmentFile, record: &Record) {
        self.records += 1;
        let header = record.header;
        if !(self.decodes)(header.kind, record.body()) {
            let what = "an intact record that this program does not know: a newer one wrote it";
            let (offset, index) = (record.offset, Some(header.index));
            self.findings.add(Effect::Refuses, &file.path, offset, index, what);
        }
    }
}

/// The damage of a snapshot; fails if the disk fails otherwise than in reading a sector.
fn damage_of(error: SnapshotFileError) -> Result<(PathBuf, u64, &'static str), InspectError> {
    match error {
        SnapshotFileError::Damaged { file, offset, why } => Ok((file, offset, why)),
        SnapshotFileError::OtherFormat { file, .. } => {
            Ok((file, 0, "a program of another format wrote it"))
        }
        SnapshotFileError::Foreign { file, .. } => {
            Ok((file, 0, "it belongs to another journal: files of two were mixed"))
        }
        SnapshotFileError::Io { file, error, .. } if is_unreadable(&error) => {
            Ok((file, 0, UNREADABLE))
        }
        SnapshotFileError::Io { what, file, error } => Err(InspectError::Io { what, file, error }),
    }
}
