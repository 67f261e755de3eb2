//! A file's bytes in copy-on-write blocks: the disk is copied at every power cut, and most of it
//! stays the same.

use std::sync::Arc;

const BLOCK_BYTES: usize = 4096;

/// Sparse bytes: an unwritten block takes no memory and reads as zeros.
#[derive(Clone, Default)]
pub(super) struct Blocks {
    length: usize,
    blocks: Vec<Option<Arc<[u8; BLOCK_BYTES]>>>,
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Extends it with zeros, or truncates it.
    pub(super) fn resize(&mut self, length: usize) {
        let last = length / BLOCK_BYTES;
        if length < self.length
            && let Some(Some(block)) = self.blocks.get_mut(last)
        {
            Arc::make_mut(block)[length % BLOCK_BYTES..].fill(0);
        }
        self.blocks.resize(length.div_ceil(BLOCK_BYTES), None);
        self.length = length;
    }

    /// Reads at `offset`; returns the number of bytes, fewer only at the end.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let from = (offset as usize).min(self.length);
        let readable = bytes.len().min(self.length - from);
        let mut done = 0;
        while done < readable {
            let (block, at) = ((from + done) / BLOCK_BYTES, (from + done) % BLOCK_BYTES);
            let n = (BLOCK_BYTES - at).min(readable - done);
            match &self.blocks[block] {
                Some(block) => bytes[done..done + n].copy_from_slice(&block[at..at + n]),
                None => bytes[done..done + n].fill(0),
            }
            done += n;
        }
        readable
    }

    /// Writes at `offset`, also beyond the end.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let from = offset as usize;
        self.resize(self.length.max(from + bytes.len()));
        let mut done = 0;
        while done < bytes.len() {
            let (block, at) = ((from + done) / BLOCK_BYTES, (from + done) % BLOCK_BYTES);
            let n = (BLOCK_BYTES - at).min(bytes.len() - done);
            let block = self.blocks[block].get_or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(block)[at..at + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.read(0, &mut bytes);
        bytes
    }
}

impl From<Vec<u8>> for Blocks {
    fn from(bytes: Vec<u8>) -> Blocks {
        let mut blocks = Blocks::default();
        blocks.write(0, &bytes);
        blocks
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn blocks_behave_like_one_contiguous_buffer() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut blocks, mut plain, mut copies) = (Blocks::default(), Vec::new(), Vec::new());
        for round in 0..500 {
            let (at, n) = (random.random_range(0..20_000), random.random_range(0..9_000));
            match random.random_range(0..4) {
                0 => {
                    blocks.resize(at);
                    plain.resize(at, 0);
                }
                _ => {
                    blocks.write(at as u64, &vec![round as u8; n]);
                    if n > 0 {
                        plain.resize(plain.len().max(at + n), 0);
                        plain[at..at + n].fill(round as u8);
                    }
                }
            }
            assert_eq!(blocks.len(), plain.len());
            assert!(blocks.to_vec() == plain);
            let mut part = vec![1; n];
            let read = blocks.read(at as u64, &mut part);
            assert!(part[..read] == plain[at.min(plain.len())..(at + n).min(plain.len())]);
            if round % 50 == 0 {
                copies.push((blocks.clone(), plain.clone()));
            }
        }
        assert!(copies.iter().all(|(blocks, plain)| blocks.to_vec() == *plain), "copies stay");
    }
}
