//! What a policy allows at a replica: every request, by every right.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_access::{Action, Identity, Policy};
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::limits::EPOCH_MAX;
use longshore_protocol::messages::resolver::{
    Announce, Change, Digest, FromReplica, Group, KeyHash, KnownPublisher, List, ListMatching,
    PathAnswer, PathListed, RequestRefusal, Resolve, Resolved, Table, ToReplica, WatchPaths,
    WatchPublishers, Write,
};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublicationKind, PublisherId, PublisherInfo, Terms,
};
use proptest::prelude::*;
use tokio::sync::Semaphore;

use crate::directory::{Client, Directory, Push, Rules};
use crate::server::access::{AccessLog, ClientAccess};
use crate::server::request::{Context, GLOB_SEGMENTS_MAX, Progress, Request};
use crate::server::server_loop::StatusContext;

const TTL: Duration = Duration::from_secs(120);
const ME: Client = Client(2);
/// The publisher that the policies of these tests bind to the identity `me`.
const MINE: PublisherId = PublisherId([2; 16]);

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn paths<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Path> {
    texts.into_iter().map(path).collect()
}

fn info(number: u8, epoch: u64) -> PublisherInfo {
    let (id, name) = (PublisherId([number; 16]), format!("publisher-{number}"));
    PublisherInfo::new(id, Epoch(epoch), name, [([127, 0, 0, 1], 4000 + u16::from(number))])
}

fn terms(kind: PublicationKind) -> Terms {
    Terms { kind, ..Terms::default() }
}

/// The access of an identity under a policy, which binds [`MINE`] to `me`.
fn access(name: &str, rules: &str) -> ClientAccess {
    let policy = format!("publishers.\"{MINE}\" = [\"token:me\"]\n{rules}");
    let identity: Identity = format!("token:{name}").parse().unwrap();
    let rights = Policy::parse(&policy).unwrap().rights(Some(&identity));
    ClientAccess::new(Some(identity.into()), ([127, 0, 0, 1], 4000).into(), rights.into())
}

fn allow(actions: &[&str], paths: &[&str]) -> String {
    format!("[[allow]]\nwho = [\"*\"]\ndo = {actions:?}\npaths = {paths:?}\n")
}

fn deny(actions: &[&str], paths: &[&str]) -> String {
    allow(actions, paths).replace("allow", "deny")
}

/// A directory with publisher 1, which was registered without a policy, and publisher 3, which had
/// a queue and is missing.
struct Replica {
    now: Instant,
    directory: Directory,
    log: AccessLog,
}

impl Replica {
    fn new() -> Replica {
        let now = Instant::now();
        let directory = Directory::new(now, Incarnation([1; 16]), Rules::small(TTL));
        let mut replica = Replica { now, directory, log: AccessLog::new() };
        replica.publish(Client(3), &info(3, 1), &[("/gone/q", PublicationKind::Queue, false)]);
        replica.directory.clear(Client(3)).unwrap();
        while replica.directory.sweep(100) {}
        let all = [
            ("/q/mail", PublicationKind::Queue, false),
            ("/v/load", PublicationKind::Value, false),
            ("/d", PublicationKind::Queue, true),
        ];
        replica.publish(Client(1), &info(1, 1), &all);
        replica
    }

    fn publish(
        &mut self,
        client: Client,
        info: &PublisherInfo,
        all: &[(&str, PublicationKind, bool)],
    ) {
        self.directory.announce(self.now, client, info, &[]).unwrap();
        let slot = self.directory.writer(client).unwrap();
        for &(text, kind, default) in all {
            let change = if default { Change::PublishDefault } else { Change::Publish };
            let path = path(text);
            self.directory.write_text(slot, change, &terms(kind), (&path).into()).unwrap();
        }
    }

