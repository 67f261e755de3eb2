//! The publishers to subscribe at: all that the resolver reports for any of the worker's patterns.

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::future::select_all;
use longshore_protocol::{PublisherId, PublisherInfo};
use longshore_resolver::{PublisherSet, PublisherWatch};

/// A stream of publisher sets for one pattern.
pub(crate) trait PublisherSource: Send {
    /// Waits for the next complete set. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = PublisherSet> + Send;
}

impl PublisherSource for PublisherWatch {
    fn changed(&mut self) -> impl Future<Output = PublisherSet> + Send {
        PublisherWatch::changed(self)
    }
}

/// One watch for each pattern.
#[derive(Debug)]
pub(crate) struct PublisherWatches<S> {
    watches: Vec<S>,
    union: PublisherUnion,
}

impl<S: PublisherSource> PublisherWatches<S> {
    pub(crate) fn new(watches: Vec<S>) -> PublisherWatches<S> {
        let union = PublisherUnion::new(watches.len());
        PublisherWatches { watches, union }
    }

    /// Waits for a change of any pattern, and returns the union of all patterns. Cancel safe.
    pub(crate) async fn changed(&mut self) -> (bool, Vec<PublisherInfo>) {
        if self.watches.is_empty() {
            std::future::pending::<()>().await;
        }
        // If several watches are ready, the first in this order is taken; the others are taken by
        // the next calls.
        let changes = self.watches.iter_mut().map(|watch| Box::pin(watch.changed()));
        let (set, pattern, _) = select_all(changes).await;
        self.union.update(pattern, set)
    }
}

/// The latest set of each pattern, and their union.
#[derive(Debug)]
struct PublisherUnion {
    sets: Vec<Option<PublisherSet>>,
}

impl PublisherUnion {
    fn new(patterns: usize) -> PublisherUnion {
        PublisherUnion { sets: vec![None; patterns] }
    }

    /// Stores a pattern's latest set. The union is complete once every pattern's set is: before
    /// that, a publisher may be absent although it is registered.
    fn update(&mut self, pattern: usize, set: PublisherSet) -> (bool, Vec<PublisherInfo>) {
        self.sets[pattern] = Some(set);
        let complete = self.sets.iter().all(|set| set.as_ref().is_some_and(|set| set.complete));
        let mut publishers: BTreeMap<PublisherId, &PublisherInfo> = BTreeMap::new();
        // The latest set goes last: for the same epoch of a publisher, the latest report counts.
        let older = self.sets.iter().enumerate().filter(|(at, _)| *at != pattern).map(|(_, s)| s);
        for info in older.chain([&self.sets[pattern]]).flatten().flat_map(|set| &set.publishers) {
            let known = publishers.entry(info.id).or_insert(info);
            if info.epoch >= known.epoch {
                *known = info;
            }
        }
        (complete, publishers.into_values().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_protocol::{Epoch, Incarnation};

    fn info(n: u8, epoch: u64, port: u16) -> PublisherInfo {
        let addresses = [([127, 0, 0, 1], port)];
        PublisherInfo::new(PublisherId([n; 16]), Epoch(epoch), format!("p{n}"), addresses)
    }

    fn set(complete: bool, publishers: &[PublisherInfo]) -> PublisherSet {
        PublisherSet {
            replica: "test:1".into(),
            incarnation: Incarnation::default(),
            revision: 1,
            complete,
            publishers: publishers.to_vec(),
        }
    }

    #[test]
    fn the_union_is_complete_once_every_pattern_is() {
        let mut union = PublisherUnion::new(3);
        let (a, b, c) = (info(1, 1, 1), info(2, 1, 2), info(3, 1, 3));
        let merged = union.update(1, set(true, &[b.clone(), c.clone()]));
        assert_eq!(
            merged,
            (false, vec![b.clone(), c.clone()]),
            "the other patterns have no set yet"
        );
        let merged = union.update(0, set(false, &[a.clone(), b.clone()]));
        assert_eq!(merged, (false, vec![a.clone(), b.clone(), c.clone()]));
        let merged = union.update(2, set(true, &[]));
        assert!(!merged.0, "the first is warming up");
        let merged = union.update(0, set(true, std::slice::from_ref(&a)));
        assert_eq!(merged, (true, vec![a.clone(), b.clone(), c]));
        let merged = union.update(1, set(true, std::slice::from_ref(&b)));
        assert_eq!(merged, (true, vec![a, b]), "gone from the only pattern that had it");
    }

    #[test]
    fn the_newest_epoch_and_then_the_latest_report_count() {
        let mut union = PublisherUnion::new(2);
        union.update(0, set(true, &[info(1, 2, 20)]));
        assert_eq!(union.update(1, set(true, &[info(1, 1, 10)])).1, [info(1, 2, 20)]);
        assert_eq!(union.update(1, set(true, &[info(1, 2, 21)])).1, [info(1, 2, 21)]);
        assert_eq!(union.update(0, set(true, &[info(1, 2, 22)])).1, [info(1, 2, 22)]);
    }
}
