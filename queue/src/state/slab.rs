//! Numbered places that are given back and used again, in an order that depends on the commands alone.

use std::ops::{Index, IndexMut};

/// Things by number. The place given back last is the first to be used again.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts a thing into a free place. The owner of the slab bounds how many there are, far below 2³².
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

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let thing = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(thing)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places.iter().enumerate().filter_map(|(n, thing)| Some((n as u32, thing.as_ref()?)))
    }

    /// Every place, and the free ones in the order in which they were given back: for snapshots.
    pub(super) fn parts(&self) -> (&[Option<T>], &[u32]) {
        (&self.places, &self.free)
    }

    /// The slab of those parts; none if the free places are not exactly the empty ones.
    pub(super) fn from_parts(places: Vec<Option<T>>, free: Vec<u32>) -> Option<Slab<T>> {
        let empty = places.iter().filter(|thing| thing.is_none()).count();
        let mut seen = vec![false; places.len()];
        for &number in &free {
            let number = number as usize;
            if places.get(number)?.is_some() || std::mem::replace(&mut seen[number], true) {
                return None;
            }
        }
        (empty == free.len()).then_some(Slab { places, free })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        self.places[number as usize]
            .as_ref()
            .expect("a number is kept only while its thing is there")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.places[number as usize]
            .as_mut()
            .expect("a number is kept only while its thing is there")
    }
}
