//! Paths: resolving them, and the routes that the answers give them.

use std::sync::Arc;

use longshore_protocol::{Path, PublicationKind, PublisherId, PublisherInfo};
use longshore_resolver::{PathAnswer, Publication, ReadError, Resolution};

use super::Core;
use super::action::{Action, RouteLookup};
use super::batch::Batch;
use super::home::{Home, Homeless, home_of};
use super::ids::{RouteId, StreamId, Time};
use super::limits::{ALL_PUBLISHERS_INTERVAL, RESOLVE_PATHS_MAX, WARMING_RETRY};
use super::peer::{Peer, is_up};
use super::routing::{NoRoute, PathEntry};

impl<T: Default + Clone> Core<T> {
    /// The route of `path`, or the one to its home, for a caller that started at `since`: an older
    /// negative answer is resolved again.
    pub(crate) fn route(
        &mut self,
        now: Time,
        path: &Path,
        at_home: bool,
        since: Time,
    ) -> RouteLookup {
        if let Some(entry) = self.routing.paths.get_mut(path) {
            entry.wants_home |= at_home;
            if if at_home { entry.home } else { entry.route }.is_some() {
                return RouteLookup::Known;
            }
            let no_home = entry.no_home.as_ref().filter(|_| at_home);
            let no = match (&entry.no, no_home) {
                (Some(no), _) => Some(no.clone()),
                (None, Some(Homeless::Undeclared(why))) => Some(NoRoute::NoHome(why.clone())),
                (None, Some(Homeless::Disagree(why))) => Some(NoRoute::HomesDisagree(why.clone())),
                _ => None,
            };
            if let Some(no) = no
                && entry.answered_at >= Some(since)
            {
                return RouteLookup::NoRoute(no);
            }
            if entry.retry_at.is_some() {
                return match no_home {
                    Some(Homeless::Away(name)) => RouteLookup::HomeAway(name.clone()),
                    _ => RouteLookup::Pending,
                };
            }
        }
        self.routing.request_resolve(path);
        if let Some(entry) = self.routing.paths.get_mut(path) {
            entry.wants_home |= at_home;
        }
        self.tick(now);
        RouteLookup::Pending
    }

    /// Whether the path is resolved or being resolved.
    pub(crate) fn is_known(&self, path: &Path) -> bool {
        self.routing.paths.get(path).is_some_and(|entry| {
            entry.resolve_pending || entry.retry_at.is_some() || entry.answered_at.is_some()
        })
    }

