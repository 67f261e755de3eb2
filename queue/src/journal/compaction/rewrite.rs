//! Copies the live parts of victim segments into a compacted file.
//!
//! ```text
//! 0000000003.seg        █ · · █ · · · ·  ┐
//! 0000000005.compacted  · █ · · · █ · ·  ┴─▶ 0000000009.compacted  █ █ █ █
//! ```
//! The only change here is the new file. It counts once its runs replace the victims' runs, and
//! after a crash once a snapshot names it. Every part's checksum is verified on the way.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::RecordRef;
use crate::journal::compaction::compacted::{
    self, COMPACTED_BYTES_MAX, COMPACTED_PARTS_MAX, CompactedPart,
};
use crate::journal::compaction::paced_file::{Paced, PacedFile};
use crate::journal::files::directory::Directory;
use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, SegmentHeader, crc_seed};
use crate::journal::wal::locations::{Bounds, CompactedAt, Run, RunRecords};
use crate::journal::wal::record::{FLAG_COMPACTED, RECORD_HEADER_BYTES, RecordHeader};
use crate::journal::wal::records::{JournalRecords, PrivateCache};
use crate::log::LogReadError;

/// The kind of a compacted record; no command has it.
const KIND_COMPACTED: u8 = 0;

/// A compacted file that is complete and durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CompactedFile {
    pub(crate) sequence: u64,
    /// The runs that replace those of the victims: one for each, with its bounds. A run without
    /// live parts has none.
    pub(crate) runs: Vec<Run>,
    /// Bytes of the file.
    pub(crate) bytes: u64,
}

/// Why the rewrite failed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RewriteError {
    #[error("{what} {file:?} failed: {error}")]
    Io { what: &'static str, file: PathBuf, error: io::Error },
    /// A part is missing, or its file cannot be read: it may well be intact, so the victim must
    /// stay.
    #[error("reading what is to be compacted, of command {index}: {why}")]
    Read { index: u64, why: LogReadError },
}

/// Copies these parts, which are sorted, into one new file. Each written chunk is reported to
/// `pace`; its error aborts the rewrite. A corrupt part is recorded as corrupt: its neighbours
/// survive.
pub(crate) fn write(
    directory: &Directory,
    records: &JournalRecords,
    parts: &[RecordRef],
    pace: Paced<'_>,
) -> Result<CompactedFile, RewriteError> {
    debug_assert!(parts.is_sorted(), "parts are sorted");
    let planned =
        SEGMENT_HEADER_BYTES as u64 + PlannedRecords::of(parts).map(|it| it.len()).sum::<u64>();
    let sequence = directory.next_sequence();
    let (path, unfinished) =
        (directory.compacted_path(sequence), directory.new_compacted_path(sequence));
    let sealed = write_unfinished(directory, records, parts, sequence, planned, &unfinished, pace)
        .and_then(|written| {
            let io = |error| RewriteError::Io { what: "renaming", file: unfinished.clone(), error };
            directory.files.rename(&unfinished, &path).map_err(io)?;
            Ok(written)
        });
    let (runs, bytes) = sealed.inspect_err(|_| {
        // Otherwise the next start removes it.
        let _ = directory.files.remove(&unfinished);
    })?;
    let dir = directory.segments_dir();
    let io = |error| RewriteError::Io { what: "syncing", file: dir.clone(), error };
    directory.files.sync_dir(&dir).map_err(io).inspect_err(|_| {
        // No list has it: without this, each try on a full disk would leave a file.
        let _ = directory.files.remove(&path);
    })?;
    directory.bytes.fetch_add(bytes, Ordering::Relaxed);
    Ok(CompactedFile { sequence, runs, bytes })
}

fn write_unfinished(
    directory: &Directory,
    records: &JournalRecords,
    parts: &[RecordRef],
    sequence: u64,
    planned: u64,
    path: &Path,
    pace: Paced<'_>,
) -> Result<(Vec<Run>, u64), RewriteError> {
    let failed = |what| move |error| RewriteError::Io { what, file: path.to_owned(), error };
    if u32::try_from(planned).is_err() {
        // Its offsets have 32 bits. The plan never compacts more than a segment at once, or one
        // part that is longer.
        return Err(failed("making")(io::Error::other("over 4 GiB are to be compacted at once")));
    }
    let create = || {
        let file = directory.files.create(path)?;
        file.allocate(planned)?;
        Ok(file)
    };
    let made = directory.ballast.make_for_compaction(planned, create);
    let file = made.map_err(failed("making"))?;
    let mut output = PacedFile::new(Arc::clone(&file), None, pace);
    output
        .buffer
        .extend_from_slice(&SegmentHeader::compacted(directory.journal, sequence).encode());
    let seed = crc_seed(directory.journal, sequence);
    let (mut runs, mut cache) =
        (RunsBuilder { sequence, runs: Vec::new() }, PrivateCache::default());
    for record in PlannedRecords::of(parts) {
        let index = record.index;
        let failed_read = |why| RewriteError::Read { index, why };
        let bounds =
            records.bounds_of(index).ok_or(failed_read(LogReadError::NotFound { index }))?;
        let at = record.parts[0].0;
        let mut compacted = Vec::with_capacity(record.parts.len());
        for &(at, length) in &record.parts {
            let part = RecordRef { index, at, length };
            let bytes = read(records, &mut cache, part).map_err(failed_read)?;
            compacted.push(CompactedPart { at, length, bytes });
        }
        let now = records.now_of(index, at).map_err(failed_read)?;
        runs.add(bounds, CompactedAt { index, at, offset: output.end() as u32 });
        let body_len = compacted::body_len(&compacted);
        let (flags, kind) = (FLAG_COMPACTED, KIND_COMPACTED);
        let header = RecordHeader { term: 0, flags, kind, index, now, body_len };
        let mut body = Vec::with_capacity(body_len);
        compacted::encode(&compacted, &mut body);
        header.encode(seed, &body, &[], &mut output.buffer);
        output.write_chunks().map_err(failed("writing"))?;
    }
    output.finish().map_err(failed("writing"))?;
    let bytes = output.end();
    if bytes < planned {
        // Corrupt parts took no room.
        file.truncate(bytes).map_err(failed("shortening"))?;
        file.sync_data().map_err(failed("syncing"))?;
    }
    Ok((runs.runs, bytes))
}

