//! The history of attempts, retained as long as their job.
//!
//! A completed attempt is the job's last: it is derived from the row alone (its worker, and how
//! long it ran), so a job that completes at once has no side row. All others are in the job's side
//! row, the newest 32.

use bytes::Bytes;
use longshore_protocol::limits::{ATTEMPTS_MAX, ERROR_BYTES_MAX, NAME_BYTES_MAX};
use longshore_protocol::messages::work::{AttemptInfo, Span};
use longshore_protocol::{
    AttemptOutcome, Decode, Encode, Fingerprint, FrameWriter, Reader, WireError,
};

use super::State;
use super::row::{NONE, Row, Substate};
use super::transition::SideRow;
use crate::outcome::RecordRef;
use crate::time::Now;

/// An attempt that did not complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Attempt {
    pub(super) number: u16,
    pub(super) outcome: AttemptOutcome,
    /// The worker's name.
    pub(super) worker: u32,
    /// When the job was delivered for it, by the wall clock at its end.
    pub(super) delivered_wall_ms: u64,
    pub(super) ended_wall_ms: u64,
    /// The worker's error, and its fingerprint.
    pub(super) error: Option<(RecordRef, Fingerprint)>,
}

impl State {
    /// Counts a running job's attempt that did not complete. Returns the number of attempts made.
    pub(super) fn consume_attempt(
        &mut self,
        slot: u32,
        outcome: AttemptOutcome,
        error: Option<(RecordRef, Fingerprint)>,
    ) -> u16 {
        let worker = self.worker_of(slot);
        self.names.add_use(worker);
        let row = &mut self.rows[slot];
        row.attempts = row.attempts.saturating_add(1);
        let number = row.attempts;
        let ended_wall_ms = self.now.wall_ms;
        let delivered_wall_ms = row.wall_ms_before(ended_wall_ms, row.running_ms(self.now.mono_ms));
        let most = self.rules.attempts_retained as usize;
        let attempts = &mut self.side_mut(slot).attempts;
        attempts.push(Attempt { number, outcome, worker, delivered_wall_ms, ended_wall_ms, error });
        let more = attempts.len().saturating_sub(most);
        let oldest: Vec<u32> = attempts.drain(..more).map(|attempt| attempt.worker).collect();
        self.side_items = self.side_items + 1 - more as u64;
        oldest.into_iter().for_each(|worker| self.names.release(worker));
        number
    }

    /// The name of the worker that runs the job.
    pub(super) fn worker_of(&self, slot: u32) -> u32 {
        self.sessions.table[self.rows[slot].session].name
    }

    /// Removes a side row, and its uses of names.
    pub(super) fn remove_side(&mut self, number: u32) {
        if let Some(side) = self.sides.remove(number) {
            self.side_items -= side.items();
            side.attempts.iter().for_each(|attempt| self.names.release(attempt.worker));
        }
    }

    /// The job's ended attempts, oldest first, and the locations of their errors.
    pub(super) fn attempts_of(&self, row: &Row) -> (Vec<AttemptInfo>, Vec<Option<RecordRef>>) {
        let stored = self.side(row).map_or(&[][..], |side| &side.attempts);
        let last = self.last_of_completed(row);
        let more = (stored.len() + usize::from(last.is_some())).saturating_sub(ATTEMPTS_MAX);
        let stored = &stored[more..];
        let infos = stored.iter().map(|attempt| AttemptInfo {
            number: attempt.number,
            worker: self.names.text(attempt.worker).to_owned(),
            delivered_at: attempt.delivered_wall_ms,
            ended_at: attempt.ended_wall_ms,
            outcome: attempt.outcome,
            error: None,
            fingerprint: attempt.error.map(|(_, fingerprint)| fingerprint),
        });
        let errors = stored.iter().map(|attempt| attempt.error.map(|(at, _)| at));
        let is_last = last.is_some().then_some(None);
        (infos.chain(last).collect(), errors.chain(is_last).collect())
    }

    fn last_of_completed(&self, row: &Row) -> Option<AttemptInfo> {
        // A batch has none.
        (row.substate == Substate::Completed && row.session != NONE).then(|| AttemptInfo {
            number: row.attempts,
            worker: self.names.text(row.session).to_owned(),
            delivered_at: row.wall_ms_before(row.when, u64::from(row.delivered)),
            ended_at: row.when,
            outcome: AttemptOutcome::Completed,
            error: None,
            fingerprint: None,
        })
    }

    pub(super) fn side(&self, row: &Row) -> Option<&SideRow> {
        if row.side == NONE { None } else { self.sides.get(row.side) }
    }

    /// When a running job was delivered, by that clock.
    pub(super) fn delivered_at(row: &Row, now: Now) -> Option<u64> {
        let is_running = row.substate == Substate::Running;
        is_running.then(|| row.wall_ms_before(now.wall_ms, row.running_ms(now.mono_ms)))
    }
}

impl SideRow {
    /// The newest error that a worker reported.
    pub(super) fn error(&self) -> Option<RecordRef> {
        self.attempts.iter().rev().find_map(|attempt| attempt.error.map(|(at, _)| at))
    }
}

/// The fingerprint of an encoded error in a batch. Allocates nothing.
pub(super) fn fingerprint_of(batch: &Bytes, error: Span) -> Fingerprint {
    let from = error.at as usize;
    let body = batch.slice(from..from + error.length as usize);
    let (mut first, mut second) = (Reader::new(body.clone()), Reader::new(body));
    // The batch was decoded, so both can be read; an unreadable error would count as empty.
    let kind = first.text("error type", NAME_BYTES_MAX).unwrap_or_default();
    let _ = second.text("error type", NAME_BYTES_MAX);
    let message = second.text("error message", ERROR_BYTES_MAX).unwrap_or_default();
    Fingerprint::of_parts(kind, message)
}

impl Encode for Attempt {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.number));
        self.outcome.encode(out);
        out.u64(u64::from(self.worker));
        out.u64(self.delivered_wall_ms);
        out.u64(self.ended_wall_ms);
        out.bool(self.error.is_some());
        if let Some((at, fingerprint)) = &self.error {
            at.encode(out);
            fingerprint.encode(out);
        }
    }
}

impl Decode for Attempt {
    fn decode(r: &mut Reader) -> Result<Attempt, WireError> {
        Ok(Attempt {
            number: r.u16()?,
            outcome: AttemptOutcome::decode(r)?,
            worker: r.u32()?,
            delivered_wall_ms: r.u64()?,
            ended_wall_ms: r.u64()?,
            error: if r.bool()? {
                Some((RecordRef::decode(r)?, Fingerprint::decode(r)?))
            } else {
                None
            },
        })
    }
}
