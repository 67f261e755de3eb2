//! Numbered places that are given back and used again, in an order that depends on the commands
//! alone.

use std::ops::{Index, IndexMut};

use super::chunks::{Chunks, Shared};

/// Things in one chunk unless the slab says otherwise. In tests a few take several.
const CHUNK_THINGS: usize = if cfg!(test) { 4 } else { 256 };
/// Free places in one chunk.
const CHUNK_FREE: usize = if cfg!(test) { 4 } else { 1_024 };

/// Things by number. The place given back last is the first to be used again. `CHUNK` of them are
/// copied at once when one is changed while the slab is frozen: fewer where a thing may be large.
#[derive(Clone, Debug)]
pub(super) struct Slab<T, const CHUNK: usize = CHUNK_THINGS> {
    places: Chunks<Option<T>, CHUNK>,
    free: Chunks<u32, CHUNK_FREE>,
}

impl<T, const CHUNK: usize> Default for Slab<T, CHUNK> {
    fn default() -> Slab<T, CHUNK> {
        Slab { places: Chunks::default(), free: Chunks::default() }
    }
}

impl<T, const CHUNK: usize> Slab<T, CHUNK> {
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Places made so far, free ones too.
    pub(super) fn made(&self) -> usize {
        self.places.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(self.places.iter()).filter_map(|(n, thing)| Some((n, thing.as_ref()?)))
    }

    /// Every place, and the free ones in the order in which they were given back: for snapshots.
    pub(super) fn parts(&self) -> (impl Iterator<Item = &Option<T>>, impl Iterator<Item = &u32>) {
        (self.places.iter(), self.free.iter())
    }

    /// The same, as they are now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<T>>, Shared<u32>) {
        (self.places.freeze(), self.free.freeze())
    }

    /// True when the free places are exactly the empty ones: of a slab that was put together from
    /// its parts.
    pub(super) fn is_whole(&self) -> bool {
        let empty = self.places.iter().filter(|thing| thing.is_none()).count();
        let mut seen = vec![false; self.places.len()];
        empty == self.free.len()
            && self.free.iter().all(|&number| {
                let is_empty = matches!(self.places.get(number as usize), Some(None));
                is_empty && !std::mem::replace(&mut seen[number as usize], true)
            })
    }
}

impl<T: Clone, const CHUNK: usize> Slab<T, CHUNK> {
    /// Puts a thing into a free place. The owner of the slab bounds how many there are, far below
    /// 2³².
    pub(super) fn insert(&mut self, thing: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.places[number as usize] = Some(thing);
                number
            }
            None => {
                self.places.push(Some(thing));
                (self.places.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let thing = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(thing)
    }

    /// Appends a place as a snapshot has it.
    pub(super) fn push_place(&mut self, place: Option<T>) {
        self.places.push(place);
    }

    /// Appends a free place as a snapshot has it.
    pub(super) fn push_free(&mut self, number: u32) {
        self.free.push(number);
    }
}

impl<T, const CHUNK: usize> Index<u32> for Slab<T, CHUNK> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        self.places[number as usize]
            .as_ref()
            .expect("a number is kept only while its thing is there")
    }
}

impl<T: Clone, const CHUNK: usize> IndexMut<u32> for Slab<T, CHUNK> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.places[number as usize]
            .as_mut()
            .expect("a number is kept only while its thing is there")
    }
}
