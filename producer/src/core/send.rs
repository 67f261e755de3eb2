//! Sealing batches, choosing their publishers, and sending them.

use longshore_protocol::{Path, PublisherId};
use rand::RngExt;

use super::Core;
use super::action::Action;
use super::batch::{Batch, Load, OpenBatch};
use super::ids::{RouteId, StreamId, Time};
use super::limits::{LINKS_PER_ROUTE, STICKY_FOR};
use super::peer::InFlight;
use super::routing::Route;
use super::stream::{StreamLimits, StreamState};

impl<T: Default + Clone> Core<T> {
    /// True if a publisher of the route may get the stream's open batch.
    pub(super) fn has_taker(
        &self,
        route: RouteId,
        stream: &StreamState<T>,
        stream_id: StreamId,
    ) -> bool {
        let (known, open) = (self.routing.routes.get(&route), stream.open.get(&route));
        let (Some(route), Some(open)) = (known, open) else {
            return false;
        };
        let load = open.load();
        route.unsent.is_empty()
            && (self.candidates(route).iter())
                .any(|id| self.may_send_to(route, id, stream, stream_id, load))
    }

    /// Whether a publisher accepts batches at all: under load none does most of the time, and no
    /// open batch has to be looked at.
    pub(super) fn has_accepting_peer(&self) -> bool {
        self.peers.values().any(|peer| peer.accepts_batches())
    }

