//! Routes: the publishers that a path's jobs may go to. Paths with the same publishers share a
//! route, and so their batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::{Path, PublisherId};
use longshore_resolver::ReadError;

use super::batch::Batch;
use super::ids::{RouteId, Time};
use super::limits::{LINKS_PER_ROUTE, PATH_REFRESH_AGE, PATHS_MAX, ROUTE_IDLE};

/// The cached state of a path.
#[derive(Debug, Default)]
pub(super) struct PathEntry {
    pub(super) route: Option<RouteId>,
    /// A resolve request for it is queued or in progress.
    pub(super) resolve_pending: bool,
    pub(super) answered_at: Option<Time>,
    /// When to resolve it again, after a warming replica's answer.
    pub(super) retry_at: Option<Time>,
    /// Why there is no route.
    pub(super) no: Option<NoRoute>,
}

/// Why a path has no route.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum NoRoute {
    NoPublisher,
    /// The path holds a live value of the publisher with this name.
    Value(Arc<str>),
    Refused(Arc<str>),
    Resolver(Arc<ReadError>),
}

/// A set of publishers for batches.
pub(super) struct Route<T> {
    /// Publishers of its paths, or of the default that serves them; sorted.
    pub(super) own: Arc<[PublisherId]>,
    /// Also the publishers of the default above, which are candidates while all of `own` fail.
    /// Sorted.
    pub(super) set: Arc<[PublisherId]>,
    /// The publishers with links: at most [`LINKS_PER_ROUTE`], and as many again while all of `own`
    /// fail.
    pub(super) linked: Vec<PublisherId>,
    /// Sealed batches at no publisher, ordered by serial.
    pub(super) unsent: VecDeque<Batch<T>>,
    /// The publisher that gets the batches at present, and until when.
    pub(super) sticky: Option<(PublisherId, Time)>,
    /// When a job was last added.
    pub(super) used_at: Time,
    /// Paths with this route; at 0 its batches are rerouted.
    pub(super) paths: usize,
}

/// Paths and routes.
pub(super) struct Routing<T> {
    pub(super) paths: HashMap<Path, PathEntry>,
    pub(super) routes: BTreeMap<RouteId, Route<T>>,
    by_sets: BTreeMap<[Arc<[PublisherId]>; 2], RouteId>,
    /// Paths with an answer of a warming replica, by the time of the retry.
    warming: BTreeSet<(Time, Path)>,
    /// Paths to resolve.
    pub(super) to_resolve: BTreeSet<Path>,
    /// A resolve request is in progress.
    pub(super) resolving: bool,
    /// Increases when a path's route changes.
    pub(super) generation: u64,
    next_route: u32,
}

impl<T> Routing<T> {
    pub(super) fn new() -> Routing<T> {
        Routing {
            paths: HashMap::new(),
            routes: BTreeMap::new(),
            by_sets: BTreeMap::new(),
            warming: BTreeSet::new(),
            to_resolve: BTreeSet::new(),
            resolving: false,
            generation: 1,
            next_route: 0,
        }
    }

    /// The route of `own` publishers with a `fallback`; created on demand.
    pub(super) fn route_for(
        &mut self,
        now: Time,
        own: Vec<PublisherId>,
        fallback: Vec<PublisherId>,
    ) -> RouteId {
        let sorted = |mut set: Vec<PublisherId>| -> Arc<[PublisherId]> {
            set.sort_unstable();
            set.dedup();
            set.into()
        };
        let set = sorted([&own[..], &fallback[..]].concat());
        let own = sorted(own);
        let sets = [own, set];
        if let Some(&route) = self.by_sets.get(&sets) {
            return route;
        }
        let id = RouteId(self.next_route);
        self.next_route += 1;
        self.by_sets.insert(sets.clone(), id);
        let [own, set] = sets;
        let route = Route {
            linked: own.iter().copied().take(LINKS_PER_ROUTE).collect(),
            own,
            set,
            unsent: VecDeque::new(),
            sticky: None,
            used_at: now,
            paths: 0,
        };
        self.routes.insert(id, route);
        id
    }

    /// Sets the route of `path`.
    pub(super) fn set_route(&mut self, path: &Path, route: Option<RouteId>) {
        let Some(entry) = self.paths.get_mut(path) else { return };
        if entry.route == route {
            return;
        }
        if let Some(old) = entry.route.and_then(|old| self.routes.get_mut(&old)) {
            old.paths -= 1;
        }
        entry.route = route;
        if let Some(new) = route.and_then(|new| self.routes.get_mut(&new)) {
            new.paths += 1;
        }
        self.generation += 1;
    }

