//! A file that is written beside the commits: in chunks, each of them synced and followed by a
//! rest.

use std::io;
use std::sync::Arc;

use crate::journal::compaction::pace::CHUNK_BYTES;
use crate::journal::files::JournalFile;
use crate::journal::space::ballast::Ballast;

/// Called with the bytes of each chunk that was written or read back; returns the most bytes of the
/// next one. An error aborts the write.
pub(crate) type Paced<'a> = &'a mut dyn FnMut(usize) -> io::Result<usize>;

/// A file being written.
pub(crate) struct PacedFile<'a> {
    file: Arc<dyn JournalFile>,
    /// For a file that was not preallocated.
    ballast: Option<&'a Ballast>,
    pace: Paced<'a>,
    /// Bytes of the next chunk.
    chunk_bytes: usize,
    /// Bytes still to be written.
    pub(crate) buffer: Vec<u8>,
    /// Bytes written so far.
    at: u64,
}

impl<'a> PacedFile<'a> {
    /// Starts at the beginning of the file. An error of `pace` aborts the write.
    pub(crate) fn new(
        file: Arc<dyn JournalFile>,
        ballast: Option<&'a Ballast>,
        pace: Paced<'a>,
    ) -> PacedFile<'a> {
        let buffer = Vec::with_capacity(2 * CHUNK_BYTES);
        PacedFile { file, ballast, pace, chunk_bytes: CHUNK_BYTES, buffer, at: 0 }
    }

    /// The offset of the next byte to be buffered.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    /// Writes whole chunks; the rest stays buffered.
    pub(crate) fn write_chunks(&mut self) -> io::Result<()> {
        self.drain(self.chunk_bytes)
    }

    /// Writes the rest; all of it is synced once this returns.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.drain(1)
    }

    /// Writes chunks until less than `least` bytes are buffered.
    fn drain(&mut self, least: usize) -> io::Result<()> {
        let mut written = 0;
        while self.buffer.len() - written >= least {
            let chunk = &self.buffer[written..];
            let chunk = &chunk[..chunk.len().min(self.chunk_bytes)];
            let (file, at, length) = (&self.file, self.at, chunk.len() as u64);
            match self.ballast {
                Some(ballast) => {
                    ballast.make_for_snapshot(length, || file.write_at(chunk, at))?;
                }
                None => file.write_at(chunk, at)?,
            }
            self.at += length;
            written += chunk.len();
            self.file.sync_data()?;
            self.chunk_bytes = (self.pace)(chunk.len())?;
        }
        self.buffer.drain(..written);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::journal::files::Files;
    use crate::journal::simulated_disk::SimulatedDisk;

    #[test]
    fn each_chunk_is_paced_and_synced_before_the_next() {
        let (disk, path) = (SimulatedDisk::default(), Path::new("/data/file"));
        disk.create_dir(Path::new("/data")).unwrap();
        let file = disk.create(path).unwrap();
        disk.sync_dir(Path::new("/data")).unwrap();
        let (mut chunks, mut done) = (Vec::new(), 0);
        let mut pace = |bytes| {
            chunks.push(bytes);
            done += bytes;
            assert_eq!(disk.after_power_cut(1).bytes(path).len(), done);
            Ok(3 * CHUNK_BYTES)
        };
        let mut output = PacedFile::new(file, None, &mut pace);
        output.buffer.resize(7 * CHUNK_BYTES + 5, 7);
        output.write_chunks().unwrap();
        assert_eq!((output.buffer.len(), output.end()), (5, 7 * CHUNK_BYTES as u64 + 5));
        output.finish().unwrap();
        assert_eq!(chunks, [CHUNK_BYTES, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES, 5]);
    }
}
