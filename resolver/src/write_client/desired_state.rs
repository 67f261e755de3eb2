//! The desired state: everything that a publisher publishes, and that every replica has to match.

use longshore_protocol::messages::resolver::KeyHash;

use crate::write_client::buckets::{Buckets, Key};
use crate::write_client::change_log::{ChangeLog, KeyChange};
use crate::write_client::terms::{CheckedTerms, TermsInUse};

/// The desired keys, and their latest changes.
#[derive(Default, Debug)]
pub(super) struct DesiredState {
    keys: Buckets,
    terms: TermsInUse,
    changes: ChangeLog,
    /// Changes about to be logged; empty in between.
    logging: Vec<KeyChange>,
}

/// The size of the desired state and of its change log.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct StateSummary {
    /// The number of desired keys.
    pub(super) keys: usize,
    /// The number of the oldest logged change.
    pub(super) retained_from: u64,
    /// The number of all changes so far.
    pub(super) changes: u64,
}

impl DesiredState {
    /// Sets all these keys to their terms, or removes them; returns how many have changed. It
    /// drains both lists.
    pub(super) fn set_all(
        &mut self,
        keys: &mut Vec<(KeyHash, Key)>,
        terms: &mut Vec<Option<CheckedTerms>>,
    ) -> usize {
        // Reference counts are incremented before anything else is touched: an increment waits
        // until all earlier writes have reached memory, and a key's bucket is mostly in no cache.
        for ((_, key), terms) in keys.iter().zip(terms.iter_mut()) {
            if let Some(terms) = terms {
                *terms = self.terms.shared(terms);
            }
            self.logging.push(KeyChange { key: key.clone(), terms: terms.clone() });
        }
        let mut logging = std::mem::take(&mut self.logging);
        let mut changed = 0;
        for (((hash, key), terms), change) in
            keys.drain(..).zip(terms.drain(..)).zip(logging.drain(..))
        {
            changed += usize::from(self.set(hash, key, terms, change));
        }
        self.logging = logging;
        changed
    }

    /// Sets one key. True if that changes anything, which is then logged.
    fn set(
        &mut self,
        hash: KeyHash,
        key: Key,
        terms: Option<CheckedTerms>,
        change: KeyChange,
    ) -> bool {
        let is_desired = terms.is_some();
        // Terms of the same digest are equal when digests are compared.
        let digest = terms.as_ref().map(CheckedTerms::digest);
        let before = match terms {
            Some(terms) => self.keys.insert(hash, key, terms),
            None => self.keys.remove(hash, &key),
        };
        let before = before.map(|terms| terms.digest());
        if before == digest {
            return false;
        }
        self.changes.push(change, is_desired && before.is_none());
        true
    }

    /// Sets one key to these terms, or removes it.
    #[cfg(test)]
    pub(super) fn set_one(&mut self, key: Key, terms: Option<&CheckedTerms>) {
        self.set_all(&mut vec![(key.hash(), key)], &mut vec![terms.cloned()]);
    }

    /// The size of the state and of the log.
    pub(super) fn summary(&self) -> StateSummary {
        StateSummary {
            keys: self.keys.len(),
            retained_from: self.changes.start(),
            changes: self.changes.end(),
        }
    }

    /// All keys, by bucket.
    pub(super) fn keys(&self) -> &Buckets {
        &self.keys
    }

    /// The latest changes.
    pub(super) fn changes(&self) -> &ChangeLog {
        &self.changes
    }

    /// Drops the changes before that number.
    pub(super) fn forget(&mut self, number: u64) {
        self.changes.forget(number);
    }
}
