//! Whether events are recorded: they cost every job something, and most of the time nobody wants
//! them.

use std::time::{Duration, Instant};

/// For how long events are recorded after the last one who wanted them: a feed that lost its link
/// finds its place again.
const RECORDED_FOR: Duration = Duration::from_secs(60);
/// For how long after a start, if nobody comes: who followed before it tries again every 2 s.
const RECORDED_AT_START: Duration = Duration::from_secs(10);

/// Pure: it is told the time, and says what to do.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Until when they are recorded though nobody wants them; none while they are not recorded.
    until: Option<Instant>,
}

impl Recording {
    /// A publisher that starts records what it replays, for feeds that come back.
    pub(crate) fn started(now: Instant) -> Recording {
        Recording { until: Some(now + RECORDED_AT_START) }
    }

    /// Somebody wants events.
    pub(crate) fn want(&mut self, now: Instant) {
        self.until = Some(now + RECORDED_FOR);
    }

    /// True when recording is to stop now; from then on it is off.
    pub(crate) fn ends(&mut self, now: Instant, wanted: bool) -> bool {
        let Some(until) = self.until else { return false };
        if wanted {
            self.want(now);
            return false;
        }
        let ends = now >= until;
        if ends {
            self.until = None;
        }
        ends
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_recorded_while_they_are_wanted_and_a_minute_longer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut recording = Recording::started(start);
        assert!(!recording.ends(at(9), false));
        recording.want(at(9));
        assert_eq!(recording.next(), Some(at(69)));
        assert!(!recording.ends(at(100), true));
        assert!(!recording.ends(at(159), false));
        assert!(recording.ends(at(160), false), "a minute after the last look that found one");
        assert!(!recording.ends(at(500), false), "once");
        assert_eq!(recording.next(), None);
        recording.want(at(600));
        assert_eq!(recording.next(), Some(at(660)));
    }

    #[test]
    fn after_a_start_they_are_recorded_for_as_long_as_followers_take_to_come_back() {
        let start = Instant::now();
        let mut recording = Recording::started(start);
        assert!(!recording.ends(start + Duration::from_secs(9), false));
        assert!(recording.ends(start + Duration::from_secs(10), false));
    }
}
