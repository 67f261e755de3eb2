//! Listings while the directory changes between their slices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{Change, PathListed};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::directory::{
    Cells, Children, Client, Directory, GlobWalk, Rules, Scope, Slot, TablePart,
};

/// A publisher that stays, and one that may be swept.
const STAYS: Client = Client(1);
const GOES: Client = Client(2);

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// What a client sees: everything, or the paths of some globs and not of others.
const SCOPES: [(&[&str], &[&str]); 6] = [
    (&["/**"], &[]),
    (&["/1/**"], &[]),
    (&["/*/2/**", "/0"], &[]),
    (&["/**"], &["/**/3"]),
    (&["/{1,2}/*", "/3/3/3"], &["/1/1"]),
    (&[], &[]),
];

struct Scenario {
    directory: Directory,
    /// What the client of the listing sees.
    scope: Scope,
    /// The paths of each of the two.
    registered: [BTreeSet<Path>; 2],
}

impl Scenario {
    fn new() -> Scenario {
        let rules = Rules {
            publishers_max: 1_000,
            paths_max: 100_000,
            ..Rules::small(Duration::from_secs(120))
        };
        let directory = Directory::new(Instant::now(), Incarnation([5; 16]), rules);
        let registered = [BTreeSet::new(), BTreeSet::new()];
        let mut scenario = Scenario { directory, scope: Scope::default(), registered };
        scenario.announce(STAYS);
        scenario.announce(GOES);
        scenario
    }

    fn announce(&mut self, client: Client) -> Slot {
        let info = PublisherInfo::new(
            PublisherId([client.0 as u8; 16]),
            Epoch(1),
            format!("publisher-{}", client.0),
            [([127, 0, 0, 1], 4000)],
        );
        self.directory.announce(Instant::now(), client, &info, &[]).unwrap();
        self.directory.writer(client).unwrap()
    }

    fn publish(&mut self, client: Client, text: &str) {
        let slot = self.directory.writer(client).unwrap();
        self.directory.change(slot, Change::Publish, &path(text)).unwrap();
        self.registered[client.0 as usize - 1].insert(path(text));
    }

    fn unpublish(&mut self, client: Client, text: &Path) {
        let slot = self.directory.writer(client).unwrap();
        self.directory.change(slot, Change::Unpublish, text).unwrap();
        self.registered[client.0 as usize - 1].remove(text);
    }

    /// Hides everything of one of them at once.
    fn clear(&mut self) {
        self.directory.clear(GOES).unwrap();
        self.registered[1].clear();
        self.announce(GOES);
    }

    fn all(&self) -> BTreeSet<Path> {
        self.registered.iter().flatten().cloned().collect()
    }

    /// With random paths and a random scope.
    fn random(rng: &mut StdRng) -> Scenario {
        let mut scenario = Scenario::new();
        for _ in 0..20 {
            scenario.change(rng);
        }
        scenario.directory.invariant();
        let (allow, deny) = SCOPES[rng.random_range(0..SCOPES.len())];
        scenario.scope = Scope::of_globs(allow, deny);
        scenario
    }

    /// What the client sees.
    fn visible(&self) -> BTreeSet<Path> {
        self.all().into_iter().filter(|path| self.scope.contains(path.as_str())).collect()
    }

    /// The children of a path that are visible or have visible paths below them.
    fn children(&self, of: &Path) -> BTreeSet<Path> {
        let above = |path: &Path| std::iter::successors(Some(path.clone()), Path::parent);
        let all = self.visible();
        let child = |path: &Path| above(path).find(|path| path.parent().as_ref() == Some(of));
        all.iter().filter_map(child).collect()
    }

    /// Row and column of each cell of a table; for a row without columns, an empty column name.
    fn cells(&self, of: &Path) -> BTreeSet<(String, String)> {
        let name = |path: &Path| path.segments().next_back().unwrap_or_default().to_owned();
        let mut cells = BTreeSet::new();
        for row in self.children(of) {
            cells.insert((name(&row), String::new()));
            cells.extend(self.children(&row).iter().map(|column| (name(&row), name(column))));
        }
        cells
    }

    /// Applies a random change.
    fn change(&mut self, rng: &mut StdRng) {
        let text = random_path(rng);
        match rng.random_range(0..20) {
            0 => self.clear(),
            1..4 => {
                self.directory.sweep(rng.random_range(1..8));
            }
            4..9 => self.publish(STAYS, &text),
            9..13 => self.publish(GOES, &text),
            _ => {
                let all = self.all();
                if !all.is_empty() {
                    let one = all.iter().nth(rng.random_range(0..all.len())).unwrap();
                    self.unpublish(STAYS, one);
                    self.unpublish(GOES, one);
                }
            }
        }
    }
}

fn random_path(rng: &mut StdRng) -> String {
    let segment = |rng: &mut StdRng| format!("{}", rng.random_range(0..4));
    (0..rng.random_range(1..4)).map(|_| format!("/{}", segment(rng))).collect()
}

