//! Registered paths: the tree, the sets, and the registrations of each publisher, kept consistent.

use std::collections::BTreeMap;

use longshore_protocol::messages::resolver::KeyHash;
use longshore_protocol::{Path, PublicationKind};

use crate::directory::Slot;
use crate::directory::publishers::PublisherTable;
use crate::directory::registrations::{DigestEntry, Registration};
use crate::directory::sets::{EMPTY_SET, Member, SetId, Sets};
use crate::directory::terms::TermsId;
use crate::directory::tree::{NodeId, Tree};

/// The paths.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) tree: Tree,
    pub(super) sets: Sets,
    /// The sets of publishers of defaults, by node: few. Sorted, because a growing hash table would
    /// block all clients.
    defaults: BTreeMap<NodeId, SetId>,
    /// Nodes with a publisher.
    published: usize,
    /// Nodes whose only publisher is hidden.
    hidden_only: usize,
}

impl Paths {
    pub(super) fn new(secret: [u8; 16]) -> Paths {
        Paths {
            tree: Tree::new(secret),
            sets: Sets::new(),
            defaults: BTreeMap::new(),
            published: 0,
            hidden_only: 0,
        }
    }

    /// Paths with a publisher. A path of several hidden publishers may count until all but one of
    /// them are swept.
    pub(super) fn published_len(&self) -> usize {
        self.published - self.hidden_only
    }

    /// Paths with a default.
    pub(super) fn defaults_len(&self) -> usize {
        self.defaults.len()
    }

    /// Paths with any registration, without those whose only publisher is hidden.
    pub(super) fn visible_len(&self) -> usize {
        self.tree.registered_len() - self.hidden_only
    }

    /// The set of publishers of the path, or of the default at it.
    pub(super) fn set(&self, registration: Registration) -> SetId {
        if !registration.default {
            self.tree.set(registration.node)
        } else if self.tree.has_default(registration.node) {
            self.defaults.get(&registration.node).copied().unwrap_or(EMPTY_SET)
        } else {
            EMPTY_SET
        }
    }

    /// The publishers of a registration.
    pub(super) fn members(&self, registration: Registration) -> &[Member] {
        self.sets.members(self.set(registration))
    }

    /// True for terms of queues and of defaults for queues, which watches over publishers are for.
    pub(super) fn is_of_jobs(&self, terms: TermsId) -> bool {
        self.sets.terms_table.get(terms).kind == PublicationKind::Queue
    }

    /// The set of the deepest default at or above the path that `seen` accepts.
    pub(super) fn default_above(
        &self,
        path: &str,
        mut seen: impl FnMut(SetId) -> bool,
    ) -> Option<SetId> {
        if self.defaults.is_empty() {
            return None;
        }
        let mut at = Some(self.tree.nearest(path));
        while let Some(node) = at {
            let set = self.set(Registration { node, default: true });
            if set != EMPTY_SET && seen(set) {
                return Some(set);
            }
            at = self.tree.above(node);
        }
        None
    }

    /// The contribution of a publisher's registration to its bucket's digest.
    #[cfg(test)]
    pub(super) fn digest_entry(&self, registration: Registration, slot: Slot) -> DigestEntry {
        self.spelt_digest_entry(registration, slot, &mut String::new())
    }

    fn spelt_digest_entry(
        &self,
        registration: Registration,
        slot: Slot,
        text: &mut String,
    ) -> DigestEntry {
        self.tree.spell(registration.node, text);
        let terms = self.sets.terms(self.set(registration), slot).unwrap_or_default();
        self.digest_entry_of(text, registration.default, terms)
    }

    /// The contribution of a path, or the default at it, registered on these terms.
    pub(super) fn digest_entry_of(&self, path: &str, default: bool, terms: TermsId) -> DigestEntry {
        DigestEntry { key: KeyHash::of(path, default), terms: self.sets.terms_table.digest(terms) }
    }

    /// The path of a node.
    pub(super) fn path(&self, node: NodeId) -> Option<Path> {
        let mut text = String::new();
        self.tree.spell(node, &mut text);
        // The text was once parsed as a path.
        Path::new(&text).ok()
    }

