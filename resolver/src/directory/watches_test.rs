//! Watches over paths without a directory, with made-up states. And the invariants of all watches.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::directory::Directory;
use crate::directory::tree::ROOT;

const PATHS: [&str; 8] = ["/a", "/a/b", "/a/b/c", "/a/x", "/ab", "/b", "/b/c", "/c/d/e"];
const PATTERNS: [&[&str]; 6] =
    [&["/**"], &["/a/**"], &["/a/*", "/a/b/**"], &["/b"], &["/*/c"], &["/{a,c}/**"]];
const LOG: usize = 6;
const LOGGED: usize = 16;

impl<W> Watches<W> {
    /// Panics where two indexes disagree: for tests, after every step.
    pub(in crate::directory) fn invariant(&self) {
        assert_eq!(self.by_key.len(), self.states.len());
        assert_eq!(self.by_globs.len(), self.patterns.len());
        let logged: usize = self.patterns.values().map(|pattern| pattern.log.len()).sum();
        assert_eq!(logged, self.logged);
        assert!(logged <= self.logged_max);
        for (&id, pattern) in &self.patterns {
            assert!(pattern.log.len() <= self.log_max);
            let clients: BTreeSet<Client> =
                self.states.keys().filter(|key| key.1 == id).map(|key| key.0).collect();
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
        for (&(client, id, watch), state) in &self.states {
            assert_eq!(self.by_key.get(&(client, watch)), Some(&id));
            let end = self.patterns[&id].end();
            let (WatchState::Snapshot { from: at, .. } | WatchState::Following { at }) = *state;
            assert!(at <= end);
        }
    }
}

impl Directory {
    /// Panics where a pattern's count differs from what its walk has passed. It may count
    /// publishers that are still `unreported`.
    pub(in crate::directory) fn count_invariant(&self, unreported: &BTreeSet<Slot>) {
        for pattern in self.watches.patterns.values() {
            let Some(count) = &pattern.count else { continue };
            let [glob] = &*pattern.globs else { panic!("watches over publishers have one glob") };
            let mut expected: BTreeMap<Slot, u64> = BTreeMap::new();
            let tree = &self.paths.tree;
            for node in (0..tree.end()).filter(|&node| tree.in_use(node)) {
                let path = self.paths.path(node).unwrap();
                for default in [false, true] {
                    let registration = Registration { node, default };
                    let concerns = match default {
                        true => glob.could_match_at_or_below(&path),
                        false => glob.matches(&path),
                    };
                    let concerns = concerns && self.concerns(&pattern.scope, registration);
                    if concerns && count.has_passed(tree, registration) {
                        for slot in self.with_jobs(registration) {
                            *expected.entry(slot).or_default() += 1;
                        }
                    }
                }
            }
            let mut counted = count.publishers.clone();
            counted.retain(|slot, _| !unreported.contains(slot));
            assert_eq!(counted, expected, "publishers of {glob}");
        }
    }
}

/// A path changes. Watches over paths do not use the tree.
fn change<W>(watches: &mut Watches<W>, path: &str) {
    static TREE: LazyLock<Tree> = LazyLock::new(|| Tree::new([7; 16]));
    watches.changed(&TREE, Registration { node: ROOT, default: false }, path, None);
}

fn globs(pattern: usize) -> Arc<[Glob]> {
    PATTERNS[pattern].iter().map(|text| Glob::new(text).unwrap()).collect()
}

fn matching(pattern: usize, path: &str) -> bool {
    globs(pattern).iter().any(|glob| glob.matches(&Path::new(path).unwrap()))
}

#[derive(Clone, Debug)]
enum Op {
    /// The state of a path changes.
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
    /// A client is sent so many messages.
    Push {
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
        6 => (client, 1usize..6).prop_map(|(client, times)| Op::Push { client, times }),
        1 => Just(Op::StartOver),
    ]
}

/// The state of a client: for each watch its pattern, and the version of each path that it was
/// sent.
type ClientStates = BTreeMap<(u64, u32), (usize, BTreeMap<usize, u64>)>;

#[derive(Default)]
struct Scenario {
    watches: Option<Watches<usize>>,
    /// The version of each path.
    versions: [u64; PATHS.len()],
    client_states: ClientStates,
    due: BTreeSet<u64>,
}

impl Scenario {
    fn watches(&mut self) -> &mut Watches<usize> {
        self.watches.get_or_insert_with(|| Watches::with_limits(LOG, LOGGED))
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Change { path } => {
                self.versions[path] += 1;
                change(self.watches(), PATHS[path]);
            }
            Op::Watch { client, watch, pattern } => {
                self.watches().add(Client(client), watch, WatchKind::Paths, globs(pattern));
                self.client_states.insert((client, watch), (pattern, BTreeMap::new()));
            }
            Op::Unwatch { client, watch } => {
                self.watches().remove(Client(client), watch);
                self.client_states.remove(&(client, watch));
            }
            Op::Gone { client } => {
                self.watches().client_gone(Client(client));
                self.client_states.retain(|key, _| key.0 != client);
            }
            Op::Push { client, times } => {
                for _ in 0..times {
                    self.push(client);
                }
            }
            Op::StartOver => self.watches().all_start_over(),
        }
        let newly: Vec<u64> = self.watches().newly_due().map(|client| client.0).collect();
        self.due.extend(newly);
        self.watches().invariant();
    }

