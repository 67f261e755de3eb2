//! Places by hash: one look is one line of the processor's cache.
//!
//! With ten million jobs, what a look costs is the lines that it misses. A table that keeps its
//! marks and its places apart takes two for each look, and a third when it is told of a new place;
//! here both lie in the same 64 bytes:
//!
//! ```text
//! line  │ 12 marks, 1 byte each │ passed │ 3 unused │ 12 places, 4 bytes each │
//! ```
//!
//! A place lies in the line that its hash names, or in the first one behind it that had room; each
//! line counts those that have passed it by, so a look ends at the first line that none has passed,
//! and one that goes leaves nothing behind. (A line that has counted to 255 stays so: looks go on
//! to the next one. With hashes that are spread none comes near it.)

use std::hint::black_box;

/// Places in a line.
const LINE: usize = 12;
/// Where a line counts, behind its marks.
const PASSED: usize = LINE;
/// The bytes of a line's marks.
const MARKS: u128 = (1 << (8 * LINE)) - 1;
/// The lowest bit of each byte, and the highest.
const LOW: u128 = u128::MAX / 0xff;
const HIGH: u128 = LOW << 7;

/// Places by hash. Whether a place of that hash is the wanted one, the caller says.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotIndex {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line {
    /// The mark of each place, 0 of a free one; how many have passed by.
    marks: [u8; 16],
    slots: [u32; LINE],
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const EMPTY: Line = Line { marks: [0; 16], slots: [0; LINE] };

    /// Where such a mark may stand: each place that has it, and rarely one behind it that has not.
    #[inline]
    fn with_mark(&self, mark: u8) -> impl Iterator<Item = usize> + use<> {
        let differing = u128::from_le_bytes(self.marks) ^ (LOW * u128::from(mark));
        let mut found = differing.wrapping_sub(LOW) & !differing & HIGH & MARKS;
        std::iter::from_fn(move || {
            let at = found.trailing_zeros() as usize / 8;
            found &= found.wrapping_sub(1);
            (at < LINE).then_some(at)
        })
    }
}

impl SlotIndex {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many places the fullest line had no room for.
    #[cfg(test)]
    pub(super) fn most_passed(&self) -> u8 {
        self.lines.iter().map(|line| line.marks[PASSED]).max().unwrap_or(0)
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// The place of that hash for which `is_it` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let (line, at) = self.position(hash, is_it)?;
        Some(self.lines[line].slots[at])
    }

    /// Has the processor fetch what a look for that hash would look at. Changes nothing.
    #[inline]
    pub(super) fn fetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.home(hash)) {
            black_box(line.marks[PASSED]);
        }
    }

    /// Adds a place, which is not there yet; `hash_of` tells the hash of those that are.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        if self.len >= self.holds() {
            self.grow_to(self.len + 1, hash_of);
        }
        self.put(hash, slot);
    }

    /// Removes a place of that hash; false if it is not there.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let Some((found, at)) = self.position(hash, |known| known == slot) else { return false };
        self.lines[found].marks[at] = 0;
        self.len -= 1;
        let mut line = self.home(hash);
        while line != found {
            let passed = &mut self.lines[line].marks[PASSED];
            // One that has counted to its end counts no more: it only makes looks longer.
            *passed -= u8::from(*passed != u8::MAX);
            line = self.after(line);
        }
        true
    }

    /// Makes room for so many in all.
    pub(super) fn reserve(&mut self, places: usize, hash_of: impl Fn(u32) -> u64) {
        if places > self.holds() {
            self.grow_to(places, hash_of);
        }
    }

    /// How many it takes until it grows: four fifths of what its lines have. One in twelve lies
    /// outside its own line then.
    fn holds(&self) -> usize {
        self.lines.len() * LINE * 4 / 5
    }

    #[cold]
    #[inline(never)]
    fn grow_to(&mut self, places: usize, hash_of: impl Fn(u32) -> u64) {
        let lines = (places * 5).div_ceil(LINE * 4).max(self.lines.len() * 3 / 2);
        let old = std::mem::replace(&mut self.lines, vec![Line::EMPTY; lines]);
        self.len = 0;
        for line in old {
            for (_, &slot) in line.marks.iter().zip(&line.slots).filter(|(mark, _)| **mark != 0) {
                self.put(hash_of(slot), slot);
            }
        }
    }

    /// There is room.
    #[inline]
    fn put(&mut self, hash: u64, slot: u32) {
        let mut line = self.home(hash);
        loop {
            if let Some(at) = self.lines[line].with_mark(0).next() {
                self.lines[line].marks[at] = mark_of(hash);
                self.lines[line].slots[at] = slot;
                self.len += 1;
                return;
            }
            let passed = &mut self.lines[line].marks[PASSED];
            *passed = passed.saturating_add(1);
            line = self.after(line);
        }
    }

    #[inline]
    fn position(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let mut line = self.home(hash);
        for _ in 0..self.lines.len() {
            let looked_at = &self.lines[line];
            for at in looked_at.with_mark(mark_of(hash)) {
                // The mark itself is compared too: what was found may be a free place.
                if looked_at.marks[at] == mark_of(hash) && is_it(looked_at.slots[at]) {
                    return Some((line, at));
                }
            }
            if looked_at.marks[PASSED] == 0 {
                return None;
            }
            line = self.after(line);
        }
        None
    }

    /// The line that a hash names.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }
}

