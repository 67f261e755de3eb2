//! Which jobs of one publisher have said how far they are, and when that is told: at most so often,
//! the newest of each.

use std::time::Duration;

use longshore_protocol::Token;

/// The shortest time between two messages with progress to one publisher: people look at it, and a
/// handler that tells of every row must cost neither side its speed.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The jobs whose progress is to be told. Bounded by the jobs held: each is here once.
#[derive(Debug, Default)]
pub(crate) struct PendingProgress {
    unsent: Vec<Token>,
    last: Option<Duration>,
}

impl PendingProgress {
    /// A job has said how far it is, for the first time since that was last told. True when the
    /// link is to be woken.
    pub(crate) fn reported(&mut self, token: Token) -> bool {
        self.unsent.push(token);
        self.unsent.len() == 1
    }

    /// On a new link, everything that is known is told once more: these jobs have said something.
    pub(crate) fn resend(&mut self, tokens: Vec<Token>) {
        *self = PendingProgress { unsent: tokens, last: None };
    }

    /// When [`PendingProgress::due`] has something.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.unsent.is_empty() {
            return None;
        }
        Some(self.last.map_or(Duration::ZERO, |last| last + PROGRESS_INTERVAL))
    }

    /// Those to be told now, in the order of their tokens: neighbours cost a byte each on the wire.
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
    fn the_first_word_is_told_at_once_and_later_ones_together() {
        let mut pending = PendingProgress::default();
        assert!(pending.reported(Token(7)), "the link is woken");
        assert_eq!(pending.take_due(at(5_000)), [Token(7)]);
        assert_eq!(pending.next_deadline(), None);
        assert!(pending.reported(Token(8)));
        assert!(!pending.reported(Token(7)), "it knows");
        assert_eq!(pending.next_deadline(), Some(at(5_100)));
        assert_eq!(pending.take_due(at(5_099)), []);
        assert_eq!(pending.take_due(at(5_100)), [Token(7), Token(8)]);
        assert_eq!(pending.take_due(at(9_000)), []);
    }

    #[test]
    fn a_new_link_is_told_at_once_what_is_known() {
        let mut pending = PendingProgress::default();
        pending.reported(Token(1));
        pending.take_due(at(1_000));
        pending.reported(Token(1));
        pending.resend(vec![Token(2), Token(1)]);
        assert_eq!(pending.take_due(at(1_001)), [Token(1), Token(2)]);
    }
}
