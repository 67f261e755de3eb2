//! Replays every valid record after the snapshot, in order.

use super::super::snapshots::Resume;
use super::super::{JournalOpenError, Replayed};
use super::found::FoundSegment;
use super::{Damage, Recovery};
use crate::journal::files::UNREADABLE;
use crate::journal::files::directory::Directory;
use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, crc_seed};
use crate::journal::wal::record::NoRecord;
use crate::journal::wal::walk::Walk;
use crate::log::Rebuild;

/// A segment that was replayed.
pub(super) struct ReplayedSegment {
    /// The first index that was expected in it.
    pub(super) first: u64,
    /// How many were replayed.
    pub(super) records: u64,
    /// Where the last one ends.
    pub(super) end: u64,
}

/// The result of replay.
pub(super) struct ReplayResult {
    /// The segments that were read, in order.
    pub(super) spans: Vec<ReplayedSegment>,
    /// Where the records of the last one end.
    pub(super) end: u64,
    /// Proof, from the segments themselves, that more was committed than could be read.
    pub(super) damage: Option<Damage>,
}

/// Replays the segments with commands after the snapshot, each up to its last valid record.
pub(super) fn replay(
    directory: &Directory,
    resume: Option<Resume>,
    segments: &[FoundSegment],
    recovery: &mut Recovery,
    rebuild: &mut dyn Rebuild,
) -> Result<ReplayResult, JournalOpenError> {
    let mut result =
        ReplayResult { spans: Vec::new(), end: SEGMENT_HEADER_BYTES as u64, damage: None };
    for (position, segment) in segments.iter().enumerate() {
        let resumed = resume.filter(|resume| resume.sequence == segment.header.sequence);
        if resumed.is_none() && segment.header.first_index != recovery.last_index + 1 {
            let why = "commands before this segment are missing";
            result.damage = Some(Damage { file: segment.path.clone(), offset: 0, why });
            break;
        }
        let from = resumed.map_or(SEGMENT_HEADER_BYTES as u64, |resume| resume.offset);
        let first = recovery.last_index + 1;
        let (end, is_unreadable) = replay_segment(directory, segment, from, recovery, rebuild)?;
        result.end = end;
        let records = recovery.last_index + 1 - first;
        result.spans.push(ReplayedSegment { first, records, end });
        let next_begins = segments.get(position + 1).map(|next| next.header.first_index);
        if next_begins == Some(recovery.last_index + 1) {
            continue;
        }
        let why = match next_begins {
            // It cannot be distinguished from a torn tail: assume the worse.
            _ if is_unreadable => Some(UNREADABLE),
            Some(_) => Some("a later segment shows that more commands were committed"),
            None => None,
        };
        if let Some(why) = why {
            let (file, offset) = (segment.path.clone(), result.end);
            result.damage = Some(Damage { file, offset, why });
            break;
        }
    }
    Ok(result)
}

/// Replays the valid records; returns where they end, and whether the disk cannot read there.
fn replay_segment(
    directory: &Directory,
    segment: &FoundSegment,
    from: u64,
    recovery: &mut Recovery,
    rebuild: &mut dyn Rebuild,
) -> Result<(u64, bool), JournalOpenError> {
    let io = |error| JournalOpenError::io("reading", &segment.path, error);
    let sequence = segment.header.sequence;
    let file = segment.open(directory)?;
    let mut walk = Walk::new(file, crc_seed(directory.journal, sequence)).map_err(io)?;
    let first = recovery.last_index + 1;
    let mut offsets = Vec::new();
    let mut end = from;
    let is_unreadable = loop {
        let record = match walk.record(end).map_err(io)? {
            Ok(record) if record.header.index == recovery.last_index + 1 => record,
            none => break none.is_err_and(|none| none == NoRecord::Unreadable),
        };
        let (offset, header, body) = (end, record.header, record.body());
        let (index, kind) = (header.index, header.kind);
        rebuild.command(Replayed { index, now: header.now, kind, body }).map_err(|error| {
            JournalOpenError::Undecodable { file: segment.path.clone(), offset, index, kind, error }
        })?;
        offsets.push(offset as u32);
        recovery.last_index = index;
        recovery.records += 1;
        end = record.end();
    };
    recovery.bytes += end - from;
    // No segment is longer than 1 GiB, except one with a single longer record.
    recovery.locations.extend(sequence, first, &offsets, u32::try_from(end).unwrap_or(u32::MAX));
    Ok((end, is_unreadable))
}
