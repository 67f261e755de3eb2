//! Watches over publishers: who has, or could make, queues that match a glob, told whenever that changes. Who publishes nothing but live
//! values there is not told of: no worker and no tool has anything to ask of it. Level-triggered: a watch has one mark, set or not,
//! however much has changed, and is told the whole set. Only that a publisher is gone is told as such, to those who know it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use longshore_protocol::messages::resolver::Departure;
use longshore_protocol::{Glob, Path, PublisherId};

use crate::directory::holdings::Held;
use crate::directory::liveness::Liveness;
use crate::directory::paths::Paths;
use crate::directory::prefixes::{PatternId, Prefixes, prefix};
use crate::directory::tree::NodeId;
use crate::directory::walks::Step;
use crate::directory::{Client, Slot};

/// Departures that one client may have waiting; with more, its watches are told their whole sets.
const GONE_MAX: usize = 64;

type WatchKey = (Client, u32);

/// All watches. Those of the same glob share one pattern: a change costs a match for each glob above it, not for each watch.
#[derive(Default, Debug)]
pub(super) struct Watches {
    by_key: BTreeMap<WatchKey, PatternId>,
    by_glob: HashMap<Glob, PatternId>,
    patterns: BTreeMap<PatternId, Pattern>,
    prefixes: Prefixes,
    /// Patterns that do not yet count all paths, by the client that wants them: clients go on in turns, so that one with thousands of
    /// new globs does not hold up another with one. A pattern may be in several rows; then it is done by the first.
    scans: BTreeMap<Client, VecDeque<PatternId>>,
    /// Those clients, each once.
    scan_turns: VecDeque<Client>,
    /// Watches to be told their whole set.
    marked: BTreeSet<WatchKey>,
    /// Publishers that clients are to be told are gone.
    gone: BTreeMap<Client, Vec<Gone>>,
    /// Clients that have something to be told since they were last asked for.
    newly_due: Vec<Client>,
}

#[derive(Debug)]
struct Pattern {
    glob: Glob,
    watchers: BTreeSet<WatchKey>,
    /// For each publisher that can be seen: how many of its paths match, and of its defaults could.
    counts: BTreeMap<Slot, u64>,
    /// How far the first count of all paths is, until it is done.
    scan: Option<Scan>,
}

/// The first count of the paths that match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scan {
    /// Nothing is counted. If few nodes lie below the glob's literal prefix, they are all counted in one step.
    Whole,
    /// They are many: nodes are counted in the order of their numbers. Those before this one are, and are kept counted.
    By(NodeId),
}

/// Most nodes below a literal prefix that are counted in one step: about 2 ms. Tests have few nodes, and are to meet both ways.
const WHOLE_MAX: usize = if cfg!(test) { 2 } else { 10_240 };

