//! The jobs of a key, sorted by rank: priority, then age. Most come in that order. They are in a
//! list through their rows, which takes no memory of its own; a job that comes after one of lower
//! rank is among the *late* ones, in a set.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::row::{NONE, Order, Row};
use super::rows::{Links, List, Rows};

/// A job's place among those of its key.
pub(super) type Rank = (Reverse<i32>, Order);

/// Jobs by key, each key's sorted by the rank that `rank_of` gives to a row. A key has a [`List`],
/// which its owner stores: the jobs in it are linked by [`Links::Queue`].
#[derive(Clone, Debug, Default)]
pub(super) struct KeyJobs {
    /// By key and rank.
    late: BTreeSet<(u32, Rank, u32)>,
}

impl KeyJobs {
    /// How many jobs came late.
    pub(super) fn late(&self) -> usize {
        self.late.len()
    }

    pub(super) fn add(
        &mut self,
        rows: &mut Rows,
        list: &mut List,
        (key, slot): (u32, u32),
        rank_of: impl Fn(&Row) -> Rank,
    ) {
        let rank = rank_of(&rows[slot]);
        if list.is_empty() || rank_of(&rows[list.tail]) < rank {
            list.push_back(rows, Links::Queue, slot);
        } else {
            self.late.insert((key, rank, slot));
        }
    }

    pub(super) fn remove(
        &mut self,
        rows: &mut Rows,
        list: &mut List,
        (key, slot): (u32, u32),
        rank_of: impl Fn(&Row) -> Rank,
    ) {
        let is_late = !self.late.is_empty() && self.late.remove(&(key, rank_of(&rows[slot]), slot));
        if !is_late {
            list.unlink(rows, Links::Queue, slot);
        }
    }

    /// The first job of the key, and its rank.
    #[inline]
    pub(super) fn first(
        &self,
        rows: &Rows,
        list: List,
        key: u32,
        rank_of: impl Fn(&Row) -> Rank,
    ) -> Option<(Rank, u32)> {
        let listed = (list.head != NONE).then(|| (rank_of(&rows[list.head]), list.head));
        listed.into_iter().chain(self.late_of(key).next()).min()
    }

    /// The last job of the key, and its rank.
    #[inline]
    pub(super) fn last(
        &self,
        rows: &Rows,
        list: List,
        key: u32,
        rank_of: impl Fn(&Row) -> Rank,
    ) -> Option<(Rank, u32)> {
        let listed = (list.tail != NONE).then(|| (rank_of(&rows[list.tail]), list.tail));
        listed.into_iter().chain(self.late_of(key).next_back()).max()
    }

    #[inline]
    fn late_of(&self, key: u32) -> impl DoubleEndedIterator<Item = (Rank, u32)> {
        let last = (key, (Reverse(i32::MIN), (u64::MAX, u32::MAX)), u32::MAX);
        let late = self.late.range((key, (Reverse(i32::MAX), (0, 0)), 0)..=last);
        late.map(|&(_, rank, slot)| (rank, slot))
    }

    /// The late jobs, and those of every list, which has to be sorted: for the invariant.
    pub(super) fn check(
        &self,
        rows: &Rows,
        lists: impl Iterator<Item = (u32, List)>,
        rank_of: impl Fn(&Row) -> Rank,
    ) -> Result<BTreeSet<(u32, Rank, u32)>, String> {
        let mut found = self.late.clone();
        for (key, list) in lists {
            let (mut slot, mut last) = (list.head, None);
            while slot != NONE {
                let rank = rank_of(&rows[slot]);
                if last.is_some_and(|last| last >= rank) || !found.insert((key, rank, slot)) {
                    return Err(format!("the jobs of key {key} are not sorted"));
                }
                (last, slot) = (Some(rank), rows[slot].queue_next);
            }
        }
        Ok(found)
    }
}
