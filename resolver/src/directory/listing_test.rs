//! Listings while the directory changes between their slices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{Change, PathListed};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::directory::{Cells, Children, Client, Directory, Matching, Rules, Slot, Told};

/// One that stays, and one that may be swept away.
const STAYS: Client = Client(1);
const GOES: Client = Client(2);

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

struct Scenario {
    directory: Directory,
    /// What each of the two holds.
    held: [BTreeSet<Path>; 2],
}

impl Scenario {
    fn new() -> Scenario {
        let rules = Rules {
            publishers_max: 1_000,
            paths_max: 100_000,
            ..Rules::small(Duration::from_secs(120))
        };
        let directory = Directory::new(Instant::now(), Incarnation([5; 16]), rules);
        let mut scenario = Scenario { directory, held: [BTreeSet::new(), BTreeSet::new()] };
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
        self.held[client.0 as usize - 1].insert(path(text));
    }

    fn unpublish(&mut self, client: Client, text: &Path) {
        let slot = self.directory.writer(client).unwrap();
        self.directory.change(slot, Change::Unpublish, text).unwrap();
        self.held[client.0 as usize - 1].remove(text);
    }

    /// All that one of them holds is hidden at once.
    fn clear(&mut self) {
        self.directory.clear(GOES).unwrap();
        self.held[1].clear();
        self.announce(GOES);
    }

    fn all(&self) -> BTreeSet<Path> {
        self.held.iter().flatten().cloned().collect()
    }

    /// What lies just below a path, or at or above something that is held and below it.
    fn children(&self, of: &Path) -> BTreeSet<Path> {
        let above = |path: &Path| std::iter::successors(Some(path.clone()), Path::parent);
        let all = self.all();
        let child = |path: &Path| above(path).find(|path| path.parent().as_ref() == Some(of));
        all.iter().filter_map(child).collect()
    }

    /// Row and column of each cell of a table; of a row without columns, with no name for one.
    fn cells(&self, of: &Path) -> BTreeSet<(String, String)> {
        let name = |path: &Path| path.segments().next_back().unwrap_or_default().to_owned();
        let mut cells = BTreeSet::new();
        for row in self.children(of) {
            cells.insert((name(&row), String::new()));
            cells.extend(self.children(&row).iter().map(|column| (name(&row), name(column))));
        }
        cells
    }

    /// Some change.
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
        self.directory.invariant();
    }
}

fn random_path(rng: &mut StdRng) -> String {
    let segment = |rng: &mut StdRng| format!("{}", rng.random_range(0..4));
    (0..rng.random_range(1..4)).map(|_| format!("/{}", segment(rng))).collect()
}

