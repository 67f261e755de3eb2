//! Reading the records of one file in pieces: in order, at given places, and past what is not
//! whole.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::format::u64_at;
use super::record::{FLAG_FIRST, NoRecord, RECORD_HEADER_BYTES, RecordHeader};
use crate::journal::files::JournalFile;

/// Bytes read at a time. An inspection reads beside a running publisher, whose commits the disk
/// serves in between.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Bytes of a file after which memory lets go of it: what is read once would push out what is read
/// often.
const FORGET_BYTES: u64 = 32 * 1024 * 1024;
/// What was set aside of a segment ends with its last byte that is not zero: so many zeros may have
/// followed.
const ZEROS_AFTER: u64 = 32 * 1024 * 1024;
/// A record further on than so many commands after the last one is not looked for: what looks like
/// one is none.
const AHEAD_MAX: u64 = 1 << 40;

/// A file that is read from its beginning to its end, about once.
pub(crate) struct Walk {
    file: Arc<dyn JournalFile>,
    length: u64,
    /// Where the file itself ends; zeros follow.
    file_end: u64,
    seed: u32,
    chunk: Bytes,
    piece_at: u64,
    /// Bytes read since memory last let go of the file; none if memory should retain it.
    unforgotten: Option<u64>,
}

/// A whole record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) offset: u64,
    pub(crate) header: RecordHeader,
    /// All of it.
    pub(crate) bytes: Bytes,
}

impl Record {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub(crate) fn body(&self) -> Bytes {
        self.bytes.slice(self.header.body_at()..)
    }
}

impl Walk {
    pub(crate) fn new(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        let length = file.len()?;
        let (file_end, chunk) = (length, Bytes::new());
        Ok(Walk { file, length, file_end, seed, chunk, piece_at: 0, unforgotten: None })
    }

    /// The same of a file that is read once: memory lets go of it.
    pub(crate) fn once(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        Ok(Walk { unforgotten: Some(0), ..Walk::new(file, seed)? })
    }

    /// The same of the end of a segment that was set aside.
    pub(crate) fn of_part(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        let mut walk = Walk::once(file, seed)?;
        walk.length += ZEROS_AFTER;
        Ok(walk)
    }

    /// Whether the file is shorter than when it was opened: who has it in use removes it.
    pub(crate) fn became_shorter(&self) -> io::Result<bool> {
        Ok(self.file.len()? < self.file_end)
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The record that begins at `offset`, if a whole one does.
    pub(crate) fn record(&mut self, offset: u64) -> io::Result<Result<Record, NoRecord>> {
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
    pub(crate) fn next_good(&mut self, from: u64, last: u64) -> io::Result<Option<Record>> {
        let mut at = from;
        while at + RECORD_HEADER_BYTES as u64 <= self.length {
            let chunk = self.bytes(at, CHUNK_BYTES)?;
            if chunk.len() < RECORD_HEADER_BYTES {
                break;
            }
            let positions = chunk.len() - (RECORD_HEADER_BYTES - 1);
            if chunk.iter().any(|&byte| byte != 0) {
                for position in 0..positions {
                    let bytes = &chunk[position..];
                    let offset = at + position as u64;
                    if !looks_like_a_record(bytes, self.length - offset, last) {
                        continue;
                    }
                    if let Ok(record) = self.record(offset)? {
                        return Ok(Some(record));
                    }
                }
            }
            at += positions as u64;
        }
        Ok(None)
    }

    /// Whether a record that begins a commit, later than the one that should follow `last`, stands
    /// anywhere after `from`.
    pub(crate) fn has_later_commit(&mut self, from: u64, last: u64) -> io::Result<bool> {
        let mut at = from;
        while let Some(found) = self.next_good(at, last + 1)? {
            if found.header.flags & FLAG_FIRST != 0 {
                return Ok(true);
            }
            at = found.end();
        }
        Ok(false)
    }

    /// Where the last byte that is not zero ends, from `from` on.
    pub(crate) fn end_of_data(&mut self, from: u64) -> io::Result<u64> {
        let (mut at, mut end) = (from, from);
        while at < self.length {
            let chunk = self.bytes(at, CHUNK_BYTES)?;
            if chunk.is_empty() {
                break;
            }
            if let Some(last) = chunk.iter().rposition(|&byte| byte != 0) {
                end = at + last as u64 + 1;
            }
            at += chunk.len() as u64;
        }
        Ok(end)
    }

    /// So many bytes from there on, whatever they are; fewer at the end of the file.
    pub(crate) fn span(&mut self, at: u64, n: usize) -> io::Result<Bytes> {
        self.bytes(at, n)
    }

    /// Memory lets go of the file.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.unforgotten = Some(0);
        self.file.forget_cached()
    }

    /// `n` bytes at `at`; fewer at the end of the file.
    fn bytes(&mut self, at: u64, n: usize) -> io::Result<Bytes> {
        let n = n.min(usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX));
        let is_within =
            at >= self.piece_at && at + n as u64 <= self.piece_at + self.chunk.len() as u64;
        if !is_within {
            let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
            let size = n.max(CHUNK_BYTES).min(left);
            // The buffer is used again unless someone still holds a part of it.
            let mut chunk = std::mem::take(&mut self.chunk)
                .try_into_mut()
                .unwrap_or_else(|_| BytesMut::with_capacity(size));
            chunk.clear();
            chunk.resize(size, 0);
            let read = self.file.read_at(&mut chunk, at)?;
            if at + (read as u64) < self.file_end || self.length == self.file_end {
                chunk.truncate(read);
            }
            (self.chunk, self.piece_at) = (chunk.freeze(), at);
            if let Some(bytes) = &mut self.unforgotten {
                *bytes += read as u64;
                if *bytes >= FORGET_BYTES {
                    self.forget()?;
                }
            }
        }
        let from = (at - self.piece_at) as usize;
        Ok(self.chunk.slice(from..(from + n).min(self.chunk.len())))
    }
}

/// Whether a checksum is worth computing: most places are ruled out by a byte or two.
fn looks_like_a_record(bytes: &[u8], left: u64, last: u64) -> bool {
    // The term of a lone journal.
    bytes[8..14] == [0; 6]
        && RecordHeader::claimed_len(bytes, left).is_ok()
        && (1..=AHEAD_MAX).contains(&u64_at(bytes, 16).wrapping_sub(last))
}
