//! A bound on how slowly a frame may arrive. Pure: time is an argument.

use std::time::{Duration, Instant};

/// Bytes of a partial frame that have to arrive in [`PACE_TIME`], unless it ends: 52 kbit/s.
/// Without it, a byte now and then would occupy the memory of a frame for ever.
const PACE_BYTES: usize = 64 * 1024;
/// See [`PACE_BYTES`].
pub(crate) const PACE_TIME: Duration = Duration::from_secs(10);
/// A long frame has to arrive in this many times [`PACE_TIME`]: 20 MiB at 2.8 Mbit/s, which is what
/// a producer's answer timeout asks for, too. Its memory is in use from its first bytes on, and at
/// the pace of a short one it would be for an hour.
const PACES_PER_FRAME: usize = 6;

/// Bytes of a frame of `length` that have to arrive in [`PACE_TIME`].
pub(crate) fn pace_bytes(length: usize) -> usize {
    PACE_BYTES.max(length / PACES_PER_FRAME)
}

/// The progress of a partial frame, from the first time that the link waits for the rest of it.
/// Time in which the link is not read does not count.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the current window began, and the bytes of the frame then.
    window: Option<(Instant, usize)>,
}

impl Pace {
    /// When the link counts as too slow if no more arrives of a frame of which it has `had` bytes
    /// of `length`.
    pub(crate) fn deadline(&mut self, now: Instant, had: usize, length: usize) -> Instant {
        let (since, _) = match self.window {
            Some(window @ (_, from)) if had < from + pace_bytes(length) => window,
            _ => *self.window.insert((now, had)),
        };
        since + PACE_TIME
    }

    /// The link was not read for this time, which does not count.
    pub(crate) fn was_not_read(&mut self, time: Duration) {
        if let Some((since, _)) = &mut self.window {
            *since += time;
        }
    }

    /// The frame has ended, or the link was not read: the next window begins with the next wait.
    pub(crate) fn restart(&mut self) {
        self.window = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// The length of a short frame.
    const SHORT: usize = 4 * PACE_BYTES;

    #[test]
    fn only_enough_bytes_move_the_deadline() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let first = start + PACE_TIME;
        assert_eq!(pace.deadline(start, 100, SHORT), first);
        assert_eq!(pace.deadline(start + 9 * SECOND, 100 + PACE_BYTES - 1, SHORT), first);
        let later = start + 9 * SECOND;
        assert_eq!(pace.deadline(later, 100 + PACE_BYTES, SHORT), later + PACE_TIME);
        assert_eq!(pace.deadline(later + SECOND, 101 + PACE_BYTES, SHORT), later + PACE_TIME);
    }

    #[test]
    fn time_without_reading_moves_the_deadline_and_is_no_new_window() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        pace.was_not_read(SECOND);
        pace.deadline(start, 100, SHORT);
        for n in 1..=3 {
            pace.was_not_read(2 * SECOND);
            let now = start + 3 * n * SECOND;
            assert_eq!(
                pace.deadline(now, 100 + n as usize, SHORT),
                start + PACE_TIME + 2 * n * SECOND
            );
        }
    }

    #[test]
    fn the_next_frame_gets_the_full_time() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        pace.deadline(start, 1_000, SHORT);
        pace.restart();
        assert_eq!(pace.deadline(start + 8 * SECOND, 1_000, SHORT), start + 8 * SECOND + PACE_TIME);
    }

    #[test]
    fn a_long_frame_arrives_within_a_minute() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let length = 20 * 1024 * 1024;
        assert_eq!(pace.deadline(start, 0, length), start + PACE_TIME);
        let later = start + 9 * SECOND;
        assert_eq!(pace.deadline(later, length / 7, length), start + PACE_TIME, "too little");
        assert_eq!(pace.deadline(later, length / 6, length), later + PACE_TIME);
    }
}
