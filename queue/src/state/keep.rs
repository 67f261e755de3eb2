//! How long ended jobs stay readable: completed, cancelled and expired ones, and for longer the
//! dead letters.
//!
//! A queue keeps its ended jobs in the order in which they ended, for a time and up to a number:
//! the oldest goes first. A job that says itself for how long is kept stands apart, by the time at
//! which it goes, so that it holds up no other. When there are too many, the queue's list goes
//! first. Dead letters stand in lists by kind, each in the order of death; the queue knows the
//! oldest of each kind, so the next one to go is found without a walk.

use std::collections::BTreeSet;

use longshore_protocol::JobChange;

use super::State;
use super::begin::Begin;
use super::row::{NONE, Place};
use super::rows::{Links, List};
use crate::outcome::Outcomes;

/// A queue's ended jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Those that are kept as the queue has it, in the order in which they ended.
    pub(super) list: List,
    /// Those that say themselves for how long, in the order in which they ended.
    pub(super) own: List,
    /// The same, by when they go (monotonic).
    pub(super) own_goes: BTreeSet<(u64, u32)>,
    /// The oldest of each of its kinds of dead letters: when it died (monotonic), and the kind's
    /// number.
    pub(super) oldest_dead: BTreeSet<(u64, u32)>,
    /// Where an act by age has found it to begin in `list` and in `own`, for its next step. Not in
    /// snapshots.
    pub(super) begins: [Begin; 2],
    /// When the queue is to be looked at (monotonic): at or before the time when its next job goes.
    pub(super) collect_at: Option<u64>,
}

impl State {
    /// Keeps a job that has just ended, or forgets it at once if nothing is to be kept; one that is
    /// too many pushes out the oldest.
    pub(super) fn keep(&mut self, slot: u32, out: &mut Outcomes) {
        let row = &self.rows[slot];
        let (queue, own_ms) = (row.queue, self.own_keep_ms(row));
        let keep_ms = own_ms.unwrap_or_else(|| self.queue_keep_ms(queue));
        let goes_at = self.now.mono_ms.saturating_add(keep_ms);
        let most = self.keep_jobs(queue);
        let q = &mut self.queues[queue as usize];
        if own_ms.is_some() {
            q.kept.own.push_back(&mut self.rows, Links::Main, slot);
            q.kept.own_goes.insert((goes_at, slot));
        } else {
            q.kept.list.push_back(&mut self.rows, Links::Main, slot);
        }
        let too_many = q.ended_jobs() > most;
        if goes_at == self.now.mono_ms || most == 0 {
            self.forget_job(slot, JobChange::Forgotten, out);
            return;
        }
        self.collect_by(queue, goes_at);
        if too_many && let Some(oldest) = self.oldest_kept(queue) {
            self.forget_job(oldest, JobChange::Forgotten, out);
        }
    }

    /// Keeps a job that has just died, or forgets it at once if no dead letter is to be kept.
    pub(super) fn keep_dead(&mut self, slot: u32, out: &mut Outcomes) {
        let queue = self.rows[slot].queue;
        match self.keep_dead_ms(queue) {
            0 => self.forget_job(slot, JobChange::Forgotten, out),
            ms => self.collect_by(queue, self.now.mono_ms.saturating_add(ms)),
        }
    }

    /// An ended job leaves its queue's lists.
    pub(super) fn unkeep(&mut self, slot: u32) {
        let row = &mut self.rows[slot];
        let (queue, ended) = (row.queue, row.ended_mono_ms());
        (row.queue_prev, row.queue_next) = (NONE, NONE);
        if row.place == Place::Completed {
            self.names.give_back(row.session);
            row.session = NONE;
        }
        let own_ms = self.own_keep_ms(&self.rows[slot]);
        let before = self.rows[slot].prev;
        let kept = &mut self.queues[queue as usize].kept;
        kept.begins.iter_mut().for_each(|begin| begin.leaves(slot, before));
        if let Some(ms) = own_ms {
            kept.own.unlink(&mut self.rows, Links::Main, slot);
            kept.own_goes.remove(&(ended.saturating_add(ms), slot));
        } else {
            kept.list.unlink(&mut self.rows, Links::Main, slot);
        }
    }

    /// Puts an ended job where it goes by time, of those that a snapshot has in a list.
    pub(super) fn index_kept(&mut self, slot: u32) {
        let row = &self.rows[slot];
        if let Some(ms) = self.own_keep_ms(row) {
            let goes_at = row.ended_mono_ms().saturating_add(ms);
            self.queues[row.queue as usize].kept.own_goes.insert((goes_at, slot));
        }
    }

    /// The queue is to be looked at by then.
    pub(super) fn collect_by(&mut self, queue: u32, at: u64) {
        let collect_at = &mut self.queues[queue as usize].kept.collect_at;
        if collect_at.is_some_and(|known| known <= at) {
            return;
        }
        if let Some(known) = collect_at.replace(at) {
            self.due.collect.remove(&(known, queue));
        }
        self.due.collect.insert((at, queue));
    }

    /// Forgets what has been kept for long enough, in one bounded step; a queue without such a job
    /// counts as one.
    pub(super) fn forget_ended(&mut self, out: &mut Outcomes) {
        let now = self.now.mono_ms;
        let mut left = self.rules.step_jobs as usize;
        while left > 0 {
            let Some(&(at, queue)) = self.due.collect.first().filter(|&&(at, _)| at <= now) else {
                break;
            };
            self.due.collect.remove(&(at, queue));
            self.queues[queue as usize].kept.collect_at = None;
            let before = left;
            while let Some((goes_at, slot)) = self.next_to_go(queue) {
                if goes_at > now || left == 0 {
                    self.collect_by(queue, goes_at);
                    break;
                }
                self.forget_job(slot, JobChange::Forgotten, out);
                left -= 1;
            }
            left -= usize::from(left == before);
        }
    }

    /// The ended job that goes next, and when.
    fn next_to_go(&self, queue: u32) -> Option<(u64, u32)> {
        let q = &self.queues[queue as usize];
        if q.ended_jobs() > self.keep_jobs(queue) {
            return self.oldest_kept(queue).map(|slot| (self.now.mono_ms, slot));
        }
        let own = q.kept.own_goes.first().copied();
        let dead = q.kept.oldest_dead.first().and_then(|&(died, kind)| {
            let goes_at = died.saturating_add(self.keep_dead_ms(queue));
            Some((goes_at, self.dead.get(kind)?.list.head))
        });
        let listed = (q.kept.list.head != NONE).then(|| {
            let row = &self.rows[q.kept.list.head];
            (row.ended_mono_ms().saturating_add(self.keep_ms(row)), q.kept.list.head)
        });
        own.into_iter().chain(listed).chain(dead).min()
    }

    /// The ended job that makes room for another.
    fn oldest_kept(&self, queue: u32) -> Option<u32> {
        let kept = &self.queues[queue as usize].kept;
        match kept.list.head {
            NONE => kept.own_goes.first().map(|&(_, slot)| slot),
            head => Some(head),
        }
    }
}
