//! Limits of a queue's jobs, of each queue or shared by several. They are checked when a credit
//! would take the queue's next job. If the job does not fit, the queue is *held back*: its groups
//! know of no jobs in it, so that finding the next job of others does not depend on it. Its jobs
//! stay ready, and cost nothing until there may be room: a lease has ended, a time has come, or the
//! limit has changed.
//!
//! Queues that a shared limit holds back stand in a line. When there is room and some credit waits,
//! the first one leaves the line, and its groups are served; then the next. A queue that comes
//! later waits at its end, even if its job would fit. So each comes to its turn, and a turn costs
//! one attempt to deliver. It passes if no credit of its groups waits then, and one of the line
//! of two limits at once only if both have room at that time: nothing is reserved meanwhile. Where
//! no credit waits at all, the first one keeps its turn, and its groups are notified of its jobs,
//! not those of the queues behind it.

use longshore_protocol::LimitScope;
use longshore_protocol::messages::work::LimitedBy;

use super::rate::Opening;
use crate::outcome::Outcomes;
use crate::state::State;
use crate::state::row::NONE;

/// A limit of a queue's jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::state) struct QueueLimit {
    pub(in crate::state) limit: u32,
    /// The arrival of the queue's own rate; unused if the limit is shared.
    pub(in crate::state) arrival: u64,
}

/// A queue that is held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::state) struct Held {
    pub(in crate::state) limit: u32,
    /// The time of its timer (monotonic).
    pub(in crate::state) until: Option<u64>,
}

impl State {
    /// When the job, its queue's next, fits the queue's limits; and the one that holds it back.
    #[inline(never)]
    fn next_opening(&self, slot: u32) -> (Opening, u32) {
        let (queue, cost, now_ms) = (self.rows[slot].queue, self.cost_of(slot), self.now.mono_ms);
        let q = &self.queues[queue as usize];
        let mut last = (Opening::Now, NONE);
        for own in &q.limits {
            let Some(entry) = self.limits.entries.get(&own.limit) else { continue };
            let opening = if entry.limit.scope == LimitScope::Shared {
                let is_first = entry.line.front().is_none_or(|&first| first == queue);
                if is_first || self.limits.opened == Some((own.limit, queue)) {
                    entry.opening(entry.running, entry.arrival, 0, cost, now_ms)
                } else {
                    Opening::Later
                }
            } else {
                entry.opening(q.running_units(), own.arrival, 0, cost, now_ms)
            };
            if opening > last.0 {
                last = (opening, own.limit);
            }
        }
        last
    }

    /// Whether the queue's next job fits its limits.
    #[inline]
    pub(in crate::state) fn fits_limits(&self, queue: u32, slot: u32) -> bool {
        // This check is all that limits cost a queue without one.
        self.queues[queue as usize].limits.is_empty() || self.next_opening(slot).0 == Opening::Now
    }

    /// Holds the queue back: its next job does not fit.
    pub(in crate::state) fn hold_back(&mut self, queue: u32, slot: u32) {
        let (opening, limit) = self.next_opening(slot);
        self.queues[queue as usize].held = Some(Held { limit, until: None });
        self.set_held_timer(queue, opening);
        if let Some(entry) = self.limits.entries.get_mut(&limit)
            && entry.limit.scope == LimitScope::Shared
        {
            entry.line.push_back(queue);
            self.limits.lines.insert(limit);
        }
    }

    /// The queue is not held back any more. The caller takes it from its line.
    pub(super) fn let_go(&mut self, queue: u32) {
        if let Some(held) = self.queues[queue as usize].held.take()
            && let Some(at) = held.until
        {
            self.limits.queue_timers.remove(&(at, queue));
        }
    }

    fn set_held_timer(&mut self, queue: u32, opening: Opening) {
        let Some(held) = &mut self.queues[queue as usize].held else { return };
        if let Opening::At(at) = opening
            && held.until != Some(at)
        {
            if let Some(before) = held.until.replace(at) {
                self.limits.queue_timers.remove(&(before, queue));
            }
            self.limits.queue_timers.insert((at, queue));
        }
    }

    /// Lets go of a queue that its own limit holds back, if its next job fits now.
    pub(in crate::state) fn reconsider(&mut self, queue: u32) {
        let Some(held) = self.queues[queue as usize].held else { return };
        let entry = self.limits.entries.get(&held.limit);
        if entry.is_some_and(|entry| entry.limit.scope == LimitScope::Shared) {
            return;
        }
        match self.held_opening(queue) {
            Some((opening, limit)) if opening != Opening::Now && limit == held.limit => {
                self.set_held_timer(queue, opening);
            }
            _ => self.let_go(queue),
        }
    }