    /// Handles the answer to [`Action::Resolve`].
    pub(crate) fn resolved(
        &mut self,
        now: Time,
        paths: &[Path],
        answer: Result<Resolution, ReadError>,
    ) {
        self.routing.resolving = false;
        if std::mem::take(&mut self.routing.resolving_all_publishers) {
            self.routing.all_publishers_at = now + ALL_PUBLISHERS_INTERVAL;
        }
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
                        entry.resolve_pending = false;
                        entry.answered_at = Some(now);
                        entry.no = Some(no.clone());
                    }
                }
            }
        }
        self.reroute_orphans(now);
        self.actions.push_back(Action::RoutesChanged);
        self.tick(now);
    }

    pub(super) fn path_answered(
        &mut self,
        now: Time,
        path: &Path,
        answer: PathAnswer,
        complete: bool,
    ) {
        let (set, fallback) = match &answer {
            PathAnswer::Publishers { set, fallback, .. } => (set.as_ref(), fallback.as_deref()),
            _ => (&[][..], None),
        };
        // A warming replica may not know the path's publishers yet: ignore its fallbacks.
        let fallback = fallback.filter(|_| complete).unwrap_or_default();
        let by_default = matches!(answer, PathAnswer::Publishers { by_default: true, .. });
        let is_queue = |one: &&Publication| one.terms.kind == PublicationKind::Queue;
        let (mut queues, values): (Vec<_>, Vec<_>) = set.iter().partition(is_queue);
        let refused = matches!(answer, PathAnswer::Refused(_));
        if (by_default || queues.is_empty()) && !complete && !refused {
            // A warming replica's negative answer is not reliable, and a default would create a
            // second queue of the path.
            if let Some(entry) = self.routing.paths.get_mut(path) {
                entry.resolve_pending = false;
            }
            self.routing.resolve_again_at(path, now + WARMING_RETRY);
            return;
        }
        let mut value_of = None;
        if queues.is_empty() {
            match by_default {
                // The nearest default is for values. Its publisher may have a default for queues
                // further up, and decides.
                true => queues = values,
                false => {
                    value_of = values.first().map(|one| Arc::from(one.publisher.name.as_str()))
                }
            }
        }
        let fallback: Vec<_> = fallback.iter().filter(is_queue).collect();
        let home = if queues.is_empty() { None } else { Some(home_of(path, &queues, &fallback)) };
        let route = match queues.is_empty() {
            false => {
                queues
                    .iter()
                    .chain(&fallback)
                    .for_each(|one| self.update_peer(now, &one.publisher));
                let ids = |some: &[&Publication]| some.iter().map(|one| one.publisher.id).collect();
                let route = self.routing.route_for(now, ids(&queues), ids(&fallback), false);
                self.order_links(now, route);
                Some(route)
            }
            true => None,
        };
        let Some(entry) = self.routing.paths.get_mut(path) else { return };
        entry.resolve_pending = false;
        entry.retry_at = None;
        entry.answered_at = Some(now);
        entry.no = match answer {
            PathAnswer::Refused(reason) => Some(NoRoute::Refused(reason.into())),
            _ if route.is_none() => Some(value_of.map_or(NoRoute::NoPublisher, NoRoute::Value)),
            _ => None,
        };
        // A directory change never closes a working link: a publisher that answers is good,
        // whatever a replica forgot.
        let old = entry.route.and_then(|old| self.routing.routes.get(&old));
        let still_up = old.is_some_and(|old| old.set.iter().any(|id| is_up(&self.peers, id)));
        if route.is_some() || !still_up {
            self.routing.set_route(path, route);
        }
        self.home_answered(now, path, home.filter(|_| complete));
    }

    /// Sets the home of the path; none after an answer that does not tell it: of a warming replica,
    /// which may not know all of the path's publishers yet, or of a path without any.
    fn home_answered(&mut self, now: Time, path: &Path, home: Option<Result<Home, Homeless>>) {
        let home = home.map(|home| home.map(|home| self.stable_home(path, home)));
        let (route, no_home) = match home {
            None => {
                let waits = self.routing.paths.get(path).is_some_and(|e| e.no.is_none());
                return self.retry_for_home(now, path, waits);
            }
            Some(Ok(home)) => {
                (Some(self.routing.route_for(now, vec![home], Vec::new(), true)), None)
            }
            Some(Err(homeless)) => (None, Some(homeless)),
        };
        let is_away = matches!(no_home, Some(Homeless::Away(_)));
        if let Some(entry) = self.routing.paths.get_mut(path) {
            entry.no_home = no_home;
        }
        // Batches for a home that is away wait for it.
        if !is_away {
            self.routing.set_home(path, route);
        }
        self.retry_for_home(now, path, is_away);
    }

    /// The home of an answer, or the previous one instead. The only publisher of a path is its home
    /// without a declaration, and a replica may not know another one: as long as the link to it is
    /// up, no other replaces it, which might not have its keys.
    fn stable_home(&mut self, path: &Path, home: Home) -> PublisherId {
        let Some(entry) = self.routing.paths.get_mut(path) else { return home.publisher };
        match entry.only_publisher.filter(|id| is_up(&self.peers, id)) {
            Some(before) if !home.is_declared => before,
            _ => {
                entry.only_publisher = (!home.is_declared).then_some(home.publisher);
                home.publisher
            }
        }
    }

    /// Resolves the path again soon if a caller waits for its home; one answer for each request.
    fn retry_for_home(&mut self, now: Time, path: &Path, waits: bool) {
        let Some(entry) = self.routing.paths.get_mut(path) else { return };
        let wanted = std::mem::take(&mut entry.wants_home) && entry.home.is_none();
        if wanted && waits {
            self.routing.resolve_again_at(path, now + WARMING_RETRY);
        }
    }

    /// Stores a publisher's current information.
    pub(super) fn update_peer(&mut self, now: Time, info: &PublisherInfo) {
        let peer = self.peers.entry(info.id).or_insert_with(|| Peer::new(info.clone(), now));
        if peer.info == *info || info.epoch < peer.info.epoch {
            return;
        }
        peer.moved(now, info);
    }

    /// Moves batches to the current routes of their paths: those of routes without paths, and of
    /// routes that a path has left and whose publishers are all away.
    pub(super) fn reroute_orphans(&mut self, now: Time) {
        let left = std::mem::take(&mut self.routing.left);
        let is_away = |set: &[PublisherId]| !set.iter().any(|id| is_up(&self.peers, id));
        let orphans: Vec<RouteId> = (self.routing.routes.iter())
            .filter(|(id, route)| route.paths == 0 || left.contains(id) && is_away(&route.set))
            .map(|(id, _)| *id)
            .collect();
        for orphan in orphans {
            let streams: Vec<StreamId> = self.streams.keys().copied().collect();
            for stream in streams {
                self.seal_open(stream, orphan);
            }
            let Some(route) = self.routing.routes.get_mut(&orphan) else { continue };
            for mut batch in std::mem::take(&mut route.unsent) {
                let common = self.routing.common_route(now, batch.destinations());
                if common.is_none() && batch.is_home {
                    // It waits for its home.
                    batch.jobs.paths().iter().for_each(|path| self.routing.retry(now, path));
                } else if common.is_none() {
                    // Others of its paths may have moved, too.
                    self.resolve_paths_again(now, batch.jobs.paths());
                }
                let route = common.or_else(|| self.home_of_some(&batch));
                batch.route = route.unwrap_or(orphan);
                self.queue_unsent(batch);
            }
        }
    }

    /// A home of a batch whose paths no longer have one home: the publisher decides which of its
    /// jobs it accepts. Rather one with a link.
    fn home_of_some(&mut self, batch: &Batch<T>) -> Option<RouteId> {
        let mut homes = Vec::new();
        for (path, _) in batch.destinations().filter(|(_, at_home)| *at_home) {
            homes.push(self.routing.route_of(path, true)?);
        }
        let is_up = |home: &&RouteId| {
            let route = self.routing.routes.get(home);
            route.is_some_and(|route| route.set.iter().any(|id| is_up(&self.peers, id)))
        };
        homes.iter().find(is_up).or(homes.first()).copied()
    }

    pub(super) fn start_resolve(&mut self, now: Time) {
        self.routing.resolve_due(now);
        if self.routing.resolving || self.routing.to_resolve.is_empty() {
            return;
        }
        // A path's home follows from all of its publishers, which a warming replica may not know.
        let waits =
            |path: &Path| self.routing.paths.get(path).is_some_and(PathEntry::waits_for_home);
        let to_resolve = &self.routing.to_resolve;
        let all_publishers = self.routing.all_publishers_at <= now && to_resolve.iter().any(waits);
        // A request for all publishers may take long: other paths are left for the next one.
        let next = to_resolve.iter().filter(|path| !all_publishers || waits(path));
        let paths: Vec<Path> = next.take(RESOLVE_PATHS_MAX).cloned().collect();
        for path in &paths {
            self.routing.to_resolve.remove(path);
        }
        self.routing.resolving = true;
        self.routing.resolving_all_publishers = all_publishers;
        self.actions.push_back(Action::Resolve { paths, all_publishers });
    }
}
