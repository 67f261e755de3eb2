//! Sets of publishers, each kept once: a million paths of the same publishers cost one set and a
//! million numbers.

use hashbrown::HashMap;

use crate::directory::Slot;
use crate::directory::index::{Index, mix};
use crate::directory::slab::{Entry, NONE, Slab};
use crate::directory::terms::{TermsId, TermsKept};

/// The number of a set. Used again once no path has it and it has been collected.
pub(super) type SetId = u32;
/// The set of nobody, which is always there.
pub(super) const NOBODY: SetId = 0;
/// Most sets that no path has any more and that are kept for the next that comes to the same.
const UNUSED_MAX: usize = 1_024;
/// Most steps from a set to the next that are remembered.
const STEPS_MAX: usize = 4_096;

/// A publisher in a set, and on what terms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Member {
    pub(crate) slot: Slot,
    pub(crate) terms: TermsId,
}

#[derive(Clone, Default, Debug)]
struct Set {
    /// By slot, each once.
    members: Box<[Member]>,
    hash: u32,
    /// How many paths have it. Of a free entry, the next one that is free.
    uses: u32,
    /// It is among those that no path had.
    unused: bool,
}

impl Entry for Set {
    fn next_free(&self) -> u32 {
        self.uses
    }
    fn set_next_free(&mut self, next: u32) {
        self.uses = next;
    }
}

/// From a set to the one with a member more, with other terms, or (with [`NONE`] for its terms)
/// without it.
type Step = (SetId, Member);

/// All sets.
#[derive(Debug)]
pub(super) struct Sets {
    sets: Slab<Set>,
    index: Index,
    /// What the members' terms are.
    pub(super) terms_kept: TermsKept,
    steps: HashMap<Step, SetId>,
    /// The step taken last: a publisher with a million paths takes the same one a million times.
    last: Option<(Step, SetId)>,
    unused: Vec<SetId>,
    scratch: Vec<Member>,
}

