//! Who holds which path: the tree, the sets, and what each publisher holds, which always say the
//! same.

use std::collections::BTreeMap;

use longshore_protocol::messages::resolver::KeyHash;
use longshore_protocol::{Path, PublicationKind};

use crate::directory::Slot;
use crate::directory::holdings::{Held, Mark};
use crate::directory::liveness::Liveness;
use crate::directory::sets::{Member, NOBODY, SetId, Sets};
use crate::directory::terms::TermsId;
use crate::directory::tree::{NodeId, Tree};

/// The paths.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) tree: Tree,
    pub(super) sets: Sets,
    /// Who has declared a default, by node: few. Sorted, because a hash table that grows would make
    /// everybody wait.
    defaults: BTreeMap<NodeId, SetId>,
    /// The nodes that have a publisher.
    published: usize,
    /// Of those, the nodes that have only one, who is hidden.
    unseen: usize,
}

impl Paths {
    pub(super) fn new(secret: [u8; 16]) -> Paths {
        Paths {
            tree: Tree::new(secret),
            sets: Sets::new(),
            defaults: BTreeMap::new(),
            published: 0,
            unseen: 0,
        }
    }

    /// Paths that somebody publishes. One that only hidden publishers hold may count until the last
    /// but one of them is swept.
    pub(super) fn published_len(&self) -> usize {
        self.published - self.unseen
    }

    /// Paths with a default.
    pub(super) fn defaults_len(&self) -> usize {
        self.defaults.len()
    }

    /// Paths that somebody holds something at, without those that only one holds, who is hidden.
    pub(super) fn seen_len(&self) -> usize {
        self.tree.held_len() - self.unseen
    }

    /// The set of those that hold the path, or the default at it.
    pub(super) fn set(&self, held: Held) -> SetId {
        if !held.default {
            self.tree.set(held.node)
        } else if self.tree.has_default(held.node) {
            self.defaults.get(&held.node).copied().unwrap_or(NOBODY)
        } else {
            NOBODY
        }
    }

    /// Those that hold it.
    pub(super) fn members(&self, held: Held) -> &[Member] {
        self.sets.members(self.set(held))
    }

    /// True of what holds jobs, or makes queues: those are whom watches over publishers are for.
    pub(super) fn is_of_jobs(&self, terms: TermsId) -> bool {
        self.sets.terms_kept.get(terms).kind == PublicationKind::Queue
    }

