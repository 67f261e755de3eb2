//! The encoding of locations in a snapshot: runs, split so that neither reader nor writer buffers
//! more than one block.
//!
//! ```text
//! block:  run │ run │ …
//! run:    kind 1 │ sequence 8 │ first 8 │ last 8 │ count 4 │ entries
//! log:    kind 0, end 4 before the entries; an entry is an offset 4
//! compacted: kind 1; an entry is index 8 │ at 4 │ offset 4
//! ```
//! A run with more entries than fit into a block continues in the next one: a log run with the
//! following indexes, a compacted run with the same first and last.

use crate::journal::wal::format::{SEGMENT_HEADER_BYTES, u32_at, u64_at};
use crate::journal::wal::locations::{CompactedAt, Locations, Run, RunRecords};

/// Approximate length of a block of locations, in bytes.
const BLOCK_BYTES: usize = 64 * 1024;
const RUN_HEADER_BYTES: usize = 29;
const KIND_LOG: u8 = 0;
const KIND_COMPACTED: u8 = 1;
const LOG_END_BYTES: usize = 4;
const LOG_ENTRY_BYTES: usize = 4;
const COMPACTED_ENTRY_BYTES: usize = 16;

/// Encodes locations block by block.
pub(super) struct LocationBlocks<'a> {
    runs: &'a [Run],
    /// Entries of the first run that were encoded.
    encoded: usize,
}

impl<'a> LocationBlocks<'a> {
    pub(super) fn of(locations: &'a Locations) -> LocationBlocks<'a> {
        LocationBlocks { runs: locations.runs(), encoded: 0 }
    }

    /// Appends the next block's body; false if none is left.
    pub(super) fn next_block(&mut self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        while let Some(run) = self.runs.first()
            && out.len() - start + RUN_HEADER_BYTES + LOG_END_BYTES + COMPACTED_ENTRY_BYTES
                <= BLOCK_BYTES
        {
            let room = BLOCK_BYTES - (out.len() - start) - RUN_HEADER_BYTES - LOG_END_BYTES;
            let of = run.entries();
            let last = of.min(self.encoded + room / run.records.entry_bytes());
            run.encode(self.encoded, last, out);
            self.encoded = last;
            if self.encoded == of {
                (self.runs, self.encoded) = (&self.runs[1..], 0);
            }
        }
        out.len() > start
    }
}

impl Run {
    fn entries(&self) -> usize {
        match &self.records {
            RunRecords::Log { offsets, .. } => offsets.len(),
            RunRecords::Compacted(records) => records.len(),
        }
    }

    fn encode(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        let (kind, first, last) = match &self.records {
            RunRecords::Log { .. } => {
                (KIND_LOG, self.first + from as u64, self.first + to as u64 - 1)
            }
            RunRecords::Compacted(_) => (KIND_COMPACTED, self.first, self.last),
        };
        out.push(kind);
        for number in [self.sequence, first, last] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&((to - from) as u32).to_le_bytes());
        match &self.records {
            RunRecords::Log { offsets, end } => {
                let end = offsets.get(to).unwrap_or(end);
                out.extend_from_slice(&end.to_le_bytes());
                for offset in &offsets[from..to] {
                    out.extend_from_slice(&offset.to_le_bytes());
                }
            }
            RunRecords::Compacted(records) => {
                for CompactedAt { index, at, offset } in &records[from..to] {
                    out.extend_from_slice(&index.to_le_bytes());
                    out.extend_from_slice(&at.to_le_bytes());
                    out.extend_from_slice(&offset.to_le_bytes());
                }
            }
        }
    }
}

impl RunRecords {
    fn entry_bytes(&self) -> usize {
        match self {
            RunRecords::Log { .. } => LOG_ENTRY_BYTES,
            RunRecords::Compacted(_) => COMPACTED_ENTRY_BYTES,
        }
    }
}

