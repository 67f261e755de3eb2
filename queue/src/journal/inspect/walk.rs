//! Reading the records of one file in pieces: in order, at given places, and past what is not
//! whole.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::super::files::JournalFile;
use super::{FORGET_BYTES, PIECE_BYTES};
use crate::journal::wal::format::u64_at;
use crate::journal::wal::record::{NoRecord, RECORD_HEADER_BYTES, RecordHeader};

/// What was set aside of a segment ends with its last byte that is not zero: so many zeros may have
/// followed.
const ZEROS_AFTER: u64 = 32 * 1024 * 1024;
/// A record further on than so many commands after the last one is not looked for: what looks like
/// one is none.
const AHEAD_MAX: u64 = 1 << 40;

/// A file that is read from its beginning to its end, about once.
pub(super) struct Walk {
    file: Arc<dyn JournalFile>,
    length: u64,
    /// Where the file itself ends; zeros follow.
    file_end: u64,
    seed: u32,
    piece: Bytes,
    piece_at: u64,
    /// Bytes read since memory last let go of the file.
    unforgotten: u64,
}

/// A whole record.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) offset: u64,
    pub(super) header: RecordHeader,
    /// All of it.
    pub(super) bytes: Bytes,
}

impl Record {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub(super) fn body(&self) -> Bytes {
        self.bytes.slice(self.header.body_at()..)
    }
}

impl Walk {
    pub(super) fn new(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        let length = file.len()?;
        let (file_end, piece) = (length, Bytes::new());
        Ok(Walk { file, length, file_end, seed, piece, piece_at: 0, unforgotten: 0 })
    }

    /// The same of the end of a segment that was set aside.
    pub(super) fn of_part(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        let mut walk = Walk::new(file, seed)?;
        walk.length += ZEROS_AFTER;
        Ok(walk)
    }

    /// Whether the file is shorter than when it was opened: who has it in use removes it.
    pub(super) fn became_shorter(&self) -> io::Result<bool> {
        Ok(self.file.len()? < self.file_end)
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The record that begins at `offset`, if a whole one does.
    pub(super) fn record(&mut self, offset: u64) -> io::Result<Result<Record, NoRecord>> {
        let left = self.length.saturating_sub(offset);
        let head = self.bytes(offset, RECORD_HEADER_BYTES)?;
        let length = match RecordHeader::claimed_len(&head, left) {
            Ok(length) => length,
            Err(none) => return Ok(Err(none)),
        };
        drop(head);
        let bytes = self.bytes(offset, length)?;
        if bytes.len() < length {
            return Ok(Err(NoRecord::Bad));
        }
        Ok(RecordHeader::decode(&bytes, self.seed).map(|header| Record { offset, header, bytes }))
    }

    /// The first whole record of a command after `last` that begins at `from` or later.
    pub(super) fn next_good(&mut self, from: u64, last: u64) -> io::Result<Option<Record>> {
        let mut at = from;
        while at + RECORD_HEADER_BYTES as u64 <= self.length {
            let piece = self.bytes(at, PIECE_BYTES)?;
            if piece.len() < RECORD_HEADER_BYTES {
                break;
            }
            let places = piece.len() - (RECORD_HEADER_BYTES - 1);
            if piece.iter().any(|&byte| byte != 0) {
                for place in 0..places {
                    let bytes = &piece[place..];
                    let offset = at + place as u64;
                    if !looks_like_a_record(bytes, self.length - offset, last) {
                        continue;
                    }
                    if let Ok(record) = self.record(offset)? {
                        return Ok(Some(record));
                    }
                }
            }
            at += places as u64;
        }
        Ok(None)
    }

    /// Where the last byte that is not zero ends, from `from` on.
    pub(super) fn end_of_data(&mut self, from: u64) -> io::Result<u64> {
        let (mut at, mut end) = (from, from);
        while at < self.length {
            let piece = self.bytes(at, PIECE_BYTES)?;
            if piece.is_empty() {
                break;
            }
            if let Some(last) = piece.iter().rposition(|&byte| byte != 0) {
                end = at + last as u64 + 1;
            }
            at += piece.len() as u64;
        }
        Ok(end)
    }

    /// So many bytes from there on, whatever they are; fewer at the end of the file.
    pub(super) fn span(&mut self, at: u64, n: usize) -> io::Result<Bytes> {
        self.bytes(at, n)
    }

    /// Memory lets go of the file.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        self.unforgotten = 0;
        self.file.forget_cached()
    }

    /// `n` bytes at `at`; fewer at the end of the file.
    fn bytes(&mut self, at: u64, n: usize) -> io::Result<Bytes> {
        let n = n.min(usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX));
        let is_within =
            at >= self.piece_at && at + n as u64 <= self.piece_at + self.piece.len() as u64;
        if !is_within {
            let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
            let size = n.max(PIECE_BYTES).min(left);
            // The buffer is used again unless someone still holds a part of it.
            let mut piece = std::mem::take(&mut self.piece)
                .try_into_mut()
                .unwrap_or_else(|_| BytesMut::with_capacity(size));
            piece.clear();
            piece.resize(size, 0);
            let read = self.file.read_at(&mut piece, at)?;
            if at + (read as u64) < self.file_end || self.length == self.file_end {
                piece.truncate(read);
            }
            (self.piece, self.piece_at) = (piece.freeze(), at);
            self.unforgotten += read as u64;
            if self.unforgotten >= FORGET_BYTES {
                self.forget()?;
            }
        }
        let from = (at - self.piece_at) as usize;
        Ok(self.piece.slice(from..(from + n).min(self.piece.len())))
    }
}

/// Whether a checksum is worth computing: most places are ruled out by a byte or two.
fn looks_like_a_record(bytes: &[u8], left: u64, last: u64) -> bool {
    // The term of a lone journal.
    bytes[8..14] == [0; 6]
        && RecordHeader::claimed_len(bytes, left).is_ok()
        && (1..=AHEAD_MAX).contains(&u64_at(bytes, 16).wrapping_sub(last))
}
