//! Watches: of the publishers that have, or could make, queues that match a glob; and of the paths
//! that match some globs.
//!
//! A watch is sent a snapshot first, then what has changed. Watches of one kind and of the same
//! globs share a pattern, and a pattern has one log. A watch stands somewhere in that log; one that
//! is too far behind starts over with a snapshot. Changes of paths are sent as what a path is now,
//! not as what happened: it does no harm to send one twice, and the changes since a snapshot
//! *began* make it whole. A snapshot of publishers is their whole set, and only departures are
//! logged: with any other change all watches start over.
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

use crate::directory::globs::Matching;
use crate::directory::holdings::Held;
use crate::directory::prefixes::{PatternId, Prefixes};
use crate::directory::tree::Tree;
use crate::directory::{Client, Slot};

/// Changes that one pattern logs for its slowest watch. Of more, the older half is dropped, and a
/// watch that was not sent them starts over.
const LOG_MAX: usize = 4_096;
/// Changes in the logs of all patterns.
const LOGGED_MAX: usize = 1 << 20;
/// Most changed paths in one message.
const SENT_MAX: usize = 1_024;

/// What is watched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    Publishers,
    Paths,
}

/// All watches. A snapshot of paths goes on where `W` rests.
#[derive(Debug)]
pub(super) struct Watches<W> {
    patterns: HashMap<PatternId, Pattern>,
    by_globs: HashMap<(Kind, Arc<[Glob]>), PatternId>,
    prefixes: Prefixes,
    by_key: BTreeMap<(Client, u32), PatternId>,
    stages: BTreeMap<(Client, PatternId, u32), Stage<W>>,
    /// Clients, by pattern, for which there is something to send: all others are in its `idle`.
    due: BTreeSet<(Client, PatternId)>,
    /// The pattern of which a client was sent something last: the others come first.
    last: HashMap<Client, PatternId>,
    /// Clients that have become due since this was last asked for.
    newly_due: Vec<Client>,
    /// Changes in all logs.
    logged: usize,
    log_max: usize,
    logged_max: usize,
}

#[derive(Debug)]
struct Pattern {
    globs: Arc<[Glob]>,
    /// None of watches over paths.
    count: Option<Count>,
    log: VecDeque<Change>,
    /// The place of the log's first entry, counted from the pattern's beginning.
    from: u64,
    /// Clients with a watch of it.
    clients: usize,
    /// Those that have been sent everything.
    idle: Vec<Client>,
}

/// The publishers that match a pattern.
#[derive(Default, Debug)]
struct Count {
    /// For each that can be seen: how many of its paths match, and how many of its defaults could.
    publishers: BTreeMap<Slot, u64>,
    /// The first count, once it has begun and until it is done: what the walk has passed is
    /// counted, and is kept counted.
    walk: Option<Box<Matching>>,
    done: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Change {
    /// A path is something else than it was.
    Path(Arc<str>),
    /// A publisher can no longer be seen.
    Gone(PublisherId, Departure),
}

/// How far a watch is.
#[derive(Debug)]
enum Stage<W> {
    /// It is being sent what there is; what has changed from `from` on follows. `walk` is none
    /// before the first part.
    Snapshot { from: u64, walk: Option<W> },
    /// It has been sent everything up to here.
    Following { at: u64 },
}

/// What there is to do next for a client.
#[derive(Debug)]
pub(super) enum Next<W> {
    /// Some of the first count: the first part if there is no walk yet. [`Watches::counted`]
    /// follows.
    Count { pattern: PatternId, globs: Arc<[Glob]>, walk: Option<Box<Matching>> },
    /// Send all publishers that match.
    Publishers { watch: u32, publishers: Vec<Slot> },
    /// Send that one of them is gone.
    Gone { watches: Vec<u32>, publisher: PublisherId, departure: Departure },
    /// Send the next part of a snapshot: the first one if there is no walk yet. [`Watches::rest`]
    /// follows.
    Snapshot { watch: u32, globs: Arc<[Glob]>, walk: Option<W> },
    /// Send what these paths are now, each once.
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
            prefixes: Prefixes::default(),
            by_key: BTreeMap::new(),
            stages: BTreeMap::new(),
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

    /// The parts of all globs, and of these as well.
    pub(super) fn parts_with(&self, globs: &[Glob]) -> usize {
        self.prefixes.parts_with(globs)
    }

    /// How many watches a client has.
    pub(super) fn len_of(&self, client: Client) -> usize {
        self.by_key.range((client, 0)..=(client, u32::MAX)).count()
    }

    /// Watches what matches any of these. A watch of the same number is replaced.
    pub(super) fn add(&mut self, client: Client, watch: u32, kind: Kind, globs: Arc<[Glob]>) {
        self.remove(client, watch);
        let key = (kind, globs);
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
        let stage = Stage::Snapshot { from: pattern.end(), walk: None };
        self.by_key.insert((client, watch), id);
        self.stages.insert((client, id, watch), stage);
        self.make_due(client, id);
    }