    /// When the queue's next job fits; none if it delivers none.
    fn held_opening(&self, queue: u32) -> Option<(Opening, u32)> {
        let next = self.next_ready(queue).filter(|_| self.queues[queue as usize].pauses == 0);
        next.map(|(_, slot)| self.next_opening(slot))
    }

    fn first_in_line(&self, limit: u32) -> Option<u32> {
        self.limits.entries.get(&limit)?.line.front().copied()
    }

    /// Whether the first queue of a line leaves it.
    pub(super) fn has_open_line(&self) -> bool {
        let is_open = |&limit: &u32| {
            self.first_in_line(limit).is_some_and(|queue| self.leaves_line(limit, queue))
        };
        self.delivery_budget > 0 && self.limits.lines.iter().any(is_open)
    }

    /// Whether the first queue of the limit's line leaves it. One that delivers nothing, or whose
    /// next job another limit holds back, leaves, so that the others move up.
    fn leaves_line(&self, limit: u32, queue: u32) -> bool {
        match self.held_opening(queue) {
            None => true,
            Some((Opening::Now, _)) => !self.lacks_credit(queue),
            Some((_, by)) => by != limit,
        }
    }

    /// Whether the first queue of a line has room and workers, and only a credit is missing.
    fn lacks_credit(&self, queue: u32) -> bool {
        self.dispatch.credits == 0
            && !self.queues[queue as usize].groups.is_empty()
            && matches!(self.held_opening(queue), Some((Opening::Now, _)))
    }

    /// The first queues of lines that have room, where only a credit is missing.
    pub(in crate::state) fn open_queues(&self) -> Vec<u32> {
        let first = self.limits.lines.iter().filter_map(|&limit| self.first_in_line(limit));
        first.filter(|&queue| self.lacks_credit(queue)).collect()
    }

    /// Lets queues leave the lines of shared limits, one after another, and serves their groups.
    #[inline]
    pub(in crate::state) fn serve_lines(&mut self, out: &mut Outcomes) {
        if !self.limits.lines.is_empty() {
            // A queue that leaves a line may take units of a second limit, for which the first of
            // another line has to wait now, too: that one moves to the second limit's line.
            while self.serve_each_line(out) {}
        }
    }

    /// Serves each line once; returns whether a queue has left one.
    fn serve_each_line(&mut self, out: &mut Outcomes) -> bool {
        let limits: Vec<u32> = self.limits.lines.iter().copied().collect();
        let mut has_left = false;
        for limit in limits {
            has_left |= self.serve_line(limit, out);
        }
        has_left
    }

    fn serve_line(&mut self, limit: u32, out: &mut Outcomes) -> bool {
        let mut has_left = false;
        while self.delivery_budget > 0
            && let Some(queue) = self.first_in_line(limit)
        {
            if !self.leaves_line(limit, queue) {
                if let Some((opening, _)) = self.held_opening(queue) {
                    self.set_held_timer(queue, opening);
                }
                break;
            }
            // The rest of the line continues with the next `Tick`.
            if !self.may_skip() {
                break;
            }
            if let Some(entry) = self.limits.entries.get_mut(&limit) {
                entry.line.pop_front();
                if entry.line.is_empty() {
                    self.limits.lines.remove(&limit);
                }
            }
            self.let_go(queue);
            self.limits.opened = Some((limit, queue));
            self.serve_queue(queue, out);
            self.limits.opened = None;
            has_left = true;
        }
        has_left
    }

    /// The limit that holds the queue back; none if only a credit is missing.
    pub(in crate::state) fn limited_by(&self, queue: u32) -> Option<LimitedBy> {
        let held = self.queues[queue as usize].held?;
        if self.first_in_line(held.limit) == Some(queue) && self.lacks_credit(queue) {
            return None;
        }
        let limit = self.limits.entries.get(&held.limit)?.limit.name.clone();
        Some(LimitedBy { limit, until: held.until.map(|at| self.wall_at(at)) })
    }

    /// The wall clock's time at a monotonic time, by the last command's clocks.
    pub(super) fn wall_at(&self, mono_ms: u64) -> u64 {
        self.now.wall_ms.saturating_add(mono_ms.saturating_sub(self.now.mono_ms))
    }
}
