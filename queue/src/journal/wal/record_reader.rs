//! Reads one record: of a long body only the blocks with the part, and some after them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::journal::files::{JournalFile, is_unreadable};
use crate::journal::wal::locations::RecordLocation;
use crate::journal::wal::record::{
    BLOCK_BYTES, BLOCK_CRC_BYTES, FLAG_COMPACTED, RECORD_HEADER_BYTES, RecordHeader, is_good_block,
};
use crate::log::{BodyBlock, LogReadError};
use crate::{Now, RecordRef};

/// Bytes of a record that are read first: all of most single-job records, and the checksums of a
/// body of 4 MiB.
const START_BYTES: usize = 4096;
/// Bytes of blocks to read for a part, with those after it, unless the part alone is longer.
pub(crate) const AHEAD_BYTES: usize = 64 * 1024;

/// Reads a record. Every read passes its offset: several threads share a file.
pub(crate) struct RecordReader<'a> {
    pub(crate) file: &'a dyn JournalFile,
    pub(crate) path: &'a Path,
    pub(crate) seed: u32,
    pub(crate) location: RecordLocation,
}

/// The result of reading a part.
pub(crate) struct BodyRead {
    pub(crate) block: BodyBlock,
    /// It is the whole body.
    pub(crate) is_complete: bool,
}

impl RecordReader<'_> {
    /// The block of a command's body that contains that part.
    pub(crate) fn log_block(&self, part: RecordRef) -> Result<BodyRead, LogReadError> {
        let offset = self.location.offset;
        // Its end is known from a commit or a snapshot: its header alone is not trusted.
        let verified_body = self.location.end.unwrap_or(offset).saturating_sub(offset) as usize;
        let start = match self.bytes(offset, verified_body.min(START_BYTES)) {
            // The disk may be unable to read what follows the header.
            Err(LogReadError::Io { error, .. }) if is_unreadable(&error) => {
                self.bytes(offset, verified_body.min(RECORD_HEADER_BYTES))?
            }
            start => start?,
        };
        let header = RecordHeader::peek(&start).map_err(|_| self.damaged(offset))?;
        let is_it = header.index == part.index && header.flags & FLAG_COMPACTED == 0;
        if !is_it || header.body_at() + header.body_len != verified_body {
            return Err(self.damaged(offset));
        }
        let (from, to) = (part.at as usize, part.at as usize + part.length as usize);
        if header.has_blocks() && to <= header.body_len {
            return self.blocks(&header, &start, from, to);
        }
        let bytes = self.verified_body(start, verified_body)?;
        if to > bytes.len() {
            return Err(LogReadError::OutOfRange { at: part, body_bytes: bytes.len() });
        }
        Ok(BodyRead { block: BodyBlock { from: 0, bytes }, is_complete: true })
    }

    /// The whole body of a compacted record.
    pub(crate) fn compacted_body(&self, index: u64) -> Result<Bytes, LogReadError> {
        let offset = self.location.offset;
        let length = self.file.len().map_err(|error| failed(self.path, error))?;
        let left = length.saturating_sub(offset);
        let start = self.bytes(offset, left.min(START_BYTES as u64) as usize)?;
        let verified_body =
            RecordHeader::claimed_len(&start, left).map_err(|_| self.damaged(offset))?;
        let header = RecordHeader::peek(&start).map_err(|_| self.damaged(offset))?;
        if header.index != index || header.flags & FLAG_COMPACTED == 0 {
            return Err(self.damaged(offset));
        }
        self.verified_body(start, verified_body)
    }

    /// The time in the record's header.
    pub(crate) fn now(&self) -> Result<Now, LogReadError> {
        let mut start = [0; RECORD_HEADER_BYTES];
        let read = self.file.read_at(&mut start, self.location.offset);
        read.map_err(|error| failed(self.path, error))?;
        // A damaged header has no time.
        Ok(RecordHeader::peek(&start).map_or(Now::default(), |header| header.now))
    }

    /// The body of a record of `verified_body` bytes, of which `start` is the beginning.
    fn verified_body(
        &self,
        mut start: Vec<u8>,
        verified_body: usize,
    ) -> Result<Bytes, LogReadError> {
        let offset = self.location.offset;
        if verified_body > start.len() {
            let rest = self.bytes(offset + start.len() as u64, verified_body - start.len())?;
            start.extend_from_slice(&rest);
        }
        start.truncate(verified_body);
        let header = RecordHeader::decode(&start, self.seed).map_err(|_| self.damaged(offset))?;
        Ok(Bytes::from(start).slice(header.body_at()..))
    }

    fn blocks(
        &self,
        header: &RecordHeader,
        start: &[u8],
        from: usize,
        to: usize,
    ) -> Result<BodyRead, LogReadError> {
        let first = from / BLOCK_BYTES;
        // An empty part needs no block; it may be after the last one.
        let needed = to.div_ceil(BLOCK_BYTES).saturating_sub(first);
        let available = header.body_len.div_ceil(BLOCK_BYTES).saturating_sub(first);
        let count = needed.max(AHEAD_BYTES / BLOCK_BYTES).min(available);
        let table_at = RECORD_HEADER_BYTES + first * BLOCK_CRC_BYTES;
        let table_to = table_at + count * BLOCK_CRC_BYTES;
        let beyond;
        let table = match start.get(table_at..table_to) {
            Some(table) => table,
            None => {
                let at = self.location.offset + table_at as u64;
                beyond = self.bytes(at, table_to - table_at)?;
                &beyond
            }
        };
        let begins = first * BLOCK_BYTES;
        let blocks_at = self.location.offset + (header.body_at() + begins) as u64;
        let read = |count: usize| {
            let ends = (begins + count * BLOCK_BYTES).min(header.body_len);
            self.bytes(blocks_at, ends.saturating_sub(begins))
        };
        let mut bytes = match read(count) {
            // The disk may be unable to read a block ahead.
            Err(LogReadError::Io { error, .. }) if is_unreadable(&error) => read(needed)?,
            read => read?,
        };
        let pairs = table.chunks_exact(BLOCK_CRC_BYTES).zip(bytes.chunks(BLOCK_BYTES));
        let good = pairs.take_while(|(crc, block)| is_good_block(self.seed, block, crc)).count();
        if good < needed {
            return Err(self.damaged(blocks_at + (good * BLOCK_BYTES) as u64));
        }
        bytes.truncate(good * BLOCK_BYTES);
        Ok(BodyRead { block: BodyBlock { from: begins, bytes: bytes.into() }, is_complete: false })
    }

    /// Exactly these bytes of the file.
    fn bytes(&self, at: u64, length: usize) -> Result<Vec<u8>, LogReadError> {
        let mut bytes = vec![0; length];
        let read = self.file.read_at(&mut bytes, at).map_err(|error| failed(self.path, error))?;
        if read < length { Err(self.damaged(self.location.offset)) } else { Ok(bytes) }
    }

    fn damaged(&self, offset: u64) -> LogReadError {
        damaged(self.path, offset)
    }
}

