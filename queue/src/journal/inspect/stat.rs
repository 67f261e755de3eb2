//! Statistics of a journal from the headers of its files: quick, whatever its size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_protocol::PublisherId;

use super::super::files::Files;
use super::super::snapshots::{self, SnapshotHead};
use super::source::JournalSource;
use super::{InspectError, SegmentKind, disk, segments};
use crate::journal::files::directory::LOST_DIR;
use crate::journal::space::ballast::BALLAST_FILE;
use crate::journal::wal::format::FORMAT_VERSION;
use crate::journal::wal::locations::Locations;

/// Statistics of a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalStat {
    /// The format of the directory.
    pub format: u16,
    /// The id of the journal, in its checksums.
    pub journal: PublisherId,
    /// The publisher's id; in a copy it differs from the journal's.
    pub publisher: PublisherId,
    /// The last command known to be committed; none without a valid commit watermark.
    pub commit_watermark: Option<u64>,
    /// The process that has the directory open, if any: then values may change while they are read.
    pub holder: Option<String>,
    /// The newest first.
    pub snapshots: Vec<SnapshotStat>,
    /// Log segments by their first command, then the others.
    pub segments: Vec<SegmentStat>,
    /// Bytes of the ballast: space reserved for compaction.
    pub ballast_bytes: u64,
    /// Files that `--accept-loss` has set aside, and their bytes.
    pub lost: (u64, u64),
}

/// A snapshot, from its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotStat {
    /// The last command that it reflects.
    pub index: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// The epoch of the last start that it reflects; none if its header is damaged.
    pub epoch: Option<u64>,
}

/// A file for records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentStat {
    /// Its number.
    pub sequence: u64,
    /// Its kind.
    pub kind: SegmentKind,
    /// Bytes of its file.
    pub bytes: u64,
    /// Whether its header is undamaged and this journal's.
    pub is_good: bool,
    /// Its first command, if the header or a snapshot names it.
    pub first_index: Option<u64>,
    /// Its last command, if a later header or the snapshot names it.
    pub last_index: Option<u64>,
}

impl JournalStat {
    /// Bytes of segments, snapshots and ballast.
    pub fn bytes(&self) -> u64 {
        let segments: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let snapshots: u64 = self.snapshots.iter().map(|snapshot| snapshot.bytes).sum();
        segments + snapshots + self.ballast_bytes
    }
}

/// Statistics of the journal in `dir`, which may be in use. Reads only the beginnings of its files.
/// Blocks briefly.
pub fn stat(dir: &Path) -> Result<JournalStat, InspectError> {
    stat_on(&disk(), dir)
}

pub(in crate::journal) fn stat_on(
    files: &Arc<dyn Files>,
    dir: &Path,
) -> Result<JournalStat, InspectError> {
    let source = JournalSource::open(files, dir)?;
    let directory = &source.directory;
    let commit_watermark = source.watermark()?;
    let (mut snapshots, mut covered) = (Vec::new(), None);
    for index in source.snapshots()? {
        let path = directory.snapshot_path(index);
        // In use, a file may disappear between listing and reading.
        let Some(bytes) = segments::bytes_of(&*directory.files, &path)? else { continue };
        let head = snapshots::head(directory, index).ok();
        snapshots.push(SnapshotStat { index, bytes, epoch: head.as_ref().map(|head| head.epoch) });
        if covered.is_none() {
            covered = head.map(|SnapshotHead { locations, .. }| (index, locations));
        }
    }
    let (covered, locations) = covered.unwrap_or_default();
    let segments = segments(&source, covered, &spans(&locations))?;
    let ballast = segments::bytes_of(&*directory.files, &dir.join(BALLAST_FILE))?;
    Ok(JournalStat {
        format: FORMAT_VERSION,
        journal: source.journal(),
        publisher: source.identity.publisher,
        commit_watermark,
        snapshots,
        segments,
        ballast_bytes: ballast.unwrap_or(0),
        lost: lost(&source, dir.join(LOST_DIR))?,
        holder: source.holder,
    })
}

/// The first and last command that a snapshot names in each file.
fn spans(locations: &Locations) -> BTreeMap<u64, (u64, u64)> {
    let mut spans = BTreeMap::new();
    for run in locations.runs() {
        let span = spans.entry(run.sequence).or_insert((run.first, run.last));
        *span = (span.0.min(run.first), span.1.max(run.last));
    }
    spans
}

/// `covered` is the last command of the snapshot, `named` its commands in each file.
fn segments(
    source: &JournalSource,
    covered: u64,
    named: &BTreeMap<u64, (u64, u64)>,
) -> Result<Vec<SegmentStat>, InspectError> {
    let files = match segments::list(&source.directory) {
        // A segment disappeared between listing and reading: list again.
        Err(error) if error.is_not_found() => segments::list(&source.directory)?,
        listed => listed?,
    };
    let mut segments = Vec::with_capacity(files.len());
    for (position, file) in files.iter().enumerate() {
        let known = named.get(&file.sequence);
        let (first_index, last_index) = match file.kind() {
            SegmentKind::Log => {
                let next = files.get(position + 1).and_then(segments::SegmentFile::first_index);
                let first = file.first_index();
                // A removed segment may have been between the two: then the snapshot knows the last
                // command, unless it was taken halfway through this segment.
                let known = known.map(|known| known.1).filter(|&last| last < covered);
                (first, known.or(next.map(|next| next.saturating_sub(1))))
            }
            SegmentKind::Compacted => (known.map(|known| known.0), known.map(|known| known.1)),
            SegmentKind::Unused => (None, None),
        };
        segments.push(SegmentStat {
            sequence: file.sequence,
            kind: file.kind(),
            bytes: file.bytes,
            is_good: file.header.is_ok(),
            first_index,
            last_index,
        });
    }
    Ok(segments)
}

/// Files and bytes of what was set aside.
fn lost(source: &JournalSource, dir: PathBuf) -> Result<(u64, u64), InspectError> {
    let files = &source.directory.files;
    let names = match files.list(&dir) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, 0)),
        Err(error) => return Err(InspectError::io("listing", &dir)(error)),
    };
    let mut bytes = 0;
    for name in &names {
        bytes += segments::bytes_of(&**files, &dir.join(name))?.unwrap_or(0);
    }
    Ok((names.len() as u64, bytes))
}
