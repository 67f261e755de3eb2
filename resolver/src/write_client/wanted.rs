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
}

impl Wanted {
    /// Wants a key on these terms, or no longer. False when that was so already.
    pub(super) fn set(
        &mut self,
        hash: KeyHash,
        key: Key,
        terms: Option<&PublicationTerms>,
    ) -> bool {
        let changed = match terms {
            Some(terms) => {
                let before = self.keys.insert(hash, key, self.terms.kept(terms));
                before.is_none_or(|before| before != *terms).then_some(Changed::Wanted(hash))
            }
            None => self.keys.remove(hash, &key).map(|_| Changed::Unwanted(key)),
        };
        changed.map(|changed| self.changes.push(changed)).is_some()
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
