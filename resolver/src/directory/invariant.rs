//! What always holds of a directory: its indexes say the same.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::messages::resolver::{Digest, KeyHash};
use longshore_protocol::{Path, PublisherId};

use crate::directory::publisher::TERMS;
use crate::directory::{Directory, Slot, Writer};

impl Directory {
    /// The digest of what a publisher holds; of nothing if nobody can see it.
    pub(crate) fn held_by(&self, publisher: PublisherId) -> Digest {
        self.by_id.get(&publisher).map(|&slot| self.slots[slot].digest).unwrap_or_default()
    }

    /// Panics where two indexes disagree. Looks at everything: for tests, after every step.
    pub(crate) fn invariant(&self) {
        let mut members: BTreeMap<&Path, [BTreeSet<Slot>; 2]> = BTreeMap::new();
        for (slot, publisher) in self.slots.iter() {
            let mut digest = Digest::default();
            for (path, held) in &publisher.holds {
                assert!(held.kinds().next().is_some(), "{path} is held as nothing");
                for default in held.kinds() {
                    digest.add(KeyHash::of(path.as_str(), default), *TERMS);
                    members.entry(path).or_default()[usize::from(default)].insert(slot);
                }
            }
            assert_eq!(self.graves.contains(&slot), publisher.hidden, "buried is hidden");
            let named = self.by_id.get(&publisher.info.id) == Some(&slot);
            assert_eq!(named, !publisher.hidden, "who is hidden is not found by its id");
            let awaited = self.deadlines.contains(&(publisher.deadline, slot));
            assert_eq!(awaited, !publisher.hidden, "who can be seen has a deadline");
            if !publisher.hidden {
                assert_eq!(digest, publisher.digest, "the digest of {}", publisher.info.name);
            }
            if let Some(client) = publisher.client {
                assert_eq!(self.writers.get(&client), Some(&Writer::For(slot)));
            }
        }
        assert_eq!(self.by_id.len(), self.deadlines.len());
        for writer in self.writers.values() {
            if let Writer::For(slot) = writer {
                assert!(!self.slots[*slot].hidden, "nobody writes for a hidden publisher");
            }
        }
        assert_eq!(members.len(), self.nodes.len());
        for (path, node) in &self.nodes {
            let [publishers, defaults] = &members[path];
            assert!(node.publishers.iter().eq(publishers), "the publishers of {path}");
            assert!(node.defaults.iter().eq(defaults), "the defaults of {path}");
            assert_eq!(self.default_paths.contains(path), !node.defaults.is_empty());
        }
        assert!(self.default_paths.iter().all(|path| self.nodes.contains_key(path)));
        let published = self.nodes.values().filter(|node| !node.publishers.is_empty()).count();
        assert_eq!(self.published_paths, published);
        self.watches_invariant();
    }
}