impl Sets {
    pub(super) fn new() -> Sets {
        let mut sets = Slab::new();
        let nobody = sets.insert(Set::default());
        debug_assert_eq!(nobody, NOBODY);
        Sets {
            sets,
            index: Index::new(),
            terms_kept: TermsKept::new(),
            steps: HashMap::new(),
            last: None,
            unused: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn members(&self, set: SetId) -> &[Member] {
        &self.sets[set].members
    }

    /// On what terms the publisher is in the set, if it is.
    pub(super) fn terms(&self, set: SetId, slot: Slot) -> Option<TermsId> {
        let members = self.members(set);
        // Most sets have one.
        if let [only] = members {
            return (only.slot == slot).then_some(only.terms);
        }
        let place = members.binary_search_by_key(&slot, |member| member.slot).ok()?;
        Some(members[place].terms)
    }

    /// The set with that member, in place of the same publisher on other terms.
    pub(super) fn with(&mut self, set: SetId, member: Member) -> SetId {
        self.step((set, member), |members| {
            match members.binary_search_by_key(&member.slot, |member| member.slot) {
                Ok(place) => members[place] = member,
                Err(place) => members.insert(place, member),
            }
        })
    }

    /// The set without that publisher.
    pub(super) fn without(&mut self, set: SetId, slot: Slot) -> SetId {
        self.step((set, Member { slot, terms: NONE }), |members| {
            members.retain(|member| member.slot != slot);
        })
    }

    fn step(&mut self, step: Step, change: impl FnOnce(&mut Vec<Member>)) -> SetId {
        if let Some((last, to)) = self.last
            && last == step
        {
            return to;
        }
        let to = match self.steps.get(&step) {
            Some(&to) => to,
            None => {
                let mut members = std::mem::take(&mut self.scratch);
                members.clear();
                members.extend_from_slice(self.members(step.0));
                change(&mut members);
                let to = self.of(&members);
                self.scratch = members;
                if self.steps.len() >= STEPS_MAX {
                    self.steps.clear();
                }
                self.steps.insert(step, to);
                to
            }
        };
        self.last = Some((step, to));
        to
    }

    fn of(&mut self, members: &[Member]) -> SetId {
        if members.is_empty() {
            return NOBODY;
        }
        let hash = hash(members);
        let same = |set: u32| *self.sets[set].members == *members;
        if let Some(set) = self.index.find(hash, same) {
            return set;
        }
        members.iter().for_each(|member| self.terms_kept.hold(member.terms));
        let set = self.sets.insert(Set { members: members.into(), hash, uses: 0, unused: false });
        let sets = &self.sets;
        self.index.insert(hash, set, |set| sets[set].hash);
        self.note_unused(set);
        set
    }

    /// A path that had the set `from` has `to` now.
    pub(super) fn exchange(&mut self, from: SetId, to: SetId) {
        if to != NOBODY {
            self.sets[to].uses += 1;
        }
        if from != NOBODY {
            self.sets[from].uses -= 1;
            if self.sets[from].uses == 0 {
                self.note_unused(from);
            }
        }
        if self.unused.len() > UNUSED_MAX {
            self.collect();
        }
    }

    fn note_unused(&mut self, set: SetId) {
        if !std::mem::replace(&mut self.sets[set].unused, true) {
            self.unused.push(set);
        }
    }

    /// Forgets the sets that no path has, and the steps, which may lead to them.
    pub(super) fn collect(&mut self) {
        self.steps.clear();
        self.last = None;
        for set in std::mem::take(&mut self.unused) {
            self.sets[set].unused = false;
            if self.sets[set].uses == 0 {
                for member in std::mem::take(&mut self.sets[set].members) {
                    self.terms_kept.let_go(member.terms);
                }
                self.index.remove(self.sets[set].hash, set);
                self.sets.remove(set);
            }
        }
    }

    /// How many paths have each set that some path has.
    #[cfg(test)]
    pub(super) fn uses(&self) -> std::collections::BTreeMap<SetId, usize> {
        let used = self.index.iter().filter(|&set| self.sets[set].uses > 0);
        used.map(|set| (set, self.sets[set].uses as usize)).collect()
    }

    /// Panics where the sets contradict themselves.
    #[cfg(test)]
    pub(super) fn invariant(&self) {
        assert_eq!(self.index.iter().count(), self.sets.len() - 1, "sets in the index");
        let mut terms = std::collections::BTreeMap::new();
        for member in self.index.iter().flat_map(|set| self.members(set)) {
            *terms.entry(member.terms).or_default() += 1;
        }
        self.terms_kept.invariant(terms);
        for set in self.index.iter() {
            let members = self.members(set);
            assert!(members.is_sorted_by_key(|member| member.slot) && !members.is_empty());
            let same = |other: u32| *self.sets[other].members == *members;
            assert_eq!(self.index.find(hash(members), same), Some(set), "one set, two numbers");
            let listed = self.unused.contains(&set);
            assert_eq!(self.sets[set].unused, listed);
            assert!(self.sets[set].uses > 0 || listed, "a set that nobody would ever collect");
        }
        assert!(self.unused.len() <= UNUSED_MAX + 1);
    }
}

fn hash(members: &[Member]) -> u32 {
    let fold = |hash, member: &Member| {
        mix(hash ^ (u64::from(member.slot) << 32 | u64::from(member.terms)), 0x9e37_79b9_7f4a_7c15)
    };
    (members.iter().fold(members.len() as u64, fold) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use longshore_protocol::Terms;

    use super::*;

    fn member(slot: Slot, terms: TermsId) -> Member {
        Member { slot, terms }
    }

    /// With terms of the numbers 1 to 3, besides the default ones.
    fn sets() -> Sets {
        let mut sets = Sets::new();
        for flags in 1..4 {
            let terms = Terms { flags, ..Terms::default() };
            let number = sets.terms_kept.number(&terms).unwrap();
            // Used for ever: they are only named here.
            sets.terms_kept.hold(number);
        }
        sets
    }

    #[test]
    fn the_same_members_are_the_same_set_whatever_the_way_there() {
        let mut sets = sets();
        let one = sets.with(NOBODY, member(1, 0));
        let both = sets.with(one, member(2, 2));
        let two = sets.without(both, 1);
        assert_eq!(sets.with(NOBODY, member(2, 2)), two);
        assert_eq!(sets.with(two, member(1, 0)), both);
        assert_eq!(sets.members(both), [member(1, 0), member(2, 2)]);
        let other_terms = sets.with(both, member(1, 3));
        assert_ne!(other_terms, both);
        assert_eq!((sets.terms(other_terms, 1), sets.terms(other_terms, 7)), (Some(3), None));
        assert_eq!(sets.without(two, 2), NOBODY);
    }

    #[test]
    fn sets_that_no_path_has_are_kept_to_a_bound_and_those_in_use_for_good() {
        let mut sets = sets();
        let kept = sets.with(NOBODY, member(9, 3));
        sets.exchange(NOBODY, kept);
        for slot in 0..10 * UNUSED_MAX as u32 {
            let set = sets.with(NOBODY, member(slot + 10, 0));
            sets.exchange(NOBODY, set);
            sets.exchange(set, NOBODY);
        }
        assert!(sets.sets.len() <= UNUSED_MAX + 3, "{} sets", sets.sets.len());
        assert_eq!(sets.members(kept), [member(9, 3)]);
        assert_eq!(sets.with(NOBODY, member(9, 3)), kept);
        assert_eq!(sets.uses().into_iter().collect::<Vec<_>>(), [(kept, 1)]);
    }
}
