//! Things in chunks that a frozen copy shares with the living one: freezing copies nothing, and
//! what changes afterwards is copied one chunk at a time, when it is first touched and only while
//! the frozen copy still needs it.
//!
//! While nothing is frozen, nothing here is atomic, and nothing is looked at that a vector of
//! vectors would not look at: a chunk that is shared has no things of its own, so what finds that
//! out is the check of the place against their number.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Things by place, in chunks of `CHUNK`, a power of two. Growing never moves more than the first
/// chunk.
#[derive(Clone, Debug)]
pub(super) struct Chunks<T, const CHUNK: usize> {
    /// All but the last are full; those that are shared are empty.
    own: Vec<Vec<T>>,
    /// What somebody else may be reading: of each chunk that is empty above.
    shared: Vec<Option<Arc<Vec<T>>>>,
    len: usize,
}

impl<T, const CHUNK: usize> Default for Chunks<T, CHUNK> {
    fn default() -> Chunks<T, CHUNK> {
        const { assert!(CHUNK.is_power_of_two(), "a place is parted by shifting") };
        Chunks { own: Vec::new(), shared: Vec::new(), len: 0 }
    }
}

impl<T, const CHUNK: usize> Chunks<T, CHUNK> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&T> {
        match self.own.get(place / CHUNK)?.get(place % CHUNK) {
            None => self.get_shared(place),
            thing => thing,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let shared = self.shared.iter().map(|chunk| chunk.iter().flat_map(|chunk| chunk.iter()));
        self.own.iter().zip(shared).flat_map(|(own, shared)| own.iter().chain(shared))
    }

    /// All things as they are now, shared. Costs one small allocation for each chunk that was
    /// touched since the last time.
    pub(super) fn freeze(&mut self) -> Shared<T> {
        let share = |(own, shared): (&mut Vec<T>, &mut Option<Arc<Vec<T>>>)| {
            shared.get_or_insert_with(|| Arc::new(std::mem::take(own))).clone()
        };
        Shared { chunks: self.own.iter_mut().zip(&mut self.shared).map(share).collect(), at: 0 }
    }

    /// Bytes of memory for the things themselves.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let shared = self.shared.iter().flatten().map(|chunk| chunk.capacity());
        let own = self.own.iter().map(Vec::capacity);
        own.chain(shared).sum::<usize>() * size_of::<T>()
    }

    #[cold]
    #[inline(never)]
    fn index_shared(&self, place: usize) -> &T {
        self.get_shared(place).expect("a place is kept only while its thing is there")
    }

    #[cold]
    #[inline(never)]
    fn get_shared(&self, place: usize) -> Option<&T> {
        self.shared.get(place / CHUNK)?.as_ref()?.get(place % CHUNK)
    }
}

impl<T: Clone, const CHUNK: usize> Chunks<T, CHUNK> {
    #[inline]
    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        let (chunk, at) = (place / CHUNK, place % CHUNK);
        if at >= self.own.get(chunk)?.len() {
            self.take_back(chunk);
        }
        self.own.get_mut(chunk)?.get_mut(at)
    }

    #[inline]
    pub(super) fn push(&mut self, thing: T) {
        match self.own.last_mut() {
            Some(last) if !last.is_empty() && last.len() < last.capacity().min(CHUNK) => {
                last.push(thing);
                self.len += 1;
            }
            _ => self.push_making_room(thing),
        }
    }

    #[cold]
    #[inline(never)]
    fn push_making_room(&mut self, thing: T) {
        if self.len.is_multiple_of(CHUNK) {
            // Many tables stay small: the first chunk takes memory as it grows.
            let room = if self.len == 0 { 0 } else { CHUNK };
            self.own.push(Vec::with_capacity(room));
            self.shared.push(None);
        }
        if let Some(last) = self.last_own() {
            last.push(thing);
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let last = self.last_own()?;
        let thing = last.pop();
        if last.is_empty() {
            self.own.pop();
            self.shared.pop();
        }
        self.len -= usize::from(thing.is_some());
        thing
    }

    fn last_own(&mut self) -> Option<&mut Vec<T>> {
        if self.own.last()?.is_empty() {
            self.take_back(self.own.len() - 1);
        }
        self.own.last_mut()
    }

    #[cold]
    #[inline(never)]
    fn index_shared_mut(&mut self, place: usize) -> &mut T {
        self.take_back(place / CHUNK);
        &mut self.own[place / CHUNK][place % CHUNK]
    }

    /// Moves a shared chunk's things out if nobody else holds them any more, and copies them
    /// otherwise.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, chunk: usize) {
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
    fn index(&self, place: usize) -> &T {
        match self.own.get(place / CHUNK).and_then(|own| own.get(place % CHUNK)) {
            Some(thing) => thing,
            None => self.index_shared(place),
        }
    }
}

impl<T: Clone, const CHUNK: usize> IndexMut<usize> for Chunks<T, CHUNK> {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut T {
        let (chunk, at) = (place / CHUNK, place % CHUNK);
        if chunk < self.own.len() && at < self.own[chunk].len() {
            return &mut self.own[chunk][at];
        }
        self.index_shared_mut(place)
    }
}

/// The things of chunks as they were when they were frozen.
#[derive(Debug)]
pub(super) struct Shared<T> {
    chunks: VecDeque<Arc<Vec<T>>>,
    /// How many of the first chunk were taken already.
    at: usize,
}

impl<T> Shared<T> {
    /// Those that were not taken yet.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).skip(self.at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Hands out the next things in their order until `wants_more` says that it was the last. A
    /// chunk is let go of with its last thing, so that its owner need not copy it any more.
    pub(super) fn take_while(&mut self, mut wants_more: impl FnMut(&T) -> bool) {
        while let Some(chunk) = self.chunks.front() {
            for thing in chunk.iter().skip(self.at) {
                self.at += 1;
                if !wants_more(thing) {
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
    fn what_was_frozen_stays_and_what_lives_goes_on() {
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
    fn only_what_is_touched_is_copied_and_nothing_once_it_is_let_go_of() {
        let mut live = chunks(10);
        let before: Vec<*const u32> = (0..3).map(|n| &raw const live[4 * n]).collect();
        let mut shared = live.freeze();
        live[0] = 100;
        assert_eq!(owned(&live), [true, false, false]);
        assert_ne!(before[0], &raw const live[0], "it was copied");
        let mut taken = Vec::new();
        shared.take_while(|&thing| {
            taken.push(thing);
            thing < 8
        });
        assert_eq!(taken, Vec::from_iter(0..9), "the last chunk was begun");
        (live[4], live[8]) = (400, 800);
        assert_eq!(before[1], &raw const live[4], "it was taken back");
        assert_ne!(before[2], &raw const live[8], "it was still needed");
        assert_eq!(frozen(&shared), [9]);
        shared.take_while(|_| true);
        assert!(shared.is_empty());
    }

    #[test]
    fn freezing_again_shares_what_is_still_shared() {
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
    fn nothing_has_nothing() {
        let mut live = chunks(0);
        assert_eq!((live.pop(), live.len(), live.get(0)), (None, 0, None));
        assert_eq!(live.get_mut(3), None);
        let mut shared = live.freeze();
        shared.take_while(|_| unreachable!("there is none"));
        assert!(shared.is_empty());
    }
}
