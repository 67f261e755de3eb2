//! What a worker that stood still can believe of its links: after a SIGSTOP, or a pause of the
//! machine, the socket still has bytes that came long before they are read. Pure: times are counted
//! from the worker's start.

use std::time::Duration;

/// How often the worker shows that it runs.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// It stood still if it has not shown that for so long.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// So long after it goes on, what is read may have come before. A link that stands brings a
/// heartbeat every 2 s.
const OLD_FOR: Duration = Duration::from_secs(1);

/// When the worker ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standstill {
    /// None before the first tick: then all is believed.
    ticked: Option<Duration>,
    /// The last tick before it stood still, and until when bytes are counted as of then.
    before: Option<(Duration, Duration)>,
}

impl Standstill {
    /// The worker runs.
    pub(crate) fn tick(&mut self, now: Duration) {
        if let Some(last) = self.ticked.filter(|&last| now >= last + STOOD_STILL) {
            self.before = Some((last, now + OLD_FOR));
        }
        self.ticked = Some(now);
    }

    /// A byte that was read at `read` came no earlier than this, as far as is known.
    pub(crate) fn came(&self, now: Duration, read: Duration) -> Duration {
        match (self.ticked, self.before) {
            // It has only just gone on, and not yet ticked.
            (Some(last), _) if now >= last + STOOD_STILL => read.min(last),
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
        let mut standstill = Standstill::default();
        assert_eq!(standstill.came(ms(90_000), ms(89_000)), ms(89_000), "before the first tick");
        (0..=40).for_each(|n| standstill.tick(ms(250 * n)));
        assert_eq!(standstill.came(ms(10_200), ms(10_100)), ms(10_100));
        // SIGSTOP at 10.2 s, SIGCONT at 30 s: lanes may be first, then the reader, then the tick.
        assert_eq!(standstill.came(ms(30_000), ms(30_000)), ms(10_000));
        standstill.tick(ms(30_001));
        assert_eq!(standstill.came(ms(30_002), ms(30_002)), ms(10_000), "of the socket's buffer");
        assert_eq!(standstill.came(ms(30_500), ms(9_900)), ms(9_900));
        standstill.tick(ms(30_251));
        standstill.tick(ms(31_100));
        assert_eq!(standstill.came(ms(31_200), ms(31_002)), ms(31_002), "a heartbeat");
    }
}
