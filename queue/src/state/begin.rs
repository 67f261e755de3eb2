//! Where a filter's age begins in a list of ended jobs: an act by filter works in steps, and none of them walks through the
//! jobs again that its first one has passed over.

use super::row::NONE;
use super::rows::Rows;
use super::steps;

/// Jobs of a list up to `passed` ended before `from`. New ones come behind them, and one that leaves takes none with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begin {
    /// By the wall clock, in milliseconds.
    from: u64,
    passed: u32,
}

impl Default for Begin {
    fn default() -> Begin {
        Begin { from: 0, passed: NONE }
    }
}

impl Begin {
    /// A job of the list before which, as far as this is known, all have ended before `from`.
    pub(super) fn first(self, from: u64, head: u32, rows: &Rows) -> u32 {
        if self.passed == NONE || from < self.from { head } else { rows[self.passed].next }
    }

    /// Passes over the jobs that ended before `from`.
    pub(super) fn find(self, from: u64, head: u32, rows: &Rows) -> Begin {
        let mut passed = if from < self.from { NONE } else { self.passed };
        let mut slot = self.first(from, head, rows);
        while slot != NONE && rows[slot].when < from {
            steps::count(1);
            (passed, slot) = (slot, rows[slot].next);
        }
        Begin { from, passed }
    }

    /// A job is about to leave the list, in which `before` stands in front of it.
    pub(super) fn leaves(&mut self, slot: u32, before: u32) {
        if self.passed == slot {
            self.passed = before;
        }
    }
}
