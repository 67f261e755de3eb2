//! The bytes of a record. `docs/JOURNAL.md` describes them for other programs.
//!
//! ```text
//! record:           length 4 │ CRC 4 │ term 6 │ flags 1 │ kind 1 │ index 8 │ mono_ms 8 │
//!                   wall_ms 8 │ body
//! with a long body: … │ wall_ms 8 │ CRC 4 of each block of 4096 │ body
//! ```
//! All numbers are little-endian. `length` counts the bytes after the first CRC. That CRC covers
//! header and body, or header and the blocks' checksums: a part of a long body is verified without
//! the rest.

use crate::Now;

use crate::journal::wal::format::{u32_at, u64_at};

/// Bytes before a record's body, or before its blocks' checksums.
pub(crate) const RECORD_HEADER_BYTES: usize = 40;
/// A longer body is verified in blocks of this length; the last one may be shorter.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The longest body: lengths and offsets in it fit 31 bits.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// The first record of a commit: every record before it was durable when it was written, so an
/// invalid record before it is not a torn tail.
pub(crate) const FLAG_FIRST: u8 = 1;
/// Copied out of a compacted segment: its index is older than its neighbours'.
pub(crate) const FLAG_COMPACTED: u8 = 2;
/// Its body is checked in blocks.
pub(crate) const FLAG_BLOCKS: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_FIRST | FLAG_COMPACTED | FLAG_BLOCKS;

/// Bytes of a record that `length` does not count: itself and the checksum.
const UNCOUNTED: usize = 8;
/// Bytes of a block's checksum.
pub(crate) const BLOCK_CRC_BYTES: usize = 4;

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    /// The term of a consensus log; 0 in a local journal. 48 bits.
    pub(crate) term: u64,
    pub(crate) flags: u8,
    pub(crate) kind: u8,
    pub(crate) index: u64,
    pub(crate) now: Now,
    pub(crate) body_len: usize,
}

/// Why there is no valid record at an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRecord {
    /// Nothing was written here.
    Empty,
    /// The bytes are not a valid record of this segment.
    Bad,
    /// The disk cannot read a part of it: it may have been valid.
    Unreadable,
}

/// Bytes of a command's record with a body of that length.
pub(crate) fn record_len(body_len: usize) -> usize {
    RECORD_HEADER_BYTES + table_len(body_len) + body_len
}

fn table_len(body_len: usize) -> usize {
    if body_len > BLOCK_BYTES { BLOCK_CRC_BYTES * body_len.div_ceil(BLOCK_BYTES) } else { 0 }
}

/// Whether a block matches its recorded checksum.
pub(crate) fn is_good_block(seed: u32, block: &[u8], crc: &[u8]) -> bool {
    crc32c::crc32c_append(seed, block).to_le_bytes() == crc
}

