//! A publisher that the tests of credits talk to.

use std::collections::VecDeque;

use super::super::*;

/// A publisher that does as the state does: it hands out while it has jobs and credit, and says
/// once that it waits. What it says and what it delivers travel apart.
#[derive(Clone, Default)]
pub(super) struct Truthful {
    pub(super) jobs: u32,
    pub(super) credits: u32,
    pub(super) untold: bool,
    pub(super) to: VecDeque<Move>,
    pub(super) words: VecDeque<Move>,
    pub(super) deliveries: VecDeque<u32>,
    pub(super) running: u32,
}

impl Truthful {
    pub(super) fn hears(&mut self, one: Move) {
        match one {
            Move::Grant(_, n) => {
                self.credits += n;
                self.untold = false;
            }
            Move::Recall(id, n) => {
                let back = n.min(self.credits);
                self.credits -= back;
                self.untold |= back > 0 && self.credits == 0;
                self.words.push_back(Move::Recall(id, back));
            }
        }
    }

    /// Hands out, and says that it waits.
    pub(super) fn serve(&mut self, id: PublisherId) {
        let handed = self.jobs.min(self.credits);
        if handed > 0 {
            self.jobs -= handed;
            self.credits -= handed;
            self.untold |= self.credits == 0;
            self.deliveries.push_back(handed);
        }
        if self.untold && self.jobs > 0 {
            self.untold = false;
            self.words.push_back(Move::Grant(id, self.jobs));
        }
    }

    /// Takes the next step that there is; false for none.
    pub(super) fn step(
        &mut self,
        id: PublisherId,
        which: u8,
        credits: &mut Credits,
        moves: &mut Vec<Move>,
    ) -> bool {
        for nth in 0..4 {
            match (which % 4 + nth) % 4 {
                0 if !self.to.is_empty() => {
                    while let Some(one) = self.to.pop_front() {
                        self.hears(one);
                        self.serve(id);
                    }
                }
                1 => match self.words.pop_front() {
                    Some(Move::Grant(id, jobs)) => credits.waiting(id, jobs.into(), moves),
                    Some(Move::Recall(id, back)) => credits.returned(id, back, moves),
                    None => continue,
                },
                2 => match self.deliveries.pop_front() {
                    Some(jobs) => {
                        credits.delivered(id, jobs);
                        self.running += jobs;
                    }
                    None => continue,
                },
                3 if self.running > 0 => {
                    let done = self.running.min(1 + u32::from(which));
                    self.running -= done;
                    credits.freed(id, done, moves);
                }
                _ => continue,
            }
            return true;
        }
        false
    }
}