    /// The answers to a request, whose every slice is as short as possible.
    fn ask(
        &mut self,
        client: Client,
        access: &ClientAccess,
        request: ToReplica,
    ) -> Vec<FromReplica> {
        let mut out = FrameWriter::new();
        request.encode(&mut out);
        let message = Messages::new(out.into_body()).next().unwrap();
        let mut job = Request::next(message, &Cell::default()).unwrap();
        let status = StatusContext {
            name: "left",
            connections: 0,
            uptime: TTL,
            slice_max: TTL,
            requests: &Cell::default(),
            slots: None,
        };
        let status = |directory: &Directory| status.status(directory);
        let mut context = Context {
            directory: &mut self.directory,
            client,
            writes: true,
            access,
            access_log: &mut self.log,
            status: &status,
            writer_ttl: TTL,
            glob_segments: &Arc::new(Semaphore::new(GLOB_SEGMENTS_MAX)),
            until: Instant::now(),
        };
        let mut answers = Vec::new();
        loop {
            match job.slice(&mut context) {
                Progress::More(answer) => answers.extend(answer),
                Progress::Done(answer) => {
                    answers.extend(answer);
                    return answers;
                }
            }
        }
    }

    fn announce(
        &mut self,
        client: Client,
        access: &ClientAccess,
        publisher: PublisherInfo,
        desired: Vec<Digest>,
    ) -> Result<Vec<Digest>, (RequestRefusal, String)> {
        let announce = Announce { id: 1, publisher, desired };
        let mut answers = self.ask(client, access, ToReplica::Announce(announce));
        match answers.pop() {
            Some(FromReplica::Announced(answer)) => Ok(answer.stored),
            Some(FromReplica::Refused { code, reason, .. }) => Err((code, reason)),
            other => panic!("{other:?}"),
        }
    }

    /// Publishes; returns the reasons of what is refused, by place.
    fn write(
        &mut self,
        client: Client,
        access: &ClientAccess,
        change: Change,
        kind: PublicationKind,
        texts: &[&str],
    ) -> BTreeMap<u32, String> {
        let paths = paths(texts.iter().copied());
        let group = Group { change, terms: terms(kind), paths: paths.iter().collect() };
        let write = Write { id: 1, groups: vec![group] };
        let mut refused = BTreeMap::new();
        for answer in self.ask(client, access, ToReplica::Write(write)) {
            let FromReplica::Written(written) = answer else { panic!("{answer:?}") };
            refused.extend(written.refused.into_iter().map(|one| (one.place, one.reason)));
        }
        refused
    }

    /// Everything that is pushed to a client.
    fn pushes(&mut self, client: Client) -> Vec<FromReplica> {
        let mut pushes = Vec::new();
        loop {
            match self.directory.push(client) {
                Push::Send(message) => pushes.push(message),
                Push::Working => {}
                Push::Done => return pushes,
            }
        }
    }

    fn resolve(&mut self, access: &ClientAccess, texts: &[&str]) -> Resolved {
        let paths = paths(texts.iter().copied()).iter().collect();
        let mut answers = self.ask(ME, access, ToReplica::Resolve(Resolve { id: 1, paths }));
        let Some(FromReplica::Resolved(resolved)) = answers.pop() else { panic!("{answers:?}") };
        assert!(answers.is_empty());
        resolved
    }

    fn list(&mut self, access: &ClientAccess, request: ToReplica) -> BTreeSet<PathListed> {
        let mut paths = Vec::new();
        for answer in self.ask(ME, access, request) {
            let FromReplica::Listed(listed) = answer else { panic!("{answer:?}") };
            paths.extend(listed.paths);
        }
        let all: BTreeSet<PathListed> = paths.iter().cloned().collect();
        assert_eq!(all.len(), paths.len(), "listed twice");
        all
    }

    fn publishers(&mut self, access: &ClientAccess) -> Vec<KnownPublisher> {
        let mut publishers = Vec::new();
        for answer in self.ask(ME, access, ToReplica::ListPublishers { id: 1 }) {
            let FromReplica::PublishersKnown(part) = answer else { panic!("{answer:?}") };
            publishers.extend(part.publishers);
        }
        publishers
    }
}

fn all_paths() -> ToReplica {
    ToReplica::ListMatching(ListMatching { id: 1, globs: vec![Glob::everything()] })
}

