//! Reads the records of one file in chunks: in order, at given offsets, and past invalid ones.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::format::u64_at;
use super::record::{FLAG_COMPACTED, FLAG_FIRST, NoRecord, RECORD_HEADER_BYTES, RecordHeader};
use crate::journal::SEGMENT_BYTES_MAX;
use crate::journal::files::{JournalFile, unless_unreadable};

/// Bytes of one read. An inspection reads beside a running publisher, whose commits the disk serves
/// in between.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Bytes after which the file's pages are dropped from the page cache: data read once would evict
/// data read often.
const FORGET_BYTES: u64 = 32 * 1024 * 1024;
/// Bytes of the parts that are read one by one where the disk cannot read a chunk: a page, the
/// least that a file system reads.
pub(crate) const PAGE_BYTES: u64 = 4096;
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
/// Stands for each byte of an unreadable page. Not zero, so that such a page counts as data, and is
/// written again where data are erased: a disk replaces a bad sector when it is written.
const UNREADABLE: u8 = 0xff;
/// The part of a segment in `lost/` ends at its last non-zero byte: this many zeros may have
/// followed.
const ZEROS_AFTER: u64 = 32 * 1024 * 1024;
/// Records more than this many commands after the last one are ignored: they are false matches.
const AHEAD_MAX: u64 = 1 << 40;
/// The same for a later commit: the most records of a segment.
const COMMIT_AHEAD_MAX: u64 = SEGMENT_BYTES_MAX / RECORD_HEADER_BYTES as u64;

/// Reads a file from beginning to end, about once. What the disk cannot read is no valid record;
/// everything else around it is still read.
pub(crate) struct Walk {
    file: Arc<dyn JournalFile>,
    length: u64,
    /// The file's real end; zeros follow.
    file_end: u64,
    seed: u32,
    chunk: Bytes,
    chunk_at: u64,
    /// Where the pages of the chunk begin that the disk cannot read.
    unreadable: Vec<u64>,
    /// Bytes read since the page cache was last dropped; none if it should be retained.
    unforgotten: Option<u64>,
}

