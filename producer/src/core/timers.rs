//! Timers: deadlines, timeouts, and the sweep of idle state.

use std::collections::BTreeSet;
use std::sync::Arc;

use longshore_protocol::PublisherId;

use super::Core;
use super::batch::{Batch, OpenBatch};
use super::ids::{RouteId, Time};
use super::limits::{
    ANSWER_TIME_PER_BYTE, LINK_IDLE, STOPPING_RETRY, SWEEP_INTERVAL, UNANSWERED_BATCHES_MAX,
};
use super::peer::{LinkState, is_up};
use crate::outcome::EnqueueError;

impl<T: Default + Clone> Core<T> {
    /// Handles everything due at `now`.
    pub(crate) fn tick(&mut self, now: Time) {
        if self.deadline_floor.is_some_and(|floor| floor <= now) {
            self.expire(now);
        }
        if self.sweep_at <= now {
            self.sweep(now);
        }
        self.send_unsent(now);
        while self.seal_partial(now) {
            self.send_unsent(now);
        }
        self.dial(now);
        self.start_resolve(now);
    }

    /// When to call [`Core::tick`], if nothing happens before.
    pub(crate) fn next_deadline(&self) -> Time {
        let mut next = self.sweep_at;
        if let Some(floor) = self.deadline_floor {
            next = next.min(floor);
        }
        let has_accepting_peer = self.has_accepting_peer();
        let streams = self.streams.iter().filter(|_| has_accepting_peer);
        for (id, stream) in streams {
            for (route, open) in &stream.open {
                if self.has_taker(*route, stream, *id) {
                    next = next.min(open.opened_at + stream.limits.linger);
                }
            }
        }
        for (id, peer) in &self.peers {
            if let LinkState::Down { retry_at } = peer.link
                && retry_at < next
                && self.is_useful(*id)
            {
                next = retry_at;
            }
        }
        if let Some(retry_at) = self.routing.next_retry() {
            next = next.min(retry_at);
        }
        next
    }

    pub(super) fn deadline_of(&self, open: &OpenBatch<T>) -> Time {
        let bytes = u32::try_from(open.bytes).unwrap_or(u32::MAX);
        open.opened_at + self.answer_timeout + ANSWER_TIME_PER_BYTE * bytes
    }

    /// Finishes batches that have timed out.
    pub(super) fn expire(&mut self, now: Time) {
        let mut overdue = Vec::new();
        for stream in self.streams.keys().copied().collect::<Vec<_>>() {
            let late: Vec<RouteId> = (self.streams[&stream].open.iter())
                .filter(|(_, open)| self.deadline_of(open) <= now)
                .map(|(route, _)| *route)
                .collect();
            late.into_iter().for_each(|route| self.seal_open(stream, route));
        }
        // A growing batch only postpones its deadline.
        let open = self.streams.values().flat_map(|stream| stream.open.values());
        let mut floor: Option<Time> = open.map(|open| self.deadline_of(open)).min();
        let mut in_time = |batch: &Batch<T>| {
            let is_in_time = batch.deadline > now;
            if is_in_time {
                floor = Some(floor.map_or(batch.deadline, |floor| floor.min(batch.deadline)));
            }
            is_in_time
        };
        for route in self.routing.routes.values_mut() {
            let (stay, late) =
                std::mem::take(&mut route.unsent).into_iter().partition(&mut in_time);
            route.unsent = stay;
            overdue.extend(late.into_iter().map(|batch: Batch<T>| (batch, None)));
        }
        for (id, peer) in &mut self.peers {
            if peer.unanswered.iter().all(|in_flight| in_time(&in_flight.batch)) {
                continue;
            }
            for in_flight in std::mem::take(&mut peer.unanswered) {
                if in_time(&in_flight.batch) {
                    peer.unanswered.push_back(in_flight);
                } else {
                    peer.unanswered_bytes -= in_flight.batch.bytes;
                    overdue.push((in_flight.batch, Some(*id)));
                }
            }
        }
        self.deadline_floor = floor;
        overdue.sort_by_key(|(batch, _)| batch.serial);
        for (batch, at) in overdue {
            let waited = now - batch.opened_at;
            match at.or(batch.may_be_at) {
                Some(publisher) => {
                    let why = self.why_unanswered(publisher, waited);
                    self.end_unknown(batch, publisher, why);
                }
                None => {
                    let why = self.why_unsent(batch.route);
                    let error = match batch.is_home {
                        true => EnqueueError::HomeAway { waited, why },
                        false => EnqueueError::NotSent { waited, why },
                    };
                    self.fail(batch, error);
                }
            }
        }
    }