/// A publisher that watches have been told of is there no longer.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) publisher: PublisherId,
    pub(super) departure: Departure,
    pub(super) watches: Vec<u32>,
}

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The parts of all globs.
    pub(super) fn parts(&self) -> usize {
        self.prefixes.parts_with(&[])
    }

    /// How many watches a client has.
    pub(super) fn len_of(&self, client: Client) -> usize {
        self.by_key.range((client, 0)..=(client, u32::MAX)).count()
    }

    /// Watches who could serve what matches the glob. A watch of the same number is replaced.
    pub(super) fn add(&mut self, client: Client, watch: u32, glob: Glob) {
        let key = (client, watch);
        self.remove(client, watch);
        let id = match self.by_glob.get(&glob) {
            Some(&id) => id,
            None => {
                let id = self.prefixes.add(std::slice::from_ref(&glob));
                self.by_glob.insert(glob.clone(), id);
                let (watchers, counts) = (BTreeSet::new(), BTreeMap::new());
                self.patterns
                    .insert(id, Pattern { glob, watchers, counts, scan: Some(Scan::Whole) });
                id
            }
        };
        self.by_key.insert(key, id);
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        pattern.watchers.insert(key);
        if pattern.scan.is_none() {
            self.mark(key);
            return;
        }
        if !self.scans.contains_key(&client) {
            self.scan_turns.push_back(client);
        }
        self.scans.entry(client).or_default().push_back(id);
    }

    pub(super) fn remove(&mut self, client: Client, watch: u32) {
        let key = (client, watch);
        let Some(id) = self.by_key.remove(&key) else { return };
        self.marked.remove(&key);
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        pattern.watchers.remove(&key);
        if pattern.watchers.is_empty()
            && let Some(pattern) = self.patterns.remove(&id)
        {
            if let Some(row) = self.scans.get_mut(&client) {
                row.retain(|&other| other != id);
            }
            self.by_glob.remove(&pattern.glob);
            self.prefixes.remove(id, std::slice::from_ref(&pattern.glob));
        }
    }

    pub(super) fn client_gone(&mut self, client: Client) {
        // Another client that watches the same globs has them in a row of its own.
        self.scans.remove(&client);
        self.scan_turns.retain(|&other| other != client);
        let watches: Vec<u32> =
            self.by_key.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| key.1).collect();
        watches.into_iter().for_each(|watch| self.remove(client, watch));
        self.gone.remove(&client);
    }

    /// Those that a change of this path, or of the default at it, could concern. A default concerns what lies below it, too.
    fn concerned(&self, path: &Path, default: bool) -> Vec<PatternId> {
        if default {
            self.patterns.keys().copied().collect()
        } else {
            self.prefixes.above(path.as_str())
        }
    }

    /// A publisher holds jobs where it did not. Says what that has cost, in globs compared.
    pub(super) fn held(&mut self, slot: Slot, node: NodeId, path: &Path, default: bool) -> usize {
        let concerned = self.concerned(path, default);
        for &id in &concerned {
            if let Some(pattern) = self.patterns.get_mut(&id)
                && pattern.counts_already(node)
                && concerns(&pattern.glob, path, default)
            {
                let count = pattern.counts.entry(slot).or_default();
                *count += 1;
                if *count == 1 {
                    self.mark_pattern(id);
                }
            }
        }
        concerned.len()
    }

    /// A publisher no longer holds jobs there. Says what that has cost, in globs compared.
    pub(super) fn let_go(&mut self, slot: Slot, node: NodeId, path: &Path, default: bool) -> usize {
        let concerned = self.concerned(path, default);
        for &id in &concerned {
            if let Some(pattern) = self.patterns.get_mut(&id)
                && pattern.counts_already(node)
                && concerns(&pattern.glob, path, default)
                && let Some(count) = pattern.counts.get_mut(&slot)
            {
                *count -= 1;
                if *count == 0 {
                    pattern.counts.remove(&slot);
                    self.mark_pattern(id);
                }
            }
        }
        concerned.len()
    }

    /// A publisher can no longer be seen: watches that have been told their sets are told that much, and no more. Says what that has
    /// cost, in patterns looked at.
    pub(super) fn hide(
        &mut self,
        slot: Slot,
        publisher: PublisherId,
        departure: Departure,
    ) -> usize {
        let mut told: BTreeMap<Client, Vec<u32>> = BTreeMap::new();
        for pattern in self.patterns.values_mut() {
            if pattern.counts.remove(&slot).is_some() && pattern.scan.is_none() {
                for &(client, watch) in &pattern.watchers {
                    if !self.marked.contains(&(client, watch)) {
                        told.entry(client).or_default().push(watch);
                    }
                }
            }
        }
        for (client, watches) in told {
            if self.gone.get(&client).is_some_and(|gone| gone.len() >= GONE_MAX) {
                watches.into_iter().for_each(|watch| self.mark((client, watch)));
                continue;
            }
            if !self.is_due(client) {
                self.newly_due.push(client);
            }
            self.gone.entry(client).or_default().push(Gone { publisher, departure, watches });
        }
        self.patterns.len()
    }

    /// A publisher has moved, or started again.
    pub(super) fn mark_publisher(&mut self, slot: Slot) {
        let with = |(&id, pattern): (&PatternId, &Pattern)| {
            pattern.counts.contains_key(&slot).then_some(id)
        };
        let concerned: Vec<PatternId> = self.patterns.iter().filter_map(with).collect();
        concerned.into_iter().for_each(|id| self.mark_pattern(id));
    }

    /// Every watch is to be told: what is missing has another meaning now.
    pub(super) fn mark_all(&mut self) {
        let all: Vec<PatternId> = self.patterns.keys().copied().collect();
        all.into_iter().for_each(|id| self.mark_pattern(id));
    }

    fn mark_pattern(&mut self, id: PatternId) {
        let Some(pattern) = self.patterns.get(&id).filter(|pattern| pattern.scan.is_none()) else {
            return;
        };
        let watchers: Vec<WatchKey> = pattern.watchers.iter().copied().collect();
        watchers.into_iter().for_each(|key| self.mark(key));
    }

    fn mark(&mut self, key: WatchKey) {
        if !self.is_due(key.0) {
            self.newly_due.push(key.0);
        }
        self.marked.insert(key);
    }

    fn is_due(&self, client: Client) -> bool {
        self.marked.range((client, 0)..=(client, u32::MAX)).next().is_some()
            || self.gone.contains_key(&client)
    }

    /// Clients that have something to be told, and had not when this was last asked.
    pub(super) fn newly_due(&mut self) -> std::vec::Drain<'_, Client> {
        self.newly_due.drain(..)
    }

    /// Who is gone, which is told before anything that has come since.
    pub(super) fn next_gone(&mut self, client: Client) -> Option<Gone> {
        let waiting = self.gone.get_mut(&client)?;
        let first = (!waiting.is_empty()).then(|| waiting.remove(0));
        if waiting.is_empty() {
            self.gone.remove(&client);
        }
        first
    }

    /// The next watch of that client that is to be told its whole set, and the set.
    pub(super) fn next_marked(
        &mut self,
        client: Client,
    ) -> Option<(u32, impl Iterator<Item = Slot>)> {
        let &key = self.marked.range((client, 0)..=(client, u32::MAX)).next()?;
        self.marked.remove(&key);
        let pattern = self.patterns.get(self.by_key.get(&key)?)?;
        Some((key.1, pattern.counts.keys().copied()))
    }

    /// Counts paths for new patterns, in about `budget` steps: a client after the other. True while there are more.
    pub(super) fn scan(&mut self, paths: &Paths, living: &Liveness, mut budget: usize) -> bool {
        while budget > 0
            && let Some(client) = self.scan_turns.pop_front()
        {
            let Some(row) = self.scans.get_mut(&client) else { continue };
            // One that is done, or that nobody watches any more, is passed over.
            let next = row.pop_front();
            let waiting = next.and_then(|id| Some((id, self.patterns.get_mut(&id)?)));
            if let Some((id, pattern)) = waiting
                && pattern.scan.is_some()
            {
                let done = pattern.count_some(paths, living, &mut budget);
                if done {
                    self.mark_pattern(id);
                } else if let Some(row) = self.scans.get_mut(&client) {
                    row.push_front(id);
                }
            } else {
                budget -= 1;
            }
            match self.scans.get(&client).is_some_and(|row| !row.is_empty()) {
                true => self.scan_turns.push_back(client),
                false => _ = self.scans.remove(&client),
            }
        }
        !self.scan_turns.is_empty()
    }
}