/// Decodes locations, and merges runs that were split over blocks.
pub(super) struct LocationsDecoder {
    /// The last command that they may cover.
    index: u64,
    runs: Vec<Run>,
}

impl LocationsDecoder {
    pub(super) fn up_to(index: u64) -> LocationsDecoder {
        LocationsDecoder { index, runs: Vec::new() }
    }

    /// Adds a block's body; none if it is not sorted, disjoint and complete, as [`LocationBlocks`]
    /// encodes it.
    pub(super) fn add(&mut self, mut body: &[u8]) -> Option<()> {
        while !body.is_empty() {
            let (head, rest) = body.split_at_checked(RUN_HEADER_BYTES)?;
            let (sequence, first, last) = (u64_at(head, 1), u64_at(head, 9), u64_at(head, 17));
            let count = u32_at(head, 25) as usize;
            if first == 0 || last < first || last > self.index {
                return None;
            }
            body = match head[0] {
                KIND_LOG => self.add_log(sequence, first, last, count, rest)?,
                KIND_COMPACTED => self.add_compacted(sequence, first, last, count, rest)?,
                _ => return None,
            };
        }
        Some(())
    }

    pub(super) fn locations(self) -> Locations {
        Locations::of(self.runs)
    }

    fn add_log<'a>(
        &mut self,
        sequence: u64,
        first: u64,
        last: u64,
        count: usize,
        rest: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (end, rest) = rest.split_at_checked(LOG_END_BYTES)?;
        let (entries, rest) = rest.split_at_checked(count.checked_mul(LOG_ENTRY_BYTES)?)?;
        let end = u32_at(end, 0);
        let more: Vec<u32> =
            entries.chunks_exact(LOG_ENTRY_BYTES).map(|entry| u32_at(entry, 0)).collect();
        let rise = more.windows(2).all(|pair| pair[0] < pair[1]);
        if last - first + 1 != count as u64
            || !rise
            || *more.first()? < SEGMENT_HEADER_BYTES as u32
            || *more.last()? >= end
        {
            return None;
        }
        match self.runs.last_mut() {
            Some(Run {
                last: known_last,
                sequence: of,
                records: RunRecords::Log { offsets, end: known_end },
                ..
            }) if *of == sequence && *known_last + 1 == first && *known_end == more[0] => {
                offsets.extend_from_slice(&more);
                (*known_last, *known_end) = (last, end);
            }
            before => {
                if before.is_some_and(|before| first <= before.last) {
                    return None;
                }
                let records = RunRecords::Log { offsets: more, end };
                self.runs.push(Run { first, last, sequence, records });
            }
        }
        Some(rest)
    }

    fn add_compacted<'a>(
        &mut self,
        sequence: u64,
        first: u64,
        last: u64,
        count: usize,
        rest: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (entries, rest) = rest.split_at_checked(count.checked_mul(COMPACTED_ENTRY_BYTES)?)?;
        let more = entries.chunks_exact(COMPACTED_ENTRY_BYTES).map(|entry| CompactedAt {
            index: u64_at(entry, 0),
            at: u32_at(entry, 8),
            offset: u32_at(entry, 12),
        });
        let goes_on = self.runs.last().is_some_and(|before| {
            (before.first, before.last, before.sequence) == (first, last, sequence)
                && matches!(before.records, RunRecords::Compacted(_))
        });
        if !goes_on {
            if self.runs.last().is_some_and(|before| first <= before.last) {
                return None;
            }
            let records = RunRecords::Compacted(Vec::with_capacity(count));
            self.runs.push(Run { first, last, sequence, records });
        }
        let Some(Run { records: RunRecords::Compacted(records), .. }) = self.runs.last_mut() else {
            return None;
        };
        for record in more {
            let rises = records
                .last()
                .is_none_or(|before| (before.index, before.at) < (record.index, record.at));
            if !rises
                || !(first..=last).contains(&record.index)
                || record.offset < SEGMENT_HEADER_BYTES as u32
            {
                return None;
            }
            records.push(record);
        }
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(first: u64, count: u64, sequence: u64) -> Run {
        let offsets: Vec<u32> = (0..count as u32).map(|position| 4096 + 50 * position).collect();
        let end = 4096 + 50 * count as u32;
        Run { first, last: first + count - 1, sequence, records: RunRecords::Log { offsets, end } }
    }

    fn compacted(
        first: u64,
        last: u64,
        sequence: u64,
        of: impl Iterator<Item = (u64, u32)>,
    ) -> Run {
        let position = |(position, (index, at))| CompactedAt {
            index,
            at,
            offset: 4096 + 60 * position as u32,
        };
        let records = of.enumerate().map(position).collect();
        Run { first, last, sequence, records: RunRecords::Compacted(records) }
    }

    fn blocks(locations: &Locations) -> Vec<Vec<u8>> {
        let mut encoder = LocationBlocks::of(locations);
        let mut blocks = Vec::new();
        loop {
            let mut body = Vec::new();
            if !encoder.next_block(&mut body) {
                assert!(body.is_empty());
                return blocks;
            }
            blocks.push(body);
        }
    }

    fn decoder(index: u64, blocks: &[Vec<u8>]) -> Option<Locations> {
        let mut decoder = LocationsDecoder::up_to(index);
        blocks.iter().try_for_each(|block| decoder.add(block))?;
        Some(decoder.locations())
    }

    #[test]
    fn locations_round_trip_over_any_number_of_blocks() {
        let many = compacted(50_001, 60_000, 9, (50_001..60_000).flat_map(|i| [(i, 0), (i, 70)]));
        let all = [
            vec![],
            vec![log(1, 1, 1)],
            vec![
                compacted(1, 40, 7, [(3, 0), (3, 90), (40, 8)].into_iter()),
                compacted(41, 50, 7, [].into_iter()),
                log(60, 49_941, 2),
                many,
                log(60_001, 16_384, 3),
                log(76_385, 10, 4),
            ],
        ];
        for runs in all {
            let locations = Locations::of(runs);
            let blocks = blocks(&locations);
            assert!(blocks.iter().all(|block| block.len() <= BLOCK_BYTES));
            assert_eq!(decoder(100_000, &blocks), Some(locations));
        }
    }

    #[test]
    fn unsorted_or_overlapping_runs_are_refused() {
        let bodies = |runs: &[Run]| {
            let mut body = Vec::new();
            runs.iter().for_each(|run| run.encode(0, run.entries(), &mut body));
            vec![body]
        };
        let (one, other) = (log(1, 10, 1), log(11, 10, 2));
        assert!(decoder(20, &bodies(&[one.clone(), other.clone()])).is_some());
        assert!(decoder(19, &bodies(&[one.clone(), other.clone()])).is_none(), "past its end");
        assert!(decoder(20, &bodies(&[other, one.clone()])).is_none());
        assert!(decoder(20, &bodies(&[one.clone(), log(10, 1, 2)])).is_none());
        assert!(decoder(20, &bodies(&[log(0, 2, 1)])).is_none());
        let outside = compacted(11, 12, 3, [(13, 0)].into_iter());
        assert!(decoder(20, &bodies(&[one.clone(), outside])).is_none());
        let falls = compacted(11, 12, 3, [(12, 0), (11, 0)].into_iter());
        assert!(decoder(20, &bodies(&[one, falls])).is_none());
    }

    #[test]
    fn truncated_location_block_is_refused() {
        let runs = vec![log(1, 3, 1), compacted(4, 9, 2, [(5, 0), (5, 9)].into_iter())];
        let block = blocks(&Locations::of(runs)).remove(0);
        for length in 1..block.len() {
            let whole_run = length == RUN_HEADER_BYTES + LOG_END_BYTES + 3 * LOG_ENTRY_BYTES;
            let read = decoder(20, &[block[..length].to_vec()]);
            assert_eq!(read.is_some(), whole_run, "{length}");
        }
    }
}