    /// Queues a resolve request for `path`, unless there is one.
    pub(super) fn request_resolve(&mut self, path: &Path) {
        if !self.paths.contains_key(path) && self.paths.len() >= PATHS_MAX {
            self.clear();
        }
        let entry = self.paths.entry(path.clone()).or_default();
        if !entry.resolve_pending {
            entry.resolve_pending = true;
            self.to_resolve.insert(path.clone());
        }
    }

    /// Clears the full cache: paths in use are resolved again.
    fn clear(&mut self) {
        self.paths.clear();
        self.to_resolve.clear();
        self.warming.clear();
        for route in self.routes.values_mut() {
            route.paths = 0;
        }
        self.generation += 1;
    }

    /// A route for batches with all of these paths; `None` if they have no publisher in common.
    pub(super) fn common_route(&mut self, now: Time, paths: &[Path]) -> Option<RouteId> {
        let mut routes = paths.iter().map(|path| self.paths.get(path).and_then(|e| e.route));
        let first = routes.next()??;
        let mut others = BTreeSet::new();
        for route in routes {
            others.insert(route?);
        }
        others.remove(&first);
        if others.is_empty() {
            return Some(first);
        }
        let route = self.routes.get(&first)?;
        let (mut own, mut set) = (route.own.to_vec(), route.set.to_vec());
        for route in others {
            let route = self.routes.get(&route)?;
            own.retain(|publisher| route.own.binary_search(publisher).is_ok());
            set.retain(|publisher| route.set.binary_search(publisher).is_ok());
        }
        if own.is_empty() { None } else { Some(self.route_for(now, own, set)) }
    }

    /// True if `path` has a route.
    pub(super) fn is_known(&self, path: &Path) -> bool {
        self.paths.get(path).is_some_and(|entry| entry.route.is_some())
    }

    /// The earliest retry after a warming replica's answer.
    pub(super) fn next_retry(&self) -> Option<Time> {
        self.warming.iter().map(|(at, _)| *at).next()
    }

    /// Queues the due retries after warming replicas' answers.
    pub(super) fn resolve_due(&mut self, now: Time) {
        while let Some((at, path)) = self.warming.first().cloned()
            && at <= now
        {
            self.warming.pop_first();
            if let Some(entry) = self.paths.get_mut(&path)
                && entry.retry_at.take().is_some()
            {
                self.request_resolve(&path);
            }
        }
    }

    /// Schedules a retry for `path`.
    pub(super) fn resolve_again_at(&mut self, path: &Path, at: Time) {
        if let Some(entry) = self.paths.get_mut(path) {
            entry.retry_at = Some(at);
            self.warming.insert((at, path.clone()));
        }
    }

    /// Resolves old paths of routes in use again; forgets the others.
    pub(super) fn refresh(&mut self, now: Time, open: &BTreeSet<RouteId>) {
        let mut old = Vec::new();
        let mut gone = Vec::new();
        for (path, entry) in &self.paths {
            if entry.resolve_pending
                || entry.retry_at.is_some()
                || entry.answered_at.is_some_and(|at| at + PATH_REFRESH_AGE > now)
            {
                continue;
            }
            let route = entry.route.and_then(|id| Some((id, self.routes.get(&id)?)));
            let used = route.is_some_and(|(id, route)| {
                route.used_at + ROUTE_IDLE > now || open.contains(&id) || !route.unsent.is_empty()
            });
            if used { old.push(path.clone()) } else { gone.push(path.clone()) }
        }
        old.iter().for_each(|path| self.request_resolve(path));
        for path in gone {
            self.set_route(&path, None);
            self.paths.remove(&path);
        }
    }

    /// Removes routes without paths and batches, except those in `open`.
    pub(super) fn sweep(&mut self, open: &BTreeSet<RouteId>) {
        let by_sets = &mut self.by_sets;
        self.routes.retain(|id, route| {
            let keep = route.paths > 0 || !route.unsent.is_empty() || open.contains(id);
            if !keep {
                by_sets.remove(&[route.own.clone(), route.set.clone()]);
            }
            keep
        });
    }
}
