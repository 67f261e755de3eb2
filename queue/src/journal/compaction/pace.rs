//! How fast a cycle goes beside the commits. Pure.
//!
//! It keeps step with the log: what a cycle writes may be as much as what commits write meanwhile.
//! So the log has grown by no more than the snapshot when it ends, however fast jobs pass; and
//! where few pass, commits have the disk nearly for themselves.

use std::time::Duration;

/// Bytes of a piece where the log grows slowly: a commit waits for no more than these to reach the
/// disk (0.6 ms at 400 MB/s).
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// Where the log outruns the cycle, pieces become longer: each costs a sync, whatever its length.
pub(crate) const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The shortest rest after a piece, however far the log is ahead: a commit that waits for the disk
/// comes in between.
pub(crate) const REST_MIN: Duration = Duration::from_micros(500);
/// The longest rest after a piece. A cycle that nobody hurries writes 10 MB/s.
const REST_MAX: Duration = Duration::from_millis(20);

/// The rest after a step that gives room back, however slow the cycle is: so long a file system
/// takes to have its own log in order.
pub(crate) const STEP_REST: Duration = Duration::from_millis(2);

/// The pace of one cycle.
#[derive(Debug)]
pub(crate) struct Pace {
    chunk_bytes: usize,
    /// Bytes that the cycle has written.
    done: u64,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { chunk_bytes: CHUNK_BYTES, done: 0 }
    }

    /// Bytes of the next piece, at most.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// A piece of `bytes` bytes is done, so long after the cycle began; the log has grown by
    /// `grown` bytes since then: how long to rest. All of the cycle counts: commits come in
    /// batches, so the growth during a piece says little.
    pub(crate) fn rest_after(&mut self, bytes: usize, elapsed: Duration, grown: u64) -> Duration {
        self.done += bytes as u64;
        let Some(ahead) = self.done.checked_sub(grown) else {
            if grown - self.done >= self.chunk_bytes as u64 {
                self.chunk_bytes = (2 * self.chunk_bytes).min(CHUNK_BYTES_MAX);
            }
            return REST_MIN;
        };
        self.chunk_bytes = (self.chunk_bytes / 2).max(CHUNK_BYTES);
        // At its present rate the log grows by as much in so long.
        let catches_up = elapsed.as_secs_f64() * ahead as f64 / grown as f64;
        Duration::try_from_secs_f64(catches_up)
            .map_or(REST_MAX, |rest| rest.clamp(REST_MIN, REST_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const CHUNK: u64 = CHUNK_BYTES as u64;

    #[test]
    fn cycle_pace_follows_log_growth() {
        let mut pace = Pace::new();
        // A quarter of it in 4 ms: the rest comes in 12 ms.
        assert_eq!(pace.rest_after(CHUNK_BYTES, 4 * MS, CHUNK / 4), 12 * MS);
        assert_eq!(pace.rest_after(CHUNK_BYTES, 8 * MS, 2 * CHUNK), REST_MIN);
        assert_eq!(pace.rest_after(CHUNK_BYTES, 12 * MS, 2 * CHUNK), 6 * MS, "3 of 2 are done");
        for grown in [0, 1, CHUNK / 100] {
            let rest = Pace::new().rest_after(CHUNK_BYTES, 4 * MS, grown);
            assert_eq!(rest, REST_MAX, "not for ever");
        }
        assert_eq!(Pace::new().rest_after(0, Duration::ZERO, 0), REST_MAX);
    }

    #[test]
    fn batched_commits_do_not_disturb_the_average_pace() {
        let mut pace = Pace::new();
        let mut at = Duration::ZERO;
        // A commit of 2 MiB every 40 ms; a piece takes a millisecond.
        for _ in 0..10_000 {
            at += MS;
            let grown = 2 * 1024 * 1024 * (at.as_millis() as u64 / 40);
            at += pace.rest_after(pace.chunk_bytes(), at, grown);
        }
        let rate = pace.done as f64 / at.as_secs_f64();
        let log = 2.0 * 1024.0 * 1024.0 / 0.04;
        assert!((0.95..1.1).contains(&(rate / log)), "{rate} bytes/s beside {log}");
    }

    #[test]
    fn chunks_grow_while_behind_the_log_and_shrink_when_ahead() {
        let mut pace = Pace::new();
        let mut grown = 0;
        for _ in 0..10 {
            grown += 3 * pace.chunk_bytes() as u64;
            assert_eq!(pace.rest_after(pace.chunk_bytes(), MS, grown), REST_MIN);
        }
        assert_eq!(pace.chunk_bytes(), CHUNK_BYTES_MAX);
        pace.rest_after(CHUNK_BYTES_MAX, MS, pace.done + 2 * CHUNK_BYTES_MAX as u64 - 1);
        assert_eq!(pace.chunk_bytes(), CHUNK_BYTES_MAX, "less than a piece behind");
        for _ in 0..10 {
            let grown = pace.done;
            pace.rest_after(pace.chunk_bytes(), MS, grown);
        }
        assert_eq!(pace.chunk_bytes(), CHUNK_BYTES);
    }
}
