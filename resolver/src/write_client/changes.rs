//! What has changed lately, in order: whoever keeps up with it is told of exactly that.

use std::collections::VecDeque;

use crate::write_client::buckets::Key;
use crate::write_client::terms::PublicationTerms;

/// A key of which something has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Changed {
    pub(super) key: Key,
    /// On which terms it was wanted from then on; none when it was no longer wanted.
    pub(super) terms: Option<PublicationTerms>,
}

/// Most changes that are kept, of 32 bytes each. A replica that is further behind is compared with,
/// bucket by bucket.
pub(super) const CHANGES_MAX: u64 = 1 << 20;
/// Changes in one piece of memory: none that grows is ever copied.
const CHUNK: usize = 1_024;
/// Most chunks that are dropped at a time: who waits meanwhile waits for some 100 µs.
const FORGOTTEN_MAX: usize = 8;

/// The last changes, numbered from 0.
#[derive(Default, Debug)]
pub(super) struct Changes {
    /// Full ones, and a last one that is not.
    chunks: VecDeque<Vec<Changed>>,
    /// The number of the first change in them.
    start: u64,
    end: u64,
    /// From this number on every change was a key that was not wanted before. Nothing has changed
    /// of any of these since.
    new_from: u64,
}

impl Changes {
    /// The number that the next one gets: so many there have been.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The number of the oldest that is kept.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Whether the change of that number, if there is one, is known to be the last of its key: what
    /// it says is what is wanted now. Looking it up instead costs a miss of the cache or two.
    pub(super) fn is_last(&self, number: u64) -> bool {
        number >= self.new_from
    }

    /// Notes a change; `is_new` when the key was not wanted before, and is now.
    pub(super) fn push(&mut self, change: Changed, is_new: bool) {
        if !is_new {
            self.new_from = self.end + 1;
        }
        match self.chunks.back_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(change),
            None => {
                // A chunk's worth for one that comes alone would be more than it is worth.
                let mut chunk = Vec::with_capacity(if self.chunks.is_empty() { 4 } else { CHUNK });
                chunk.push(change);
                self.chunks.push_back(chunk);
            }
        }
        self.end += 1;
        if self.end - self.start > CHANGES_MAX {
            self.drop_chunk();
        }
    }

    /// The change of that number; none if it is not kept any more, or has not happened.
    pub(super) fn get(&self, number: u64) -> Option<&Changed> {
        let at = usize::try_from(number.checked_sub(self.start)?).ok()?;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// Nobody needs those before `number` any more. They go by chunks, few at a time.
    pub(super) fn forget(&mut self, number: u64) {
        for _ in 0..FORGOTTEN_MAX {
            let Some(chunk) = self.chunks.front() else { return };
            if self.start + chunk.len() as u64 > number {
                return;
            }
            self.drop_chunk();
        }
    }

    fn drop_chunk(&mut self) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.start += chunk.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Path;

    use super::*;

    fn change(n: u64) -> Changed {
        let key = Key { path: Path::new(&format!("/{n}")).unwrap(), default: n.is_multiple_of(2) };
        Changed { key, terms: (!n.is_multiple_of(3)).then(PublicationTerms::default) }
    }

    #[test]
    fn changes_are_kept_until_nobody_needs_them() {
        let mut changes = Changes::default();
        for n in 0..5_000 {
            changes.push(change(n), true);
        }
        changes.forget(2_100);
        assert_eq!((changes.start(), changes.end()), (2_048, 5_000));
        assert_eq!(changes.get(2_047), None);
        for n in 2_048..5_000 {
            assert_eq!(changes.get(n), Some(&change(n)));
        }
        assert_eq!(changes.get(5_000), None);
        changes.forget(5_000);
        assert_eq!(changes.start(), 5_000);
        assert!(changes.chunks.is_empty(), "it holds no memory");
        changes.push(change(5_000), true);
        assert_eq!(changes.get(5_000), Some(&change(5_000)));
    }

    #[test]
    fn a_change_takes_32_bytes() {
        assert_eq!(size_of::<Changed>(), 32);
    }

    #[test]
    fn a_change_is_the_last_of_its_key_while_only_new_keys_follow_it() {
        let mut changes = Changes::default();
        for n in 0..5 {
            changes.push(change(n), true);
        }
        assert!((0..5).all(|n| changes.is_last(n)));
        changes.push(change(3), false);
        assert!((0..6).all(|n| !changes.is_last(n)), "of which key it was nobody looks");
        changes.push(change(7), true);
        assert!(changes.is_last(6));
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let mut changes = Changes::default();
        for _ in 0..CHANGES_MAX + 10 * CHUNK as u64 {
            changes.push(change(0), true);
        }
        assert_eq!(changes.end() - changes.start(), CHANGES_MAX);
        let chunks = CHANGES_MAX as usize / CHUNK;
        assert_eq!(changes.chunks.len(), chunks);
    }
}
