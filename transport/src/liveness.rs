//! When a link owes the other side a sign of life, and when it is dead. Pure: time is an argument.

use std::time::{Duration, Instant};

use longshore_protocol::LinkTiming;

/// The rules of time of one link. Tell it what happened, ask it what is due; it never looks at a
/// clock.
///
/// - [`sent`](Liveness::sent) and [`received`](Liveness::received) for every byte that the socket
///   took or gave,
/// - [`refused`](Liveness::refused) when the socket takes no more of what is to be sent,
/// - [`next_deadline`](Liveness::next_deadline) for when to [`poll`](Liveness::poll) at the latest.
///
/// What is due is due *at* its deadline, not after it.
#[derive(Clone, Debug)]
pub struct Liveness {
    timing: LinkTiming,
    beat: Option<Beat>,
    sent_at: Instant,
    received_at: Instant,
    refused_since: Option<Instant>,
}

/// When the side that has accepted many links sends their heartbeats: a tick early, so that those
/// of the diallers are answers ([`Liveness::answers`]), and many at a time. Ten thousand links with
/// a moment each of their own would wake the process ten thousand times for each interval, and
/// twice that for what comes; so it is 64 times, each for 156 of them.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// The moment that the ticks are counted from: one for all links.
    pub origin: Instant,
}

impl Beat {
    /// Of an interval.
    const TICKS: u32 = 64;

    /// The last tick at which nothing will have been sent for the interval less a tick since
    /// `sent_at`.
    fn after(self, sent_at: Instant, interval: Duration) -> Instant {
        let tick = interval / Beat::TICKS;
        let latest = sent_at + interval - tick;
        let since_origin = latest.checked_duration_since(self.origin).unwrap_or_default();
        let late_by = since_origin.as_nanos().checked_rem(tick.as_nanos()).unwrap_or(0);
        // Less than a tick, which is less than the interval.
        latest - Duration::from_nanos(u64::try_from(late_by).unwrap_or(0))
    }
}

/// What [`Liveness::poll`] finds due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Nothing was sent for the heartbeat interval: send one.
    SendHeartbeat,
    /// No byte came for the hang timeout: end the link.
    Hung {
        /// How long ago the last byte came.
        silent_for: Duration,
    },
    /// The socket took no byte for the hang timeout though there was something to send: end the
    /// link.
    SendStalled {
        /// How long ago it refused first.
        stalled_for: Duration,
    },
}

impl Liveness {
    /// A link that began at `now`, which counts as a byte sent and a byte received.
    pub fn new(now: Instant, timing: LinkTiming) -> Liveness {
        Liveness { timing, beat: None, sent_at: now, received_at: now, refused_since: None }
    }

    /// The same, with heartbeats in time with those of other links.
    pub fn in_time(now: Instant, timing: LinkTiming, beat: Beat) -> Liveness {
        Liveness { beat: Some(beat), ..Liveness::new(now, timing) }
    }

    /// The socket took at least one byte.
    pub fn sent(&mut self, now: Instant) {
        self.sent_at = self.sent_at.max(now);
        self.refused_since = None;
    }

    /// The socket took nothing of what is to be sent. The stall counts from the first refusal since
    /// a byte was taken.
    pub fn refused(&mut self, now: Instant) {
        self.refused_since.get_or_insert(now);
    }

    /// The socket gave at least one byte. Word of an earlier one than is known changes nothing.
    pub fn received(&mut self, now: Instant) {
        self.received_at = self.received_at.max(now);
    }

    /// Whether a heartbeat that came at `now` is to be answered with one: this side has sent
    /// nothing for half the interval. The answer takes the place of the heartbeat that would be due
    /// soon, and carries the acknowledgement of the one that came.
    pub fn answers(&self, now: Instant) -> bool {
        let quiet_for = now.saturating_duration_since(self.sent_at);
        self.refused_since.is_none() && quiet_for >= self.timing.heartbeat / 2
    }

    /// The first moment at which something is due if nothing happens until then.
    pub fn next_deadline(&self) -> Instant {
        let out = match self.refused_since {
            Some(since) => since + self.timing.hang,
            None => self.heartbeat_at(),
        };
        out.min(self.received_at + self.timing.hang)
    }

    /// What is due at `now`. Deaths come before heartbeats; a heartbeat stays due until
    /// [`sent`](Liveness::sent), and none is due while the socket refuses what is before it.
    pub fn poll(&self, now: Instant) -> Option<Due> {
        let silent_for = now.saturating_duration_since(self.received_at);
        if silent_for >= self.timing.hang {
            return Some(Due::Hung { silent_for });
        }
        match self.refused_since {
            Some(since) => {
                let stalled_for = now.saturating_duration_since(since);
                (stalled_for >= self.timing.hang).then_some(Due::SendStalled { stalled_for })
            }
            None => (now >= self.heartbeat_at()).then_some(Due::SendHeartbeat),
        }
    }

