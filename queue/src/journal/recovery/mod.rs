//! Recovery: restores the newest snapshot, replays the log after it, and handles an incomplete end.
//!
//! ```text
//! find ─▶ choose a snapshot ─▶ restore ─▶ replay ─▶ torn tail: cut off │ damage: refuse, or set
//! aside ─▶ remove what nothing needs
//! ```
//! An invalid record is one of two things. A **torn tail** is the last commit before a power cut,
//! never acknowledged: recovery overwrites it with zeros and reports it. **Damage** is an
//! acknowledged command that the disk has lost: recovery refuses to start. It is damage if the
//! commit watermark or a snapshot proves that the command was committed, or if a later commit
//! exists (each proves that all before it was durable), or a later segment.

mod base;
mod end;
mod found;
mod lost;
mod replay;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use self::base::RecoveryBase;
use self::found::{FoundFiles, FoundSegment};
use self::lost::LostTail;
use self::replay::ReplayResult;
use super::JournalOpenError;
use crate::journal::compaction::compactor::{Fallback, SizedFile};
use crate::journal::files::directory::{Directory, Segment};
use crate::journal::files::pin::Pin;
use crate::journal::wal::locations::Locations;
use crate::log::Rebuild;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;
/// The first index of a journal.
const FIRST_INDEX: u64 = 1;

/// A journal read to its end.
#[derive(Default)]
pub(crate) struct Recovery {
    pub(crate) locations: Locations,
    /// The segment to continue writing; none if there is none.
    pub(crate) segment: Option<Segment>,
    pub(crate) last_index: u64,
    pub(crate) snapshot: Option<RecoveredSnapshot>,
    /// Commands replayed.
    pub(crate) records: u64,
    /// Bytes of them.
    pub(crate) bytes: u64,
    pub(crate) cut: Option<CutTail>,
    pub(crate) dropped: Option<Dropped>,
    pub(crate) lost_payloads: Option<LostPayloads>,
    /// The fallback of the next start if the snapshot is damaged by then.
    pub(crate) fallback: Option<Fallback>,
    /// Obsolete files that stay while the directory is being copied.
    pub(crate) obsolete: Vec<SizedFile>,
}

/// The snapshot that a journal was restored from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveredSnapshot {
    /// The last command that it reflects.
    pub index: u64,
    /// Bytes of its file.
    pub bytes: u64,
}

/// A torn tail that was erased: the last commit before a power cut, never acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutTail {
    /// The file.
    pub file: PathBuf,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What was dropped because damage was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The damaged file.
    pub file: PathBuf,
    /// Where the damage begins.
    pub offset: u64,
    /// The first index that was dropped, with all later ones. 1 if all were: the journal begins
    /// anew.
    pub index: u64,
    /// The folder with the dropped files, unchanged.
    pub moved_to: PathBuf,
    /// How many bytes.
    pub bytes: u64,
}

/// Missing or damaged files whose loss was accepted: jobs with their payload there are buried when
/// they are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostPayloads {
    /// The first of them.
    pub file: PathBuf,
    /// How many.
    pub files: u64,
}

/// The first damage.
#[derive(Clone, Debug)]
struct Damage {
    file: PathBuf,
    offset: u64,
    why: &'static str,
}

/// Recovers the whole journal. `watermark` is the last index known to be committed, if any.
pub(crate) fn recover(
    directory: &Directory,
    watermark: u64,
    accept_loss: bool,
    rebuild: &mut dyn Rebuild,
) -> Result<Recovery, JournalOpenError> {
    let mut found = found::find(directory)?;
    let (base, skipped) = base::choose(directory, &mut found, accept_loss)?;
    for Damage { file, offset, why } in &skipped {
        tracing::warn!(?file, offset, why, "using an older snapshot instead of a damaged one");
    }
    base.restore(directory, rebuild)?;
    // A snapshot covers only committed commands.
    let known = found.snapshots.first().copied().unwrap_or(0).max(watermark);
    let cause = skipped.into_iter().next();
    replay_and_repair(directory, found, base, cause, known, accept_loss, rebuild)
}

