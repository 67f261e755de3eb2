//! Watches: of the publishers that have, or could make, queues that match a glob; and of the paths
//! that match some globs.
//!
//! A watch is sent a snapshot first, then the changes. Watches of one kind with the same globs, of
//! clients that see the same paths, share a pattern, and a pattern has one log. Each watch has a
//! position in that log; one that is too far behind starts over with a snapshot. A change of a path
//! is sent as its current state, not as an event: sending it twice is harmless, and the changes
//! since a snapshot *began* complete it. A snapshot of publishers is their whole set, and only
//! departures are logged: with any other change all watches start over.
//!
//! ```text
//!  path changes ──▶ patterns by literal prefix ──▶ log:  /a/b  /a/c  /a/b  …
//!                                                         ▲                 ▲
//!                            watch (7, 3): sent until here     (1, 1), (1, 2): sent everything
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use longshore_protocol::messages::resolver::Departure;
use longshore_protocol::{Glob, Path, PublisherId};

use crate::directory::globs::GlobWalk;
use crate::directory::prefixes::{PatternId, Prefixes};
use crate::directory::registrations::Registration;
use crate::directory::scope::Scope;
use crate::directory::tree::Tree;
use crate::directory::{Client, Slot};

/// Changes that one pattern logs for its slowest watch. Beyond that the older half is dropped, and
/// a watch that was not sent them starts over.
const LOG_MAX: usize = 4_096;
/// Changes in the logs of all patterns.
const LOGGED_MAX: usize = 1 << 20;
/// Most changed paths in one message.
const SENT_MAX: usize = 1_024;

/// The subject of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum WatchKind {
    Publishers,
    Paths,
}

/// All watches. `W` is the suspended walk of a path snapshot.
#[derive(Debug)]
pub(super) struct Watches<W> {
    patterns: HashMap<PatternId, Pattern>,
    by_globs: HashMap<PatternKey, PatternId>,
    /// The scopes of clients that do not see everything.
    scopes: HashMap<Client, Scope>,
    prefixes: Prefixes,
    by_key: BTreeMap<(Client, u32), PatternId>,
    states: BTreeMap<(Client, PatternId, u32), WatchState<W>>,
    /// Pairs of client and pattern with something to send; all others are in the pattern's `idle`.
    due: BTreeSet<(Client, PatternId)>,
    /// The pattern that a client was sent last: the others come first.
    last: HashMap<Client, PatternId>,
    /// Clients that have become due since the last call of [`Watches::newly_due`].
    newly_due: Vec<Client>,
    /// Changes in all logs.
    logged: usize,
    log_max: usize,
    logged_max: usize,
}

/// What makes watches share a pattern: their kind, their globs, and what their clients see.
type PatternKey = (WatchKind, Arc<[Glob]>, Scope);

#[derive(Debug)]
struct Pattern {
    globs: Arc<[Glob]>,
    scope: Scope,
    /// `None` for watches of paths.
    count: Option<Count>,
    log: VecDeque<LoggedChange>,
    /// The log position of the first entry, counted from the pattern's beginning.
    from: u64,
    /// Clients with a watch of this pattern.
    clients: usize,
    /// Clients that have been sent everything.
    idle: Vec<Client>,
}

