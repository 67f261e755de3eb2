//! How long ended jobs stay readable: completed, cancelled and expired ones, and for longer the
//! dead letters.
//!
//! A queue retains its ended jobs in the order in which they ended, for a time and up to a number,
//! and removes the oldest first. A job with its own retention is in a separate list, sorted by
//! removal time, so that it delays no other. When there are too many, the queue's main list shrinks
//! first. Dead letters are in lists by group, each in the order of death; the queue knows the
//! oldest of each group, so the next one to remove is found without a scan.

use std::collections::BTreeSet;

use longshore_protocol::JobChange;

use super::State;
use super::age_cursor::AgeCursors;
use super::held_members::HeldCounts;
use super::row::{NONE, Substate};
use super::rows::{Links, List};
use crate::outcome::Outcomes;

/// A queue's ended jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedJobs {
    /// Jobs with the queue's retention, in the order in which they ended.
    pub(super) list: List,
    /// Jobs with their own retention, in the order in which they ended.
    pub(super) own: List,
    /// The same jobs by removal time (monotonic).
    pub(super) own_removals: BTreeSet<(u64, u32)>,
    /// The oldest of each of its groups of dead letters: its time of death (monotonic), and the
    /// group's number.
    pub(super) oldest_dead: BTreeSet<(u64, u32)>,
    /// Further ones that [batches hold](super::held_members).
    pub(super) held: HeldCounts,
    /// Cursors of acts by age in `list` and `own`. Not in snapshots.
    pub(super) age_cursors: [AgeCursors; 2],
    /// When to scan the queue (monotonic): at or before the removal time of its next job.
    pub(super) cleanup_at: Option<u64>,
}

impl State {
    /// Retains a job that has just ended, or removes it at once if nothing is to be retained; if
    /// there are too many, the oldest is removed.
    pub(super) fn retain_ended(&mut self, slot: u32, out: &mut Outcomes) {
        let row = &self.rows[slot];
        let (queue, own_ms) = (row.queue, self.own_keep_ms(row));
        let keep_ms = own_ms.unwrap_or_else(|| self.queue_keep_ms(queue));
        let removal_at = self.now.mono_ms.saturating_add(keep_ms);
        let most = self.keep_jobs(queue);
        let q = &mut self.queues[queue as usize];
        if own_ms.is_some() {
            q.ended.own.push_back(&mut self.rows, Links::Main, slot);
            q.ended.own_removals.insert((removal_at, slot));
            self.sorted_jobs += 1;
        } else {
            q.ended.list.push_back(&mut self.rows, Links::Main, slot);
        }
        let too_many = q.listed_ended() > most;
        if removal_at == self.now.mono_ms || most == 0 {
            self.retire(slot, out);
            return;
        }
        self.schedule_cleanup(queue, removal_at);
        if too_many && let Some(oldest) = self.oldest_ended(queue) {
            self.retire(oldest, out);
        }
    }

    /// Retains a job that has just died, or removes it at once if dead letters are not retained.
    pub(super) fn retain_dead(&mut self, slot: u32, out: &mut Outcomes) {
        let queue = self.rows[slot].queue;
        match self.keep_dead_ms(queue) {
            0 => self.remove_job(slot, JobChange::Forgotten, out),
            ms => self.schedule_cleanup(queue, self.now.mono_ms.saturating_add(ms)),
        }
    }

    /// Removes an ended job from its list.
    pub(super) fn leave_ended(&mut self, slot: u32) {
        match self.rows[slot].holder() {
            Some(batch) => self.unlink_held(slot, batch),
            None => self.unlink_ended(slot),
        }
        let row = &mut self.rows[slot];
        (row.queue_prev, row.queue_next) = (NONE, NONE);
        if row.substate == Substate::Completed && row.session != NONE {
            self.names.release(row.session);
            row.session = NONE;
        }
    }

