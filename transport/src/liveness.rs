//! Decides when a link has to send a heartbeat, and when it is dead. Pure: time is an argument.

use std::time::{Duration, Instant};

use longshore_protocol::LinkTiming;

/// The timing rules of one link. It reads no clock; the caller calls
///
/// - [`sent`](Liveness::sent) and [`received`](Liveness::received) for every byte that the socket
///   took or returned,
/// - [`refused`](Liveness::refused) when the socket takes no more of what is queued,
/// - [`poll`](Liveness::poll) no later than [`next_deadline`](Liveness::next_deadline).
///
/// An action is due *at* its deadline, not after it.
#[derive(Clone, Debug)]
pub struct Liveness {
    timing: LinkTiming,
    schedule: Option<HeartbeatSchedule>,
    sent_at: Instant,
    received_at: Instant,
    refused_since: Option<Instant>,
}

/// When the accepting side of many links sends their heartbeats: a tick early, so that those of the
/// diallers are answers ([`Liveness::should_answer`]), and many at a time. Ten thousand links, each
/// with a moment of its own, would wake the process ten thousand times an interval, and twice that
/// for received heartbeats. With ticks it wakes 64 times, each for 156 links.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatSchedule {
    /// The instant from which ticks are counted: one for all links.
    pub origin: Instant,
}

impl HeartbeatSchedule {
    /// Ticks of an interval.
    const TICKS: u32 = 64;

    /// The last tick that is not after `sent_at` plus the interval less a tick.
    fn after(self, sent_at: Instant, interval: Duration) -> Instant {
        let tick = interval / HeartbeatSchedule::TICKS;
        let latest = sent_at + interval - tick;
        let since_origin = latest.checked_duration_since(self.origin).unwrap_or_default();
        let late_by = since_origin.as_nanos().checked_rem(tick.as_nanos()).unwrap_or(0);
        // Less than a tick, which is less than the interval.
        latest - Duration::from_nanos(u64::try_from(late_by).unwrap_or(0))
    }
}

/// What [`Liveness::poll`] requires the caller to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LivenessAction {
    /// Nothing was sent for the heartbeat interval: send one.
    SendHeartbeat,
    /// No byte arrived for the hang timeout: end the link.
    Hung {
        /// Time since the last byte arrived.
        silent_for: Duration,
    },
    /// The socket took no byte for the hang timeout though bytes were queued: end the link.
    SendStalled {
        /// Time since the first refusal.
        stalled_for: Duration,
    },
}

impl Liveness {
    /// A link that began at `now`, which counts as a byte sent and a byte received.
    pub fn new(now: Instant, timing: LinkTiming) -> Liveness {
        Liveness { timing, schedule: None, sent_at: now, received_at: now, refused_since: None }
    }

    /// A link that sends its heartbeats at the ticks of `schedule`, together with other links.
    pub fn on_schedule(now: Instant, timing: LinkTiming, schedule: HeartbeatSchedule) -> Liveness {
        Liveness { schedule: Some(schedule), ..Liveness::new(now, timing) }
    }

    /// Reports that the socket took at least one byte.
    pub fn sent(&mut self, now: Instant) {
        self.sent_at = self.sent_at.max(now);
        self.refused_since = None;
    }

    /// Reports that the socket took none of the queued bytes. The stall counts from the first
    /// refusal since a byte was taken.
    pub fn refused(&mut self, now: Instant) {
        self.refused_since.get_or_insert(now);
    }

    /// Reports that the socket returned at least one byte. An instant before the last known one
    /// changes nothing.
    pub fn received(&mut self, now: Instant) {
        self.received_at = self.received_at.max(now);
    }

    /// Whether to answer a heartbeat that arrived at `now` with one: this side has sent nothing for
    /// half the interval. The answer replaces the heartbeat that would soon be due, and carries the
    /// TCP acknowledgement of the received one.
    pub fn should_answer(&self, now: Instant) -> bool {
        let quiet_for = now.saturating_duration_since(self.sent_at);
        self.refused_since.is_none() && quiet_for >= self.timing.heartbeat / 2
    }

