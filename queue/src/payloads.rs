//! The payloads of recent jobs, in memory: most jobs are delivered soon after they came.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::RecordRef;

/// Bytes of memory kept unless told otherwise.
pub const CACHE_BYTES: usize = 256 * 1024 * 1024;

/// Shorter bodies are copied: a slice of a frame holds on to all of it, and a frame may have 20
/// MiB. Whoever submits a longer one sees to it that it is at least three quarters of its frame.
pub const COPY_BYTES_MAX: usize = 16 * 1024;
/// Memory that an entry takes beside its bytes.
const ENTRY_BYTES: usize = 128;

/// The bodies of the latest enqueues, oldest out first.
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
    /// An empty cache of at most that many bytes.
    pub fn new(bytes_max: usize) -> PayloadCache {
        PayloadCache { batches: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a command's body, from byte `at` on. Indexes rise. Bodies over the whole cache are not
    /// kept.
    pub fn keep(&mut self, index: u64, at: u32, body: &Bytes) {
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

    /// A part of a command's body, if it is kept.
    pub fn get(&self, part: RecordRef) -> Option<Bytes> {
        // Most are asked for in the order in which they came; those of one batch lie together.
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
        cache.keep(5, 8, &Bytes::from_static(b"abcdef"));
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
            cache.keep(index, 8, &Bytes::from(vec![index as u8; 100]));
            assert!(cache.bytes() <= room);
        }
        assert_eq!(cache.get(part(15, 8, 1)), None);
        assert_eq!(cache.get(part(16, 8, 1)), Some(Bytes::from_static(&[16])));
        cache.keep(26, 8, &Bytes::from(vec![0; room]));
        assert_eq!(cache.get(part(26, 8, 1)), None, "larger than all of it");
        assert!(cache.get(part(25, 8, 1)).is_some());
    }
}
