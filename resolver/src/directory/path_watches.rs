//! Watches over paths: a snapshot of what matches, then what has changed, for as long as the watcher keeps up.
//!
//! Watches of the same globs share one pattern, and a pattern has one log of the paths that have changed. A watch stands somewhere in
//! that log. Changes are told as what a path is now, not as what happened: it does no harm to tell one twice, and the changes since
//! a snapshot *began* make it whole. Where a log has grown too long for its slowest watch, that watch starts over.
//!
//! ```text
//!  path changes ──▶ patterns by literal prefix ──▶ log:  /a/b  /a/c  /a/b  …
//!                                                         ▲                 ▲
//!                                 watch (7, 3): told until here     watches (1, 1), (1, 2): told everything
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use longshore_protocol::Glob;

use crate::directory::Client;
use crate::directory::prefixes::{PatternId, Prefixes};

/// Changed paths that one pattern keeps for its slowest watch. Of more, the older half is forgotten, and who has not been told of it
/// starts over.
const LOG_MAX: usize = 4_096;
/// Changed paths that all patterns keep together.
const LOGGED_MAX: usize = 1 << 20;
/// Most changed paths told in one message.
const TOLD_MAX: usize = 1_024;

/// All watches over paths. A snapshot goes on where `W` rests.
#[derive(Debug)]
pub(super) struct PathWatches<W> {
    patterns: HashMap<PatternId, Pattern>,
    by_globs: HashMap<Arc<[Glob]>, PatternId>,
    prefixes: Prefixes,
    by_key: BTreeMap<(Client, u32), PatternId>,
    stages: BTreeMap<(Client, PatternId, u32), Stage<W>>,
    /// Clients, by pattern, that have something to be told: all others are in its `idle`.
    due: BTreeSet<(Client, PatternId)>,
    /// The pattern of which a client was told last: the others come first.
    told_last: HashMap<Client, PatternId>,
    /// Clients that have something to be told since they were last asked for.
    newly_due: Vec<Client>,
    /// Entries of all logs.
    logged: usize,
    log_max: usize,
    logged_max: usize,
}

#[derive(Debug)]
struct Pattern {
    globs: Arc<[Glob]>,
    log: VecDeque<Arc<str>>,
    /// The place of the log's first entry, counted from the pattern's beginning.
    from: u64,
    /// Clients with a watch of it.
    clients: usize,
    /// Those that have been told everything.
    idle: Vec<Client>,
}

/// How far a watch is.
#[derive(Debug)]
enum Stage<W> {
    /// It is being told what there is; what has changed from `from` on follows. `walk` is none before the first part.
    Snapshot { from: u64, walk: Option<W> },
    /// It has been told everything up to here.
    Following { at: u64 },
}

/// What a client is to be told next.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next<W> {
    /// The next part of a snapshot: the first one if there is no walk yet. [`PathWatches::rest`] or [`PathWatches::snapshot_told`] follows.
    Snapshot { watch: u32, globs: Arc<[Glob]>, walk: Option<W> },
    /// What these paths are now, each once.
    Changes { watches: Vec<u32>, paths: Vec<Arc<str>> },
}

impl<W> Default for PathWatches<W> {
    fn default() -> PathWatches<W> {
        PathWatches::with_limits(LOG_MAX, LOGGED_MAX)
    }
}

