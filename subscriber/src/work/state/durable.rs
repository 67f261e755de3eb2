//! At which publishers a worker subscribes, and when a lost link is retried.
//!
//! A worker subscribes at every publisher of the watched set, at new ones at once. It forgets a
//! publisher only when its link is dead, the worker holds none of its jobs, and a complete
//! set lacks it: a replica that does not answer, or has incomplete data, closes no link.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::limits::PUBLISHERS_PER_PATH_MAX;
use longshore_protocol::{PublisherId, PublisherInfo};
use longshore_transport::{RETRY_WAIT_BUSY_MAX, RETRY_WAIT_MAX, STABLE_AFTER, retry_wait};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::work::state::credits::{CreditMessage, Credits, SubscriptionBound, SubscriptionKey};

/// A publisher that has restarted is retried within this time, at a random moment: all its workers
/// receive the change at once.
const RESTART_RETRY_SPREAD: Duration = Duration::from_secs(1);

/// An event of the subscription.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum DurableEvent {
    /// A replica's answer: these publishers have matching queues, or defaults that could.
    Watched { complete: bool, publishers: Vec<PublisherInfo> },
    /// The link is attached and subscribed.
    Attached(PublisherId),
    /// An attempt failed.
    AttemptFailed { publisher: PublisherId, reason: String, busy: bool },
    /// The link is dead. `busy` if leases are held or settles are unanswered there.
    LinkLost { publisher: PublisherId, reason: String, busy: bool },
    /// Jobs arrived.
    Delivered { at: SubscriptionKey, jobs: u32 },
    /// Jobs are no longer held.
    Freed { at: SubscriptionKey, jobs: u32 },
    /// The answer to a recall.
    Returned { at: SubscriptionKey, credits: u32 },
    /// The publisher has jobs and no credit.
    JobsWaiting { at: SubscriptionKey, jobs: u64 },
    /// A grant was withdrawn before it was sent.
    GrantWithdrawn { at: SubscriptionKey, credits: u32 },
    /// An operator requested quiet, or its end.
    Quiet(bool),
    /// No more jobs are requested. Publishers with unanswered settles are still retried.
    Drain,
    /// Time has passed.
    Tick,
}

/// An action for the caller.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Action {
    /// Dial, attach and subscribe; answered by `Attached` or `AttemptFailed`.
    Connect(PublisherInfo),
    /// Grant credits.
    Grant { at: SubscriptionKey, credits: u32 },
    /// Recall credits.
    Recall { at: SubscriptionKey, credits: u32 },
    /// Unsubscribe: no more jobs are requested.
    Unsubscribe(PublisherId),
    /// The publisher was forgotten.
    Forget(PublisherId),
}

/// The state of the subscription at a publisher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherState {
    /// The publisher's id.
    pub id: PublisherId,
    /// The publisher's name.
    pub name: String,
    /// The state of the link.
    pub status: SubscriptionStatus,
    /// Jobs that the publisher may push.
    pub credits: u32,
    /// Jobs of this publisher that the worker holds.
    pub jobs_held: u32,
}

/// The state of a link to a publisher. Times count from the worker's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscriptionStatus {
    /// The first attempt is in progress.
    Pending,
    /// The worker is subscribed.
    Alive {
        /// Since this time.
        since: Duration,
    },
    /// The link is lost, and is being retried.
    Dead {
        /// The last error.
        reason: String,
        /// Since this time.
        since: Duration,
        /// Consecutive failed attempts. The loss of the link counts as the first.
        attempt: u32,
    },
}

/// The state machine: takes events with their time, and returns actions.
#[derive(Debug)]
pub(crate) struct ReconnectingSubscription {
    random: StdRng,
    draining: bool,
    credits: Credits,
    messages: Vec<CreditMessage>,
    publishers: BTreeMap<PublisherId, PublisherEntry>,
    /// Counts changes of any publisher's state.
    revision: u64,
    /// Why no publisher had a link, at the first moment when that was so for all that were found.
    all_lost: Option<String>,
    /// Publishers beyond the limit were logged.
    warned_of_limit: bool,
}

#[derive(Debug)]
struct PublisherEntry {
    info: PublisherInfo,
    /// False once a complete set lacked it.
    listed: bool,
    connection: ConnectionState,
    /// Consecutive failed attempts.
    attempt: u32,
    /// The last error, and the time of the first one.
    failure: Option<(String, Duration)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum ConnectionState {
    Connecting,
    Alive { since: Duration },
    RetryAt { until: Duration, busy: bool },
}

impl ReconnectingSubscription {
    pub(crate) fn new(
        bound: u32,
        subscriptions: Vec<SubscriptionBound>,
        seed: u64,
    ) -> ReconnectingSubscription {
        ReconnectingSubscription {
            random: StdRng::seed_from_u64(seed),
            draining: false,
            credits: Credits::new(bound, subscriptions),
            messages: Vec::new(),
            publishers: BTreeMap::new(),
            revision: 0,
            all_lost: None,
            warned_of_limit: false,
        }
    }

