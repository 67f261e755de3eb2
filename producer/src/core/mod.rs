//! What a producer decides: which batch goes to which publisher, under which number, when it is
//! sent again and where, when its time is up, when a link is tried, when a path is asked about.
//!
//! **The contract: after every call that takes `now`, drain [`Core::poll_action`]; call
//! [`Core::turn`] at [`Core::next_deadline`].** `now` never falls. Nothing here reads a clock,
//! opens a socket or waits.
//!
//! ```text
//!  push ─▶ lane: open batch per route ──seal──▶ route: unsent ──send──▶ publisher: unanswered ──answer──▶ Finish
//!                                                  ▲                        │
//!                                                  └── refused as a whole ──┘   (never after a mere loss of the link)
//! ```

mod answers;
mod batch;
mod check;
mod due;
mod lane;
mod links;
mod peer;
mod routing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::SealedBatch;
use longshore_protocol::{
    Address, JobId, NewJob, Path, PublicationKind, PublisherId, PublisherInfo,
};
use longshore_resolver::{PathAnswer, Publication, ReadError, Resolution};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::options::Failover;
use crate::outcome::{BatchEnd, EnqueueError};

use batch::{Batch, Load, OpenBatch, weight};
pub(crate) use check::check;
use lane::Lane;
pub(crate) use lane::LaneRules;
pub(crate) use peer::LinkNumber;
use peer::{InFlight, Peer};
pub(crate) use routing::NoRoute;
use routing::{Route, Routing};

/// Time since the producer was made.
pub(crate) type Time = Duration;

/// Most batches that a publisher has not answered: it recognises the last 64 when they are sent
/// again, and no more.
pub(crate) const UNANSWERED_BATCHES_MAX: usize = 64;
/// Bytes without an answer above which a publisher gets no further batch: well below a link's send
/// queue.
const UNANSWERED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most publishers of one route that links are kept to.
const LINKS_PER_ROUTE: usize = 8;
/// Most links of one producer.
const LINKS_MAX: usize = 256;
/// Most paths whose publishers are remembered.
const PATHS_MAX: usize = 65_536;
/// Most paths in one question.
const QUESTION_PATHS_MAX: usize = 10_000;
/// Most paths that one lost link asks about.
const LOST_LINK_PATHS_MAX: usize = 64;
/// How long one publisher gets all batches of a route, so that they stay large.
const STICKY_FOR: Duration = Duration::from_millis(250);
/// A publisher that failed this recently is linked to last.
const FAILED_RECENTLY: Duration = Duration::from_secs(60);
/// A route that got no job for this long needs no links.
const ROUTE_IDLE: Duration = Duration::from_secs(60);
/// A link that nothing needed for this long is closed.
const LINK_IDLE: Duration = Duration::from_secs(300);
/// A publisher that said it stops, or is drained, is left alone for so long; then it is tried anew.
const STOPPING_MAX: Duration = Duration::from_secs(10);
/// How often the slow chores are done.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// The age at which a path in use is asked about again.
const PATH_FRESH: Duration = Duration::from_secs(30);
/// The least time between two questions about a path.
const ASK_AGAIN_MIN: Duration = Duration::from_secs(1);
/// How soon a warming replica's "no" is asked again.
const WARMING_WAIT: Duration = Duration::from_millis(500);
/// How often a batch may be told that one before it is missing.
const GAPS_MAX: u32 = 3;
/// What a batch's bytes add to the time for its answer: 1 µs each, as at 1 MB/s.
const ANSWER_TIME_PER_BYTE: Duration = Duration::from_micros(1);

/// A lane's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LaneId(pub(crate) u32);

/// A route's number; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RouteId(u32);

