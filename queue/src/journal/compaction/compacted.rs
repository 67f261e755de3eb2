//! The body of a compacted record: the live parts of one command's body.
//!
//! ```text
//! count 2 │ (at 4 │ length 4) × count │ the bytes of the parts, one after the other
//! ```
//! Parts are sorted by `at` and do not overlap. A part that was corrupt before compaction has bit
//! 31 of its length set, and no bytes.

use bytes::Bytes;

use crate::RecordRef;
use crate::journal::wal::format::u32_at;

/// Parts in a record.
pub(crate) const COMPACTED_PARTS_MAX: usize = 64;
/// Bytes of parts in a record, unless one part alone is longer: reading one part reads the whole
/// record.
pub(crate) const COMPACTED_BYTES_MAX: usize = 64 * 1024;

const COUNT_BYTES: usize = 2;
const PART_BYTES: usize = 8;
const CORRUPT: u32 = 1 << 31;

/// A part of a command in a compacted record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactedPart {
    /// Where it begins in its command's body.
    pub at: u32,
    /// How long it is.
    pub length: u32,
    /// None if they were corrupt before compaction.
    pub bytes: Option<Bytes>,
}

/// The result of reading a part from a compacted record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PartRead {
    Bytes(Bytes),
    /// The part was corrupt before compaction.
    Corrupt,
    /// The part was dead, so compaction dropped it.
    Missing,
}

/// Bytes of the body with these parts.
pub(crate) fn body_len(parts: &[CompactedPart]) -> usize {
    body_len_of(parts.iter().map(|part| part.bytes.as_ref().map_or(0, Bytes::len)))
}

/// Bytes of the body with parts of these lengths.
pub(crate) fn body_len_of(lengths: impl Iterator<Item = usize>) -> usize {
    COUNT_BYTES + lengths.map(|length| PART_BYTES + length).sum::<usize>()
}

/// Appends the body with these parts.
pub(crate) fn encode(parts: &[CompactedPart], out: &mut Vec<u8>) {
    out.extend_from_slice(&(parts.len() as u16).to_le_bytes());
    for part in parts {
        let corrupt = if part.bytes.is_none() { CORRUPT } else { 0 };
        out.extend_from_slice(&part.at.to_le_bytes());
        out.extend_from_slice(&(part.length | corrupt).to_le_bytes());
    }
    for bytes in parts.iter().filter_map(|part| part.bytes.as_ref()) {
        out.extend_from_slice(bytes);
    }
}

/// All parts of a body; none if the body is inconsistent.
pub(crate) fn decode(body: &Bytes) -> Option<Vec<CompactedPart>> {
    let count = body.get(..COUNT_BYTES)?;
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    let mut from = COUNT_BYTES + count * PART_BYTES;
    let table = body.get(COUNT_BYTES..from)?;
    let mut parts = Vec::with_capacity(count);
    for part in table.chunks_exact(PART_BYTES) {
        let (at, length) = (u32_at(part, 0), u32_at(part, 4));
        let mut part = CompactedPart { at, length: length & !CORRUPT, bytes: None };
        if length & CORRUPT == 0 {
            let to = from.checked_add(length as usize).filter(|&to| to <= body.len())?;
            part.bytes = Some(body.slice(from..to));
            from = to;
        }
        parts.push(part);
    }
    (from == body.len()).then_some(parts)
}

/// Reads a part, or a range of one. The record's checksum was verified before.
pub(crate) fn part_of(body: &Bytes, part: RecordRef) -> PartRead {
    let Some(count) = body.get(..COUNT_BYTES) else { return PartRead::Missing };
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    let mut from = COUNT_BYTES + count * PART_BYTES;
    let Some(table) = body.get(COUNT_BYTES..from) else { return PartRead::Missing };
    let ends = u64::from(part.at) + u64::from(part.length);
    for entry in table.chunks_exact(PART_BYTES) {
        let (at, length) = (u32_at(entry, 0), u32_at(entry, 4));
        let (corrupt, length) = (length & CORRUPT != 0, length & !CORRUPT);
        if at <= part.at && ends <= u64::from(at) + u64::from(length) {
            if corrupt {
                return PartRead::Corrupt;
            }
            let begins = from + (part.at - at) as usize;
            let bytes = begins..begins + part.length as usize;
            let fits = bytes.end <= body.len();
            return if fits { PartRead::Bytes(body.slice(bytes)) } else { PartRead::Missing };
        }
        from += if corrupt { 0 } else { length as usize };
    }
    PartRead::Missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<CompactedPart> {
        let part = |at, bytes: &'static [u8]| CompactedPart {
            at,
            length: bytes.len() as u32,
            bytes: Some(Bytes::from_static(bytes)),
        };
        let corrupt = CompactedPart { at: 20, length: 5, bytes: None };
        vec![part(3, b"abc"), part(10, b""), corrupt, part(25, b"defgh")]
    }

    fn body() -> Bytes {
        let mut body = Vec::new();
        encode(&parts(), &mut body);
        body.into()
    }

    #[test]
    fn compacted_body_matches_golden_bytes() {
        let mut golden = vec![4, 0];
        golden.extend_from_slice(&[3, 0, 0, 0, 3, 0, 0, 0]);
        golden.extend_from_slice(&[10, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[20, 0, 0, 0, 5, 0, 0, 128]);
        golden.extend_from_slice(&[25, 0, 0, 0, 5, 0, 0, 0]);
        golden.extend_from_slice(b"abcdefgh");
        assert_eq!(body(), golden);
        assert_eq!(body_len(&parts()), golden.len());
        assert_eq!(decode(&body()), Some(parts()));
    }

    #[test]
    fn whole_parts_and_subranges_of_parts_are_read_back() {
        let read = |at, length| part_of(&body(), RecordRef { index: 1, at, length });
        let bytes = |bytes: &'static [u8]| PartRead::Bytes(Bytes::from_static(bytes));
        assert_eq!(read(3, 3), bytes(b"abc"));
        assert_eq!(read(4, 1), bytes(b"b"));
        assert_eq!(read(10, 0), bytes(b""));
        assert_eq!((read(20, 5), read(21, 2)), (PartRead::Corrupt, PartRead::Corrupt));
        assert_eq!((read(25, 5), read(28, 2)), (bytes(b"defgh"), bytes(b"gh")));
        for (at, length) in [(2, 3), (3, 4), (6, 1), (10, 1), (19, 3), (24, 2), (28, 3), (31, 0)] {
            assert_eq!(read(at, length), PartRead::Missing, "{at} {length}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_decoder() {
        let whole = body();
        for length in 0..whole.len() {
            let cut = whole.slice(..length);
            assert_eq!(decode(&cut), None);
            for at in 0..40 {
                part_of(&cut, RecordRef { index: 1, at, length: 3 });
            }
        }
        let many = Bytes::from_static(&[255; 40]);
        assert_eq!(
            part_of(&many, RecordRef { index: 1, at: u32::MAX, length: u32::MAX }),
            PartRead::Missing
        );
    }
}
