//! When a link owes the other side a sign of life, and when it is dead. Pure: time is an argument.

use std::time::{Duration, Instant};

use longshore_protocol::LinkTiming;

/// The rules of time of one link. Tell it what happened, ask it what is due; it never looks at a clock.
///
/// - [`sent`](Liveness::sent) and [`received`](Liveness::received) for every byte that the socket took or gave,
/// - [`refused`](Liveness::refused) when the socket takes no more of what is to be sent,
/// - [`next_deadline`](Liveness::next_deadline) for when to [`poll`](Liveness::poll) at the latest.
///
/// What is due is due *at* its deadline, not after it.
#[derive(Clone, Debug)]
pub struct Liveness {
    timing: LinkTiming,
    sent_at: Instant,
    received_at: Instant,
    refused_since: Option<Instant>,
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
    /// The socket took no byte for the hang timeout though there was something to send: end the link.
    SendStalled {
        /// How long ago it refused first.
        stalled_for: Duration,
    },
}

impl Liveness {
    /// A link that began at `now`, which counts as a byte sent and a byte received.
    pub fn new(now: Instant, timing: LinkTiming) -> Liveness {
        Liveness { timing, sent_at: now, received_at: now, refused_since: None }
    }

    /// The socket took at least one byte.
    pub fn sent(&mut self, now: Instant) {
        self.sent_at = self.sent_at.max(now);
        self.refused_since = None;
    }

    /// The socket took nothing of what is to be sent. The stall counts from the first refusal since a byte was taken.
    pub fn refused(&mut self, now: Instant) {
        self.refused_since.get_or_insert(now);
    }

    /// The socket gave at least one byte. Word of an earlier one than is known changes nothing.
    pub fn received(&mut self, now: Instant) {
        self.received_at = self.received_at.max(now);
    }

    /// The first moment at which something is due if nothing happens until then.
    pub fn next_deadline(&self) -> Instant {
        let out = match self.refused_since {
            Some(since) => since + self.timing.hang,
            None => self.sent_at + self.timing.heartbeat,
        };
        out.min(self.received_at + self.timing.hang)
    }

    /// What is due at `now`. Deaths come before heartbeats; a heartbeat stays due until [`sent`](Liveness::sent), and
    /// none is due while the socket refuses what is before it.
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
            None => {
                let quiet_for = now.saturating_duration_since(self.sent_at);
                (quiet_for >= self.timing.heartbeat).then_some(Due::SendHeartbeat)
            }
        }
    }
}
