//! The order in which the publishers of a value are tried. Pure: the time, the publishers and which
//! of them are local are arguments, and the randomness has a seed.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::{Epoch, PublicationKind, PublisherId, PublisherInfo};
use longshore_resolver::Publication;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::subscription_core::SubscriptionCore;

/// How long a publisher that failed is tried after those that did not.
pub(crate) const FAILURE_REMEMBERED: Duration = Duration::from_secs(60);
/// Most publishers whose failures are remembered. Beyond that, the oldest failure is forgotten.
pub(crate) const FAILURES_MAX: usize = 16_384;

/// What the ranking depends on: the publisher's id and epoch, its priority and its weight.
type PublisherTerms = (PublisherId, Epoch, u16, u16);

/// A set of publishers, and the subscriptions to make at one of them.
pub(crate) type Group = (Arc<[Publication]>, Vec<Arc<SubscriptionCore>>);

/// Groups subscriptions by publishers: paths with the same publishers on the same terms go to the
/// same publisher.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) groups: Vec<Group>,
    by_terms: HashMap<Vec<PublisherTerms>, usize>,
    /// The group of each set, by the set's address, which stays unique while the set is retained.
    /// Slices of one answer may hold equal sets at different addresses.
    by_address: HashMap<usize, (Arc<[Publication]>, usize)>,
}

impl Groups {
    /// Adds `sub`, whose value has the publishers of `set`.
    pub(crate) fn add(&mut self, set: Arc<[Publication]>, sub: Arc<SubscriptionCore>) {
        let groups = &mut self.groups;
        let (_, at) = self.by_address.entry(set.as_ptr().addr()).or_insert_with(|| {
            let at = *self.by_terms.entry(publisher_terms(&set)).or_insert_with(|| {
                groups.push((set.clone(), Vec::new()));
                groups.len() - 1
            });
            (set, at)
        });
        groups[*at].1.push(sub);
    }
}

fn publisher_terms(set: &[Publication]) -> Vec<PublisherTerms> {
    let values = set.iter().filter(|one| one.terms.kind == PublicationKind::Value);
    let mut publisher_terms: Vec<PublisherTerms> = values
        .map(|Publication { publisher, terms }| {
            (publisher.id, publisher.epoch, terms.priority, terms.weight)
        })
        .collect();
    publisher_terms.sort_unstable();
    publisher_terms
}

/// Ranks publishers, and remembers recent failures.
#[derive(Debug)]
pub(crate) struct PublisherRanking {
    random: StdRng,
    local_first: bool,
    failures: HashMap<PublisherId, Failures>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    /// Consecutive failures, none further apart than [`FAILURE_REMEMBERED`].
    count: u32,
    last: Duration,
}

/// The smallest rank is tried first.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Rank {
    /// A count, not a flag: if all publishers failed, they are tried in turn.
    failures: u32,
    far: bool,
    priority: u16,
    weightless: bool,
    /// Random; smaller on average for a larger weight.
    weighted_draw: f64,
}

impl PublisherRanking {
    pub(crate) fn new(local_first: bool, seed: u64) -> PublisherRanking {
        PublisherRanking {
            random: StdRng::seed_from_u64(seed),
            local_first,
            failures: HashMap::new(),
        }
    }

    /// Records a failed attempt or a lost link.
    pub(crate) fn failed(&mut self, now: Duration, publisher: PublisherId) {
        if self.failures.len() >= FAILURES_MAX && !self.failures.contains_key(&publisher) {
            self.failures.retain(|_, failures| failures.is_remembered(now));
            let oldest = self.failures.iter().min_by_key(|(_, failures)| failures.last);
            if let Some(oldest) = oldest.map(|(id, _)| *id)
                && self.failures.len() >= FAILURES_MAX
            {
                self.failures.remove(&oldest);
            }
        }
        let failures = self.failures.entry(publisher).or_insert(Failures { count: 0, last: now });
        if !failures.is_remembered(now) {
            failures.count = 0;
        }
        *failures = Failures { count: failures.count.saturating_add(1), last: now };
    }

    /// Returns the publishers of `set` that publish a value, in the order to try them: publishers
    /// without a failure within the last minute first; then local ones, if requested; then by
    /// ascending priority number; then at random by weight, with weight 0 last within its priority.
    pub(crate) fn order<'a>(
        &mut self,
        now: Duration,
        set: &'a [Publication],
        is_local: impl Fn(&PublisherInfo) -> bool,
    ) -> Vec<&'a PublisherInfo> {
        let values = set.iter().filter(|one| one.terms.kind == PublicationKind::Value);
        let mut ranked: Vec<(Rank, &PublisherInfo)> = values
            .map(|Publication { publisher, terms }| {
                let failures = self.failures.get(&publisher.id);
                let failures = failures.filter(|failures| failures.is_remembered(now));
                let rank = Rank {
                    failures: failures.map_or(0, |failures| failures.count),
                    far: self.local_first && !is_local(publisher),
                    priority: terms.priority,
                    weightless: terms.weight == 0,
                    weighted_draw: weighted_draw(terms.weight, &mut self.random),
                };
                (rank, publisher)
            })
            .collect();
        ranked.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        ranked.into_iter().map(|(_, publisher)| publisher).collect()
    }
}

impl Failures {
    fn is_remembered(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) < FAILURE_REMEMBERED
    }
}

