//! The directory against a naive model, over random operations: after each of them its indexes
//! agree with each other, and its answers with the model's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Change, Digest, FromReplica, KeyHash, PathAnswer, PathListed, PathText, RequestRefusal,
    SetMember,
};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublicationKind, PublisherId, PublisherInfo, Terms,
};
use proptest::prelude::*;

use crate::directory::{
    AnswerBuilder, Children, Client, ConfirmProgress, Directory, GlobWalk, Push, Rules, Scope,
};

const TTL: Duration = Duration::from_millis(1_000);
/// Chosen so that texts are prefixes of others, with and without a slash between.
const PATHS: [&str; 12] = [
    "/", "/a", "/a/b", "/a/b/c", "/a/b/d", "/a/bb", "/a/b-c", "/a-b", "/ab", "/ab/c", "/b",
    "/b/c/d",
];
const GLOBS: [&str; 10] =
    ["/**", "/a/**", "/a/*", "/a", "/*/b", "/{a,ab}/c", "/b/c/d/e", "/**/c", "/{b,a}/**", "/*/*"];

/// What a client sees: the paths of some globs and not of others.
const SCOPES: [(&[&str], &[&str]); 5] = [
    (&["/**"], &[]),
    (&["/a/b/**", "/ab"], &[]),
    (&["/**/c", "/b/c/d"], &[]),
    (&["/**"], &["/a/b", "/a/b/**"]),
    (&[], &[]),
];

fn scope(number: usize) -> Scope {
    Scope::of_globs(SCOPES[number].0, SCOPES[number].1)
}

#[derive(Clone, Debug)]
enum Op {
    /// From now on the client sees this.
    Scope {
        client: u64,
        scope: usize,
    },
    /// With the digest of the registrations, or with another.
    Announce {
        client: u64,
        publisher: u8,
        epoch: u64,
        equal: bool,
    },
    Change {
        client: u64,
        change: Change,
        path: usize,
        terms: usize,
    },
    Confirm {
        client: u64,
    },
    Clear {
        client: u64,
    },
    Heartbeat {
        client: u64,
    },
    Gone {
        client: u64,
    },
    Pass {
        ms: u64,
    },
    Watch {
        client: u64,
        watch: u32,
        glob: usize,
    },
    WatchPaths {
        client: u64,
        watch: u32,
        glob: usize,
    },
    Unwatch {
        client: u64,
        watch: u32,
    },
    /// A client is sent so many messages of its watches.
    Push {
        client: u64,
        times: usize,
    },
    Sweep {
        budget: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..4u64;
    let change = proptest::sample::select(Change::ALL);
    prop_oneof![
        3 => (client.clone(), 0..3u8, 0..4u64, any::<bool>()).prop_map(
            |(client, publisher, epoch, equal)| Op::Announce { client, publisher, epoch, equal }
        ),
        12 => (client.clone(), change, 0..PATHS.len(), 0..3usize)
            .prop_map(|(client, change, path, terms)| Op::Change { client, change, path, terms }),
        2 => client.clone().prop_map(|client| Op::Confirm { client }),
        1 => client.clone().prop_map(|client| Op::Clear { client }),
        2 => client.clone().prop_map(|client| Op::Heartbeat { client }),
        1 => client.clone().prop_map(|client| Op::Gone { client }),
        3 => (1..600u64).prop_map(|ms| Op::Pass { ms }),
        3 => (client.clone(), 0..2u32, 0..GLOBS.len())
            .prop_map(|(client, watch, glob)| Op::Watch { client, watch, glob }),
        3 => (client.clone(), 0..2u32, 0..GLOBS.len())
            .prop_map(|(client, watch, glob)| Op::WatchPaths { client, watch, glob }),
        1 => (client.clone(), 0..2u32).prop_map(|(client, watch)| Op::Unwatch { client, watch }),
        3 => (client.clone(), 1..4usize).prop_map(|(client, times)| Op::Push { client, times }),
        2 => (client, 0..SCOPES.len()).prop_map(|(client, scope)| Op::Scope { client, scope }),
        4 => (1..6usize).prop_map(|budget| Op::Sweep { budget }),
    ]
}

/// Mostly changes, between the steps of suspended walks.
fn counting_op() -> impl Strategy<Value = Op> {
    let change = proptest::sample::select(Change::ALL);
    prop_oneof![
        12 => (0..3u64, change, 0..PATHS.len(), 0..3usize)
            .prop_map(|(client, change, path, terms)| Op::Change { client, change, path, terms }),
        2 => (0..2u32, 0..GLOBS.len())
            .prop_map(|(watch, glob)| Op::Watch { client: 0, watch, glob }),
        1 => (0..SCOPES.len()).prop_map(|scope| Op::Scope { client: 0, scope }),
        8 => (1..4usize).prop_map(|times| Op::Push { client: 0, times }),
    ]
}

/// A publisher in the model.
#[derive(Clone, Debug)]
struct ModelPublisher {
    epoch: u64,
    client: u64,
    round: u64,
    /// A confirm removes what is of an earlier round.
    rewriting: bool,
    deadline: Instant,
    /// The round in which each path was last written, and its terms.
    holds: BTreeMap<(Path, bool), (u64, usize)>,
}

#[derive(Default, Debug)]
struct Model {
    known: BTreeMap<u8, ModelPublisher>,
    /// The publisher that each client writes for; `None` once a newer client has accepted over.
    writers: BTreeMap<u64, Option<u8>>,
    watches: BTreeMap<(u64, u32), usize>,
    path_watches: BTreeMap<(u64, u32), usize>,
    /// The scopes of clients that do not see everything.
    scopes: BTreeMap<u64, usize>,
}

impl Model {
    fn writer(&mut self, client: u64) -> Result<&mut ModelPublisher, RequestRefusal> {
        match self.writers.get(&client) {
            None => Err(RequestRefusal::NotAnnounced),
            Some(None) => Err(RequestRefusal::Superseded),
            Some(Some(publisher)) => Ok(self.known.get_mut(publisher).unwrap()),
        }
    }

