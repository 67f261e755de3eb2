//! Routes: the publishers that a path's jobs may go to. Paths with the same publishers share a
//! route, and so their batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::{Path, PublisherId};
use longshore_resolver::ReadError;

use super::batch::Batch;
use super::home::Homeless;
use super::ids::{RouteId, Time};
use super::limits::{LINKS_PER_ROUTE, PATH_REFRESH_AGE, PATHS_MAX, ROUTE_IDLE, WARMING_RETRY};

/// The cached state of a path.
#[derive(Debug, Default)]
pub(super) struct PathEntry {
    pub(super) route: Option<RouteId>,
    /// The route to its home.
    pub(super) home: Option<RouteId>,
    /// The last one that was its home as its only publisher. Forgotten with the path if it never
    /// had jobs for the home.
    pub(super) only_publisher: Option<PublisherId>,
    /// A caller has had jobs for the home.
    pub(super) uses_home: bool,
    /// Why there is none, although the path may have publishers.
    pub(super) no_home: Option<Homeless>,
    /// A caller waits for the home.
    pub(super) wants_home: bool,
    /// A resolve request for it is queued or in progress.
    pub(super) resolve_pending: bool,
    pub(super) answered_at: Option<Time>,
    /// When to resolve it again, after a warming replica's answer.
    pub(super) retry_at: Option<Time>,
    /// Why there is no route.
    pub(super) no: Option<NoRoute>,
}

impl PathEntry {
    /// Jobs have to go to its home, which is unknown.
    pub(super) fn waits_for_home(&self) -> bool {
        self.home.is_none() && (self.wants_home || self.uses_home)
    }

    /// What is remembered of the path when it is forgotten.
    fn remembered(self) -> Option<PathEntry> {
        let only_publisher = self.only_publisher.filter(|_| self.uses_home)?;
        let only_publisher = Some(only_publisher);
        Some(PathEntry { only_publisher, uses_home: true, ..PathEntry::default() })
    }
}

/// Why a path has no route.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum NoRoute {
    NoPublisher,
    /// The path holds a live value of the publisher with this name.
    Value(Arc<str>),
    Refused(Arc<str>),
    Resolver(Arc<ReadError>),
    /// What the path has instead of one home.
    NoHome(Arc<str>),
    /// How its publishers disagree about its home.
    HomesDisagree(Arc<str>),
}

