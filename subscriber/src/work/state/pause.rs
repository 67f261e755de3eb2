//! What a worker that stood still can believe of its links: after a SIGSTOP, or a pause of the
//! machine, the socket still has bytes that came long before they are read. Pure: times are counted
//! from the worker's start.

use std::time::Duration;

/// How often the worker shows that it runs.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// It stood still if it has not shown that for so long.
const PAUSED_AFTER: Duration = Duration::from_secs(1);
/// So long after it goes on, what is read may have come before. A link that stands brings a
/// heartbeat every 2 s.
const STALE_READS_FOR: Duration = Duration::from_secs(1);

/// When the worker ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PauseDetector {
    /// None before the first tick: then all is believed.
    last_tick: Option<Duration>,
    /// The last tick before it stood still, and until when bytes are counted as of then.
    before: Option<(Duration, Duration)>,
}

impl PauseDetector {
    /// The worker runs.
    pub(crate) fn tick(&mut self, now: Duration) {
        if let Some(last) = self.last_tick.filter(|&last| now >= last + PAUSED_AFTER) {
            self.before = Some((last, now + STALE_READS_FOR));
        }
        self.last_tick = Some(now);
    }

    /// A byte that was read at `read` came no earlier than this, as far as is known.
    pub(crate) fn arrival_time(&self, now: Duration, read: Duration) -> Duration {
        match (self.last_tick, self.before) {
            // It has only just gone on, and not yet ticked.
            (Some(last), _) if now >= last + PAUSED_AFTER => read.min(last),
            (_, Some((before, until))) if read < until => read.min(before),
            _ => read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn bytes_that_are_read_after_a_pause_count_as_of_before_it() {
        let mut detector = PauseDetector::default();
        assert_eq!(
            detector.arrival_time(ms(90_000), ms(89_000)),
            ms(89_000),
            "before the first tick"
        );
        (0..=40).for_each(|n| detector.tick(ms(250 * n)));
        assert_eq!(detector.arrival_time(ms(10_200), ms(10_100)), ms(10_100));
        // SIGSTOP at 10.2 s, SIGCONT at 30 s: lanes may be first, then the reader, then the tick.
        assert_eq!(detector.arrival_time(ms(30_000), ms(30_000)), ms(10_000));
        detector.tick(ms(30_001));
        assert_eq!(
            detector.arrival_time(ms(30_002), ms(30_002)),
            ms(10_000),
            "of the socket's buffer"
        );
        assert_eq!(detector.arrival_time(ms(30_500), ms(9_900)), ms(9_900));
        detector.tick(ms(30_251));
        detector.tick(ms(31_100));
        assert_eq!(detector.arrival_time(ms(31_200), ms(31_002)), ms(31_002), "a heartbeat");
    }
}
