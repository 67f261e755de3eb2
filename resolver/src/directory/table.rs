//! The two levels below a path as a table, a slice at a time: its children are the rows, the names
//! of their children the columns. As with listings, what is there all the time is reported, once.

use std::collections::BTreeMap;

use longshore_protocol::Path;

use crate::directory::Directory;
use crate::directory::scope::{Scope, Visit};
use crate::directory::tree::NodeId;
use crate::directory::walks::{Step, Walk};

/// Iterates over the cells of a table, row by row.
#[derive(Debug)]
pub(crate) struct Cells {
    of: Path,
    at: TableState,
    /// The row that was reported last: the walk is in it, or has left it.
    reported_row: Option<NodeId>,
    /// The visits to the last row and to the last column.
    visits: [Visit; 2],
}

#[derive(Debug)]
enum TableState {
    Start,
    Going { depth: usize, walk: Walk },
    End,
}

/// A part of a table.
#[derive(Default, Debug)]
pub(crate) struct TablePart {
    /// Names of rows.
    pub(crate) rows: Vec<String>,
    /// The number of rows that have each column.
    pub(crate) columns: BTreeMap<String, u64>,
}

impl Cells {
    pub(crate) fn new(of: &Path) -> Cells {
        Cells { of: of.clone(), at: TableState::Start, reported_row: None, visits: <_>::default() }
    }

    /// Adds the rows and columns that a client sees to `out`, in at most `budget` steps. True when
    /// there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &mut Directory,
        scope: &Scope,
        budget: usize,
        out: &mut TablePart,
    ) -> bool {
        if let TableState::Start = self.at {
            let begun = directory.paths.tree.begin_below(self.of.as_str());
            self.at = match begun {
                Some((depth, walk)) => TableState::Going { depth, walk },
                None => TableState::End,
            };
        }
        let TableState::Going { depth, walk } = &self.at else { return true };
        let Some(mut step) = directory.paths.tree.walks.step(walk) else { return true };
        for _ in 0..scope.paths_in(budget) {
            let state = (&mut self.reported_row, &mut self.visits);
            match advance((directory, scope), *depth, step, state, out) {
                Some(next) => step = next,
                None => {
                    self.at = TableState::End;
                    return true;
                }
            }
        }
        directory.paths.tree.walks.suspend(walk, step);
        false
    }
}

/// Takes one step. `None` at the end of the walk.
fn advance(
    (directory, scope): (&Directory, &Scope),
    depth: usize,
    step: Step,
    (reported_row, visits): (&mut Option<NodeId>, &mut [Visit; 2]),
    out: &mut TablePart,
) -> Option<Step> {
    let tree = &directory.paths.tree;
    let node = step.node();
    let below = tree.depth(node).checked_sub(depth).filter(|&below| below > 0)?;
    let Step::Enter(_) = step else {
        let is_reported = below > 2 || below == 1 && *reported_row == Some(node);
        let again = !is_reported && directory.must_revisit(scope, node, &mut visits[below - 1]);
        return Some(if again { Step::Enter(node) } else { tree.after(node) });
    };
    if below == 1 {
        *reported_row = None;
    }
    if below <= 2 {
        visits[below - 1].since = directory.revision;
    }
    if !directory.is_certainly_visible(scope, node) {
        return Some(directory.down_in(scope, node));
    }
    // The row and the column that the node is at or below, if it is that deep.
    let above = |levels: usize| (0..levels).fold(node, |at, _| tree.above(at).unwrap_or(at));
    let row = above(below - 1);
    if *reported_row != Some(row) {
        *reported_row = Some(row);
        visits[0].end();
        out.rows.push(tree.segment(row).to_owned());
    }
    if below == 1 {
        return Some(tree.down(node));
    }
    let column = above(below - 2);
    visits[1].end();
    let name = tree.segment(column);
    match out.columns.get_mut(name) {
        Some(rows) => *rows += 1,
        None => {
            out.columns.insert(name.to_owned(), 1);
        }
    }
    Some(tree.after(column))
}