/// The bytes of a part; none if they are corrupt.
fn read(
    records: &JournalRecords,
    cache: &mut PrivateCache,
    part: RecordRef,
) -> Result<Option<Bytes>, LogReadError> {
    match records.part_with_cache(part, cache) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(LogReadError::Damaged { file, offset }) => {
            let RecordRef { index, at, length } = part;
            tracing::error!(
                ?file,
                offset,
                command = index,
                at,
                length,
                "a part of a command is corrupt: compaction records it as damaged"
            );
            Ok(None)
        }
        Err(why) => Err(why),
    }
}

/// A record to be written: parts of one command, as (at, length).
struct PlannedRecord {
    index: u64,
    parts: Vec<(u32, u32)>,
}

impl PlannedRecord {
    fn len(&self) -> u64 {
        let lengths = self.parts.iter().map(|&(_, length)| length as usize);
        (RECORD_HEADER_BYTES + compacted::body_len_of(lengths)) as u64
    }
}

/// Groups sorted parts into records, and merges overlapping parts.
struct PlannedRecords<'a> {
    parts: std::iter::Peekable<std::slice::Iter<'a, RecordRef>>,
}

impl<'a> PlannedRecords<'a> {
    fn of(parts: &'a [RecordRef]) -> PlannedRecords<'a> {
        PlannedRecords { parts: parts.iter().peekable() }
    }

    /// The next part of that command, merged with all that overlap it, if it begins a record or
    /// fits into one that has `bytes` already.
    fn part(&mut self, index: u64, bytes: usize) -> Option<(u32, u32)> {
        let mut ahead = self.parts.clone();
        let first = ahead.next_if(|part| part.index == index)?;
        let mut end = first.at.saturating_add(first.length);
        while let Some(next) =
            ahead.next_if(|it| it.index == index && (it.at < end || it.at == first.at))
        {
            end = end.max(next.at.saturating_add(next.length));
        }
        let length = end - first.at;
        if bytes > 0 && bytes + length as usize > COMPACTED_BYTES_MAX {
            return None;
        }
        self.parts = ahead;
        Some((first.at, length))
    }
}

impl Iterator for PlannedRecords<'_> {
    type Item = PlannedRecord;

    fn next(&mut self) -> Option<PlannedRecord> {
        let index = self.parts.peek()?.index;
        let (mut parts, mut bytes) = (Vec::new(), 0);
        while parts.len() < COMPACTED_PARTS_MAX
            && let Some((at, length)) = self.part(index, bytes)
        {
            bytes += length as usize;
            parts.push((at, length));
        }
        Some(PlannedRecord { index, parts })
    }
}

/// The runs of a compacted file so far.
struct RunsBuilder {
    sequence: u64,
    runs: Vec<Run>,
}

impl RunsBuilder {
    fn add(&mut self, bounds: Bounds, record: CompactedAt) {
        if let Some(Run { first, records: RunRecords::Compacted(records), .. }) =
            self.runs.last_mut()
            && *first == bounds.first
        {
            records.push(record);
            return;
        }
        let (Bounds { first, last, .. }, sequence) = (bounds, self.sequence);
        let records = RunRecords::Compacted(vec![record]);
        self.runs.push(Run { first, last, sequence, records });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(parts: &[(u64, u32, u32)]) -> Vec<(u64, Vec<(u32, u32)>)> {
        let mut parts: Vec<RecordRef> =
            parts.iter().map(|&(index, at, length)| RecordRef { index, at, length }).collect();
        parts.sort_unstable();
        PlannedRecords::of(&parts).map(|record| (record.index, record.parts)).collect()
    }

    #[test]
    fn compacted_record_is_limited_to_64_parts_and_64_kib() {
        assert_eq!(planned(&[]), []);
        let some = [(1, 0, 10), (1, 10, 5), (2, 3, 4)];
        assert_eq!(planned(&some), [(1, vec![(0, 10), (10, 5)]), (2, vec![(3, 4)])]);
        let many: Vec<_> = (0..130).map(|n| (1, n * 10, 10)).collect();
        let lengths: Vec<_> = planned(&many).iter().map(|(_, parts)| parts.len()).collect();
        assert_eq!(lengths, [64, 64, 2]);
        let long = [
            (1, 0, 40_000),
            (1, 50_000, 25_536),
            (1, 80_000, 1),
            (1, 90_000, 70_000),
            (1, 200_000, 1),
        ];
        let expected = [
            (1, vec![(0, 40_000), (50_000, 25_536)]),
            (1, vec![(80_000, 1)]),
            (1, vec![(90_000, 70_000)]),
            (1, vec![(200_000, 1)]),
        ];
        assert_eq!(planned(&long), expected);
    }

    #[test]
    fn overlapping_parts_are_compacted_once() {
        let parts =
            [(1, 5, 10), (1, 5, 10), (1, 5, 3), (1, 12, 8), (1, 20, 1), (1, 30, 0), (1, 30, 0)];
        assert_eq!(planned(&parts), [(1, vec![(5, 15), (20, 1), (30, 0)])]);
    }
}