/// Takes a listing to its end with changes between its slices: what is there all the time is
/// listed, once, and nothing that never was.
fn check(
    scenario: &mut Scenario,
    rng: &mut StdRng,
    mut take: impl FnMut(&mut Directory, usize, &mut Vec<PathListed>) -> bool,
    expected: impl Fn(&Scenario) -> BTreeSet<Path>,
) {
    let (mut always, mut ever) = (expected(scenario), expected(scenario));
    let (mut out, mut slices) = (Vec::new(), 0);
    while !take(&mut scenario.directory, rng.random_range(1..5), &mut out) {
        slices += 1;
        assert!(slices < 10_000, "it has no end");
        for _ in 0..rng.random_range(0..4) {
            scenario.change(rng);
            let now = expected(scenario);
            always.retain(|path| now.contains(path));
            ever.extend(now);
        }
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
        let mut scenario = Scenario::new();
        for _ in 0..20 {
            scenario.change(&mut rng);
        }
        let of = if rng.random_bool(0.5) { Path::root() } else { path(&random_path(&mut rng)) };
        let mut children = Children::new(&of);
        let take = |directory: &mut Directory, budget, out: &mut Vec<PathListed>| {
            children.take(directory, budget, out)
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
        let mut scenario = Scenario::new();
        for _ in 0..20 {
            scenario.change(&mut rng);
        }
        let of = if rng.random_bool(0.5) { Path::root() } else { path("/1") };
        let (mut cells, mut told) = (Cells::new(&of), Told::default());
        let (mut always, mut ever) = (scenario.cells(&of), scenario.cells(&of));
        while !cells.take(&mut scenario.directory, rng.random_range(1..5), &mut told) {
            for _ in 0..rng.random_range(0..4) {
                scenario.change(&mut rng);
                let now = scenario.cells(&of);
                always.retain(|cell| now.contains(cell));
                ever.extend(now);
            }
        }
        let rows: BTreeSet<String> = told.rows.iter().cloned().collect();
        assert_eq!(rows.len(), told.rows.len(), "a row is told twice: {told:?}");
        let (least, most) = (counts(&always), counts(&ever));
        assert!(least.0.is_subset(&rows) && rows.is_subset(&most.0), "rows {told:?}");
        for (name, rows) in &most.1 {
            let (least, told) = (least.1.get(name).unwrap_or(&0), told.columns.get(name));
            let told = told.unwrap_or(&0);
            assert!((least..=rows).contains(&told), "{name} in {told} rows, not {least} to {rows}");
        }
        assert!(told.columns.keys().all(|name| most.1.contains_key(name)));
    }
}

/// A listing by some globs, with some changes.
fn check_globs(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut scenario = Scenario::new();
    for _ in 0..20 {
        scenario.change(&mut rng);
    }
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
    let mut matching = Matching::new(&globs).unwrap();
    let take = |directory: &mut Directory, budget, out: &mut Vec<PathListed>| {
        matching.take(directory, budget, out)
    };
    let matches = |path: &Path| globs.iter().any(|glob| glob.matches(path));
    check(&mut scenario, &mut rng, take, |scenario| {
        scenario.all().into_iter().filter(matches).collect()
    });
}

#[test]
fn a_node_whose_number_was_that_of_one_half_compared_is_compared_anew() {
    check_globs(8_595_136_418_892_024_972);
}

/// The rows of some cells, and in how many of them each column is.
fn counts(cells: &BTreeSet<(String, String)>) -> (BTreeSet<String>, BTreeMap<String, u64>) {
    let rows = cells.iter().map(|(row, _)| row.clone()).collect();
    let mut columns = BTreeMap::new();
    for (_, column) in cells.iter().filter(|(_, column)| !column.is_empty()) {
        *columns.entry(column.clone()).or_default() += 1;
    }
    (rows, columns)
}

#[test]
fn a_table_has_a_row_for_each_child_and_counts_the_rows_of_each_column() {
    let mut scenario = Scenario::new();
    for text in ["/t/a/x", "/t/a/y/deep", "/t/b/x", "/t/c", "/t2/d/x"] {
        scenario.publish(STAYS, text);
    }
    scenario.publish(GOES, "/t/e/z");
    scenario.publish(GOES, "/t/a/z/deep");
    scenario.clear();
    let (mut cells, mut told) = (Cells::new(&path("/t")), Told::default());
    assert!(cells.take(&mut scenario.directory, 100, &mut told));
    told.rows.sort();
    assert_eq!(told.rows, ["a", "b", "c"]);
    let columns = [("x".to_owned(), 2), ("y".to_owned(), 1)];
    assert_eq!(told.columns, columns.into_iter().collect());
}

#[test]
fn a_walk_that_is_dropped_leaves_nothing_behind() {
    let mut scenario = Scenario::new();
    (0..10).for_each(|n| scenario.publish(STAYS, &format!("/a/{n}")));
    let below = path("/a");
    let walks: Vec<Children> = (0..5)
        .map(|_| {
            let mut children = Children::new(&below);
            assert!(!children.take(&mut scenario.directory, 3, &mut Vec::new()));
            children
        })
        .collect();
    assert_eq!(scenario.directory.paths.tree.walks.len(), 5);
    drop(walks);
    assert_eq!(scenario.directory.paths.tree.walks.len(), 0);
}

#[test]
fn only_what_can_match_is_looked_at() {
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
        let mut matching = Matching::new(&globs).unwrap();
        let (mut steps, mut out) = (1, Vec::new());
        while !matching.take(&mut scenario.directory, 1, &mut out) {
            steps += 1;
            assert!(steps <= most, "{steps} steps for {globs:?}");
        }
        assert!(!out.is_empty());
    }
}

#[test]
fn what_is_compared_with_many_globs_counts_for_as_many_steps() {
    let mut scenario = Scenario::new();
    scenario.publish(STAYS, "/a");
    let globs: Vec<Glob> = (0..200).map(|n| Glob::new(&format!("/*{n}")).unwrap()).collect();
    let mut matching = Matching::new(&globs).unwrap();
    let mut slices = 1;
    while !matching.take(&mut scenario.directory, 10, &mut Vec::new()) {
        slices += 1;
    }
    assert!(slices >= 20, "{slices} slices of 10 steps");
}

#[test]
fn globs_that_stand_for_too_much_are_refused() {
    let wide = format!("/{{{}}}/**", ["*"; 200].join(","));
    let glob = Glob::new(&wide).unwrap();
    assert!(Matching::new(&vec![glob.clone(); 100]).is_ok());
    let refused = Matching::new(&vec![glob; 256]).unwrap_err().to_string();
    assert!(refused.contains("over the limit of 65536"), "{refused}");
}
