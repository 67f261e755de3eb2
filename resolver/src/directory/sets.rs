//! Sets of publishers, each stored once: a million paths of the same publishers cost one set and a
//! million numbers.

use hashbrown::HashMap;

use crate::directory::Slot;
use crate::directory::index::{Index, mix};
use crate::directory::slab::{Entry, NONE, Slab};
use crate::directory::terms::{TermsId, TermsTable};

/// The number of a set. Reused once no path has it and it was collected.
pub(super) type SetId = u32;
/// The empty set, which is always there.
pub(super) const EMPTY_SET: SetId = 0;
/// Most unused sets that are retained for paths that need them again.
const UNUSED_MAX: usize = 1_024;
/// Most cached transitions from one set to another.
const STEPS_MAX: usize = 4_096;

/// A publisher in a set, and its terms.
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
    /// The number of paths that have it. In a free entry, the next free entry.
    uses: u32,
    /// It is in the list of unused sets.
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

/// The transition from a set to the one with a member more, with other terms, or (with [`NONE`] for
/// its terms) without it.
type Step = (SetId, Member);

/// All sets.
#[derive(Debug)]
pub(super) struct Sets {
    sets: Slab<Set>,
    index: Index,
    /// The terms of the members.
    pub(super) terms_table: TermsTable,
    steps: HashMap<Step, SetId>,
    /// The transition taken last: a publisher with a million paths takes the same one a million
    /// times.
    last: Option<(Step, SetId)>,
    unused: Vec<SetId>,
    scratch: Vec<Member>,
}

impl Sets {
    pub(super) fn new() -> Sets {
        let mut sets = Slab::new();
        let empty = sets.insert(Set::default());
        debug_assert_eq!(empty, EMPTY_SET);
        Sets {
            sets,
            index: Index::new(),
            terms_table: TermsTable::new(),
            steps: HashMap::new(),
            last: None,
            unused: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn members(&self, set: SetId) -> &[Member] {
        &self.sets[set].members
    }

    /// The publisher's terms in the set, if it is a member.
    pub(super) fn terms(&self, set: SetId, slot: Slot) -> Option<TermsId> {
        let members = self.members(set);
        // Most sets have one member.
        if let [only] = members {
            return (only.slot == slot).then_some(only.terms);
        }
        let index = members.binary_search_by_key(&slot, |member| member.slot).ok()?;
        Some(members[index].terms)
    }

    /// The set with this member, which replaces the same publisher on other terms.
    pub(super) fn with(&mut self, set: SetId, member: Member) -> SetId {
        self.step((set, member), |members| {
            match members.binary_search_by_key(&member.slot, |member| member.slot) {
                Ok(index) => members[index] = member,
                Err(index) => members.insert(index, member),
            }
        })
    }

    /// The set without this publisher.
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
            return EMPTY_SET;
        }
        let hash = hash(members);
        let same = |set: u32| *self.sets[set].members == *members;
        if let Some(set) = self.index.find(hash, same) {
            return set;
        }
        members.iter().for_each(|member| self.terms_table.add_use(member.terms));
        let set = self.sets.insert(Set { members: members.into(), hash, uses: 0, unused: false });
        let sets = &self.sets;
        self.index.insert(hash, set, |set| sets[set].hash);
        self.note_unused(set);
        set
    }

    /// A path that had the set `from` now has `to`.
    pub(super) fn exchange(&mut self, from: SetId, to: SetId) {
        if to != EMPTY_SET {
            self.sets[to].uses += 1;
        }
        if from != EMPTY_SET {
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

    /// Removes unused sets, and the transitions, which may lead to them.
    pub(super) fn collect(&mut self) {
        self.steps.clear();
        self.last = None;
        for set in std::mem::take(&mut self.unused) {
            self.sets[set].unused = false;
            if self.sets[set].uses == 0 {
                for member in std::mem::take(&mut self.sets[set].members) {
                    self.terms_table.release(member.terms);
                }
                self.index.remove(self.sets[set].hash, set);
                self.sets.remove(set);
            }
        }
    }

    /// The number of paths of each set in use.
    #[cfg(test)]
    pub(super) fn uses(&self) -> std::collections::BTreeMap<SetId, usize> {
        let used = self.index.iter().filter(|&set| self.sets[set].uses > 0);
        used.map(|set| (set, self.sets[set].uses as usize)).collect()
    }

    /// Panics where the sets are inconsistent.
    #[cfg(test)]
    pub(super) fn invariant(&self) {
        assert_eq!(self.index.iter().count(), self.sets.len() - 1, "sets in the index");
        let mut terms = std::collections::BTreeMap::new();
        for member in self.index.iter().flat_map(|set| self.members(set)) {
            *terms.entry(member.terms).or_default() += 1;
        }
        self.terms_table.invariant(terms);
        for set in self.index.iter() {
            let members = self.members(set);
            assert!(members.is_sorted_by_key(|member| member.slot) && !members.is_empty());
            let same = |other: u32| *self.sets[other].members == *members;
            assert_eq!(self.index.find(hash(members), same), Some(set), "one set, two numbers");
            let listed = self.unused.contains(&set);
            assert_eq!(self.sets[set].unused, listed);
            assert!(self.sets[set].uses > 0 || listed, "a set that would never be collected");
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
            let number = sets.terms_table.number(&terms).unwrap();
            // In use for ever: the tests only refer to them.
            sets.terms_table.add_use(number);
        }
        sets
    }

    #[test]
    fn the_same_members_are_the_same_set_by_any_transition() {
        let mut sets = sets();
        let one = sets.with(EMPTY_SET, member(1, 0));
        let both = sets.with(one, member(2, 2));
        let two = sets.without(both, 1);
        assert_eq!(sets.with(EMPTY_SET, member(2, 2)), two);
        assert_eq!(sets.with(two, member(1, 0)), both);
        assert_eq!(sets.members(both), [member(1, 0), member(2, 2)]);
        let other_terms = sets.with(both, member(1, 3));
        assert_ne!(other_terms, both);
        assert_eq!((sets.terms(other_terms, 1), sets.terms(other_terms, 7)), (Some(3), None));
        assert_eq!(sets.without(two, 2), EMPTY_SET);
    }

    #[test]
    fn unused_sets_are_retained_up_to_a_bound_and_used_ones_stay() {
        let mut sets = sets();
        let used = sets.with(EMPTY_SET, member(9, 3));
        sets.exchange(EMPTY_SET, used);
        for slot in 0..10 * UNUSED_MAX as u32 {
            let set = sets.with(EMPTY_SET, member(slot + 10, 0));
            sets.exchange(EMPTY_SET, set);
            sets.exchange(set, EMPTY_SET);
        }
        assert!(sets.sets.len() <= UNUSED_MAX + 3, "{} sets", sets.sets.len());
        assert_eq!(sets.members(used), [member(9, 3)]);
        assert_eq!(sets.with(EMPTY_SET, member(9, 3)), used);
        assert_eq!(sets.uses().into_iter().collect::<Vec<_>>(), [(used, 1)]);
    }
}