    /// The candidates for a new batch of the route: its own publishers or, while all of these fail,
    /// also those of the default above.
    pub(super) fn candidates<'a>(&self, route: &'a Route<T>) -> &'a [PublisherId] {
        let fails = |id| self.peers.get(id).is_some_and(|peer| peer.is_failing());
        if route.own.iter().all(fails) { &route.set } else { &route.own }
    }

    /// True if a publisher may get a batch of the stream: it accepts one, and has no more of the
    /// stream's unanswered jobs and bytes than its share, which is equal for all publishers of the
    /// route with links. So publishers that do not answer leave the others their share. A publisher
    /// without a batch of the stream gets one of any size.
    pub(super) fn may_send_to(
        &self,
        route: &Route<T>,
        publisher: &PublisherId,
        stream: &StreamState<T>,
        stream_id: StreamId,
        load: Load,
    ) -> bool {
        let Some(peer) = self.peers.get(publisher).filter(|peer| peer.accepts_batches()) else {
            return false;
        };
        let StreamLimits { in_flight_jobs_max: jobs, in_flight_bytes_max: bytes, .. } =
            stream.limits;
        // With this little in flight no share is used up: most calls return here.
        let of_all = LINKS_PER_ROUTE;
        if route.set.len() == 1 || (stream.jobs <= jobs / of_all && stream.bytes <= bytes / of_all)
        {
            return true;
        }
        let counts = |id: &&PublisherId| self.peers.get(id).is_some_and(|peer| peer.has_share());
        let linked = route.linked.iter().filter(counts).count().max(1);
        let in_flight = if linked == 1 { Load::default() } else { peer.load_of(stream_id) };
        in_flight.jobs == 0
            || (in_flight.jobs + load.jobs <= jobs / linked
                && in_flight.bytes + load.bytes <= bytes / linked)
    }

    /// The publisher of the route's next batch of the stream: the same one for a while, then a
    /// random one that answers. A silent publisher gets a batch only if no other may get it.
    pub(super) fn choose_publisher(
        &mut self,
        now: Time,
        route_id: RouteId,
        stream_id: StreamId,
        load: Load,
    ) -> Option<PublisherId> {
        let (route, stream) = (self.routing.routes.get(&route_id)?, self.streams.get(&stream_id)?);
        let may_send_to = |id: &PublisherId| self.may_send_to(route, id, stream, stream_id, load);
        let is_silent = |id: &PublisherId| self.peers.get(id).is_some_and(|p| p.is_silent(now));
        if let Some((publisher, until)) = route.sticky
            && now < until
            && !is_silent(&publisher)
            && may_send_to(&publisher)
        {
            return Some(publisher);
        }
        let mut from: Vec<PublisherId> =
            self.candidates(route).iter().copied().filter(may_send_to).collect();
        if !from.iter().all(is_silent) {
            from.retain(|id| !is_silent(id));
        }
        if from.is_empty() {
            return None;
        }
        let publisher = from[self.rng.random_range(0..from.len())];
        if let Some(route) = self.routing.routes.get_mut(&route_id) {
            route.sticky = Some((publisher, now + STICKY_FOR));
        }
        Some(publisher)
    }

    /// Seals open batches that should not wait for more jobs. True if there was one.
    pub(super) fn seal_partial(&mut self, now: Time) -> bool {
        let mut sealed = false;
        if !self.has_accepting_peer() {
            return false;
        }
        let open: Vec<(StreamId, RouteId)> = (self.streams.iter())
            .flat_map(|(stream, l)| l.open.keys().map(|route| (*stream, *route)))
            .collect();
        for (stream_id, route) in open {
            let stream = &self.streams[&stream_id];
            if !self.has_taker(route, stream, stream_id) {
                continue;
            }
            let load = stream.open[&route].load();
            let Some(publisher) = self.choose_publisher(now, route, stream_id, load) else {
                continue;
            };
            let unanswered = self.peers.get(&publisher).map_or(0, |peer| peer.unanswered.len());
            let stream = &self.streams[&stream_id];
            let linger_over = stream.open[&route].opened_at + stream.limits.linger <= now;
            if unanswered < stream.limits.eager_batches || linger_over || stream.flush {
                self.seal_open(stream_id, route);
                self.send_unsent(now);
                sealed = true;
            }
        }
        sealed
    }

    pub(super) fn seal_open(&mut self, stream_id: StreamId, route: RouteId) {
        if let Some(stream) = self.streams.get_mut(&stream_id)
            && let Some(open) = stream.open.remove(&route)
        {
            stream.flush &= !stream.open.is_empty();
            self.seal(stream_id, route, open, None);
        }
    }

    /// Seals a batch: an atomic one with the paths of which it has no job with keys.
    pub(super) fn seal(
        &mut self,
        stream: StreamId,
        route: RouteId,
        open: OpenBatch<T>,
        atomic: Option<Vec<Path>>,
    ) {
        let is_home = self.routing.routes.get(&route).is_some_and(|route| route.is_home);
        let deadline = self.deadline_of(&open);
        self.deadline_floor = Some(self.deadline_floor.map_or(deadline, |f| f.min(deadline)));
        let batch = Batch {
            serial: self.next_serial,
            stream,
            route,
            is_home,
            jobs: open.builder.seal(atomic.is_some()),
            plain_paths: atomic.unwrap_or_default(),
            ids: open.ids,
            indices: open.indices,
            bytes: open.bytes,
            tag: open.tag,
            opened_at: open.opened_at,
            deadline,
            may_be_at: None,
            gaps: 0,
            not_home: 0,
        };
        self.next_serial += 1;
        self.queue_unsent(batch);
    }

    /// Queues a batch that is at no publisher at its route, ordered by serial.
    pub(super) fn queue_unsent(&mut self, mut batch: Batch<T>) {
        if !self.routing.routes.contains_key(&batch.route) {
            // Its route was swept while a publisher had it.
            let (at, is_home) = (batch.opened_at, batch.is_home);
            batch.route = match self.routing.common_route(at, batch.destinations()) {
                Some(route) => route,
                None => self.routing.route_for(at, Vec::new(), Vec::new(), is_home),
            };
        }
        if let Some(route) = self.routing.routes.get_mut(&batch.route) {
            let at = route.unsent.partition_point(|other| other.serial < batch.serial);
            route.unsent.insert(at, batch);
        }
    }

    pub(super) fn send_unsent(&mut self, now: Time) {
        let waiting: Vec<RouteId> = (self.routing.routes.iter())
            .filter(|(_, route)| !route.unsent.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for route_id in waiting {
            // A batch of a stream that has used up its shares waits; batches of other streams pass
            // it.
            let mut at = 0;
            while let Some(route) = self.routing.routes.get(&route_id)
                && let Some(batch) = route.unsent.get(at)
                && route
                    .set
                    .iter()
                    .any(|id| self.peers.get(id).is_some_and(|peer| peer.accepts_batches()))
            {
                let (stream, load) = (batch.stream, batch.load());
                let Some(publisher) = self.choose_publisher(now, route_id, stream, load) else {
                    at += 1;
                    continue;
                };
                let Some(route) = self.routing.routes.get_mut(&route_id) else { break };
                let Some(batch) = route.unsent.remove(at) else { break };
                let Some(peer) = self.peers.get_mut(&publisher) else { break };
                let Some(link) = peer.link_number() else { break };
                let sequence = peer.next;
                peer.next += 1;
                peer.used_at = now;
                peer.silent_since.get_or_insert(now);
                peer.unanswered_bytes += batch.bytes;
                let jobs = batch.jobs.clone();
                peer.unanswered.push_back(InFlight { sequence, batch, arrived: false });
                self.actions.push_back(Action::Send { publisher, link, sequence, batch: jobs });
            }
        }
    }
}
