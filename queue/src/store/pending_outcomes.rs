//! Output commit: outcomes wait here until the command that brought them about is durable.

use std::collections::VecDeque;

use longshore_protocol::{LinkId, Token};

use super::{Asked, Released};
use crate::Outcomes;
use crate::state::Totals;
use crate::tail::Tail;

/// What is held back.
#[derive(Debug, Default)]
pub(super) struct PendingOutcomes {
    /// What was brought about and not yet released, in order.
    pub(super) outcomes: Outcomes,
    pub(super) answered: Vec<(LinkId, u64, Asked)>,
    /// How far each command reached in them.
    boundaries: VecDeque<Boundary>,
    /// What was released before: marks count from the beginning.
    released: Counts,
    /// Of the last released command.
    pub(super) totals: Totals,
}

/// Everything up to here belongs to commands up to `index`.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    index: u64,
    mono_ms: u64,
    counts: Counts,
    totals: Totals,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    handed: usize,
    replies: usize,
    revoked: usize,
    ended: usize,
    queues_made: usize,
    queues_filled: usize,
    events: usize,
    answered: usize,
}

impl PendingOutcomes {
    /// What `outcomes` and `answered` now hold belongs to commands up to `index`, of that time.
    pub(super) fn mark_boundary(&mut self, index: u64, mono_ms: u64, totals: Totals) {
        let (waiting, out) = (&self.outcomes, &self.released);
        let counts = Counts {
            handed: out.handed + waiting.handed.len(),
            replies: out.replies + waiting.replies.len(),
            revoked: out.revoked + waiting.revoked.len(),
            ended: out.ended + waiting.ended.len(),
            queues_made: out.queues_made + waiting.queues_made.len(),
            queues_filled: out.queues_filled + waiting.queues_filled.len(),
            events: out.events + waiting.events.len(),
            answered: out.answered + self.answered.len(),
        };
        match self.boundaries.back_mut() {
            Some(last) if last.index == index => last.counts = counts,
            _ => self.boundaries.push_back(Boundary { index, mono_ms, counts, totals }),
        }
    }

    /// The oldest index that something is held for.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.boundaries.front().map(|boundary| boundary.index)
    }

    /// When the oldest command that is not in `committed` was submitted.
    pub(super) fn oldest_beyond(&self, committed: u64) -> Option<u64> {
        let first = self.boundaries.partition_point(|boundary| boundary.index <= committed);
        self.boundaries.get(first).map(|boundary| boundary.mono_ms)
    }

    /// Gives out what belongs to commands up to `committed`: to `out`, and to `tail` what happened
    /// to jobs, and the tokens that ended with them.
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
        move_first(&mut waiting.handed, counts.handed - before.handed, &mut out.handed);
        move_first(&mut waiting.replies, counts.replies - before.replies, &mut out.replies);
        move_first(&mut waiting.revoked, counts.revoked - before.revoked, &mut out.revoked);
        move_first(&mut waiting.ended, counts.ended - before.ended, ended);
        move_first(
            &mut waiting.queues_made,
            counts.queues_made - before.queues_made,
            &mut out.queues_made,
        );
        let filled = counts.queues_filled - before.queues_filled;
        move_first(&mut waiting.queues_filled, filled, &mut out.queues_filled);
        tail.extend(waiting.events.drain(..counts.events - before.events), index);
        move_first(&mut self.answered, counts.answered - before.answered, &mut out.answered);
        self.released = counts;
        self.totals = totals;
    }
}

/// Moves the first `n`; all of them, to an empty buffer, by exchanging the two.
fn move_first<T>(from: &mut Vec<T>, n: usize, to: &mut Vec<T>) {
    if n == from.len() && to.is_empty() {
        std::mem::swap(from, to);
    } else {
        to.extend(from.drain(..n));
    }
}
