//! The terms that paths are held on. A directory with a million paths has few different ones: each
//! is kept once, and counted.

use longshore_protocol::Terms;
use longshore_protocol::limits::TERMS_MAX;

use crate::directory::index::Index;
use crate::directory::slab::{Entry, NONE, Slab};

/// The number of some terms. Used again once nothing is held on them.
pub(crate) type TermsId = u32;
/// The default ones, which are always there.
const DEFAULT: TermsId = 0;

#[derive(Clone, Default, Debug)]
struct ReservedSlots {
    terms: Terms,
    digest: u64,
    /// How many sets, and others, name them. Of a free entry, the next one that is free.
    uses: u32,
}

impl Entry for ReservedSlots {
    fn next_free(&self) -> u32 {
        self.uses
    }
    fn set_next_free(&mut self, next: u32) {
        self.uses = next;
    }
}

/// All terms.
#[derive(Debug)]
pub(super) struct TermsKept {
    kept: Slab<ReservedSlots>,
    index: Index,
    /// Those that were asked for last: they count as used. Paths come in groups on the same terms.
    last: TermsId,
}

impl TermsKept {
    pub(super) fn new() -> TermsKept {
        let mut kept = TermsKept { kept: Slab::new(), index: Index::new(), last: NONE };
        let default = kept.insert(Terms::default());
        debug_assert_eq!(default, DEFAULT);
        kept.hold(default);
        kept.last = default;
        kept.hold(default);
        kept
    }

    /// Their number, if they are kept or there is room to. It stays theirs until the next call, or
    /// as long as it is held.
    pub(super) fn number(&mut self, terms: &Terms) -> Option<TermsId> {
        if self.kept[self.last].terms == *terms {
            return Some(self.last);
        }
        let same = |kept: TermsId| self.kept[kept].terms == *terms;
        let number = match self.index.find(short(terms.digest()), same) {
            Some(number) => number,
            None if self.kept.len() >= TERMS_MAX => return None,
            None => self.insert(terms.clone()),
        };
        self.hold(number);
        let before = std::mem::replace(&mut self.last, number);
        self.let_go(before);
        Some(number)
    }

    pub(super) fn get(&self, number: TermsId) -> &Terms {
        &self.kept[number].terms
    }

    /// What a digest adds for something held on them.
    pub(super) fn digest(&self, number: TermsId) -> u64 {
        self.kept[number].digest
    }

    /// Something more is held on them.
    pub(super) fn hold(&mut self, number: TermsId) {
        self.kept[number].uses += 1;
    }

    /// Something is no longer held on them.
    pub(super) fn let_go(&mut self, number: TermsId) {
        self.kept[number].uses -= 1;
        if self.kept[number].uses == 0 {
            self.index.remove(short(self.kept[number].digest), number);
            self.kept.remove(number);
        }
    }

    fn insert(&mut self, terms: Terms) -> TermsId {
        let digest = terms.digest();
        let number = self.kept.insert(ReservedSlots { terms, digest, uses: 0 });
        let kept = &self.kept;
        self.index.insert(short(digest), number, |number| short(kept[number].digest));
        number
    }

    /// How many different ones there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Panics if they are not used as often as `uses` says, by what holds them.
    #[cfg(test)]
    pub(super) fn invariant(&self, mut uses: std::collections::BTreeMap<TermsId, u32>) {
        *uses.entry(DEFAULT).or_default() += 1;
        *uses.entry(self.last).or_default() += 1;
        let counted = self.index.iter().map(|number| (number, self.kept[number].uses));
        assert_eq!(counted.collect::<std::collections::BTreeMap<_, _>>(), uses, "uses of terms");
        assert_eq!(self.index.iter().count(), self.kept.len());
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
    fn terms_are_kept_once_and_forgotten_when_nothing_is_held_on_them() {
        let mut kept = TermsKept::new();
        assert_eq!(kept.number(&terms(0)), Some(DEFAULT));
        let one = kept.number(&terms(1)).unwrap();
        kept.hold(one);
        let two = kept.number(&terms(2)).unwrap();
        assert_eq!(kept.number(&terms(1)), Some(one));
        assert_eq!((kept.get(one), kept.digest(one)), (&terms(1), terms(1).digest()));
        assert_ne!(two, one);
        assert_eq!(kept.len(), 2, "nothing was held on the second");
        kept.let_go(one);
        kept.number(&terms(0));
        assert_eq!(kept.len(), 1);
    }

    #[test]
    fn there_is_a_limit_to_how_many_differ() {
        let mut kept = TermsKept::new();
        for flags in 1..TERMS_MAX as u32 {
            let number = kept.number(&terms(flags)).unwrap();
            kept.hold(number);
        }
        assert_eq!(kept.number(&terms(TERMS_MAX as u32)), None);
        assert!(kept.number(&terms(7)).is_some());
    }
}