impl<W> PathWatches<W> {
    fn with_limits(log_max: usize, logged_max: usize) -> PathWatches<W> {
        PathWatches {
            patterns: HashMap::new(),
            by_globs: HashMap::new(),
            prefixes: Prefixes::default(),
            by_key: BTreeMap::new(),
            stages: BTreeMap::new(),
            due: BTreeSet::new(),
            told_last: HashMap::new(),
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
    pub(super) fn add(&mut self, client: Client, watch: u32, globs: Arc<[Glob]>) {
        self.remove(client, watch);
        let id = match self.by_globs.get(&globs) {
            Some(&id) => id,
            None => self.add_pattern(globs),
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

    fn add_pattern(&mut self, globs: Arc<[Glob]>) -> PatternId {
        let id = self.prefixes.add(&globs);
        self.by_globs.insert(globs.clone(), id);
        let pattern =
            Pattern { globs, log: VecDeque::new(), from: 0, clients: 0, idle: Vec::new() };
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
            self.by_globs.remove(&pattern.globs);
            self.prefixes.remove(id, &pattern.globs);
        } else {
            self.forget_told(id);
        }
    }

    pub(super) fn client_gone(&mut self, client: Client) {
        let watches: Vec<u32> =
            self.by_key.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| key.1).collect();
        watches.into_iter().for_each(|watch| self.remove(client, watch));
        self.told_last.remove(&client);
    }

    fn watches(&self, client: Client, id: PatternId) -> impl Iterator<Item = u32> {
        self.stages.range((client, id, 0)..=(client, id, u32::MAX)).map(|(&(.., watch), _)| watch)
    }

    /// A path is something else than it was. Says what noting that has cost, in globs compared.
    pub(super) fn changed(&mut self, path: &str) -> usize {
        if self.by_key.is_empty() {
            return 0;
        }
        let (mut text, mut cost) = (None, 0);
        for id in self.prefixes.above(path) {
            let Some(pattern) = self.patterns.get_mut(&id) else { continue };
            cost += pattern.globs.len();
            if !pattern.globs.iter().any(|glob| glob.matches_str(path)) {
                continue;
            }
            let text = text.get_or_insert_with(|| Arc::<str>::from(path));
            pattern.log.push_back(text.clone());
            self.logged += 1;
            if self.logged > self.logged_max {
                self.logged -= pattern.forget(pattern.log.len());
            } else if pattern.log.len() > self.log_max {
                self.logged -= pattern.forget(self.log_max / 2 + 1);
            }
            for client in std::mem::take(&mut pattern.idle) {
                self.make_due(client, id);
            }
        }
        cost
    }

    /// Everything is to be told again: what was missing before may be gone now.
    pub(super) fn start_over(&mut self) {
        for (&(_, id, _), stage) in &mut self.stages {
            let from = self.patterns.get(&id).map_or(0, Pattern::end);
            *stage = Stage::Snapshot { from, walk: None };
        }
        let ids: Vec<PatternId> = self.patterns.keys().copied().collect();
        for id in ids {
            let Some(pattern) = self.patterns.get_mut(&id) else { continue };
            for client in std::mem::take(&mut pattern.idle) {
                self.make_due(client, id);
            }
        }
    }

    fn make_due(&mut self, client: Client, id: PatternId) {
        let range = (client, PatternId::MIN)..=(client, PatternId::MAX);
        if self.due.range(range).next().is_none() {
            self.newly_due.push(client);
        }
        self.due.insert((client, id));
    }

    /// Clients that have something to be told, and had not when this was last asked.
    pub(super) fn newly_due(&mut self) -> std::vec::Drain<'_, Client> {
        self.newly_due.drain(..)
    }

    /// What a client is to be told next. None when it has been told everything: once something has changed, it is newly due.
    pub(super) fn next(&mut self, client: Client) -> Option<Next<W>> {
        loop {
            let id = self.next_due(client)?;
            self.told_last.insert(client, id);
            if let Some(next) = self.next_of(client, id) {
                return Some(next);
            }
            self.due.remove(&(client, id));
            if let Some(pattern) = self.patterns.get_mut(&id) {
                pattern.idle.push(client);
            }
            self.forget_told(id);
        }
    }

    /// The patterns in turns.
    fn next_due(&self, client: Client) -> Option<PatternId> {
        let last = self.told_last.get(&client).copied().unwrap_or(PatternId::MIN);
        let after = self.due.range((client, last.next())..=(client, PatternId::MAX)).next();
        let first = || self.due.range((client, PatternId::MIN)..=(client, PatternId::MAX)).next();
        after.or_else(first).map(|&(_, id)| id)
    }

    fn next_of(&mut self, client: Client, id: PatternId) -> Option<Next<W>> {
        let pattern = self.patterns.get(&id)?;
        let (from, end) = (pattern.from, pattern.end());
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
                    // It begins now, however long it waited for its turn: what changed before is in it.
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
        // All watches that stand at the same place are told at once.
        let at = at?;
        let (mut paths, mut seen, mut until) = (Vec::new(), HashSet::new(), at);
        let skip = usize::try_from(at - from).unwrap_or(usize::MAX);
        for path in pattern.log.iter().skip(skip).take(TOLD_MAX) {
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

    /// A snapshot goes on from there.
    pub(super) fn rest(&mut self, client: Client, watch: u32, rested: W) {
        if let Some(Stage::Snapshot { walk, .. }) = self.stage(client, watch) {
            *walk = Some(rested);
        }
    }

    /// The snapshot of that watch has been told whole.
    pub(super) fn snapshot_told(&mut self, client: Client, watch: u32) {
        if let Some(stage) = self.stage(client, watch)
            && let Stage::Snapshot { from, .. } = *stage
        {
            *stage = Stage::Following { at: from };
        }
    }

    fn stage(&mut self, client: Client, watch: u32) -> Option<&mut Stage<W>> {
        let id = self.by_key.get(&(client, watch))?;
        self.stages.get_mut(&(client, *id, watch))
    }

    /// A log that everybody has been told is wanted by nobody.
    fn forget_told(&mut self, id: PatternId) {
        if let Some(pattern) = self.patterns.get_mut(&id)
            && pattern.idle.len() == pattern.clients
        {
            self.logged -= pattern.forget(pattern.log.len());
        }
    }

    /// Panics where two indexes disagree: for tests, after every step.
    #[cfg(test)]
    pub(super) fn invariant(&self) {
        assert_eq!(self.by_key.len(), self.stages.len());
        assert_eq!(self.by_globs.len(), self.patterns.len());
        let logged: usize = self.patterns.values().map(|pattern| pattern.log.len()).sum();
        assert_eq!(logged, self.logged);
        assert!(logged <= self.logged_max);
        for (&id, pattern) in &self.patterns {
            assert!(pattern.log.len() <= self.log_max);
            let clients: BTreeSet<Client> =
                self.stages.keys().filter(|key| key.1 == id).map(|key| key.0).collect();
            assert_eq!(clients.len(), pattern.clients);
            for client in clients {
                let times = pattern.idle.iter().filter(|&&idle| idle == client).count();
                let due = usize::from(self.due.contains(&(client, id)));
                assert_eq!(times + due, 1, "{client:?} is either idle or due");
            }
            assert!(pattern.idle.len() <= pattern.clients);
        }
        for &(client, id) in &self.due {
            assert!(self.watches(client, id).next().is_some(), "{client:?} is due for nothing");
        }
        for (&(client, id, watch), stage) in &self.stages {
            assert_eq!(self.by_key.get(&(client, watch)), Some(&id));
            let end = self.patterns[&id].end();
            let (Stage::Snapshot { from: at, .. } | Stage::Following { at }) = *stage;
            assert!(at <= end);
        }
    }
}

impl Pattern {
    /// The place after the log's last entry.
    fn end(&self) -> u64 {
        self.from + self.log.len() as u64
    }

    /// Forgets the oldest entries, and says how many.
    fn forget(&mut self, entries: usize) -> usize {
        let entries = entries.min(self.log.len());
        self.log.drain(..entries);
        self.from += entries as u64;
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_protocol::Path;
    use proptest::prelude::*;

    const PATHS: [&str; 8] = ["/a", "/a/b", "/a/b/c", "/a/x", "/ab", "/b", "/b/c", "/c/d/e"];
    const PATTERNS: [&[&str]; 6] =
        [&["/**"], &["/a/**"], &["/a/*", "/a/b/**"], &["/b"], &["/*/c"], &["/{a,c}/**"]];
    const LOG: usize = 6;
    const LOGGED: usize = 16;

    fn globs(pattern: usize) -> Arc<[Glob]> {
        PATTERNS[pattern].iter().map(|text| Glob::new(text).unwrap()).collect()
    }

    fn matching(pattern: usize, path: &str) -> bool {
        globs(pattern).iter().any(|glob| glob.matches(&Path::new(path).unwrap()))
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// A path is something else now.
        Change {
            path: usize,
        },
        Watch {
            client: u64,
            watch: u32,
            pattern: usize,
        },
        Unwatch {
            client: u64,
            watch: u32,
        },
        Gone {
            client: u64,
        },
        /// A client is told so many things.
        Tell {
            client: u64,
            times: usize,
        },
        StartOver,
    }

    fn op() -> impl Strategy<Value = Op> {
        let client = 0u64..3;
        prop_oneof![
            12 => (0..PATHS.len()).prop_map(|path| Op::Change { path }),
            3 => (client.clone(), 0u32..3, 0..PATTERNS.len())
                .prop_map(|(client, watch, pattern)| Op::Watch { client, watch, pattern }),
            1 => (client.clone(), 0u32..3).prop_map(|(client, watch)| Op::Unwatch { client, watch }),
            1 => client.clone().prop_map(|client| Op::Gone { client }),
            6 => (client, 1usize..6).prop_map(|(client, times)| Op::Tell { client, times }),
            1 => Just(Op::StartOver),
        ]
    }

    /// What a client believes: for each watch its pattern, and what each path was when it was told of it.
    type Beliefs = BTreeMap<(u64, u32), (usize, BTreeMap<usize, u64>)>;

    #[derive(Default)]
    struct World {
        watches: Option<PathWatches<usize>>,
        /// A number for what each path is.
        truth: [u64; PATHS.len()],
        beliefs: Beliefs,
        due: BTreeSet<u64>,
    }

    impl World {
        fn watches(&mut self) -> &mut PathWatches<usize> {
            self.watches.get_or_insert_with(|| PathWatches::with_limits(LOG, LOGGED))
        }

        fn step(&mut self, op: &Op) {
            match *op {
                Op::Change { path } => {
                    self.truth[path] += 1;
                    self.watches().changed(PATHS[path]);
                }
                Op::Watch { client, watch, pattern } => {
                    self.watches().add(Client(client), watch, globs(pattern));
                    self.beliefs.insert((client, watch), (pattern, BTreeMap::new()));
                }
                Op::Unwatch { client, watch } => {
                    self.watches().remove(Client(client), watch);
                    self.beliefs.remove(&(client, watch));
                }
                Op::Gone { client } => {
                    self.watches().client_gone(Client(client));
                    self.beliefs.retain(|key, _| key.0 != client);
                }
                Op::Tell { client, times } => {
                    for _ in 0..times {
                        self.tell(client);
                    }
                }
                Op::StartOver => self.watches().start_over(),
            }
            let newly: Vec<u64> = self.watches().newly_due().map(|client| client.0).collect();
            self.due.extend(newly);
            self.watches().invariant();
        }

        /// One thing is told, if the client is known to be due. A snapshot is told one path at a time.
        fn tell(&mut self, client: u64) {
            if !self.due.contains(&client) {
                return;
            }
            match self.watches().next(Client(client)) {
                None => {
                    self.due.remove(&client);
                }
                Some(Next::Snapshot { watch, walk, .. }) => {
                    let (pattern, told) = self.beliefs.get_mut(&(client, watch)).unwrap();
                    if walk.is_none() {
                        told.clear();
                    }
                    let at = walk.unwrap_or(0);
                    if matching(*pattern, PATHS[at]) {
                        told.insert(at, self.truth[at]);
                    }
                    match at + 1 < PATHS.len() {
                        true => self.watches().rest(Client(client), watch, at + 1),
                        false => self.watches().snapshot_told(Client(client), watch),
                    }
                }
                Some(Next::Changes { watches, paths }) => {
                    assert!(!watches.is_empty() && !paths.is_empty());
                    for watch in watches {
                        let (_, told) = self.beliefs.get_mut(&(client, watch)).unwrap();
                        for path in &paths {
                            let at = PATHS.iter().position(|p| **p == **path).unwrap();
                            told.insert(at, self.truth[at]);
                        }
                    }
                }
            }
        }

        /// Everybody who is due is told until nobody is.
        fn settle(&mut self) {
            for _ in 0..10_000 {
                let newly: Vec<u64> = self.watches().newly_due().map(|client| client.0).collect();
                self.due.extend(newly);
                let Some(&client) = self.due.first() else { return };
                self.tell(client);
                self.watches().invariant();
            }
            panic!("there is no end of telling");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        /// Whatever has been forgotten on the way.
        #[test]
        fn every_watcher_ends_in_the_true_state(ops in prop::collection::vec(op(), 1..80)) {
            let mut world = World::default();
            ops.iter().for_each(|op| world.step(op));
            world.settle();
            for ((client, watch), (pattern, told)) in &world.beliefs {
                let truth: BTreeMap<usize, u64> = (0..PATHS.len())
                    .filter(|&at| matching(*pattern, PATHS[at]))
                    .map(|at| (at, world.truth[at]))
                    .collect();
                prop_assert_eq!(told, &truth, "watch {} of client {}", watch, client);
            }
            prop_assert_eq!(world.watches().logged, 0, "what everybody was told is forgotten");
        }
    }

    #[test]
    fn watches_of_one_client_that_see_the_same_are_told_at_once() {
        let mut watches: PathWatches<()> = PathWatches::default();
        let client = Client(1);
        for watch in 0..100 {
            watches.add(client, watch, globs(1));
        }
        while let Some(Next::Snapshot { watch, .. }) = watches.next(client) {
            watches.snapshot_told(client, watch);
        }
        watches.changed("/a/b");
        watches.changed("/a/x");
        watches.changed("/a/b");
        let Some(Next::Changes { watches: told, paths }) = watches.next(client) else {
            panic!("nothing is told");
        };
        assert_eq!(told, (0..100).collect::<Vec<u32>>());
        let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
        assert_eq!(paths, ["/a/b", "/a/x"]);
        assert_eq!(watches.next(client), None);
    }

    #[test]
    fn a_snapshot_that_waited_for_its_turn_is_told_once() {
        let mut watches: PathWatches<()> = PathWatches::with_limits(LOG, LOGGED);
        let client = Client(1);
        watches.add(client, 1, globs(0));
        // More than the log keeps: who stood before them would have to start over.
        for _ in 0..2 * LOG {
            watches.changed("/a/b");
        }
        let Some(Next::Snapshot { watch, .. }) = watches.next(client) else {
            panic!("nothing is told");
        };
        watches.snapshot_told(client, watch);
        assert_eq!(watches.next(client), None, "what changed before it began is in it");
    }

    #[test]
    fn who_has_been_told_everything_is_told_it_again_after_a_start_over() {
        let mut watches: PathWatches<()> = PathWatches::with_limits(LOG, LOGGED);
        let client = Client(1);
        watches.add(client, 1, globs(0));
        assert!(matches!(watches.next(client), Some(Next::Snapshot { walk: None, .. })));
        watches.snapshot_told(client, 1);
        assert_eq!(watches.next(client), None);
        watches.start_over();
        assert_eq!(watches.newly_due().next_back(), Some(client));
        let begun = Next::Snapshot { watch: 1, globs: globs(0), walk: None };
        assert_eq!(watches.next(client), Some(begun));
    }

    #[test]
    fn a_client_is_told_of_its_patterns_in_turns() {
        let mut watches: PathWatches<()> = PathWatches::default();
        let client = Client(1);
        watches.add(client, 1, globs(0));
        watches.add(client, 2, globs(1));
        while let Some(Next::Snapshot { watch, .. }) = watches.next(client) {
            watches.snapshot_told(client, watch);
        }
        let mut told = Vec::new();
        for _ in 0..3 {
            // More than is told at once: each is due again at once.
            for _ in 0..TOLD_MAX + 100 {
                watches.changed("/a/b");
            }
            for _ in 0..2 {
                let Some(Next::Changes { watches, .. }) = watches.next(client) else {
                    panic!("nothing is told");
                };
                told.extend(watches);
            }
        }
        assert_eq!(told, [1, 2, 1, 2, 1, 2]);
    }
}