/// The publishers that match a pattern.
#[derive(Default, Debug)]
struct Count {
    /// For each visible publisher: the number of its paths that match, and of its defaults that
    /// could.
    publishers: BTreeMap<Slot, u64>,
    /// The first count while it is in progress: paths that the walk has passed are counted, and
    /// their changes update the count.
    walk: Option<Box<GlobWalk>>,
    done: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum LoggedChange {
    /// The state of a path has changed.
    Path(Arc<str>),
    /// A publisher is no longer visible.
    Gone(PublisherId, Departure),
}

/// The progress of a watch.
#[derive(Debug)]
enum WatchState<W> {
    /// A snapshot is being sent; the changes from `from` on follow. `walk` is `None` before the
    /// first part.
    Snapshot { from: u64, walk: Option<W> },
    /// Everything up to this position has been sent.
    Following { at: u64 },
}

/// The next step for a client.
#[derive(Debug)]
pub(super) enum WatchStep<W> {
    /// Continue the first count, or begin it if there is no walk. [`Watches::counted`] takes the
    /// result.
    Count { pattern: PatternId, globs: Arc<[Glob]>, scope: Scope, walk: Option<Box<GlobWalk>> },
    /// Send all publishers that match.
    Publishers { watch: u32, publishers: Vec<Slot> },
    /// Send the departure of a publisher.
    Gone { watches: Vec<u32>, publisher: PublisherId, departure: Departure },
    /// Send the next part of a snapshot: the first one if there is no walk.
    /// [`Watches::suspend_snapshot`] takes the result.
    Snapshot { watch: u32, globs: Arc<[Glob]>, scope: Scope, walk: Option<W> },
    /// Send the current state of these paths.
    Changes { watches: Vec<u32>, paths: Vec<Arc<str>> },
}

impl<W> Default for Watches<W> {
    fn default() -> Watches<W> {
        Watches::with_limits(LOG_MAX, LOGGED_MAX)
    }
}

impl<W> Watches<W> {
    fn with_limits(log_max: usize, logged_max: usize) -> Watches<W> {
        Watches {
            patterns: HashMap::new(),
            by_globs: HashMap::new(),
            scopes: HashMap::new(),
            prefixes: Prefixes::default(),
            by_key: BTreeMap::new(),
            states: BTreeMap::new(),
            due: BTreeSet::new(),
            last: HashMap::new(),
            newly_due: Vec::new(),
            logged: 0,
            log_max,
            logged_max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The parts of all globs, with `globs` added.
    pub(super) fn parts_with(&self, globs: &[Glob]) -> usize {
        self.prefixes.parts_with(globs)
    }

    /// The number of a client's watches.
    pub(super) fn len_of(&self, client: Client) -> usize {
        self.by_key.range((client, 0)..=(client, u32::MAX)).count()
    }

    /// Adds a watch of whatever matches any of `globs`. It replaces a watch of the same number.
    pub(super) fn add(&mut self, client: Client, watch: u32, kind: WatchKind, globs: Arc<[Glob]>) {
        self.remove(client, watch);
        let key = (kind, globs, self.scopes.get(&client).cloned().unwrap_or_default());
        let id = match self.by_globs.get(&key) {
            Some(&id) => id,
            None => self.add_pattern(key),
        };
        let is_new = self.watches(client, id).next().is_none();
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        if is_new {
            pattern.clients += 1;
        } else {
            pattern.idle.retain(|&idle| idle != client);
        }
        let state = WatchState::Snapshot { from: pattern.end(), walk: None };
        self.by_key.insert((client, watch), id);
        self.states.insert((client, id, watch), state);
        self.make_due(client, id);
    }

    /// From now on a client sees this part of the directory. Its watches begin anew.
    pub(super) fn set_scope(&mut self, client: Client, scope: Scope) {
        let is_changed = match scope.is_everything() {
            true => self.scopes.remove(&client).is_some(),
            false => self.scopes.insert(client, scope.clone()) != Some(scope),
        };
        if !is_changed {
            return;
        }
        let watches = self.by_key.range((client, 0)..=(client, u32::MAX));
        let watches: Vec<(u32, PatternId)> = watches.map(|(key, &id)| (key.1, id)).collect();
        for (watch, id) in watches {
            if let Some(pattern) = self.patterns.get(&id) {
                self.add(client, watch, pattern.kind(), pattern.globs.clone());
            }
        }
    }

    fn add_pattern(&mut self, key: PatternKey) -> PatternId {
        let id = self.prefixes.add(&key.1);
        let pattern = Pattern {
            globs: key.1.clone(),
            scope: key.2.clone(),
            count: (key.0 == WatchKind::Publishers).then(Count::default),
            log: VecDeque::new(),
            from: 0,
            clients: 0,
            idle: Vec::new(),
        };
        self.by_globs.insert(key, id);
        self.patterns.insert(id, pattern);
        id
    }

    /// Removes a watch.
    pub(super) fn remove(&mut self, client: Client, watch: u32) {
        let Some(id) = self.by_key.remove(&(client, watch)) else { return };
        self.states.remove(&(client, id, watch));
        if self.watches(client, id).next().is_some() {
            return;
        }
        let was_due = self.due.remove(&(client, id));
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        pattern.clients -= 1;
        if !was_due {
            pattern.idle.retain(|&idle| idle != client);
        }
        if pattern.clients == 0
            && let Some(pattern) = self.patterns.remove(&id)
        {
            self.logged -= pattern.log.len();
            self.prefixes.remove(id, &pattern.globs);
            self.by_globs.remove(&(pattern.kind(), pattern.globs, pattern.scope));
        } else {
            self.forget_sent(id);
        }
    }

    pub(super) fn client_gone(&mut self, client: Client) {
        let watches: Vec<u32> =
            self.by_key.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| key.1).collect();
        watches.into_iter().for_each(|watch| self.remove(client, watch));
        self.last.remove(&client);
        self.scopes.remove(&client);
    }

    fn watches(&self, client: Client, id: PatternId) -> impl Iterator<Item = u32> {
        self.states.range((client, id, 0)..=(client, id, u32::MAX)).map(|(&(.., watch), _)| watch)
    }

    /// A path, or the default at it, has changed. `jobs` is set if a publisher now has jobs there,
    /// or no longer has. Must be called while the path's node is in the tree. Returns the cost, in
    /// globs compared.
    pub(super) fn changed(
        &mut self,
        tree: &Tree,
        registration: Registration,
        path: &str,
        jobs: Option<(Slot, bool)>,
    ) -> usize {
        if self.by_key.is_empty() {
            return 0;
        }
        // A default could make queues: it concerns everything below it, too.
        let makes = registration.default && jobs.is_some();
        let below = makes.then(|| Path::new(path).ok()).flatten();
        let concerned = match below {
            Some(_) => self.patterns.keys().copied().collect(),
            None => self.prefixes.above(path),
        };
        let (mut text, mut cost) = (None, 0);
        for id in concerned {
            let Some(pattern) = self.patterns.get_mut(&id) else { continue };
            cost += pattern.globs.len() + pattern.scope.cost();
            let Some(count) = &mut pattern.count else {
                let matches = pattern.globs.iter().any(|glob| glob.matches_str(path));
                if matches && pattern.scope.contains(path) {
                    let text = text.get_or_insert_with(|| Arc::<str>::from(path));
                    self.log(id, LoggedChange::Path(text.clone()));
                }
                continue;
            };
            let concerns = |glob: &Glob| match &below {
                Some(path) => glob.could_match_at_or_below(path),
                None => glob.matches_str(path),
            };
            let is_in = |scope: &Scope| match &below {
                Some(path) => scope.reaches(path),
                None => scope.contains(path),
            };
            if let Some((slot, holds)) = jobs
                && pattern.globs.iter().any(concerns)
                && is_in(&pattern.scope)
                && count.has_passed(tree, registration)
                && count.add(slot, holds)
            {
                self.start_over(id);
            }
        }
        cost
    }

    /// A publisher is no longer visible. Returns the cost, in patterns.
    pub(super) fn hide(
        &mut self,
        slot: Slot,
        publisher: PublisherId,
        departure: Departure,
    ) -> usize {
        let counted = |(&id, pattern): (&PatternId, &mut Pattern)| {
            let count = pattern.count.as_mut()?;
            (count.publishers.remove(&slot).is_some() && count.done).then_some(id)
        };
        let patterns: Vec<PatternId> = self.patterns.iter_mut().filter_map(counted).collect();
        patterns.into_iter().for_each(|id| self.log(id, LoggedChange::Gone(publisher, departure)));
        self.patterns.len()
    }

    /// A publisher has moved or restarted.
    pub(super) fn publisher_moved(&mut self, slot: Slot) {
        let with = |(&id, pattern): (&PatternId, &Pattern)| {
            pattern.count.as_ref()?.publishers.contains_key(&slot).then_some(id)
        };
        let patterns: Vec<PatternId> = self.patterns.iter().filter_map(with).collect();
        patterns.into_iter().for_each(|id| self.start_over(id));
    }

    /// Everything is to be sent again: the completeness of the directory has changed.
    pub(super) fn all_start_over(&mut self) {
        let patterns: Vec<PatternId> = self.patterns.keys().copied().collect();
        patterns.into_iter().for_each(|id| self.start_over(id));
    }

    /// All watches of a pattern start over with a snapshot.
    fn start_over(&mut self, id: PatternId) {
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        self.logged -= pattern.forget(pattern.log.len());
        pattern.from += 1;
        self.wake(id);
    }

    fn log(&mut self, id: PatternId, change: LoggedChange) {
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        pattern.log.push_back(change);
        self.logged += 1;
        if self.logged > self.logged_max {
            self.logged -= pattern.forget(pattern.log.len());
        } else if pattern.log.len() > self.log_max {
            self.logged -= pattern.forget(self.log_max / 2 + 1);
        }
        self.wake(id);
    }

    fn wake(&mut self, id: PatternId) {
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        for client in std::mem::take(&mut pattern.idle) {
            self.make_due(client, id);
        }
    }

    fn make_due(&mut self, client: Client, id: PatternId) {
        let range = (client, PatternId::MIN)..=(client, PatternId::MAX);
        if self.due.range(range).next().is_none() {
            self.newly_due.push(client);
        }
        self.due.insert((client, id));
    }

    /// Clients that have become due since the last call.
    pub(super) fn newly_due(&mut self) -> std::vec::Drain<'_, Client> {
        self.newly_due.drain(..)
    }

