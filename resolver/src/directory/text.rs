//! The last segments of paths: 1 to 255 bytes each, in chunks of 64 KiB. Nothing moves; freed space
//! is reused for texts of the same length, to within 4 bytes.

use longshore_protocol::limits::PATH_SEGMENT_BYTES_MAX;

/// The unit of offsets and lengths, in bytes. A `u32` thus addresses 16 GiB.
const UNIT: usize = 4;
/// Units of a chunk.
const CHUNK: usize = 16 * 1024;
/// One free list for each length in units.
const CLASSES: usize = PATH_SEGMENT_BYTES_MAX.div_ceil(UNIT) + 1;
const NONE: u32 = u32::MAX;
/// From this many units on no new paths are accepted: 4 MiB before offsets overflow. A path may
/// have allocated text before it is refused, and then frees it: of all lengths together such
/// allocations never exceed a fifteenth of that.
const FULL: u32 = u32::MAX - (1 << 20);

/// All texts.
#[derive(Debug)]
pub(super) struct Text {
    chunks: Vec<Box<[u8]>>,
    /// The first unit that was never used.
    end: u32,
    /// The free list of each class: the offset freed last; its first 4 bytes hold the next one.
    free: [u32; CLASSES],
    full: u32,
}

/// The offset of a text. Its owner stores the length.
pub(super) type TextOffset = u32;

impl Text {
    pub(super) fn new() -> Text {
        Text { chunks: Vec::new(), end: 0, free: [NONE; CLASSES], full: FULL }
    }

    /// True if the limit was reached once: nothing new may be added.
    pub(super) fn is_full(&self) -> bool {
        self.end >= self.full
    }

    /// Makes it full.
    #[cfg(test)]
    pub(super) fn fill(&mut self) {
        self.full = 0;
    }

    /// Stores a segment of a path.
    pub(super) fn insert(&mut self, segment: &[u8]) -> TextOffset {
        let class = segment.len().div_ceil(UNIT);
        let mut offset = self.free[class];
        if offset == NONE {
            let left = self.chunks.len() * CHUNK - self.end as usize;
            if left < class {
                self.chunks.push(vec![0; CHUNK * UNIT].into_boxed_slice());
                // The rest of the previous chunk is lost: at most 252 bytes in 65,536.
                self.end += left as u32;
            }
            offset = self.end;
            self.end += class as u32;
        } else {
            self.free[class] = self.link(offset);
        }
        self.bytes_mut(offset, segment.len()).copy_from_slice(segment);
        offset
    }

    /// Frees a text.
    pub(super) fn remove(&mut self, offset: TextOffset, len: usize) {
        let class = len.div_ceil(UNIT);
        let before = self.free[class];
        self.bytes_mut(offset, UNIT).copy_from_slice(&before.to_le_bytes());
        self.free[class] = offset;
    }

    /// The text at `offset`.
    pub(super) fn get(&self, offset: TextOffset, len: usize) -> &[u8] {
        let at = offset as usize % CHUNK * UNIT;
        &self.chunks[offset as usize / CHUNK][at..at + len]
    }

    fn bytes_mut(&mut self, offset: TextOffset, len: usize) -> &mut [u8] {
        let at = offset as usize % CHUNK * UNIT;
        &mut self.chunks[offset as usize / CHUNK][at..at + len]
    }

    fn link(&self, offset: TextOffset) -> u32 {
        let bytes = self.get(offset, UNIT);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_length_stay_intact_while_others_come_and_go() {
        let mut text = Text::new();
        let segment = |n: usize| vec![n as u8; n % PATH_SEGMENT_BYTES_MAX + 1];
        let mut offsets: Vec<TextOffset> = (0..3_000).map(|n| text.insert(&segment(n))).collect();
        for round in 0..3 {
            for n in (round..3_000).step_by(2) {
                text.remove(offsets[n], segment(n).len());
            }
            let chunks = text.chunks.len();
            for n in (round..3_000).step_by(2) {
                offsets[n] = text.insert(&segment(n));
            }
            assert_eq!(text.chunks.len(), chunks, "freed space is reused");
            for (n, &offset) in offsets.iter().enumerate() {
                assert_eq!(text.get(offset, segment(n).len()), segment(n));
            }
        }
    }
}