/// Whether a publisher that holds this could serve what matches the glob.
fn concerns(glob: &Glob, path: &Path, default: bool) -> bool {
    if default { glob.could_match_at_or_below(path) } else { glob.matches(path) }
}

impl Pattern {
    /// False of nodes that the first count has not come to.
    fn counts_already(&self, node: NodeId) -> bool {
        match self.scan {
            None => true,
            Some(Scan::Whole) => false,
            Some(Scan::By(next)) => node < next,
        }
    }

    /// Goes on with the first count. True when it is done.
    fn count_some(&mut self, paths: &Paths, living: &Liveness, budget: &mut usize) -> bool {
        if self.scan == Some(Scan::Whole) {
            let below = self.nodes_below_prefix(paths);
            *budget = budget.saturating_sub(below.as_ref().map_or(WHOLE_MAX / 8, Vec::len));
            match below {
                Some(nodes) => {
                    nodes.into_iter().for_each(|node| self.count(paths, living, node));
                    self.scan = None;
                }
                None => self.scan = Some(Scan::By(0)),
            }
        }
        while let Some(Scan::By(next)) = self.scan {
            if next >= paths.tree.end() {
                self.scan = None;
            } else if *budget == 0 {
                return false;
            } else {
                *budget -= 1;
                self.scan = Some(Scan::By(next + 1));
                self.count(paths, living, next);
            }
        }
        self.scan.is_none()
    }