    /// Who has declared the deepest default at or above the path that `seen` likes.
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
            let set = self.set(Held { node, default: true });
            if set != NOBODY && seen(set) {
                return Some(set);
            }
            at = self.tree.above(node);
        }
        None
    }

    /// What the digest of a bucket says of it, held by that publisher.
    #[cfg(test)]
    pub(super) fn mark(&self, held: Held, slot: Slot) -> Mark {
        self.mark_spelt(held, slot, &mut String::new())
    }

    fn mark_spelt(&self, held: Held, slot: Slot, text: &mut String) -> Mark {
        self.tree.spell(held.node, text);
        let terms = self.sets.terms(self.set(held), slot).unwrap_or_default();
        self.mark_of(text, held.default, terms)
    }

    /// What the digest of a bucket says of a path, or the default at it, held on these terms.
    pub(super) fn mark_of(&self, path: &str, default: bool, terms: TermsId) -> Mark {
        Mark { key: KeyHash::of(path, default), terms: self.sets.terms_kept.digest(terms) }
    }

    /// The path of a node.
    pub(super) fn path(&self, node: NodeId) -> Option<Path> {
        let mut text = String::new();
        self.tree.spell(node, &mut text);
        // What was a path once is one still.
        Path::new(&text).ok()
    }

    /// The publisher holds this from now on, on these terms. `before` is on which it did until now,
    /// if it did. Answers with how many of its other paths were moved for it, in the index of
    /// buckets.
    pub(super) fn hold(
        &mut self,
        living: &mut Liveness,
        slot: Slot,
        held: Held,
        mark: Mark,
        terms: TermsId,
        before: Option<TermsId>,
    ) -> usize {
        let from = self.set(held);
        let to = self.sets.with(from, Member { slot, terms });
        self.put(living, held, from, to);
        let holdings = &mut living[slot].holdings;
        match before {
            None => {
                holdings.insert(held, mark);
                let mut text = String::new();
                holdings.part(|held| self.mark_spelt(held, slot, &mut text))
            }
            Some(before) => {
                holdings.replace(held, self.sets.terms_kept.digest(before), mark);
                0
            }
        }
    }

    /// The publisher no longer holds it. That it goes from the holdings is up to who calls this.
    pub(super) fn let_go(&mut self, living: &mut Liveness, slot: Slot, held: Held) {
        let from = self.set(held);
        let to = self.sets.without(from, slot);
        self.put(living, held, from, to);
        self.tree.prune(held.node);
    }

    fn put(&mut self, living: &mut Liveness, held: Held, from: SetId, to: SetId) {
        if !held.default {
            self.count(living, from, false);
            self.count(living, to, true);
        }
        self.sets.exchange(from, to);
        if held.default {
            self.tree.put_default(held.node, to != NOBODY);
            if to == NOBODY {
                self.defaults.remove(&held.node);
            } else {
                self.defaults.insert(held.node, to);
            }
            return;
        }
        self.tree.put_set(held.node, to);
        self.published = self.published + usize::from(to != NOBODY) - usize::from(from != NOBODY);
    }

    /// A path has that set, or has it no longer.
    fn count(&mut self, living: &mut Liveness, set: SetId, has: bool) {
        let [only] = self.sets.members(set) else { return };
        let publisher = &mut living[only.slot];
        if has {
            publisher.alone += 1;
            self.unseen += usize::from(publisher.hidden);
        } else {
            publisher.alone -= 1;
            self.unseen -= usize::from(publisher.hidden);
        }
    }

    /// A publisher has been hidden.
    pub(super) fn hide(&mut self, living: &Liveness, slot: Slot) {
        self.unseen += living[slot].alone;
    }

    /// Panics where the indexes disagree.
    #[cfg(test)]
    pub(super) fn invariant(&self, living: &Liveness) {
        use std::collections::{BTreeMap, BTreeSet};

        self.tree.invariant();
        self.sets.invariant();
        let mut holders: BTreeMap<Held, BTreeSet<Slot>> = BTreeMap::new();
        for (slot, publisher) in living.iter() {
            for held in publisher.holdings.iter() {
                assert!(holders.entry(held).or_default().insert(slot), "held twice");
            }
            if !publisher.hidden {
                publisher.holdings.invariant(|held| self.mark(held, slot));
            }
        }
        let (mut uses, mut alone): (BTreeMap<SetId, usize>, BTreeMap<Slot, usize>) =
            (BTreeMap::new(), BTreeMap::new());
        let (mut published, mut defaults) = (0, 0);
        for node in (0..self.tree.end()).filter(|&node| self.tree.in_use(node)) {
            for default in [false, true] {
                let held = Held { node, default };
                let set = self.set(held);
                let members = self.sets.members(set).iter().map(|member| member.slot);
                let expected = holders.remove(&held).unwrap_or_default();
                assert!(members.eq(expected.iter().copied()), "holders of node {node}");
                if set != NOBODY {
                    *uses.entry(set).or_default() += 1;
                    published += usize::from(!default);
                    defaults += usize::from(default);
                }
                if let (false, [only]) = (default, self.sets.members(set)) {
                    *alone.entry(only.slot).or_default() += 1;
                }
            }
        }
        assert_eq!(holders, BTreeMap::new(), "held where there is no node");
        assert_eq!(uses, self.sets.uses(), "paths of each set");
        assert_eq!((published, defaults), (self.published, self.defaults.len()));
        let mut unseen = 0;
        for (slot, publisher) in living.iter() {
            assert_eq!(publisher.alone, alone.remove(&slot).unwrap_or_default());
            unseen += if publisher.hidden { publisher.alone } else { 0 };
        }
        assert_eq!(unseen, self.unseen);
    }
}
