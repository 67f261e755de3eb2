//! The terms of publications. A directory with a million paths has few different ones: each is
//! stored once, with a reference count.

use longshore_protocol::Terms;
use longshore_protocol::limits::TERMS_MAX;

use crate::directory::index::Index;
use crate::directory::slab::{Entry, NONE, Slab};

/// The number of stored terms. Reused once nothing uses them.
pub(crate) type TermsId = u32;
/// The default terms, which are always stored.
const DEFAULT: TermsId = 0;

#[derive(Clone, Default, Debug)]
struct StoredTerms {
    terms: Terms,
    digest: u64,
    /// The number of users: sets, and others. In a free entry, the next free entry.
    uses: u32,
}

impl Entry for StoredTerms {
    fn next_free(&self) -> u32 {
        self.uses
    }
    fn set_next_free(&mut self, next: u32) {
        self.uses = next;
    }
}

/// All terms.
#[derive(Debug)]
pub(super) struct TermsTable {
    stored: Slab<StoredTerms>,
    index: Index,
    /// The terms requested last, which count as used. Paths come in groups on the same terms.
    last: TermsId,
}

impl TermsTable {
    pub(super) fn new() -> TermsTable {
        let mut stored = TermsTable { stored: Slab::new(), index: Index::new(), last: NONE };
        let default = stored.insert(Terms::default());
        debug_assert_eq!(default, DEFAULT);
        stored.add_use(default);
        stored.last = default;
        stored.add_use(default);
        stored
    }

    /// The number of `terms`, stored if there is room. It is valid until the next call, or as long
    /// as it is in use.
    pub(super) fn number(&mut self, terms: &Terms) -> Option<TermsId> {
        if self.stored[self.last].terms == *terms {
            return Some(self.last);
        }
        let same = |stored: TermsId| self.stored[stored].terms == *terms;
        let number = match self.index.find(short(terms.digest()), same) {
            Some(number) => number,
            None if self.stored.len() >= TERMS_MAX => return None,
            None => self.insert(terms.clone()),
        };
        self.add_use(number);
        let before = std::mem::replace(&mut self.last, number);
        self.release(before);
        Some(number)
    }

    pub(super) fn get(&self, number: TermsId) -> &Terms {
        &self.stored[number].terms
    }

    /// The contribution of these terms to a digest.
    pub(super) fn digest(&self, number: TermsId) -> u64 {
        self.stored[number].digest
    }

    /// Adds a user.
    pub(super) fn add_use(&mut self, number: TermsId) {
        self.stored[number].uses += 1;
    }

    /// Removes a user.
    pub(super) fn release(&mut self, number: TermsId) {
        self.stored[number].uses -= 1;
        if self.stored[number].uses == 0 {
            self.index.remove(short(self.stored[number].digest), number);
            self.stored.remove(number);
        }
    }

    fn insert(&mut self, terms: Terms) -> TermsId {
        let digest = terms.digest();
        let number = self.stored.insert(StoredTerms { terms, digest, uses: 0 });
        let stored = &self.stored;
        self.index.insert(short(digest), number, |number| short(stored[number].digest));
        number
    }

    /// The number of different terms.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.stored.len()
    }

    /// Panics if `uses` differs from the stored counts.
    #[cfg(test)]
    pub(super) fn invariant(&self, mut uses: std::collections::BTreeMap<TermsId, u32>) {
        *uses.entry(DEFAULT).or_default() += 1;
        *uses.entry(self.last).or_default() += 1;
        let counted = self.index.iter().map(|number| (number, self.stored[number].uses));
        assert_eq!(counted.collect::<std::collections::BTreeMap<_, _>>(), uses, "uses of terms");
        assert_eq!(self.index.iter().count(), self.stored.len());
    }
}

fn short(digest: u64) -> u32 {
    (digest ^ digest >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(flags: u32) -> Terms {
        Terms { flags, ..Terms::default() }
    }

    #[test]
    fn terms_are_stored_once_and_removed_when_unused() {
        let mut stored = TermsTable::new();
        assert_eq!(stored.number(&terms(0)), Some(DEFAULT));
        let one = stored.number(&terms(1)).unwrap();
        stored.add_use(one);
        let two = stored.number(&terms(2)).unwrap();
        assert_eq!(stored.number(&terms(1)), Some(one));
        assert_eq!((stored.get(one), stored.digest(one)), (&terms(1), terms(1).digest()));
        assert_ne!(two, one);
        assert_eq!(stored.len(), 2, "the second one was unused");
        stored.release(one);
        stored.number(&terms(0));
        assert_eq!(stored.len(), 1);
    }

    #[test]
    fn the_number_of_different_terms_is_limited() {
        let mut stored = TermsTable::new();
        for flags in 1..TERMS_MAX as u32 {
            let number = stored.number(&terms(flags)).unwrap();
            stored.add_use(number);
        }
        assert_eq!(stored.number(&terms(TERMS_MAX as u32)), None);
        assert!(stored.number(&terms(7)).is_some());
    }
}
