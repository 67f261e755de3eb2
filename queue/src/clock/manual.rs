//! A manual clock for tests: it changes only when it is moved, so that a test can pass an hour's
//! back-off at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Reading, reading};

/// Readings that change only when moved, both by the same amount. Clones share one clock.
#[derive(Clone, Debug)]
pub struct ManualClock {
    start: Reading,
    moved_ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock with this reading.
    pub fn at(start: Reading) -> ManualClock {
        ManualClock { start, moved_ms: Arc::default() }
    }

    /// A clock with the system's present reading.
    pub fn at_system_time() -> ManualClock {
        ManualClock::at(reading())
    }

    /// The present reading.
    pub fn reading(&self) -> Reading {
        let moved_ms = self.moved_ms.load(Ordering::Relaxed);
        Reading {
            boot_ms: self.start.boot_ms.saturating_add(moved_ms),
            wall_ms: self.start.wall_ms.saturating_add(moved_ms),
        }
    }

    /// Advances the clock. It never goes back.
    pub fn move_by(&self, ms: u64) {
        let add = |moved_ms: u64| Some(moved_ms.saturating_add(ms));
        let _ = self.moved_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// The next stop of a walk through time up to `to_ms`: the next deadline (`next_ms`), or the end.
/// None once the walk is over, which is when the turn at the end did nothing. After a turn that
/// `acted`, more may be due at the same time.
pub fn next_stop(now_ms: u64, to_ms: u64, next_ms: Option<u64>, acted: bool) -> Option<u64> {
    match next_ms {
        Some(next_ms) if next_ms <= now_ms && acted => Some(now_ms),
        _ if now_ms >= to_ms => None,
        Some(next_ms) => Some(next_ms.clamp(now_ms + 1, to_ms)),
        None => Some(to_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_both_readings_by_the_same_amount() {
        let clock = ManualClock::at(Reading { boot_ms: 7, wall_ms: 1_000 });
        let same = clock.clone();
        assert_eq!(clock.reading(), Reading { boot_ms: 7, wall_ms: 1_000 });
        clock.move_by(3_600_000);
        same.move_by(1);
        assert_eq!(clock.reading(), Reading { boot_ms: 3_600_008, wall_ms: 3_601_001 });
        clock.move_by(u64::MAX);
        assert_eq!(clock.reading(), Reading { boot_ms: u64::MAX, wall_ms: u64::MAX });
    }

    #[test]
    fn next_stop_is_the_next_deadline_or_the_end() {
        assert_eq!(next_stop(10, 100, Some(40), false), Some(40));
        assert_eq!(next_stop(10, 100, Some(400), false), Some(100));
        assert_eq!(next_stop(10, 100, None, true), Some(100));
        assert_eq!(next_stop(100, 100, None, true), None);
        assert_eq!(next_stop(100, 100, Some(101), true), None);
    }

    #[test]
    fn overdue_deadline_repeats_the_stop_only_after_progress() {
        assert_eq!(next_stop(10, 100, Some(10), true), Some(10));
        assert_eq!(next_stop(100, 100, Some(90), true), Some(100));
        assert_eq!(next_stop(10, 100, Some(10), false), Some(11));
        assert_eq!(next_stop(100, 100, Some(100), false), None);
    }
}