/// What the shell is to do.
pub(crate) enum Action<T> {
    /// Ask the resolver; hand the answer to [`Core::resolved`].
    Resolve(Vec<Path>),
    /// Make a link, attach, then say [`Core::linked`] or [`Core::link_lost`].
    Dial { publisher: PublisherId, link: LinkNumber, addresses: Vec<Address> },
    /// Write the batch to that link.
    Send { publisher: PublisherId, link: LinkNumber, sequence: u64, batch: SealedBatch },
    /// End that link; nothing is to be said of it any more.
    Close { publisher: PublisherId, link: LinkNumber, reason: &'static str },
    /// A batch has come to its end.
    Finish { lane: LaneId, tag: T, ids: Vec<JobId>, tickets: Vec<(u64, u32)>, end: BatchEnd },
    /// Paths were answered: who waits for a route looks again.
    RoutesChanged,
    /// A closed lane has come to its end.
    LaneGone(LaneId),
}

/// What became of a push.
pub(crate) struct Pushed<T> {
    /// The batch that the job is in: if it was asked for, or if the job is its first.
    pub(crate) tag: Option<T>,
    /// Its place there.
    pub(crate) place: usize,
}

/// Why a job was not added.
#[derive(Debug)]
pub(crate) enum PushError {
    /// The lane holds as much as it may: wait for an answer.
    Full,
    /// Its path has no route yet: see [`Core::route`].
    NoRoute,
    /// It can never be added.
    Never(EnqueueError),
}

/// Where a path stands.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Routed {
    Known,
    Asked,
    No(NoRoute),
}

/// The deciding part of a producer. `T` is the shell's name for a batch.
pub(crate) struct Core<T> {
    answer_timeout: Duration,
    failover: Failover,
    rng: StdRng,
    lanes: BTreeMap<LaneId, Lane<T>>,
    routing: Routing<T>,
    peers: BTreeMap<PublisherId, Peer<T>>,
    actions: VecDeque<Action<T>>,
    next_lane: u32,
    next_serial: u64,
    next_link: u64,
    /// No batch's time is up before this.
    deadline_floor: Option<Time>,
    sweep_at: Time,
    /// The number of a random order of publishers, this producer's own.
    spread: u64,
}

impl<T: Default + Clone> Core<T> {
    pub(crate) fn new(answer_timeout: Duration, failover: Failover, seed: u64) -> Core<T> {
        let mut rng = StdRng::seed_from_u64(seed);
        let spread = rng.next_u64();
        Core {
            answer_timeout,
            failover,
            rng,
            lanes: BTreeMap::new(),
            routing: Routing::new(),
            peers: BTreeMap::new(),
            actions: VecDeque::new(),
            next_lane: 0,
            next_serial: 0,
            next_link: 0,
            deadline_floor: None,
            sweep_at: SWEEP_EVERY,
            spread,
        }
    }

    /// The next thing to do, until there is none.
    pub(crate) fn poll_action(&mut self) -> Option<Action<T>> {
        self.actions.pop_front()
    }

    // ---- lanes

    pub(crate) fn open_lane(&mut self, rules: LaneRules) -> LaneId {
        let id = LaneId(self.next_lane);
        self.next_lane += 1;
        self.lanes.insert(id, Lane::new(rules));
        id
    }

