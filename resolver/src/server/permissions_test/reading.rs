//! What a client sees.

use proptest::prelude::*;

use super::*;

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
