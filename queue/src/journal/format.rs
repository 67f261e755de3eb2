//! The bytes of a segment. `docs/JOURNAL.md` describes them for other programs.
//!
//! ```text
//! segment:  header (4096) │ record │ record │ … │ zeros
//! header:   magic 8 │ version 2 │ 0 (6) │ publisher 16 │ sequence 8 │ first index 8 │ 0 (12) │ CRC 4 │ 0 …
//! record:   length 4 │ CRC 4 │ term 6 │ flags 1 │ kind 1 │ index 8 │ mono_ms 8 │ wall_ms 8 │ body
//! ```
//! All numbers are little-endian. `length` counts what follows the CRC.

use longshore_protocol::PublisherId;

use crate::Now;

/// Bytes before a segment's first record: a disk block of its own, written again only once.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 4096;
/// Bytes before a record's body.
pub(crate) const RECORD_HEADER_BYTES: usize = 40;
/// The version that this program writes, and the only one that it reads: that of the files, and of the commands in them.
pub(crate) const FORMAT_VERSION: u16 = 2;

const MAGIC: &[u8; 8] = b"LONGSEG\n";
/// Bytes of a record that `length` does not count: itself and the checksum.
const UNCOUNTED: usize = 8;
pub(crate) const HEADER_CRC_AT: usize = 60;

/// Begins a commit: every record before it was durable when it was written. So no bad record before it is a torn tail.
pub(crate) const FLAG_FIRST: u8 = 1;
/// Carried forward from a segment that was given up: its index is older than its neighbours'.
pub(crate) const FLAG_CARRIED: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_FIRST | FLAG_CARRIED;

/// What a segment says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) publisher: PublisherId,
    /// Its number, as in its name; never given twice.
    pub(crate) sequence: u64,
    /// The index of its first record; 0 while it is prepared and holds none.
    pub(crate) first_index: u64,
}

/// Why bytes are not a segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    /// A program of another format wrote it.
    OtherFormat(u16),
    /// It is cut off or damaged, or was never finished.
    Bad,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.publisher.0);
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first_index.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<SegmentHeader, HeaderError> {
        if &bytes[..8] != MAGIC {
            return Err(HeaderError::Bad);
        }
        if header_crc(bytes) != u32_at(bytes, HEADER_CRC_AT) {
            return Err(HeaderError::Bad);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != FORMAT_VERSION {
            return Err(HeaderError::OtherFormat(version));
        }
        let mut publisher = PublisherId::default();
        publisher.0.copy_from_slice(&bytes[16..32]);
        let (sequence, first_index) = (u64_at(bytes, 32), u64_at(bytes, 40));
        Ok(SegmentHeader { publisher, sequence, first_index })
    }
}

/// Over the whole block but the checksum itself; that much stays the same in every version.
pub(crate) fn header_crc(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..HEADER_CRC_AT]);
    crc32c::crc32c_append(crc, &bytes[HEADER_CRC_AT + 4..])
}

/// What a record says before its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    /// Of a consensus log; 0 in a lone journal. 48 bits.
    pub(crate) term: u64,
    pub(crate) flags: u8,
    pub(crate) kind: u8,
    pub(crate) index: u64,
    pub(crate) now: Now,
    pub(crate) body_len: usize,
}

/// Why there is no record at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRecord {
    /// Nothing was written here.
    Empty,
    /// What is here is not a whole record of this segment.
    Bad,
}

/// The longest body: a record's length must fit its field.
pub(crate) const BODY_BYTES_MAX: usize = u32::MAX as usize - RECORD_HEADER_BYTES;

/// All bytes of a record with a body of that many.
pub(crate) fn record_len(body_len: usize) -> usize {
    RECORD_HEADER_BYTES + body_len
}

/// Where a segment's checksums begin: a record of another segment, or of another publisher, is not one of this one's.
pub(crate) fn crc_seed(publisher: PublisherId, sequence: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&publisher.0), &sequence.to_le_bytes())
}