/// Draws the time of the first event of a Poisson process with rate `weight`. The smallest of
/// several draws, and the order of the rest, follow the weights in proportion.
fn weighted_draw(weight: u16, random: &mut StdRng) -> f64 {
    let uniform = 1.0 - random.random::<f64>();
    -uniform.ln() / f64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{Epoch, Terms};
    use proptest::prelude::*;

    use super::*;

    const START: Duration = Duration::from_secs(1_000);
    const TICK: Duration = Duration::from_nanos(1);

    fn publication(n: u8, priority: u16, weight: u16) -> Publication {
        let publisher = PublisherInfo::new(
            PublisherId([n; 16]),
            Epoch(1),
            format!("p{n}"),
            [([127, 0, 0, 1], 5_000 + u16::from(n))],
        );
        let kind = PublicationKind::Value;
        Publication { publisher, terms: Terms { kind, priority, weight, ..Terms::default() } }
    }

    fn numbers(order: &[&PublisherInfo]) -> Vec<u8> {
        order.iter().map(|publisher| publisher.id.0[0]).collect()
    }

    fn order(ranking: &mut PublisherRanking, now: Duration, set: &[Publication]) -> Vec<u8> {
        numbers(&ranking.order(now, set, |_| false))
    }

    #[test]
    fn only_publications_of_values_are_ranked() {
        let queue = Publication {
            terms: Terms { kind: PublicationKind::Queue, ..Terms::default() },
            ..publication(1, 0, 100)
        };
        let mut ranking = PublisherRanking::new(false, 7);
        assert_eq!(order(&mut ranking, START, &[queue, publication(2, 9, 0)]), [2]);
    }

    #[test]
    fn first_and_second_choice_follow_the_weights() {
        let set = [publication(1, 0, 100), publication(2, 0, 200), publication(3, 0, 700)];
        let mut ranking = PublisherRanking::new(false, 7);
        let (mut first, mut second_of_three) = ([0u32; 4], [0u32; 4]);
        for _ in 0..10_000 {
            let order = order(&mut ranking, START, &set);
            first[usize::from(order[0])] += 1;
            if order[0] == 3 {
                second_of_three[usize::from(order[1])] += 1;
            }
        }
        // 10,000 draws: the standard deviation is at most 46; the tolerance is five of them.
        for (n, expected) in [(1, 1_000), (2, 2_000), (3, 7_000)] {
            assert!(first[n].abs_diff(expected) < 230, "{first:?}");
        }
        let (one, two) = (f64::from(second_of_three[1]), f64::from(second_of_three[2]));
        assert!((two / one - 2.0).abs() < 0.2, "{second_of_three:?}");
    }

    #[test]
    fn a_failure_is_remembered_for_exactly_a_minute() {
        let set = [publication(1, 0, 100), publication(2, 5, 100)];
        let mut ranking = PublisherRanking::new(false, 7);
        ranking.failed(START, set[0].publisher.id);
        assert_eq!(order(&mut ranking, START + FAILURE_REMEMBERED - TICK, &set), [2, 1]);
        assert_eq!(order(&mut ranking, START + FAILURE_REMEMBERED, &set), [1, 2]);
    }

    #[test]
    fn failed_publishers_take_turns_whatever_their_priorities() {
        let set: Vec<_> = (1..=5).map(|n| publication(n, u16::from(n), 100)).collect();
        let mut ranking = PublisherRanking::new(false, 7);
        let mut firsts = Vec::new();
        for second in 0..10 {
            let now = START + Duration::from_secs(second);
            let first = ranking.order(now, &set, |_| false)[0].clone();
            ranking.failed(now, first.id);
            firsts.push(first.id.0[0]);
        }
        assert_eq!(firsts, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn remembered_failures_are_bounded_and_the_newest_stay() {
        let id = |n: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_le_bytes());
            PublisherId(id)
        };
        let mut ranking = PublisherRanking::new(false, 7);
        for n in 0..FAILURES_MAX as u32 + 100 {
            ranking.failed(START + Duration::from_micros(n.into()), id(n));
        }
        assert_eq!(ranking.failures.len(), FAILURES_MAX);
        assert!(!ranking.failures.contains_key(&id(99)));
        assert!(ranking.failures.contains_key(&id(100)));
    }

    proptest! {
        #[test]
        fn ranking_orders_by_failures_locality_priority_and_weight(
            seed: u64,
            local_first: bool,
            terms in prop::collection::vec((0u16..3, 0u16..3, any::<bool>(), any::<bool>()), 0..12),
        ) {
            let mut ranking = PublisherRanking::new(local_first, seed);
            let set: Vec<Publication> = (0u8..)
                .zip(&terms)
                .map(|(n, (priority, weight, ..))| publication(n, *priority, *weight))
                .collect();
            for (one, (.., failed)) in set.iter().zip(&terms) {
                if *failed {
                    ranking.failed(START, one.publisher.id);
                }
            }
            let local = |publisher: &PublisherInfo| terms[usize::from(publisher.id.0[0])].2;
            let order = numbers(&ranking.order(START + Duration::from_secs(59), &set, local));
            let rank = |n: &u8| {
                let (priority, weight, local, failed) = terms[usize::from(*n)];
                (failed, local_first && !local, priority, weight == 0)
            };
            prop_assert!(order.is_sorted_by_key(rank), "{order:?}");
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..terms.len() as u8).collect::<Vec<_>>(), "each once");
        }
    }
}