    fn count(&mut self, paths: &Paths, living: &Liveness, node: NodeId) {
        for slot in concerned(&self.glob, paths, living, node) {
            *self.counts.entry(slot).or_default() += 1;
        }
    }

    /// The nodes that could concern the glob: those at and below its literal prefix, and, for their defaults, those above it. None if
    /// they are more than [`WHOLE_MAX`].
    fn nodes_below_prefix(&self, paths: &Paths) -> Option<Vec<NodeId>> {
        let (tree, prefix) = (&paths.tree, prefix(&self.glob));
        let root = tree.find(prefix);
        let mut nodes = Vec::new();
        let mut above = match root {
            Some(root) => tree.above(root),
            None => Some(tree.nearest(prefix)),
        };
        while let Some(node) = above {
            nodes.push(node);
            above = tree.above(node);
        }
        let Some(root) = root else { return Some(nodes) };
        let mut step = Step::Enter(root);
        loop {
            step = match step {
                Step::Enter(_) if nodes.len() >= WHOLE_MAX => return None,
                Step::Enter(node) => {
                    nodes.push(node);
                    tree.down(node)
                }
                Step::Leave(node) if node == root => return Some(nodes),
                Step::Leave(node) => tree.after(node),
            };
        }
    }
}

/// Those that can be seen and hold jobs at that node that concerns the glob: twice who holds the path and a default there.
fn concerned(glob: &Glob, paths: &Paths, living: &Liveness, node: NodeId) -> Vec<Slot> {
    let mut slots = Vec::new();
    if !paths.tree.is_held(node) {
        return slots;
    }
    let everything = glob.is_everything();
    let path = if everything { Some(Path::root()) } else { paths.path(node) };
    let Some(path) = path else { return slots };
    for default in [false, true] {
        let members = paths.members(Held { node, default });
        if !members.is_empty() && (everything || concerns(glob, &path, default)) {
            let seen = members
                .iter()
                .filter(|member| !living[member.slot].hidden && paths.is_of_jobs(member.terms));
            slots.extend(seen.map(|member| member.slot));
        }
    }
    slots
}

#[cfg(test)]
impl Watches {
    /// What the watches count, told again from the paths: panics where that is something else. They may count those in `untold` still.
    pub(super) fn invariant(&self, paths: &Paths, living: &Liveness, untold: &BTreeSet<Slot>) {
        assert_eq!(self.by_glob.len(), self.patterns.len());
        for (id, pattern) in &self.patterns {
            let glob = &pattern.glob;
            let mut counts: BTreeMap<Slot, u64> = BTreeMap::new();
            let nodes = (0..paths.tree.end()).filter(|&node| pattern.counts_already(node));
            for slot in nodes.flat_map(|node| concerned(glob, paths, living, node)) {
                *counts.entry(slot).or_default() += 1;
            }
            let mut counted = pattern.counts.clone();
            counted.retain(|slot, _| !untold.contains(slot));
            assert_eq!(counted, counts, "publishers of {glob}");
            assert!(!pattern.watchers.is_empty(), "nobody watches {glob}");
            assert!(pattern.watchers.iter().all(|key| self.by_key.get(key) == Some(id)));
            let waits = self.scans.values().any(|row| row.contains(id));
            assert!(waits || pattern.scan.is_none(), "the first count of {glob}");
        }
        let watchers: usize = self.patterns.values().map(|pattern| pattern.watchers.len()).sum();
        assert_eq!(watchers, self.by_key.len());
        for client in self.scans.keys() {
            assert_eq!(self.scan_turns.iter().filter(|&other| other == client).count(), 1);
        }
        assert!(self.marked.iter().all(|key| self.by_key.contains_key(key)));
        assert!(self.gone.values().all(|gone| !gone.is_empty() && gone.len() <= GONE_MAX));
    }
}
