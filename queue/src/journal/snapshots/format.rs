//! The bytes of a snapshot file. `docs/JOURNAL.md` describes them for other programs.
//!
//! ```text
//! snapshot: header (4096) │ block 0 │ block 1 │ …
//! header:   magic 8 │ version 2 │ 0 (6) │ journal 16 │ index 8 │ epoch 8 │ 0 (12) │ CRC 4 │ 0 …
//! block:    length 4 │ CRC 4 │ kind 1 │ body
//! ```
//! All numbers are little-endian. `length` counts what follows the CRC.

use longshore_protocol::PublisherId;

use crate::journal::wal::format::{
    FORMAT_VERSION, HEADER_CRC_AT, HeaderError, SEGMENT_HEADER_BYTES, header_crc, u32_at, u64_at,
};

/// Bytes before the first block: as many as a segment has.
pub(crate) const HEADER_BYTES: usize = SEGMENT_HEADER_BYTES;
/// Bytes before a block's body.
pub(crate) const BLOCK_HEADER_BYTES: usize = 9;
/// Longest block, in bytes. A reader allocates no more, whatever a length claims.
pub(crate) const BLOCK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of a block that `length` does not count: itself and the checksum.
const UNCOUNTED: usize = 8;

const MAGIC: &[u8; 8] = b"LONGSNP\n";

/// Where the command after the snapshot's last one is, or will be.
pub(crate) const KIND_RESUME: u8 = 1;
/// Locations of records.
pub(crate) const KIND_LOCATIONS: u8 = 2;
/// Part of the state.
pub(crate) const KIND_STATE: u8 = 3;
/// The last block.
pub(crate) const KIND_END: u8 = 255;

/// The header of a snapshot file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotHeader {
    pub(crate) journal: PublisherId,
    /// The last command that it reflects.
    pub(crate) index: u64,
    /// The epoch of the last start that it reflects; 0 for none.
    pub(crate) epoch: u64,
}

impl SnapshotHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.journal.0);
        bytes[32..40].copy_from_slice(&self.index.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<SnapshotHeader, HeaderError> {
        if &bytes[..8] != MAGIC || header_crc(bytes) != u32_at(bytes, HEADER_CRC_AT) {
            return Err(HeaderError::Bad);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != FORMAT_VERSION {
            return Err(HeaderError::OtherFormat(version));
        }
        let mut journal = PublisherId::default();
        journal.0.copy_from_slice(&bytes[16..32]);
        Ok(SnapshotHeader { journal, index: u64_at(bytes, 32), epoch: u64_at(bytes, 40) })
    }

    /// The initial value of its blocks' checksums.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.journal.0), &self.index.to_le_bytes())
    }
}

/// The checksum of a block. It covers snapshot, block number and content, so that a block of
/// another snapshot or position never passes.
fn block_crc(seed: u32, number: u64, counted: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &number.to_le_bytes()), counted)
}

/// Completes the block in `out` from `start` on: space for its header, then its body.
pub(crate) fn seal_block(seed: u32, number: u64, kind: u8, start: usize, out: &mut [u8]) {
    let block = &mut out[start..];
    block[8] = kind;
    let (length, crc) =
        ((block.len() - UNCOUNTED) as u32, block_crc(seed, number, &block[UNCOUNTED..]));
    block[..4].copy_from_slice(&length.to_le_bytes());
    block[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// A snapshot file of command `index` with these blocks between its first and its last.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn with_blocks(journal: PublisherId, index: u64, blocks: &[(u8, &[u8])]) -> Vec<u8> {
    let header = SnapshotHeader { journal, index, epoch: 1 };
    let (mut out, mut number) = (header.encode().to_vec(), 0);
    let mut put = |kind, body: &[u8]| {
        let start = out.len();
        out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
        out.extend_from_slice(body);
        seal_block(header.seed(), number, kind, start, &mut out);
        number += 1;
    };
    let (mut resume, mut end) = (Vec::new(), Vec::new());
    Resume { sequence: 0, offset: HEADER_BYTES as u64 }.encode(&mut resume);
    put(KIND_RESUME, &resume);
    blocks.iter().for_each(|&(kind, body)| put(kind, body));
    End { blocks: blocks.len() as u64 + 1, index, epoch: 1 }.encode(&mut end);
    put(KIND_END, &end);
    out
}

/// Bytes of a block's body; none if `header` is not a block's header.
pub(crate) fn body_len(header: &[u8; BLOCK_HEADER_BYTES]) -> Option<usize> {
    let counted = u32_at(header, 0) as usize;
    counted.checked_sub(BLOCK_HEADER_BYTES - UNCOUNTED).filter(|body| *body <= BLOCK_BYTES_MAX)
}

/// Whether this is the block of that number, undamaged.
pub(crate) fn is_block(
    seed: u32,
    number: u64,
    header: &[u8; BLOCK_HEADER_BYTES],
    body: &[u8],
) -> bool {
    let seed = block_crc(seed, number, &header[UNCOUNTED..]);
    crc32c::crc32c_append(seed, body) == u32_at(header, 4)
}

/// Where the command after the snapshot's last one is, or will be: where replay begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resume {
    /// The segment.
    pub(crate) sequence: u64,
    /// The offset in it.
    pub(crate) offset: u64,
}

