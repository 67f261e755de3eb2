//! When something that can be seen changed last, at and below each path.
//!
//! Only paths with others below them have a number of their own: a change writes one for each path above it. A path without, or one
//! that is not there, goes by the nearest above it that has one, whose number may be of a change elsewhere. So *changed* may be
//! said of a path that did not change, and *unchanged* never of one that did.

use crate::directory::tree::{NodeId, ROOT, Tree};

/// Nodes that share a piece of memory, as a power of two; where none of them has others below it, there is none.
const CHUNK_BITS: u32 = 6;
const CHUNK: usize = 1 << CHUNK_BITS;

/// The numbers.
#[derive(Default, Debug)]
pub(super) struct Trackers {
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
    /// Of the last change that may concern any path: a publisher that was hidden, or has moved; a default, which serves all below it.
    everywhere: u64,
}

impl Trackers {
    /// Something at that node changes, with `revision`. Called while the node is in the tree.
    pub(super) fn change(&mut self, tree: &Tree, node: NodeId, revision: u64) {
        let mut at = Some(tracked(tree, node));
        while let Some(node) = at {
            self.put(node, revision);
            at = tree.above(node);
        }
    }

    /// Something changes that may concern any path.
    pub(super) fn change_everywhere(&mut self, revision: u64) {
        self.everywhere = revision;
    }

    /// Whether something at or below the path, or a default that serves it, may have changed after `revision`.
    pub(super) fn changed_since(&self, tree: &Tree, path: &str, revision: u64) -> bool {
        let changed = self.get(tracked(tree, tree.nearest(path)));
        changed.max(self.everywhere) > revision
    }

    /// Whether something at or below a node that has others below it has come, or gone, after `revision`.
    pub(super) fn moved_since(&self, node: NodeId, revision: u64) -> bool {
        self.get(node) > revision
    }

    fn get(&self, node: NodeId) -> u64 {
        let chunk = self.chunks.get(node as usize >> CHUNK_BITS).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[node as usize % CHUNK])
    }

    fn put(&mut self, node: NodeId, revision: u64) {
        let place = node as usize >> CHUNK_BITS;
        if place >= self.chunks.len() {
            // 8 bytes for 64 nodes: doubling it copies 2 MB at 16 million nodes.
            self.chunks.resize(place + 1, None);
        }
        let chunk = self.chunks[place].get_or_insert_with(|| Box::new([0; CHUNK]));
        chunk[node as usize % CHUNK] = revision;
    }
}

/// The nearest node, at that one or above it, that has a number.
fn tracked(tree: &Tree, node: NodeId) -> NodeId {
    if tree.is_inner(node) { node } else { tree.above(node).unwrap_or(ROOT) }
}
