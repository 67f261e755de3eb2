//! Whether events are recorded: they cost every job something, and most of the time no client needs
//! them.

use std::time::{Duration, Instant};

/// How long events are recorded after the last client that needed them: a feed that lost its link
/// resumes from its position.
const KEEP_RECORDING: Duration = Duration::from_secs(60);
/// How long after a start, if no client comes: clients of the run before retry every 2 s.
const RECORD_AFTER_START: Duration = Duration::from_secs(10);

/// Pure: the time is an argument.
#[derive(Debug)]
pub(crate) struct EventRecording {
    /// Recording ends at this time unless a client needs events; none while it is off.
    until: Option<Instant>,
}

impl EventRecording {
    /// A publisher that starts records what it replays, for feeds that resume.
    pub(crate) fn started(now: Instant) -> EventRecording {
        EventRecording { until: Some(now + RECORD_AFTER_START) }
    }

    /// A client needs events.
    pub(crate) fn extend(&mut self, now: Instant) {
        self.until = Some(now + KEEP_RECORDING);
    }

    /// True when recording stops now; from then on it is off.
    pub(crate) fn should_stop(&mut self, now: Instant, needed: bool) -> bool {
        let Some(until) = self.until else { return false };
        if needed {
            self.extend(now);
            return false;
        }
        let should_stop = now >= until;
        if should_stop {
            self.until = None;
        }
        should_stop
    }

    /// When to check again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_recorded_while_needed_and_a_minute_longer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut recording = EventRecording::started(start);
        assert!(!recording.should_stop(at(9), false));
        recording.extend(at(9));
        assert_eq!(recording.next(), Some(at(69)));
        assert!(!recording.should_stop(at(100), true));
        assert!(!recording.should_stop(at(159), false));
        assert!(
            recording.should_stop(at(160), false),
            "a minute after the last check that found a client"
        );
        assert!(!recording.should_stop(at(500), false), "once");
        assert_eq!(recording.next(), None);
        recording.extend(at(600));
        assert_eq!(recording.next(), Some(at(660)));
    }

    #[test]
    fn events_are_recorded_for_ten_seconds_after_a_start() {
        let start = Instant::now();
        let mut recording = EventRecording::started(start);
        assert!(!recording.should_stop(start + Duration::from_secs(9), false));
        assert!(recording.should_stop(start + Duration::from_secs(10), false));
    }
}
