//! Rate limit of progress messages to one publisher: which jobs have unsent progress, and when to
//! send it.

use std::time::Duration;

use longshore_protocol::Token;

/// The shortest time between two progress messages to one publisher. Progress is for people, and a
/// handler that reports every row must slow down neither side.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The jobs with unsent progress. Bounded by the jobs held: each is here once.
#[derive(Debug, Default)]
pub(crate) struct PendingProgress {
    unsent: Vec<Token>,
    last: Option<Duration>,
}

impl PendingProgress {
    /// A job has its first progress since the last message. Returns true if the link must be woken.
    pub(crate) fn reported(&mut self, token: Token) -> bool {
        self.unsent.push(token);
        self.unsent.len() == 1
    }

    /// The link is new: the progress of these jobs is sent again.
    pub(crate) fn resend(&mut self, tokens: Vec<Token>) {
        *self = PendingProgress { unsent: tokens, last: None };
    }

    /// When [`PendingProgress::take_due`] has something.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.unsent.is_empty() {
            return None;
        }
        Some(self.last.map_or(Duration::ZERO, |last| last + PROGRESS_INTERVAL))
    }

    /// Takes the jobs whose progress is to be sent now, sorted: a neighbouring token costs one byte
    /// on the wire.
    pub(crate) fn take_due(&mut self, now: Duration) -> Vec<Token> {
        if self.next_deadline().is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.last = Some(now);
        let mut tokens = std::mem::take(&mut self.unsent);
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn later_progress_is_sent_together_at_an_interval() {
        let mut pending = PendingProgress::default();
        assert!(pending.reported(Token(7)), "the link must be woken");
        assert_eq!(pending.take_due(at(5_000)), [Token(7)]);
        assert_eq!(pending.next_deadline(), None);
        assert!(pending.reported(Token(8)));
        assert!(!pending.reported(Token(7)), "it is already awake");
        assert_eq!(pending.next_deadline(), Some(at(5_100)));
        assert_eq!(pending.take_due(at(5_099)), []);
        assert_eq!(pending.take_due(at(5_100)), [Token(7), Token(8)]);
        assert_eq!(pending.take_due(at(9_000)), []);
    }

    #[test]
    fn a_new_link_sends_known_progress_at_once() {
        let mut pending = PendingProgress::default();
        pending.reported(Token(1));
        pending.take_due(at(1_000));
        pending.reported(Token(1));
        pending.resend(vec![Token(2), Token(1)]);
        assert_eq!(pending.take_due(at(1_001)), [Token(1), Token(2)]);
    }
}
