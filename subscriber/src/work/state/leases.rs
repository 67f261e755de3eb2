//! The leases of one publisher's jobs: when each is renewed, and when it ends by the worker's
//! clock.
//!
//! A renewed lease counts from when the renewal was *sent*: the publisher's own clock started
//! later, so the worker stops first. A new lease counts from its arrival, which is later than at
//! the publisher; its first renewal corrects that.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use longshore_protocol::Token;

/// A lease is renewed when this fraction of it has passed.
const RENEW_DIVISOR: u32 = 3;
/// Renewals due within this fraction of the lease are sent together.
const BATCH_DIVISOR: u32 = 12;

/// The leases of one publisher. `J` is what the session has of each job.
#[derive(Debug)]
pub(crate) struct Leases<J> {
    by_token: HashMap<Token, Lease<J>>,
    connected: bool,
    /// No lease is due before this time. May be too early after a removal.
    next_deadline: Option<Duration>,
    /// Renewals without an answer, in the order of sending. Cleared with the link.
    renewals: VecDeque<(Duration, Vec<Token>)>,
}

/// One lease.
#[derive(Debug)]
pub(crate) struct Lease<J> {
    length: Duration,
    ends: Duration,
    renew_at: Duration,
    /// When the attempt began: from then on its publisher is informed, or is about to be.
    pub(crate) began: Option<Duration>,
    /// What the session has of the job.
    pub(crate) job: J,
}

impl<J> Lease<J> {
    /// When the lease ends.
    pub(crate) fn ends(&self) -> Duration {
        self.ends
    }
}

/// Leases that are due.
#[derive(Debug)]
pub(crate) struct DueLeases<J> {
    /// To renew now.
    pub(crate) renew: Vec<Token>,
    /// Ended: they were not renewed in time.
    pub(crate) lost: Vec<(Token, J)>,
}

impl<J> Default for Leases<J> {
    fn default() -> Leases<J> {
        Leases {
            by_token: HashMap::new(),
            connected: false,
            next_deadline: None,
            renewals: VecDeque::new(),
        }
    }
}

impl<J> Leases<J> {
    /// Adds the lease of a delivered job.
    pub(crate) fn insert(&mut self, now: Duration, token: Token, length: Duration, job: J) {
        let (ends, renew_at) = (now + length, now + length / RENEW_DIVISOR);
        self.by_token.insert(token, Lease { length, ends, renew_at, began: None, job });
        self.schedule(if self.connected { renew_at } else { ends });
    }

    /// Adds a lease that is to be renewed at once: its remaining time is unknown.
    pub(crate) fn insert_due(&mut self, now: Duration, token: Token, length: Duration, job: J) {
        self.insert(now, token, length, job);
        if let Some(lease) = self.by_token.get_mut(&token) {
            lease.renew_at = now;
        }
        self.schedule(now);
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        self.by_token.contains_key(&token)
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Lease<J>> {
        self.by_token.get_mut(&token)
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Lease<J>> {
        self.by_token.remove(&token)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &Lease<J>)> {
        self.by_token.iter().map(|(token, lease)| (*token, lease))
    }

    /// The running attempts and their durations in milliseconds, ordered by token.
    pub(crate) fn running_attempts(&self, now: Duration) -> Vec<(Token, u64)> {
        let ran = |(token, lease): (Token, &Lease<J>)| {
            let ran = now.saturating_sub(lease.began?).as_millis();
            Some((token, u64::try_from(ran).unwrap_or(u64::MAX)))
        };
        let mut running_attempts: Vec<(Token, u64)> = self.iter().filter_map(ran).collect();
        running_attempts.sort_unstable();
        running_attempts
    }

    /// Takes the leases of the jobs that are chosen.
    pub(crate) fn take_if(
        &mut self,
        is_chosen: impl Fn(&J) -> bool,
    ) -> impl Iterator<Item = (Token, J)> {
        let taken = self.by_token.extract_if(move |_, lease| is_chosen(&lease.job));
        taken.map(|(token, lease)| (token, lease.job))
    }

    /// The link is attached again: renews everything at once, because the remaining time at the
    /// publisher is unknown.
    pub(crate) fn connected(&mut self, now: Duration) {
        self.connected = true;
        self.by_token.values_mut().for_each(|lease| lease.renew_at = now);
        self.next_deadline = if self.by_token.is_empty() { None } else { Some(now) };
    }

    /// The link is dead: leases run on without renewals.
    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.renewals.clear();
        self.next_deadline = self.by_token.values().map(|lease| lease.ends).min();
    }

    /// The earliest time at which [`Leases::take_due`] may return something.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline
    }

