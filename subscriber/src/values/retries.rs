//! When durable subscriptions of values are tried again. Pure: time is an argument, the randomness
//! has a seed.
//!
//! Those that fail together wait together: a link that held a thousand subscriptions is followed by
//! one wait, one question to the resolver and one message, not by a thousand. The wait is drawn for
//! each such group and process, so that nobody comes back in step with others.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_transport::{RETRY_WAIT_MAX, STEADY, retry_wait};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The tries of one subscription.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RetryState {
    /// That failed in a row, the loss of a steady link counted as the first.
    attempt: u32,
    alive_since: Option<Duration>,
    dead_since: Option<Duration>,
}

impl RetryState {
    /// It is held.
    pub(crate) fn succeeded(&mut self, now: Duration) {
        self.alive_since = Some(now);
        self.dead_since = None;
    }

    /// A try failed, or the link was lost. Gives since when it is dead, and tries failed in a row.
    pub(crate) fn failed(&mut self, now: Duration) -> (Duration, u32) {
        if let Some(since) = self.alive_since.take()
            && now.saturating_sub(since) >= STEADY
        {
            self.attempt = 0;
        }
        self.attempt = self.attempt.saturating_add(1);
        (*self.dead_since.get_or_insert(now), self.attempt)
    }
}

/// Those that wait for their next try.
#[derive(Debug)]
pub(crate) struct RetryQueue<K> {
    random: StdRng,
    by_deadline: BTreeMap<Duration, Vec<K>>,
}

impl<K> RetryQueue<K> {
    pub(crate) fn new(seed: u64) -> RetryQueue<K> {
        RetryQueue { random: StdRng::seed_from_u64(seed), by_deadline: BTreeMap::new() }
    }

    /// These failed together, each with its number of failed tries: those with as many wait
    /// together.
    pub(crate) fn schedule(&mut self, now: Duration, failed: impl IntoIterator<Item = (u32, K)>) {
        let mut groups: BTreeMap<u32, Vec<K>> = BTreeMap::new();
        for (attempt, key) in failed {
            groups.entry(attempt).or_default().push(key);
        }
        for (attempt, keys) in groups {
            let until = now + retry_wait(attempt, RETRY_WAIT_MAX, self.random.random());
            self.by_deadline.entry(until).or_default().extend(keys);
        }
    }

    /// When somebody is to be tried next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.by_deadline.keys().next().copied()
    }

    /// Takes those whose wait is over.
    pub(crate) fn take_due(&mut self, now: Duration) -> Vec<K> {
        let mut by_deadline = Vec::new();
        while let Some(first) = self.by_deadline.first_entry()
            && *first.key() <= now
        {
            by_deadline.append(&mut first.remove());
        }
        by_deadline
    }
}

#[cfg(test)]
mod tests {
    use longshore_transport::RETRY_STEP;

    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    #[test]
    fn a_thousand_that_fail_together_are_tried_again_together() {
        let mut retries = RetryQueue::new(7);
        retries.schedule(START, (0..1_000).map(|key| (1, key)));
        let at = retries.next_deadline().unwrap();
        assert!(at <= START + RETRY_STEP);
        assert_eq!(retries.take_due(at - Duration::from_nanos(1)), Vec::<i32>::new());
        assert_eq!(retries.take_due(at), (0..1_000).collect::<Vec<_>>());
        assert_eq!(retries.next_deadline(), None);
    }

    #[test]
    fn a_thousand_processes_do_not_come_back_together() {
        let at = |seed| {
            let mut retries = RetryQueue::new(seed);
            retries.schedule(START, [(1, ())]);
            retries.next_deadline().unwrap() - START
        };
        let waits: Vec<Duration> = (0..1_000).map(at).collect();
        for tenth in 0..10 {
            let range = RETRY_STEP / 10 * tenth..RETRY_STEP / 10 * (tenth + 1);
            let within = waits.iter().filter(|wait| range.contains(wait)).count();
            assert!((60..=140).contains(&within), "{within} of 1,000 within {range:?}");
        }
    }

    #[test]
    fn those_that_have_failed_more_often_wait_apart_and_longer() {
        let mut retries = RetryQueue::new(7);
        retries.schedule(START, [(1, "new"), (1_000, "old"), (1, "new too")]);
        assert_eq!(retries.take_due(START + RETRY_STEP), ["new", "new too"]);
        assert_eq!(retries.take_due(START + RETRY_WAIT_MAX), ["old"]);
    }

    #[test]
    fn the_loss_of_a_steady_link_is_the_first_failure_and_that_of_a_short_one_the_next() {
        let mut tries = RetryState::default();
        assert_eq!(tries.failed(START), (START, 1));
        assert_eq!(tries.failed(START + RETRY_STEP), (START, 2), "dead since the first");
        tries.succeeded(START + RETRY_STEP);
        let short = START + RETRY_STEP + STEADY - Duration::from_nanos(1);
        assert_eq!(tries.failed(short), (short, 3));
        tries.succeeded(short);
        assert_eq!(tries.failed(short + STEADY), (short + STEADY, 1));
    }
}