    /// Handles an event at `now`, and appends the resulting actions.
    pub(crate) fn step(&mut self, now: Duration, event: DurableEvent, actions: &mut Vec<Action>) {
        match event {
            DurableEvent::Watched { complete, publishers } => {
                self.watched(now, complete, publishers, actions)
            }
            DurableEvent::Attached(publisher) => self.attached(now, publisher),
            DurableEvent::AttemptFailed { publisher, reason, busy }
            | DurableEvent::LinkLost { publisher, reason, busy } => {
                self.lost(now, publisher, reason, busy, actions);
            }
            DurableEvent::Delivered { at, jobs } => self.credits.delivered(at, jobs),
            DurableEvent::Freed { at, jobs } => {
                self.credits.freed(at, jobs, &mut self.messages);
            }
            DurableEvent::Returned { at, credits } => {
                self.credits.returned(at, credits, &mut self.messages);
            }
            DurableEvent::JobsWaiting { at, jobs } => {
                self.credits.waiting(at, jobs, &mut self.messages);
            }
            DurableEvent::GrantWithdrawn { at, credits } => {
                self.credits.grant_withdrawn(at, credits)
            }
            DurableEvent::Quiet(quiet) => self.credits.set_quiet(quiet, &mut self.messages),
            DurableEvent::Drain => self.drain(actions),
            DurableEvent::Tick => {}
        }
        self.retry_due(now, actions);
        actions.extend(self.messages.drain(..).map(|one| match one {
            CreditMessage::Grant(at, credits) => Action::Grant { at, credits },
            CreditMessage::Recall(at, credits) => Action::Recall { at, credits },
        }));
    }

    /// The time of the next useful `Tick`.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let until = |entry: &PublisherEntry| match entry.connection {
            ConnectionState::RetryAt { until, .. } => Some(until),
            _ => None,
        };
        self.publishers.values().filter_map(until).min()
    }

    /// Changes with any publisher's state.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn states(&self) -> Vec<PublisherState> {
        let state = |(id, entry): (&PublisherId, &PublisherEntry)| {
            let (credits, jobs_held) = self.credits.of_publisher(id);
            PublisherState {
                id: *id,
                name: entry.info.name.clone(),
                status: entry.status(),
                credits,
                jobs_held,
            }
        };
        self.publishers.iter().map(state).collect()
    }

    /// Why none of the publishers that were found had a link any more. Once set it stays, also if
    /// one returns at once or, in a drain, all are forgotten.
    pub(crate) fn all_lost(&self) -> Option<&str> {
        self.all_lost.as_deref()
    }

    /// True if the publisher can push no job.
    pub(crate) fn has_no_credit(&self, publisher: &PublisherId) -> bool {
        self.credits.all_returned(publisher)
    }

    /// The number of publishers alive, and of all.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let alive =
            |entry: &&PublisherEntry| matches!(entry.connection, ConnectionState::Alive { .. });
        (self.publishers.values().filter(alive).count(), self.publishers.len())
    }

    fn watched(
        &mut self,
        now: Duration,
        complete: bool,
        set: Vec<PublisherInfo>,
        actions: &mut Vec<Action>,
    ) {
        if self.draining {
            // Follows publishers that moved, for their unanswered settles; adds no new one.
            for info in set {
                if let Some(entry) = self.publishers.get_mut(&info.id) {
                    entry.update_info(now, info, &mut self.random);
                }
            }
            return;
        }
        if complete {
            self.publishers.values_mut().for_each(|entry| entry.listed = false);
        }
        let mut added = Vec::new();
        for info in set {
            match self.publishers.get_mut(&info.id) {
                Some(entry) => {
                    entry.listed = true;
                    entry.update_info(now, info, &mut self.random);
                }
                None => added.push(info),
            }
        }
        // This may make room for new ones.
        let forgotten: Vec<PublisherId> = self
            .publishers
            .iter()
            .filter(|(_, k)| k.can_be_forgotten())
            .map(|(id, _)| *id)
            .collect();
        forgotten.into_iter().for_each(|id| self.forget(id, actions));
        let room = PUBLISHERS_PER_PATH_MAX.saturating_sub(self.publishers.len());
        let left_out = added.split_off(room.min(added.len()));
        for info in added {
            actions.push(Action::Connect(info.clone()));
            self.publishers.insert(info.id, PublisherEntry::new(info));
            self.revision += 1;
        }
        if !left_out.is_empty() && !std::mem::replace(&mut self.warned_of_limit, true) {
            tracing::warn!(
                left_out = left_out.len(),
                "a worker subscribes at {PUBLISHERS_PER_PATH_MAX} publishers at most, and leaves \
                 out the others"
            );
        }
        self.update_connecting_count();
    }

    fn attached(&mut self, now: Duration, publisher: PublisherId) {
        let Some(entry) = self.publishers.get_mut(&publisher) else { return };
        entry.connection = ConnectionState::Alive { since: now };
        self.revision += 1;
        if !self.draining {
            self.credits.opened(publisher, self.expected(), &mut self.messages);
        }
    }

    fn lost(
        &mut self,
        now: Duration,
        publisher: PublisherId,
        reason: String,
        busy: bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.publishers.get_mut(&publisher) else { return };
        if let ConnectionState::Alive { since } = entry.connection {
            if now.saturating_sub(since) >= STABLE_AFTER {
                entry.attempt = 0;
            }
            entry.failure = None;
        }
        entry.attempt = entry.attempt.saturating_add(1);
        let since = entry.failure.as_ref().map_or(now, |(_, since)| *since);
        entry.failure = Some((reason, since));
        let wait = if busy && entry.attempt == 1 {
            Duration::ZERO
        } else {
            let longest = if busy { RETRY_WAIT_BUSY_MAX } else { RETRY_WAIT_MAX };
            retry_wait(entry.attempt, longest, self.random.random())
        };
        entry.connection = ConnectionState::RetryAt { until: now + wait, busy };
        let unlisted = entry.can_be_forgotten();
        if self.all_lost.is_none() {
            let reasons: Option<Vec<String>> =
                self.publishers.values().map(PublisherEntry::lost_because).collect();
            self.all_lost = reasons.map(|reasons| reasons.join("; "));
        }
        let forgotten = unlisted || (self.draining && !busy);
        self.revision += 1;
        self.credits.lost(publisher, &mut self.messages);
        if forgotten {
            self.forget(publisher, actions);
        }
        self.update_connecting_count();
    }

    fn drain(&mut self, actions: &mut Vec<Action>) {
        self.draining = true;
        self.credits.stop();
        let mut idle = Vec::new();
        for (id, entry) in &self.publishers {
            match entry.connection {
                ConnectionState::Alive { .. } => actions.push(Action::Unsubscribe(*id)),
                ConnectionState::RetryAt { busy: false, .. } => idle.push(*id),
                ConnectionState::Connecting | ConnectionState::RetryAt { .. } => {}
            }
        }
        idle.into_iter().for_each(|id| self.forget(id, actions));
    }

    fn forget(&mut self, publisher: PublisherId, actions: &mut Vec<Action>) {
        self.publishers.remove(&publisher);
        self.credits.forget(&publisher);
        self.revision += 1;
        actions.push(Action::Forget(publisher));
    }

    /// Each attempt uses the address of the latest set.
    fn retry_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for entry in self.publishers.values_mut() {
            if matches!(entry.connection, ConnectionState::RetryAt { until, .. } if until <= now) {
                entry.connection = ConnectionState::Connecting;
                actions.push(Action::Connect(entry.info.clone()));
            }
        }
    }

    fn update_connecting_count(&mut self) {
        self.credits.expect(self.expected(), &mut self.messages);
    }

    /// Publishers whose first attempt is in progress.
    fn expected(&self) -> usize {
        let first = |entry: &&PublisherEntry| {
            entry.connection == ConnectionState::Connecting && entry.attempt == 0
        };
        self.publishers.values().filter(first).count()
    }
}