    fn heartbeat_at(&self) -> Instant {
        match self.beat {
            Some(beat) => beat.after(self.sent_at, self.timing.heartbeat),
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
        assert_eq!(link.poll(start + HEARTBEAT), Some(Due::SendHeartbeat));

        link.sent(start + HEARTBEAT);
        assert_eq!(link.poll(start + HEARTBEAT), None);
        assert_eq!(link.next_deadline(), start + 2 * HEARTBEAT);
    }

    #[test]
    fn receiving_does_not_spare_a_heartbeat() {
        let (start, mut link) = begun();
        link.received(start + HEARTBEAT - TICK);
        assert_eq!(link.poll(start + HEARTBEAT), Some(Due::SendHeartbeat));
    }

    #[test]
    fn a_silent_side_is_hung_exactly_at_the_hang_timeout_after_its_last_byte() {
        let (start, mut link) = begun();
        let last = start + Duration::from_secs(3);
        link.received(last);
        link.sent(last + HANG - TICK);
        assert_eq!(link.next_deadline(), last + HANG);
        assert_eq!(link.poll(last + HANG - TICK), None);
        assert_eq!(link.poll(last + HANG), Some(Due::Hung { silent_for: HANG }));
        assert_eq!(link.poll(last + 2 * HANG), Some(Due::Hung { silent_for: 2 * HANG }));
    }

    #[test]
    fn sending_does_not_keep_a_silent_side_alive() {
        let (start, mut link) = begun();
        for second in 1..10 {
            link.sent(start + Duration::from_secs(second));
        }
        assert_eq!(link.poll(start + HANG), Some(Due::Hung { silent_for: HANG }));
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
        assert_eq!(link.poll(first + HANG), Some(Due::SendStalled { stalled_for: HANG }));
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
    fn a_heartbeat_is_answered_if_nothing_was_sent_for_half_the_interval() {
        let (start, mut link) = begun();
        assert!(!link.answers(start + HEARTBEAT / 2 - TICK));
        assert!(link.answers(start + HEARTBEAT / 2));
        link.sent(start + HEARTBEAT / 2);
        assert!(!link.answers(start + HEARTBEAT / 2), "an answer is not answered");
        link.refused(start + HEARTBEAT);
        assert!(!link.answers(start + 2 * HEARTBEAT), "bytes that are stuck are before it");
    }

    #[test]
    fn late_word_of_an_earlier_byte_changes_nothing() {
        let (start, mut link) = begun();
        link.received(start + Duration::from_secs(5));
        link.received(start + Duration::from_secs(1));
        assert_eq!(
            link.poll(start + Duration::from_secs(5) + HANG - TICK),
            Some(Due::SendHeartbeat)
        );
    }

    #[test]
    fn beats_in_time_come_together_a_little_early_and_never_late() {
        let origin = Instant::now();
        let tick = HEARTBEAT / Beat::TICKS;
        // Sent within one tick of each other, at any moment of it: due at the same moment.
        let sent = |after: Duration| {
            let sent_at = origin + 5 * HEARTBEAT + after;
            let link = Liveness::in_time(sent_at, LinkTiming::WORK, Beat { origin });
            let due = link.next_deadline();
            assert_eq!((link.poll(due - TICK), link.poll(due)), (None, Some(Due::SendHeartbeat)));
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
    fn a_beat_without_ticks_or_before_them_is_early_all_the_same() {
        let origin = Instant::now() + 10 * HEARTBEAT;
        let start = Instant::now();
        let link = Liveness::in_time(start, LinkTiming::WORK, Beat { origin });
        assert_eq!(link.next_deadline(), start + HEARTBEAT - HEARTBEAT / Beat::TICKS);
        let timing = LinkTiming { heartbeat: Duration::from_nanos(40), hang: HANG };
        let link = Liveness::in_time(start, timing, Beat { origin: start });
        assert_eq!(link.next_deadline(), start + timing.heartbeat);
    }

    proptest! {
        /// Whoever sleeps until the deadline never sleeps too long and never wakes for nothing.
        #[test]
        fn something_is_due_at_the_deadline_and_nothing_before(
            events in prop::collection::vec((0u8..3, 0u64..3_000), 0..20),
            in_time in any::<bool>(),
        ) {
            let (mut now, mut link) = begun();
            if in_time {
                link = Liveness::in_time(now, LinkTiming::WORK, Beat { origin: now });
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
