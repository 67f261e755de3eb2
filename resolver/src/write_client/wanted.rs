//! What a publisher wants published: the truth that every replica is driven towards.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use longshore_protocol::messages::resolver::{Change, Digest, KeyHash};
use longshore_protocol::{Path, Terms};

/// A path, or a default at a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub(super) path: Path,
    pub(super) default: bool,
}

impl Key {
    /// What a digest adds for it.
    pub(super) fn hash(&self) -> KeyHash {
        KeyHash::of(self.path.as_str(), self.default)
    }
}

/// The terms of everything that is wanted.
pub(super) static TERMS: LazyLock<u64> = LazyLock::new(|| Terms::default().digest());

/// All that is wanted.
#[derive(Default, Debug)]
pub(super) struct Wanted {
    keys: BTreeSet<Key>,
    digest: Digest,
}

impl Wanted {
    /// Wants a key, or no longer does. False when that was so already.
    pub(super) fn set(&mut self, key: &Key, wanted: bool) -> bool {
        if wanted {
            if !self.keys.insert(key.clone()) {
                return false;
            }
            self.digest.add(key.hash(), *TERMS);
        } else {
            if !self.keys.remove(key) {
                return false;
            }
            self.digest.remove(key.hash(), *TERMS);
        }
        true
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter()
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// What to tell a replica of a key.
    pub(super) fn change(&self, key: &Key) -> Change {
        match (self.contains(key), key.default) {
            (true, false) => Change::Publish,
            (false, false) => Change::Unpublish,
            (true, true) => Change::PublishDefault,
            (false, true) => Change::UnpublishDefault,
        }
    }
}
