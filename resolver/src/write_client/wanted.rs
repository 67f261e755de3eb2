//! What a publisher wants published: the truth that every replica is driven towards.

use longshore_protocol::messages::resolver::KeyHash;

use crate::write_client::buckets::{Buckets, Key};
use crate::write_client::changes::{Changed, Changes};
use crate::write_client::terms::{PublicationTerms, TermsInUse};

/// All that is wanted, and what of it has changed lately.
#[derive(Default, Debug)]
pub(super) struct Wanted {
    keys: Buckets,
    terms: TermsInUse,
    changes: Changes,
    /// What is about to be noted; empty in between.
    noting: Vec<Changed>,
}

/// How much is wanted, and how much has changed.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Extent {
    /// How many keys are wanted.
    pub(super) keys: usize,
    /// The number of the oldest change that is kept.
    pub(super) kept_from: u64,
    /// How many changes there have been.
    pub(super) changes: u64,
}

impl Wanted {
    /// Wants all these keys on their terms, or no longer; how many were not so already. It takes
    /// them out of both lists.
    pub(super) fn set_all(
        &mut self,
        keys: &mut Vec<(KeyHash, Key)>,
        terms: &mut Vec<Option<PublicationTerms>>,
    ) -> usize {
        // References are counted before anything else is touched: counting one waits until all that
        // was written before it has found its place, and a key's bucket is mostly in no cache.
        for ((_, key), terms) in keys.iter().zip(terms.iter_mut()) {
            if let Some(terms) = terms {
                *terms = self.terms.kept(terms);
            }
            self.noting.push(Changed { key: key.clone(), terms: terms.clone() });
        }
        let mut noting = std::mem::take(&mut self.noting);
        let mut changed = 0;
        for (((hash, key), terms), note) in
            keys.drain(..).zip(terms.drain(..)).zip(noting.drain(..))
        {
            changed += usize::from(self.set(hash, key, terms, note));
        }
        self.noting = noting;
        changed
    }

    /// Sets one; whether that changes anything, which is noted then.
    fn set(
        &mut self,
        hash: KeyHash,
        key: Key,
        terms: Option<PublicationTerms>,
        note: Changed,
    ) -> bool {
        let is_wanted = terms.is_some();
        // Terms of the same digest are the same to whoever compares digests.
        let digest = terms.as_ref().map(PublicationTerms::digest);
        let before = match terms {
            Some(terms) => self.keys.insert(hash, key, terms),
            None => self.keys.remove(hash, &key),
        };
        let before = before.map(|terms| terms.digest());
        if before == digest {
            return false;
        }
        self.changes.push(note, is_wanted && before.is_none());
        true
    }

    /// Wants one key on these terms, or no longer.
    #[cfg(test)]
    pub(super) fn set_one(&mut self, key: Key, terms: Option<&PublicationTerms>) {
        self.set_all(&mut vec![(key.hash(), key)], &mut vec![terms.cloned()]);
    }

    /// How much there is, and how much has changed.
    pub(super) fn extent(&self) -> Extent {
        Extent {
            keys: self.keys.len(),
            kept_from: self.changes.start(),
            changes: self.changes.end(),
        }
    }

    /// All keys, by bucket.
    pub(super) fn keys(&self) -> &Buckets {
        &self.keys
    }

    /// What has changed lately.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Nobody needs the changes before that number any more.
    pub(super) fn forget(&mut self, number: u64) {
        self.changes.forget(number);
    }
}