    /// The first instant at which an action is due if nothing happens until then.
    pub fn next_deadline(&self) -> Instant {
        let out = match self.refused_since {
            Some(since) => since + self.timing.hang,
            None => self.heartbeat_at(),
        };
        out.min(self.received_at + self.timing.hang)
    }

    /// The action due at `now`. Deaths come before heartbeats. A heartbeat stays due until
    /// [`sent`](Liveness::sent); none is due while the socket refuses the bytes before it.
    pub fn poll(&self, now: Instant) -> Option<LivenessAction> {
        let silent_for = now.saturating_duration_since(self.received_at);
        if silent_for >= self.timing.hang {
            return Some(LivenessAction::Hung { silent_for });
        }
        match self.refused_since {
            Some(since) => {
                let stalled_for = now.saturating_duration_since(since);
                (stalled_for >= self.timing.hang)
                    .then_some(LivenessAction::SendStalled { stalled_for })
            }
            None => (now >= self.heartbeat_at()).then_some(LivenessAction::SendHeartbeat),
        }
    }

    fn heartbeat_at(&self) -> Instant {
        match self.schedule {
            Some(schedule) => schedule.after(self.sent_at, self.timing.heartbeat),
            None => self.sent_at + self.timing.heartbeat,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_nanos(1);
    const HEARTBEAT: Duration = LinkTiming::WORK.heartbeat;
    const HANG: Duration = LinkTiming::WORK.hang;

    fn begun() -> (Instant, Liveness) {
        let start = Instant::now();
        (start, Liveness::new(start, LinkTiming::WORK))
    }

    #[test]
    fn a_heartbeat_is_due_exactly_when_nothing_was_sent_for_the_interval() {
        let (start, mut link) = begun();
        assert_eq!(link.next_deadline(), start + HEARTBEAT);
        assert_eq!(link.poll(start + HEARTBEAT - TICK), None);
        assert_eq!(link.poll(start + HEARTBEAT), Some(LivenessAction::SendHeartbeat));

        link.sent(start + HEARTBEAT);
        assert_eq!(link.poll(start + HEARTBEAT), None);
        assert_eq!(link.next_deadline(), start + 2 * HEARTBEAT);
    }

    #[test]
    fn receiving_does_not_spare_a_heartbeat() {
        let (start, mut link) = begun();
        link.received(start + HEARTBEAT - TICK);
        assert_eq!(link.poll(start + HEARTBEAT), Some(LivenessAction::SendHeartbeat));
    }

    #[test]
    fn a_silent_side_is_hung_exactly_at_the_hang_timeout_after_its_last_byte() {
        let (start, mut link) = begun();
        let last = start + Duration::from_secs(3);
        link.received(last);
        link.sent(last + HANG - TICK);
        assert_eq!(link.next_deadline(), last + HANG);
        assert_eq!(link.poll(last + HANG - TICK), None);
        assert_eq!(link.poll(last + HANG), Some(LivenessAction::Hung { silent_for: HANG }));
        assert_eq!(link.poll(last + 2 * HANG), Some(LivenessAction::Hung { silent_for: 2 * HANG }));
    }

    #[test]
    fn sending_does_not_keep_a_silent_side_alive() {
        let (start, mut link) = begun();
        for second in 1..10 {
            link.sent(start + Duration::from_secs(second));
        }
        assert_eq!(link.poll(start + HANG), Some(LivenessAction::Hung { silent_for: HANG }));
    }

    #[test]
    fn a_stall_counts_from_the_first_refused_byte() {
        let (start, mut link) = begun();
        let first = start + Duration::from_secs(1);
        link.refused(first);
        link.refused(first + Duration::from_secs(5));
        link.received(first + HANG - TICK);
        assert_eq!(link.next_deadline(), first + HANG);
        assert_eq!(link.poll(first + HANG - TICK), None);
        assert_eq!(
            link.poll(first + HANG),
            Some(LivenessAction::SendStalled { stalled_for: HANG })
        );
    }

    #[test]
    fn one_taken_byte_ends_a_stall() {
        let (start, mut link) = begun();
        link.refused(start);
        link.sent(start + HANG - TICK);
        link.refused(start + HANG);
        link.received(start + HANG);
        assert_eq!(link.poll(start + HANG), None);
        assert_eq!(link.next_deadline(), start + 2 * HANG);
    }

    #[test]
    fn no_heartbeat_is_due_behind_bytes_that_are_stuck() {
        let (start, mut link) = begun();
        link.refused(start + TICK);
        assert_eq!(link.poll(start + HEARTBEAT + TICK), None);
    }

    #[test]
    fn a_heartbeat_is_answered_after_half_an_interval_without_sending() {
        let (start, mut link) = begun();
        assert!(!link.should_answer(start + HEARTBEAT / 2 - TICK));
        assert!(link.should_answer(start + HEARTBEAT / 2));
        link.sent(start + HEARTBEAT / 2);
        assert!(
            !link.should_answer(start + HEARTBEAT / 2),
            "the other side does not answer an answer"
        );
        link.refused(start + HEARTBEAT);
        assert!(!link.should_answer(start + 2 * HEARTBEAT), "bytes that are stuck are before it");
    }

    #[test]
    fn a_late_report_of_an_earlier_byte_changes_nothing() {
        let (start, mut link) = begun();
        link.received(start + Duration::from_secs(5));
        link.received(start + Duration::from_secs(1));
        assert_eq!(
            link.poll(start + Duration::from_secs(5) + HANG - TICK),
            Some(LivenessAction::SendHeartbeat)
        );
    }

    #[test]
    fn scheduled_heartbeats_coincide_a_little_early_and_never_late() {
        let origin = Instant::now();
        let tick = HEARTBEAT / HeartbeatSchedule::TICKS;
        // Sent within one tick of each other: due at the same instant.
        let sent = |after: Duration| {
            let sent_at = origin + 5 * HEARTBEAT + after;
            let link =
                Liveness::on_schedule(sent_at, LinkTiming::WORK, HeartbeatSchedule { origin });
            let due = link.next_deadline();
            assert_eq!(
                (link.poll(due - TICK), link.poll(due)),
                (None, Some(LivenessAction::SendHeartbeat))
            );
            assert!(due <= sent_at + HEARTBEAT - tick);
            assert!(due > sent_at + HEARTBEAT - 2 * tick);
            due
        };
        let first = sent(Duration::ZERO);
        assert_eq!(first, origin + 6 * HEARTBEAT - tick);
        assert_eq!(sent(tick / 2), first);
        assert_eq!(sent(tick - TICK), first);
        assert_eq!(sent(tick), first + tick);
    }

    #[test]
    fn a_schedule_without_ticks_or_before_its_origin_stays_early() {
        let origin = Instant::now() + 10 * HEARTBEAT;
        let start = Instant::now();
        let link = Liveness::on_schedule(start, LinkTiming::WORK, HeartbeatSchedule { origin });
        assert_eq!(link.next_deadline(), start + HEARTBEAT - HEARTBEAT / HeartbeatSchedule::TICKS);
        let timing = LinkTiming { heartbeat: Duration::from_nanos(40), hang: HANG };
        let link = Liveness::on_schedule(start, timing, HeartbeatSchedule { origin: start });
        assert_eq!(link.next_deadline(), start + timing.heartbeat);
    }

    proptest! {
        /// A caller that sleeps until the deadline never sleeps too long and never wakes for
        /// nothing.
        #[test]
        fn something_is_due_at_the_deadline_and_nothing_before(
            events in prop::collection::vec((0u8..3, 0u64..3_000), 0..20),
            on_schedule in any::<bool>(),
        ) {
            let (mut now, mut link) = begun();
            if on_schedule {
                let schedule = HeartbeatSchedule { origin: now };
                link = Liveness::on_schedule(now, LinkTiming::WORK, schedule);
            }
            for (event, wait) in events {
                now += Duration::from_millis(wait);
                match event {
                    0 => link.sent(now),
                    1 => link.received(now),
                    _ => link.refused(now),
                }
            }
            let deadline = link.next_deadline();
            prop_assert!(link.poll(deadline).is_some());
            prop_assert_eq!(link.poll(deadline - TICK), None);
        }
    }
}
