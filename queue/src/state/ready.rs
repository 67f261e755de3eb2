//! The ready jobs of one queue: by priority, then in the order of enqueuing. Finding the next one
//! compares two heads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::row::{NONE, Order, Substate};
use super::rows::{Links, List, Rows};

/// Empty levels that stay, so that a queue that empties and fills again allocates nothing; with
/// more levels than this, an empty one is removed at once.
const LEVELS_RETAINED: usize = 8;

/// The ready jobs of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready {
    levels: BTreeMap<Reverse<i32>, Level>,
    len: u64,
}

/// The ready jobs of one priority.
#[derive(Clone, Debug, Default)]
struct Level {
    /// Jobs that were always ready: enqueued in order, so sorted.
    fresh: List,
    /// Jobs that returned, sorted by age.
    returned: BTreeSet<(Order, u32)>,
}

/// The next job of a queue. Sorted: the more urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Head {
    pub(super) priority: Reverse<i32>,
    pub(super) order: Order,
}

impl Level {
    fn first(&self, rows: &Rows) -> Option<(Order, u32)> {
        let returned = self.returned.first().copied();
        match (self.fresh.head, returned) {
            (NONE, returned) => returned,
            (slot, None) => Some((rows[slot].order(), slot)),
            (slot, Some(returned)) => Some(returned.min((rows[slot].order(), slot))),
        }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.returned.is_empty()
    }
}

impl Ready {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The next job and its row.
    pub(super) fn next(&self, rows: &Rows) -> Option<(Head, u32)> {
        self.levels.iter().find_map(|(&priority, level)| {
            let (order, slot) = level.first(rows)?;
            Some((Head { priority, order }, slot))
        })
    }

    /// Adds a job. `Fresh`: it is younger than every other of the queue.
    pub(super) fn add(&mut self, rows: &mut Rows, priority: i32, slot: u32, substate: Substate) {
        let level = self.levels.entry(Reverse(priority)).or_default();
        match substate {
            Substate::Fresh => level.fresh.push_back(rows, Links::Main, slot),
            _ => {
                level.returned.insert((rows[slot].order(), slot));
            }
        }
        self.len += 1;
    }

    /// Removes a job.
    pub(super) fn remove(&mut self, rows: &mut Rows, priority: i32, slot: u32, substate: Substate) {
        let Some(level) = self.levels.get_mut(&Reverse(priority)) else {
            debug_assert!(false, "a ready job has a level");
            return;
        };
        match substate {
            Substate::Fresh => level.fresh.unlink(rows, Links::Main, slot),
            _ => {
                level.returned.remove(&(rows[slot].order(), slot));
            }
        }
        self.len -= 1;
        if level.is_empty() && self.levels.len() > LEVELS_RETAINED {
            self.levels.remove(&Reverse(priority));
        }
    }

    /// Since when the longest-waiting of the priorities' next jobs has been ready, in monotonic
    /// milliseconds.
    pub(super) fn oldest_since_ms(&self, rows: &Rows) -> Option<u64> {
        let heads = self.levels.values().flat_map(|level| {
            let fresh = (!level.fresh.is_empty()).then_some(level.fresh.head);
            fresh.into_iter().chain(level.returned.first().map(|&(_, slot)| slot))
        });
        heads.map(|slot| rows[slot].when).min()
    }

    /// The non-empty lists of fresh jobs: for snapshots.
    pub(super) fn fresh_lists(&self) -> impl Iterator<Item = (i32, List)> + Clone {
        let lists = self.levels.iter().map(|(priority, level)| (priority.0, level.fresh));
        lists.filter(|(_, list)| !list.is_empty())
    }

    /// Restores a list of fresh jobs of a snapshot; `restored_fresh` is then called for each of
    /// them.
    pub(super) fn restore_fresh(&mut self, priority: i32, list: List) {
        self.levels.entry(Reverse(priority)).or_default().fresh = list;
    }

    /// Counts a job of a restored list.
    pub(super) fn restored_fresh(&mut self) {
        self.len += 1;
    }

    /// Every ready job, by a full scan: for the invariant.
    pub(super) fn walk(&self, rows: &Rows) -> Vec<(i32, Substate, u32)> {
        let mut found = Vec::new();
        for (priority, level) in &self.levels {
            let mut slot = level.fresh.head;
            while slot != NONE {
                found.push((priority.0, Substate::Fresh, slot));
                slot = rows[slot].next;
            }
            found.extend(
                level.returned.iter().map(|&(_, slot)| (priority.0, Substate::Returned, slot)),
            );
        }
        found
    }
}
