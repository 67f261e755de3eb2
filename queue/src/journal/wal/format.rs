//! The bytes of a segment. `docs/JOURNAL.md` describes them for other programs.
//!
//! ```text
//! segment:  header (4096) │ record │ record │ … │ zeros
//! header:   magic 8 │ version 2 │ 0 (6) │ journal 16 │ sequence 8 │ first index 8 │ kind 1 │
//!           0 (11) │ CRC 4 │ 0 …
//! ```
//! All numbers are little-endian.

use longshore_protocol::PublisherId;

/// Bytes before a segment's first record: a separate disk block, rewritten only once.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 4096;
/// The format of the files, and of the commands in them. A directory of any other is refused.
pub(crate) const FORMAT_VERSION: u16 = 5;

const MAGIC: &[u8; 8] = b"LONGSEG\n";
const KIND_AT: usize = 48;
pub(crate) const HEADER_CRC_AT: usize = 60;

/// What a segment contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentContent {
    /// Commands in their order.
    Log,
    /// The live parts of commands of compacted segments.
    Compacted,
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) kind: SegmentContent,
    pub(crate) journal: PublisherId,
    /// Its number, as in its name; never reused.
    pub(crate) sequence: u64,
    /// The index of its first record; 0 in a preallocated segment and in a compacted file.
    pub(crate) first_index: u64,
}

/// Why bytes are not a segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    /// A program of another format wrote it.
    OtherFormat(u16),
    /// It is truncated, damaged or unfinished.
    Bad,
}

impl SegmentHeader {
    /// The header of a segment of the log.
    pub(crate) fn log(journal: PublisherId, sequence: u64, first_index: u64) -> SegmentHeader {
        SegmentHeader { kind: SegmentContent::Log, journal, sequence, first_index }
    }

    /// The header of a compacted file.
    pub(crate) fn compacted(journal: PublisherId, sequence: u64) -> SegmentHeader {
        SegmentHeader {
            kind: SegmentContent::Compacted,
            ..SegmentHeader::log(journal, sequence, 0)
        }
    }

    pub(crate) fn is_compacted(&self) -> bool {
        self.kind == SegmentContent::Compacted
    }

    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.journal.0);
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first_index.to_le_bytes());
        bytes[KIND_AT] = u8::from(self.is_compacted());
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
        let kind = match bytes[KIND_AT] {
            0 => SegmentContent::Log,
            1 => SegmentContent::Compacted,
            _ => return Err(HeaderError::Bad),
        };
        let mut journal = PublisherId::default();
        journal.0.copy_from_slice(&bytes[16..32]);
        let (sequence, first_index) = (u64_at(bytes, 32), u64_at(bytes, 40));
        Ok(SegmentHeader { kind, journal, sequence, first_index })
    }
}

/// The checksum of the whole block but itself. Its range is the same in every version.
pub(crate) fn header_crc(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..HEADER_CRC_AT]);
    crc32c::crc32c_append(crc, &bytes[HEADER_CRC_AT + 4..])
}

/// The initial value of a segment's checksums: records of another segment or journal do not pass.
pub(crate) fn crc_seed(journal: PublisherId, sequence: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&journal.0), &sequence.to_le_bytes())
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

    const JOURNAL: PublisherId = PublisherId([7; 16]);

    fn headers() -> [SegmentHeader; 2] {
        [SegmentHeader::log(JOURNAL, 3, 9), SegmentHeader::compacted(JOURNAL, 4)]
    }

    #[test]
    fn segment_header_matches_golden_bytes() {
        let mut golden = [0; SEGMENT_HEADER_BYTES];
        golden[..8].copy_from_slice(b"LONGSEG\n");
        golden[8] = 5;
        golden[16..32].fill(7);
        golden[32] = 4;
        golden[48] = 1;
        let crc = header_crc(&golden);
        golden[60..64].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::compacted(JOURNAL, 4).encode(), golden);
    }

    #[test]
    fn every_flipped_bit_of_a_segment_header_is_detected() {
        for header in headers() {
            let bytes = header.encode();
            assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SegmentHeader::decode(&bad), Err(HeaderError::Bad), "bit {bit}");
            }
        }
    }

    #[test]
    fn other_format_version_is_distinguished_from_damage() {
        for version in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
            let mut bytes = headers()[0].encode();
            bytes[8..10].copy_from_slice(&version.to_le_bytes());
            let crc = header_crc(&bytes);
            bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::OtherFormat(version)));
        }
    }

    #[test]
    fn unknown_segment_kind_is_damage() {
        let mut bytes = headers()[1].encode();
        bytes[KIND_AT] = 2;
        let crc = header_crc(&bytes);
        bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Bad));
    }
}