/// Replays the log after the base, repairs its end, and removes obsolete files. `cause` is the
/// damage of the newest snapshot.
fn replay_and_repair(
    directory: &Directory,
    found: FoundFiles,
    base: RecoveryBase,
    cause: Option<Damage>,
    known: u64,
    accept_loss: bool,
    rebuild: &mut dyn Rebuild,
) -> Result<Recovery, JournalOpenError> {
    let needed: BTreeSet<u64> = base.locations.runs().iter().map(|run| run.sequence).collect();
    // Also those of missing files: no number is used twice.
    needed.iter().for_each(|&sequence| directory.reserve_sequence(sequence));
    if let Some(resume) = base.resume {
        directory.reserve_sequence(resume.sequence);
    }
    let resumed = |segment: &FoundSegment| {
        base.resume.is_some_and(|resume| resume.sequence == segment.header.sequence)
    };
    let older = found.snapshots.iter().copied().find(|&index| index < base.index);
    let mut files = found.segments.iter().chain(&found.compacted);
    let has_dead = base.index > 0
        && files.any(|file| {
            file.header.first_index <= base.index && !needed.contains(&file.header.sequence)
        });
    let fallback_index = older.or_else(|| {
        let is_complete = has_dead && found.is_complete_up_to(directory, base.index);
        is_complete.then_some(0)
    });
    let (mut segments, before): (Vec<FoundSegment>, Vec<FoundSegment>) = found
        .segments
        .into_iter()
        .partition(|segment| segment.header.first_index > base.index || resumed(segment));

    let mut recovery = Recovery {
        last_index: base.index,
        snapshot: base.resume.map(|_| RecoveredSnapshot { index: base.index, bytes: base.bytes }),
        locations: base.locations,
        lost_payloads: base.lost_payloads,
        ..Recovery::default()
    };
    let ReplayResult { mut spans, end, mut damage } =
        replay::replay(directory, base.resume, &segments, &mut recovery, rebuild)?;
    let last_index = recovery.last_index;
    if damage.is_none() {
        damage =
            end::find_missing_commits(directory, &segments, &found.unused, end, known, last_index)?;
    }
    // Without a good snapshot, the newest one has to be repaired.
    let cause = cause.filter(|_| base.resume.is_none());
    let damage = damage.map(|damage| cause.unwrap_or(damage));
    // It is unknown whether more was committed than was replayed.
    let damage = damage.or(base.lost_log);
    let is_needed = |file: &FoundSegment| needed.contains(&file.header.sequence);
    let (compacted, garbage): (Vec<FoundSegment>, Vec<FoundSegment>) =
        found.compacted.into_iter().partition(is_needed);
    let mut garbage_is_aside = false;
    match damage {
        Some(damage) if !accept_loss => return Err(damage.refused(last_index + 1)),
        Some(damage) => {
            // A segment that was not replayed is dropped whole; the partly replayed one from its
            // damage on.
            let later = segments.split_off(spans.len());
            let has_records = spans.last().is_some_and(|span| span.records > 0);
            let tail =
                segments.last().map(|last| LostTail { segment: last, from: end, has_records });
            let newer = found.snapshots.iter().filter(|&&index| index > base.index);
            let newer: Vec<PathBuf> = newer.map(|&index| directory.snapshot_path(index)).collect();
            let unused = found.unused.iter().chain(&found.damaged_compacted).map(|file| &file.path);
            // Files that only newer snapshots name go with them. Otherwise the fallback may need
            // them.
            let of_newer = if newer.is_empty() { &[][..] } else { &garbage };
            garbage_is_aside = !newer.is_empty();
            let lost = later.iter().chain(of_newer).map(|file| &file.path).chain(unused);
            let index = last_index + 1;
            let dropped = lost::set_aside(directory, damage, index, tail, lost, &newer)?;
            recovery.dropped = Some(dropped);
        }
        None => {
            if let Some(last) = segments.last() {
                recovery.cut = end::cut_tail(directory, last, end)?;
            }
        }
    }

    let (retained, mut dead): (Vec<FoundSegment>, Vec<FoundSegment>) =
        before.into_iter().partition(is_needed);
    dead.extend(garbage.into_iter().filter(|_| !garbage_is_aside));
    // The resume segment is removed like those before it if it had no command.
    if segments.first().is_some_and(|first| resumed(first) && !is_needed(first))
        && spans.first().is_some_and(|span| span.records == 0)
    {
        dead.push(segments.remove(0));
        spans.remove(0);
    }
    let unused = found.unused.into_iter().chain(found.damaged_compacted).map(|file| file.path);
    let is_other = |&index: &u64| index != base.index && Some(index) != fallback_index;
    let others = found.snapshots.into_iter().filter(is_other);
    let obsolete_file = |file: FoundSegment| SizedFile { path: file.path, bytes: file.length };
    let mut dead: Vec<SizedFile> = dead.into_iter().map(obsolete_file).collect();
    recovery.fallback =
        fallback_index.map(|snapshot| Fallback { snapshot, files: std::mem::take(&mut dead) });
    let removals = Removals {
        never_counted: unused.chain(found.unfinished).collect(),
        snapshots: others.map(|index| directory.snapshot_path(index)).collect(),
        dead,
    };
    recovery.obsolete = removals.remove(directory)?;
    let fallback = recovery.fallback.iter().flat_map(|fallback| &fallback.files);
    let left = fallback.chain(&recovery.obsolete).map(|file| file.bytes).sum();
    directory.bytes.fetch_add(left, Ordering::Relaxed);

    for file in retained.iter().chain(&compacted).chain(&segments) {
        file.repair_header(directory)?;
    }
    let known = known.max(base.index);
    end::rewrite_unsynced(directory, &segments, &spans, &recovery.locations, known)?;
    for file in retained.iter().chain(&compacted).chain(&segments) {
        directory.bytes.fetch_add(file.length, Ordering::Relaxed);
    }
    if let Some(last) = segments.pop() {
        recovery.segment = Some(end::reopen_last(directory, last, end)?);
    }
    Ok(recovery)
}