    /// Sends one message, if the client is due. A snapshot is sent one path at a time.
    fn push(&mut self, client: u64) {
        if !self.due.contains(&client) {
            return;
        }
        match self.watches().next(Client(client)) {
            None => {
                self.due.remove(&client);
            }
            Some(WatchStep::Snapshot { watch, walk, .. }) => {
                let (pattern, sent) = self.client_states.get_mut(&(client, watch)).unwrap();
                if walk.is_none() {
                    sent.clear();
                }
                let at = walk.unwrap_or(0);
                if matching(*pattern, PATHS[at]) {
                    sent.insert(at, self.versions[at]);
                }
                let suspended = (at + 1 < PATHS.len()).then_some(at + 1);
                self.watches().suspend_snapshot(Client(client), watch, suspended);
            }
            Some(WatchStep::Changes { watches, paths }) => {
                assert!(!watches.is_empty() && !paths.is_empty());
                for watch in watches {
                    let (_, sent) = self.client_states.get_mut(&(client, watch)).unwrap();
                    for path in &paths {
                        let at = PATHS.iter().position(|p| **p == **path).unwrap();
                        sent.insert(at, self.versions[at]);
                    }
                }
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Sends messages until no client is due.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let newly: Vec<u64> = self.watches().newly_due().map(|client| client.0).collect();
            self.due.extend(newly);
            let Some(&client) = self.due.first() else { return };
            self.push(client);
            self.watches().invariant();
        }
        panic!("the messages never end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Even if parts of the logs were dropped on the way.
    #[test]
    fn every_watcher_ends_in_the_current_state(ops in prop::collection::vec(op(), 1..80)) {
        let mut scenario = Scenario::default();
        ops.iter().for_each(|op| scenario.step(op));
        scenario.settle();
        for ((client, watch), (pattern, sent)) in &scenario.client_states {
            let versions: BTreeMap<usize, u64> = (0..PATHS.len())
                .filter(|&at| matching(*pattern, PATHS[at]))
                .map(|at| (at, scenario.versions[at]))
                .collect();
            prop_assert_eq!(sent, &versions, "watch {} of client {}", watch, client);
        }
        prop_assert_eq!(scenario.watches().logged, 0, "a log that everybody was sent is dropped");
    }
}

#[test]
fn watches_of_one_client_at_the_same_position_share_one_message() {
    let mut watches: Watches<()> = Watches::default();
    let client = Client(1);
    for watch in 0..100 {
        watches.add(client, watch, WatchKind::Paths, globs(1));
    }
    while let Some(WatchStep::Snapshot { watch, .. }) = watches.next(client) {
        watches.suspend_snapshot(client, watch, None);
    }
    change(&mut watches, "/a/b");
    change(&mut watches, "/a/x");
    change(&mut watches, "/a/b");
    let Some(WatchStep::Changes { watches: sent, paths }) = watches.next(client) else {
        panic!("nothing is sent");
    };
    assert_eq!(sent, (0..100).collect::<Vec<u32>>());
    let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
    assert_eq!(paths, ["/a/b", "/a/x"]);
    assert!(watches.next(client).is_none());
}

#[test]
fn a_snapshot_that_waited_for_its_turn_is_sent_once() {
    let mut watches: Watches<()> = Watches::with_limits(LOG, LOGGED);
    let client = Client(1);
    watches.add(client, 1, WatchKind::Paths, globs(0));
    // More than the log retains: a watch at an earlier position would have to start over.
    for _ in 0..2 * LOG {
        change(&mut watches, "/a/b");
    }
    let Some(WatchStep::Snapshot { watch, .. }) = watches.next(client) else {
        panic!("nothing is sent");
    };
    watches.suspend_snapshot(client, watch, None);
    assert!(watches.next(client).is_none(), "what changed before it began is in it");
}

#[test]
fn a_watcher_that_is_up_to_date_gets_a_snapshot_after_a_start_over() {
    let mut watches: Watches<()> = Watches::with_limits(LOG, LOGGED);
    let client = Client(1);
    watches.add(client, 1, WatchKind::Paths, globs(0));
    assert!(matches!(watches.next(client), Some(WatchStep::Snapshot { walk: None, .. })));
    watches.suspend_snapshot(client, 1, None);
    assert!(watches.next(client).is_none());
    watches.all_start_over();
    assert_eq!(watches.newly_due().next_back(), Some(client));
    let begun = watches.next(client);
    assert!(matches!(begun, Some(WatchStep::Snapshot { watch: 1, walk: None, .. })), "{begun:?}");
}

#[test]
fn the_patterns_of_a_client_take_turns() {
    let mut watches: Watches<()> = Watches::default();
    let client = Client(1);
    watches.add(client, 1, WatchKind::Paths, globs(0));
    watches.add(client, 2, WatchKind::Paths, globs(1));
    while let Some(WatchStep::Snapshot { watch, .. }) = watches.next(client) {
        watches.suspend_snapshot(client, watch, None);
    }
    let mut sent = Vec::new();
    for _ in 0..3 {
        // More than one message: each pattern is due again at once.
        for _ in 0..SENT_MAX + 100 {
            change(&mut watches, "/a/b");
        }
        for _ in 0..2 {
            let Some(WatchStep::Changes { watches, .. }) = watches.next(client) else {
                panic!("nothing is sent");
            };
            sent.extend(watches);
        }
    }
    assert_eq!(sent, [1, 2, 1, 2, 1, 2]);
}

/// Watches over publishers, whose first counts have found the first two slots.
fn counted(watches: &mut Watches<()>, client: Client, globs: &[&str]) {
    for (watch, glob) in (0..).zip(globs) {
        let glob = [Glob::new(glob).unwrap()];
        watches.add(client, watch, WatchKind::Publishers, glob.into());
    }
    while let Some(next) = watches.next(client) {
        match next {
            WatchStep::Count { pattern, .. } => {
                watches.counted(pattern, BTreeMap::from([(0, 1), (1, 1)]), None);
            }
            WatchStep::Publishers { publishers, .. } => assert_eq!(publishers, [0, 1]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_departure_is_one_message_for_all_watches_of_a_client() {
    let (mut watches, client) = (Watches::default(), Client(1));
    counted(&mut watches, client, &["/a", "/b", "/a", "/c/**"]);
    let id = |n| PublisherId([n; 16]);
    watches.hide(0, id(0), Departure::Silent);
    watches.hide(1, id(1), Departure::Stopped);
    for (n, departed) in [(0, Departure::Silent), (1, Departure::Stopped)] {
        let Some(WatchStep::Gone { watches, publisher, departure }) = watches.next(client) else {
            panic!("no departure of {n}");
        };
        assert_eq!((watches.len(), publisher, departure), (4, id(n), departed));
    }
    assert!(watches.next(client).is_none());
    watches.invariant();
}

#[test]
fn a_watch_behind_more_departures_than_are_logged_is_sent_the_whole_set() {
    let (mut watches, client) = (Watches::with_limits(1, LOGGED), Client(1));
    counted(&mut watches, client, &["/a"]);
    for slot in [0, 1] {
        watches.hide(slot, PublisherId([slot as u8; 16]), Departure::Silent);
    }
    let Some(WatchStep::Publishers { publishers, .. }) = watches.next(client) else {
        panic!("it is not sent the set");
    };
    assert!(publishers.is_empty());
    assert!(watches.next(client).is_none());
}
