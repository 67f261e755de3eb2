//! The order in which a group takes jobs from its sources.
//!
//! Each source is a *lane*: the heads of its queues, sorted by priority, then age. A queue that
//! several patterns match is in the first one's lane. With order `Age` all sources are one lane.
//! With `Strict` the first lane that has a job is next. With `Weighted` the lanes that have jobs
//! take turns, job by job, by smooth weighted round robin: each lane gains its weight, and the lane
//! with the highest balance is next and pays the weights of all. So out of `sum of weights` jobs
//! each lane delivers exactly its weight, evenly spread, for as long as all have jobs. A lane
//! without jobs neither gains nor pays, and the balances sum to 0: an empty lane accumulates no
//! claim.

use std::collections::BTreeSet;

use longshore_protocol::Path;
use longshore_protocol::messages::work::{Order, Sources};

use super::ready::Head;

/// The sources of a group, with the heads of their queues.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    order: Order,
    lanes: Vec<Lane>,
}

/// Queues that share one order of priority and age.
#[derive(Clone, Debug)]
struct Lane {
    /// The heads of its queues that have ready jobs.
    heads: BTreeSet<(Head, u32)>,
    weight: i64,
    /// Gains minus payments. Stays within the sum of all weights times the number of lanes.
    balance: i64,
}

/// The source of the next jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NextSource {
    pub(super) lane: u32,
    pub(super) queue: u32,
    /// Further jobs of the queue may follow while they precede this head.
    pub(super) bound: Option<(Head, u32)>,
    /// How many may follow before another lane's turn.
    pub(super) most: u32,
}

impl Lanes {
    pub(super) fn of(sources: &Sources) -> Lanes {
        let lane = |weight: u16| Lane { heads: BTreeSet::new(), weight: weight.into(), balance: 0 };
        let lanes = match sources.order {
            Order::Age => vec![lane(1)],
            _ => sources.patterns.iter().map(|source| lane(source.weight)).collect(),
        };
        Lanes { order: sources.order, lanes }
    }

    /// The lane of a queue with that path; none if it is of no source.
    pub(super) fn lane_of(sources: &Sources, path: &Path) -> Option<u32> {
        let first = sources.source_of(path)?;
        Some(if sources.order == Order::Age { 0 } else { first as u32 })
    }

    /// Replaces a queue's head.
    pub(super) fn change(
        &mut self,
        lane: u32,
        queue: u32,
        known: Option<Head>,
        head: Option<Head>,
    ) {
        let heads = &mut self.lanes[lane as usize].heads;
        if let Some(known) = known {
            heads.remove(&(known, queue));
        }
        if let Some(head) = head {
            heads.insert((head, queue));
        }
    }

    /// The next source; none without jobs.
    pub(super) fn next(&self) -> Option<NextSource> {
        let (lane, most) = match (self.order, &self.lanes[..]) {
            (Order::Weighted, [_, _, ..]) => {
                let mut with_jobs = self.with_jobs();
                let (first, lane) = with_jobs.next()?;
                let mut best = (lane.balance + lane.weight, first);
                let mut most = u32::MAX;
                for (number, lane) in with_jobs {
                    most = 1;
                    let gained = lane.balance + lane.weight;
                    if gained > best.0 {
                        best = (gained, number);
                    }
                }
                (best.1, most)
            }
            _ => (self.with_jobs().next()?.0, u32::MAX),
        };
        let mut heads = self.lanes[lane].heads.iter().copied();
        let (_, queue) = heads.next()?;
        Some(NextSource { lane: lane as u32, queue, bound: heads.next(), most })
    }

    /// Charges for jobs of [`Lanes::next`] that were delivered, at most `most`, with the heads as
    /// before.
    pub(super) fn charge(&mut self, next: &NextSource) {
        if self.order != Order::Weighted || next.most > 1 {
            return;
        }
        let mut all = 0;
        for lane in self.lanes.iter_mut().filter(|lane| !lane.heads.is_empty()) {
            lane.balance += lane.weight;
            all += lane.weight;
        }
        self.lanes[next.lane as usize].balance -= all;
    }

    /// The lanes' balances; all 0 unless the order is by weight.
    pub(super) fn balances(&self) -> impl ExactSizeIterator<Item = i64> {
        self.lanes.iter().map(|lane| lane.balance)
    }

    /// Restores the balances of a snapshot. False if they are impossible for these lanes.
    pub(super) fn restore_balances(&mut self, balances: &[i64]) -> bool {
        for (lane, &balance) in self.lanes.iter_mut().zip(balances) {
            lane.balance = balance;
        }
        balances.len() == self.lanes.len() && self.balances_are_valid()
    }

    /// Balances sum to 0, and each is within its bound.
    pub(super) fn balances_are_valid(&self) -> bool {
        let all: i64 = self.lanes.iter().map(|lane| lane.weight).sum();
        let most = all * self.lanes.len() as i64;
        let in_range = self.balances().all(|balance| (-most..=most).contains(&balance));
        let is_idle = self.order == Order::Weighted || self.balances().all(|balance| balance == 0);
        in_range && is_idle && self.balances().sum::<i64>() == 0
    }

    /// The heads of every lane: for the invariant.
    pub(super) fn heads(&self) -> impl Iterator<Item = &BTreeSet<(Head, u32)>> {
        self.lanes.iter().map(|lane| &lane.heads)
    }

    fn with_jobs(&self) -> impl Iterator<Item = (usize, &Lane)> {
        self.lanes.iter().enumerate().filter(|(_, lane)| !lane.heads.is_empty())
    }
}
