//! Encodes the whole state, and decodes it. Derived data is not written: sets by time, ids, tokens,
//! counters of states, heads. Lists are written as their links, so that the restored state
//! continues exactly like the original.
//!
//! The bytes come in *blocks* of about 256 KiB, so that neither writer nor reader ever has all of
//! them at once. The first block begins with the format's version and the number of entries of each
//! [`Table`]; every other one begins with its table's tag and holds whole entries of that table, in
//! order.

mod check;
mod dispatch;
mod frozen;
mod head;
mod queues;
mod restoring;
mod rows;
mod sessions;

use bytes::Bytes;
use longshore_protocol::{Decode, Encode, FrameWriter, Reader, WireError};

pub use self::frozen::Frozen;
pub use self::restoring::Restoring;
use super::State;
use super::rows::List;
use crate::log::Snapshot;
use crate::outcome::RecordRef;

/// The format's version.
const VERSION: u8 = 12;
/// A block ends with the entry that reaches this length. The longest entry, a session with many
/// mixed answers, has up to 12 MB. In tests a few jobs make several blocks.
pub(super) const BLOCK_BYTES: usize = if cfg!(test) { 64 } else { 256 * 1024 };

/// The tables, in the order of writing. A tag with [`FREE`] holds a table's free numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum Table {
    Start = 0,
    Pauses = 1,
    Queues = 2,
    Groups = 3,
    Links = 4,
    Profiles = 5,
    WorkerNames = 6,
    Sides = 7,
    DeadLetters = 8,
    Sessions = 9,
    Subscriptions = 10,
    Rows = 11,
    Closings = 12,
    Keys = 13,
    Orders = 14,
    Shares = 15,
    Uniques = 16,
    Limits = 17,
    LimitKeys = 18,
    Schedules = 19,
    Templates = 20,
    Edges = 21,
    Nodes = 22,
    Batches = 23,
}

const FREE: u8 = 0x80;

impl Table {
    const ALL: [Table; 24] = [
        Table::Start,
        Table::Pauses,
        Table::Closings,
        Table::Queues,
        Table::Groups,
        Table::Links,
        Table::Profiles,
        Table::WorkerNames,
        Table::Sides,
        Table::DeadLetters,
        Table::Sessions,
        Table::Subscriptions,
        Table::Rows,
        Table::Keys,
        Table::Orders,
        Table::Shares,
        Table::Uniques,
        Table::Limits,
        Table::LimitKeys,
        Table::Schedules,
        Table::Templates,
        Table::Edges,
        Table::Nodes,
        Table::Batches,
    ];
}

/// The number of entries of each table, free ones included.
type Counts = [u64; Table::ALL.len()];

/// Why bytes are not a snapshot. Use an older snapshot and replay from there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Written by a version that this one does not know.
    #[error("snapshot of format {0}; this version reads format {VERSION}")]
    Version(u8),
    /// The bytes are truncated, or a field is out of its range.
    #[error("damaged snapshot: {0}")]
    Damaged(#[from] WireError),
    /// The parts contradict each other.
    #[error("damaged snapshot: {0}")]
    Inconsistent(&'static str),
}

impl State {
    /// The state as bytes: the same commands give the same bytes. All blocks, each after its
    /// length, a fixed `u32`. Copies the whole state: for comparing states, not for writing large
    /// ones.
    pub fn snapshot_bytes(&self) -> Vec<u8> {
        let (mut frozen, mut out, mut block) = (self.clone().freeze(), Vec::new(), Vec::new());
        while frozen.next_block(&mut block) {
            out.extend_from_slice(&(block.len() as u32).to_le_bytes());
            out.append(&mut block);
        }
        out
    }

    /// Decodes those bytes. The state continues exactly like the one that wrote them.
    ///
    /// # Errors
    /// When the bytes are not a snapshot that this version can read. The bytes are assumed intact:
    /// the caller verifies a checksum.
    pub fn restore(bytes: &[u8]) -> Result<State, SnapshotError> {
        let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
        let mut restoring = Restoring::new();
        while !reader.is_empty() {
            let length = reader.u32_fixed()? as usize;
            restoring.block(reader.take(length)?)?;
        }
        restoring.finish()
    }
}

/// The index of a row, session or subscription; `NONE` is written as 0.
pub(super) fn put_index(out: &mut FrameWriter, number: u32) {
    out.u64(u64::from(number.wrapping_add(1)));
}

pub(super) fn index(r: &mut Reader) -> Result<u32, WireError> {
    Ok(r.u32()?.wrapping_sub(1))
}

fn put_optional(out: &mut FrameWriter, at: Option<u64>) {
    at.encode(out);
}

impl Encode for List {
    fn encode(&self, out: &mut FrameWriter) {
        put_index(out, self.head);
        put_index(out, self.tail);
    }
}

impl Decode for List {
    fn decode(r: &mut Reader) -> Result<List, WireError> {
        Ok(List { head: index(r)?, tail: index(r)? })
    }
}

impl Encode for RecordRef {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.index);
        out.u64(u64::from(self.at));
        out.u64(u64::from(self.length));
    }
}

impl Decode for RecordRef {
    fn decode(r: &mut Reader) -> Result<RecordRef, WireError> {
        Ok(RecordRef { index: r.u64()?, at: r.u32()?, length: r.u32()? })
    }
}