impl Resume {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Resume> {
        let resume = (body.len() == 16)
            .then(|| Resume { sequence: u64_at(body, 0), offset: u64_at(body, 8) })?;
        (resume.offset >= SEGMENT_HEADER_BYTES as u64).then_some(resume)
    }
}

/// Bytes of the last block's body.
pub(crate) const END_BYTES: usize = 24;

/// The last block: how many blocks precede it, and the snapshot's index and epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) blocks: u64,
    pub(crate) index: u64,
    pub(crate) epoch: u64,
}

impl End {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.blocks, self.index, self.epoch] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    pub(crate) fn decode(body: &[u8]) -> Option<End> {
        (body.len() == END_BYTES).then(|| End {
            blocks: u64_at(body, 0),
            index: u64_at(body, 8),
            epoch: u64_at(body, 16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SnapshotHeader =
        SnapshotHeader { journal: PublisherId([7; 16]), index: 0x0102, epoch: 3 };

    fn sealed(number: u64, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![0; BLOCK_HEADER_BYTES];
        out.extend_from_slice(body);
        seal_block(HEADER.seed(), number, kind, 0, &mut out);
        out
    }

    fn passes(seed: u32, number: u64, block: &[u8]) -> bool {
        let header: [u8; BLOCK_HEADER_BYTES] = block[..BLOCK_HEADER_BYTES].try_into().unwrap();
        body_len(&header) == Some(block.len() - BLOCK_HEADER_BYTES)
            && is_block(seed, number, &header, &block[BLOCK_HEADER_BYTES..])
    }

    #[test]
    fn block_checksum_binds_snapshot_and_block_number() {
        let block = sealed(2, KIND_STATE, b"state");
        assert!(passes(HEADER.seed(), 2, &block));
        for number in [0, 1, 3, 2 << 32] {
            assert!(!passes(HEADER.seed(), number, &block), "as block {number}");
        }
        let others = [
            SnapshotHeader { journal: PublisherId([8; 16]), ..HEADER },
            SnapshotHeader { index: HEADER.index + 1, ..HEADER },
        ];
        for other in others {
            assert!(!passes(other.seed(), 2, &block), "{other:?}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_snapshot_header_is_detected() {
        let bytes = HEADER.encode();
        assert_eq!(SnapshotHeader::decode(&bytes), Ok(HEADER));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SnapshotHeader::decode(&bad), Err(HeaderError::Bad), "bit {bit}");
        }
    }

    #[test]
    fn snapshot_block_matches_golden_bytes() {
        let mut golden = vec![6, 0, 0, 0];
        let counted = b"\x03state";
        let mut seed = crc32c::crc32c(&[7; 16]);
        for part in [&[2, 1, 0, 0, 0, 0, 0, 0][..], &[2, 0, 0, 0, 0, 0, 0, 0], counted] {
            seed = crc32c::crc32c_append(seed, part);
        }
        golden.extend_from_slice(&seed.to_le_bytes());
        golden.extend_from_slice(counted);
        assert_eq!(sealed(2, KIND_STATE, b"state"), golden);
    }
}
