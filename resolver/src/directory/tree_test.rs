//! The tree against a sorted map, over random operations.

use std::collections::BTreeMap;

use longshore_protocol::Path;
use proptest::prelude::*;

use super::*;

/// Segments with common prefixes, short ones, and the longest possible.
fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => proptest::sample::select(
            vec!["a", "b", "ab", "abc", "a-b", "é", "aaaaaaaa", "aaaaaaab"]
        )
            .prop_map(str::to_owned),
        1 => (250..=255usize, "[xy]").prop_map(|(length, letter)| letter.repeat(length)),
    ]
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => proptest::collection::vec(segment(), 0..5),
        1 => Just(vec!["d".to_owned(); PATH_DEPTH_MAX]),
    ]
    .prop_map(|segments| format!("/{}", segments.join("/")))
    .prop_filter("a path", |text| Path::new(text).is_ok())
}

#[derive(Clone, Debug)]
enum Op {
    Put(String, u32),
    Default(String, bool),
    /// Removes the registered path at this index.
    Remove(usize),
    Find(String),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (path(), 1..4u32).prop_map(|(path, set)| Op::Put(path, set)),
        1 => (path(), any::<bool>()).prop_map(|(path, default)| Op::Default(path, default)),
        4 => any::<usize>().prop_map(Op::Remove),
        2 => path().prop_map(Op::Find),
    ]
}

fn nearest<'a>(model: &BTreeMap<String, (u32, bool)>, path: &'a str) -> &'a str {
    let mut at = path;
    while at.len() > 1 {
        let below = format!("{at}/");
        if model.keys().any(|path| path == at || path.starts_with(&below)) {
            return at;
        }
        at = &at[..at.rfind('/').unwrap()];
    }
    "/"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_behaves_like_a_sorted_map(ops in proptest::collection::vec(op(), 1..150)) {
        let mut tree = Tree::new([3; 16]);
        let mut model: BTreeMap<String, (u32, bool)> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Put(path, set) => {
                    let node = tree.make(&path, tree.hashes(path.as_bytes()));
                    tree.put_set(node, set);
                    model.entry(path).or_default().0 = set;
                }
                Op::Default(path, default) => {
                    let node = tree.make(&path, tree.hashes(path.as_bytes()));
                    tree.put_default(node, default);
                    tree.prune(node);
                    model.entry(path.clone()).or_default().1 = default;
                    if model[&path] == (0, false) {
                        model.remove(&path);
                    }
                }
                Op::Remove(index) if !model.is_empty() => {
                    let path = model.keys().nth(index % model.len()).unwrap().clone();
                    let node = tree.find(&path).unwrap();
                    tree.put_set(node, 0);
                    tree.put_default(node, false);
                    tree.prune(node);
                    model.remove(&path);
                }
                Op::Remove(_) => {}
                Op::Find(path) => {
                    let node = tree.find(&path).filter(|&node| tree.nodes[node].is_registered());
                    let found = node.map(|node| (tree.set(node), tree.has_default(node)));
                    assert_eq!(found, model.get(&path).copied(), "{path}");
                    let mut text = String::new();
                    tree.spell(tree.nearest(&path), &mut text);
                    assert_eq!(text, nearest(&model, &path), "nearest to {path}");
                    // With equal hashes the texts would have to distinguish them.
                    for other in model.keys() {
                        let node = tree.find(other).unwrap();
                        let spells = tree.spells(node, path.as_bytes());
                        assert_eq!(spells, *other == path, "{other}, {path}");
                    }
                }
            }
            tree.invariant();
            assert_eq!(tree.registered_len(), model.len());
            for (path, state) in &model {
                let node = tree.find(path).unwrap();
                assert_eq!((tree.set(node), tree.has_default(node)), *state, "{path}");
            }
        }
        for path in model.keys() {
            let node = tree.find(path).unwrap();
            tree.put_set(node, 0);
            tree.put_default(node, false);
            tree.prune(node);
        }
        tree.invariant();
        assert_eq!(tree.len(), 1, "only the root is left");
    }
}

#[test]
fn rows_stay_in_order_after_more_reuses_than_fit_between_two_numbers() {
    let mut tree = Tree::new([3; 16]);
    let put = |tree: &mut Tree, path: &str| {
        let node = tree.make(path, tree.hashes(path.as_bytes()));
        tree.put_set(node, 1);
        node
    };
    let first = put(&mut tree, "/a/1");
    put(&mut tree, "/a/2");
    tree.put_set(first, 0);
    tree.prune(first);
    tree.last_birth = birth_of(tree.end()) - 1;
    for n in 3..8 {
        put(&mut tree, &format!("/a/{n}"));
        tree.invariant();
    }
}