    pub(super) fn why_unanswered(&self, publisher: PublisherId, waited: Time) -> Arc<str> {
        match self.peers.get(&publisher).and_then(|peer| peer.reason.as_ref()) {
            Some(reason) => format!("no answer within {waited:?}; its link is down: {reason}"),
            None => format!("no answer within {waited:?}, although its link is up"),
        }
        .into()
    }

    pub(super) fn why_unsent(&self, route: RouteId) -> Arc<str> {
        const NAMED_MAX: usize = 4;
        let set = self.routing.routes.get(&route).map(|route| route.set.clone());
        let peers = set.iter().flat_map(|set| set.iter()).filter_map(|id| self.peers.get(id));
        let reasons: Vec<String> = peers
            .take(NAMED_MAX)
            .map(|peer| match (&peer.reason, peer.link) {
                (Some(reason), _) => format!("{}: {reason}", peer.info.name),
                (None, LinkState::Up { stopping: true, .. }) => {
                    format!("{}: it takes no new jobs: it is draining or stopping", peer.info.name)
                }
                (None, LinkState::Up { .. }) => {
                    format!(
                        "{}: it has {UNANSWERED_BATCHES_MAX} unanswered batches or 32 MiB",
                        peer.info.name
                    )
                }
                (None, _) => format!("{}: no link yet", peer.info.name),
            })
            .collect();
        format!("no publisher accepted the batch ({})", reasons.join("; ")).into()
    }

    /// Sweeps idle state: resolves old paths again, closes idle links, and forgets what is unused.
    pub(super) fn sweep(&mut self, now: Time) {
        self.sweep_at = now + SWEEP_INTERVAL;
        let open: BTreeSet<RouteId> =
            self.streams.values().flat_map(|stream| stream.open.keys().copied()).collect();
        self.routing.refresh(now, &open, |id| is_up(&self.peers, id));
        self.routing.sweep(&open);
        let needed: BTreeSet<PublisherId> =
            self.peers.keys().copied().filter(|id| self.is_useful(*id)).collect();
        let idle: Vec<PublisherId> = (self.peers.iter())
            .filter(|(id, peer)| {
                !needed.contains(id)
                    && peer.link_number().is_some()
                    && peer.used_at + LINK_IDLE <= now
            })
            .map(|(id, _)| *id)
            .collect();
        for publisher in idle {
            self.close(now, publisher, "idle");
            if let Some(peer) = self.peers.get_mut(&publisher) {
                // It has not failed: its next job goes to it, not to the default above.
                peer.failed_at = None;
            }
        }
        let lingering: Vec<PublisherId> = (self.peers.iter())
            .filter(|(_, peer)| peer.stopping_since.is_some_and(|at| at + STOPPING_RETRY <= now))
            .filter(|(_, peer)| matches!(peer.link, LinkState::Up { stopping: true, .. }))
            .map(|(id, _)| *id)
            .collect();
        for publisher in lingering {
            self.close(now, publisher, "it took no new jobs; dialling again");
            self.resolve_paths_of(now, publisher);
        }
        let known: BTreeSet<PublisherId> =
            self.routing.routes.values().flat_map(|route| route.set.iter().copied()).collect();
        // A publisher's sequence numbers are retained while some route has it; later it reports
        // them again.
        self.peers.retain(|id, peer| {
            known.contains(id) || !peer.unanswered.is_empty() || peer.link_number().is_some()
        });
        self.peers.values_mut().for_each(|peer| peer.sweep(now));
        let routes: Vec<RouteId> = self.routing.routes.keys().copied().collect();
        routes.into_iter().for_each(|route| self.order_links(now, route));
    }
}
