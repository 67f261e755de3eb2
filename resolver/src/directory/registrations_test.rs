//! Registrations against a plain map, with as few and as many buckets as possible.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

fn digest_entry(registration: Registration, terms: u64) -> DigestEntry {
    DigestEntry {
        key: KeyHash::of(&format!("/{}", registration.node), registration.default),
        terms,
    }
}

fn registration(number: u32) -> Registration {
    Registration { node: number / 2, default: number % 2 == 1 }
}

#[derive(Default)]
struct Model {
    /// The terms of each registration.
    registered: BTreeMap<Registration, u64>,
    written: BTreeSet<Registration>,
}

impl Model {
    fn digests(&self, level: u32) -> Vec<Digest> {
        let mut digests = vec![Digest::default(); 1 << level];
        for (&registration, &terms) in &self.registered {
            let key = digest_entry(registration, terms).key;
            digests[bucket_number(key, level)].add(key, terms);
        }
        digests
    }
}

struct Pair {
    registrations: Registrations,
    model: Model,
}

impl Pair {
    fn of(count: u32) -> Pair {
        let mut pair = Pair {
            registrations: Registrations::new(EntryHasher::new(7)),
            model: Model::default(),
        };
        (0..count).for_each(|n| pair.write(registration(n), 0));
        pair
    }

    fn write(&mut self, registration: Registration, terms: u64) {
        match self.model.registered.insert(registration, terms) {
            None => self.registrations.insert(registration, digest_entry(registration, terms)),
            Some(same) if same == terms => {
                self.registrations
                    .written_again(registration, digest_entry(registration, terms).key);
            }
            Some(before) => {
                self.registrations.replace(registration, before, digest_entry(registration, terms));
            }
        }
        self.model.written.insert(registration);
        self.registrations.split_next(|registration| {
            digest_entry(registration, self.model.registered[&registration])
        });
    }

    fn remove(&mut self, registration: Registration) {
        if let Some(terms) = self.model.registered.remove(&registration) {
            self.registrations.remove(registration, digest_entry(registration, terms));
        }
    }

    /// Removes what a confirm would remove.
    fn confirm(&mut self) -> BTreeSet<Registration> {
        let (mut cursor, mut stale) = (0, Vec::new());
        while self.registrations.stale(&mut cursor, &mut stale).is_some() {}
        for &registration in &stale {
            self.remove(registration);
        }
        let removed: BTreeSet<Registration> = stale.iter().copied().collect();
        assert_eq!(removed.len(), stale.len(), "one is stale twice");
        removed
    }

    fn check(&self) {
        self.registrations.invariant(|registration| {
            digest_entry(registration, self.model.registered[&registration])
        });
        let all: BTreeSet<Registration> = self.registrations.iter().collect();
        assert!(all.iter().eq(self.model.registered.keys()));
    }
}

#[test]
fn digests_of_every_level_equal_a_plain_sum_while_buckets_split() {
    let mut pair = Pair::of(0);
    let mut rng = StdRng::seed_from_u64(1);
    for n in 0..9_000 {
        pair.write(registration(n), 0);
        if rng.random_bool(0.1) {
            pair.remove(registration(rng.random_range(0..=n)));
        }
        if n % 487 == 0 {
            pair.check();
            for level in [0, 1, 4, 7] {
                let answer = pair.registrations.compare(&vec![Digest::default(); 1 << level]);
                let answered = answer.len().ilog2();
                assert!(
                    answered <= level && answered.min(level) == level.min(pair.registrations.level)
                );
                assert_eq!(answer, pair.model.digests(answered));
            }
        }
    }
    assert_eq!(pair.registrations.level, 8, "buckets were split twice");
    assert!(pair.registrations.finer.is_none());
}

