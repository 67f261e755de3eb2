//! Reading a segment's records in order, many to a read.

use std::io;

use bytes::{Bytes, BytesMut};

use super::super::files::JournalFile;
use super::CHUNK_BYTES;
use crate::journal::wal::record::{NoRecord, RECORD_HEADER_BYTES, RecordHeader};

/// Reads a segment's records in order, many to a read.
pub(crate) struct Scan<'a> {
    file: &'a dyn JournalFile,
    length: u64,
    seed: u32,
    at: u64,
    chunk: Bytes,
    chunk_at: u64,
}

impl<'a> Scan<'a> {
    /// From a record's place on.
    pub(crate) fn new(file: &'a dyn JournalFile, length: u64, seed: u32, at: u64) -> Scan<'a> {
        Scan { file, length, seed, at, chunk: Bytes::new(), chunk_at: at }
    }

    /// The next record: its offset, header and body. Without one: where the whole records end.
    #[allow(clippy::type_complexity, reason = "read at its one call")]
    pub(crate) fn next(&mut self) -> io::Result<Result<(u64, RecordHeader, Bytes), u64>> {
        let left = self.length.saturating_sub(self.at);
        let header = self.bytes(RECORD_HEADER_BYTES.min(left as usize))?;
        let length = match RecordHeader::claimed_len(&header, left) {
            Ok(length) => length,
            Err(NoRecord::Empty | NoRecord::Bad) => return Ok(Err(self.at)),
        };
        drop(header);
        let record = self.bytes(length)?;
        if record.len() < length {
            return Ok(Err(self.at));
        }
        let Ok(header) = RecordHeader::decode(&record, self.seed) else {
            return Ok(Err(self.at));
        };
        let offset = self.at;
        self.at += length as u64;
        Ok(Ok((offset, header, record.slice(header.body_at()..))))
    }

    /// The next `n` bytes; fewer at the end of the file.
    fn bytes(&mut self, n: usize) -> io::Result<Bytes> {
        let mut from = (self.at - self.chunk_at) as usize;
        if from + n > self.chunk.len() {
            let left = self.length.saturating_sub(self.at) as usize;
            let size = n.max(CHUNK_BYTES).min(left);
            // The buffer is used again unless someone still holds a part of it.
            let mut chunk = std::mem::take(&mut self.chunk)
                .try_into_mut()
                .unwrap_or_else(|_| BytesMut::with_capacity(size));
            chunk.resize(size, 0);
            let read = self.file.read_at(&mut chunk, self.at)?;
            chunk.truncate(read);
            (self.chunk, self.chunk_at, from) = (chunk.freeze(), self.at, 0);
        }
        Ok(self.chunk.slice(from..(from + n).min(self.chunk.len())))
    }
}
