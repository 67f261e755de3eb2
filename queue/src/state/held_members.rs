//! Ended members that their batch holds beyond their retention, because jobs that still run may
//! read their results.
//!
//! A member that its queue would forget goes into the list of the outermost batch around it that
//! has not ended. (A dead batch has not: it may be revived.) Once that batch has ended, or was
//! removed, its list is forgotten, a bounded number with each tick.

use longshore_protocol::limits::BATCH_DEPTH_MAX;
use longshore_protocol::{JobChange, JobState};

use super::State;
use super::batch::Batch;
use super::profile::DEFAULT;
use super::row::{NONE, Row, Substate};
use super::rows::Links;
use super::steps;
use crate::outcome::Outcomes;

/// How many jobs of a queue batches hold, by their states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HeldCounts {
    completed: u64,
    cancelled: u64,
    expired: u64,
}

impl HeldCounts {
    pub(super) fn all(&self) -> u64 {
        self.completed + self.cancelled + self.expired
    }

    pub(super) fn of(&self, state: JobState) -> u64 {
        match state {
            JobState::Completed => self.completed,
            JobState::Cancelled => self.cancelled,
            JobState::Expired => self.expired,
            _ => 0,
        }
    }

    pub(super) fn of_mut(&mut self, substate: Substate) -> &mut u64 {
        match substate {
            Substate::Completed => &mut self.completed,
            Substate::Cancelled => &mut self.cancelled,
            _ => &mut self.expired,
        }
    }
}

impl Row {
    /// The batch that holds this ended job; none of one in the lists of its queue.
    pub(super) fn holder(&self) -> Option<u32> {
        // Monotonic milliseconds are fewer.
        (self.substate.is_retained() && self.queue_prev == NONE).then_some(self.queue_next)
    }
}

impl State {
    /// Forgets an ended job that its queue no longer retains, unless a batch holds it.
    pub(super) fn retire(&mut self, slot: u32, out: &mut Outcomes) {
        let may_be_held =
            self.rows[slot].profile != DEFAULT && self.rows[slot].substate.is_retained();
        match may_be_held.then(|| self.open_batch_around(slot)).flatten() {
            Some(batch) => {
                self.unlink_ended(slot);
                self.hold(slot, batch);
            }
            None => self.remove_job(slot, JobChange::Forgotten, out),
        }
    }

    /// The outermost batch around the job that has not ended.
    fn open_batch_around(&self, slot: u32) -> Option<u32> {
        let (mut next, mut outermost) = (self.enclosing(slot), None);
        for _ in 0..BATCH_DEPTH_MAX {
            let Some(number) = next else { break };
            if self.holds_members(number) {
                outermost = Some(number);
            }
            let job = self.batches.table[number].job;
            next = if job == NONE { None } else { self.enclosing(job) };
        }
        outermost
    }

    fn holds_members(&self, batch: u32) -> bool {
        let job = self.batches.table[batch].job;
        job != NONE && !self.rows[job].substate.is_retained()
    }

    fn hold(&mut self, slot: u32, batch: u32) {
        let row = &mut self.rows[slot];
        (row.queue_prev, row.queue_next) = (NONE, batch);
        *self.queues[row.queue as usize].ended.held.of_mut(row.substate) += 1;
        self.batches.table[batch].held.push_back(&mut self.rows, Links::Main, slot);
    }

    /// Takes the job from the batch that holds it.
    pub(super) fn unlink_held(&mut self, slot: u32, batch: u32) {
        let row = &self.rows[slot];
        *self.queues[row.queue as usize].ended.held.of_mut(row.substate) -= 1;
        let held = &mut self.batches.table[batch].held;
        held.unlink(&mut self.rows, Links::Main, slot);
        if held.is_empty() {
            self.batches.releasing.remove(&batch);
            self.batches.remove_unused(batch);
        }
    }

    /// The batch has ended, or is about to be removed: it holds its members no longer.
    pub(super) fn release_members(&mut self, batch: u32) {
        if !self.batches.table[batch].held.is_empty() {
            self.batches.releasing.insert(batch);
        }
    }

    /// Forgets jobs that are held no longer: at most 10,000; the rest with the next tick.
    pub(super) fn forget_released(&mut self, out: &mut Outcomes) {
        for _ in 0..self.rules.step_jobs {
            let Some(&batch) = self.batches.releasing.first() else { break };
            steps::count(1);
            let slot = self.batches.table[batch].held.head;
            // A batch within one that was dropped may be open.
            match self.open_batch_around(slot) {
                Some(other) => {
                    self.unlink_held(slot, batch);
                    self.hold(slot, other);
                }
                None => self.remove_job(slot, JobChange::Forgotten, out),
            }
        }
    }

    /// Indexes the batches of a snapshot that hold jobs no longer.
    pub(super) fn index_released(&mut self) {
        let is_released = |&(number, batch): &(u32, &Batch)| {
            !batch.held.is_empty() && !self.holds_members(number)
        };
        let released = self.batches.table.iter().filter(is_released);
        self.batches.releasing = released.map(|(number, _)| number).collect();
    }

    /// Each held job is in the list of the batch that holds it: for snapshots and the invariant.
    pub(super) fn check_held(&self) -> Result<(), &'static str> {
        let held = (0..self.rows.allocated()).filter(|&slot| self.rows[slot].holder().is_some());
        let (mut listed, held) = (0, held.count());
        for (number, batch) in self.batches.table.iter() {
            let (mut at, mut before) = (batch.held.head, NONE);
            while at != NONE {
                listed += 1;
                let is_row = at < self.rows.allocated() && listed <= held;
                if !is_row || self.rows[at].holder() != Some(number) || self.rows[at].prev != before
                {
                    return Err("a job that another batch holds");
                }
                (before, at) = (at, self.rows[at].next);
            }
            let is_released = !batch.held.is_empty() && !self.holds_members(number);
            if batch.held.tail != before || self.batches.releasing.contains(&number) != is_released
            {
                return Err("the jobs that a batch holds");
            }
        }
        if listed == held { Ok(()) } else { Err("jobs that no batch holds") }
    }
}
