//! The latest changes, in order: replicas that keep up are sent exactly these.

use std::collections::VecDeque;

use crate::write_client::buckets::Key;
use crate::write_client::terms::CheckedTerms;

/// A changed key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyChange {
    pub(super) key: Key,
    /// Its terms from then on; `None` if it was removed.
    pub(super) terms: Option<CheckedTerms>,
}

/// Most changes that are retained, of 32 bytes each. A replica that is further behind is compared
/// bucket by bucket.
pub(super) const CHANGES_MAX: u64 = 1 << 20;
/// Changes in one chunk of memory: a growing one is never copied.
const CHUNK: usize = 1_024;
/// Most chunks that are dropped at once: it blocks others for some 100 µs.
const FORGOTTEN_MAX: usize = 8;

/// The latest changes, numbered from 0.
#[derive(Default, Debug)]
pub(super) struct ChangeLog {
    /// Full chunks, and a last one that is not.
    chunks: VecDeque<Vec<KeyChange>>,
    /// The number of the first change in them.
    start: u64,
    end: u64,
    /// From this number on every change was a new key, which has not changed since.
    new_from: u64,
}

impl ChangeLog {
    /// The number of the next change: the number of all changes so far.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The number of the oldest retained change.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Whether this change, if it exists, is known to be the last of its key, so that its terms are
    /// the current ones. Looking them up instead costs a cache miss or two.
    pub(super) fn is_last(&self, number: u64) -> bool {
        number >= self.new_from
    }

    /// Logs a change; `is_new` if the key was added.
    pub(super) fn push(&mut self, change: KeyChange, is_new: bool) {
        if !is_new {
            self.new_from = self.end + 1;
        }
        match self.chunks.back_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(change),
            None => {
                // A whole chunk for a single change would be wasteful.
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

    /// The change of that number; `None` if it was dropped, or has not happened.
    pub(super) fn get(&self, number: u64) -> Option<&KeyChange> {
        let at = usize::try_from(number.checked_sub(self.start)?).ok()?;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// Drops those before `number`. They are dropped by chunks, few at a time.
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

    fn change(n: u64) -> KeyChange {
        let key = Key { path: Path::new(&format!("/{n}")).unwrap(), default: n.is_multiple_of(2) };
        KeyChange { key, terms: (!n.is_multiple_of(3)).then(CheckedTerms::default) }
    }

    #[test]
    fn changes_are_retained_until_they_are_dropped() {
        let mut changes = ChangeLog::default();
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
        assert!(changes.chunks.is_empty(), "no memory is in use");
        changes.push(change(5_000), true);
        assert_eq!(changes.get(5_000), Some(&change(5_000)));
    }

    #[test]
    fn a_change_takes_32_bytes() {
        assert_eq!(size_of::<KeyChange>(), 32);
    }

    #[test]
    fn a_change_is_the_last_of_its_key_while_only_new_keys_follow_it() {
        let mut changes = ChangeLog::default();
        for n in 0..5 {
            changes.push(change(n), true);
        }
        assert!((0..5).all(|n| changes.is_last(n)));
        changes.push(change(3), false);
        assert!((0..6).all(|n| !changes.is_last(n)), "keys are not compared");
        changes.push(change(7), true);
        assert!(changes.is_last(6));
    }

    #[test]
    fn the_number_of_retained_changes_is_limited() {
        let mut changes = ChangeLog::default();
        for _ in 0..CHANGES_MAX + 10 * CHUNK as u64 {
            changes.push(change(0), true);
        }
        assert_eq!(changes.end() - changes.start(), CHANGES_MAX);
        let chunks = CHANGES_MAX as usize / CHUNK;
        assert_eq!(changes.chunks.len(), chunks);
    }
}
