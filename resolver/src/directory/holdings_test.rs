//! Holdings against a plain map, with as few and as many buckets as there may be.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

fn mark(held: Held, terms: u64) -> Mark {
    Mark { key: KeyHash::of(&format!("/{}", held.node), held.default), terms }
}

fn held(number: u32) -> Held {
    Held { node: number / 2, default: number % 2 == 1 }
}

#[derive(Default)]
struct Model {
    /// The terms of what is held.
    held: BTreeMap<Held, u64>,
    written: BTreeSet<Held>,
}

impl Model {
    fn digests(&self, level: u32) -> Vec<Digest> {
        let mut digests = vec![Digest::default(); 1 << level];
        for (&held, &terms) in &self.held {
            let key = mark(held, terms).key;
            digests[top(key, level)].add(key, terms);
        }
        digests
    }
}

struct Pair {
    holdings: Holdings,
    model: Model,
}

impl Pair {
    fn of(count: u32) -> Pair {
        let mut pair =
            Pair { holdings: Holdings::new(EntryHasher::new(7)), model: Model::default() };
        (0..count).for_each(|n| pair.write(held(n), 0));
        pair
    }

    fn write(&mut self, held: Held, terms: u64) {
        match self.model.held.insert(held, terms) {
            None => self.holdings.insert(held, mark(held, terms)),
            Some(same) if same == terms => {
                self.holdings.written_again(held, mark(held, terms).key);
            }
            Some(before) => {
                self.holdings.replace(held, before, mark(held, terms));
            }
        }
        self.model.written.insert(held);
        self.holdings.part(|held| mark(held, self.model.held[&held]));
    }

    fn remove(&mut self, held: Held) {
        if let Some(terms) = self.model.held.remove(&held) {
            self.holdings.remove(held, mark(held, terms));
        }
    }

    /// Removes what a confirm would.
    fn confirm(&mut self) -> BTreeSet<Held> {
        let (mut cursor, mut stale) = (0, Vec::new());
        while self.holdings.stale(&mut cursor, &mut stale).is_some() {}
        for &held in &stale {
            self.remove(held);
        }
        let removed: BTreeSet<Held> = stale.iter().copied().collect();
        assert_eq!(removed.len(), stale.len(), "one is stale twice");
        removed
    }

    fn check(&self) {
        self.holdings.invariant(|held| mark(held, self.model.held[&held]));
        let all: BTreeSet<Held> = self.holdings.iter().collect();
        assert!(all.iter().eq(self.model.held.keys()));
    }
}

#[test]
fn digests_of_every_coarseness_are_those_of_a_plain_sum_while_buckets_are_parted() {
    let mut pair = Pair::of(0);
    let mut rng = StdRng::seed_from_u64(1);
    for n in 0..9_000 {
        pair.write(held(n), 0);
        if rng.random_bool(0.1) {
            pair.remove(held(rng.random_range(0..=n)));
        }
        if n % 487 == 0 {
            pair.check();
            for level in [0, 1, 4, 7] {
                let answer = pair.holdings.compare(&vec![Digest::default(); 1 << level]);
                let answered = answer.len().ilog2();
                assert!(answered <= level && answered.min(level) == level.min(pair.holdings.level));
                assert_eq!(answer, pair.model.digests(answered));
            }
        }
    }
    assert_eq!(pair.holdings.level, 8, "buckets were parted twice");
    assert!(pair.holdings.finer.is_none());
}