    fn add_pattern(&mut self, key: (Kind, Arc<[Glob]>)) -> PatternId {
        let id = self.prefixes.add(&key.1);
        let pattern = Pattern {
            globs: key.1.clone(),
            count: (key.0 == Kind::Publishers).then(Count::default),
            log: VecDeque::new(),
            from: 0,
            clients: 0,
            idle: Vec::new(),
        };
        self.by_globs.insert(key, id);
        self.patterns.insert(id, pattern);
        id
    }

    /// No more of that watch.
    pub(super) fn remove(&mut self, client: Client, watch: u32) {
        let Some(id) = self.by_key.remove(&(client, watch)) else { return };
        self.stages.remove(&(client, id, watch));
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
            self.by_globs.remove(&(pattern.kind(), pattern.globs));
        } else {
            self.forget_sent(id);
        }
    }

    pub(super) fn client_gone(&mut self, client: Client) {
        let watches: Vec<u32> =
            self.by_key.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| key.1).collect();
        watches.into_iter().for_each(|watch| self.remove(client, watch));
        self.last.remove(&client);
    }

    fn watches(&self, client: Client, id: PatternId) -> impl Iterator<Item = u32> {
        self.stages.range((client, id, 0)..=(client, id, u32::MAX)).map(|(&(.., watch), _)| watch)
    }

    /// Something has changed at a path, or in the default at it: a publisher has jobs there now, or
    /// has no longer, if that is `jobs`. To be called while the path's node is in the tree. Returns
    /// what noting that has cost, in globs compared.
    pub(super) fn changed(
        &mut self,
        tree: &Tree,
        held: Held,
        path: &str,
        jobs: Option<(Slot, bool)>,
    ) -> usize {
        if self.by_key.is_empty() {
            return 0;
        }
        // Publishers that could make a queue: a default concerns what lies below it, too.
        let makes = held.default && jobs.is_some();
        let below = makes.then(|| Path::new(path).ok()).flatten();
        let concerned = match below {
            Some(_) => self.patterns.keys().copied().collect(),
            None => self.prefixes.above(path),
        };
        let (mut text, mut cost) = (None, 0);
        for id in concerned {
            let Some(pattern) = self.patterns.get_mut(&id) else { continue };
            cost += pattern.globs.len();
            let Some(count) = &mut pattern.count else {
                if pattern.globs.iter().any(|glob| glob.matches_str(path)) {
                    let text = text.get_or_insert_with(|| Arc::<str>::from(path));
                    self.log(id, Change::Path(text.clone()));
                }
                continue;
            };
            let concerns = |glob: &Glob| match &below {
                Some(path) => glob.could_match_at_or_below(path),
                None => glob.matches_str(path),
            };
            if let Some((slot, holds)) = jobs
                && pattern.globs.iter().any(concerns)
                && count.has_passed(tree, held)
                && count.add(slot, holds)
            {
                self.start_over(id);
            }
        }
        cost
    }

    /// A publisher can no longer be seen. Returns what noting that has cost, in patterns.
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
        patterns.into_iter().for_each(|id| self.log(id, Change::Gone(publisher, departure)));
        self.patterns.len()
    }

    /// A publisher has moved, or started again.
    pub(super) fn publisher_moved(&mut self, slot: Slot) {
        let with = |(&id, pattern): (&PatternId, &Pattern)| {
            pattern.count.as_ref()?.publishers.contains_key(&slot).then_some(id)
        };
        let patterns: Vec<PatternId> = self.patterns.iter().filter_map(with).collect();
        patterns.into_iter().for_each(|id| self.start_over(id));
    }

    /// Everything is to be sent again: what was missing before may be gone now.
    pub(super) fn all_start_over(&mut self) {
        let patterns: Vec<PatternId> = self.patterns.keys().copied().collect();
        patterns.into_iter().for_each(|id| self.start_over(id));
    }

    /// All watches of a pattern are to be sent a snapshot.
    fn start_over(&mut self, id: PatternId) {
        let Some(pattern) = self.patterns.get_mut(&id) else { return };
        self.logged -= pattern.forget(pattern.log.len());
        pattern.from += 1;
        self.wake(id);
    }

    fn log(&mut self, id: PatternId, change: Change) {
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

    /// Clients for which there is something to do, and was not when this was last asked.
    pub(super) fn newly_due(&mut self) -> std::vec::Drain<'_, Client> {
        self.newly_due.drain(..)
    }

    /// What is to be done next for a client. None when it has been sent everything: once something
    /// has changed, it is newly due.
    pub(super) fn next(&mut self, client: Client) -> Option<Next<W>> {
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

    /// The patterns in turns.
    fn next_due(&self, client: Client) -> Option<PatternId> {
        let last = self.last.get(&client).copied().unwrap_or(PatternId::MIN);
        let after = self.due.range((client, last.next())..=(client, PatternId::MAX)).next();
        let first = || self.due.range((client, PatternId::MIN)..=(client, PatternId::MAX)).next();
        after.or_else(first).map(|&(_, id)| id)
    }

    fn next_of(&mut self, client: Client, id: PatternId) -> Option<Next<W>> {
        let pattern = self.patterns.get_mut(&id)?;
        let (from, end) = (pattern.from, pattern.end());
        if let Some(count) = &mut pattern.count
            && !count.done
        {
            let (globs, walk) = (pattern.globs.clone(), count.walk.take());
            return Some(Next::Count { pattern: id, globs, walk });
        }
        let range = (client, id, 0)..=(client, id, u32::MAX);
        let mut at = None;
        for (&(.., watch), stage) in self.stages.range_mut(range.clone()) {
            if let Stage::Following { at } = stage
                && *at < from
            {
                *stage = Stage::Snapshot { from: end, walk: None };
            }
            match stage {
                Stage::Snapshot { from, walk } => {
                    if let Some(count) = &pattern.count {
                        let publishers = count.publishers.keys().copied().collect();
                        *stage = Stage::Following { at: end };
                        return Some(Next::Publishers { watch, publishers });
                    }
                    // It begins now, however long it waited for its turn: what changed before is in
                    // it.
                    if walk.is_none() {
                        *from = end;
                    }
                    let (globs, walk) = (pattern.globs.clone(), walk.take());
                    return Some(Next::Snapshot { watch, globs, walk });
                }
                Stage::Following { at: stands } if *stands < end => {
                    at.get_or_insert(*stands);
                }
                Stage::Following { .. } => {}
            }
        }
        let at = at?;
        if let Some(&Change::Gone(publisher, departure)) = pattern.change(at) {
            let watches = self.past_departure(client, &Change::Gone(publisher, departure));
            return Some(Next::Gone { watches, publisher, departure });
        }
        // All watches that stand at the same place are sent the same message.
        let (mut paths, mut seen, mut until) = (Vec::new(), HashSet::new(), at);
        while until < at + SENT_MAX as u64
            && let Some(Change::Path(path)) = pattern.change(until)
        {
            until += 1;
            if seen.insert(path.clone()) {
                paths.push(path.clone());
            }
        }
        let mut watches = Vec::new();
        for (&(.., watch), stage) in self.stages.range_mut(range) {
            if let Stage::Following { at: stands } = stage
                && *stands == at
            {
                *stands = until;
                watches.push(watch);
            }
        }
        Some(Next::Changes { watches, paths })
    }

    /// The watches of a client, of whatever pattern, that are to be sent this departure next: one
    /// message is for all of them.
    fn past_departure(&mut self, client: Client, gone: &Change) -> Vec<u32> {
        let all = (client, PatternId::MIN, 0)..=(client, PatternId::MAX, u32::MAX);
        let mut watches = Vec::new();
        for (&(_, id, watch), stage) in self.stages.range_mut(all) {
            if let Stage::Following { at } = stage
                && self.patterns.get(&id).and_then(|pattern| pattern.change(*at)) == Some(gone)
            {
                *at += 1;
                watches.push(watch);
            }
        }
        watches
    }

    /// The first count has passed these, so often each. There is no walk once it is done.
    pub(super) fn counted(
        &mut self,
        id: PatternId,
        publishers: BTreeMap<Slot, u64>,
        walk: Option<Box<Matching>>,
    ) {
        let pattern = self.patterns.get_mut(&id);
        let Some(count) = pattern.and_then(|pattern| pattern.count.as_mut()) else { return };
        for (slot, times) in publishers {
            *count.publishers.entry(slot).or_default() += times;
        }
        (count.done, count.walk) = (walk.is_none(), walk);
    }

    /// The snapshot of that watch goes on there, or has been sent whole.
    pub(super) fn rest(&mut self, client: Client, watch: u32, rested: Option<W>) {
        let Some(&id) = self.by_key.get(&(client, watch)) else { return };
        if let Some(stage) = self.stages.get_mut(&(client, id, watch))
            && let Stage::Snapshot { from, walk } = stage
        {
            match rested {
                None => *stage = Stage::Following { at: *from },
                rested => *walk = rested,
            }
        }
    }

    /// Nobody needs a log that everybody has been sent.
    fn forget_sent(&mut self, id: PatternId) {
        if let Some(pattern) = self.patterns.get_mut(&id)
            && pattern.idle.len() == pattern.clients
        {
            self.logged -= pattern.forget(pattern.log.len());
        }
    }
}

impl Pattern {
    fn kind(&self) -> Kind {
        if self.count.is_some() { Kind::Publishers } else { Kind::Paths }
    }

    /// The place after the log's last entry.
    fn end(&self) -> u64 {
        self.from + self.log.len() as u64
    }

    fn change(&self, at: u64) -> Option<&Change> {
        self.log.get(usize::try_from(at.checked_sub(self.from)?).ok()?)
    }

    /// Forgets the oldest entries, and returns how many.
    fn forget(&mut self, entries: usize) -> usize {
        let entries = entries.min(self.log.len());
        self.log.drain(..entries);
        self.from += entries as u64;
        entries
    }
}

impl Count {
    /// False of what the first count is still to come to.
    fn has_passed(&self, tree: &Tree, held: Held) -> bool {
        self.done || self.walk.as_ref().is_some_and(|walk| walk.has_passed(tree, held.node))
    }

    /// A publisher has jobs at one path more, or at one less. True if it has come, or gone, by
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
