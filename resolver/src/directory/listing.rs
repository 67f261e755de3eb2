//! What lies just below a path, a slice at a time. What comes or goes between two slices may be in
//! the listing or not; what is there all the time is in it, once.

use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::{Path, PublicationKind};

use crate::directory::Directory;
use crate::directory::holdings::Held;
use crate::directory::tree::{NodeId, Tree};
use crate::directory::walks::{Step, Walk};

/// Goes over what lies just below one path.
///
/// A child that nobody holds is listed if anything below it can be seen. While hidden publishers
/// are being swept that has to be looked for, and the looking may take several slices.
#[derive(Debug)]
pub(crate) struct Children {
    below: Path,
    at: At,
}

#[derive(Debug)]
enum At {
    Start,
    Going {
        depth: usize,
        walk: Walk,
        /// The revision when the last child was gone into.
        since: u64,
    },
    End,
}

impl Children {
    pub(crate) fn new(below: &Path) -> Children {
        Children { below: below.clone(), at: At::Start }
    }

    /// Adds children to `out`, in no more than `budget` steps. True when there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &mut Directory,
        budget: usize,
        out: &mut Vec<PathListed>,
    ) -> bool {
        if let At::Start = self.at {
            let begun = directory.paths.tree.begin_below(self.below.as_str());
            self.at = match begun {
                Some((depth, walk)) => At::Going { depth, walk, since: 0 },
                None => At::End,
            };
        }
        let At::Going { depth, walk, since } = &mut self.at else { return true };
        let Some(mut step) = directory.paths.tree.walks.step(walk) else { return true };
        let mut text = self.below.as_str().to_owned();
        let mut children = Row { directory, depth: *depth, since, text: &mut text, out };
        for _ in 0..budget {
            match children.look(step) {
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

/// The children of a path at that depth, for the length of a slice.
struct Row<'a> {
    directory: &'a Directory,
    depth: usize,
    since: &'a mut u64,
    /// The path, with the name of a child after it for a moment.
    text: &'a mut String,
    out: &'a mut Vec<PathListed>,
}

impl Row<'_> {
    /// Takes one step. None when the walk has come out of what it walks through.
    fn look(&mut self, step: Step) -> Option<Step> {
        let tree = &self.directory.paths.tree;
        let node = step.node();
        let below = tree.depth(node).checked_sub(self.depth).filter(|&below| below > 0)?;
        let Step::Enter(_) = step else {
            let again = below == 1 && self.directory.is_to_be_seen(node, *self.since);
            return Some(if again { Step::Enter(node) } else { tree.after(node) });
        };
        if below == 1 {
            *self.since = self.directory.revision;
        }
        if self.directory.shows(node) {
            // Something that can be seen: so the child that it lies at or below is listed, and is
            // done.
            let child = (1..below).fold(node, |at, _| tree.above(at).unwrap_or(at));
            self.list(tree, child);
            return Some(tree.after(child));
        }
        Some(tree.down(node))
    }

    fn list(&mut self, tree: &Tree, child: NodeId) {
        let length = self.text.len();
        if !self.text.ends_with('/') {
            self.text.push('/');
        }
        self.text.push_str(tree.segment(child));
        if let Ok(path) = Path::new(self.text) {
            self.out.push(self.directory.seen_at(child).listed(path));
        }
        self.text.truncate(length);
    }
}

/// What can be seen at a path.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    queue: bool,
    value: bool,
    default: bool,
}

impl Seen {
    pub(super) fn any(self) -> bool {
        self.queue || self.value || self.default
    }

    pub(super) fn listed(self, path: Path) -> PathListed {
        PathListed { path, queue: self.queue, value: self.value, default: self.default }
    }
}

impl Directory {
    /// What of that which is held at a node can be seen.
    pub(super) fn seen_at(&self, node: NodeId) -> Seen {
        let mut seen = Seen::default();
        if !self.paths.tree.is_held(node) {
            return seen;
        }
        let members = |default| {
            let members = self.paths.members(Held { node, default }).iter();
            members.filter(|member| !self.living[member.slot].hidden)
        };
        for member in members(false) {
            match self.paths.sets.terms_kept.get(member.terms).kind {
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

    /// Whether a node, gone into at `since` and through without finding anything, has to be looked
    /// at again: what can be seen there may have come behind the walk's back, while what could be
    /// seen before has gone.
    pub(super) fn is_to_be_seen(&self, node: NodeId, since: u64) -> bool {
        if self.paths.tree.is_inner(node) {
            self.trackers.moved_since(node, since)
        } else {
            self.seen_at(node).any()
        }
    }

    /// Whether it is plain at the node itself that there is something to be seen at or below it:
    /// where nothing is hidden, whatever has something below it shows.
    pub(super) fn shows(&self, node: NodeId) -> bool {
        let nothing_hidden = self.living.grave().is_none();
        nothing_hidden && self.paths.tree.is_inner(node) || self.seen_at(node).any()
    }
}
