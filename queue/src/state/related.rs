//! Listings of jobs by what they have to do with others.

use longshore_protocol::ParentEnd;
use longshore_protocol::messages::work::{JobsQuery, Related};

use super::State;
use super::limits::PAGE_ROWS_MAX;
use super::row::{NONE, Substate};
use crate::outcome::JobView;
use crate::time::Now;

/// A relation, with the number of the other job's batch or node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Relation {
    IsBatch,
    MemberOf(u32),
    WaitsFor(u32),
    WaitedFor,
}

impl State {
    /// A relation that jobs may have; none if no job has it.
    pub(super) fn relation(&self, related: Related) -> Option<Relation> {
        Some(match related {
            Related::Batches => Relation::IsBatch,
            Related::MembersOf(batch) => Relation::MemberOf(self.batch_number(&batch)?),
            Related::WaitingFor(job) => {
                let slot = self.rows.find(&job)?;
                Relation::WaitsFor(self.side(&self.rows[slot])?.node?)
            }
            Related::WaitedFor => Relation::WaitedFor,
        })
    }

    /// Whether the job has the relation. Adds to `examined` what that took beside the row.
    pub(super) fn has_relation(&self, slot: u32, relation: Relation, examined: &mut u32) -> bool {
        match relation {
            Relation::IsBatch => self.batch_of(slot).is_some(),
            Relation::MemberOf(batch) => self.enclosing(slot) == Some(batch),
            Relation::WaitsFor(node) => {
                self.rows[slot].substate == Substate::Waiting
                    && self.waits_for(slot, node, examined)
            }
            Relation::WaitedFor => {
                let node = self.side(&self.rows[slot]).and_then(|side| side.node);
                self.rows[slot].substate == Substate::Dead
                    && node.is_some_and(|node| self.graph.is_waited_for(node, ParentEnd::Success))
            }
        }
    }

    /// A page of the dead jobs for whose success others wait. Few jobs have a node, so it examines
    /// nodes instead of rows: 100,000 at most.
    pub(super) fn waited_for(
        &self,
        query: &JobsQuery,
        limit: usize,
        is_within: impl Fn(u32) -> bool,
        now: Now,
    ) -> (Vec<JobView>, Option<u64>) {
        let all = self.graph.nodes.allocated() as u32;
        let start = u32::try_from(query.cursor).unwrap_or(u32::MAX).min(all);
        let end = all.min(start.saturating_add(PAGE_ROWS_MAX));
        let mut page = Vec::new();
        for number in start..end {
            if page.len() >= limit {
                return (page, Some(u64::from(number)));
            }
            let Some(node) = self.graph.nodes.get(number).filter(|node| node.parent != NONE) else {
                continue;
            };
            let row = &self.rows[node.parent];
            if is_within(row.queue)
                && self.has_relation(node.parent, Relation::WaitedFor, &mut 0)
                && self.matches(row, &query.filter)
            {
                page.extend(self.view(node.parent, now));
            }
        }
        (page, (end < all).then_some(u64::from(end)))
    }
}
