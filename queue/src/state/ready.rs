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

/// The ready jobs of one priority, by age.
#[derive(Clone, Debug, Default)]
struct Level {
    /// Those that came in order, as all do that were always ready.
    listed: List,
    /// Those that came after a younger one.
    late: BTreeSet<(Order, u32)>,
}

/// The next job of a queue. Sorted: the more urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Head {
    pub(super) priority: Reverse<i32>,
    pub(super) order: Order,
}

impl Level {
    fn first(&self, rows: &Rows) -> Option<(Order, u32)> {
        let late = self.late.first().copied();
        match (self.listed.head, late) {
            (NONE, late) => late,
            (slot, None) => Some((rows[slot].order(), slot)),
            (slot, Some(late)) => Some(late.min((rows[slot].order(), slot))),
        }
    }

    fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.late.is_empty()
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

    /// Adds a job; returns whether it came late. One that is `Fresh` is younger than every other of
    /// the queue.
    pub(super) fn add(
        &mut self,
        rows: &mut Rows,
        priority: i32,
        slot: u32,
        substate: Substate,
    ) -> bool {
        let level = self.levels.entry(Reverse(priority)).or_default();
        let is_late = substate != Substate::Fresh
            && !level.listed.is_empty()
            && rows[level.listed.tail].order() > rows[slot].order();
        if is_late {
            level.late.insert((rows[slot].order(), slot));
        } else {
            level.listed.push_back(rows, Links::Main, slot);
        }
        self.len += 1;
        is_late
    }

    /// Removes a job; returns whether it had come late.
    pub(super) fn remove(
        &mut self,
        rows: &mut Rows,
        priority: i32,
        slot: u32,
        substate: Substate,
    ) -> bool {
        let Some(level) = self.levels.get_mut(&Reverse(priority)) else {
            debug_assert!(false, "a ready job has a level");
            return false;
        };
        let was_late =
            substate == Substate::Returned && level.late.remove(&(rows[slot].order(), slot));
        if !was_late {
            level.listed.unlink(rows, Links::Main, slot);
        }
        self.len -= 1;
        if level.is_empty() && self.levels.len() > LEVELS_RETAINED {
            self.levels.remove(&Reverse(priority));
        }
        was_late
    }

    /// Since when the longest-waiting of the priorities' next jobs has been ready, in monotonic
    /// milliseconds.
    pub(super) fn oldest_since_ms(&self, rows: &Rows) -> Option<u64> {
        let heads = self.levels.values().flat_map(|level| {
            let listed = (!level.listed.is_empty()).then_some(level.listed.head);
            listed.into_iter().chain(level.late.first().map(|&(_, slot)| slot))
        });
        heads.map(|slot| rows[slot].when).min()
    }

    /// The lists that are not empty, by priority: for snapshots.
    pub(super) fn lists(&self) -> impl Iterator<Item = (i32, List)> + Clone {
        let lists = self.levels.iter().map(|(priority, level)| (priority.0, level.listed));
        lists.filter(|(_, list)| !list.is_empty())
    }

    /// Restores a list of a snapshot; `restored` is then called for each ready job.
    pub(super) fn restore_list(&mut self, priority: i32, list: List) {
        self.levels.entry(Reverse(priority)).or_default().listed = list;
    }

    /// Counts a ready job of a snapshot; returns whether it came late, as it did if it is in no
    /// list.
    pub(super) fn restored(&mut self, rows: &Rows, priority: i32, slot: u32) -> bool {
        let level = self.levels.entry(Reverse(priority)).or_default();
        let is_late = rows[slot].prev == NONE && level.listed.head != slot;
        if is_late {
            level.late.insert((rows[slot].order(), slot));
        }
        self.len += 1;
        is_late
    }

    /// Every ready job, and whether it came late, by a full scan: for the invariant.
    pub(super) fn walk(&self, rows: &Rows) -> Vec<(i32, bool, u32)> {
        let mut found = Vec::new();
        for (priority, level) in &self.levels {
            let mut slot = level.listed.head;
            while slot != NONE {
                found.push((priority.0, false, slot));
                slot = rows[slot].next;
            }
            found.extend(level.late.iter().map(|&(_, slot)| (priority.0, true, slot)));
        }
        found
    }
}
