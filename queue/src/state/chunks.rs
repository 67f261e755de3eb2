//! Vectors in chunks that a frozen copy shares with the live one: freezing copies nothing, and
//! later changes copy one chunk each, on first change and only while the frozen copy still needs
//! it.
//!
//! While nothing is frozen, nothing here is atomic, and an access costs no more than in a vector of
//! vectors: a shared chunk has no elements of its own, so the bounds check detects it.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// A vector in chunks of `CHUNK` elements, a power of two. Growing moves at most the first chunk.
#[derive(Clone, Debug)]
pub(super) struct Chunks<T, const CHUNK: usize> {
    /// All but the last are full; shared ones are empty.
    own: Vec<Vec<T>>,
    /// The shared contents of each chunk that is empty in `own`.
    shared: Vec<Option<Arc<Vec<T>>>>,
    len: usize,
}

impl<T, const CHUNK: usize> Default for Chunks<T, CHUNK> {
    fn default() -> Chunks<T, CHUNK> {
        const { assert!(CHUNK.is_power_of_two(), "an index is split by shifting") };
        Chunks { own: Vec::new(), shared: Vec::new(), len: 0 }
    }
}

impl<T, const CHUNK: usize> Chunks<T, CHUNK> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        match self.own.get(index / CHUNK)?.get(index % CHUNK) {
            None => self.get_shared(index),
            element => element,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let shared = self.shared.iter().map(|chunk| chunk.iter().flat_map(|chunk| chunk.iter()));
        self.own.iter().zip(shared).flat_map(|(own, shared)| own.iter().chain(shared))
    }

    /// All elements as they are now, shared. Costs one small allocation for each chunk that was
    /// changed since the last time.
    pub(super) fn freeze(&mut self) -> Shared<T> {
        let share = |(own, shared): (&mut Vec<T>, &mut Option<Arc<Vec<T>>>)| {
            shared.get_or_insert_with(|| Arc::new(std::mem::take(own))).clone()
        };
        Shared { chunks: self.own.iter_mut().zip(&mut self.shared).map(share).collect(), at: 0 }
    }

    /// Bytes of memory of the elements.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let shared = self.shared.iter().flatten().map(|chunk| chunk.capacity());
        let own = self.own.iter().map(Vec::capacity);
        own.chain(shared).sum::<usize>() * size_of::<T>()
    }

    #[cold]
    #[inline(never)]
    fn index_shared(&self, index: usize) -> &T {
        self.get_shared(index).expect("an index is stored only while its element exists")
    }

    #[cold]
    #[inline(never)]
    fn get_shared(&self, index: usize) -> Option<&T> {
        self.shared.get(index / CHUNK)?.as_ref()?.get(index % CHUNK)
    }
}

impl<T: Clone, const CHUNK: usize> Chunks<T, CHUNK> {
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let (chunk, at) = (index / CHUNK, index % CHUNK);
        if at >= self.own.get(chunk)?.len() {
            self.make_own(chunk);
        }
        self.own.get_mut(chunk)?.get_mut(at)
    }

    #[inline]
    pub(super) fn push(&mut self, element: T) {
        match self.own.last_mut() {
            Some(last) if !last.is_empty() && last.len() < last.capacity().min(CHUNK) => {
                last.push(element);
                self.len += 1;
            }
            _ => self.push_growing(element),
        }
    }

    #[cold]
    #[inline(never)]
    fn push_growing(&mut self, element: T) {
        if self.len.is_multiple_of(CHUNK) {
            // Many tables stay small: the first chunk grows on demand.
            let room = if self.len == 0 { 0 } else { CHUNK };
            self.own.push(Vec::with_capacity(room));
            self.shared.push(None);
        }
        if let Some(last) = self.last_own() {
            last.push(element);
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let last = self.last_own()?;
        let element = last.pop();
        if last.is_empty() {
            self.own.pop();
            self.shared.pop();
        }
        self.len -= usize::from(element.is_some());
        element
    }

    fn last_own(&mut self) -> Option<&mut Vec<T>> {
        if self.own.last()?.is_empty() {
            self.make_own(self.own.len() - 1);
        }
        self.own.last_mut()
    }

    #[cold]
    #[inline(never)]
    fn index_shared_mut(&mut self, index: usize) -> &mut T {
        self.make_own(index / CHUNK);
        &mut self.own[index / CHUNK][index % CHUNK]
    }

    /// Makes a shared chunk mutable: moves its elements if nobody else uses them, and copies them
    /// otherwise.
    #[cold]
    #[inline(never)]
    fn make_own(&mut self, chunk: usize) {
        let shared = self.shared.get_mut(chunk).and_then(Option::take);
        if let (Some(shared), Some(own)) = (shared, self.own.get_mut(chunk)) {
            *own = Arc::try_unwrap(shared).unwrap_or_else(|shared| {
                let mut own = Vec::with_capacity(CHUNK);
                own.extend_from_slice(&shared);
                own
            });
        }
    }
}