/// A request, and the actions of which one is enough for it to be served.
type Case = (&'static str, &'static [Action], fn(&mut Replica, &ClientAccess) -> bool);

const CASES: [Case; 14] = [
    ("resolve", &[Action::Resolve], |replica, access| {
        let answer = replica.resolve(access, &["/q/mail"]);
        !answer.publishers.is_empty()
    }),
    ("resolve a default", &[Action::Resolve], |replica, access| {
        !replica.resolve(access, &["/d/new"]).publishers.is_empty()
    }),
    ("list", &[Action::Resolve], |replica, access| {
        let request = ToReplica::List(List { id: 1, path: path("/q") });
        !replica.list(access, request).is_empty()
    }),
    ("list by globs", &[Action::Resolve], |replica, access| {
        !replica.list(access, all_paths()).is_empty()
    }),
    ("table", &[Action::Resolve], |replica, access| {
        let table = Table { id: 1, path: Path::root() };
        let answers = replica.ask(ME, access, ToReplica::Table(table));
        answers.iter().any(|answer| {
            let FromReplica::Table(part) = answer else { panic!("{answer:?}") };
            !part.rows.is_empty() || !part.columns.is_empty()
        })
    }),
    ("watch publishers", &[Action::Resolve], |replica, access| {
        replica.directory.set_scope(ME, access.scope.clone());
        let watch = WatchPublishers { id: 1, watch: 1, glob: Glob::everything() };
        assert!(replica.ask(ME, access, ToReplica::WatchPublishers(watch)).is_empty());
        let pushes = replica.pushes(ME);
        let [FromReplica::Publishers(all)] = &pushes[..] else { panic!("{pushes:?}") };
        !all.publishers.is_empty()
    }),
    ("watch paths", &[Action::Resolve], |replica, access| {
        replica.directory.set_scope(ME, access.scope.clone());
        let watch = WatchPaths { id: 1, watch: 1, globs: vec![Glob::everything()] };
        assert!(replica.ask(ME, access, ToReplica::WatchPaths(watch)).is_empty());
        let pushes = replica.pushes(ME);
        let [FromReplica::PathSnapshot(all)] = &pushes[..] else { panic!("{pushes:?}") };
        !all.paths.is_empty()
    }),
    ("list publishers", &[Action::Resolve, Action::Inspect, Action::Operate], |replica, access| {
        !replica.publishers(access).is_empty()
    }),
    ("status", &[Action::Inspect], |replica, access| {
        match &replica.ask(ME, access, ToReplica::Status { id: 1 })[..] {
            [FromReplica::Status { .. }] => true,
            [FromReplica::Refused { code: RequestRefusal::Forbidden, reason, .. }] => {
                assert!(reason.ends_with("allow `token:me` to inspect /sys"), "{reason}");
                false
            }
            other => panic!("{other:?}"),
        }
    }),
    ("forget a publisher", &[Action::Operate], |replica, access| {
        let publisher = PublisherId([3; 16]);
        let answers = replica.ask(ME, access, ToReplica::ForgetPublisher { id: 1, publisher });
        let forgotten = !replica.directory.has_missing_queues(publisher);
        match &answers[..] {
            [FromReplica::Written(answer)] => assert!(forgotten && answer.done == 1),
            [FromReplica::Refused { code: RequestRefusal::Forbidden, reason, .. }] => {
                assert!(reason.ends_with("allow `token:me` to operate /sys"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        forgotten
    }),
    ("serve a queue", &[Action::Serve], |replica, access| {
        publishes(replica, access, Change::Publish, PublicationKind::Queue, "/q/new")
    }),
    ("publish a value", &[Action::Publish], |replica, access| {
        publishes(replica, access, Change::Publish, PublicationKind::Value, "/v/new")
    }),
    ("serve by default", &[Action::Serve], |replica, access| {
        publishes(replica, access, Change::PublishDefault, PublicationKind::Queue, "/q")
    }),
    ("publish by default", &[Action::Publish], |replica, access| {
        publishes(replica, access, Change::PublishDefault, PublicationKind::Value, "/")
    }),
];

fn publishes(
    replica: &mut Replica,
    access: &ClientAccess,
    change: Change,
    kind: PublicationKind,
    text: &str,
) -> bool {
    let before = replica.list(&ClientAccess::everything(), all_paths());
    let announced = replica.announce(ME, access, info(2, 1), Vec::new());
    if let Err((code, reason)) = announced {
        assert_eq!(code, RequestRefusal::Forbidden, "{reason}");
        assert!(reason.contains("`token:me` to register"), "{reason}");
        return false;
    }
    let refused = replica.write(ME, access, change, kind, &[text]);
    let after = replica.list(&ClientAccess::everything(), all_paths());
    if let Some(reason) = refused.get(&0) {
        assert!(reason.starts_with("Forbidden: "), "{reason}");
    }
    assert_eq!(refused.is_empty(), before != after);
    refused.is_empty()
}

/// 14 requests × 12 rights × allowed, elsewhere, denied; and all rights, none, no policy.
#[test]
fn every_request_needs_its_right_on_its_path() {
    let mut served = 0;
    for (name, needed, request) in CASES {
        let mut is_served = |rules: &str| {
            let is_served = request(&mut Replica::new(), &access("me", rules));
            served += usize::from(is_served);
            is_served
        };
        for action in Action::ALL {
            let own = allow(&[action.name()], &["/**"]);
            assert_eq!(is_served(&own), needed.contains(&action), "{name}, by {action} alone");
            let elsewhere = allow(&[action.name()], &["/elsewhere/**"]);
            assert!(!is_served(&elsewhere), "{name}, by {action} elsewhere");
            let denied = allow(&["*"], &["/**"]) + &deny(&[action.name()], &["/**"]);
            let expected = needed != [action];
            assert_eq!(is_served(&denied), expected, "{name}, by all but {action}");
        }
        assert!(is_served(&allow(&["*"], &["/**"])), "{name}, by all rights");
        assert!(!is_served(""), "{name}, without any");
        assert!(request(&mut Replica::new(), &ClientAccess::everything()), "{name}, no policy");
    }
    assert!(served > 100, "{served}");
}

#[test]
fn a_path_that_a_client_may_not_see_looks_like_one_that_nobody_publishes() {
    let mut replica = Replica::new();
    let access = access("me", &allow(&["resolve"], &["/v/**", "/d/mine"]));
    let hidden = ["/q/mail", "/q/none", "/q", "/d/other", "/none/at/all", "/gone/q"];
    let answer = replica.resolve(&access, &hidden);
    assert_eq!(answer.answers, vec![PathAnswer::NotFound; hidden.len()]);
    assert!(answer.publishers.is_empty() && answer.terms.is_empty() && answer.sets.is_empty());
    // A default serves a path for those who may see the path, whoever may see the default's.
    let answer = replica.resolve(&access, &["/v/load", "/d/mine"]);
    let [PathAnswer::Published { .. }, PathAnswer::ByDefault { .. }] = answer.answers[..] else {
        panic!("{:?}", answer.answers)
    };
    for of in ["/q", "/q/mail", "/none", "/gone"] {
        let request = ToReplica::List(List { id: 1, path: path(of) });
        assert!(replica.list(&access, request).is_empty(), "below {of}");
    }
}

#[test]
fn publishers_are_listed_by_what_a_client_sees_of_them() {
    let mut replica = Replica::new();
    let of = |all: &[KnownPublisher]| -> Vec<(u8, Vec<String>, u64)> {
        let paths = |one: &KnownPublisher| {
            let all = one.declared.defaults.iter().chain(&one.declared.queues);
            all.map(Path::to_string).collect()
        };
        all.iter().map(|one| (one.info.id.0[0], paths(one), one.registrations)).collect()
    };
    let mut known = |rules: &str| of(&replica.publishers(&access("me", rules)));
    let text = str::to_owned;
    let all = [(1, vec![text("/d"), text("/q/mail")], 3), (3, vec![text("/gone/q")], 0)];
    assert_eq!(known(&allow(&["inspect"], &["/sys"])), all);
    assert_eq!(known(&allow(&["operate"], &["/sys/**"])), all);
    assert_eq!(known(&allow(&["inspect"], &["/sys/a"])), []);
    assert_eq!(known(&allow(&["resolve"], &["/v/**"])), [], "its values are not declared");
    assert_eq!(known(&allow(&["resolve"], &["/q/*"])), [(1, vec![text("/q/mail")], 1)]);
    assert_eq!(known(&allow(&["resolve"], &["/d/x"])), [(1, vec![text("/d")], 1)]);
    assert_eq!(known(&allow(&["resolve"], &["/gone/**"])), [all[1].clone()]);
}

const SEGMENTS: [&str; 3] = ["a", "b", "c"];
const GLOBS: [&str; 9] =
    ["/**", "/a/**", "/a", "/*/b", "/b/{a,c}/**", "/**/c", "/?/?", "/c/b/a", "/b/**/a"];

fn some_path() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&SEGMENTS[..]), 1..4)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

fn some_globs() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::collection::vec(proptest::sample::select(&GLOBS[..]), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Every answer has exactly the visible part of what an unrestricted client sees, also after
    /// changes that watches report.
    #[test]
    fn a_client_sees_exactly_its_part(
        published in proptest::collection::vec((some_path(), any::<bool>(), any::<bool>()), 0..12),
        later in proptest::collection::vec((some_path(), any::<bool>(), any::<bool>()), 0..6),
        removed in proptest::collection::vec(some_path(), 0..6),
        allowed in some_globs(),
        denied in some_globs(),
        asked in some_path(),
        globs in proptest::collection::vec(proptest::sample::select(&GLOBS[..]), 1..3),
    ) {
        let rule = |rule: fn(&[&str], &[&str]) -> String, globs: &[&str]| match globs {
            [] => String::new(),
            globs => rule(&["resolve"], globs),
        };
        let restricted = access("me", &(rule(allow, &allowed) + &rule(deny, &denied)));
        let everything = ClientAccess::everything();
        let matches = |globs: &[&str], path: &Path| {
            globs.iter().any(|glob| Glob::new(glob).unwrap().matches(path))
        };
        let sees = |path: &Path| matches(&allowed, path) && !matches(&denied, path);
        let mut replica = Replica::new();
        let kind = |value| if value { PublicationKind::Value } else { PublicationKind::Queue };
        let all: Vec<_> =
            published.iter().map(|(text, value, default)| (&**text, kind(*value), *default)).collect();
        replica.publish(Client(1), &info(1, 1), &all);
        for (client, access) in [(ME, &restricted), (Client(9), &everything)] {
            replica.directory.set_scope(client, access.scope.clone());
            let globs = globs.iter().map(|glob| Glob::new(glob).unwrap()).collect();
            let watch = WatchPaths { id: 1, watch: 1, globs };
            replica.ask(client, access, ToReplica::WatchPaths(watch));
        }
        let mut watched = [BTreeMap::new(), BTreeMap::new()];
        for changes in [false, true] {
            if changes {
                let slot = replica.directory.writer(Client(1)).unwrap();
                for (text, value, default) in &later {
                    let change = if *default { Change::PublishDefault } else { Change::Publish };
                    let (path, terms) = (path(text), terms(kind(*value)));
                    replica.directory.write_text(slot, change, &terms, (&path).into()).unwrap();
                }
                for text in &removed {
                    replica.directory.change(slot, Change::Unpublish, &path(text)).unwrap();
                    replica.directory.change(slot, Change::UnpublishDefault, &path(text)).unwrap();
                }
            }
            let all = replica.list(&everything, all_paths());
            let visible: BTreeSet<PathListed> =
                all.iter().filter(|listed| sees(&listed.path)).cloned().collect();
            prop_assert_eq!(&replica.list(&restricted, all_paths()), &visible);

            for of in [&path(&asked), &Path::root()] {
                compare_below(&mut replica, &restricted, of, &visible)?;
            }
            for text in all.iter().map(|listed| listed.path.as_str()).chain([asked.as_str()]) {
                let [one, other] = [&restricted, &everything].map(|access| replica.resolve(access, &[text]));
                if sees(&path(text)) {
                    prop_assert_eq!(one, other);
                } else {
                    prop_assert_eq!(one.answers, [PathAnswer::NotFound]);
                    prop_assert!(one.publishers.is_empty());
                }
            }
            for (client, watched) in [ME, Client(9)].into_iter().zip(&mut watched) {
                for push in replica.pushes(client) {
                    let paths = match push {
                        FromReplica::PathSnapshot(some) => some.paths,
                        FromReplica::PathChanges(some) => {
                            prop_assert!(!some.paths.is_empty(), "an empty message shows activity");
                            some.paths
                        }
                        other => panic!("{other:?}"),
                    };
                    for listed in paths {
                        prop_assert!(client != ME || sees(&listed.path), "{listed:?}");
                        watched.insert(listed.path.clone(), listed);
                    }
                }
                watched.retain(|_, listed| listed.published() || listed.default);
            }
            let mut expected = watched[1].clone();
            expected.retain(|path, _| sees(path));
            prop_assert_eq!(&watched[0], &expected);
        }
    }
}

/// Compares what lies below a path, as a listing and as a table, with the visible paths.
fn compare_below(
    replica: &mut Replica,
    access: &ClientAccess,
    of: &Path,
    visible: &BTreeSet<PathListed>,
) -> Result<(), TestCaseError> {
    // The segments of each visible path below `of`.
    let below = |listed: &PathListed| -> Option<Vec<String>> {
        let is_below = listed.path.is_at_or_below(of) && listed.path != *of;
        let segments = listed.path.segments().skip(of.depth()).map(str::to_owned);
        is_below.then(|| segments.collect())
    };
    let below: Vec<Vec<String>> = visible.iter().filter_map(below).collect();
    let rows: BTreeSet<String> = below.iter().map(|segments| segments[0].clone()).collect();
    let prefix = of.as_str().trim_end_matches('/');
    let children: BTreeSet<PathListed> = rows
        .iter()
        .map(|name| {
            let child = path(&format!("{prefix}/{name}"));
            let known = visible.iter().find(|listed| listed.path == child).cloned();
            let nothing = PathListed { path: child, queue: false, value: false, default: false };
            known.unwrap_or(nothing)
        })
        .collect();
    let request = ToReplica::List(List { id: 1, path: of.clone() });
    prop_assert_eq!(replica.list(access, request), children, "below {}", of);

    let cells: BTreeSet<(&String, &String)> =
        below.iter().filter_map(|segments| Some((segments.first()?, segments.get(1)?))).collect();
    let mut columns: BTreeMap<String, u64> = BTreeMap::new();
    cells.iter().for_each(|(_, column)| *columns.entry((*column).clone()).or_default() += 1);
    let (mut sent_rows, mut sent_columns) = (BTreeSet::new(), BTreeMap::new());
    for answer in replica.ask(ME, access, ToReplica::Table(Table { id: 1, path: of.clone() })) {
        let FromReplica::Table(part) = answer else { panic!("{answer:?}") };
        sent_rows.extend(part.rows);
        for column in part.columns {
            *sent_columns.entry(column.name).or_default() += column.rows;
        }
    }
    prop_assert_eq!((sent_rows, sent_columns), (rows, columns), "the table of {}", of);
    Ok(())
}

const QUEUE: PublicationKind = PublicationKind::Queue;
const VALUE: PublicationKind = PublicationKind::Value;

#[test]
fn a_publisher_belongs_to_its_identity_whatever_the_epoch() {
    let mut replica = Replica::new();
    let all = allow(&["*"], &["/**"]);
    let (me, other) = (access("me", &all), access("other", &all));
    let refused = replica.announce(Client(8), &other, info(2, 1), Vec::new()).unwrap_err();
    assert_eq!(refused.0, RequestRefusal::Forbidden);
    assert!(refused.1.contains("belongs to others"), "{}", refused.1);
    replica.announce(ME, &me, info(2, 7), Vec::new()).unwrap();
    for epoch in [7, 8, EPOCH_MAX] {
        let refused = replica.announce(Client(8), &other, info(2, epoch), Vec::new());
        assert_eq!(refused.unwrap_err().0, RequestRefusal::Forbidden);
    }
    assert!(replica.directory.writer(ME).is_ok(), "nobody took over");
    // Its own mistakes have a bound, too.
    let (code, reason) = replica.announce(ME, &me, info(2, EPOCH_MAX + 1), Vec::new()).unwrap_err();
    assert_eq!(code, RequestRefusal::OverLimit);
    assert!(reason.contains("epoch 4294967296 is over the limit of 4294967295"), "{reason}");
    let everything = ClientAccess::everything();
    let refused = replica.announce(Client(9), &everything, info(4, u64::MAX), Vec::new());
    assert_eq!(refused.unwrap_err().0, RequestRefusal::OverLimit, "without a policy, too");
}

#[test]
fn a_publisher_that_the_policy_does_not_name_publishes_values_for_its_first_identity() {
    let mut replica = Replica::new();
    let all = allow(&["*"], &["/**"]);
    let (me, other) = (access("me", &all), access("other", &all));
    replica.announce(ME, &me, info(5, 1), Vec::new()).unwrap();
    assert_eq!(replica.write(ME, &me, Change::Publish, VALUE, &["/v/a"]), BTreeMap::new());
    for change in [Change::Publish, Change::PublishDefault] {
        let refused = replica.write(ME, &me, change, QUEUE, &["/q/a"]);
        assert!(refused[&0].contains("does not name this publisher"), "{refused:?}");
    }
    let refused = replica.announce(Client(8), &other, info(5, 2), Vec::new()).unwrap_err();
    assert!(refused.1.contains("another identity has registered"), "{}", refused.1);
    assert_eq!(replica.write(ME, &me, Change::Publish, VALUE, &["/v/b"]), BTreeMap::new());
    // A link later it is still the owner, also while it is away.
    replica.directory.client_gone(ME);
    assert!(replica.announce(Client(8), &other, info(5, 2), Vec::new()).is_err());
    replica.announce(Client(10), &me, info(5, 1), Vec::new()).unwrap();
    // Once it is silent for too long nobody knows it.
    replica.directory.tick(replica.now + 2 * TTL);
    replica.announce(Client(8), &other, info(5, 1), Vec::new()).unwrap();
    // A missing publisher's queues are no unnamed publisher's.
    let refused = replica.announce(Client(9), &me, info(3, 2), Vec::new()).unwrap_err();
    assert!(refused.1.contains("has declared queues"), "{}", refused.1);
    assert!(replica.directory.has_missing_queues(PublisherId([3; 16])));
}

#[test]
fn a_default_needs_the_right_on_everything_below_it() {
    let mut replica = Replica::new();
    let rules = allow(&["serve"], &["/jobs/**", "/one/*", "/all/**"]);
    let me = access("me", &(rules + &deny(&["serve"], &["/all/secret/x"])));
    replica.announce(ME, &me, info(2, 1), Vec::new()).unwrap();
    let texts = ["/jobs", "/jobs/a", "/one", "/one/a", "/all", "/all/b", "/all/secret", "/"];
    let refused = replica.write(ME, &me, Change::PublishDefault, QUEUE, &texts);
    assert_eq!(refused.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 6, 7]);
    assert!(refused[&4].contains("everything below /all,"), "{refused:?}");
    // What it may not publish it may still withdraw.
    let refused = replica.write(ME, &me, Change::UnpublishDefault, QUEUE, &texts);
    assert_eq!(refused, BTreeMap::new());
}

#[test]
fn a_publisher_that_returns_with_fewer_rights_loses_the_paths_of_the_others() {
    let before = access("me", &allow(&["*"], &["/**"]));
    let text: Vec<String> = (0..400).map(|n| format!("/jobs/{n}")).collect();
    let texts: Vec<&str> = text.iter().map(String::as_str).collect();
    let rules = allow(&["resolve", "publish"], &["/**"]);
    let after = access("me", &(rules + &allow(&["serve"], &["/jobs/?", "/jobs/3*"])));
    let held = |replica: &mut Replica| {
        let globs = vec![Glob::new("/{jobs,v}/**").unwrap()];
        let request = ToReplica::ListMatching(ListMatching { id: 1, globs });
        let listed = replica.list(&ClientAccess::everything(), request);
        let published = listed.into_iter().map(|listed| listed.path.to_string());
        published.collect::<BTreeSet<String>>()
    };
    let digest = |paths: &BTreeSet<String>| {
        let mut digest = Digest::default();
        for path in paths.iter().filter(|path| *path != "/v/load") {
            let kind = if path.starts_with("/v") { VALUE } else { QUEUE };
            digest.add(KeyHash::of(path, path == "/jobs"), terms(kind).digest());
        }
        digest
    };
    let mut replica = Replica::new();
    replica.announce(ME, &before, info(2, 1), Vec::new()).unwrap();
    assert!(replica.write(ME, &before, Change::Publish, QUEUE, &texts).is_empty());
    assert!(replica.write(ME, &before, Change::Publish, VALUE, &["/v/mine"]).is_empty());
    assert!(replica.write(ME, &before, Change::PublishDefault, QUEUE, &["/jobs"]).is_empty());
    let all = held(&mut replica);
    replica.directory.client_gone(ME);

    // It wants the same as before, so that no digest would differ.
    let desired = vec![digest(&all)];
    let announce = Announce { id: 1, publisher: info(2, 1), desired: desired.clone() };
    let answers = replica.ask(Client(8), &after, ToReplica::Announce(announce));
    let Some((FromReplica::Announced(announced), progress)) = answers.split_last() else {
        panic!("{answers:?}")
    };
    assert!(progress.len() > 3, "in slices: {}", progress.len());
    for part in progress {
        let FromReplica::Written(written) = part else { panic!("{part:?}") };
        assert!(!written.last && written.id == 1 && written.refused.is_empty());
    }
    let allowed = |text: &&String| match text.strip_prefix("/jobs/") {
        Some(number) => number.len() == 1 || number.starts_with('3'),
        None => *text != "/jobs",
    };
    let left: BTreeSet<String> = all.iter().filter(allowed).cloned().collect();
    assert_eq!(left.len(), 10 + 110 + 2);
    assert_eq!(held(&mut replica), left);
    assert_eq!(announced.stored, [digest(&left)], "so it writes again, and is refused");

    // Its heartbeats are not checked again, and neither is a link with the same rights.
    let same = after.with_rights(Arc::new((**after.rights()).clone()));
    for (client, access) in [(Client(8), &after), (Client(10), &same)] {
        let announce = Announce { id: 1, publisher: info(2, 1), desired: vec![digest(&left)] };
        assert_eq!(replica.ask(client, access, ToReplica::Announce(announce)).len(), 1);
    }
    // A right that its link had for a while, and what it published with it, go with the link.
    replica.directory.rights_changed(Client(10));
    assert!(replica.write(Client(10), &before, Change::Publish, QUEUE, &["/jobs/50"]).is_empty());
    assert!(held(&mut replica).contains("/jobs/50"));
    replica.directory.client_gone(Client(10));
    replica.announce(Client(10), &after, info(2, 1), desired.clone()).unwrap();
    assert_eq!(held(&mut replica), left);

    let fewer = access("me", &allow(&["serve"], &["/jobs/7"]));
    let stored = replica.announce(Client(10), &fewer, info(2, 1), desired).unwrap();
    let left: BTreeSet<String> = ["/jobs/7", "/v/load"].map(String::from).into();
    assert_eq!((held(&mut replica), stored), (left.clone(), vec![digest(&left)]));
}