    /// Registers a path for a publisher, on these terms; `before` are its terms until now, if it
    /// was registered. Returns how many of its other registrations were moved between buckets.
    pub(super) fn register(
        &mut self,
        publishers: &mut PublisherTable,
        slot: Slot,
        registration: Registration,
        digest_entry: DigestEntry,
        terms: TermsId,
        before: Option<TermsId>,
    ) -> usize {
        // The set that `put` replaces may be the last user of the earlier terms.
        let digest_before = before.map(|before| self.sets.terms_table.digest(before));
        let from = self.set(registration);
        let to = self.sets.with(from, Member { slot, terms });
        self.put(publishers, registration, from, to);
        let registrations = &mut publishers[slot].registrations;
        match digest_before {
            None => {
                registrations.insert(registration, digest_entry);
                let mut text = String::new();
                registrations.split_next(|registration| {
                    self.spelt_digest_entry(registration, slot, &mut text)
                })
            }
            Some(before) => {
                registrations.replace(registration, before, digest_entry);
                0
            }
        }
    }

    /// Unregisters a path of a publisher. The caller removes it from the publisher's registrations.
    pub(super) fn unregister(
        &mut self,
        publishers: &mut PublisherTable,
        slot: Slot,
        registration: Registration,
    ) {
        let from = self.set(registration);
        let to = self.sets.without(from, slot);
        self.put(publishers, registration, from, to);
        self.tree.prune(registration.node);
    }

    fn put(
        &mut self,
        publishers: &mut PublisherTable,
        registration: Registration,
        from: SetId,
        to: SetId,
    ) {
        if !registration.default {
            self.count(publishers, from, false);
            self.count(publishers, to, true);
        }
        self.sets.exchange(from, to);
        if registration.default {
            self.tree.put_default(registration.node, to != EMPTY_SET);
            if to == EMPTY_SET {
                self.defaults.remove(&registration.node);
            } else {
                self.defaults.insert(registration.node, to);
            }
            return;
        }
        self.tree.put_set(registration.node, to);
        self.published =
            self.published + usize::from(to != EMPTY_SET) - usize::from(from != EMPTY_SET);
    }

    /// A path now has this set, or no longer has it.
    fn count(&mut self, publishers: &mut PublisherTable, set: SetId, has: bool) {
        let [only] = self.sets.members(set) else { return };
        let publisher = &mut publishers[only.slot];
        if has {
            publisher.sole_paths += 1;
            self.hidden_only += usize::from(publisher.is_hidden());
        } else {
            publisher.sole_paths -= 1;
            self.hidden_only -= usize::from(publisher.is_hidden());
        }
    }

    /// A publisher was hidden.
    pub(super) fn hide(&mut self, publishers: &PublisherTable, slot: Slot) {
        self.hidden_only += publishers[slot].sole_paths;
    }

    /// Panics where the indexes disagree.
    #[cfg(test)]
    pub(super) fn invariant(&self, publishers: &PublisherTable) {
        use std::collections::{BTreeMap, BTreeSet};

        self.tree.invariant();
        self.sets.invariant();
        let mut registered: BTreeMap<Registration, BTreeSet<Slot>> = BTreeMap::new();
        for (slot, publisher) in publishers.iter() {
            for registration in publisher.registrations.iter() {
                assert!(
                    registered.entry(registration).or_default().insert(slot),
                    "registered twice"
                );
            }
            if !publisher.is_hidden() {
                publisher
                    .registrations
                    .invariant(|registration| self.digest_entry(registration, slot));
            }
        }
        let (mut uses, mut sole_paths): (BTreeMap<SetId, usize>, BTreeMap<Slot, usize>) =
            (BTreeMap::new(), BTreeMap::new());
        let (mut published, mut defaults) = (0, 0);
        for node in (0..self.tree.end()).filter(|&node| self.tree.in_use(node)) {
            for default in [false, true] {
                let registration = Registration { node, default };
                let set = self.set(registration);
                let members = self.sets.members(set).iter().map(|member| member.slot);
                let expected = registered.remove(&registration).unwrap_or_default();
                assert!(members.eq(expected.iter().copied()), "registered of node {node}");
                if set != EMPTY_SET {
                    *uses.entry(set).or_default() += 1;
                    published += usize::from(!default);
                    defaults += usize::from(default);
                }
                if let (false, [only]) = (default, self.sets.members(set)) {
                    *sole_paths.entry(only.slot).or_default() += 1;
                }
            }
        }
        assert_eq!(registered, BTreeMap::new(), "registered without a node");
        assert_eq!(uses, self.sets.uses(), "paths of each set");
        assert_eq!((published, defaults), (self.published, self.defaults.len()));
        let mut hidden_only = 0;
        for (slot, publisher) in publishers.iter() {
            assert_eq!(publisher.sole_paths, sole_paths.remove(&slot).unwrap_or_default());
            hidden_only += if publisher.is_hidden() { publisher.sole_paths } else { 0 };
        }
        assert_eq!(hidden_only, self.hidden_only);
    }
}