    fn announce(
        &mut self,
        now: Instant,
        client: u64,
        publisher: u8,
        epoch: u64,
        equal: bool,
    ) -> bool {
        let known = self.known.entry(publisher).or_insert_with(|| ModelPublisher {
            epoch,
            client,
            round: 0,
            rewriting: false,
            deadline: now,
            holds: BTreeMap::new(),
        });
        if epoch < known.epoch {
            return false;
        }
        let before = known.client;
        let wrote_before = self.writers.get(&before) == Some(&Some(publisher));
        (known.epoch, known.client) = (epoch, client);
        known.round += u64::from(!equal);
        known.rewriting = !equal;
        known.deadline = now + TTL;
        if before != client && wrote_before {
            self.writers.insert(before, None);
        }
        self.writers.insert(client, Some(publisher));
        true
    }

    fn forget(&mut self, publisher: u8) {
        self.known.remove(&publisher);
        self.writers.retain(|_, writes_for| *writes_for != Some(publisher));
    }

    /// The publishers of a path, and their terms.
    fn holders(&self, path: &Path, default: bool) -> BTreeSet<(u8, usize)> {
        let key = (path.clone(), default);
        let publication =
            |(&number, known): (&u8, &ModelPublisher)| Some((number, known.holds.get(&key)?.1));
        self.known.iter().filter_map(publication).collect()
    }

    fn resolve(&self, path: &Path) -> (BTreeSet<(u8, usize)>, bool) {
        let exact = self.holders(path, false);
        if !exact.is_empty() {
            return (exact, false);
        }
        let default = self.default_above(path);
        let found = !default.is_empty();
        (default, found)
    }

    /// Those of the nearest default at or above the path.
    fn default_above(&self, path: &Path) -> BTreeSet<(u8, usize)> {
        let mut above = Some(path.clone());
        while let Some(at) = above {
            let default = self.holders(&at, true);
            if !default.is_empty() {
                return default;
            }
            above = at.parent();
        }
        BTreeSet::new()
    }

