//! Which publishers a path's jobs may go to. Paths with the same publishers share a route, and so
//! their batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::{Path, PublisherId};
use longshore_resolver::ReadError;

use super::batch::Batch;
use super::ids::{RouteId, Time};
use super::limits::{LINKS_PER_ROUTE, PATH_REFRESH_AGE, PATHS_MAX, ROUTE_IDLE};

/// What is known of a path.
#[derive(Debug, Default)]
pub(super) struct PathEntry {
    pub(super) route: Option<RouteId>,
    /// A question about it waits or is under way.
    pub(super) resolve_pending: bool,
    pub(super) answered_at: Option<Time>,
    /// When to ask again unbidden: the answer was a warming replica's.
    pub(super) retry_at: Option<Time>,
    /// Why there is no route.
    pub(super) no: Option<NoRoute>,
}

/// Why a path has no route.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum NoRoute {
    NoPublisher,
    /// It holds a live value, of the publisher of that name.
    Value(Arc<str>),
    Refused(Arc<str>),
    Resolver(Arc<ReadError>),
}

/// A set of publishers that batches go to.
pub(super) struct Route<T> {
    /// Those that publish its paths, or have the default that serves them; sorted.
    pub(super) own: Arc<[PublisherId]>,
    /// The same, and those of the default above: candidates while none of `own` can be reached.
    /// Sorted.
    pub(super) set: Arc<[PublisherId]>,
    /// Those that links are kept to: at most [`LINKS_PER_ROUTE`], and as many again while all of
    /// `own` fail.
    pub(super) linked: Vec<PublisherId>,
    /// Sealed, and at no publisher; by serial.
    pub(super) unsent: VecDeque<Batch<T>>,
    /// The publisher that gets the batches for the moment, and until when.
    pub(super) sticky: Option<(PublisherId, Time)>,
    /// When a job was last added for it.
    pub(super) used_at: Time,
    /// Paths that lead here; with none, its batches are led anew.
    pub(super) paths: usize,
}

/// Paths and routes.
pub(super) struct Routing<T> {
    pub(super) paths: HashMap<Path, PathEntry>,
    pub(super) routes: BTreeMap<RouteId, Route<T>>,
    by_sets: BTreeMap<[Arc<[PublisherId]>; 2], RouteId>,
    /// Paths whose "no" was a warming replica's, by the time to ask again.
    warming: BTreeSet<(Time, Path)>,
    /// Paths to ask about.
    pub(super) to_resolve: BTreeSet<Path>,
    /// A question is under way.
    pub(super) resolving: bool,
    /// Rises when a path leads elsewhere.
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

    /// The route of some publishers, and of those to fall back to; made if need be.
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

    /// Leads `path` to `route`, or nowhere.
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

    /// Asks about `path`, unless that is under way.
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

    /// Empties the full table: what is still used is asked about again.
    fn clear(&mut self) {
        self.paths.clear();
        self.to_resolve.clear();
        self.warming.clear();
        for route in self.routes.values_mut() {
            route.paths = 0;
        }
        self.generation += 1;
    }

    /// The route of batches that have all of these paths: none when they have no publisher in
    /// common.
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

    /// True when `path` leads to a route.
    pub(super) fn is_known(&self, path: &Path) -> bool {
        self.paths.get(path).is_some_and(|entry| entry.route.is_some())
    }

    /// When a warming replica's "no" is to be asked about again.
    pub(super) fn next_retry(&self) -> Option<Time> {
        self.warming.iter().map(|(at, _)| *at).next()
    }

    /// Asks about the paths whose "no" was a warming replica's, once it is time.
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

    /// Takes down that `path` is to be asked about again at `at`.
    pub(super) fn resolve_again_at(&mut self, path: &Path, at: Time) {
        if let Some(entry) = self.paths.get_mut(path) {
            entry.retry_at = Some(at);
            self.warming.insert((at, path.clone()));
        }
    }

    /// Asks again about old paths of routes that are in use; forgets the others.
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

    /// Removes routes that no path leads to and no batch waits on, except those in `open`.
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
