//! What both sides do.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// Paths below each parent.
pub(super) const PER_PARENT: u64 = 1_000;
/// Paths that are resolved with one call.
pub(super) const RESOLVE_BATCH: usize = 10_000;
/// Read clients, each with a link of its own. Each side reads with so many, then with so many, and
/// the faster counts: what one has to wait for another can fill in, and costs something by itself.
pub(super) const CLIENTS: [usize; 2] = [1, 2];
/// A prime: its multiples visit every place of anything shorter once, far from each other.
const STRIDE: u64 = 2_147_483_647;

/// How netidx registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum NetidxRegisters {
    /// By its `ResolverWrite`, the counterpart of Longshore's `WriteClient`.
    ByResolverWrite,
    /// By its whole `Publisher`, with a value for each path.
    ByPublisher,
}

/// The work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    /// How many paths.
    pub(super) paths: u64,
    /// Resolved in another order than they were registered in.
    pub(super) shuffled: bool,
    /// How netidx registers.
    pub(super) netidx_registers: NetidxRegisters,
}

impl Work {
    /// Every path, in the order of registration; 30 bytes each up to a billion.
    pub(super) fn paths(&self) -> impl Iterator<Item = String> {
        (0..self.paths).map(path)
    }

    /// Every path, in the order of resolution.
    pub(super) fn asked(&self) -> impl Iterator<Item = String> {
        let (count, stride) = (self.paths, if self.shuffled { STRIDE } else { 1 });
        (0..count).map(move |n| path(n * stride % count))
    }

    /// What lies above the paths.
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

/// The parts of `0..length` that have at most `most` places.
pub(super) fn batches(length: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(most).map(move |start| start..length.min(start + most))
}

/// Does all of it, `in_flight` at a time, and adds up what each says.
pub(super) async fn pipelined<F>(
    all: impl IntoIterator<Item = F>,
    in_flight: usize,
) -> anyhow::Result<u64>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let (mut running, mut sum) = (JoinSet::new(), 0);
    for one in all {
        if running.len() >= in_flight
            && let Some(done) = running.join_next().await
        {
            sum += done??;
        }
        running.spawn(one);
    }
    while let Some(done) = running.join_next().await {
        sum += done??;
    }
    Ok(sum)
}

/// Made of every text; shared by the batches.
pub(super) fn made<T>(
    texts: impl Iterator<Item = String>,
    make: impl Fn(String) -> anyhow::Result<T>,
) -> anyhow::Result<Arc<[T]>> {
    texts.map(make).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::resolver::asked::Asked;

    #[test]
    fn paths_have_thirty_bytes_and_the_shuffled_are_the_same() {
        let mut work = Asked::parse(&["--paths", "2500", "--shuffled"]).unwrap().work;
        let paths: Vec<String> = work.paths().collect();
        assert_eq!(paths.len(), 2500);
        assert!(paths.iter().all(|path| path.len() == 30));
        assert_eq!(paths[2400], "/bench/group-000002/item-00400");
        let asked: Vec<String> = work.asked().collect();
        assert_ne!(asked, paths);
        assert_eq!(BTreeSet::from_iter(&asked), BTreeSet::from_iter(&paths));
        assert_eq!(work.parents().last().unwrap(), "/bench/group-000002");
        work.shuffled = false;
        assert_eq!(work.asked().collect::<Vec<_>>(), paths);
    }

    #[test]
    fn batches_cover_everything_once() {
        assert_eq!(batches(25, 10).collect::<Vec<_>>(), [0..10, 10..20, 20..25]);
        assert_eq!(batches(20, 10).collect::<Vec<_>>(), [0..10, 10..20]);
        assert_eq!(batches(0, 10).count(), 0);
    }

    #[test]
    fn what_is_pipelined_is_all_done_and_an_error_is_told() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let sum = runtime.block_on(pipelined((1..=100).map(|n| async move { Ok(n) }), 3));
        assert_eq!(sum.unwrap(), 5050);
        let failing = |n| async move { if n == 7 { anyhow::bail!("no") } else { Ok(n) } };
        assert!(runtime.block_on(pipelined((1..=10).map(failing), 3)).is_err());
    }
}
