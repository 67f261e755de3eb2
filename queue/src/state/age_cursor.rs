//! Cursors into lists of ended jobs, by age: an act by filter works in steps, and no step walks
//! again over jobs that an earlier one skipped.

use super::row::NONE;
use super::rows::Rows;
use super::steps;

/// Acts of different ages that may alternate without walking again. With one more, their steps walk
/// from another's cursor, or from the head.
const CURSORS: usize = 2;

/// The cursors of the last acts, most recently used first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct AgeCursors {
    cursors: [AgeCursor; CURSORS],
}

/// All jobs of a list up to `passed` ended before `from`. New jobs are appended, and removals keep
/// the property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AgeCursor {
    /// By the wall clock, in milliseconds.
    from: u64,
    passed: u32,
}

impl Default for AgeCursor {
    fn default() -> AgeCursor {
        AgeCursor { from: 0, passed: NONE }
    }
}

impl AgeCursors {
    /// The first job of the list that is not known to have ended before `from`.
    pub(super) fn start(self, from: u64, head: u32, rows: &Rows) -> u32 {
        match self.passed(from) {
            NONE => head,
            passed => rows[passed].next,
        }
    }

    /// Advances the cursor over the jobs that ended before `from`.
    pub(super) fn advance(self, from: u64, head: u32, rows: &Rows) -> AgeCursors {
        let (mut passed, mut slot) = (self.passed(from), self.start(from, head, rows));
        while slot != NONE && rows[slot].when < from {
            steps::count(1);
            (passed, slot) = (slot, rows[slot].next);
        }
        let mut cursors = self.cursors;
        // It replaces the cursor of its own age, or the least recently used.
        let index = cursors.iter().position(|cursor| cursor.from == from).unwrap_or(CURSORS - 1);
        cursors[..=index].rotate_right(1);
        cursors[0] = AgeCursor { from, passed };
        AgeCursors { cursors }
    }

    /// A job is about to leave the list, behind `before`.
    pub(super) fn on_remove(&mut self, slot: u32, before: u32) {
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.passed == slot) {
            cursor.passed = before;
        }
    }

    /// The last job that is known to have ended before `from`, like all jobs before it.
    fn passed(self, from: u64) -> u32 {
        let cursors =
            self.cursors.iter().filter(|cursor| cursor.from <= from && cursor.passed != NONE);
        cursors.max_by_key(|cursor| cursor.from).map_or(NONE, |cursor| cursor.passed)
    }
}
