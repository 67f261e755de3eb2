//! Checked terms that are cheap to share.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::HashTable;
use longshore_protocol::limits::{HOMES_MAX, NAME_BYTES_MAX, TERMS_BYTES_MAX};
use longshore_protocol::{NameError, Terms, check_name};

/// Why terms are invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TermsError {
    /// More than 64 homes. Contains their number.
    #[error("{0} homes are more than the {HOMES_MAX} that a path may have")]
    TooManyHomes(usize),
    /// The name of a home is empty, or has more than 128 bytes. Contains its bytes.
    #[error("the name of a home has {0} bytes; it needs 1 to {NAME_BYTES_MAX}")]
    BadHome(usize),
    /// The terms with their homes take too many bytes. Contains their bytes.
    #[error(
        "terms take {0} bytes and may take {TERMS_BYTES_MAX}; name fewer homes, or shorter names"
    )]
    TooLong(usize),
}

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
    /// Checks terms, and sorts their homes as the protocol requires.
    pub fn new(mut terms: Terms) -> Result<CheckedTerms, TermsError> {
        let homes: BTreeSet<String> = std::mem::take(&mut terms.homes).into_iter().collect();
        if homes.len() > HOMES_MAX {
            return Err(TermsError::TooManyHomes(homes.len()));
        }
        for home in &homes {
            check_name(home).map_err(|NameError(bytes)| TermsError::BadHome(bytes))?;
        }
        terms.homes = homes.into_iter().collect();
        if terms.bytes() > TERMS_BYTES_MAX {
            return Err(TermsError::TooLong(terms.bytes()));
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
    use super::*;

    fn homes(homes: &[&str]) -> Result<CheckedTerms, TermsError> {
        let homes = homes.iter().map(|&home| home.into()).collect();
        CheckedTerms::new(Terms { homes, ..Terms::default() })
    }

    #[test]
    fn homes_are_sorted_and_checked_like_on_a_replica() {
        let terms = homes(&["b", "a", "b"]).unwrap();
        assert_eq!(terms.homes, ["a", "b"]);
        assert_eq!(terms, homes(&["a", "b"]).unwrap());
        assert_eq!(homes(&["a", ""]), Err(TermsError::BadHome(0)));
        assert_eq!(homes(&["a".repeat(129).as_str()]), Err(TermsError::BadHome(129)));
        let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(homes(&many[..64]).is_ok());
        assert_eq!(homes(&many), Err(TermsError::TooManyHomes(65)));
        let long: Vec<String> = (0..64).map(|n| format!("{n:096}")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert!(homes(&long[..63]).is_ok());
        assert_eq!(homes(&long), Err(TermsError::TooLong(6_213)));
    }

    #[test]
    fn equal_terms_share_one_copy_and_unused_ones_are_dropped() {
        let mut in_use = TermsInUse::default();
        let one = in_use.shared(&homes(&["a"]).unwrap());
        assert!(in_use.shared(&homes(&["b"]).unwrap()) != one);
        assert!(in_use.shared(&homes(&["a"]).unwrap()).is(&one));
        for weight in 0..10_000 {
            let terms = Terms { weight, ..Terms::default() };
            in_use.shared(&CheckedTerms::new(terms).unwrap());
            assert!(in_use.table.len() <= 64, "{} are stored", in_use.table.len());
        }
        assert!(in_use.shared(&homes(&["a"]).unwrap()).is(&one), "used terms stay");
    }
}