#[test]
fn only_what_differs_is_written_again_and_what_is_not_is_removed() {
    for count in [5, 300, 1_500, 5_000] {
        for level in [0, 3, 10] {
            let mut pair = Pair::of(count);
            // The other side lacks one, has one on other terms, and has one more.
            let mut wanted = Model { held: pair.model.held.clone(), ..Model::default() };
            wanted.held.remove(&held(1));
            wanted.held.insert(held(2), 7);
            wanted.held.insert(held(count + 1), 0);
            let digests = wanted.digests(level);
            let answer = pair.holdings.compare(&digests);
            let level = answer.len().ilog2();
            let differs: BTreeSet<usize> = [1, 2, count + 1]
                .map(|number| top(mark(held(number), 0).key, level))
                .into_iter()
                .collect();
            let again = wanted
                .held
                .iter()
                .filter(|(held, terms)| differs.contains(&top(mark(**held, **terms).key, level)));
            for (&held, &terms) in again {
                pair.write(held, terms);
            }
            assert_eq!(pair.confirm(), BTreeSet::from([held(1)]), "{count} keys, {level} bits");
            pair.check();
            assert_eq!(pair.model.held, wanted.held);
            assert_eq!(pair.holdings.compare(&digests), wanted.digests(level));
            assert!(!pair.holdings.any_rewriting());
        }
    }
}

#[test]
fn a_comparison_ends_the_rewriting_before_it() {
    let mut pair = Pair::of(1_000);
    let equal = pair.model.digests(0);
    pair.holdings.compare(&[Digest::default()]);
    pair.write(held(3), 0);
    assert!(pair.holdings.any_rewriting());
    pair.holdings.compare(&equal);
    assert_eq!(pair.confirm(), BTreeSet::new(), "it was equal");
    // What was written in an earlier rewriting was not in this one.
    pair.holdings.compare(&[Digest::default()]);
    pair.write(held(4), 0);
    let removed = pair.confirm();
    assert_eq!((removed.len(), removed.contains(&held(4))), (999, false));
    pair.check();
}

#[test]
fn what_was_written_again_stays_so_while_its_bucket_is_parted() {
    let mut pair = Pair::of(200);
    pair.holdings.compare(&[Digest::default()]);
    for n in 100..4_000 {
        pair.write(held(n), 0);
    }
    assert!(pair.holdings.level > 0);
    assert_eq!(pair.confirm(), (0..100).map(held).collect());
    pair.check();
}

#[test]
fn all_of_it_is_popped_once_in_the_middle_of_a_parting_too() {
    for count in [0, 10, 262, 4_100] {
        let mut pair = Pair::of(count);
        let all: Vec<Held> = std::iter::from_fn(|| pair.holdings.pop()).collect();
        assert_eq!(all.len(), count as usize);
        assert!(all.iter().collect::<BTreeSet<_>>().into_iter().eq(pair.model.held.keys()));
        assert_eq!(pair.holdings.len, 0);
    }
}

#[test]
fn as_many_digests_as_are_no_power_of_two_are_all_different() {
    let mut pair = Pair::of(10);
    for wanted in [0, 3, 1 << 15] {
        assert_eq!(pair.holdings.compare(&vec![Digest::default(); wanted]), []);
        assert!(pair.holdings.any_rewriting());
    }
    assert_eq!(pair.confirm().len(), 10);
}

#[test]
fn a_bucket_of_chosen_keys_is_not_parted_in_one_step() {
    let mut pair = Pair::of(0);
    let count = (6 * KEYS_PER_BUCKET) << LEVEL_STEP;
    // Chosen so that all fall into the last of 256 buckets.
    let chosen = (0..).map(held).filter(|&held| top(mark(held, 0).key, 8) == 255);
    for held in chosen.take(count) {
        pair.model.held.insert(held, 0);
        pair.holdings.insert(held, mark(held, 0));
        let moved = pair.holdings.part(|held| mark(held, 0));
        assert!(moved <= PARTED_KEYS_MAX, "{moved} entries are moved in one step");
    }
    pair.check();
    for level in [0, 4, 10] {
        let answer = pair.holdings.compare(&vec![Digest::default(); 1 << level]);
        assert_eq!(answer, pair.model.digests(answer.len().ilog2()));
    }
    assert_eq!(pair.confirm().len(), count);
    // Once most of them are gone, buckets are parted again.
    (0..40_000).map(held).for_each(|held| pair.write(held, 0));
    assert_eq!(pair.holdings.level, 8);
    pair.check();
}
