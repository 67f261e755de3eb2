//! Derives a damaged header: all of it is known but the first index, which the records prove.
//!
//! A record's checksum starts from the journal's id and the file's sequence, so a valid record
//! proves which file it belongs to.

use std::io;

use longshore_protocol::PublisherId;

use crate::journal::files::{JournalFile, unless_unreadable};
use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, SegmentHeader, crc_seed};
use crate::journal::wal::locations::{Run, RunRecords};
use crate::journal::wal::record::{FLAG_COMPACTED, RECORD_HEADER_BYTES, RecordHeader};

/// The header of a file whose first record is valid; `sequence` and `is_compacted` come from its
/// name. None if there is no such record.
pub(crate) fn by_first_record(
    file: &dyn JournalFile,
    journal: PublisherId,
    sequence: u64,
    is_compacted: bool,
) -> io::Result<Option<SegmentHeader>> {
    let seed = crc_seed(journal, sequence);
    let record = record_at(file, seed, SEGMENT_HEADER_BYTES as u64)?;
    let record = record.filter(|record| (record.flags & FLAG_COMPACTED != 0) == is_compacted);
    Ok(record.map(|record| match is_compacted {
        true => SegmentHeader::compacted(journal, sequence),
        false => SegmentHeader::log(journal, sequence, record.index),
    }))
}

/// The header of a file that a snapshot names, if any record of the run is valid in it.
pub(crate) fn by_run(
    file: &dyn JournalFile,
    journal: PublisherId,
    run: &Run,
) -> io::Result<Option<SegmentHeader>> {
    let seed = crc_seed(journal, run.sequence);
    let is_valid = |offset: u32, index: u64| {
        // An unreadable record proves nothing; another one may.
        let record = unless_unreadable(record_at(file, seed, offset.into()))?.flatten();
        Ok::<_, io::Error>(record.is_some_and(|record| record.index == index))
    };
    let header = of_run(journal, run);
    match &run.records {
        RunRecords::Log { offsets, .. } => {
            // The segment's first index is the run's only if the run begins where the segment does.
            if offsets.first() != Some(&(SEGMENT_HEADER_BYTES as u32)) {
                return Ok(None);
            }
            for (&offset, index) in offsets.iter().zip(run.first..) {
                if is_valid(offset, index)? {
                    return Ok(Some(header));
                }
            }
        }
        RunRecords::Compacted(records) => {
            for record in records {
                if is_valid(record.offset, record.index)? {
                    return Ok(Some(header));
                }
            }
        }
    }
    Ok(None)
}

/// The header of a run's file, as the run implies it.
pub(crate) fn of_run(journal: PublisherId, run: &Run) -> SegmentHeader {
    match run.records {
        RunRecords::Log { .. } => SegmentHeader::log(journal, run.sequence, run.first),
        RunRecords::Compacted(_) => SegmentHeader::compacted(journal, run.sequence),
    }
}

/// The header of the valid record at `offset`, if there is one.
fn record_at(file: &dyn JournalFile, seed: u32, offset: u64) -> io::Result<Option<RecordHeader>> {
    let left = file.len()?.saturating_sub(offset);
    let mut start = [0; RECORD_HEADER_BYTES];
    let n = file.read_at(&mut start, offset)?;
    let Ok(length) = RecordHeader::claimed_len(&start[..n], left) else { return Ok(None) };
    let mut record = vec![0; length];
    let n = file.read_at(&mut record, offset)?;
    Ok((n == length).then(|| RecordHeader::decode(&record, seed).ok()).flatten())
}
