//! How fast a cycle goes beside the commits. Pure.
//!
//! It keeps step with the log: what a cycle writes may be as much as what commits write meanwhile. So the log has grown by no
//! more than the snapshot when it ends, however fast jobs pass; and where few pass, commits have the disk nearly for themselves.

use std::time::Duration;

/// Bytes of a piece where the log grows slowly: a commit waits for no more than these to reach the disk (0.6 ms at 400 MB/s).
pub(crate) const PIECE_BYTES: usize = 256 * 1024;
/// Where the log outruns the cycle, pieces become longer: each costs a sync, whatever its length.
pub(crate) const PIECE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest rest after a piece. A cycle that nobody hurries writes 10 MB/s.
const REST_MAX: Duration = Duration::from_millis(20);

/// The pace of one cycle.
#[derive(Debug)]
pub(crate) struct Pace {
    piece_bytes: usize,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { piece_bytes: PIECE_BYTES }
    }

    /// Bytes of the next piece, at most.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// A piece of `bytes` bytes took that long, and the log grew by `grown` bytes meanwhile: how long to rest.
    pub(crate) fn rest_after(&mut self, bytes: usize, took: Duration, grown: u64) -> Duration {
        if grown >= bytes as u64 {
            self.piece_bytes = (2 * self.piece_bytes).min(PIECE_BYTES_MAX);
            return Duration::ZERO;
        }
        // At this rate the log grows by as much in so long.
        let keeps_step = match grown {
            0 => Duration::MAX,
            grown => took.saturating_mul((bytes as u64 / grown).min(u64::from(u32::MAX)) as u32),
        };
        let rest = keeps_step.saturating_sub(took).min(REST_MAX);
        if rest >= took {
            self.piece_bytes = (self.piece_bytes / 2).max(PIECE_BYTES);
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_keeps_step_with_the_log() {
        let mut pace = Pace::new();
        let piece = PIECE_BYTES as u64;
        assert_eq!(pace.rest_after(PIECE_BYTES, 4 * MS, piece / 3), 8 * MS);
        assert_eq!(pace.rest_after(PIECE_BYTES, 4 * MS, piece - 1), Duration::ZERO);
        assert_eq!(pace.piece_bytes(), PIECE_BYTES);
        for grown in [0, 1, piece / 100] {
            assert_eq!(pace.rest_after(PIECE_BYTES, 4 * MS, grown), REST_MAX, "not for ever");
        }
    }

    #[test]
    fn pieces_grow_while_the_log_outruns_them_and_shrink_once_there_is_time() {
        let mut pace = Pace::new();
        for _ in 0..10 {
            let bytes = pace.piece_bytes();
            assert_eq!(pace.rest_after(bytes, 4 * MS, bytes as u64), Duration::ZERO);
        }
        assert_eq!(pace.piece_bytes(), PIECE_BYTES_MAX);
        pace.rest_after(PIECE_BYTES_MAX, 4 * MS, PIECE_BYTES_MAX as u64 - 1);
        assert_eq!(pace.piece_bytes(), PIECE_BYTES_MAX, "it just keeps step");
        for _ in 0..10 {
            pace.rest_after(pace.piece_bytes(), 4 * MS, 1);
        }
        assert_eq!(pace.piece_bytes(), PIECE_BYTES);
    }

    #[test]
    fn nothing_written_is_no_reason_to_rest_long() {
        let mut pace = Pace::new();
        assert_eq!(pace.rest_after(0, 4 * MS, 0), Duration::ZERO);
    }
}