    fn listed(&self, path: &Path) -> PathListed {
        let kinds: BTreeSet<PublicationKind> =
            self.holders(path, false).into_iter().map(|(_, at)| terms(at).kind).collect();
        PathListed {
            path: path.clone(),
            queue: kinds.contains(&PublicationKind::Queue),
            value: kinds.contains(&PublicationKind::Value),
            default: !self.holders(path, true).is_empty(),
        }
    }

    /// The registered paths that a client with this scope sees.
    fn visible_paths(&self, scope: &Scope) -> BTreeSet<Path> {
        let registered = self.known.values().flat_map(|known| known.holds.keys());
        let visible = registered.filter(|(path, _)| scope.contains(path.as_str()));
        visible.map(|(path, _)| path.clone()).collect()
    }

    fn scope_of(&self, client: u64) -> Scope {
        self.scopes.get(&client).map_or_else(Scope::default, |&number| scope(number))
    }

    fn children(&self, of: &Path, scope: &Scope) -> BTreeSet<PathListed> {
        let mut children = BTreeSet::new();
        for mut path in self.visible_paths(scope) {
            while let Some(parent) = path.parent() {
                if parent == *of {
                    let visible = scope.contains(path.as_str());
                    children.insert(if visible { self.listed(&path) } else { nothing(&path) });
                }
                path = parent;
            }
        }
        children
    }

    fn concerned(&self, glob: &Glob, scope: &Scope) -> BTreeSet<u8> {
        let concerns = |(path, default): &(Path, bool)| match default {
            true => glob.could_match_at_or_below(path) && scope.reaches(path),
            false => glob.matches(path) && scope.contains(path.as_str()),
        };
        let of_jobs = |at: usize| terms(at).kind == PublicationKind::Queue;
        let holds = |known: &ModelPublisher| {
            known.holds.iter().any(|(key, &(_, at))| concerns(key) && of_jobs(at))
        };
        self.known.iter().filter(|(_, known)| holds(known)).map(|(&number, _)| number).collect()
    }
}

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// A path with only others below it.
fn nothing(path: &Path) -> PathListed {
    PathListed { path: path.clone(), queue: false, value: false, default: false }
}

/// The default terms, and two that differ from them in one field each.
fn terms(number: usize) -> Terms {
    let kind = if number == 1 { PublicationKind::Value } else { PublicationKind::Queue };
    Terms { kind, priority: u16::from(number == 2), ..Terms::default() }
}

fn info(publisher: u8, epoch: u64) -> PublisherInfo {
    PublisherInfo::new(
        PublisherId([publisher; 16]),
        Epoch(epoch),
        format!("publisher-{publisher}"),
        [([127, 0, 0, 1], 4000 + u16::from(publisher))],
    )
}

fn numbers<'a>(publishers: impl IntoIterator<Item = &'a PublisherInfo>) -> BTreeSet<u8> {
    publishers.into_iter().map(|info| info.id.0[0]).collect()
}

struct Pair {
    now: Instant,
    directory: Directory,
    model: Model,
    /// The state of each watch over publishers, by the messages it was sent.
    sent: BTreeMap<(u64, u32), BTreeSet<u8>>,
    /// And of each watch over paths.
    paths_sent: BTreeMap<(u64, u32), BTreeSet<PathListed>>,
    /// Clients with pending messages.
    due: BTreeSet<u64>,
}