    /// What is open in the lane goes without waiting for more.
    pub(crate) fn flush_lane(&mut self, now: Time, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.flush = !lane.open.is_empty();
            self.turn(now);
        }
    }

    /// Nothing more is pushed into the lane.
    pub(crate) fn close_lane(&mut self, now: Time, lane: LaneId) {
        if let Some(open) = self.lanes.get_mut(&lane) {
            open.closed = true;
        }
        self.flush_lane(now, lane);
        self.end_lane_if_done(lane);
    }

    /// Jobs of all lanes that have no end yet.
    pub(crate) fn in_flight_jobs(&self) -> usize {
        self.lanes.values().map(|lane| lane.jobs).sum()
    }

    /// Adds a job to its route's open batch in the lane. The batch's tag is handed out if
    /// `want_tag`, and always with its first job.
    pub(crate) fn push(
        &mut self,
        now: Time,
        lane_id: LaneId,
        ticket: u64,
        job: &NewJob,
        want_tag: bool,
    ) -> Result<Pushed<T>, PushError> {
        check(job).map_err(PushError::Never)?;
        let Some(lane) = self.lanes.get_mut(&lane_id) else {
            return Err(PushError::Never(EnqueueError::Closed));
        };
        if !lane.has_room(job) {
            return Err(PushError::Full);
        }
        let known = lane.generation == self.routing.generation;
        let route_id = match &lane.last {
            Some((path, route)) if known && *path == job.path => *route,
            _ => {
                let entry = self.routing.paths.get(&job.path);
                let route = entry.and_then(|entry| entry.route).ok_or(PushError::NoRoute)?;
                lane.generation = self.routing.generation;
                lane.last = Some((job.path.clone(), route));
                route
            }
        };
        let mut sealed = None;
        if lane.open.get(&route_id).is_some_and(|open| lane.overflows(open, job)) {
            sealed = lane.open.remove(&route_id);
        }
        lane.jobs += 1;
        lane.bytes += weight(job);
        let open = lane.open.entry(route_id).or_insert_with(|| OpenBatch::new(T::default(), now));
        let opened = open.ids.is_empty();
        open.push(job, ticket);
        let place = open.ids.len() - 1;
        let tag = (want_tag || opened).then(|| open.tag.clone());
        let full =
            open.ids.len() >= lane.rules.batch_jobs_max || open.bytes >= lane.rules.batch_bytes_max;
        if let Some(sealed) = sealed {
            self.seal(lane_id, route_id, sealed, false);
        }
        if full {
            self.seal_open(lane_id, route_id);
        }
        if opened || full {
            let time_up = now + self.answer_timeout;
            self.deadline_floor = Some(self.deadline_floor.map_or(time_up, |f| f.min(time_up)));
            if let Some(route) = self.routing.routes.get_mut(&route_id) {
                route.used_at = now;
            }
            self.turn(now);
        }
        Ok(Pushed { tag, place })
    }

    /// Makes one atomic batch of all of `jobs`; their tickets are their places.
    pub(crate) fn push_atomic(
        &mut self,
        now: Time,
        lane_id: LaneId,
        jobs: &[NewJob],
    ) -> Result<T, PushError> {
        let mut open = OpenBatch::new(T::default(), now);
        let mut paths: Vec<Path> = Vec::new();
        for (ticket, job) in jobs.iter().enumerate() {
            check(job).map_err(PushError::Never)?;
            if !open.builder.fits(job) {
                let why = "together they are over 10,000 jobs, 16 MiB of payload or 18 MiB encoded";
                return Err(PushError::Never(EnqueueError::NotAtomic(why.into())));
            }
            if paths.last() != Some(&job.path) {
                paths.push(job.path.clone());
            }
            open.push(job, ticket as u64);
        }
        paths.sort_unstable();
        paths.dedup();
        if paths.iter().any(|path| !self.routing.is_known(path)) {
            return Err(PushError::NoRoute);
        }
        let Some(route) = self.routing.common_route(now, &paths) else {
            let why = "no publisher has all of its paths";
            return Err(PushError::Never(EnqueueError::NotAtomic(why.into())));
        };
        let Some(lane) = self.lanes.get_mut(&lane_id) else {
            return Err(PushError::Never(EnqueueError::Closed));
        };
        lane.jobs += open.ids.len();
        lane.bytes += open.bytes;
        let tag = open.tag.clone();
        if let Some(route) = self.routing.routes.get_mut(&route) {
            route.used_at = now;
        }
        self.seal(lane_id, route, open, true);
        self.turn(now);
        Ok(tag)
    }

    // ---- paths

    /// Where `path` stands, for a caller that began at `since`: an older "no" is asked again.
    pub(crate) fn route(&mut self, now: Time, path: &Path, since: Time) -> Routed {
        if let Some(entry) = self.routing.paths.get(path) {
            match (&entry.route, &entry.no) {
                (Some(_), _) => return Routed::Known,
                (None, Some(no)) if entry.answered_at >= Some(since) => {
                    return Routed::No(no.clone());
                }
                _ => {}
            }
            if entry.ask_at.is_some() {
                return Routed::Asked;
            }
        }
        self.routing.ask(path);
        self.turn(now);
        Routed::Asked
    }

    /// The answer to [`Action::Resolve`].
    pub(crate) fn resolved(
        &mut self,
        now: Time,
        paths: &[Path],
        answer: Result<Resolution, ReadError>,
    ) {
        self.routing.asking = false;
        match answer {
            Ok(resolution) => {
                for (path, answer) in paths.iter().zip(resolution.answers) {
                    self.path_answered(now, path, answer, resolution.complete);
                }
            }
            Err(error) => {
                let no = NoRoute::Resolver(Arc::new(error));
                for path in paths {
                    if let Some(entry) = self.routing.paths.get_mut(path) {
                        entry.asked = false;
                        entry.answered_at = Some(now);
                        entry.no = Some(no.clone());
                    }
                }
            }
        }
        self.lead_anew(now);
        self.actions.push_back(Action::RoutesChanged);
        self.turn(now);
    }

    fn path_answered(&mut self, now: Time, path: &Path, answer: PathAnswer, complete: bool) {
        let (set, fallback) = match &answer {
            PathAnswer::Publishers { set, fallback, .. } => (set.as_ref(), fallback.as_deref()),
            _ => (&[][..], None),
        };
        // Who really publishes the path may be unknown to a warming replica: its defaults wait.
        let fallback = fallback.filter(|_| complete).unwrap_or_default();
        let by_default = matches!(answer, PathAnswer::Publishers { by_default: true, .. });
        let is_queue = |one: &&Publication| one.terms.kind == PublicationKind::Queue;
        let (mut queues, values): (Vec<_>, Vec<_>) = set.iter().partition(is_queue);
        let refused = matches!(answer, PathAnswer::Refused(_));
        if (by_default || queues.is_empty()) && !complete && !refused {
            // Replicas are warming: this "no" is worth nothing yet, and a default would make a
            // second queue of the path.
            if let Some(entry) = self.routing.paths.get_mut(path) {
                entry.asked = false;
            }
            self.routing.ask_at(path, now + WARMING_WAIT);
            return;
        }
        let mut value_of = None;
        if queues.is_empty() {
            match by_default {
                // The nearest default is one for values; a publisher of it may have one for queues
                // further up, and knows best.
                true => queues = values,
                false => {
                    value_of = values.first().map(|one| Arc::from(one.publisher.name.as_str()))
                }
            }
        }
        let route = match queues.is_empty() {
            false => {
                let fallback: Vec<_> = fallback.iter().filter(is_queue).collect();
                queues.iter().chain(&fallback).for_each(|one| self.learn(now, &one.publisher));
                let ids = |some: &[&Publication]| some.iter().map(|one| one.publisher.id).collect();
                let route = self.routing.route_of(now, ids(&queues), ids(&fallback));
                self.order_links(now, route);
                Some(route)
            }
            true => None,
        };
        let Some(entry) = self.routing.paths.get_mut(path) else { return };
        entry.asked = false;
        entry.ask_at = None;
        entry.answered_at = Some(now);
        entry.no = match answer {
            PathAnswer::Refused(reason) => Some(NoRoute::Refused(reason.into())),
            _ if route.is_none() => Some(value_of.map_or(NoRoute::Nobody, NoRoute::Value)),
            _ => None,
        };
        // The directory opens links; it never closes them: a publisher that answers is good,
        // whatever a replica forgot.
        let old = entry.route.and_then(|old| self.routing.routes.get(&old));
        let still_up = old.is_some_and(|old| {
            old.set.iter().any(|id| self.peers.get(id).is_some_and(|peer| peer.is_up()))
        });
        if route.is_some() || !still_up {
            self.routing.lead(path, route);
        }
    }

    /// Takes down who a publisher is and where.
    fn learn(&mut self, now: Time, info: &PublisherInfo) {
        let peer = self.peers.entry(info.id).or_insert_with(|| Peer::new(info.clone(), now));
        if peer.info == *info || info.epoch < peer.info.epoch {
            return;
        }
        peer.moved(now, info);
    }

    /// Leads batches whose route no path leads to any more, as their paths do now.
    fn lead_anew(&mut self, now: Time) {
        let orphans: Vec<RouteId> =
            self.routing.routes.iter().filter(|(_, r)| r.paths == 0).map(|(id, _)| *id).collect();
        for orphan in orphans {
            let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
            for lane in lanes {
                self.seal_open(lane, orphan);
            }
            let Some(route) = self.routing.routes.get_mut(&orphan) else { continue };
            for mut batch in std::mem::take(&mut route.unsent) {
                let route = self.routing.common_route(now, batch.jobs.paths()).unwrap_or(orphan);
                batch.route = route;
                self.wait_for_publisher(batch);
            }
        }
    }

    // ---- choosing and sending

    /// Whether some publisher of the route would get the lane's open batch.
    fn can_take(&self, route: RouteId, lane: &Lane<T>, lane_id: LaneId) -> bool {
        let (known, open) = (self.routing.routes.get(&route), lane.open.get(&route));
        let (Some(route), Some(open)) = (known, open) else {
            return false;
        };
        let load = open.load();
        route.unsent.is_empty()
            && (self.candidates(route).iter())
                .any(|id| self.may_get(route, id, lane, lane_id, load))
    }

    /// Those that a new batch of the route may go to: its own publishers, or, while all of these
    /// fail, those of the default above as well.
    fn candidates<'a>(&self, route: &'a Route<T>) -> &'a [PublisherId] {
        let fails = |id| self.peers.get(id).is_some_and(|peer| peer.fails());
        if route.own.iter().all(fails) { &route.set } else { &route.own }
    }

    /// Whether a publisher may get a batch of the lane: it takes one, and holds no more of the
    /// lane's unanswered jobs and bytes than its share, the same for each publisher of the route
    /// that has one. So publishers that do not answer leave the others theirs. A publisher with
    /// none of the lane's batches gets one of any size.
    fn may_get(
        &self,
        route: &Route<T>,
        publisher: &PublisherId,
        lane: &Lane<T>,
        lane_id: LaneId,
        load: Load,
    ) -> bool {
        let Some(peer) = self.peers.get(publisher).filter(|peer| peer.takes()) else {
            return false;
        };
        let LaneRules { in_flight_jobs_max: jobs, in_flight_bytes_max: bytes, .. } = lane.rules;
        // With this little in flight no share is used up: most calls end here.
        let of_all = LINKS_PER_ROUTE;
        if route.set.len() == 1 || (lane.jobs <= jobs / of_all && lane.bytes <= bytes / of_all) {
            return true;
        }
        let counts = |id: &&PublisherId| self.peers.get(id).is_some_and(|peer| peer.has_a_share());
        let linked = route.linked.iter().filter(counts).count().max(1);
        let held = if linked == 1 { Load::default() } else { peer.load_of(lane_id) };
        held.jobs == 0
            || (held.jobs + load.jobs <= jobs / linked && held.bytes + load.bytes <= bytes / linked)
    }

    /// The publisher that the route's next batch of the lane goes to: the same for a while, then
    /// one at random of those that answer. One that is silent gets a batch only if no other may get
    /// it.
    fn choose(
        &mut self,
        now: Time,
        route_id: RouteId,
        lane_id: LaneId,
        load: Load,
    ) -> Option<PublisherId> {
        let (route, lane) = (self.routing.routes.get(&route_id)?, self.lanes.get(&lane_id)?);
        let may_get = |id: &PublisherId| self.may_get(route, id, lane, lane_id, load);
        let is_silent = |id: &PublisherId| self.peers.get(id).is_some_and(|p| p.is_silent(now));
        if let Some((publisher, until)) = route.sticky
            && now < until
            && !is_silent(&publisher)
            && may_get(&publisher)
        {
            return Some(publisher);
        }
        let mut from: Vec<PublisherId> =
            self.candidates(route).iter().copied().filter(may_get).collect();
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

    /// Seals the open batches that should not wait for more jobs. True when there was one.
    fn seal_partial(&mut self, now: Time) -> bool {
        let mut sealed = false;
        let open: Vec<(LaneId, RouteId)> = (self.lanes.iter())
            .flat_map(|(lane, l)| l.open.keys().map(|route| (*lane, *route)))
            .collect();
        for (lane_id, route) in open {
            let lane = &self.lanes[&lane_id];
            if !self.can_take(route, lane, lane_id) {
                continue;
            }
            let load = lane.open[&route].load();
            let Some(publisher) = self.choose(now, route, lane_id, load) else { continue };
            let unanswered = self.peers.get(&publisher).map_or(0, |peer| peer.unanswered.len());
            let lane = &self.lanes[&lane_id];
            let lingered = lane.open[&route].opened_at + lane.rules.linger <= now;
            if unanswered < lane.rules.eager_batches || lingered || lane.flush {
                self.seal_open(lane_id, route);
                self.send_unsent(now);
                sealed = true;
            }
        }
        sealed
    }

    fn seal_open(&mut self, lane_id: LaneId, route: RouteId) {
        if let Some(lane) = self.lanes.get_mut(&lane_id)
            && let Some(open) = lane.open.remove(&route)
        {
            lane.flush &= !lane.open.is_empty();
            self.seal(lane_id, route, open, false);
        }
    }

    fn seal(&mut self, lane: LaneId, route: RouteId, open: OpenBatch<T>, atomic: bool) {
        let deadline = self.deadline_of(&open);
        self.deadline_floor = Some(self.deadline_floor.map_or(deadline, |f| f.min(deadline)));
        let batch = Batch {
            serial: self.next_serial,
            lane,
            route,
            jobs: open.builder.seal(atomic),
            ids: open.ids,
            tickets: open.tickets,
            bytes: open.bytes,
            tag: open.tag,
            opened_at: open.opened_at,
            deadline,
            may_be_at: None,
            gaps: 0,
        };
        self.next_serial += 1;
        self.wait_for_publisher(batch);
    }

    /// Puts a batch that is at no publisher among those of its route, by its serial.
    fn wait_for_publisher(&mut self, mut batch: Batch<T>) {
        if !self.routing.routes.contains_key(&batch.route) {
            // Its route was swept while a publisher had it.
            let route = self.routing.common_route(batch.opened_at, batch.jobs.paths());
            batch.route = match route {
                Some(route) => route,
                None => self.routing.route_of(batch.opened_at, Vec::new(), Vec::new()),
            };
        }
        if let Some(route) = self.routing.routes.get_mut(&batch.route) {
            let at = route.unsent.partition_point(|other| other.serial < batch.serial);
            route.unsent.insert(at, batch);
        }
    }

    fn send_unsent(&mut self, now: Time) {
        let waiting: Vec<RouteId> = (self.routing.routes.iter())
            .filter(|(_, route)| !route.unsent.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for route_id in waiting {
            // Batches of a lane that has used up its shares wait; those of other lanes go past
            // them.
            let mut at = 0;
            while let Some(route) = self.routing.routes.get(&route_id)
                && let Some(batch) = route.unsent.get(at)
                && route.set.iter().any(|id| self.peers.get(id).is_some_and(|peer| peer.takes()))
            {
                let (lane, load) = (batch.lane, batch.load());
                let Some(publisher) = self.choose(now, route_id, lane, load) else {
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
                peer.unheard_since.get_or_insert(now);
                peer.unanswered_bytes += batch.bytes;
                let jobs = batch.jobs.clone();
                peer.unanswered.push_back(InFlight { sequence, batch, arrived: false });
                self.actions.push_back(Action::Send { publisher, link, sequence, batch: jobs });
            }
        }
    }

    fn ask_resolver(&mut self, now: Time) {
        self.routing.ask_due(now);
        if self.routing.asking || self.routing.questions.is_empty() {
            return;
        }
        let mut paths = Vec::new();
        while paths.len() < QUESTION_PATHS_MAX
            && let Some(path) = self.routing.questions.pop_first()
        {
            paths.push(path);
        }
        self.routing.asking = true;
        self.actions.push_back(Action::Resolve(paths));
    }

    // ---- ends

    /// It may have reached that publisher: elsewhere only if duplicates are allowed.
    fn unknown(&mut self, mut batch: Batch<T>, publisher: PublisherId, why: Arc<str>) {
        if self.failover == Failover::MayDuplicate && batch.may_be_at.is_none() {
            batch.may_be_at = Some(publisher);
            self.wait_for_publisher(batch);
        } else {
            self.end_unknown(batch, publisher, why);
        }
    }

    fn end_unknown(&mut self, batch: Batch<T>, publisher: PublisherId, why: Arc<str>) {
        self.finish(batch, BatchEnd::Unknown { publisher, why });
    }

    /// Its jobs are nowhere, unless an earlier publisher may have them.
    fn fail(&mut self, batch: Batch<T>, error: EnqueueError) {
        match batch.may_be_at {
            Some(publisher) => self.end_unknown(batch, publisher, error.to_string().into()),
            None => self.finish(batch, BatchEnd::Failed(error)),
        }
    }

    fn finish(&mut self, batch: Batch<T>, end: BatchEnd) {
        if let Some(lane) = self.lanes.get_mut(&batch.lane) {
            lane.jobs -= batch.ids.len();
            lane.bytes -= batch.bytes;
        }
        let Batch { lane, tag, ids, tickets, .. } = batch;
        self.actions.push_back(Action::Finish { lane, tag, ids, tickets, end });
        self.end_lane_if_done(lane);
    }

    fn end_lane_if_done(&mut self, lane: LaneId) {
        if self.lanes.get(&lane).is_some_and(|lane| lane.closed && lane.jobs == 0) {
            self.lanes.remove(&lane);
            self.actions.push_back(Action::LaneGone(lane));
        }
    }
}