    /// The next step for a client. `None` when it has been sent everything: with the next change it
    /// becomes due again.
    pub(super) fn next(&mut self, client: Client) -> Option<WatchStep<W>> {
        loop {
            let id = self.next_due(client)?;
            self.last.insert(client, id);
            if let Some(next) = self.next_of(client, id) {
                return Some(next);
            }
            self.due.remove(&(client, id));
            if let Some(pattern) = self.patterns.get_mut(&id) {
                pattern.idle.push(client);
            }
            self.forget_sent(id);
        }
    }

    /// Patterns take turns.
    fn next_due(&self, client: Client) -> Option<PatternId> {
        let last = self.last.get(&client).copied().unwrap_or(PatternId::MIN);
        let after = self.due.range((client, last.next())..=(client, PatternId::MAX)).next();
        let first = || self.due.range((client, PatternId::MIN)..=(client, PatternId::MAX)).next();
        after.or_else(first).map(|&(_, id)| id)
    }

    fn next_of(&mut self, client: Client, id: PatternId) -> Option<WatchStep<W>> {
        let pattern = self.patterns.get_mut(&id)?;
        let (from, end) = (pattern.from, pattern.end());
        if let Some(count) = &mut pattern.count
            && !count.done
        {
            let (globs, walk) = (pattern.globs.clone(), count.walk.take());
            let scope = pattern.scope.clone();
            return Some(WatchStep::Count { pattern: id, globs, scope, walk });
        }
        let range = (client, id, 0)..=(client, id, u32::MAX);
        let mut at = None;
        for (&(.., watch), state) in self.states.range_mut(range.clone()) {
            if let WatchState::Following { at } = state
                && *at < from
            {
                *state = WatchState::Snapshot { from: end, walk: None };
            }
            match state {
                WatchState::Snapshot { from, walk } => {
                    if let Some(count) = &pattern.count {
                        let publishers = count.publishers.keys().copied().collect();
                        *state = WatchState::Following { at: end };
                        return Some(WatchStep::Publishers { watch, publishers });
                    }
                    // The snapshot begins now, however long it waited for its turn: it contains all
                    // earlier changes.
                    if walk.is_none() {
                        *from = end;
                    }
                    let (globs, walk) = (pattern.globs.clone(), walk.take());
                    let scope = pattern.scope.clone();
                    return Some(WatchStep::Snapshot { watch, globs, scope, walk });
                }
                WatchState::Following { at: position } if *position < end => {
                    at.get_or_insert(*position);
                }
                WatchState::Following { .. } => {}
            }
        }
        let at = at?;
        if let Some(&LoggedChange::Gone(publisher, departure)) = pattern.change(at) {
            let watches = self.past_departure(client, &LoggedChange::Gone(publisher, departure));
            return Some(WatchStep::Gone { watches, publisher, departure });
        }
        // All watches at the same position are sent one message.
        let (mut paths, mut seen, mut until) = (Vec::new(), HashSet::new(), at);
        while until < at + SENT_MAX as u64
            && let Some(LoggedChange::Path(path)) = pattern.change(until)
        {
            until += 1;
            if seen.insert(path.clone()) {
                paths.push(path.clone());
            }
        }
        let mut watches = Vec::new();
        for (&(.., watch), state) in self.states.range_mut(range) {
            if let WatchState::Following { at: position } = state
                && *position == at
            {
                *position = until;
                watches.push(watch);
            }
        }
        Some(WatchStep::Changes { watches, paths })
    }

