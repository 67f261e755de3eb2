//! Which jobs of one publisher have said how far they are, and when that is told: at most so often,
//! the newest of each.

use std::time::Duration;

use longshore_protocol::Token;

/// The shortest time between two messages with progress to one publisher: people look at it, and a
/// handler that tells of every row must cost neither side its speed.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The jobs whose progress is to be told. Bounded by the jobs held: each is here once.
#[derive(Debug, Default)]
pub(crate) struct Progresses {
    untold: Vec<Token>,
    last: Option<Duration>,
}

impl Progresses {
    /// A job has said how far it is, for the first time since that was last told. True when the
    /// link is to be woken.
    pub(crate) fn said(&mut self, token: Token) -> bool {
        self.untold.push(token);
        self.untold.len() == 1
    }

    /// On a new link, everything that is known is told once more: these jobs have said something.
    pub(crate) fn again(&mut self, tokens: Vec<Token>) {
        *self = Progresses { untold: tokens, last: None };
    }

    /// When [`Progresses::due`] has something.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        if self.untold.is_empty() {
            return None;
        }
        Some(self.last.map_or(Duration::ZERO, |last| last + PROGRESS_EVERY))
    }

    /// Those to be told now, in the order of their tokens: neighbours cost a byte each on the wire.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<Token> {
        if self.next_due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.last = Some(now);
        let mut tokens = std::mem::take(&mut self.untold);
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
        let mut progresses = Progresses::default();
        assert!(progresses.said(Token(7)), "the link is woken");
        assert_eq!(progresses.due(at(5_000)), [Token(7)]);
        assert_eq!(progresses.next_due(), None);
        assert!(progresses.said(Token(8)));
        assert!(!progresses.said(Token(7)), "it knows");
        assert_eq!(progresses.next_due(), Some(at(5_100)));
        assert_eq!(progresses.due(at(5_099)), []);
        assert_eq!(progresses.due(at(5_100)), [Token(7), Token(8)]);
        assert_eq!(progresses.due(at(9_000)), []);
    }

    #[test]
    fn a_new_link_is_told_at_once_what_is_known() {
        let mut progresses = Progresses::default();
        progresses.said(Token(1));
        progresses.due(at(1_000));
        progresses.said(Token(1));
        progresses.again(vec![Token(2), Token(1)]);
        assert_eq!(progresses.due(at(1_001)), [Token(1), Token(2)]);
    }
}
