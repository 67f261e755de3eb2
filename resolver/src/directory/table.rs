//! What lies two levels below a path, as a table, a slice at a time: what lies just below it are
//! the rows, the names just below those the columns. As with listings, what is there all the time
//! is told of, once.

use std::collections::BTreeMap;

use longshore_protocol::Path;

use crate::directory::Directory;
use crate::directory::tree::NodeId;
use crate::directory::walks::{Step, Walk};

/// Goes over the cells of a table, row by row.
#[derive(Debug)]
pub(crate) struct Cells {
    of: Path,
    at: At,
    /// The row that was told of last: the walk is in it, or has left it.
    told: Option<NodeId>,
    /// The revisions when the last row, and the last column, were gone into.
    since: [u64; 2],
}

#[derive(Debug)]
enum At {
    Start,
    Going { depth: usize, walk: Walk },
    End,
}

/// Some of a table.
#[derive(Default, Debug)]
pub(crate) struct Told {
    /// Names of rows.
    pub(crate) rows: Vec<String>,
    /// In how many rows each column has been met.
    pub(crate) columns: BTreeMap<String, u64>,
}

impl Cells {
    pub(crate) fn new(of: &Path) -> Cells {
        Cells { of: of.clone(), at: At::Start, told: None, since: [0; 2] }
    }

    /// Adds rows and columns to `out`, in no more than `budget` steps. True when there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &mut Directory,
        budget: usize,
        out: &mut Told,
    ) -> bool {
        if let At::Start = self.at {
            let begun = directory.paths.tree.begin_below(self.of.as_str());
            self.at = match begun {
                Some((depth, walk)) => At::Going { depth, walk },
                None => At::End,
            };
        }
        let At::Going { depth, walk } = &self.at else { return true };
        let Some(mut step) = directory.paths.tree.walks.step(walk) else { return true };
        for _ in 0..budget {
            match look(directory, *depth, step, (&mut self.told, &mut self.since), out) {
                Some(next) => step = next,
                None => {
                    self.at = At::End;
                    return true;
                }
            }
        }
        directory.paths.tree.walks.rest(walk, step);
        false
    }
}

/// Takes one step. None when the walk has come out of what it walks through.
fn look(
    directory: &Directory,
    depth: usize,
    step: Step,
    (told, since): (&mut Option<NodeId>, &mut [u64; 2]),
    out: &mut Told,
) -> Option<Step> {
    let tree = &directory.paths.tree;
    let node = step.node();
    let below = tree.depth(node).checked_sub(depth).filter(|&below| below > 0)?;
    let Step::Enter(_) = step else {
        let is_told = below > 2 || below == 1 && *told == Some(node);
        let again = !is_told && directory.is_to_be_seen(node, since[below - 1]);
        return Some(if again { Step::Enter(node) } else { tree.after(node) });
    };
    if below == 1 {
        *told = None;
    }
    if below <= 2 {
        since[below - 1] = directory.revision;
    }
    if !directory.shows(node) {
        return Some(tree.down(node));
    }
    // The row and the column that it lies at or below, if it lies so deep.
    let above = |levels: usize| (0..levels).fold(node, |at, _| tree.above(at).unwrap_or(at));
    let row = above(below - 1);
    if *told != Some(row) {
        *told = Some(row);
        out.rows.push(tree.segment(row).to_owned());
    }
    if below == 1 {
        return Some(tree.down(node));
    }
    let column = above(below - 2);
    let name = tree.segment(column);
    match out.columns.get_mut(name) {
        Some(rows) => *rows += 1,
        None => {
            out.columns.insert(name.to_owned(), 1);
        }
    }
    Some(tree.after(column))
}