/// Runs a listing to its end with changes between its slices: what is there all the time is listed,
/// once, and nothing that never was.
fn check(
    scenario: &mut Scenario,
    rng: &mut StdRng,
    mut take: impl FnMut(&mut Directory, &Scope, usize, &mut Vec<PathListed>) -> bool,
    expected: impl Fn(&Scenario) -> BTreeSet<Path>,
) {
    let (mut always, mut ever) = (expected(scenario), expected(scenario));
    let (mut out, mut slices) = (Vec::new(), 0);
    let scope = scenario.scope.clone();
    while !take(&mut scenario.directory, &scope, rng.random_range(1..5), &mut out) {
        slices += 1;
        assert!(slices < 10_000, "it does not end");
        for _ in 0..rng.random_range(0..4) {
            scenario.change(rng);
            let now = expected(scenario);
            always.retain(|path| now.contains(path));
            ever.extend(now);
        }
        scenario.directory.invariant();
    }
    let listed: BTreeSet<Path> = out.iter().map(|listed| listed.path.clone()).collect();
    assert_eq!(listed.len(), out.len(), "listed twice: {out:?}");
    let missed: Vec<&Path> = always.difference(&listed).collect();
    assert!(missed.is_empty(), "there all the time, and not listed: {missed:?} of {out:?}");
    let invented: Vec<&Path> = listed.difference(&ever).collect();
    assert!(invented.is_empty(), "listed and never there: {invented:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_listing_survives_changes_between_its_slices(seed in any::<u64>()) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut scenario = Scenario::random(&mut rng);
        let of = if rng.random_bool(0.5) { Path::root() } else { path(&random_path(&mut rng)) };
        let mut children = Children::new(&of);
        let take = |directory: &mut Directory, scope: &_, budget, out: &mut Vec<PathListed>| {
            children.take(directory, scope, budget, out)
        };
        check(&mut scenario, &mut rng, take, |scenario| scenario.children(&of));
    }

    #[test]
    fn a_listing_by_globs_survives_changes_between_its_slices(seed in any::<u64>()) {
        check_globs(seed);
    }

    #[test]
    fn a_table_survives_changes_between_its_slices(seed in any::<u64>()) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut scenario = Scenario::random(&mut rng);
        let of = if rng.random_bool(0.5) { Path::root() } else { path("/1") };
        let (mut cells, mut sent) = (Cells::new(&of), TablePart::default());
        let (mut always, mut ever) = (scenario.cells(&of), scenario.cells(&of));
        let scope = scenario.scope.clone();
        while !cells.take(&mut scenario.directory, &scope, rng.random_range(1..5), &mut sent) {
            for _ in 0..rng.random_range(0..4) {
                scenario.change(&mut rng);
                let now = scenario.cells(&of);
                always.retain(|cell| now.contains(cell));
                ever.extend(now);
            }
            scenario.directory.invariant();
        }
        let rows: BTreeSet<String> = sent.rows.iter().cloned().collect();
        assert_eq!(rows.len(), sent.rows.len(), "a row is reported twice: {sent:?}");
        let (least, most) = (counts(&always), counts(&ever));
        assert!(least.0.is_subset(&rows) && rows.is_subset(&most.0), "rows {sent:?}");
        for (name, rows) in &most.1 {
            let (least, sent) = (least.1.get(name).unwrap_or(&0), sent.columns.get(name));
            let sent = sent.unwrap_or(&0);
            assert!((least..=rows).contains(&sent), "{name} in {sent} rows, not {least} to {rows}");
        }
        assert!(sent.columns.keys().all(|name| most.1.contains_key(name)));
    }
}

/// A listing by random globs, with random changes.
fn check_globs(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut scenario = Scenario::random(&mut rng);
    let all = [
        "/**",
        "/1/**",
        "/*/2",
        "/**/3",
        "/{0,1,2}/{1,3}/**",
        "/1/2/3",
        "/{1,2}",
        "/?/*/?",
        "/{0,1}/**/{1,2}",
        "/0/{1,2,3}",
    ];
    let globs: Vec<Glob> = (0..rng.random_range(1..4))
        .map(|_| Glob::new(all[rng.random_range(0..all.len())]).unwrap())
        .collect();
    let mut matching = GlobWalk::new(&globs).unwrap();
    let take = |directory: &mut Directory, scope: &_, budget, out: &mut Vec<PathListed>| {
        matching.take(directory, scope, budget, out)
    };
    let matches = |path: &Path| globs.iter().any(|glob| glob.matches(path));
    check(&mut scenario, &mut rng, take, |scenario| {
        scenario.visible().into_iter().filter(matches).collect()
    });
}

#[test]
fn a_node_that_reuses_the_number_of_a_half_compared_one_is_compared_anew() {
    check_globs(8_595_136_418_892_024_972);
}