impl RecordHeader {
    /// Appends the record to `out`; its body is `head`, then `body`. A long body gets block
    /// checksums, unless the record is compacted, which is always read whole.
    pub(crate) fn encode(&self, seed: u32, head: &[u8], body: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(self.body_len, head.len() + body.len());
        let start = out.len();
        let blocks = self.flags & FLAG_COMPACTED == 0 && self.body_len > BLOCK_BYTES;
        let flags = self.flags | if blocks { FLAG_BLOCKS } else { 0 };
        let body_at = RECORD_HEADER_BYTES + if blocks { table_len(self.body_len) } else { 0 };
        let length = (body_at + self.body_len - UNCOUNTED) as u32;
        out.reserve(body_at + self.body_len);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.term.to_le_bytes()[..6]);
        out.extend_from_slice(&[flags, self.kind]);
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&self.now.mono_ms.to_le_bytes());
        out.extend_from_slice(&self.now.wall_ms.to_le_bytes());
        out.resize(start + body_at, 0);
        out.extend_from_slice(head);
        out.extend_from_slice(body);
        let (before, body) = out[start..].split_at_mut(body_at);
        if blocks {
            let table = before[RECORD_HEADER_BYTES..].chunks_exact_mut(BLOCK_CRC_BYTES);
            for (crc, block) in table.zip(body.chunks(BLOCK_BYTES)) {
                crc.copy_from_slice(&crc32c::crc32c_append(seed, block).to_le_bytes());
            }
        }
        let covered = if blocks { body_at } else { body_at + self.body_len };
        let crc = record_crc(seed, &out[start..start + covered]);
        out[start + 4..start + UNCOUNTED].copy_from_slice(&crc.to_le_bytes());
    }

    /// The claimed length of the record at the start of `bytes`; `left` is the number of bytes from
    /// there to the segment's end.
    pub(crate) fn claimed_len(bytes: &[u8], left: u64) -> Result<usize, NoRecord> {
        if left < RECORD_HEADER_BYTES as u64 || bytes.len() < RECORD_HEADER_BYTES {
            return Err(NoRecord::Empty);
        }
        let length = u32_at(bytes, 0) as usize;
        if length == 0 {
            return Err(NoRecord::Empty);
        }
        let whole = length + UNCOUNTED;
        if whole < RECORD_HEADER_BYTES || whole as u64 > left {
            return Err(NoRecord::Bad);
        }
        Ok(whole)
    }

    /// Reads an unverified header, for a record whose blocks are verified one by one.
    pub(crate) fn peek(bytes: &[u8]) -> Result<RecordHeader, NoRecord> {
        let whole = RecordHeader::claimed_len(bytes, u64::MAX)?;
        let flags = bytes[14];
        if flags & !FLAGS_KNOWN != 0 {
            return Err(NoRecord::Bad);
        }
        let mut body_len = whole - RECORD_HEADER_BYTES;
        if flags & FLAG_BLOCKS != 0 {
            let blocks = body_len.div_ceil(BLOCK_BYTES + BLOCK_CRC_BYTES);
            body_len = body_len.checked_sub(blocks * BLOCK_CRC_BYTES).ok_or(NoRecord::Bad)?;
            // A table of a length that no body has.
            if body_len <= BLOCK_BYTES || table_len(body_len) != blocks * BLOCK_CRC_BYTES {
                return Err(NoRecord::Bad);
            }
        }
        let mut term = [0; 8];
        term[..6].copy_from_slice(&bytes[8..14]);
        Ok(RecordHeader {
            term: u64::from_le_bytes(term),
            flags,
            kind: bytes[15],
            index: u64_at(bytes, 16),
            now: Now { mono_ms: u64_at(bytes, 24), wall_ms: u64_at(bytes, 32) },
            body_len,
        })
    }

    /// Reads and verifies a whole record of [`RecordHeader::claimed_len`] bytes.
    pub(crate) fn decode(record: &[u8], seed: u32) -> Result<RecordHeader, NoRecord> {
        let header = RecordHeader::peek(record).map_err(|_| NoRecord::Bad)?;
        let body_at = header.body_at();
        if body_at + header.body_len != record.len() {
            return Err(NoRecord::Bad);
        }
        if !RecordHeader::matches_checksum(&record[..header.covered_len()], seed) {
            return Err(NoRecord::Bad);
        }
        if header.has_blocks() {
            let table = record[RECORD_HEADER_BYTES..body_at].chunks_exact(BLOCK_CRC_BYTES);
            let mut blocks = table.zip(record[body_at..].chunks(BLOCK_BYTES));
            if !blocks.all(|(crc, block)| is_good_block(seed, block, crc)) {
                return Err(NoRecord::Bad);
            }
        }
        Ok(header)
    }

    /// Whether the checksum of a record matches its first [`RecordHeader::covered_len`] bytes.
    pub(crate) fn matches_checksum(covered: &[u8], seed: u32) -> bool {
        record_crc(seed, covered) == u32_at(covered, 4)
    }

    /// Whether [`RecordHeader::encode`] writes such a record: a long body has blocks.
    pub(crate) fn is_written(&self) -> bool {
        self.has_blocks() || self.flags & FLAG_COMPACTED != 0 || self.body_len <= BLOCK_BYTES
    }

    /// Bytes from the record's beginning that its checksum covers.
    pub(crate) fn covered_len(&self) -> usize {
        self.body_at() + if self.has_blocks() { 0 } else { self.body_len }
    }

    pub(crate) fn has_blocks(&self) -> bool {
        self.flags & FLAG_BLOCKS != 0
    }

    /// Where the body begins in the record.
    pub(crate) fn body_at(&self) -> usize {
        RECORD_HEADER_BYTES + if self.has_blocks() { table_len(self.body_len) } else { 0 }
    }
}

/// The checksum of the length and all bytes after the checksum.
fn record_crc(seed: u32, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &record[..4]), &record[UNCOUNTED..])
}

#[cfg(test)]
mod tests {
    use longshore_protocol::PublisherId;

    use super::*;
    use crate::journal::wal::format::crc_seed;

    const PUBLISHER: PublisherId = PublisherId([7; 16]);

    // Computed by another program from the description alone.
    const GOLDEN_SHORT_CRC: [u8; 4] = [0xe3, 0x21, 0xa1, 0xf1];
    const GOLDEN_LONG_CRC: [u8; 4] = [0x1c, 0xd1, 0x49, 0x39];
    const GOLDEN_BLOCK_CRCS: [u8; 8] = [0x91, 0x44, 0xd0, 0x4a, 0xd5, 0x2a, 0xb9, 0x6c];

    fn header(index: u64, body_len: usize) -> RecordHeader {
        RecordHeader { term: 0, flags: 0, kind: 8, index, now: Now::default(), body_len }
    }

    fn encoded(header: RecordHeader, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let (head, rest) = body.split_at(body.len() / 3);
        header.encode(crc_seed(PUBLISHER, 1), head, rest, &mut out);
        out
    }

