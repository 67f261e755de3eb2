//! Output commit: outcomes wait here until their command is durable.

use std::collections::VecDeque;

use longshore_protocol::{LinkId, Token};

use super::{PendingAnswer, Released};
use crate::Outcomes;
use crate::state::Totals;
use crate::tail::Tail;

/// Outcomes of commands that are not yet durable.
#[derive(Debug, Default)]
pub(super) struct PendingOutcomes {
    /// Unreleased outcomes, in order.
    pub(super) outcomes: Outcomes,
    pub(super) answered: Vec<(LinkId, u64, PendingAnswer)>,
    /// The end of each command's outcomes.
    boundaries: VecDeque<Boundary>,
    /// Counts of everything released before: boundaries count from the start.
    released: OutcomeCounts,
    /// The totals after the last released command.
    pub(super) totals: Totals,
}

/// All outcomes before this boundary belong to commands up to `index`.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    index: u64,
    mono_ms: u64,
    counts: OutcomeCounts,
    totals: Totals,
}

#[derive(Clone, Copy, Debug, Default)]
struct OutcomeCounts {
    assignments: usize,
    replies: usize,
    revoked: usize,
    ended: usize,
    queues_created: usize,
    queues_filled: usize,
    events: usize,
    answered: usize,
}

impl PendingOutcomes {
    /// Assigns the outcomes and answers so far to commands up to `index`, submitted at `mono_ms`.
    pub(super) fn mark_boundary(&mut self, index: u64, mono_ms: u64, totals: Totals) {
        let (waiting, out) = (&self.outcomes, &self.released);
        let counts = OutcomeCounts {
            assignments: out.assignments + waiting.assignments.len(),
            replies: out.replies + waiting.replies.len(),
            revoked: out.revoked + waiting.revoked.len(),
            ended: out.ended + waiting.ended.len(),
            queues_created: out.queues_created + waiting.queues_created.len(),
            queues_filled: out.queues_filled + waiting.queues_filled.len(),
            events: out.events + waiting.events.len(),
            answered: out.answered + self.answered.len(),
        };
        match self.boundaries.back_mut() {
            Some(last) if last.index == index => last.counts = counts,
            _ => self.boundaries.push_back(Boundary { index, mono_ms, counts, totals }),
        }
    }

    /// The oldest index with unreleased outcomes.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.boundaries.front().map(|boundary| boundary.index)
    }

    /// When the oldest command that is not in `committed` was submitted.
    pub(super) fn oldest_beyond(&self, committed: u64) -> Option<u64> {
        let first = self.boundaries.partition_point(|boundary| boundary.index <= committed);
        self.boundaries.get(first).map(|boundary| boundary.mono_ms)
    }

    /// Releases the outcomes of commands up to `committed`: events go to `tail`, tokens of ended
    /// leases to `ended`, the rest to `out`.
    pub(super) fn release(
        &mut self,
        committed: u64,
        out: &mut Released,
        tail: &mut Tail,
        ended: &mut Vec<Token>,
    ) {
        let mut last = None;
        while let Some(boundary) =
            self.boundaries.front().filter(|boundary| boundary.index <= committed)
        {
            last = Some(*boundary);
            self.boundaries.pop_front();
        }
        let Some(Boundary { index, counts, totals, .. }) = last else { return };
        let (waiting, before) = (&mut self.outcomes, &self.released);
        move_first(
            &mut waiting.assignments,
            counts.assignments - before.assignments,
            &mut out.assignments,
        );
        move_first(&mut waiting.replies, counts.replies - before.replies, &mut out.replies);
        move_first(&mut waiting.revoked, counts.revoked - before.revoked, &mut out.revoked);
        move_first(&mut waiting.ended, counts.ended - before.ended, ended);
        move_first(
            &mut waiting.queues_created,
            counts.queues_created - before.queues_created,
            &mut out.queues_created,
        );
        let filled = counts.queues_filled - before.queues_filled;
        move_first(&mut waiting.queues_filled, filled, &mut out.queues_filled);
        tail.extend(waiting.events.drain(..counts.events - before.events), index);
        move_first(&mut self.answered, counts.answered - before.answered, &mut out.answered);
        self.released = counts;
        self.totals = totals;
    }
}

/// Moves the first `n` items; swaps the buffers if that is all of them and `to` is empty.
fn move_first<T>(from: &mut Vec<T>, n: usize, to: &mut Vec<T>) {
    if n == from.len() && to.is_empty() {
        std::mem::swap(from, to);
    } else {
        to.extend(from.drain(..n));
    }
}
