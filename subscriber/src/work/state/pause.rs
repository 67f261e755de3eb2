//! Detects pauses of the process. After a SIGSTOP, or a pause of the machine, the socket still has
//! bytes that arrived long before they are read. Pure: times count from the worker's start.

use std::time::Duration;

/// How often the worker records that it runs.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// The process was paused if it recorded nothing for this long.
const PAUSED_AFTER: Duration = Duration::from_secs(1);
/// For this long after a pause, bytes that are read may have arrived before it. A healthy link
/// delivers a heartbeat every 2 s.
const STALE_READS_FOR: Duration = Duration::from_secs(1);

/// The last tick, and the last pause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PauseDetector {
    /// `None` before the first tick: then every time is taken as read.
    last_tick: Option<Duration>,
    /// The last tick before the pause, and until when bytes count as having arrived then.
    before: Option<(Duration, Duration)>,
}

impl PauseDetector {
    /// The process is running.
    pub(crate) fn tick(&mut self, now: Duration) {
        if let Some(last) = self.last_tick.filter(|&last| now >= last + PAUSED_AFTER) {
            self.before = Some((last, now + STALE_READS_FOR));
        }
        self.last_tick = Some(now);
    }

    /// The last tick; none before the first.
    pub(crate) fn last_tick(&self) -> Option<Duration> {
        self.last_tick
    }

    /// The earliest time at which a byte that was read at `read` may have arrived.
    pub(crate) fn arrival_time(&self, now: Duration, read: Duration) -> Duration {
        match (self.last_tick, self.before) {
            // The process was resumed and has not ticked yet.
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
    fn bytes_read_after_a_pause_count_as_earlier() {
        let mut detector = PauseDetector::default();
        assert_eq!(
            detector.arrival_time(ms(90_000), ms(89_000)),
            ms(89_000),
            "before the first tick"
        );
        (0..=40).for_each(|n| detector.tick(ms(250 * n)));
        assert_eq!(detector.arrival_time(ms(10_200), ms(10_100)), ms(10_100));
        // SIGSTOP at 10.2 s, SIGCONT at 30 s: handler tasks may run first, then the reader, then
        // the tick.
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
