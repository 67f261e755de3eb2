//! A state at one moment, on its way to the disk.

use super::super::State;
use crate::log::Snapshot;
use crate::outcome::RecordRef;

/// What a state was when it was frozen. The state itself goes on.
#[derive(Debug)]
pub struct Frozen {
    index: u64,
    epoch: u64,
    parts: Vec<RecordRef>,
    bytes: Option<Vec<u8>>,
}

impl State {
    /// The state as it is now, to be written at leisure.
    pub fn freeze(&mut self) -> Frozen {
        let mut parts = Vec::new();
        for slot in 0..self.rows.made() {
            parts.push(self.rows[slot].entry);
        }
        for (_, side) in self.sides.iter() {
            parts.extend(side.attempts.iter().filter_map(|attempt| Some(attempt.error?.0)));
            parts.extend(side.result);
            let kept = side.checkpoints.iter().flat_map(|checkpoints| &checkpoints.kept);
            parts.extend(kept.map(|checkpoint| checkpoint.bytes));
        }
        parts.retain(|part| part.index > 0);
        let epoch = self.start.as_ref().map_or(0, |start| start.epoch.0);
        Frozen { index: self.index, epoch, parts, bytes: Some(self.snapshot_bytes()) }
    }
}

impl Snapshot for Frozen {
    fn index(&self) -> u64 {
        self.index
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn parts(&self, each: &mut dyn FnMut(RecordRef)) {
        self.parts.iter().for_each(|&part| each(part));
    }

    fn next_block(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(bytes) = self.bytes.take() else { return false };
        out.extend_from_slice(&bytes);
        true
    }
}