impl<T, const CHUNK: usize> Index<usize> for Chunks<T, CHUNK> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        match self.own.get(index / CHUNK).and_then(|own| own.get(index % CHUNK)) {
            Some(element) => element,
            None => self.index_shared(index),
        }
    }
}

impl<T: Clone, const CHUNK: usize> IndexMut<usize> for Chunks<T, CHUNK> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        let (chunk, at) = (index / CHUNK, index % CHUNK);
        if chunk < self.own.len() && at < self.own[chunk].len() {
            return &mut self.own[chunk][at];
        }
        self.index_shared_mut(index)
    }
}

/// The elements of chunks as they were when frozen.
#[derive(Debug)]
pub(super) struct Shared<T> {
    chunks: VecDeque<Arc<Vec<T>>>,
    /// How many of the first chunk were read already.
    at: usize,
}

impl<T> Shared<T> {
    /// The elements that were not read yet.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).skip(self.at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Passes the next elements to `wants_more` until it returns false (one more if that was the
    /// last of its chunk). A chunk is released after its last element, so that its owner need not
    /// copy it.
    pub(super) fn take_while(&mut self, mut wants_more: impl FnMut(&T) -> bool) {
        while let Some(chunk) = self.chunks.front() {
            for element in chunk.iter().skip(self.at) {
                self.at += 1;
                if !wants_more(element) {
                    break;
                }
            }
            if self.at < chunk.len() {
                return;
            }
            self.chunks.pop_front();
            self.at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(count: u32) -> Chunks<u32, 4> {
        let mut chunks = Chunks::default();
        (0..count).for_each(|n| chunks.push(n));
        chunks
    }

    fn frozen(shared: &Shared<u32>) -> Vec<u32> {
        shared.iter().copied().collect()
    }

    fn owned(chunks: &Chunks<u32, 4>) -> Vec<bool> {
        chunks.own.iter().map(|own| !own.is_empty()).collect()
    }

    #[test]
    fn frozen_elements_stay_while_live_ones_change() {
        let mut live = chunks(10);
        let shared = live.freeze();
        live[1] = 100;
        live[9] = 900;
        live.push(10);
        for _ in 0..4 {
            live.pop();
        }
        assert_eq!(frozen(&shared), Vec::from_iter(0..10));
        assert_eq!(live.iter().copied().collect::<Vec<_>>(), [0, 100, 2, 3, 4, 5, 6]);
        assert_eq!(live.len(), 7);
        assert_eq!((live.get(6), live.get(7)), (Some(&6), None));
    }

    #[test]
    fn only_changed_chunks_are_copied_and_only_while_shared() {
        let mut live = chunks(10);
        let before: Vec<*const u32> = (0..3).map(|n| &raw const live[4 * n]).collect();
        let mut shared = live.freeze();
        live[0] = 100;
        assert_eq!(owned(&live), [true, false, false]);
        assert_ne!(before[0], &raw const live[0], "the chunk was copied");
        let mut read = Vec::new();
        shared.take_while(|&element| {
            read.push(element);
            element < 8
        });
        assert_eq!(read, Vec::from_iter(0..9), "the last chunk is partly read");
        (live[4], live[8]) = (400, 800);
        assert_eq!(before[1], &raw const live[4], "the chunk was moved back");
        assert_ne!(before[2], &raw const live[8], "the frozen copy still needs it");
        assert_eq!(frozen(&shared), [9]);
        shared.take_while(|_| true);
        assert!(shared.is_empty());
    }

    #[test]
    fn second_freeze_shares_unchanged_chunks() {
        let mut live = chunks(8);
        let first = live.freeze();
        live[0] = 100;
        let second = live.freeze();
        assert!(!Arc::ptr_eq(&first.chunks[0], &second.chunks[0]));
        assert!(Arc::ptr_eq(&first.chunks[1], &second.chunks[1]));
        live[4] = 400;
        assert_eq!(frozen(&first), Vec::from_iter(0..8));
        assert_eq!(frozen(&second), [100, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn empty_chunks_have_no_elements() {
        let mut live = chunks(0);
        assert_eq!((live.pop(), live.len(), live.get(0)), (None, 0, None));
        assert_eq!(live.get_mut(3), None);
        let mut shared = live.freeze();
        shared.take_while(|_| unreachable!("there is no element"));
        assert!(shared.is_empty());
    }
}
