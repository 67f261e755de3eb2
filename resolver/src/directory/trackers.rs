//! The revision of the last visible change at and below each path.
//!
//! Only paths with others below them have a number of their own; a change writes it to each
//! ancestor of the changed path.

use crate::directory::tree::{NodeId, ROOT, Tree};

/// Nodes that share a chunk, as a power of two; a chunk is allocated only if one of them has nodes
/// below it.
const CHUNK_BITS: u32 = 6;
const CHUNK: usize = 1 << CHUNK_BITS;

/// The revision of each inner node.
#[derive(Default, Debug)]
pub(super) struct Trackers {
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
}

impl Trackers {
    /// A node changes, with `revision`. Must be called while the node is in the tree.
    pub(super) fn change(&mut self, tree: &Tree, node: NodeId, revision: u64) {
        let mut at = Some(tracked(tree, node));
        while let Some(node) = at {
            self.put(node, revision);
            at = tree.above(node);
        }
    }

    /// Whether anything at or below an inner node has appeared or disappeared after `revision`.
    pub(super) fn moved_since(&self, node: NodeId, revision: u64) -> bool {
        self.get(node) > revision
    }

    fn get(&self, node: NodeId) -> u64 {
        let chunk = self.chunks.get(node as usize >> CHUNK_BITS).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[node as usize % CHUNK])
    }

    fn put(&mut self, node: NodeId, revision: u64) {
        let index = node as usize >> CHUNK_BITS;
        if index >= self.chunks.len() {
            // 8 bytes for 64 nodes: doubling the `Vec` copies 2 MB at 16 million nodes.
            self.chunks.resize(index + 1, None);
        }
        let chunk = self.chunks[index].get_or_insert_with(|| Box::new([0; CHUNK]));
        chunk[node as usize % CHUNK] = revision;
    }
}

/// The node itself if it is inner, else its parent.
fn tracked(tree: &Tree, node: NodeId) -> NodeId {
    if tree.is_inner(node) { node } else { tree.above(node).unwrap_or(ROOT) }
}