/// Never 0, which stands for a free place.
#[inline]
fn mark_of(hash: u64) -> u8 {
    (hash as u8).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Few lines are named, few marks differ, and some hashes are the same.
    fn crowded(slot: u32) -> u64 {
        u64::from(slot % 5) << 62 | u64::from(slot % 3)
    }

    /// As rows have them.
    fn spread(slot: u32) -> u64 {
        super::super::rows::mix(u64::from(slot))
    }

    fn check(index: &SlotIndex, known: &HashSet<u32>, most: u32, hash_of: fn(u32) -> u64) {
        assert_eq!(index.len(), known.len());
        for slot in 0..most {
            let found = index.find(hash_of(slot), |s| s == slot);
            assert_eq!(found, known.contains(&slot).then_some(slot));
        }
    }

    proptest! {
        #[test]
        fn what_is_there_is_found_and_nothing_else(
            steps in prop::collection::vec((any::<bool>(), 0_u32..300), 0..1_500),
            is_crowded: bool,
        ) {
            let hash_of = if is_crowded { crowded } else { spread };
            let (mut index, mut known) = (SlotIndex::default(), HashSet::new());
            for (comes, slot) in steps {
                if comes && known.insert(slot) {
                    index.insert(hash_of(slot), slot, hash_of);
                } else if !comes {
                    prop_assert_eq!(index.remove(hash_of(slot), slot), known.remove(&slot));
                }
            }
            check(&index, &known, 300, hash_of);
            for slot in std::mem::take(&mut known) {
                prop_assert!(index.remove(hash_of(slot), slot));
            }
            let unused = index.lines.iter().all(|line| line.marks == [0; 16]);
            prop_assert!(unused || is_crowded, "nothing is left behind");
        }
    }

    #[test]
    fn a_line_that_counted_to_its_end_loses_nobody() {
        let hash_of = |_| 7;
        let (mut index, mut known) = (SlotIndex::default(), HashSet::new());
        for slot in 0..1_000 {
            index.insert(hash_of(slot), slot, hash_of);
            known.insert(slot);
        }
        check(&index, &known, 1_001, hash_of);
        for slot in (0..1_000).step_by(2) {
            assert!(index.remove(hash_of(slot), slot));
            known.remove(&slot);
        }
        check(&index, &known, 1_001, hash_of);
    }

    #[test]
    fn with_many_most_looks_take_one_line_and_memory_stays_within_eleven_bytes_of_each() {
        let mut index = SlotIndex::default();
        for slot in 0..40_000 {
            index.insert(spread(slot), slot, spread);
            let bytes = index.memory_bytes();
            assert!(slot < 1_000 || bytes <= 11 * slot as usize, "{bytes} bytes for {slot}");
        }
        let outside = |slot: &u32| {
            let (line, _) = index.position(spread(*slot), |s| s == *slot).unwrap();
            line != index.home(spread(*slot))
        };
        let outside = (0..40_000).filter(outside).count();
        assert!(outside < 40_000 / 12, "{outside}");
    }

    #[test]
    fn room_that_was_made_needs_no_more() {
        let mut index = SlotIndex::default();
        index.reserve(5_000, spread);
        let bytes = index.memory_bytes();
        (0..5_000).for_each(|slot| index.insert(spread(slot), slot, spread));
        assert_eq!(index.memory_bytes(), bytes);
    }
}
