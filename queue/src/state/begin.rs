//! Where a filter's age begins in a list of ended jobs: an act by filter works in steps, and none
//! of them walks through the jobs again that its first one has passed over.

use super::row::NONE;
use super::rows::Rows;
use super::steps;

/// Acts of different ages that take turns without walking again. With one more, each of their steps
/// walks from another's place, or from the head.
const AGES: usize = 2;

/// What the last acts have passed over, the latest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Begin {
    ages: [Age; AGES],
}

/// Jobs of a list up to `passed` ended before `from`. New ones come behind them, and one that
/// leaves takes none with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Age {
    /// By the wall clock, in milliseconds.
    from: u64,
    passed: u32,
}

impl Default for Age {
    fn default() -> Age {
        Age { from: 0, passed: NONE }
    }
}

impl Begin {
    /// A job of the list before which, as far as this is known, all have ended before `from`.
    pub(super) fn first(self, from: u64, head: u32, rows: &Rows) -> u32 {
        match self.passed(from) {
            NONE => head,
            passed => rows[passed].next,
        }
    }

    /// Passes over the jobs that ended before `from`.
    pub(super) fn find(self, from: u64, head: u32, rows: &Rows) -> Begin {
        let (mut passed, mut slot) = (self.passed(from), self.first(from, head, rows));
        while slot != NONE && rows[slot].when < from {
            steps::count(1);
            (passed, slot) = (slot, rows[slot].next);
        }
        let mut ages = self.ages;
        // It takes the place of its own age, or of the one that was used longest ago.
        let place = ages.iter().position(|age| age.from == from).unwrap_or(AGES - 1);
        ages[..=place].rotate_right(1);
        ages[0] = Age { from, passed };
        Begin { ages }
    }

    /// A job is about to leave the list, in which `before` stands in front of it.
    pub(super) fn leaves(&mut self, slot: u32, before: u32) {
        for age in self.ages.iter_mut().filter(|age| age.passed == slot) {
            age.passed = before;
        }
    }

    /// The last job that is known to have ended before `from`, with all in front of it.
    fn passed(self, from: u64) -> u32 {
        let ages = self.ages.iter().filter(|age| age.from <= from && age.passed != NONE);
        ages.max_by_key(|age| age.from).map_or(NONE, |age| age.passed)
    }
}
