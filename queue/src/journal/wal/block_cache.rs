//! A cache of verified blocks: adjacent parts are read in sequence.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::RecordRef;
use crate::journal::wal::record::RECORD_HEADER_BYTES;
use crate::log::BodyBlock;

/// Most cached bytes.
const BLOCK_CACHE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most cached blocks: lookup is linear, and bodies of single jobs are small. Enough for several
/// threads that read at the same time.
const BLOCK_CACHE_ENTRIES_MAX: usize = 64;

/// The location of a record: its file's sequence, and its offset there.
pub(crate) type At = (u64, u64);

/// A block of one record's body.
struct CachedBlock {
    record: At,
    block: BodyBlock,
}

/// The blocks that were read last.
#[derive(Default)]
pub(crate) struct BlockCache {
    /// Most recently used at the end.
    entries: VecDeque<CachedBlock>,
    bytes: usize,
}

impl BlockCache {
    /// The block of that record's body that contains all of a part.
    pub(crate) fn get(&mut self, record: At, part: RecordRef) -> Option<BodyBlock> {
        let (from, to) = (part.at as usize, part.at as usize + part.length as usize);
        self.touch(|entry| {
            let BodyBlock { from: begins, bytes } = &entry.block;
            entry.record == record && *begins <= from && to <= begins + bytes.len()
        })
    }

    /// The cached body of a record from its beginning on: all of it, if such records are read
    /// whole.
    pub(crate) fn whole_body(&mut self, record: At) -> Option<Bytes> {
        let block = self.touch(|entry| entry.record == record && entry.block.from == 0)?;
        Some(block.bytes)
    }

    fn touch(&mut self, matches: impl Fn(&CachedBlock) -> bool) -> Option<BodyBlock> {
        let position = self.entries.iter().rposition(matches)?;
        let found = self.entries.remove(position)?;
        let block = found.block.clone();
        self.entries.push_back(found);
        Some(block)
    }

    /// Inserts a verified block of a record's body.
    pub(crate) fn insert(&mut self, record: At, block: BodyBlock) {
        // Another thread may have read the same.
        let is_same = |entry: &CachedBlock| {
            entry.record == record
                && entry.block.from == block.from
                && entry.block.bytes.len() >= block.bytes.len()
        };
        if self.entries.iter().any(is_same) {
            return;
        }
        self.bytes += weight(&block.bytes);
        self.entries.push_back(CachedBlock { record, block });
        while self.entries.len() > BLOCK_CACHE_ENTRIES_MAX
            || (self.entries.len() > 1 && self.bytes > BLOCK_CACHE_BYTES_MAX)
        {
            if let Some(entry) = self.entries.pop_front() {
                self.bytes -= weight(&entry.block.bytes);
            }
        }
    }
}

fn weight(bytes: &Bytes) -> usize {
    RECORD_HEADER_BYTES + bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(cache: &mut BlockCache, offset: u64, at: u32, length: u32) -> Option<Bytes> {
        let part = RecordRef { index: 9, at, length };
        cache.get((1, offset), part)?.part(part)
    }

    #[test]
    fn cache_limits_block_count_and_retains_the_latest_read() {
        let mut cache = BlockCache::default();
        for offset in 0..10 * BLOCK_CACHE_ENTRIES_MAX as u64 {
            cache.insert((1, offset), BodyBlock { from: 0, bytes: Bytes::from_static(b"small") });
            assert!(get(&mut cache, 0, 0, 5).is_some(), "read again each time");
            assert!(cache.entries.len() <= BLOCK_CACHE_ENTRIES_MAX);
        }
        assert!(get(&mut cache, 1, 0, 5).is_none());
        let bytes = cache.entries.iter().map(|entry| weight(&entry.block.bytes));
        assert_eq!(cache.bytes, bytes.sum::<usize>());
    }

    #[test]
    fn block_over_the_cache_limit_is_cached_alone() {
        let mut cache = BlockCache::default();
        cache.insert((1, 1), BodyBlock { from: 0, bytes: Bytes::from_static(b"small") });
        cache.insert(
            (1, 2),
            BodyBlock { from: 0, bytes: vec![0; BLOCK_CACHE_BYTES_MAX + 1].into() },
        );
        assert!(get(&mut cache, 1, 0, 5).is_none() && get(&mut cache, 2, 0, 5).is_some());
        cache.insert((1, 3), BodyBlock { from: 0, bytes: Bytes::from_static(b"small") });
        assert!(get(&mut cache, 2, 0, 5).is_none() && get(&mut cache, 3, 0, 5).is_some());
    }

    #[test]
    fn cached_block_serves_only_parts_within_it() {
        let mut cache = BlockCache::default();
        cache.insert((1, 1), BodyBlock { from: 10, bytes: Bytes::from_static(b"0123456789") });
        assert_eq!(get(&mut cache, 1, 12, 3).as_deref(), Some(&b"234"[..]));
        assert_eq!(get(&mut cache, 1, 10, 10).as_deref(), Some(&b"0123456789"[..]));
        for (at, length) in [(9, 3), (18, 3), (0, 5), (30, 1)] {
            assert_eq!(get(&mut cache, 1, at, length), None);
        }
        assert_eq!(get(&mut cache, 2, 12, 3), None, "of another record");
        assert_eq!(cache.whole_body((1, 1)), None);
    }
}
