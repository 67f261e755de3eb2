//! How fast a cycle goes beside the commits. Pure.
//!
//! A cycle writes no faster than commits do meanwhile. So when it ends, the log has grown by no
//! more than the snapshot, however fast jobs pass; and under low load, commits have the disk nearly
//! to themselves.

use std::time::Duration;

/// Bytes of a chunk while the log grows slowly: a commit waits at most for this much to reach the
/// disk (0.6 ms at 400 MB/s).
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// While the log outruns the cycle, chunks grow to this: each costs one sync, whatever its length.
pub(crate) const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Shortest rest after a chunk, however far the log is ahead: a waiting commit gets the disk in
/// between.
pub(crate) const REST_MIN: Duration = Duration::from_micros(500);
/// Longest rest after a chunk: a cycle beside an idle log writes 10 MB/s.
const REST_MAX: Duration = Duration::from_millis(20);

/// The rest after a truncate or remove, whatever the pace: the file system needs about this long to
/// settle its own log.
pub(crate) const STEP_REST: Duration = Duration::from_millis(2);

/// The pace of one cycle.
#[derive(Debug)]
pub(crate) struct CyclePace {
    chunk_bytes: usize,
    /// Bytes that the cycle has written.
    done: u64,
}

impl CyclePace {
    pub(crate) fn new() -> CyclePace {
        CyclePace { chunk_bytes: CHUNK_BYTES, done: 0 }
    }

    /// Most bytes of the next chunk.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// How long to rest after a chunk of `bytes` bytes, `elapsed` after the cycle began, when the
    /// log has grown by `grown` bytes since then. The whole cycle counts: commits come in batches,
    /// so the growth during one chunk is noise.
    pub(crate) fn rest_after(&mut self, bytes: usize, elapsed: Duration, grown: u64) -> Duration {
        self.done += bytes as u64;
        let Some(ahead) = self.done.checked_sub(grown) else {
            if grown - self.done >= self.chunk_bytes as u64 {
                self.chunk_bytes = (2 * self.chunk_bytes).min(CHUNK_BYTES_MAX);
            }
            return REST_MIN;
        };
        self.chunk_bytes = (self.chunk_bytes / 2).max(CHUNK_BYTES);
        // The time in which the log grows by `ahead` at its present rate.
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
        let mut pace = CyclePace::new();
        // The log grew by a quarter of a chunk in 4 ms: the rest comes in 12 ms.
        assert_eq!(pace.rest_after(CHUNK_BYTES, 4 * MS, CHUNK / 4), 12 * MS);
        assert_eq!(pace.rest_after(CHUNK_BYTES, 8 * MS, 2 * CHUNK), REST_MIN);
        assert_eq!(pace.rest_after(CHUNK_BYTES, 12 * MS, 2 * CHUNK), 6 * MS, "3 of 2 are done");
        for grown in [0, 1, CHUNK / 100] {
            let rest = CyclePace::new().rest_after(CHUNK_BYTES, 4 * MS, grown);
            assert_eq!(rest, REST_MAX, "not for ever");
        }
        assert_eq!(CyclePace::new().rest_after(0, Duration::ZERO, 0), REST_MAX);
    }

    #[test]
    fn batched_commits_do_not_disturb_the_average_pace() {
        let mut pace = CyclePace::new();
        let mut at = Duration::ZERO;
        // A commit of 2 MiB every 40 ms; a chunk takes a millisecond.
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
        let mut pace = CyclePace::new();
        let mut grown = 0;
        for _ in 0..10 {
            grown += 3 * pace.chunk_bytes() as u64;
            assert_eq!(pace.rest_after(pace.chunk_bytes(), MS, grown), REST_MIN);
        }
        assert_eq!(pace.chunk_bytes(), CHUNK_BYTES_MAX);
        pace.rest_after(CHUNK_BYTES_MAX, MS, pace.done + 2 * CHUNK_BYTES_MAX as u64 - 1);
        assert_eq!(pace.chunk_bytes(), CHUNK_BYTES_MAX, "less than a chunk behind");
        for _ in 0..10 {
            let grown = pace.done;
            pace.rest_after(pace.chunk_bytes(), MS, grown);
        }
        assert_eq!(pace.chunk_bytes(), CHUNK_BYTES);
    }
}
