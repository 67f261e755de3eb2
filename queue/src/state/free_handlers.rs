//! Free handlers: some jobs are delivered only where one of the worker's handlers is free. A job
//! with an order key, or to which a limit applies, is such a job: prefetched, it would wait behind
//! others at one worker, and all of its key or limit behind it, while handlers of other workers are
//! idle.
//!
//! A session has a free handler while it has fewer leases than its worker has handlers. If the next
//! job of a group needs one, and the subscription whose turn it is has none, that subscription is
//! *parked*: it leaves the turns of its group until a handler of its session is free, and keeps its
//! credit. While a session has parked subscriptions, none of its others gets jobs beyond its
//! handlers either: else they would take every handler that becomes free. Parked subscriptions of a
//! session take turns. Each step takes constant time, however many jobs and workers wait.

use super::State;
use super::row::NONE;
use crate::outcome::Outcomes;

impl State {
    /// The job may be delivered only where a handler is free.
    #[inline]
    fn needs_free_handler(&self, slot: u32) -> bool {
        self.order_key_of(slot) != NONE || self.is_limited(slot)
    }

    /// The job waits until a handler of the subscription's session is free.
    #[inline]
    pub(super) fn waits_for_handler(&self, slot: u32, subscription: u32) -> bool {
        let session = &self.sessions.table[self.dispatch.subscriptions[subscription].session];
        session.lease_count >= session.handlers
            && (!session.parked.is_empty() || self.needs_free_handler(slot))
    }

    /// Parks a subscription with credit that has left its group's turns.
    pub(super) fn park(&mut self, subscription: u32) {
        let s = &mut self.dispatch.subscriptions[subscription];
        s.is_parked = true;
        self.sessions.table[s.session].parked.push_back(subscription);
    }

    /// A subscription that has no credit left is parked no longer.
    pub(super) fn forget_parked(&mut self, subscription: u32) {
        let s = &mut self.dispatch.subscriptions[subscription];
        s.is_parked = false;
        self.sessions.table[s.session].parked.retain(|&parked| parked != subscription);
    }

    /// A lease of the session has ended, or it has other handlers.
    #[inline]
    pub(super) fn free_handler(&mut self, session: u32) {
        if !self.sessions.table[session].parked.is_empty() {
            self.dispatch.freed.push(session);
        }
    }

    /// Delivers jobs to the parked subscriptions of sessions with free handlers.
    #[inline]
    pub(super) fn serve_parked(&mut self, out: &mut Outcomes) {
        if !self.dispatch.freed.is_empty() {
            self.serve_some_parked(out);
        }
    }

    #[inline(never)]
    fn serve_some_parked(&mut self, out: &mut Outcomes) {
        let mut freed = std::mem::take(&mut self.dispatch.freed);
        for session in freed.drain(..) {
            while let Some(group) = self.unpark_next(session) {
                self.queue_group(group);
                self.serve(group, out);
            }
        }
        // The list keeps its memory for the next command.
        self.dispatch.freed = freed;
    }

    /// Gives the session's first parked subscription a turn in its group, if a handler is free.
    fn unpark_next(&mut self, session: u32) -> Option<u32> {
        let session = &mut self.sessions.table[session];
        if session.lease_count >= session.handlers {
            return None;
        }
        let subscription = session.parked.pop_front()?;
        let s = &mut self.dispatch.subscriptions[subscription];
        s.is_parked = false;
        let group = s.group;
        let turns = &mut self.dispatch.groups[group].waiting;
        turns.push_back(&mut self.dispatch.subscriptions, subscription);
        Some(group)
    }
}
