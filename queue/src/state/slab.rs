//! Tables with numbered entries. Freed numbers are reused, in an order that depends on the commands
//! alone.

use std::ops::{Index, IndexMut};

use super::chunks::{Chunks, Shared};

/// Entries per chunk unless the slab has its own. In tests a few take several.
const CHUNK_ENTRIES: usize = if cfg!(test) { 4 } else { 256 };
/// Free numbers per chunk.
const CHUNK_FREE: usize = if cfg!(test) { 4 } else { 1_024 };

/// Entries by number. The number freed last is reused first. `CHUNK` entries are copied together
/// when one is changed while the slab is frozen: fewer where an entry may be large.
#[derive(Clone, Debug)]
pub(super) struct Slab<T, const CHUNK: usize = CHUNK_ENTRIES> {
    entries: Chunks<Option<T>, CHUNK>,
    free: Chunks<u32, CHUNK_FREE>,
}

impl<T, const CHUNK: usize> Default for Slab<T, CHUNK> {
    fn default() -> Slab<T, CHUNK> {
        Slab { entries: Chunks::default(), free: Chunks::default() }
    }
}

impl<T, const CHUNK: usize> Slab<T, CHUNK> {
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Entries created so far, free ones included.
    pub(super) fn allocated(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(self.entries.iter()).filter_map(|(n, entry)| Some((n, entry.as_ref()?)))
    }

    /// Every entry, and the free numbers in the order in which they were freed: for snapshots.
    pub(super) fn parts(&self) -> (impl Iterator<Item = &Option<T>>, impl Iterator<Item = &u32>) {
        (self.entries.iter(), self.free.iter())
    }

    /// The same, as they are now, shared.
    pub(super) fn freeze(&mut self) -> (Shared<Option<T>>, Shared<u32>) {
        (self.entries.freeze(), self.free.freeze())
    }

    /// True when the free numbers are exactly the empty entries: to validate a restored slab.
    pub(super) fn is_whole(&self) -> bool {
        let empty = self.entries.iter().filter(|entry| entry.is_none()).count();
        let mut seen = vec![false; self.entries.len()];
        empty == self.free.len()
            && self.free.iter().all(|&number| {
                let is_empty = matches!(self.entries.get(number as usize), Some(None));
                is_empty && !std::mem::replace(&mut seen[number as usize], true)
            })
    }
}

impl<T: Clone, const CHUNK: usize> Slab<T, CHUNK> {
    /// Inserts an entry. The owner of the slab bounds their number, far below 2³².
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    /// Appends an entry of a snapshot.
    pub(super) fn push_entry(&mut self, entry: Option<T>) {
        self.entries.push(entry);
    }

    /// Appends a free number of a snapshot.
    pub(super) fn push_free(&mut self, number: u32) {
        self.free.push(number);
    }
}

impl<T, const CHUNK: usize> Index<u32> for Slab<T, CHUNK> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        self.entries[number as usize]
            .as_ref()
            .expect("a number is stored only while its entry exists")
    }
}

impl<T: Clone, const CHUNK: usize> IndexMut<u32> for Slab<T, CHUNK> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.entries[number as usize]
            .as_mut()
            .expect("a number is stored only while its entry exists")
    }
}