/// Removes the fallback and its files. Returns those that a copy may be reading.
pub(crate) fn remove_fallback(
    directory: &Directory,
    fallback: Fallback,
) -> Result<Vec<SizedFile>, JournalOpenError> {
    let bytes = |files: &[SizedFile]| files.iter().map(|file| file.bytes).sum::<u64>();
    let all = bytes(&fallback.files);
    let snapshot = Some(fallback.snapshot).filter(|&index| index > 0);
    let removals = Removals {
        never_counted: Vec::new(),
        snapshots: snapshot.into_iter().map(|index| directory.snapshot_path(index)).collect(),
        dead: fallback.files,
    };
    let left = removals.remove(directory)?;
    directory.bytes.fetch_sub(all - bytes(&left), Ordering::Relaxed);
    Ok(left)
}

/// Files that nothing needs.
struct Removals {
    /// Files that were never finished, or never had valid records.
    never_counted: Vec<PathBuf>,
    /// All but the newest and the fallback.
    snapshots: Vec<PathBuf>,
    /// Segments and compacted files that neither snapshot needs.
    dead: Vec<SizedFile>,
}

impl Removals {
    /// Removes them durably. Returns the files that a copy may be reading: a later cycle removes
    /// those.
    fn remove(self, directory: &Directory) -> Result<Vec<SizedFile>, JournalOpenError> {
        let (segments_dir, snapshots_dir) = (directory.segments_dir(), directory.snapshots_dir());
        remove(directory, &self.never_counted)?;
        // The name of the newest snapshot may not be synced yet.
        sync_dir(directory, &snapshots_dir)?;
        sync_dir(directory, &segments_dir)?;
        if self.snapshots.is_empty() && self.dead.is_empty() {
            return Ok(Vec::new());
        }
        let pin = Pin::to_delete(&*directory.files, &directory.dir)
            .map_err(|error| JournalOpenError::io("pinning", &directory.dir, error))?;
        let Some(_unpinned) = pin else { return Ok(self.dead) };
        remove(directory, &self.snapshots)?;
        // Sync first: the files that only they needed go after them.
        sync_dir(directory, &snapshots_dir)?;
        remove(directory, self.dead.iter().map(|file| &file.path))?;
        sync_dir(directory, &segments_dir)?;
        Ok(Vec::new())
    }
}

fn remove<'a>(
    directory: &Directory,
    paths: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), JournalOpenError> {
    for path in paths {
        match directory.files.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(JournalOpenError::io("removing", path, error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn sync_dir(directory: &Directory, dir: &Path) -> Result<(), JournalOpenError> {
    directory.files.sync_dir(dir).map_err(|error| JournalOpenError::io("syncing", dir, error))
}

impl Damage {
    /// The error that refuses the start. `index` is the first lost command.
    fn refused(self, index: u64) -> JournalOpenError {
        let Damage { file, offset, why } = self;
        JournalOpenError::Damaged { file, offset, index, why }
    }
}
