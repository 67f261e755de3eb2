//! The end of the log: distinguishes a torn tail from damage, and makes the log writable again.

use std::io;
use std::sync::Arc;

use super::super::JournalOpenError;
use super::super::files::{JournalFile, UNREADABLE};
use super::found::{FoundSegment, UnusedSegment};
use super::replay::ReplayedSegment;
use super::{CHUNK_BYTES, CutTail, Damage};
use crate::journal::files::directory::{Directory, Segment};
use crate::journal::space::ballast::is_full;
use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, crc_seed};
use crate::journal::wal::locations::Locations;
use crate::journal::wal::walk::Walk;

/// Searches for proof that more was committed than was replayed. `known` is the last index known to
/// be committed.
pub(super) fn find_missing_commits(
    directory: &Directory,
    segments: &[FoundSegment],
    unused: &[UnusedSegment],
    end: u64,
    known: u64,
    last_index: u64,
) -> Result<Option<Damage>, JournalOpenError> {
    // The expected position of the next record: after the last one, or in a segment with a damaged
    // header.
    let expected = segments
        .last()
        .map(|last| (last.path.clone(), end))
        .or_else(|| unused.first().map(|first| (first.path.clone(), 0)))
        .unwrap_or_else(|| (directory.segments_dir(), 0));
    let damage = |why| {
        let (file, offset) = expected.clone();
        Ok(Some(Damage { file, offset, why }))
    };
    if known > last_index {
        return damage(
            "the commit watermark or a snapshot shows that more commands were committed",
        );
    }
    if let Some(file) = unused.iter().find(|file| file.is_unreadable) {
        return Ok(Some(Damage { file: file.path.clone(), offset: 0, why: UNREADABLE }));
    }
    let tail =
        segments.last().map(|last| (last.open(directory), &last.path, last.header.sequence, end));
    let others = unused.iter().map(|unused| {
        let from = SEGMENT_HEADER_BYTES as u64;
        (unused.open(directory), &unused.path, unused.sequence, from)
    });
    for (file, path, sequence, from) in tail.into_iter().chain(others) {
        let walk = Walk::new(file?, crc_seed(directory.journal, sequence));
        let later = walk.and_then(|mut walk| walk.has_later_commit(from, last_index));
        if later.map_err(|error| JournalOpenError::io("reading", path, error))? {
            return damage("a later commit shows that this one was committed");
        }
    }
    Ok(None)
}

/// The end of the last non-zero byte from `from` on.
pub(super) fn end_of_data(file: &Arc<dyn JournalFile>, from: u64) -> io::Result<u64> {
    Walk::new(Arc::clone(file), 0)?.end_of_data(from)
}

/// Overwrites a torn tail with zeros: its remains must never follow a later record.
pub(super) fn cut_tail(
    directory: &Directory,
    last: &FoundSegment,
    end: u64,
) -> Result<Option<CutTail>, JournalOpenError> {
    let io = |error| JournalOpenError::io("cutting the torn tail of", &last.path, error);
    let file = last.open(directory)?;
    let data_end = end_of_data(&file, end).map_err(io)?;
    if data_end == end {
        return Ok(None);
    }
    erase(&*file, end, data_end).map_err(io)?;
    Ok(Some(CutTail { file: last.path.clone(), offset: end, bytes: data_end - end }))
}

pub(super) fn erase(file: &dyn JournalFile, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    let zeros = vec![0; CHUNK_BYTES.min((to - at) as usize)];
    while at < to {
        let n = chunk_at(at, to);
        file.write_at(&zeros[..n], at)?;
        at += n as u64;
    }
    file.sync_data()
}

/// Bytes of the next chunk, which ends where a page does: to write a part of a page that the disk
/// cannot read fails, and to write all of it succeeds.
fn chunk_at(at: u64, to: u64) -> usize {
    (CHUNK_BYTES - (at % CHUNK_BYTES as u64) as usize).min((to - at) as usize)
}

/// Rewrites and syncs everything that is not known to be durable, which is all beyond `known`. It
/// may be in the page cache only, and after a failed sync the kernel would not write it again by
/// itself.
pub(super) fn rewrite_unsynced(
    directory: &Directory,
    segments: &[FoundSegment],
    spans: &[ReplayedSegment],
    locations: &Locations,
    known: u64,
) -> Result<(), JournalOpenError> {
    for (segment, span) in segments.iter().zip(spans) {
        let first = span.first.max(known + 1);
        let has_unsynced = first < span.first + span.records;
        let from = match segment.header.first_index == first {
            // The header may be as recent as the first record, and may be there without it.
            true => Some(0),
            false => locations.locate(first, 0).filter(|_| has_unsynced).map(|from| from.offset),
        };
        let Some(mut at) = from else { continue };
        let io = |error| JournalOpenError::io("writing the end again of", &segment.path, error);
        let file = segment.open(directory)?;
        // These records were read a moment ago: if the disk cannot read them now, the start fails,
        // and writes nothing over them.
        let mut chunk = vec![0; CHUNK_BYTES];
        while at < span.end {
            let n = chunk_at(at, span.end);
            let n = file.read_at(&mut chunk[..n], at).map_err(io)?;
            if n == 0 {
                break;
            }
            file.write_at(&chunk[..n], at).map_err(io)?;
            at += n as u64;
        }
        file.sync_data().map_err(io)?;
    }
    Ok(())
}

/// Reopens the last segment for writing.
pub(super) fn reopen_last(
    directory: &Directory,
    last: FoundSegment,
    end: u64,
) -> Result<Segment, JournalOpenError> {
    let file = last.open(directory)?;
    let FoundSegment { header, path, length, .. } = last;
    let (sequence, seed) = (header.sequence, crc_seed(directory.journal, header.sequence));
    // A truncated file keeps its length: the rest goes into the next segment. So it does if a
    // restored file has holes for which there is no room.
    let capacity = match file.allocate(length) {
        Ok(()) => length,
        Err(error) => {
            if !is_full(&error) {
                tracing::warn!(file = ?path, %error, "the segment cannot be allocated again");
            }
            end
        }
    };
    Ok(Segment { file, path, sequence, seed, capacity, at: end, written_to: end })
}
