//! The work that both systems do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The number of published and subscribed values.
pub(super) const PATHS: usize = 1_000;
/// Single updates per second.
pub(super) const SINGLES_PER_S: u64 = 1_000;
/// How long before a single update is due its thread stops sleeping and polls the clock. A sleep
/// can end late by about this much.
const SPIN_NS: u64 = 100_000;

/// The work of one round.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    /// The size of each value in bytes. A value of 8 bytes is a number.
    pub(super) size: usize,
    /// The number of updates.
    pub(super) updates: u64,
    /// How many seconds to publish single updates.
    pub(super) seconds: u64,
    pub(super) commits: CommitSizes,
}

/// The number of updates per commit of each system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CommitSizes {
    pub(super) netidx: usize,
    pub(super) longshore: usize,
}

impl Default for CommitSizes {
    fn default() -> CommitSizes {
        CommitSizes::both(PATHS)
    }
}

impl CommitSizes {
    pub(super) fn both(updates: usize) -> CommitSizes {
        CommitSizes { netidx: updates, longshore: updates }
    }
}

impl Work {
    pub(super) fn singles(&self) -> u64 {
        SINGLES_PER_S * self.seconds
    }

    /// Every path.
    pub(super) fn paths() -> impl Iterator<Item = String> {
        (0..PATHS).map(|n| format!("/bench/values/value-{n:05}"))
    }

    /// The value of the update with that number.
    pub(super) fn value<T: From<u64> + From<Bytes>>(&self, number: u64, payload: &Bytes) -> T {
        if self.size == 8 { T::from(number) } else { T::from(payload.clone()) }
    }

    /// A value that contains a timestamp.
    pub(super) fn timestamp_value<T: From<u64> + From<Bytes>>(&self, at: u64) -> T {
        if self.size == 8 {
            return T::from(at);
        }
        let mut bytes = vec![0; self.size];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        T::from(Bytes::from(bytes))
    }

    /// The value of updates of more than 8 bytes.
    pub(super) fn payload(&self) -> Bytes {
        Bytes::from(vec![b'x'; self.size])
    }
}

/// The timestamp in the bytes of a [`Work::timestamp_value`].
pub(super) fn timestamp(bytes: &[u8]) -> anyhow::Result<u64> {
    let first = bytes.first_chunk().context("a value without a timestamp")?;
    Ok(u64::from_le_bytes(*first))
}

/// The machine's clock in nanoseconds, the same in every process. It may be adjusted meanwhile, but
/// only slightly.
pub(super) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// When to publish the single update with that number.
pub(super) fn due(start: u64, number: u64) -> u64 {
    start + number * 1_000_000_000 / SINGLES_PER_S
}

/// Blocks the thread until then.
pub(super) fn wait_until(at: u64) {
    loop {
        match at.checked_sub(now_ns()) {
            None | Some(0) => return,
            Some(left) if left > SPIN_NS => {
                std::thread::sleep(Duration::from_nanos(left - SPIN_NS));
            }
            Some(_) => std::hint::spin_loop(),
        }
    }
}

/// The publisher's report after it has published all updates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Published {
    pub(super) started_ns: u64,
}

/// The subscriber's report after it has received all updates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Received {
    pub(super) finished_ns: u64,
}

/// The latencies of single updates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Latencies {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Latencies {
    /// The percentiles of latencies in nanoseconds.
    pub(super) fn of(mut all: Vec<u64>) -> anyhow::Result<Latencies> {
        all.sort_unstable();
        let at = |percent: usize| {
            let index = (all.len() * percent).div_ceil(100).saturating_sub(1);
            let ns = all.get(index).context("no single update was received")?;
            anyhow::Ok(*ns as f64 / 1e3)
        };
        Ok(Latencies { p50_us: at(50)?, p99_us: at(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_sorted_times() {
        let latencies = Latencies::of((1..=1_000).rev().map(|n| n * 1_000).collect()).unwrap();
        assert_eq!((latencies.p50_us, latencies.p99_us), (500.0, 990.0));
        assert!(Latencies::of(Vec::new()).is_err());
    }

    #[test]
    fn single_updates_are_scheduled_at_their_rate() {
        assert_eq!((due(5, 0), due(5, 1), due(5, 1_000)), (5, 1_000_005, 1_000_000_005));
        assert_eq!(timestamp(&[1, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap(), 1);
        assert!(timestamp(&[1]).is_err());
    }
}
