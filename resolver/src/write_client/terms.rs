//! Checked terms that are cheap to share.

use std::ops::Deref;
use std::sync::Arc;

use hashbrown::HashTable;
use longshore_protocol::Terms;
use longshore_protocol::limits::TERMS_BYTES_MAX;

/// The terms with their homes and fields of later versions take too many bytes. Contains their
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "terms take {0} bytes and may take {TERMS_BYTES_MAX}; declare fewer homes, or shorter names"
)]
pub struct TermsTooLong(pub usize);

/// The terms on which paths are published: checked, and with their digest. Cheap to clone, and best
/// created once for many paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedTerms(Arc<Checked>);

#[derive(PartialEq, Eq, Debug)]
struct Checked {
    digest: u64,
    bytes: usize,
    terms: Terms,
}

impl CheckedTerms {
    /// Checks that replicas accept the terms.
    pub fn new(terms: Terms) -> Result<CheckedTerms, TermsTooLong> {
        if terms.bytes() > TERMS_BYTES_MAX {
            return Err(TermsTooLong(terms.bytes()));
        }
        Ok(CheckedTerms::of(terms))
    }

    fn of(terms: Terms) -> CheckedTerms {
        let bytes = terms.bytes();
        CheckedTerms(Arc::new(Checked { digest: terms.digest(), bytes, terms }))
    }

    /// Its contribution to the digest of a path.
    pub(super) fn digest(&self) -> u64 {
        self.0.digest
    }

    /// Its encoded bytes, without their length.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// True for the same allocation, without comparing the contents.
    fn is(&self, other: &CheckedTerms) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The terms of a queue whose publisher sets no homes, priority or weight.
impl Default for CheckedTerms {
    fn default() -> CheckedTerms {
        CheckedTerms::of(Terms::default())
    }
}

impl Deref for CheckedTerms {
    type Target = Terms;
    fn deref(&self) -> &Terms {
        &self.0.terms
    }
}

/// One copy of all terms in use, however often they are created.
#[derive(Default, Debug)]
pub(super) struct TermsInUse {
    table: HashTable<CheckedTerms>,
    /// The last terms: paths mostly come in batches with the same terms.
    last: Option<CheckedTerms>,
    /// The number of entries at which unused ones are dropped.
    full: usize,
}

impl TermsInUse {
    /// The shared copy of these terms.
    pub(super) fn shared(&mut self, terms: &CheckedTerms) -> CheckedTerms {
        if let Some(last) = self.last.as_ref().filter(|last| last.is(terms)) {
            return last.clone();
        }
        if let Some(shared) = self.table.find(terms.digest(), |other| other == terms) {
            self.last = Some(shared.clone());
            return shared.clone();
        }
        if self.table.len() >= self.full {
            self.last = None;
            self.table.retain(|shared| Arc::strong_count(&shared.0) > 1);
            // So rare that the cost per entry is negligible.
            self.full = (2 * self.table.len()).max(64);
        }
        self.table.insert_unique(terms.digest(), terms.clone(), CheckedTerms::digest);
        self.last = Some(terms.clone());
        terms.clone()
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{Homes, LaterFields};

    use super::*;

    fn homes(names: &[&str]) -> CheckedTerms {
        let names = names.iter().map(|&name| name.into()).collect();
        let homes = Homes::new([("/a".parse().unwrap(), names)]).unwrap();
        CheckedTerms::new(Terms { homes, ..Terms::default() }).unwrap()
    }

    #[test]
    fn terms_over_their_limit_are_refused_before_any_write() {
        let terms = |later: usize| {
            let later = LaterFields::new(&vec![1; later]).unwrap();
            let names = (0..51).map(|n| format!("{n:0100}")).collect();
            let homes = Homes::new([("/a".parse().unwrap(), names)]).unwrap();
            CheckedTerms::new(Terms { homes, later, ..Terms::default() }).map(drop)
        };
        assert_eq!(terms(984), Ok(()));
        assert_eq!(terms(985), Err(TermsTooLong(TERMS_BYTES_MAX + 1)));
    }

    #[test]
    fn equal_terms_share_one_copy_and_unused_ones_are_dropped() {
        let mut in_use = TermsInUse::default();
        let one = in_use.shared(&homes(&["a"]));
        assert!(in_use.shared(&homes(&["b"])) != one);
        assert!(in_use.shared(&homes(&["a"])).is(&one));
        for weight in 0..10_000 {
            let terms = Terms { weight, ..Terms::default() };
            in_use.shared(&CheckedTerms::new(terms).unwrap());
            assert!(in_use.table.len() <= 64, "{} are stored", in_use.table.len());
        }
        assert!(in_use.shared(&homes(&["a"])).is(&one), "used terms stay");
    }
}