pub(crate) fn damaged(file: &Path, offset: u64) -> LogReadError {
    LogReadError::Damaged { file: file.to_owned(), offset }
}

pub(crate) fn failed(file: &Path, error: io::Error) -> LogReadError {
    LogReadError::Io { file: file.to_owned(), error: Arc::new(error) }
}

#[cfg(test)]
pub(super) mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::journal::wal::format::SEGMENT_HEADER_BYTES;
    use crate::journal::wal::record::{RecordHeader, record_len};

    const SEED: u32 = 77;
    const OFFSET: u64 = SEGMENT_HEADER_BYTES as u64 + 123;

    /// A file that records its reads.
    pub(in crate::journal::wal) struct RecordingFile(Mutex<Vec<u8>>, Mutex<Vec<(u64, usize)>>);

    impl RecordingFile {
        pub(in crate::journal::wal) fn new(bytes: Vec<u8>) -> RecordingFile {
            RecordingFile(Mutex::new(bytes), Mutex::default())
        }

        /// Bytes of all reads so far.
        pub(in crate::journal::wal) fn bytes_read(&self) -> usize {
            self.1.lock().iter().map(|&(_, length)| length).sum()
        }
    }

    impl JournalFile for RecordingFile {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().len() as u64)
        }

        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            self.1.lock().push((offset, bytes.len()));
            let file = self.0.lock();
            let from = (offset as usize).min(file.len());
            let n = bytes.len().min(file.len() - from);
            bytes[..n].copy_from_slice(&file[from..from + n]);
            Ok(n)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync_data(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn allocate(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn truncate(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn has_other_names(&self) -> io::Result<bool> {
            Ok(false)
        }

        fn forget_cached(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn body(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n / 7 + n) as u8).collect()
    }

    fn file(length: usize) -> (RecordingFile, RecordLocation) {
        let header = RecordHeader {
            term: 0,
            flags: 0,
            kind: 8,
            index: 9,
            now: Now::default(),
            body_len: length,
        };
        let mut bytes = vec![0; OFFSET as usize];
        header.encode(SEED, b"", &body(length), &mut bytes);
        let end = Some(bytes.len() as u64);
        bytes.resize(bytes.len() + 300, 1);
        let location = RecordLocation { sequence: 1, offset: OFFSET, end, compacted: false };
        (RecordingFile::new(bytes), location)
    }

    fn read(
        file: &RecordingFile,
        location: RecordLocation,
        at: usize,
        length: usize,
    ) -> Result<Bytes, LogReadError> {
        let reader = RecordReader { file, path: Path::new("segment"), seed: SEED, location };
        let part = RecordRef { index: 9, at: at as u32, length: length as u32 };
        let read = reader.log_block(part)?.block;
        assert!(read.from <= at, "the block contains the part");
        let ends = read.from + read.bytes.len();
        assert_eq!(read.bytes, body(ends)[read.from..], "all of it is what was written");
        Ok(read.bytes.slice(at - read.from..at - read.from + length))
    }

    #[test]
    fn any_part_of_any_body_length_is_read() {
        for length in [0, 1, 4_095, 4_096, 4_097, 8_192, 8_193, 70_000, 140_000] {
            let (file, location) = file(length);
            let at = [0, 1, 4_000, 4_095, 4_096, 4_097, 65_000, 69_999, length];
            for at in at.into_iter().filter(|&at| at <= length) {
                for part in [0, 1, 100, 4_096, 5_000, 70_000, length - at] {
                    let read = read(&file, location, at, part.min(length - at)).unwrap();
                    assert_eq!(read, body(length)[at..at + part.min(length - at)]);
                }
                let beyond = read(&file, location, at, length - at + 1);
                assert!(matches!(beyond, Err(LogReadError::OutOfRange { .. })), "{beyond:?}");
            }
        }
    }

    #[test]
    fn reading_one_part_reads_its_blocks_and_at_most_64_kib() {
        let length = 20 * 1024 * 1024;
        let (file, location) = file(length);
        read(&file, location, length - 30_000, 300).unwrap();
        let reads = std::mem::take(&mut *file.1.lock());
        let table = 4 * length.div_ceil(BLOCK_BYTES);
        assert!(table > START_BYTES);
        let first = (length - 30_000) / BLOCK_BYTES;
        let blocks = length / BLOCK_BYTES - first;
        let needed = [
            (OFFSET, START_BYTES),
            (OFFSET + 40 + 4 * first as u64, 4 * blocks),
            (OFFSET + 40 + (table + first * BLOCK_BYTES) as u64, length - first * BLOCK_BYTES),
        ];
        assert_eq!(reads, needed);
        read(&file, location, 10, 300).unwrap();
        let reads: usize = file.1.lock().iter().map(|&(_, length)| length).sum();
        assert_eq!(reads, START_BYTES + AHEAD_BYTES);
        // A short body takes one read.
        let (file, location) = self::file(300);
        read(&file, location, 10, 20).unwrap();
        assert_eq!(*file.1.lock(), [(OFFSET, record_len(300))]);
    }

    #[test]
    fn flipped_bit_damages_only_parts_in_its_block() {
        let length = 50_000;
        let (file, location) = file(length);
        let body_at = OFFSET as usize + record_len(length) - length;
        for bad in [0, 3, 12] {
            let flipped = body_at + bad * BLOCK_BYTES + 77;
            // A byte of the block, or of its checksum.
            for flipped in [flipped, OFFSET as usize + RECORD_HEADER_BYTES + 4 * bad] {
                file.0.lock()[flipped] ^= 4;
                for at in (0..length - 500).step_by(500) {
                    let blocks = at / BLOCK_BYTES..=(at + 499) / BLOCK_BYTES;
                    match read(&file, location, at, 500) {
                        Ok(_) => assert!(!blocks.contains(&bad), "{at}"),
                        Err(LogReadError::Damaged { offset, .. }) => {
                            assert!(blocks.contains(&bad), "{at}");
                            assert_eq!(offset, (body_at + bad * BLOCK_BYTES) as u64);
                        }
                        Err(why) => panic!("{why}"),
                    }
                }
                file.0.lock()[flipped] ^= 4;
            }
        }
    }

    #[test]
    fn flipped_bit_in_a_record_header_gives_no_wrong_bytes() {
        for length in [300, 50_000] {
            let (file, location) = file(length);
            for bit in 0..RECORD_HEADER_BYTES * 8 {
                file.0.lock()[OFFSET as usize + bit / 8] ^= 1 << (bit % 8);
                for at in [0, 100, length - 200] {
                    match read(&file, location, at, 200) {
                        Ok(read) => assert_eq!(read, body(length)[at..at + 200]),
                        Err(LogReadError::Damaged { .. }) => {}
                        Err(why) => panic!("{why}"),
                    }
                }
                file.0.lock()[OFFSET as usize + bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn record_of_another_command_is_damage() {
        for length in [300, 50_000] {
            let (file, location) = file(length);
            let reader =
                RecordReader { file: &file, path: Path::new("segment"), seed: SEED, location };
            let part = RecordRef { index: 8, at: 0, length: 10 };
            assert!(matches!(reader.log_block(part), Err(LogReadError::Damaged { .. })));
        }
    }

    #[test]
    fn truncated_file_is_damage_and_never_a_panic() {
        for length in [300, 50_000] {
            let (file, location) = file(length);
            let verified_body = file.0.lock().clone();
            for cut in (0..verified_body.len() - 300).step_by(97) {
                *file.0.lock() = verified_body[..cut].to_vec();
                let read = read(&file, location, length - 1, 1);
                assert!(matches!(read, Err(LogReadError::Damaged { .. })), "{cut}");
            }
        }
    }
}
