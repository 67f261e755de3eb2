//! Caches the payloads of recent jobs: most jobs are delivered soon after they were enqueued.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::RecordRef;

/// Default limit of cached bytes.
pub const CACHE_BYTES: usize = 256 * 1024 * 1024;

/// Shorter bodies are copied, because a slice keeps its whole frame of up to 20 MiB in memory. The
/// caller ensures that a longer body is at least three quarters of its frame.
pub const COPY_BYTES_MAX: usize = 16 * 1024;
/// Memory of an entry beside its bytes.
const ENTRY_BYTES: usize = 128;

/// The bodies of the latest enqueues; the oldest are evicted first.
#[derive(Debug)]
pub struct PayloadCache {
    /// By index, rising.
    batches: VecDeque<Batch>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Batch {
    index: u64,
    /// Where `body` begins in the command's encoded body.
    at: u32,
    body: Bytes,
    charged: usize,
}

impl PayloadCache {
    /// An empty cache of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> PayloadCache {
        PayloadCache { batches: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Caches a command's body, from byte `at` on. Indexes must rise. Bodies larger than the whole
    /// cache are not cached.
    pub fn insert(&mut self, index: u64, at: u32, body: &Bytes) {
        debug_assert!(self.batches.back().is_none_or(|last| last.index < index), "indexes rise");
        let charged = body.len() + ENTRY_BYTES;
        if charged > self.bytes_max {
            return;
        }
        let body =
            if body.len() < COPY_BYTES_MAX { Bytes::copy_from_slice(body) } else { body.clone() };
        self.bytes += charged;
        self.batches.push_back(Batch { index, at, body, charged });
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.bytes -= oldest.charged;
        }
    }

    /// A part of a command's body, if it is cached.
    pub fn get(&self, part: RecordRef) -> Option<Bytes> {
        // Most are read in the order of enqueueing; those of one batch are adjacent.
        let position = self.batches.binary_search_by_key(&part.index, |batch| batch.index).ok()?;
        let batch = &self.batches[position];
        let from = part.at.checked_sub(batch.at)? as usize;
        let to = from + part.length as usize;
        (to <= batch.body.len()).then(|| batch.body.slice(from..to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(index: u64, at: u32, length: u32) -> RecordRef {
        RecordRef { index, at, length }
    }

    #[test]
    fn cached_part_is_returned_and_nothing_else() {
        let mut cache = PayloadCache::new(1024);
        cache.insert(5, 8, &Bytes::from_static(b"abcdef"));
        assert_eq!(cache.get(part(5, 9, 3)), Some(Bytes::from_static(b"bcd")));
        assert_eq!(cache.get(part(5, 8, 6)), Some(Bytes::from_static(b"abcdef")));
        for other in [part(4, 8, 1), part(6, 8, 1), part(5, 7, 1), part(5, 9, 6)] {
            assert_eq!(cache.get(other), None, "{other:?}");
        }
    }

    #[test]
    fn oldest_payloads_are_evicted_within_the_limit() {
        let room = 10 * (100 + ENTRY_BYTES);
        let mut cache = PayloadCache::new(room);
        for index in 1..=25 {
            cache.insert(index, 8, &Bytes::from(vec![index as u8; 100]));
            assert!(cache.bytes() <= room);
        }
        assert_eq!(cache.get(part(15, 8, 1)), None);
        assert_eq!(cache.get(part(16, 8, 1)), Some(Bytes::from_static(&[16])));
        cache.insert(26, 8, &Bytes::from(vec![0; room]));
        assert_eq!(cache.get(part(26, 8, 1)), None, "larger than all of it");
        assert!(cache.get(part(25, 8, 1)).is_some());
    }
}
