//! The revision of the last visible change at and below each path.
//!
//! Only paths with others below them have a number of their own; a change writes it to each
//! ancestor of the changed path.

use crate::directory::node_numbers::NodeNumbers;
use crate::directory::tree::{NodeId, ROOT, Tree};

/// The revision of each inner node.
#[derive(Default, Debug)]
pub(super) struct Trackers {
    revisions: NodeNumbers,
}

impl Trackers {
    /// A node changes, with `revision`. Must be called while the node is in the tree.
    pub(super) fn change(&mut self, tree: &Tree, node: NodeId, revision: u64) {
        let mut at = Some(tracked(tree, node));
        while let Some(node) = at {
            self.revisions.put(node, revision);
            at = tree.above(node);
        }
    }

    /// Whether anything at or below an inner node has appeared or disappeared after `revision`.
    pub(super) fn moved_since(&self, node: NodeId, revision: u64) -> bool {
        self.revisions.get(node) > revision
    }
}

/// The node itself if it is inner, else its parent.
fn tracked(tree: &Tree, node: NodeId) -> NodeId {
    if tree.is_inner(node) { node } else { tree.above(node).unwrap_or(ROOT) }
}
