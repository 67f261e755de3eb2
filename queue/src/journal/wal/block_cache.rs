//! A cache of blocks that were read and checked: neighbours are read one after the other.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::RecordRef;
use crate::journal::wal::record::RECORD_HEADER_BYTES;
use crate::log::Piece;

/// Bytes kept.
const PIECES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Blocks retained at most: they are looked through one by one, and bodies of single jobs are
/// small. Some for each thread that reads at the same time.
const PIECES_MAX: usize = 64;

/// Where a record stands: its file's sequence, and its offset there.
pub(crate) type At = (u64, u64);

/// A piece of one record's body.
struct Kept {
    record: At,
    piece: Piece,
}

/// The pieces that were read last.
#[derive(Default)]
pub(crate) struct BlockCache {
    /// The latest at the end.
    kept: VecDeque<Kept>,
    bytes: usize,
}

impl BlockCache {
    /// The piece of that record's body that has all of a part.
    pub(crate) fn get(&mut self, record: At, part: RecordRef) -> Option<Piece> {
        let (from, to) = (part.at as usize, part.at as usize + part.length as usize);
        self.touch(|kept| {
            let Piece { from: begins, bytes } = &kept.piece;
            kept.record == record && *begins <= from && to <= begins + bytes.len()
        })
    }

    /// What was kept of a record from its beginning on: all of it, if it is one that is read whole.
    pub(crate) fn whole(&mut self, record: At) -> Option<Bytes> {
        let piece = self.touch(|kept| kept.record == record && kept.piece.from == 0)?;
        Some(piece.bytes)
    }

    fn touch(&mut self, wanted: impl Fn(&Kept) -> bool) -> Option<Piece> {
        let place = self.kept.iter().rposition(wanted)?;
        let found = self.kept.remove(place)?;
        let piece = found.piece.clone();
        self.kept.push_back(found);
        Some(piece)
    }

    /// Keeps a checked piece of a record's body.
    pub(crate) fn keep(&mut self, record: At, piece: Piece) {
        // Another thread may have read the same.
        let is_same = |kept: &Kept| {
            kept.record == record
                && kept.piece.from == piece.from
                && kept.piece.bytes.len() >= piece.bytes.len()
        };
        if self.kept.iter().any(is_same) {
            return;
        }
        self.bytes += weight(&piece.bytes);
        self.kept.push_back(Kept { record, piece });
        while self.kept.len() > PIECES_MAX || (self.kept.len() > 1 && self.bytes > PIECES_BYTES_MAX)
        {
            if let Some(kept) = self.kept.pop_front() {
                self.bytes -= weight(&kept.piece.bytes);
            }
        }
    }
}

fn weight(bytes: &Bytes) -> usize {
    RECORD_HEADER_BYTES + bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(pieces: &mut BlockCache, offset: u64, at: u32, length: u32) -> Option<Bytes> {
        let part = RecordRef { index: 9, at, length };
        pieces.get((1, offset), part)?.part(part)
    }

    #[test]
    fn few_pieces_are_kept_however_small_they_are_and_the_latest_read_among_them() {
        let mut pieces = BlockCache::default();
        for offset in 0..10 * PIECES_MAX as u64 {
            pieces.keep((1, offset), Piece { from: 0, bytes: Bytes::from_static(b"small") });
            assert!(get(&mut pieces, 0, 0, 5).is_some(), "read again each time");
            assert!(pieces.kept.len() <= PIECES_MAX);
        }
        assert!(get(&mut pieces, 1, 0, 5).is_none());
        let bytes = pieces.kept.iter().map(|kept| weight(&kept.piece.bytes));
        assert_eq!(pieces.bytes, bytes.sum::<usize>());
    }

    #[test]
    fn one_over_the_whole_room_is_kept_alone() {
        let mut pieces = BlockCache::default();
        pieces.keep((1, 1), Piece { from: 0, bytes: Bytes::from_static(b"small") });
        pieces.keep((1, 2), Piece { from: 0, bytes: vec![0; PIECES_BYTES_MAX + 1].into() });
        assert!(get(&mut pieces, 1, 0, 5).is_none() && get(&mut pieces, 2, 0, 5).is_some());
        pieces.keep((1, 3), Piece { from: 0, bytes: Bytes::from_static(b"small") });
        assert!(get(&mut pieces, 2, 0, 5).is_none() && get(&mut pieces, 3, 0, 5).is_some());
    }

    #[test]
    fn a_piece_gives_the_parts_that_lie_in_it_and_no_others() {
        let mut pieces = BlockCache::default();
        pieces.keep((1, 1), Piece { from: 10, bytes: Bytes::from_static(b"0123456789") });
        assert_eq!(get(&mut pieces, 1, 12, 3).as_deref(), Some(&b"234"[..]));
        assert_eq!(get(&mut pieces, 1, 10, 10).as_deref(), Some(&b"0123456789"[..]));
        for (at, length) in [(9, 3), (18, 3), (0, 5), (30, 1)] {
            assert_eq!(get(&mut pieces, 1, at, length), None);
        }
        assert_eq!(get(&mut pieces, 2, 12, 3), None, "of another record");
        assert_eq!(pieces.whole((1, 1)), None);
    }
}
