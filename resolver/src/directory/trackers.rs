//! The revision at which something that can be seen came or went last, at and below each path.
//!
//! Only paths with others below them have a number of their own; a change writes it to each path
//! above the changed one.

use crate::directory::tree::{NodeId, ROOT, Tree};

/// Nodes that share a piece of memory, as a power of two; where none of them has others below it,
/// there is none.
const CHUNK_BITS: u32 = 6;
const CHUNK: usize = 1 << CHUNK_BITS;

/// The numbers.
#[derive(Default, Debug)]
pub(super) struct Trackers {
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
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

    /// Whether something at or below a node that has others below it has come, or gone, after
    /// `revision`.
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
