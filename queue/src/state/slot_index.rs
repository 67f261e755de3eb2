//! A hash index of row slots: one lookup reads one line of the processor's cache.
//!
//! With ten million jobs, the cost of a lookup is its cache misses. A table with separate tags and
//! slots misses twice per lookup, and a third time on insertion; here both are in the same 64
//! bytes:
//!
//! ```text
//! line  │ 12 tags, 1 byte each │ overflows │ 3 unused │ 12 slots, 4 bytes each │
//! ```
//!
//! A slot is in the line that its hash selects, or in the first one behind it that had room; each
//! line counts the slots that overflowed it, so a lookup ends at the first line without overflows,
//! and a removal leaves nothing behind. (A line that has counted to 255 stays so: lookups continue
//! to the next one. With well spread hashes none comes near it.)

use std::hint::black_box;

/// Slots per line.
const SLOTS_PER_LINE: usize = 12;
/// The position of a line's overflow count, behind its tags.
const OVERFLOWS: usize = SLOTS_PER_LINE;
/// The bytes of a line's tags.
const TAGS: u128 = (1 << (8 * SLOTS_PER_LINE)) - 1;
/// The lowest bit of each byte, and the highest.
const LOW: u128 = u128::MAX / 0xff;
const HIGH: u128 = LOW << 7;

/// Slots by hash. The caller's closure confirms a match.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotIndex {
    lines: Vec<IndexLine>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct IndexLine {
    /// The tag of each slot, 0 of a free one; then the overflow count.
    tags: [u8; 16],
    slots: [u32; SLOTS_PER_LINE],
}

const _: () = assert!(size_of::<IndexLine>() == 64);

impl IndexLine {
    const EMPTY: IndexLine = IndexLine { tags: [0; 16], slots: [0; SLOTS_PER_LINE] };

    /// Where a tag may be: each position that has it, and rarely one behind it that has not.
    #[inline]
    fn with_tag(&self, tag: u8) -> impl Iterator<Item = usize> + use<> {
        let differing = u128::from_le_bytes(self.tags) ^ (LOW * u128::from(tag));
        let mut found = differing.wrapping_sub(LOW) & !differing & HIGH & TAGS;
        std::iter::from_fn(move || {
            let at = found.trailing_zeros() as usize / 8;
            found &= found.wrapping_sub(1);
            (at < SLOTS_PER_LINE).then_some(at)
        })
    }
}

impl SlotIndex {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many slots the fullest line had no room for.
    #[cfg(test)]
    pub(super) fn most_overflows(&self) -> u8 {
        self.lines.iter().map(|line| line.tags[OVERFLOWS]).max().unwrap_or(0)
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<IndexLine>()
    }