    /// Advances all watches of a client, of any pattern, whose next message is this departure: they
    /// share one message.
    fn past_departure(&mut self, client: Client, gone: &LoggedChange) -> Vec<u32> {
        let all = (client, PatternId::MIN, 0)..=(client, PatternId::MAX, u32::MAX);
        let mut watches = Vec::new();
        for (&(_, id, watch), state) in self.states.range_mut(all) {
            if let WatchState::Following { at } = state
                && self.patterns.get(&id).and_then(|pattern| pattern.change(*at)) == Some(gone)
            {
                *at += 1;
                watches.push(watch);
            }
        }
        watches
    }

    /// Adds the counts of the publishers that the first count has passed. `walk` is `None` once it
    /// is done.
    pub(super) fn counted(
        &mut self,
        id: PatternId,
        publishers: BTreeMap<Slot, u64>,
        walk: Option<Box<GlobWalk>>,
    ) {
        let pattern = self.patterns.get_mut(&id);
        let Some(count) = pattern.and_then(|pattern| pattern.count.as_mut()) else { return };
        for (slot, times) in publishers {
            *count.publishers.entry(slot).or_default() += times;
        }
        (count.done, count.walk) = (walk.is_none(), walk);
    }

    /// Suspends the snapshot of a watch; `suspended` is `None` once it was sent whole.
    pub(super) fn suspend_snapshot(&mut self, client: Client, watch: u32, suspended: Option<W>) {
        let Some(&id) = self.by_key.get(&(client, watch)) else { return };
        if let Some(state) = self.states.get_mut(&(client, id, watch))
            && let WatchState::Snapshot { from, walk } = state
        {
            match suspended {
                None => *state = WatchState::Following { at: *from },
                suspended => *walk = suspended,
            }
        }
    }

