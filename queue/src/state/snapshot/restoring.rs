//! A snapshot read back, block by block.

use bytes::Bytes;

use super::super::State;
use super::super::limits::Limits;
use super::SnapshotError;

/// A state on its way back from the blocks of its snapshot.
#[derive(Debug)]
pub struct Restoring {
    limits: Limits,
    bytes: Vec<u8>,
}

impl Default for Restoring {
    fn default() -> Restoring {
        Restoring::new()
    }
}

impl Restoring {
    /// Before the first block.
    pub fn new() -> Restoring {
        Restoring { limits: Limits::STANDARD, bytes: Vec::new() }
    }

    /// Takes the next block, as it was written.
    pub fn block(&mut self, block: Bytes) -> Result<(), SnapshotError> {
        self.bytes.extend_from_slice(&block);
        Ok(())
    }

    /// The state, once every block was taken.
    pub fn finish(self) -> Result<State, SnapshotError> {
        State::restore_with_limits(&self.bytes, self.limits)
    }
}
