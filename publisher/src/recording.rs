//! Whether events are recorded: they cost every job something, and most of the time nobody wants them.

use std::time::{Duration, Instant};

/// For how long events are recorded after the last one who wanted them: a feed that lost its link finds its place again.
const RECORDED_FOR: Duration = Duration::from_secs(60);

/// Pure: it is told the time, and says what to do.
#[derive(Debug)]
pub(crate) struct Recording {
    /// When they were last wanted; none while they are not recorded.
    wanted_at: Option<Instant>,
}

impl Recording {
    /// A publisher that starts records what it replays, for feeds that come back.
    pub(crate) fn started(now: Instant) -> Recording {
        Recording { wanted_at: Some(now) }
    }

    /// Somebody wants events.
    pub(crate) fn want(&mut self, now: Instant) {
        self.wanted_at = Some(now);
    }

    /// True when recording is to stop now; from then on it is off.
    pub(crate) fn ends(&mut self, now: Instant, wanted: bool) -> bool {
        let Some(wanted_at) = &mut self.wanted_at else { return false };
        if wanted {
            *wanted_at = now;
        }
        let ends = now.saturating_duration_since(*wanted_at) >= RECORDED_FOR;
        if ends {
            self.wanted_at = None;
        }
        ends
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.wanted_at.map(|at| at + RECORDED_FOR)
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
        assert!(!recording.ends(at(59), false));
        recording.want(at(59));
        assert_eq!(recording.next(), Some(at(119)));
        assert!(!recording.ends(at(118), true));
        assert!(!recording.ends(at(177), false));
        assert!(recording.ends(at(178), false), "a minute after the last look that found one");
        assert!(!recording.ends(at(500), false), "once");
        assert_eq!(recording.next(), None);
        recording.want(at(600));
        assert_eq!(recording.next(), Some(at(660)));
    }
}