    /// Removes an ended job from its queue's lists.
    pub(super) fn unlink_ended(&mut self, slot: u32) {
        let row = &self.rows[slot];
        let (queue, ended_ms) = (row.queue, row.ended_mono_ms());
        let own_ms = self.own_keep_ms(&self.rows[slot]);
        let before = self.rows[slot].prev;
        let ended = &mut self.queues[queue as usize].ended;
        ended.age_cursors.iter_mut().for_each(|cursors| cursors.on_remove(slot, before));
        if let Some(ms) = own_ms {
            ended.own.unlink(&mut self.rows, Links::Main, slot);
            ended.own_removals.remove(&(ended_ms.saturating_add(ms), slot));
            self.sorted_jobs -= 1;
        } else {
            ended.list.unlink(&mut self.rows, Links::Main, slot);
        }
    }

    /// Indexes an ended job of a snapshot by its removal time.
    pub(super) fn index_ended(&mut self, slot: u32) {
        let row = &self.rows[slot];
        if row.holder().is_some() {
            *self.queues[row.queue as usize].ended.held.of_mut(row.substate) += 1;
        } else if let Some(ms) = self.own_keep_ms(row) {
            let removal_at = row.ended_mono_ms().saturating_add(ms);
            self.queues[row.queue as usize].ended.own_removals.insert((removal_at, slot));
            self.sorted_jobs += 1;
        }
    }

    /// Schedules a scan of the queue at that time, or earlier.
    pub(super) fn schedule_cleanup(&mut self, queue: u32, at: u64) {
        let cleanup_at = &mut self.queues[queue as usize].ended.cleanup_at;
        if cleanup_at.is_some_and(|known| known <= at) {
            return;
        }
        if let Some(known) = cleanup_at.replace(at) {
            self.timers.cleanup.remove(&(known, queue));
        }
        self.timers.cleanup.insert((at, queue));
    }

    /// Removes jobs whose retention has ended, in one bounded step; a queue without such a job
    /// counts as one.
    pub(super) fn remove_ended(&mut self, out: &mut Outcomes) {
        let now = self.now.mono_ms;
        let mut left = self.rules.step_jobs as usize;
        while left > 0 {
            let Some(&(at, queue)) = self.timers.cleanup.first().filter(|&&(at, _)| at <= now)
            else {
                break;
            };
            self.timers.cleanup.remove(&(at, queue));
            self.queues[queue as usize].ended.cleanup_at = None;
            let before = left;
            while let Some((removal_at, slot)) = self.next_to_remove(queue) {
                if removal_at > now || left == 0 {
                    self.schedule_cleanup(queue, removal_at);
                    break;
                }
                self.retire(slot, out);
                left -= 1;
            }
            left -= usize::from(left == before);
        }
    }

    /// The next ended job to remove, and its removal time.
    fn next_to_remove(&self, queue: u32) -> Option<(u64, u32)> {
        let q = &self.queues[queue as usize];
        if q.listed_ended() > self.keep_jobs(queue) {
            return self.oldest_ended(queue).map(|slot| (self.now.mono_ms, slot));
        }
        let own = q.ended.own_removals.first().copied();
        let dead = q.ended.oldest_dead.first().and_then(|&(died, kind)| {
            let removal_at = died.saturating_add(self.keep_dead_ms(queue));
            Some((removal_at, self.dead.get(kind)?.list.head))
        });
        let listed = (q.ended.list.head != NONE).then(|| {
            let row = &self.rows[q.ended.list.head];
            (row.ended_mono_ms().saturating_add(self.keep_ms(row)), q.ended.list.head)
        });
        own.into_iter().chain(listed).chain(dead).min()
    }

    /// The ended job to remove when there are too many.
    fn oldest_ended(&self, queue: u32) -> Option<u32> {
        let ended = &self.queues[queue as usize].ended;
        match ended.list.head {
            NONE => ended.own_removals.first().map(|&(_, slot)| slot),
            head => Some(head),
        }
    }
}
