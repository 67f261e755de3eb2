//! When durable subscriptions are retried. Pure: time is an argument, and the randomness has a
//! seed.
//!
//! Subscriptions that fail together are retried together: after the loss of a link with a thousand
//! subscriptions there is one wait, one resolver request and one message. Each process draws a
//! random wait for each group, so that processes do not retry in step.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_transport::{RETRY_WAIT_MAX, STABLE_AFTER, retry_wait};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The retry state of one subscription.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RetryState {
    /// Consecutive failed attempts. The loss of a steady link counts as the first.
    attempt: u32,
    alive_since: Option<Duration>,
    dead_since: Option<Duration>,
}

impl RetryState {
    /// The subscription is alive.
    pub(crate) fn succeeded(&mut self, now: Duration) {
        self.alive_since = Some(now);
        self.dead_since = None;
    }

    /// An attempt failed, or the link was lost. Returns since when the subscription is dead, and
    /// the number of consecutive failures.
    pub(crate) fn failed(&mut self, now: Duration) -> (Duration, u32) {
        if let Some(since) = self.alive_since.take()
            && now.saturating_sub(since) >= STABLE_AFTER
        {
            self.attempt = 0;
        }
        self.attempt = self.attempt.saturating_add(1);
        (*self.dead_since.get_or_insert(now), self.attempt)
    }
}

/// Subscriptions that wait for their next attempt, by deadline.
#[derive(Debug)]
pub(crate) struct RetryQueue<K> {
    random: StdRng,
    by_deadline: BTreeMap<Duration, Vec<K>>,
}

impl<K> RetryQueue<K> {
    pub(crate) fn new(seed: u64) -> RetryQueue<K> {
        RetryQueue { random: StdRng::seed_from_u64(seed), by_deadline: BTreeMap::new() }
    }

    /// Schedules subscriptions that failed together. Those with the same number of failures share
    /// one deadline.
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

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.by_deadline.keys().next().copied()
    }

    /// Takes the subscriptions whose deadline has passed.
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
    fn subscriptions_that_fail_together_are_retried_together() {
        let mut retries = RetryQueue::new(7);
        retries.schedule(START, (0..1_000).map(|key| (1, key)));
        let at = retries.next_deadline().unwrap();
        assert!(at <= START + RETRY_STEP);
        assert_eq!(retries.take_due(at - Duration::from_nanos(1)), Vec::<i32>::new());
        assert_eq!(retries.take_due(at), (0..1_000).collect::<Vec<_>>());
        assert_eq!(retries.next_deadline(), None);
    }

    #[test]
    fn a_thousand_processes_do_not_retry_together() {
        let at = |seed| {
            let mut retries = RetryQueue::new(seed);
            retries.schedule(START, [(1, ())]);
            retries.next_deadline().unwrap() - START
        };
        let waits: Vec<Duration> = (0..1_000).map(at).collect();
        for tenth in 0..10 {
            let range = RETRY_STEP / 10 * tenth..RETRY_STEP / 10 * (tenth + 1);
            let within = waits.iter().filter(|wait| range.contains(*wait)).count();
            assert!((60..=140).contains(&within), "{within} of 1,000 within {range:?}");
        }
    }

    #[test]
    fn subscriptions_with_more_failures_wait_apart_and_longer() {
        let mut retries = RetryQueue::new(7);
        retries.schedule(START, [(1, "new"), (1_000, "old"), (1, "new too")]);
        assert_eq!(retries.take_due(START + RETRY_STEP), ["new", "new too"]);
        assert_eq!(retries.take_due(START + RETRY_WAIT_MAX), ["old"]);
    }

    #[test]
    fn loss_of_a_steady_link_resets_the_failure_count() {
        let mut tries = RetryState::default();
        assert_eq!(tries.failed(START), (START, 1));
        assert_eq!(tries.failed(START + RETRY_STEP), (START, 2), "dead since the first");
        tries.succeeded(START + RETRY_STEP);
        let short = START + RETRY_STEP + STABLE_AFTER - Duration::from_nanos(1);
        assert_eq!(tries.failed(short), (short, 3));
        tries.succeeded(short);
        assert_eq!(tries.failed(short + STABLE_AFTER), (short + STABLE_AFTER, 1));
    }
}