    /// Drops the log once every client has been sent it.
    fn forget_sent(&mut self, id: PatternId) {
        if let Some(pattern) = self.patterns.get_mut(&id)
            && pattern.idle.len() == pattern.clients
        {
            self.logged -= pattern.forget(pattern.log.len());
        }
    }
}

impl Pattern {
    fn kind(&self) -> WatchKind {
        if self.count.is_some() { WatchKind::Publishers } else { WatchKind::Paths }
    }

    /// The position after the log's last entry.
    fn end(&self) -> u64 {
        self.from + self.log.len() as u64
    }

    fn change(&self, at: u64) -> Option<&LoggedChange> {
        self.log.get(usize::try_from(at.checked_sub(self.from)?).ok()?)
    }

    /// Drops the oldest entries, and returns their number.
    fn forget(&mut self, entries: usize) -> usize {
        let entries = entries.min(self.log.len());
        self.log.drain(..entries);
        self.from += entries as u64;
        entries
    }
}

impl Count {
    /// False for a path that the first count has not passed yet.
    fn has_passed(&self, tree: &Tree, registration: Registration) -> bool {
        self.done || self.walk.as_ref().is_some_and(|walk| walk.has_passed(tree, registration.node))
    }

    /// A publisher has jobs at one more path, or at one less. True if it appears, or disappears, by
    /// that.
    fn add(&mut self, slot: Slot, holds: bool) -> bool {
        if holds {
            let count = self.publishers.entry(slot).or_default();
            *count += 1;
            return *count == 1;
        }
        let Some(count) = self.publishers.get_mut(&slot) else { return false };
        *count -= 1;
        let gone = *count == 0;
        if gone {
            self.publishers.remove(&slot);
        }
        gone
    }
}

#[cfg(test)]
#[path = "watches_test.rs"]
mod watches_test;