/// A valid record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) offset: u64,
    pub(crate) header: RecordHeader,
    /// Header and body.
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
        Ok(Walk {
            file,
            length,
            file_end: length,
            seed,
            chunk: Bytes::new(),
            chunk_at: 0,
            unreadable: Vec::new(),
            unforgotten: None,
        })
    }

    /// The same for a file that is read once: drops it from the page cache.
    pub(crate) fn once(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        Ok(Walk { unforgotten: Some(0), ..Walk::new(file, seed)? })
    }

    /// The same for the end of a segment in `lost/`.
    pub(crate) fn of_part(file: Arc<dyn JournalFile>, seed: u32) -> io::Result<Walk> {
        let mut walk = Walk::once(file, seed)?;
        walk.length += ZEROS_AFTER;
        Ok(walk)
    }

    /// Whether the file is shorter than when it was opened: the publisher is removing it.
    pub(crate) fn became_shorter(&self) -> io::Result<bool> {
        Ok(self.file.len()? < self.file_end)
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The valid record at `offset`, if there is one.
    pub(crate) fn record(&mut self, offset: u64) -> io::Result<Result<Record, NoRecord>> {
        let left = self.length.saturating_sub(offset);
        let head = self.bytes(offset, RECORD_HEADER_BYTES)?;
        if self.is_unreadable(offset, head.len()) {
            return Ok(Err(NoRecord::Unreadable));
        }
        let length = match RecordHeader::claimed_len(&head, left) {
            Ok(length) => length,
            Err(none) => return Ok(Err(none)),
        };
        drop(head);
        let bytes = self.bytes(offset, length)?;
        if self.is_unreadable(offset, bytes.len()) {
            return Ok(Err(NoRecord::Unreadable));
        }
        if bytes.len() < length {
            return Ok(Err(NoRecord::Bad));
        }
        Ok(RecordHeader::decode(&bytes, self.seed).map(|header| Record { offset, header, bytes }))
    }

    /// The first valid record of a command after `last` at or after `from`.
    pub(crate) fn next_good(&mut self, from: u64, last: u64) -> io::Result<Option<Record>> {
        self.next_of(from, last, |_| true)
    }

    /// The same for records that `may_be` one. A payload may look like long records everywhere:
    /// only one whose first checksum matches is read whole.
    fn next_of(
        &mut self,
        from: u64,
        last: u64,
        may_be: impl Fn(&RecordHeader) -> bool,
    ) -> io::Result<Option<Record>> {
        let mut at = from;
        while at + RECORD_HEADER_BYTES as u64 <= self.length {
            let chunk = self.bytes(at, CHUNK_BYTES)?;
            if chunk.len() < RECORD_HEADER_BYTES {
                break;
            }
            let positions = chunk.len() - (RECORD_HEADER_BYTES - 1);
            for from in (0..positions).step_by(ZEROS.len()) {
                let to = positions.min(from + ZEROS.len());
                // No header is all zeros.
                if is_zero(&chunk[from..to + RECORD_HEADER_BYTES - 1]) {
                    continue;
                }
                for position in from..to {
                    let bytes = &chunk[position..];
                    let offset = at + position as u64;
                    if !looks_like_a_record(bytes, self.length - offset, last) {
                        continue;
                    }
                    let header = RecordHeader::peek(bytes).ok();
                    let Some(header) = header.filter(|it| it.is_written() && may_be(it)) else {
                        continue;
                    };
                    let covered = self.bytes(offset, header.covered_len())?;
                    if covered.len() < header.covered_len()
                        || !RecordHeader::matches_checksum(&covered, self.seed)
                    {
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

    /// Whether there is a record after `from` that begins a commit later than the one expected
    /// after `last`.
    pub(crate) fn has_later_commit(&mut self, from: u64, last: u64) -> io::Result<bool> {
        let mut at = from;
        let may_be = |header: &RecordHeader| {
            header.index - last <= COMMIT_AHEAD_MAX && header.flags & FLAG_COMPACTED == 0
        };
        while let Some(found) = self.next_of(at, last + 1, may_be)? {
            if found.header.flags & FLAG_FIRST != 0 {
                return Ok(true);
            }
            at = found.end();
        }
        Ok(false)
    }

    /// The end of the last non-zero byte from `from` on.
    pub(crate) fn end_of_data(&mut self, from: u64) -> io::Result<u64> {
        let (mut at, mut end) = (from, from);
        while at < self.length {
            let chunk = self.bytes(at, CHUNK_BYTES)?;
            if chunk.is_empty() {
                break;
            }
            let pages = chunk.chunks(ZEROS.len()).enumerate();
            if let Some((page, bytes)) = pages.rev().find(|(_, bytes)| !is_zero(bytes))
                && let Some(last) = bytes.iter().rposition(|&byte| byte != 0)
            {
                end = at + (page * ZEROS.len() + last) as u64 + 1;
            }
            at += chunk.len() as u64;
        }
        Ok(end)
    }

    /// `n` raw bytes at `at`; fewer at the end of the file. Unreadable ones are [`UNREADABLE`].
    pub(crate) fn span(&mut self, at: u64, n: usize) -> io::Result<Bytes> {
        self.bytes(at, n)
    }

    /// Drops the file from the page cache.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.unforgotten = Some(0);
        self.file.forget_cached()
    }

    /// `n` bytes at `at`; fewer at the end of the file.
    fn bytes(&mut self, at: u64, n: usize) -> io::Result<Bytes> {
        let n = n.min(usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX));
        let is_within =
            at >= self.chunk_at && at + n as u64 <= self.chunk_at + self.chunk.len() as u64;
        if !is_within {
            let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
            let size = n.max(CHUNK_BYTES).min(left);
            // The buffer is reused unless someone still has a slice of it.
            let mut chunk = std::mem::take(&mut self.chunk)
                .try_into_mut()
                .unwrap_or_else(|_| BytesMut::with_capacity(size));
            chunk.clear();
            chunk.resize(size, 0);
            let read = self.read(&mut chunk, at)?;
            if at + (read as u64) < self.file_end || self.length == self.file_end {
                chunk.truncate(read);
            }
            (self.chunk, self.chunk_at) = (chunk.freeze(), at);
            if let Some(bytes) = &mut self.unforgotten {
                *bytes += read as u64;
                if *bytes >= FORGET_BYTES {
                    self.forget()?;
                }
            }
        }
        let from = (at - self.chunk_at) as usize;
        Ok(self.chunk.slice(from..(from + n).min(self.chunk.len())))
    }

    /// Reads `chunk` at `at`, page by page if the disk cannot read all of it.
    fn read(&mut self, chunk: &mut [u8], at: u64) -> io::Result<usize> {
        self.unreadable.clear();
        if let Some(read) = unless_unreadable(self.file.read_at(chunk, at))? {
            return Ok(read);
        }
        let to = (at + chunk.len() as u64).min(self.file_end);
        let mut from = at;
        while from < to {
            let end = to.min((from / PAGE_BYTES + 1) * PAGE_BYTES);
            let page = &mut chunk[(from - at) as usize..(end - at) as usize];
            match unless_unreadable(self.file.read_at(page, from))? {
                Some(read) if read < page.len() => return Ok((from - at) as usize + read),
                Some(_) => {}
                None => {
                    page.fill(UNREADABLE);
                    self.unreadable.push(from);
                }
            }
            from = end;
        }
        Ok(to.saturating_sub(at) as usize)
    }

    /// Whether the disk cannot read some of these bytes of the chunk.
    fn is_unreadable(&self, at: u64, n: usize) -> bool {
        let is_within =
            |&page: &u64| page < at + n as u64 && at < (page / PAGE_BYTES + 1) * PAGE_BYTES;
        self.unreadable.iter().any(is_within)
    }
}

/// Compares whole pages: a byte at a time takes milliseconds for each MiB of erased space.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()])
}

/// A cheap test before computing a checksum: most offsets fail on a byte or two.
fn looks_like_a_record(bytes: &[u8], left: u64, last: u64) -> bool {
    // The term of a local journal is 0.
    bytes[8..14] == [0; 6]
        && RecordHeader::claimed_len(bytes, left).is_ok()
        && (1..=AHEAD_MAX).contains(&u64_at(bytes, 16).wrapping_sub(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::wal::record_reader::tests::RecordingFile;
    use crate::time::Now;

    const SEED: u32 = 5;

    fn record_of(index: u64, body: &[u8]) -> Vec<u8> {
        let (now, body_len) = (Now::default(), body.len());
        let header = RecordHeader { term: 0, flags: FLAG_FIRST, kind: 8, index, now, body_len };
        let mut bytes = Vec::new();
        header.encode(SEED, b"", body, &mut bytes);
        bytes
    }

    /// A record that begins with a zero byte, the lowest of its length.
    fn record(index: u64) -> Vec<u8> {
        let bytes = record_of(index, &[1; 224]);
        assert_eq!(bytes[0], 0);
        bytes
    }

    #[test]
    fn a_record_after_zeros_is_found_wherever_it_begins() {
        let page = PAGE_BYTES as usize;
        for near in [page, CHUNK_BYTES - RECORD_HEADER_BYTES, CHUNK_BYTES, CHUNK_BYTES + page] {
            for at in near - 45..near + 45 {
                let record = record(9);
                let mut bytes = vec![0; 2 * CHUNK_BYTES + 100];
                bytes[at..at + record.len()].copy_from_slice(&record);
                let mut walk = Walk::new(Arc::new(RecordingFile::new(bytes)), SEED).unwrap();
                for from in [0, at as u64 - 1, at as u64] {
                    let found = walk.next_good(from, 8).unwrap().map(|found| found.offset);
                    assert_eq!(found, Some(at as u64), "from {from}");
                }
                assert!(walk.next_good(at as u64 + 1, 8).unwrap().is_none());
                let end = (at + record.len()) as u64;
                assert_eq!(walk.end_of_data(0).unwrap(), end);
                assert_eq!(walk.end_of_data(end).unwrap(), end);
            }
        }
    }

    #[test]
    fn flipped_bits_hide_a_record_from_the_search() {
        for length in [0, 1, 4_096, 4_097, 9_000] {
            let record = record_of(9, &vec![7; length]);
            for at in [0, 5, 4_090, CHUNK_BYTES - 50] {
                let mut bytes = vec![0xaa; at + record.len() + 100];
                bytes[at..at + record.len()].copy_from_slice(&record);
                let found = |bytes: &[u8]| {
                    let file = Arc::new(RecordingFile::new(bytes.to_vec()));
                    Walk::new(file, SEED).unwrap().next_good(0, 8).unwrap()
                };
                let whole = found(&bytes).unwrap();
                assert_eq!((whole.offset, &whole.bytes[..]), (at as u64, &record[..]));
                // In the header, in the checksums of blocks, in the first and in the last one.
                for flipped in [0, 4, 16, 41, 50, 4_000, record.len() - 1] {
                    if flipped < record.len() {
                        let mut bytes = bytes.clone();
                        bytes[at + flipped] ^= 4;
                        assert!(found(&bytes).is_none(), "{length} at {at}: {flipped}");
                    }
                }
            }
        }
    }

    #[test]
    fn later_commit_is_at_most_a_segment_of_records_ahead() {
        let most = COMMIT_AHEAD_MAX + 8;
        for (index, is_later) in [(9, false), (10, true), (most, true), (most + 1, false)] {
            let mut walk = Walk::new(Arc::new(RecordingFile::new(record(index))), SEED).unwrap();
            assert_eq!(walk.has_later_commit(0, 8).unwrap(), is_later, "{index}");
        }
    }

    #[test]
    fn search_reads_bytes_that_look_like_long_records_a_few_times() {
        let whole = RecordHeader {
            term: 0,
            flags: FLAG_FIRST,
            kind: 8,
            index: 10,
            now: Now::default(),
            body_len: CHUNK_BYTES,
        };
        let mut record = Vec::new();
        whole.encode(SEED, b"", &vec![1; CHUNK_BYTES], &mut record);
        let mut header: [u8; RECORD_HEADER_BYTES] =
            record[..RECORD_HEADER_BYTES].try_into().unwrap();
        header[4] ^= 1;
        let mut bytes = vec![0; 3 * CHUNK_BYTES];
        for at in (0..CHUNK_BYTES).step_by(256) {
            bytes[at..at + RECORD_HEADER_BYTES].copy_from_slice(&header);
        }
        let length = bytes.len();
        let file = Arc::new(RecordingFile::new(bytes));
        let mut walk = Walk::new(Arc::clone(&file) as _, SEED).unwrap();
        assert!(!walk.has_later_commit(0, 8).unwrap());
        assert!(file.bytes_read() < 4 * length, "{} of {length}", file.bytes_read());
    }
}