/// The rows of some cells, and the number of rows of each column.
fn counts(cells: &BTreeSet<(String, String)>) -> (BTreeSet<String>, BTreeMap<String, u64>) {
    let rows = cells.iter().map(|(row, _)| row.clone()).collect();
    let mut columns = BTreeMap::new();
    for (_, column) in cells.iter().filter(|(_, column)| !column.is_empty()) {
        *columns.entry(column.clone()).or_default() += 1;
    }
    (rows, columns)
}

#[test]
fn a_table_has_a_row_for_each_child_and_counts_rows_by_column() {
    let mut scenario = Scenario::new();
    for text in ["/t/a/x", "/t/a/y/deep", "/t/b/x", "/t/c", "/t2/d/x"] {
        scenario.publish(STAYS, text);
    }
    scenario.publish(GOES, "/t/e/z");
    scenario.publish(GOES, "/t/a/z/deep");
    scenario.clear();
    let (mut cells, mut sent) = (Cells::new(&path("/t")), TablePart::default());
    assert!(cells.take(&mut scenario.directory, &Scope::default(), 100, &mut sent));
    sent.rows.sort();
    assert_eq!(sent.rows, ["a", "b", "c"]);
    let columns = [("x".to_owned(), 2), ("y".to_owned(), 1)];
    assert_eq!(sent.columns, columns.into_iter().collect());
}

#[test]
fn a_listing_ends_however_often_what_the_client_does_not_see_changes() {
    let mut scenario = Scenario::new();
    for n in 0..3 {
        scenario.publish(STAYS, &format!("/1/{n}/x"));
    }
    let scope = Scope::of_globs(&["/*/*/y"], &[]);
    let (mut children, mut out) = (Children::new(&Path::root()), Vec::new());
    let (mut cells, mut sent) = (Cells::new(&Path::root()), TablePart::default());
    let mut ended = [false; 2];
    for slices in 0.. {
        assert!(slices < 1_000, "it does not end");
        let directory = &mut scenario.directory;
        ended[0] |= children.take(directory, &scope, 1, &mut out);
        ended[1] |= cells.take(directory, &scope, 1, &mut sent);
        if ended == [true; 2] {
            break;
        }
        scenario.publish(STAYS, &format!("/1/{}/z", slices % 3));
        scenario.unpublish(STAYS, &path(&format!("/1/{}/z", slices % 3)));
    }
    assert!(out.is_empty() && sent.rows.is_empty(), "{out:?} {sent:?}");
}

#[test]
fn a_dropped_walk_leaves_nothing_behind() {
    let mut scenario = Scenario::new();
    (0..10).for_each(|n| scenario.publish(STAYS, &format!("/a/{n}")));
    let below = path("/a");
    let walks: Vec<Children> = (0..5)
        .map(|_| {
            let mut children = Children::new(&below);
            assert!(!children.take(&mut scenario.directory, &Scope::default(), 3, &mut Vec::new()));
            children
        })
        .collect();
    assert_eq!(scenario.directory.paths.tree.walks.len(), 5);
    drop(walks);
    assert_eq!(scenario.directory.paths.tree.walks.len(), 0);
}

#[test]
fn a_listing_visits_only_what_can_match() {
    let mut scenario = Scenario::new();
    for n in 0..1_000 {
        scenario.publish(STAYS, &format!("/a/{n}"));
        scenario.publish(STAYS, &format!("/b/{n}/x"));
    }
    for (globs, most) in [
        (&["/a/7"][..], 10),
        (&["/a/7", "/b/7/*", "/none/**"], 20),
        (&["/*/7/**"], 2_010),
        (&["/b/{1,2,3,4000}/*"], 30),
    ] {
        let globs: Vec<Glob> = globs.iter().map(|glob| Glob::new(glob).unwrap()).collect();
        let mut matching = GlobWalk::new(&globs).unwrap();
        let (mut steps, mut out) = (1, Vec::new());
        while !matching.take(&mut scenario.directory, &Scope::default(), 1, &mut out) {
            steps += 1;
            assert!(steps <= most, "{steps} steps for {globs:?}");
        }
        assert!(!out.is_empty());
    }
}

#[test]
fn comparisons_with_many_globs_count_as_many_steps() {
    let mut scenario = Scenario::new();
    scenario.publish(STAYS, "/a");
    let globs: Vec<Glob> = (0..200).map(|n| Glob::new(&format!("/*{n}")).unwrap()).collect();
    let mut matching = GlobWalk::new(&globs).unwrap();
    let mut slices = 1;
    while !matching.take(&mut scenario.directory, &Scope::default(), 10, &mut Vec::new()) {
        slices += 1;
    }
    assert!(slices >= 20, "{slices} slices of 10 steps");
}

#[test]
fn globs_that_expand_to_too_many_segments_are_refused() {
    let wide = format!("/{{{}}}/**", ["*"; 200].join(","));
    let glob = Glob::new(&wide).unwrap();
    assert!(GlobWalk::new(&vec![glob.clone(); 100]).is_ok());
    let refused = GlobWalk::new(&vec![glob; 256]).unwrap_err().to_string();
    assert!(refused.contains("over the limit of 65536"), "{refused}");
}
