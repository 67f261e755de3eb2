//! A file that is written beside the commits: in pieces, each of them synced, with a rest after each.

use std::io;
use std::sync::Arc;

use super::files::JournalFile;
use super::reserve::Reserve;

/// Most bytes written, or read back, before the caller is asked to pace it: a commit waits for no more than these to reach the
/// disk (0.6 ms at 400 MB/s).
pub(crate) const PIECE_BYTES: usize = 256 * 1024;

/// A file on its way.
pub(crate) struct PacedFile<'a> {
    file: Arc<dyn JournalFile>,
    /// Room for it on a full disk; none for a file that was allocated before.
    room: Option<&'a Reserve>,
    pace: &'a mut dyn FnMut(usize) -> io::Result<()>,
    /// What is still to be written.
    pub(crate) buffer: Vec<u8>,
    /// How far it is written.
    at: u64,
}

impl<'a> PacedFile<'a> {
    /// From its beginning on. An error of `pace` gives the file up.
    pub(crate) fn new(
        file: Arc<dyn JournalFile>,
        room: Option<&'a Reserve>,
        pace: &'a mut dyn FnMut(usize) -> io::Result<()>,
    ) -> PacedFile<'a> {
        PacedFile { file, room, pace, buffer: Vec::with_capacity(2 * PIECE_BYTES), at: 0 }
    }

    /// Where what comes next will stand.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    /// Writes whole pieces; what is left waits for more.
    pub(crate) fn write_pieces(&mut self) -> io::Result<()> {
        self.drain(PIECE_BYTES)
    }

    /// Writes the rest: all of it lasts once this returns.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.drain(1)
    }

    /// Writes pieces until less than `least` bytes wait.
    fn drain(&mut self, least: usize) -> io::Result<()> {
        let mut written = 0;
        while self.buffer.len() - written >= least {
            let piece = &self.buffer[written..];
            let piece = &piece[..piece.len().min(PIECE_BYTES)];
            let (file, at, length) = (&self.file, self.at, piece.len() as u64);
            match self.room {
                Some(reserve) => {
                    reserve.make(length, length, |_| file.write_at(piece, at))?;
                    reserve.lend(length);
                }
                None => file.write_at(piece, at)?,
            }
            self.at += length;
            written += piece.len();
            self.file.sync_data()?;
            (self.pace)(piece.len())?;
        }
        self.buffer.drain(..written);
        Ok(())
    }
}