/// A set of publishers for batches.
pub(super) struct Route<T> {
    /// Its only publisher is the home of its paths. Other routes with the same publisher are apart,
    /// because theirs may change.
    pub(super) is_home: bool,
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

/// Whether it is to a home, its own publishers, and all.
type RouteKey = (bool, [Arc<[PublisherId]>; 2]);

/// Paths and routes.
pub(super) struct Routing<T> {
    pub(super) paths: HashMap<Path, PathEntry>,
    pub(super) routes: BTreeMap<RouteId, Route<T>>,
    by_sets: BTreeMap<RouteKey, RouteId>,
    /// Paths with an answer of a warming replica, by the time of the retry.
    warming: BTreeSet<(Time, Path)>,
    /// Paths to resolve.
    pub(super) to_resolve: BTreeSet<Path>,
    /// A resolve request is in progress.
    pub(super) resolving: bool,
    /// It is one for all publishers.
    pub(super) resolving_all_publishers: bool,
    /// When the next resolve request may be one for all publishers.
    pub(super) all_publishers_at: Time,
    /// Routes that paths have left since their batches were last rerouted.
    pub(super) left: BTreeSet<RouteId>,
    /// Increases when a path's route, or the one to its home, changes.
    pub(super) generation: u64,
    next_route: u64,
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
            resolving_all_publishers: false,
            all_publishers_at: Time::ZERO,
            left: BTreeSet::new(),
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
        is_home: bool,
    ) -> RouteId {
        let sorted = |mut set: Vec<PublisherId>| -> Arc<[PublisherId]> {
            set.sort_unstable();
            set.dedup();
            set.into()
        };
        let set = sorted([&own[..], &fallback[..]].concat());
        let own = sorted(own);
        let sets = (is_home, [own, set]);
        if let Some(&route) = self.by_sets.get(&sets) {
            return route;
        }
        let id = RouteId(self.next_route);
        self.next_route += 1;
        self.by_sets.insert(sets.clone(), id);
        let (_, [own, set]) = sets;
        let route = Route {
            is_home,
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
        if entry.route != route {
            self.left.extend(entry.route);
            replace_route(&mut self.routes, &mut entry.route, route);
            self.generation += 1;
        }
    }

    /// Sets the route to the home of `path`.
    pub(super) fn set_home(&mut self, path: &Path, home: Option<RouteId>) {
        let Some(entry) = self.paths.get_mut(path) else { return };
        if entry.home != home {
            self.left.extend(entry.home);
            replace_route(&mut self.routes, &mut entry.home, home);
            self.generation += 1;
        }
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

    /// Clears the full cache: paths in use are resolved again. Homes without a declaration are
    /// remembered, unless they alone fill half of it.
    fn clear(&mut self) {
        let paths = std::mem::take(&mut self.paths).into_iter();
        self.paths = paths.filter_map(|(path, entry)| Some((path, entry.remembered()?))).collect();
        if self.paths.len() > PATHS_MAX / 2 {
            self.paths.clear();
        }
        self.to_resolve.clear();
        self.warming.clear();
        for route in self.routes.values_mut() {
            route.paths = 0;
        }
        self.generation += 1;
    }

    /// A route for batches with all of these paths, to the homes of those with `true`; `None` if
    /// they have no publisher in common.
    pub(super) fn common_route<'a>(
        &mut self,
        now: Time,
        paths: impl Iterator<Item = (&'a Path, bool)>,
    ) -> Option<RouteId> {
        let mut routes = paths.map(|(path, at_home)| self.route_of(path, at_home));
        let first = routes.next()??;
        let mut others = BTreeSet::new();
        for route in routes {
            others.insert(route?);
        }
        others.remove(&first);
        if others.is_empty() {
            return Some(first);
        }
        let routes = others.iter().chain([&first]).map(|id| self.routes.get(id));
        let routes: Vec<&Route<T>> = routes.collect::<Option<_>>()?;
        let is_home = routes.iter().any(|route| route.is_home);
        // A home may be one that would only create the other paths.
        let candidates = |route: &Route<T>| match is_home && !route.is_home {
            true => route.set.clone(),
            false => route.own.clone(),
        };
        let (mut own, mut set) = (candidates(routes[0]).to_vec(), routes[0].set.to_vec());
        for route in &routes[1..] {
            let candidates = candidates(route);
            own.retain(|publisher| candidates.binary_search(publisher).is_ok());
            set.retain(|publisher| route.set.binary_search(publisher).is_ok());
        }
        if own.is_empty() { None } else { Some(self.route_for(now, own, set, is_home)) }
    }

    /// The route of `path`, or the route to its home.
    pub(super) fn route_of(&mut self, path: &Path, at_home: bool) -> Option<RouteId> {
        let entry = self.paths.get_mut(path)?;
        entry.uses_home |= at_home;
        if at_home { entry.home } else { entry.route }
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

    /// Schedules a retry for `path`, unless it is to be resolved anyway.
    pub(super) fn retry(&mut self, now: Time, path: &Path) {
        match self.paths.get(path) {
            None => self.request_resolve(path),
            Some(entry) if entry.resolve_pending || entry.retry_at.is_some() => {}
            Some(_) => self.resolve_again_at(path, now + WARMING_RETRY),
        }
    }

    /// Resolves old paths of routes in use again; forgets the others, except for their only
    /// publisher while `is_up` is true for it.
    pub(super) fn refresh(
        &mut self,
        now: Time,
        open: &BTreeSet<RouteId>,
        is_up: impl Fn(&PublisherId) -> bool,
    ) {
        let mut old = Vec::new();
        let mut gone = Vec::new();
        for (path, entry) in &self.paths {
            if entry.resolve_pending
                || entry.retry_at.is_some()
                || entry.answered_at.is_some_and(|at| at + PATH_REFRESH_AGE > now)
            {
                continue;
            }
            let routes = [entry.route, entry.home].into_iter().flatten();
            let mut routes = routes.filter_map(|id| Some((id, self.routes.get(&id)?)));
            let used = routes.any(|(id, route)| {
                route.used_at + ROUTE_IDLE > now || open.contains(&id) || !route.unsent.is_empty()
            });
            if used { old.push(path.clone()) } else { gone.push(path.clone()) }
        }
        old.iter().for_each(|path| self.request_resolve(path));
        for path in gone {
            self.set_route(&path, None);
            self.set_home(&path, None);
            let Some(entry) = self.paths.remove(&path) else { continue };
            if let Some(remembered) = entry.remembered()
                && remembered.only_publisher.is_some_and(|only| is_up(&only))
            {
                self.paths.insert(path, remembered);
            }
        }
    }

    /// Removes routes without paths and batches, except those in `open`.
    pub(super) fn sweep(&mut self, open: &BTreeSet<RouteId>) {
        let by_sets = &mut self.by_sets;
        self.routes.retain(|id, route| {
            let keep = route.paths > 0 || !route.unsent.is_empty() || open.contains(id);
            if !keep {
                by_sets.remove(&(route.is_home, [route.own.clone(), route.set.clone()]));
            }
            keep
        });
    }
}

fn replace_route<T>(
    routes: &mut BTreeMap<RouteId, Route<T>>,
    old: &mut Option<RouteId>,
    new: Option<RouteId>,
) {
    if let Some(old) = old.and_then(|old| routes.get_mut(&old)) {
        old.paths -= 1;
    }
    *old = new;
    if let Some(new) = new.and_then(|new| routes.get_mut(&new)) {
        new.paths += 1;
    }
}
