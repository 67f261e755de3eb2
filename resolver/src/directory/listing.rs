//! The children of a path, a slice at a time. What comes or goes between two slices may be in the
//! listing or not; what is there all the time is in it, once.

use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::{Path, PublicationKind};

use crate::directory::Directory;
use crate::directory::registrations::Registration;
use crate::directory::scope::{Scope, Visit};
use crate::directory::tree::{NodeId, Tree};
use crate::directory::walks::{Step, Walk};

/// Iterates over the children of one path.
///
/// A child without publishers is listed if anything below it is visible. While hidden publishers
/// are being swept that has to be searched for, which may take several slices.
#[derive(Debug)]
pub(crate) struct Children {
    below: Path,
    at: ListingState,
}

#[derive(Debug)]
enum ListingState {
    Start,
    Going {
        depth: usize,
        walk: Walk,
        /// The visit to the last child.
        visit: Visit,
    },
    End,
}

impl Children {
    pub(crate) fn new(below: &Path) -> Children {
        Children { below: below.clone(), at: ListingState::Start }
    }

    /// Adds the children that a client sees to `out`, in at most `budget` steps. True when there
    /// are no more.
    pub(crate) fn take(
        &mut self,
        directory: &mut Directory,
        scope: &Scope,
        budget: usize,
        out: &mut Vec<PathListed>,
    ) -> bool {
        if let ListingState::Start = self.at {
            let begun = directory.paths.tree.begin_below(self.below.as_str());
            self.at = match begun {
                Some((depth, walk)) => ListingState::Going { depth, walk, visit: Visit::default() },
                None => ListingState::End,
            };
        }
        let ListingState::Going { depth, walk, visit } = &mut self.at else { return true };
        let Some(mut step) = directory.paths.tree.walks.step(walk) else { return true };
        let mut text = self.below.as_str().to_owned();
        let (depth, text) = (*depth, &mut text);
        let mut children = ChildSlice { directory, scope, depth, visit, text, out };
        for _ in 0..scope.paths_in(budget) {
            match children.advance(step) {
                Some(next) => step = next,
                None => {
                    self.at = ListingState::End;
                    return true;
                }
            }
        }
        directory.paths.tree.walks.suspend(walk, step);
        false
    }
}

/// The children of a path at `depth`, during one slice.
struct ChildSlice<'a> {
    directory: &'a Directory,
    scope: &'a Scope,
    depth: usize,
    visit: &'a mut Visit,
    /// The path, with the name of a child appended temporarily.
    text: &'a mut String,
    out: &'a mut Vec<PathListed>,
}

impl ChildSlice<'_> {
    /// Takes one step. `None` at the end of the walk.
    fn advance(&mut self, step: Step) -> Option<Step> {
        let tree = &self.directory.paths.tree;
        let node = step.node();
        let below = tree.depth(node).checked_sub(self.depth).filter(|&below| below > 0)?;
        let Step::Enter(_) = step else {
            let again = below == 1 && self.directory.must_revisit(self.scope, node, self.visit);
            return Some(if again { Step::Enter(node) } else { tree.after(node) });
        };
        if below == 1 {
            self.visit.since = self.directory.revision;
        }
        if self.directory.is_certainly_visible(self.scope, node) {
            // Something visible: so the child at or above it is listed, and done.
            let child = (1..below).fold(node, |at, _| tree.above(at).unwrap_or(at));
            self.list(tree, child);
            self.visit.end();
            return Some(tree.after(child));
        }
        Some(self.directory.down_in(self.scope, node))
    }

    fn list(&mut self, tree: &Tree, child: NodeId) {
        let length = self.text.len();
        if !self.text.ends_with('/') {
            self.text.push('/');
        }
        self.text.push_str(tree.segment(child));
        if let Ok(path) = Path::new(self.text) {
            self.out.push(self.directory.visible_in(self.scope, child).listed(path));
        }
        self.text.truncate(length);
    }
}

/// The visible state of a path.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Visible {
    queue: bool,
    value: bool,
    default: bool,
}

impl Visible {
    pub(super) fn any(self) -> bool {
        self.queue || self.value || self.default
    }

    pub(super) fn listed(self, path: Path) -> PathListed {
        PathListed { path, queue: self.queue, value: self.value, default: self.default }
    }
}

impl Directory {
    /// The visible state of a node.
    pub(super) fn visible_at(&self, node: NodeId) -> Visible {
        let mut seen = Visible::default();
        if !self.paths.tree.is_registered(node) {
            return seen;
        }
        let members = |default| {
            let members = self.paths.members(Registration { node, default }).iter();
            members.filter(|member| !self.publishers[member.slot].is_hidden())
        };
        for member in members(false) {
            match self.paths.sets.terms_table.get(member.terms).kind {
                PublicationKind::Queue => seen.queue = true,
                PublicationKind::Value => seen.value = true,
            }
            if seen.queue && seen.value {
                break;
            }
        }
        seen.default = members(true).next().is_some();
        seen
    }
}
