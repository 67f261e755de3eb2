//! Checkpoints: data of an attempt for later ones, stored in the log and referenced here.
//!
//! A delivery numbers its checkpoints 1, 2, 3 … Only the next number is accepted, so the stored
//! checkpoints have no gap. When there are too many, the oldest are removed. A job without
//! checkpoints costs nothing.

use std::collections::VecDeque;

use longshore_protocol::messages::work::{Checkpoint, CheckpointInfo, Checkpointed, RequestError};
use longshore_protocol::{
    CheckpointOutcome, Decode, Encode, FrameWriter, LinkId, Reader, Token, WireError,
};

use super::State;
use super::row::Row;
use crate::command::Command;
use crate::outcome::{CheckpointView, Outcomes, RecordRef, Reply};
use crate::rules::Rules;

/// The stored checkpoints of one job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Checkpoints {
    /// Oldest first.
    pub(super) list: VecDeque<StoredCheckpoint>,
    /// The last number of the current delivery, or of the last one; 0 before its first.
    pub(super) last: u64,
}

/// A checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoredCheckpoint {
    pub(super) attempt: u16,
    pub(super) sequence: u64,
    /// The time of its arrival (wall).
    pub(super) at_ms: u64,
    pub(super) bytes: RecordRef,
}

impl Checkpoints {
    fn push(&mut self, checkpoint: StoredCheckpoint, rules: &Rules) {
        self.last = checkpoint.sequence;
        self.list.push_back(checkpoint);
        while self.list.len() as u64 > rules.checkpoints
            || self.bytes() as u64 > rules.checkpoints_bytes
        {
            self.list.pop_front();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of all stored checkpoints.
    pub(super) fn bytes(&self) -> usize {
        self.list.iter().map(|checkpoint| checkpoint.bytes.length as usize).sum()
    }

    /// True when each is followed by the next number, or by the first of a later delivery.
    pub(super) fn are_contiguous(&self) -> bool {
        let pairs = self.list.iter().zip(self.list.iter().skip(1));
        let mut follows = pairs.map(|(one, next)| {
            next.sequence == 1 || next.sequence == one.sequence + 1 && next.attempt == one.attempt
        });
        follows.all(|follows| follows)
    }

    fn views(&self) -> Vec<CheckpointView> {
        let view = |checkpoint: &StoredCheckpoint| CheckpointView {
            info: CheckpointInfo {
                attempt: checkpoint.attempt,
                sequence: checkpoint.sequence,
                at: checkpoint.at_ms,
                length: u64::from(checkpoint.bytes.length),
                bytes: None,
            },
            bytes: checkpoint.bytes,
        };
        self.list.iter().map(view).collect()
    }
}

impl State {
    /// Stores a checkpoint of a running job, if the link's session holds its lease and it has the
    /// next number.
    pub(super) fn checkpoint(&mut self, link: LinkId, checkpoint: &Checkpoint, out: &mut Outcomes) {
        let Some(session) = self.session_of(link) else { return };
        let (token, sequence) = (checkpoint.token, checkpoint.sequence);
        let outcome = match self.rows.find_token(token) {
            Some(slot) if self.rows[slot].session == session => {
                self.store_checkpoint(slot, checkpoint)
            }
            _ => {
                self.count_stale(session, token);
                CheckpointOutcome::StaleToken
            }
        };
        let answer = Checkpointed { token, sequence, outcome };
        out.replies.push((link, Reply::Checkpointed(answer)));
    }

    /// The checkpoints of the job that the link's session holds under that lease, oldest first.
    ///
    /// # Errors
    /// [`RequestError::StaleToken`] when it does not hold that lease.
    pub fn checkpoints(
        &self,
        token: Token,
        link: LinkId,
    ) -> Result<Vec<CheckpointView>, RequestError> {
        let slot = self.rows.find_token(token).filter(|_| self.holds(token, link));
        slot.map(|slot| self.checkpoints_of(&self.rows[slot])).ok_or(RequestError::StaleToken)
    }

    pub(super) fn checkpoints_of(&self, row: &Row) -> Vec<CheckpointView> {
        let checkpoints = self.side(row).and_then(|side| side.checkpoints.as_deref());
        checkpoints.map(Checkpoints::views).unwrap_or_default()
    }

    /// A job with a side row is delivered: its checkpoints are numbered from 1 again. Returns how
    /// many there are.
    pub(super) fn restart_checkpoints(&mut self, side: u32) -> u16 {
        match &mut self.sides[side].checkpoints {
            Some(checkpoints) => {
                checkpoints.last = 0;
                checkpoints.list.len() as u16
            }
            None => 0,
        }
    }

    fn store_checkpoint(&mut self, slot: u32, checkpoint: &Checkpoint) -> CheckpointOutcome {
        let known = self.side(&self.rows[slot]).and_then(|side| side.checkpoints.as_deref());
        let last = known.map_or(0, |checkpoints| checkpoints.last);
        if checkpoint.sequence <= last {
            return CheckpointOutcome::Accepted;
        }
        if checkpoint.sequence > last + 1 {
            return CheckpointOutcome::Gap;
        }
        if u64::from(checkpoint.length) > self.rules.checkpoint_bytes {
            return CheckpointOutcome::TooLarge;
        }
        let stored = StoredCheckpoint {
            attempt: self.rows[slot].attempt(),
            sequence: checkpoint.sequence,
            at_ms: self.now.wall_ms,
            bytes: RecordRef {
                index: self.index,
                at: Command::CHECKPOINT_AT + checkpoint.at,
                length: checkpoint.length,
            },
        };
        self.side_mut(slot);
        let side = &mut self.sides[self.rows[slot].side];
        let before = side.items();
        side.checkpoints.get_or_insert_default().push(stored, &self.rules);
        self.side_items = self.side_items + side.items() - before;
        CheckpointOutcome::Accepted
    }
}

impl Encode for Checkpoints {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.last);
        out.u64(self.list.len() as u64);
        for checkpoint in &self.list {
            out.u64(u64::from(checkpoint.attempt));
            out.u64(checkpoint.sequence);
            out.u64(checkpoint.at_ms);
            checkpoint.bytes.encode(out);
        }
    }
}

impl Decode for Checkpoints {
    fn decode(r: &mut Reader) -> Result<Checkpoints, WireError> {
        let last = r.u64()?;
        let mut stored = VecDeque::new();
        for _ in 0..r.count("checkpoints", usize::MAX, 6)? {
            stored.push_back(StoredCheckpoint {
                attempt: r.u16()?,
                sequence: r.u64()?,
                at_ms: r.u64()?,
                bytes: RecordRef::decode(r)?,
            });
        }
        Ok(Checkpoints { list: stored, last })
    }
}
