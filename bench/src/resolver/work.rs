//! The work that both systems do.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// Paths below each parent.
pub(super) const PER_PARENT: u64 = 1_000;
/// The number of paths that one call resolves.
pub(super) const RESOLVE_BATCH: usize = 10_000;
/// Numbers of read clients, each with its own link. Both are measured and the faster counts: a
/// second client uses the time that the first one waits, at its own cost.
pub(super) const CLIENTS: [usize; 2] = [1, 2];
/// A prime: its multiples, modulo any smaller number of paths, visit each path once, in an order
/// that separates neighbours.
const STRIDE: u64 = 2_147_483_647;

/// How netidx registers paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum NetidxRegisters {
    /// With its `ResolverWrite`, the counterpart of Longshore's `WriteClient`.
    ByResolverWrite,
    /// With its `Publisher`, with a value for each path.
    ByPublisher,
}

/// The work of one round.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    /// The number of paths.
    pub(super) paths: u64,
    /// Whether paths are resolved in a different order than they are registered.
    pub(super) shuffled: bool,
    /// How netidx registers paths.
    pub(super) netidx_registers: NetidxRegisters,
}

impl Work {
    /// Every path, in the order of registration. Each has 30 bytes, up to a billion paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = String> {
        (0..self.paths).map(path)
    }

    /// Every path, in the order of resolution.
    pub(super) fn resolve_order(&self) -> impl Iterator<Item = String> {
        let (count, stride) = (self.paths, if self.shuffled { STRIDE } else { 1 });
        (0..count).map(move |n| path(n * stride % count))
    }

    /// The parents of all paths.
    pub(super) fn parents(&self) -> impl Iterator<Item = String> {
        (0..self.paths.div_ceil(PER_PARENT)).map(parent)
    }
}

fn parent(number: u64) -> String {
    format!("/bench/group-{number:06}")
}

fn path(number: u64) -> String {
    format!("{}/item-{:05}", parent(number / PER_PARENT), number % PER_PARENT)
}

/// Splits `0..length` into ranges of at most `most` indexes.
pub(super) fn batches(length: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(most).map(move |start| start..length.min(start + most))
}

/// Runs all futures, `in_flight` at a time, and returns the sum of their results.
pub(super) async fn pipelined<F>(
    futures: impl IntoIterator<Item = F>,
    in_flight: usize,
) -> anyhow::Result<u64>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let (mut running, mut sum) = (JoinSet::new(), 0);
    for future in futures {
        if running.len() >= in_flight
            && let Some(done) = running.join_next().await
        {
            sum += done??;
        }
        running.spawn(future);
    }
    while let Some(done) = running.join_next().await {
        sum += done??;
    }
    Ok(sum)
}

/// Builds a value of each text. The batches share the values.
pub(super) fn build_all<T>(
    texts: impl Iterator<Item = String>,
    make: impl Fn(String) -> anyhow::Result<T>,
) -> anyhow::Result<Arc<[T]>> {
    texts.map(make).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::resolver::options::Options;

    #[test]
    fn paths_have_thirty_bytes_also_when_shuffled() {
        let mut work = Options::parse(&["--paths", "2500", "--shuffled"]).unwrap().work;
        let paths: Vec<String> = work.paths().collect();
        assert_eq!(paths.len(), 2500);
        assert!(paths.iter().all(|path| path.len() == 30));
        assert_eq!(paths[2400], "/bench/group-000002/item-00400");
        let resolved: Vec<String> = work.resolve_order().collect();
        assert_ne!(resolved, paths);
        assert_eq!(BTreeSet::from_iter(&resolved), BTreeSet::from_iter(&paths));
        assert_eq!(work.parents().last().unwrap(), "/bench/group-000002");
        work.shuffled = false;
        assert_eq!(work.resolve_order().collect::<Vec<_>>(), paths);
    }

    #[test]
    fn batches_cover_every_index_once() {
        assert_eq!(batches(25, 10).collect::<Vec<_>>(), [0..10, 10..20, 20..25]);
        assert_eq!(batches(20, 10).collect::<Vec<_>>(), [0..10, 10..20]);
        assert_eq!(batches(0, 10).count(), 0);
    }

    #[test]
    fn pipelined_sums_results_and_returns_errors() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let sum = runtime.block_on(pipelined((1..=100).map(|n| async move { Ok(n) }), 3));
        assert_eq!(sum.unwrap(), 5050);
        let failing = |n| async move { if n == 7 { anyhow::bail!("no") } else { Ok(n) } };
        assert!(runtime.block_on(pipelined((1..=10).map(failing), 3)).is_err());
    }
}
