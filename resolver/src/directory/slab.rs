//! Entries by number, in chunks: a number is valid as long as its entry exists, and nothing ever
//! moves.
//!
//! One growing `Vec` would copy 32 MB at once on its way to a million nodes, which would block all
//! clients for some 10 ms.

use std::ops::{Index, IndexMut};

/// No entry.
pub(super) const NONE: u32 = u32::MAX;
/// Entries of a chunk, as a power of two: 128 KiB of nodes.
const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

/// An entry of a slab. A free entry holds the number of the next free one.
pub(super) trait Entry: Clone + Default {
    fn next_free(&self) -> u32;
    fn set_next_free(&mut self, next: u32);
}

/// The entries.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Box<[T]>>,
    /// All numbers that were ever in use are below this one.
    end: u32,
    free: u32,
    len: usize,
}

impl<T: Entry> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), end: 0, free: NONE, len: 0 }
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Every number in use is below this one; so may be free numbers.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    pub(super) fn insert(&mut self, entry: T) -> u32 {
        self.len += 1;
        if self.free != NONE {
            let number = self.free;
            self.free = self[number].next_free();
            self[number] = entry;
            return number;
        }
        let number = self.end;
        if number as usize >> CHUNK_BITS == self.chunks.len() {
            self.chunks.push(vec![T::default(); CHUNK].into_boxed_slice());
        }
        self.end += 1;
        self[number] = entry;
        number
    }

    pub(super) fn remove(&mut self, number: u32) {
        let mut vacant = T::default();
        vacant.set_next_free(self.free);
        self[number] = vacant;
        self.free = number;
        self.len -= 1;
    }
}

/// Numbers come from `insert`, and are not used after `remove`.
impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        &self.chunks[number as usize >> CHUNK_BITS][number as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize >> CHUNK_BITS][number as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entry for u32 {
        fn next_free(&self) -> u32 {
            *self
        }
        fn set_next_free(&mut self, next: u32) {
            *self = next;
        }
    }

    #[test]
    fn numbers_are_reused_and_nothing_moves() {
        let mut slab = Slab::new();
        let count = 2 * CHUNK as u32 + 1;
        for n in 0..count {
            assert_eq!(slab.insert(n + 7), n);
        }
        slab.remove(5);
        slab.remove(CHUNK as u32);
        assert_eq!(slab.len() as u32, count - 2);
        assert_eq!((slab.insert(1), slab.insert(2)), (CHUNK as u32, 5));
        assert_eq!((slab[5], slab[6], slab[count - 1]), (2, 13, count + 6));
        assert_eq!((slab.insert(3), slab.end()), (count, count + 1));
    }
}