impl PublisherEntry {
    fn new(info: PublisherInfo) -> PublisherEntry {
        PublisherEntry {
            info,
            listed: true,
            connection: ConnectionState::Connecting,
            attempt: 0,
            failure: None,
        }
    }

    /// Takes the newest information. A publisher that has restarted is retried soon.
    fn update_info(&mut self, now: Duration, info: PublisherInfo, random: &mut StdRng) {
        let newer = info.epoch > self.info.epoch;
        let moved = info.epoch == self.info.epoch && info.addresses != self.info.addresses;
        if newer && let ConnectionState::RetryAt { until, .. } = &mut self.connection {
            self.attempt = 0;
            *until = (*until).min(now + RESTART_RETRY_SPREAD.mul_f64(random.random::<f64>()));
        }
        if newer || moved {
            self.info = info;
        }
    }

    fn can_be_forgotten(&self) -> bool {
        !self.listed && matches!(self.connection, ConnectionState::RetryAt { busy: false, .. })
    }

    /// The publisher and why it has no link, unless it has one or its first attempt is in progress.
    fn lost_because(&self) -> Option<String> {
        match self.status() {
            SubscriptionStatus::Dead { reason, .. } => {
                Some(format!("{}: {reason}", self.info.name))
            }
            _ => None,
        }
    }

    fn status(&self) -> SubscriptionStatus {
        match (&self.connection, &self.failure) {
            (ConnectionState::Alive { since }, _) => SubscriptionStatus::Alive { since: *since },
            (_, None) => SubscriptionStatus::Pending,
            (_, Some((reason, since))) => SubscriptionStatus::Dead {
                reason: reason.clone(),
                since: *since,
                attempt: self.attempt,
            },
        }
    }
}

#[cfg(test)]
mod tests;