    /// Takes what is due.
    pub(crate) fn take_due(&mut self, now: Duration) -> DueLeases<J> {
        let mut due = DueLeases { renew: Vec::new(), lost: Vec::new() };
        if self.next_deadline.is_none_or(|next| next > now) {
            return due;
        }
        for (token, lease) in self.by_token.extract_if(|_, lease| lease.ends <= now) {
            due.lost.push((token, lease.job));
        }
        let mut next: Option<Duration> = None;
        for (token, lease) in &mut self.by_token {
            if self.connected && lease.renew_at <= now + lease.length / BATCH_DIVISOR {
                lease.renew_at = now + lease.length / RENEW_DIVISOR;
                due.renew.push(*token);
            }
            let at = if self.connected { lease.renew_at.min(lease.ends) } else { lease.ends };
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        self.next_deadline = next;
        if !due.renew.is_empty() {
            // Sorted: a neighbouring token costs one byte on the wire.
            due.renew.sort_unstable();
            self.renewals.push_back((now, due.renew.clone()));
        }
        due
    }

    /// Handles the answer to the oldest renewal: leases that are not stale are extended to their
    /// full length from the time of sending, and passed to `extended`. Returns the stale ones.
    pub(crate) fn renewed(
        &mut self,
        stale: &[Token],
        mut extended: impl FnMut(&J, Duration),
    ) -> Vec<(Token, J)> {
        let lost = self.revoke(stale);
        let Some((sent, tokens)) = self.renewals.pop_front() else { return lost };
        for token in tokens {
            if let Some(lease) = self.by_token.get_mut(&token) {
                lease.ends = lease.ends.max(sent + lease.length);
                extended(&lease.job, lease.ends);
            }
        }
        lost
    }

    /// Removes leases that the publisher no longer recognizes.
    pub(crate) fn revoke(&mut self, tokens: &[Token]) -> Vec<(Token, J)> {
        let taken = |token: &Token| self.by_token.remove(token).map(|lease| (*token, lease.job));
        tokens.iter().filter_map(taken).collect()
    }

    fn schedule(&mut self, at: Duration) {
        self.next_deadline = Some(self.next_deadline.map_or(at, |next| next.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn leases() -> Leases<&'static str> {
        let mut leases = Leases::default();
        leases.connected(at(0));
        leases
    }

    #[test]
    fn a_lease_is_renewed_after_exactly_a_third() {
        let mut leases = leases();
        leases.insert(at(100), Token(1), LEASE, "a");
        assert_eq!(leases.next_deadline(), Some(at(110)));
        assert!(leases.take_due(at(110) - Duration::from_nanos(1)).renew.is_empty());
        assert_eq!(leases.take_due(at(110)).renew, [Token(1)]);
        assert_eq!(leases.next_deadline(), Some(at(120)));
    }

    #[test]
    fn leases_due_close_together_share_one_renewal() {
        let mut leases = leases();
        for n in 0..5 {
            leases.insert(at(100 + n), Token(n), LEASE, "a");
        }
        assert_eq!(leases.take_due(at(110)).renew, [Token(0), Token(1), Token(2)]);
        assert_eq!(leases.next_deadline(), Some(at(113)));
    }

    #[test]
    fn an_answered_renewal_counts_from_its_sending() {
        let mut leases = leases();
        leases.insert(at(0), Token(1), LEASE, "a");
        leases.take_due(at(10));
        let mut extended_leases = Vec::new();
        assert!(
            leases.renewed(&[], |signal, ends| extended_leases.push((*signal, ends))).is_empty()
        );
        assert_eq!(extended_leases, [("a", at(40))]);
        assert!(leases.take_due(at(39)).lost.is_empty());
    }

    #[test]
    fn a_lease_without_answered_renewals_ends() {
        let mut leases = leases();
        leases.insert(at(0), Token(1), LEASE, "a");
        assert_eq!(leases.take_due(at(10)).renew, [Token(1)]);
        assert_eq!(leases.take_due(at(20)).renew, [Token(1)]);
        assert!(leases.take_due(at(30) - Duration::from_nanos(1)).lost.is_empty());
        assert_eq!(leases.take_due(at(30)).lost, [(Token(1), "a")]);
        assert_eq!(leases.len(), 0);
    }

    #[test]
    fn a_stale_answer_ends_the_lease_at_once() {
        let mut leases = leases();
        leases.insert(at(0), Token(1), LEASE, "a");
        leases.insert(at(0), Token(2), LEASE, "b");
        leases.take_due(at(10));
        assert_eq!(leases.renewed(&[Token(1)], |_, _| {}), [(Token(1), "a")]);
        assert!(leases.get_mut(Token(2)).is_some());
    }

    #[test]
    fn answers_match_renewals_in_the_order_of_sending() {
        let mut leases = leases();
        leases.insert(at(0), Token(1), LEASE, "a");
        leases.take_due(at(10));
        leases.take_due(at(20));
        leases.renewed(&[], |_, ends| assert_eq!(ends, at(40)));
        leases.renewed(&[], |_, ends| assert_eq!(ends, at(50)));
    }

    #[test]
    fn all_leases_are_renewed_after_a_reconnect() {
        let mut leases = leases();
        leases.insert(at(0), Token(1), LEASE, "a");
        leases.disconnected();
        assert_eq!(leases.next_deadline(), Some(at(30)));
        assert!(leases.take_due(at(15)).renew.is_empty());
        leases.connected(at(16));
        assert_eq!(leases.take_due(at(16)).renew, [Token(1)]);
    }

    #[test]
    fn running_attempts_are_reported_with_their_durations() {
        let mut leases = leases();
        for token in [3, 1, 2] {
            leases.insert(at(0), Token(token), LEASE, "a");
        }
        leases.get_mut(Token(3)).unwrap().began = Some(at(1));
        leases.get_mut(Token(1)).unwrap().began = Some(at(4));
        leases.disconnected();
        leases.connected(at(9));
        assert_eq!(leases.running_attempts(at(10)), [(Token(1), 6_000), (Token(3), 9_000)]);
    }

    #[test]
    fn answers_on_a_new_link_match_only_its_renewals() {
        let mut leases = leases();
        leases.insert(at(0), Token(1), LEASE, "a");
        leases.take_due(at(10));
        leases.disconnected();
        leases.connected(at(12));
        leases.take_due(at(12));
        leases.renewed(&[], |_, ends| assert_eq!(ends, at(42)));
    }
}
