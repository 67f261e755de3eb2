//! Output commit: outcomes wait here until the command that brought them about is durable.

use std::collections::VecDeque;

use longshore_protocol::{LinkId, Token};

use super::{Asked, Released};
use crate::Outcomes;
use crate::state::Totals;
use crate::tail::Tail;

/// What is held back.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// What was brought about and not yet released, in order.
    pub(super) outcomes: Outcomes,
    pub(super) answered: Vec<(LinkId, u64, Asked)>,
    /// How far each command reached in them.
    marks: VecDeque<Mark>,
    /// What was released before: marks count from the beginning.
    released: Counts,
    /// Of the last released command.
    pub(super) totals: Totals,
}

/// Everything up to here belongs to commands up to `index`.
#[derive(Clone, Copy, Debug)]
struct Mark {
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

impl Held {
    /// What `outcomes` and `answered` now hold belongs to commands up to `index`, of that time.
    pub(super) fn mark(&mut self, index: u64, mono_ms: u64, totals: Totals) {
        let (held, out) = (&self.outcomes, &self.released);
        let counts = Counts {
            handed: out.handed + held.handed.len(),
            replies: out.replies + held.replies.len(),
            revoked: out.revoked + held.revoked.len(),
            ended: out.ended + held.ended.len(),
            queues_made: out.queues_made + held.queues_made.len(),
            queues_filled: out.queues_filled + held.queues_filled.len(),
            events: out.events + held.events.len(),
            answered: out.answered + self.answered.len(),
        };
        match self.marks.back_mut() {
            Some(last) if last.index == index => last.counts = counts,
            _ => self.marks.push_back(Mark { index, mono_ms, counts, totals }),
        }
    }

    /// The oldest index that something is held for.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.marks.front().map(|mark| mark.index)
    }

    /// When the oldest command that is not in `committed` was submitted.
    pub(super) fn oldest_beyond(&self, committed: u64) -> Option<u64> {
        let first = self.marks.partition_point(|mark| mark.index <= committed);
        self.marks.get(first).map(|mark| mark.mono_ms)
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
        while let Some(mark) = self.marks.front().filter(|mark| mark.index <= committed) {
            last = Some(*mark);
            self.marks.pop_front();
        }
        let Some(Mark { index, counts, totals, .. }) = last else { return };
        let (held, before) = (&mut self.outcomes, &self.released);
        give(&mut held.handed, counts.handed - before.handed, &mut out.handed);
        give(&mut held.replies, counts.replies - before.replies, &mut out.replies);
        give(&mut held.revoked, counts.revoked - before.revoked, &mut out.revoked);
        give(&mut held.ended, counts.ended - before.ended, ended);
        give(&mut held.queues_made, counts.queues_made - before.queues_made, &mut out.queues_made);
        let filled = counts.queues_filled - before.queues_filled;
        give(&mut held.queues_filled, filled, &mut out.queues_filled);
        tail.extend(held.events.drain(..counts.events - before.events), index);
        give(&mut self.answered, counts.answered - before.answered, &mut out.answered);
        self.released = counts;
        self.totals = totals;
    }
}

/// Moves the first `n`; all of them, to an empty buffer, by exchanging the two.
fn give<T>(from: &mut Vec<T>, n: usize, to: &mut Vec<T>) {
    if n == from.len() && to.is_empty() {
        std::mem::swap(from, to);
    } else {
        to.extend(from.drain(..n));
    }
}