    /// The slot of that hash for which `is_match` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_match: impl Fn(u32) -> bool) -> Option<u32> {
        let (line, at) = self.locate(hash, is_match)?;
        Some(self.lines[line].slots[at])
    }

    /// Prefetches the line of that hash. Changes nothing.
    #[inline]
    pub(super) fn fetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.home(hash)) {
            black_box(line.tags[OVERFLOWS]);
        }
    }

    /// Adds a slot, which is not there yet; `hash_of` returns the hash of existing ones.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        if self.len >= self.capacity() {
            self.grow_to(self.len + 1, hash_of);
        }
        self.place_slot(hash, slot);
    }

    /// Removes a slot of that hash; false if it is not there.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let Some((found, at)) = self.locate(hash, |known| known == slot) else { return false };
        self.lines[found].tags[at] = 0;
        self.len -= 1;
        let mut line = self.home(hash);
        while line != found {
            let overflows = &mut self.lines[line].tags[OVERFLOWS];
            // A saturated count stays: it only makes lookups longer.
            *overflows -= u8::from(*overflows != u8::MAX);
            line = self.after(line);
        }
        true
    }

    /// Reserves room for `slots` slots in total.
    pub(super) fn reserve(&mut self, slots: usize, hash_of: impl Fn(u32) -> u64) {
        if slots > self.capacity() {
            self.grow_to(slots, hash_of);
        }
    }

    /// How many fit before it grows: four fifths of its lines' slots. One in twelve is outside its
    /// own line then.
    fn capacity(&self) -> usize {
        self.lines.len() * SLOTS_PER_LINE * 4 / 5
    }

    #[cold]
    #[inline(never)]
    fn grow_to(&mut self, slots: usize, hash_of: impl Fn(u32) -> u64) {
        let lines = (slots * 5).div_ceil(SLOTS_PER_LINE * 4).max(self.lines.len() * 3 / 2);
        let old = std::mem::replace(&mut self.lines, vec![IndexLine::EMPTY; lines]);
        self.len = 0;
        for line in old {
            for (_, &slot) in line.tags.iter().zip(&line.slots).filter(|(tag, _)| **tag != 0) {
                self.place_slot(hash_of(slot), slot);
            }
        }
    }

    /// Adds a slot; the caller has made room.
    #[inline]
    fn place_slot(&mut self, hash: u64, slot: u32) {
        let mut line = self.home(hash);
        loop {
            if let Some(at) = self.lines[line].with_tag(0).next() {
                self.lines[line].tags[at] = tag_of(hash);
                self.lines[line].slots[at] = slot;
                self.len += 1;
                return;
            }
            let overflows = &mut self.lines[line].tags[OVERFLOWS];
            *overflows = overflows.saturating_add(1);
            line = self.after(line);
        }
    }

    #[inline]
    fn locate(&self, hash: u64, is_match: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let mut line = self.home(hash);
        for _ in 0..self.lines.len() {
            let candidate = &self.lines[line];
            for at in candidate.with_tag(tag_of(hash)) {
                // Compare the tag itself too: the candidate may be a free slot.
                if candidate.tags[at] == tag_of(hash) && is_match(candidate.slots[at]) {
                    return Some((line, at));
                }
            }
            if candidate.tags[OVERFLOWS] == 0 {
                return None;
            }
            line = self.after(line);
        }
        None
    }

    /// The line that a hash selects.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }
}

/// Never 0, which marks a free slot.
#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash as u8).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Few lines are selected, few tags differ, and some hashes are equal.
    fn crowded(slot: u32) -> u64 {
        u64::from(slot % 5) << 62 | u64::from(slot % 3)
    }

    /// The hashes of rows.
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
        fn index_finds_exactly_its_slots(
            steps in prop::collection::vec((any::<bool>(), 0_u32..300), 0..1_500),
            is_crowded: bool,
        ) {
            let hash_of = if is_crowded { crowded } else { spread };
            let (mut index, mut known) = (SlotIndex::default(), HashSet::new());
            for (adds, slot) in steps {
                if adds && known.insert(slot) {
                    index.insert(hash_of(slot), slot, hash_of);
                } else if !adds {
                    prop_assert_eq!(index.remove(hash_of(slot), slot), known.remove(&slot));
                }
            }
            check(&index, &known, 300, hash_of);
            for slot in std::mem::take(&mut known) {
                prop_assert!(index.remove(hash_of(slot), slot));
            }
            let unused = index.lines.iter().all(|line| line.tags == [0; 16]);
            prop_assert!(unused || is_crowded, "no tag or count is left behind");
        }
    }

    #[test]
    fn saturated_line_loses_no_slot() {
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
    fn most_lookups_read_one_line_and_slots_take_at_most_11_bytes() {
        let mut index = SlotIndex::default();
        for slot in 0..40_000 {
            index.insert(spread(slot), slot, spread);
            let bytes = index.memory_bytes();
            assert!(slot < 1_000 || bytes <= 11 * slot as usize, "{bytes} bytes for {slot}");
        }
        let outside = |slot: &u32| {
            let (line, _) = index.locate(spread(*slot), |s| s == *slot).unwrap();
            line != index.home(spread(*slot))
        };
        let outside = (0..40_000).filter(outside).count();
        assert!(outside < 40_000 / 12, "{outside}");
    }

    #[test]
    fn reserved_index_does_not_grow() {
        let mut index = SlotIndex::default();
        index.reserve(5_000, spread);
        let bytes = index.memory_bytes();
        (0..5_000).for_each(|slot| index.insert(spread(slot), slot, spread));
        assert_eq!(index.memory_bytes(), bytes);
    }
}