#[test]
fn only_buckets_that_differ_are_rewritten_and_the_rest_of_them_removed() {
    for count in [5, 300, 1_500, 5_000] {
        for level in [0, 3, 10] {
            let mut pair = Pair::of(count);
            // The other side lacks one, has one on other terms, and has one more.
            let mut desired =
                Model { registered: pair.model.registered.clone(), ..Model::default() };
            desired.registered.remove(&registration(1));
            desired.registered.insert(registration(2), 7);
            desired.registered.insert(registration(count + 1), 0);
            let digests = desired.digests(level);
            let answer = pair.registrations.compare(&digests);
            let level = answer.len().ilog2();
            let differs: BTreeSet<usize> = [1, 2, count + 1]
                .map(|number| bucket_number(digest_entry(registration(number), 0).key, level))
                .into_iter()
                .collect();
            let again = desired.registered.iter().filter(|(registration, terms)| {
                differs.contains(&bucket_number(digest_entry(**registration, **terms).key, level))
            });
            for (&registration, &terms) in again {
                pair.write(registration, terms);
            }
            assert_eq!(
                pair.confirm(),
                BTreeSet::from([registration(1)]),
                "{count} keys, {level} bits"
            );
            pair.check();
            assert_eq!(pair.model.registered, desired.registered);
            assert_eq!(pair.registrations.compare(&digests), desired.digests(level));
            assert!(!pair.registrations.any_rewriting());
        }
    }
}

#[test]
fn a_comparison_ends_the_rewriting_before_it() {
    let mut pair = Pair::of(1_000);
    let equal = pair.model.digests(0);
    pair.registrations.compare(&[Digest::default()]);
    pair.write(registration(3), 0);
    assert!(pair.registrations.any_rewriting());
    pair.registrations.compare(&equal);
    assert_eq!(pair.confirm(), BTreeSet::new(), "it was equal");
    // A mark of an earlier rewriting does not count in this one.
    pair.registrations.compare(&[Digest::default()]);
    pair.write(registration(4), 0);
    let removed = pair.confirm();
    assert_eq!((removed.len(), removed.contains(&registration(4))), (999, false));
    pair.check();
}

#[test]
fn marks_of_written_entries_survive_a_split() {
    let mut pair = Pair::of(200);
    pair.registrations.compare(&[Digest::default()]);
    for n in 100..4_000 {
        pair.write(registration(n), 0);
    }
    assert!(pair.registrations.level > 0);
    assert_eq!(pair.confirm(), (0..100).map(registration).collect());
    pair.check();
}

#[test]
fn pop_returns_every_registration_once_even_during_a_split() {
    for count in [0, 10, 262, 4_100] {
        let mut pair = Pair::of(count);
        let all: Vec<Registration> = std::iter::from_fn(|| pair.registrations.pop()).collect();
        assert_eq!(all.len(), count as usize);
        assert!(all.iter().collect::<BTreeSet<_>>().into_iter().eq(pair.model.registered.keys()));
        assert_eq!(pair.registrations.len, 0);
    }
}

#[test]
fn a_number_of_digests_that_is_no_power_of_two_differs_completely() {
    let mut pair = Pair::of(10);
    for desired in [0, 3, 1 << 15] {
        assert_eq!(pair.registrations.compare(&vec![Digest::default(); desired]), []);
        assert!(pair.registrations.any_rewriting());
    }
    assert_eq!(pair.confirm().len(), 10);
}

#[test]
fn a_bucket_of_chosen_keys_is_not_split_in_one_step() {
    let mut pair = Pair::of(0);
    let count = (6 * KEYS_PER_BUCKET) << LEVEL_STEP;
    // Chosen so that all fall into the last of 256 buckets.
    let chosen = (0..)
        .map(registration)
        .filter(|&registration| bucket_number(digest_entry(registration, 0).key, 8) == 255);
    for registration in chosen.take(count) {
        pair.model.registered.insert(registration, 0);
        pair.registrations.insert(registration, digest_entry(registration, 0));
        let moved = pair.registrations.split_next(|registration| digest_entry(registration, 0));
        assert!(moved <= SPLIT_KEYS_MAX, "{moved} entries are moved in one step");
    }
    pair.check();
    for level in [0, 4, 10] {
        let answer = pair.registrations.compare(&vec![Digest::default(); 1 << level]);
        assert_eq!(answer, pair.model.digests(answer.len().ilog2()));
    }
    assert_eq!(pair.confirm().len(), count);
    // Once most of them are gone, buckets are split again.
    (0..40_000).map(registration).for_each(|registration| pair.write(registration, 0));
    assert_eq!(pair.registrations.level, 8);
    pair.check();
}
