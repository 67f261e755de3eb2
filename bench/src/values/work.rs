//! What both sides do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Values that are published and followed.
pub(super) const PATHS: usize = 1_000;
/// Single updates a second.
pub(super) const SINGLES_PER_S: u64 = 1_000;
/// How long before its time a single update's thread stops sleeping and watches the clock: sleeps
/// end late, by about this much.
const WATCH_CLOCK_NS: u64 = 100_000;

/// The work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    /// Bytes of each value; of 8 it is a number.
    pub(super) size: usize,
    /// Updates that go through.
    pub(super) updates: u64,
    /// How long single updates are measured.
    pub(super) seconds: u64,
    pub(super) commits: Commits,
}

/// Updates that each side commits at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Commits {
    pub(super) netidx: usize,
    pub(super) longshore: usize,
}

impl Default for Commits {
    fn default() -> Commits {
        Commits::both(PATHS)
    }
}

impl Commits {
    pub(super) fn both(updates: usize) -> Commits {
        Commits { netidx: updates, longshore: updates }
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

    /// Hands a value for each update to whoever makes it; the second number is the place of its
    /// path.
    pub(super) fn value<T: From<u64> + From<Bytes>>(&self, number: u64, payload: &Bytes) -> T {
        if self.size == 8 { T::from(number) } else { T::from(payload.clone()) }
    }

    /// A value that tells a moment.
    pub(super) fn timed<T: From<u64> + From<Bytes>>(&self, at: u64) -> T {
        if self.size == 8 {
            return T::from(at);
        }
        let mut bytes = vec![0; self.size];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        T::from(Bytes::from(bytes))
    }

    /// What updates of more than 8 bytes carry.
    pub(super) fn payload(&self) -> Bytes {
        Bytes::from(vec![b'x'; self.size])
    }
}

/// The moment in bytes made by [`Work::timed`].
pub(super) fn moment(bytes: &[u8]) -> anyhow::Result<u64> {
    let first = bytes.first_chunk().context("a value without a moment")?;
    Ok(u64::from_le_bytes(*first))
}

/// The machine's clock, in nanoseconds: the same in every process. It may be set meanwhile, but by
/// little.
pub(super) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// When the single update with that number is to go out.
pub(super) fn due(start: u64, number: u64) -> u64 {
    start + number * 1_000_000_000 / SINGLES_PER_S
}

/// Waits with its thread, which has nothing else to do.
pub(super) fn wait_until(at: u64) {
    loop {
        match at.checked_sub(now_ns()) {
            None | Some(0) => return,
            Some(left) if left > WATCH_CLOCK_NS => {
                std::thread::sleep(Duration::from_nanos(left - WATCH_CLOCK_NS));
            }
            Some(_) => std::hint::spin_loop(),
        }
    }
}

/// What the publisher says once all was published.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Published {
    pub(super) began_ns: u64,
}

/// What the subscriber says once all has come.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Received {
    pub(super) ended_ns: u64,
}

/// How long single updates took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Singles {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Singles {
    /// Of all of them, in nanoseconds.
    pub(super) fn of(mut all: Vec<u64>) -> anyhow::Result<Singles> {
        all.sort_unstable();
        let at = |percent: usize| {
            let place = (all.len() * percent).div_ceil(100).saturating_sub(1);
            let ns = all.get(place).context("no single update has come")?;
            anyhow::Ok(*ns as f64 / 1e3)
        };
        Ok(Singles { p50_us: at(50)?, p99_us: at(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted() {
        let singles = Singles::of((1..=1_000).rev().map(|n| n * 1_000).collect()).unwrap();
        assert_eq!((singles.p50_us, singles.p99_us), (500.0, 990.0));
        assert!(Singles::of(Vec::new()).is_err());
    }

    #[test]
    fn singles_are_a_thousand_a_second() {
        assert_eq!((due(5, 0), due(5, 1), due(5, 1_000)), (5, 1_000_005, 1_000_000_005));
        assert_eq!(moment(&[1, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap(), 1);
        assert!(moment(&[1]).is_err());
    }
}