impl Pair {
    fn new() -> Pair {
        let now = Instant::now();
        let rules = Rules { stall_max: TTL, ..Rules::small(TTL) };
        let directory = Directory::new(now, Incarnation([9; 16]), rules);
        Pair {
            now,
            directory,
            model: Model::default(),
            sent: BTreeMap::new(),
            paths_sent: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    fn step(&mut self, op: &Op) {
        let now = self.now;
        match *op {
            Op::Announce { client, publisher, epoch, equal } => {
                let info = info(publisher, epoch);
                let mut desired = self.directory.digest_of(info.id);
                desired.count += u64::from(!equal);
                let accepted = self.model.announce(now, client, publisher, epoch, equal);
                match self.directory.announce(now, Client(client), &info, &[desired]) {
                    Ok(digest) => {
                        assert!(accepted, "a lower epoch is refused");
                        let mut expected = Digest::default();
                        let known = &self.model.known[&publisher];
                        for ((path, default), &(_, at)) in &known.holds {
                            let key = KeyHash::of(path.as_str(), *default);
                            expected.add(key, terms(at).digest());
                        }
                        assert_eq!(digest, [expected]);
                    }
                    Err(error) => {
                        assert_eq!((accepted, error), (false, RequestRefusal::Superseded));
                    }
                }
            }
            Op::Change { client, change, path: at, terms: on } => {
                let path = path(PATHS[at]);
                let slot = self.directory.writer(Client(client));
                let known = self.model.writer(client);
                assert_eq!(slot.is_ok(), known.is_ok());
                let (Ok(slot), Ok(known)) = (slot, known) else { return };
                let done =
                    self.directory.write_text(slot, change, &terms(on), PathText::from(&path));
                let default = matches!(change, Change::PublishDefault | Change::UnpublishDefault);
                match change {
                    Change::Publish if path.is_root() => assert!(done.is_err()),
                    Change::Publish | Change::PublishDefault => {
                        known.holds.insert((path, default), (known.round, on));
                        assert_eq!(done, Ok(()));
                    }
                    Change::Unpublish | Change::UnpublishDefault => {
                        known.holds.remove(&(path, default));
                        assert_eq!(done, Ok(()));
                    }
                }
            }
            Op::Confirm { client } => {
                let Ok(slot) = self.directory.writer(Client(client)) else { return };
                let mut progress = ConfirmProgress::default();
                while !self.directory.confirm(slot, &mut progress, 2) {
                    self.directory.invariant();
                }
                let known = self.model.writer(client).unwrap();
                let (round, rewriting) = (known.round, known.rewriting);
                known.holds.retain(|_, (seen, _)| !rewriting || *seen == round);
            }
            Op::Clear { client } => {
                let expected = self.model.writer(client).map(|_| ());
                assert_eq!(self.directory.clear(Client(client)), expected);
                if let Some(&Some(publisher)) = self.model.writers.get(&client) {
                    self.model.forget(publisher);
                }
            }
            Op::Heartbeat { client } => {
                self.directory.record_activity(Client(client), now);
                if let Ok(known) = self.model.writer(client) {
                    known.deadline = now + TTL;
                }
            }
            Op::Gone { client } => {
                self.directory.client_gone(Client(client));
                self.model.writers.remove(&client);
                self.model.watches.retain(|(of, _), _| *of != client);
                self.model.path_watches.retain(|(of, _), _| *of != client);
                self.model.scopes.remove(&client);
            }
            Op::Scope { client, scope: number } => {
                self.directory.set_scope(Client(client), scope(number));
                self.model.scopes.insert(client, number);
            }
            Op::Pass { ms } => {
                self.now += Duration::from_millis(ms);
                self.directory.tick(self.now);
                let silent: Vec<u8> = self
                    .model
                    .known
                    .iter()
                    .filter(|(_, known)| known.deadline <= self.now)
                    .map(|(&publisher, _)| publisher)
                    .collect();
                silent.into_iter().for_each(|publisher| self.model.forget(publisher));
            }
            Op::Watch { client, watch, glob } => {
                let made =
                    self.directory.watch(Client(client), watch, Glob::new(GLOBS[glob]).unwrap());
                assert_eq!(made, Ok(()));
                self.model.path_watches.remove(&(client, watch));
                self.model.watches.insert((client, watch), glob);
                self.sent.remove(&(client, watch));
            }
            Op::WatchPaths { client, watch, glob } => {
                let globs = [Glob::new(GLOBS[glob]).unwrap()];
                assert_eq!(self.directory.watch_paths(Client(client), watch, &globs), Ok(()));
                self.model.watches.remove(&(client, watch));
                self.model.path_watches.insert((client, watch), glob);
                self.paths_sent.remove(&(client, watch));
            }
            Op::Unwatch { client, watch } => {
                self.directory.unwatch(Client(client), watch);
                self.model.watches.remove(&(client, watch));
                self.model.path_watches.remove(&(client, watch));
            }
            Op::Push { client, times } => {
                for _ in 0..times {
                    self.push(client);
                }
            }
            Op::Sweep { budget } => {
                self.directory.sweep(budget);
            }
        }
    }

    fn compare(&mut self) {
        self.directory.invariant();
        assert_eq!(self.directory.publishers_len(), self.model.known.len());
        let asked: Vec<Path> =
            PATHS.iter().chain(&["/a/b/c/d", "/abc", "/z"]).map(|text| path(text)).collect();
        let mut builder = AnswerBuilder::default();
        asked.iter().for_each(|path| builder.answer_text(&self.directory, PathText::from(path)));
        let answer = builder.finish(&self.directory, 7, true);
        for (path, answered) in asked.iter().zip(&answer.answers) {
            let members = |set: u32| {
                let member = |member: &SetMember| {
                    let number = answer.publishers[member.publisher as usize].id.0[0];
                    let sent = &answer.terms[member.terms as usize];
                    (number, (0..3).find(|&at| terms(at) == *sent).unwrap())
                };
                answer.sets[set as usize].iter().map(member).collect::<BTreeSet<_>>()
            };
            let answered = match answered {
                PathAnswer::Published { set, default } => {
                    let default = default.map(members).unwrap_or_default();
                    assert_eq!(default, self.model.default_above(path), "the default of {path}");
                    (members(*set), false)
                }
                PathAnswer::ByDefault { set } => (members(*set), true),
                PathAnswer::NotFound => (BTreeSet::new(), false),
                PathAnswer::Refused { .. } | PathAnswer::Unknown { .. } => {
                    panic!("{path}: {answered:?}")
                }
            };
            assert_eq!(answered, self.model.resolve(path), "{path}");
        }
        for (of, scope) in PATHS.map(path).iter().zip((0..SCOPES.len()).cycle().map(scope)) {
            for (budget, scope) in [(1, Scope::default()), (3, scope.clone()), (100, scope)] {
                let (mut children, mut out) = (Children::new(of), Vec::new());
                while !children.take(&mut self.directory, &scope, budget, &mut out) {}
                let once: BTreeSet<PathListed> = out.iter().cloned().collect();
                assert_eq!(once.len(), out.len(), "{of}: one is listed twice: {out:?}");
                let expected = self.model.children(of, &scope);
                assert_eq!(once, expected, "below {of}, {budget} at a time, in {scope:?}");
            }
        }
        for globs in
            [&GLOBS[..1], &GLOBS[1..2], &GLOBS[2..4], &GLOBS[4..6], &GLOBS[6..8], &GLOBS[8..]]
        {
            let globs: Vec<Glob> = globs.iter().map(|text| Glob::new(text).unwrap()).collect();
            let matches = |path: &Path| globs.iter().any(|glob| glob.matches(path));
            for scope in [Scope::default(), scope(globs.len()), scope(3)] {
                let visible = self.model.visible_paths(&scope);
                let expected: Vec<PathListed> =
                    visible.iter().filter(|p| matches(p)).map(|p| self.model.listed(p)).collect();
                let (mut matching, mut out) = (GlobWalk::new(&globs).unwrap(), Vec::new());
                while !matching.take(&mut self.directory, &scope, 2, &mut out) {}
                out.sort();
                assert_eq!(out, expected, "{globs:?} in {scope:?}");
            }
        }
    }

    fn note_due(&mut self) {
        self.due.extend(self.directory.newly_due().map(|client| client.0));
    }

    /// Sends a client one message, if the directory has reported it as due.
    fn push(&mut self, client: u64) {
        self.note_due();
        if !self.due.contains(&client) {
            return;
        }
        match self.directory.push(Client(client)) {
            Push::Working => {}
            Push::Done => {
                self.due.remove(&client);
            }
            Push::Send(FromReplica::Publishers(all)) => {
                assert!(self.model.watches.contains_key(&(client, all.watch)));
                let sent = numbers(&all.publishers);
                assert_eq!(sent.len(), all.publishers.len());
                for info in &all.publishers {
                    assert_eq!(info.epoch.0, self.model.known[&info.id.0[0]].epoch);
                }
                self.sent.insert((client, all.watch), sent);
            }
            Push::Send(FromReplica::PublisherGone(gone)) => {
                for watch in gone.watches {
                    if let Some(sent) = self.sent.get_mut(&(client, watch)) {
                        sent.remove(&gone.publisher.0[0]);
                    }
                }
            }
            Push::Send(FromReplica::PathSnapshot(some)) => {
                assert!(self.model.path_watches.contains_key(&(client, some.watch)));
                if some.first {
                    self.paths_sent.insert((client, some.watch), BTreeSet::new());
                }
                self.paths_are((client, some.watch), &some.paths);
            }
            Push::Send(FromReplica::PathChanges(some)) => {
                for watch in some.watches {
                    self.paths_are((client, watch), &some.paths);
                }
            }
            Push::Send(other) => panic!("{other:?}"),
        }
    }

    fn paths_are(&mut self, key: (u64, u32), paths: &[PathListed]) {
        // Even a path that is gone is not named to a client that does not see it.
        let scope = self.model.scope_of(key.0);
        assert!(paths.iter().all(|listed| scope.contains(listed.path.as_str())), "{paths:?}");
        let sent = self.paths_sent.entry(key).or_default();
        for listed in paths {
            sent.retain(|known| known.path != listed.path);
            if listed.published() || listed.default {
                sent.insert(listed.clone());
            }
        }
    }

    /// Level-triggered: whatever happened in between, once nothing is pending the last message of
    /// each watch shows the current state.
    fn compare_watches(&mut self) {
        while self.directory.sweep(3) {
            self.directory.invariant();
        }
        self.note_due();
        for times in 0.. {
            let Some(&client) = self.due.first() else { break };
            assert!(times < 10_000, "the messages never end");
            self.push(client);
        }
        for (key, &glob) in &self.model.path_watches {
            let glob = Glob::new(GLOBS[glob]).unwrap();
            let visible = self.model.visible_paths(&self.model.scope_of(key.0)).into_iter();
            let expected: BTreeSet<PathListed> = visible
                .filter(|path| glob.matches(path))
                .map(|path| self.model.listed(&path))
                .collect();
            assert_eq!(self.paths_sent.get(key), Some(&expected), "watch {key:?} of {glob}");
        }
        for (key, &glob) in &self.model.watches {
            let scope = self.model.scope_of(key.0);
            let expected = self.model.concerned(&Glob::new(GLOBS[glob]).unwrap(), &scope);
            assert_eq!(self.sent.get(key), Some(&expected), "watch {key:?} of {}", GLOBS[glob]);
        }
    }
}

impl Pair {
    /// With three publishers.
    fn announced() -> Pair {
        let mut pair = Pair::new();
        for number in 0..3 {
            pair.step(&Op::Announce {
                client: number.into(),
                publisher: number,
                epoch: 1,
                equal: true,
            });
        }
        pair
    }
}

/// The number of cases: `LONGSHORE_MODEL_CASES`, or 400.
fn cases() -> u32 {
    let cases = std::env::var("LONGSHORE_MODEL_CASES").ok();
    cases.and_then(|text| text.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn a_count_is_exact_whatever_changes_while_its_walk_is_suspended(
        ops in proptest::collection::vec(counting_op(), 1..120)
    ) {
        let mut pair = Pair::announced();
        for op in &ops {
            pair.step(op);
            pair.directory.invariant();
        }
        pair.compare_watches();
    }

    #[test]
    fn the_directory_behaves_like_the_model(ops in proptest::collection::vec(op(), 1..120)) {
        // Each comparison takes as long as dozens of operations.
        let every = if std::env::var_os("LONGSHORE_LONG").is_some() { 1 } else { 5 };
        let mut pair = Pair::announced();
        for (step, op) in ops.iter().enumerate() {
            pair.step(op);
            pair.directory.invariant();
            if step % every == 0 {
                pair.compare();
            }
            if step % 5 == 4 {
                pair.compare_watches();
            }
        }
        pair.compare();
        pair.compare_watches();
    }
}