impl RecordHeader {
    /// Appends the record to `out`; its body is `head`, then `body`.
    pub(crate) fn encode(&self, seed: u32, head: &[u8], body: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(self.body_len, head.len() + body.len());
        let start = out.len();
        let length = (record_len(self.body_len) - UNCOUNTED) as u32;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.term.to_le_bytes()[..6]);
        out.extend_from_slice(&[self.flags, self.kind]);
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&self.now.mono_ms.to_le_bytes());
        out.extend_from_slice(&self.now.wall_ms.to_le_bytes());
        out.extend_from_slice(head);
        out.extend_from_slice(body);
        let crc = record_crc(seed, &out[start..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// How long the record at the start of `bytes` claims to be; `left` is how many bytes its segment still has there.
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

    /// Reads and checks a whole record: exactly the bytes that [`RecordHeader::claimed_len`] counted.
    pub(crate) fn decode(record: &[u8], seed: u32) -> Result<RecordHeader, NoRecord> {
        if record.len() < RECORD_HEADER_BYTES || record_crc(seed, record) != u32_at(record, 4) {
            return Err(NoRecord::Bad);
        }
        let mut term = [0; 8];
        term[..6].copy_from_slice(&record[8..14]);
        let flags = record[14];
        if flags & !FLAGS_KNOWN != 0 {
            return Err(NoRecord::Bad);
        }
        Ok(RecordHeader {
            term: u64::from_le_bytes(term),
            flags,
            kind: record[15],
            index: u64_at(record, 16),
            now: Now { mono_ms: u64_at(record, 24), wall_ms: u64_at(record, 32) },
            body_len: record.len() - RECORD_HEADER_BYTES,
        })
    }
}

/// Over the length and all that follows the checksum.
fn record_crc(seed: u32, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &record[..4]), &record[UNCOUNTED..])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHER: PublisherId = PublisherId([7; 16]);

    #[test]
    fn a_record_has_these_bytes() {
        let header = RecordHeader {
            term: 0x0102,
            flags: FLAG_FIRST,
            kind: 8,
            index: 5,
            now: Now { mono_ms: 6, wall_ms: 7 },
            body_len: 3,
        };
        let mut out = Vec::new();
        header.encode(crc_seed(PUBLISHER, 1), b"a", b"bc", &mut out);
        let mut golden = vec![35, 0, 0, 0];
        golden.extend_from_slice(&out[4..8]);
        golden.extend_from_slice(&[2, 1, 0, 0, 0, 0, 1, 8]);
        golden.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(out, golden);
        assert_eq!(RecordHeader::claimed_len(&out, 43), Ok(43));
        assert_eq!(RecordHeader::decode(&out, crc_seed(PUBLISHER, 1)), Ok(header));
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_seen() {
        let seed = crc_seed(PUBLISHER, 1);
        let (index, now) = (5, Now::default());
        let header = RecordHeader { term: 0, flags: 0, kind: 8, index, now, body_len: 4 };
        let mut out = Vec::new();
        header.encode(seed, b"", b"body", &mut out);
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bad, seed), Err(NoRecord::Bad), "bit {bit}");
        }
    }

    #[test]
    fn a_record_of_another_segment_or_publisher_is_not_one_of_this_one() {
        let (index, now) = (5, Now::default());
        let header = RecordHeader { term: 0, flags: 0, kind: 8, index, now, body_len: 0 };
        let mut out = Vec::new();
        header.encode(crc_seed(PUBLISHER, 1), b"", b"", &mut out);
        for seed in [crc_seed(PUBLISHER, 2), crc_seed(PublisherId([8; 16]), 1)] {
            assert_eq!(RecordHeader::decode(&out, seed), Err(NoRecord::Bad));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_segment_header_is_seen() {
        let header = SegmentHeader { publisher: PUBLISHER, sequence: 3, first_index: 9 };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bad), Err(HeaderError::Bad), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let header = SegmentHeader { publisher: PUBLISHER, sequence: 3, first_index: 9 };
        for version in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
            let mut bytes = header.encode();
            bytes[8..10].copy_from_slice(&version.to_le_bytes());
            let crc = header_crc(&bytes);
            bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            let read = SegmentHeader::decode(&bytes);
            assert_eq!(read, Err(HeaderError::OtherFormat(version)));
        }
    }
}
