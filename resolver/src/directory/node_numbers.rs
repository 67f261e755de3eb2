//! A number for some of the nodes, 0 for all others: nodes without one cost next to nothing.

use crate::directory::tree::NodeId;

/// Nodes that share a chunk, as a power of two; a chunk is allocated only if one of them has a
/// number.
const CHUNK_BITS: u32 = 6;
const CHUNK: usize = 1 << CHUNK_BITS;

/// The numbers.
#[derive(Default, Debug)]
pub(super) struct NodeNumbers {
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
}

impl NodeNumbers {
    pub(super) fn get(&self, node: NodeId) -> u64 {
        let chunk = self.chunks.get(node as usize >> CHUNK_BITS).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[node as usize % CHUNK])
    }

    pub(super) fn put(&mut self, node: NodeId, number: u64) {
        let index = node as usize >> CHUNK_BITS;
        if index >= self.chunks.len() {
            // 8 bytes for 64 nodes: doubling the `Vec` copies 2 MB at 16 million nodes.
            self.chunks.resize(index + 1, None);
        }
        let chunk = self.chunks[index].get_or_insert_with(|| Box::new([0; CHUNK]));
        chunk[node as usize % CHUNK] = number;
    }
}