    #[test]
    fn short_record_matches_golden_bytes() {
        let now = Now { mono_ms: 6, wall_ms: 7 };
        let header =
            RecordHeader { term: 0x0102, flags: FLAG_FIRST, kind: 8, index: 5, now, body_len: 3 };
        let out = encoded(header, b"abc");
        let mut golden = vec![35, 0, 0, 0];
        golden.extend_from_slice(&GOLDEN_SHORT_CRC);
        golden.extend_from_slice(&[2, 1, 0, 0, 0, 0, 1, 8]);
        golden.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(out, golden);
        assert_eq!(RecordHeader::claimed_len(&out, 43), Ok(43));
        assert_eq!(RecordHeader::decode(&out, crc_seed(PUBLISHER, 1)), Ok(header));
    }

    #[test]
    fn long_record_matches_golden_bytes() {
        let now = Now { mono_ms: 6, wall_ms: 7 };
        let header = RecordHeader { term: 0, flags: 0, kind: 8, index: 5, now, body_len: 4_097 };
        let body: Vec<u8> = (0..4_097).map(|n| (n % 251) as u8).collect();
        let out = encoded(header, &body);
        // 32 of the header, two checksums, the body.
        let mut golden = (32_u32 + 8 + 4_097).to_le_bytes().to_vec();
        golden.extend_from_slice(&GOLDEN_LONG_CRC);
        golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 4, 8]);
        golden.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&GOLDEN_BLOCK_CRCS);
        golden.extend_from_slice(&body);
        assert_eq!(out[..60], golden[..60]);
        assert_eq!(out, golden);
        let read = RecordHeader::decode(&out, crc_seed(PUBLISHER, 1)).unwrap();
        assert_eq!(read, RecordHeader { flags: FLAG_BLOCKS, ..header });
        assert_eq!((read.body_at(), record_len(4_097)), (48, golden.len()));
    }

    #[test]
    fn bodies_around_the_block_size_round_trip() {
        let seed = crc_seed(PUBLISHER, 1);
        let about = |n: usize| n - 9..=n + 9;
        let lengths = (0..20).chain([1, 2, 3, 5].into_iter().flat_map(|n| about(n * BLOCK_BYTES)));
        for length in lengths {
            let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let out = encoded(header(5, length), &body);
            assert_eq!(out.len(), record_len(length));
            let read = RecordHeader::decode(&out, seed).unwrap();
            assert_eq!((read.body_len, read.has_blocks()), (length, length > BLOCK_BYTES));
            assert_eq!(&out[read.body_at()..], body);
            // One in a compacted file is read whole.
            let compacted = RecordHeader { flags: FLAG_COMPACTED, ..header(5, length) };
            let out = encoded(compacted, &body);
            assert_eq!(RecordHeader::decode(&out, seed), Ok(compacted));
            assert_eq!(out.len(), RECORD_HEADER_BYTES + length);
            // As records of any length were written before there were blocks.
            let whole = RecordHeader { flags: FLAG_FIRST, ..compacted };
            let mut out = out;
            out[14] = FLAG_FIRST;
            let crc = record_crc(seed, &out);
            out[4..8].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(RecordHeader::decode(&out, seed), Ok(whole));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_detected() {
        let seed = crc_seed(PUBLISHER, 1);
        for length in [4, 2 * BLOCK_BYTES + 3] {
            let mut out = encoded(header(5, length), &vec![b'b'; length]);
            for bit in 0..out.len() * 8 {
                out[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(RecordHeader::decode(&out, seed), Err(NoRecord::Bad), "bit {bit}");
                out[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(RecordHeader::decode(&out, seed).is_ok());
        }
    }

    #[test]
    fn record_of_another_segment_or_journal_is_rejected() {
        for length in [0, BLOCK_BYTES + 1] {
            let out = encoded(header(5, length), &vec![1; length]);
            for seed in [crc_seed(PUBLISHER, 2), crc_seed(PublisherId([8; 16]), 1)] {
                assert_eq!(RecordHeader::decode(&out, seed), Err(NoRecord::Bad));
            }
        }
    }

    #[test]
    fn impossible_checksum_table_length_is_rejected() {
        let mut out = encoded(header(5, 5_000), &[0; 5_000]);
        // One block, or a second one without a byte of its own: bodies that have no table, or a
        // shorter one.
        for rest in [0, 3, 4, 5, 4_100, 4_101, 4_104, 8_201, 8_204] {
            out[..4].copy_from_slice(&(32_u32 + rest).to_le_bytes());
            assert_eq!(RecordHeader::peek(&out), Err(NoRecord::Bad), "{rest}");
        }
        out[..4].copy_from_slice(&(32_u32 + 4_105).to_le_bytes());
        assert_eq!(RecordHeader::peek(&out).map(|header| header.body_len), Ok(4_097));
    }
}
