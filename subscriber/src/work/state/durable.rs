//! At which publishers the subscription is held, and when a lost one is tried again.
//!
//! It is held at every publisher of the watched set, at new ones at once. A publisher is given up
//! only when its link is dead, nothing is held from it, and a complete set lacks it: a replica that
//! does not answer, or does not know everything yet, closes no link.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::limits::PUBLISHERS_PER_PATH_MAX;
use longshore_protocol::{PublisherId, PublisherInfo};
use longshore_transport::{RETRY_WAIT_BUSY_MAX, RETRY_WAIT_MAX, STEADY, retry_wait};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::work::state::credits::{CreditMessage, Credits};

/// A publisher that has started again is tried within this, at a random moment: its workers learn
/// of it all at once.
const RESTART_RETRY_SPREAD: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum DurableEvent {
    /// A replica's answer: these publishers have matching queues, or defaults that could.
    Watched { complete: bool, publishers: Vec<PublisherInfo> },
    /// The link stands and the subscription is made.
    Attached(PublisherId),
    /// A try came to nothing.
    TryFailed { publisher: PublisherId, reason: String, busy: bool },
    /// The link is dead. `busy` when leases are held there or ends of jobs unanswered.
    LinkLost { publisher: PublisherId, reason: String, busy: bool },
    /// Jobs came.
    Delivered { publisher: PublisherId, jobs: u32 },
    /// Jobs of it are no longer held.
    Freed { publisher: PublisherId, jobs: u32 },
    /// The answer to a recall.
    Returned { publisher: PublisherId, credits: u32 },
    /// It has work and no credit.
    Waiting { publisher: PublisherId, jobs: u64 },
    /// A grant was not said, and will not be.
    Ungranted { publisher: PublisherId, credits: u32 },
    /// No jobs are wanted for a while, or they are again.
    Quiet(bool),
    /// No more jobs are wanted. Publishers that are owed the ends of jobs are still tried.
    Drain,
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Action {
    /// Dial, attach, subscribe; answered by `Attached` or `TryFailed`.
    Connect(PublisherInfo),
    /// Tell it of more credits.
    Grant { publisher: PublisherId, credits: u32 },
    /// Ask it for credits back.
    Recall { publisher: PublisherId, credits: u32 },
    /// Tell it that no more jobs are wanted.
    Unsubscribe(PublisherId),
    /// It is given up.
    Forget(PublisherId),
}

/// A publisher as the subscription sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherState {
    /// Its id.
    pub id: PublisherId,
    /// Its name.
    pub name: String,
    /// How the subscription stands there.
    pub standing: Standing,
    /// Jobs that it may push.
    pub credits: u32,
    /// Jobs of it that are held here.
    pub held: u32,
}

/// How a subscription stands at a publisher. Times are counted from the worker's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is being made for the first time.
    Pending,
    /// It is held.
    Alive {
        /// Since when.
        since: Duration,
    },
    /// It is not held, and tried again.
    Dead {
        /// What went wrong last.
        reason: String,
        /// Since when.
        since: Duration,
        /// Tries that failed in a row, the loss of the link counted as the first.
        attempt: u32,
    },
}

/// The core: told the time and what happened, it says what is to be done.
#[derive(Debug)]
pub(crate) struct DurableSubscription {
    random: StdRng,
    draining: bool,
    credits: Credits,
    messages: Vec<CreditMessage>,
    publishers: BTreeMap<PublisherId, PublisherEntry>,
    /// Counts changes of any publisher's standing.
    revision: u64,
}

#[derive(Debug)]
struct PublisherEntry {
    info: PublisherInfo,
    /// False once a complete set lacked it.
    listed: bool,
    connection: ConnectionState,
    /// Tries that failed in a row.
    attempt: u32,
    /// What went wrong last, and when it first did.
    failure: Option<(String, Duration)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum ConnectionState {
    Connecting,
    Alive { since: Duration },
    Waiting { until: Duration, busy: bool },
}

impl DurableSubscription {
    pub(crate) fn new(bound: u32, seed: u64) -> DurableSubscription {
        DurableSubscription {
            random: StdRng::seed_from_u64(seed),
            draining: false,
            credits: Credits::new(bound),
            messages: Vec::new(),
            publishers: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Takes what happened at `now`, and adds what is to be done.
    pub(crate) fn step(&mut self, now: Duration, event: DurableEvent, actions: &mut Vec<Action>) {
        match event {
            DurableEvent::Watched { complete, publishers } => {
                self.watched(now, complete, publishers, actions)
            }
            DurableEvent::Attached(publisher) => self.attached(now, publisher),
            DurableEvent::TryFailed { publisher, reason, busy }
            | DurableEvent::LinkLost { publisher, reason, busy } => {
                self.lost(now, publisher, reason, busy, actions);
            }
            DurableEvent::Delivered { publisher, jobs } => self.credits.delivered(publisher, jobs),
            DurableEvent::Freed { publisher, jobs } => {
                self.credits.freed(publisher, jobs, &mut self.messages);
            }
            DurableEvent::Returned { publisher, credits } => {
                self.credits.returned(publisher, credits, &mut self.messages);
            }
            DurableEvent::Waiting { publisher, jobs } => {
                self.credits.waiting(publisher, jobs, &mut self.messages);
            }
            DurableEvent::Ungranted { publisher, credits } => {
                self.credits.grant_withdrawn(publisher, credits)
            }
            DurableEvent::Quiet(quiet) => self.credits.set_quiet(quiet, &mut self.messages),
            DurableEvent::Drain => self.drain(actions),
            DurableEvent::Tick => {}
        }
        self.retry_due(now, actions);
        actions.extend(self.messages.drain(..).map(|one| match one {
            CreditMessage::Grant(publisher, credits) => Action::Grant { publisher, credits },
            CreditMessage::Recall(publisher, credits) => Action::Recall { publisher, credits },
        }));
    }

    /// When the next `Tick` has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let until = |entry: &PublisherEntry| match entry.connection {
            ConnectionState::Waiting { until, .. } => Some(until),
            _ => None,
        };
        self.publishers.values().filter_map(until).min()
    }

    /// Changes with any publisher's standing.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn states(&self) -> Vec<PublisherState> {
        let state = |(id, entry): (&PublisherId, &PublisherEntry)| {
            let account = self.credits.account(id);
            PublisherState {
                id: *id,
                name: entry.info.name.clone(),
                standing: entry.standing(),
                credits: account.credits,
                held: account.held,
            }
        };
        self.publishers.iter().map(state).collect()
    }

    /// True when the publisher can push no job.
    pub(crate) fn has_no_credit(&self, publisher: &PublisherId) -> bool {
        self.credits.all_returned(publisher)
    }

    /// Publishers alive, and all of them.
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
            // What is owed to a publisher that moved is sent to where it is now; no new one is
            // taken up.
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
        for info in set {
            if let Some(entry) = self.publishers.get_mut(&info.id) {
                entry.listed = true;
                entry.update_info(now, info, &mut self.random);
            } else if self.publishers.len() < PUBLISHERS_PER_PATH_MAX {
                actions.push(Action::Connect(info.clone()));
                self.publishers.insert(info.id, PublisherEntry::new(info));
                self.revision += 1;
            }
        }
        let forgotten: Vec<PublisherId> = self
            .publishers
            .iter()
            .filter(|(_, k)| k.can_be_forgotten())
            .map(|(id, _)| *id)
            .collect();
        forgotten.into_iter().for_each(|id| self.forget(id, actions));
        self.update_expected();
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
            if now.saturating_sub(since) >= STEADY {
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
        entry.connection = ConnectionState::Waiting { until: now + wait, busy };
        let forgotten = entry.can_be_forgotten() || (self.draining && !busy);
        self.revision += 1;
        self.credits.lost(publisher, &mut self.messages);
        if forgotten {
            self.forget(publisher, actions);
        }
        self.update_expected();
    }

    fn drain(&mut self, actions: &mut Vec<Action>) {
        self.draining = true;
        self.credits.stop();
        let mut idle = Vec::new();
        for (id, entry) in &self.publishers {
            match entry.connection {
                ConnectionState::Alive { .. } => actions.push(Action::Unsubscribe(*id)),
                ConnectionState::Waiting { busy: false, .. } => idle.push(*id),
                ConnectionState::Connecting | ConnectionState::Waiting { .. } => {}
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

    /// Each try goes the whole way again: to where the latest set has the publisher.
    fn retry_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for entry in self.publishers.values_mut() {
            if matches!(entry.connection, ConnectionState::Waiting { until, .. } if until <= now) {
                entry.connection = ConnectionState::Connecting;
                actions.push(Action::Connect(entry.info.clone()));
            }
        }
    }

    fn update_expected(&mut self) {
        self.credits.expect(self.expected(), &mut self.messages);
    }

    /// Publishers whose first try is under way.
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

    /// Takes the newest of what replicas say. One that has started again is worth a try soon.
    fn update_info(&mut self, now: Duration, info: PublisherInfo, random: &mut StdRng) {
        let newer = info.epoch > self.info.epoch;
        let moved = info.epoch == self.info.epoch && info.addresses != self.info.addresses;
        if newer && let ConnectionState::Waiting { until, .. } = &mut self.connection {
            self.attempt = 0;
            *until = (*until).min(now + RESTART_RETRY_SPREAD.mul_f64(random.random::<f64>()));
        }
        if newer || moved {
            self.info = info;
        }
    }

    fn can_be_forgotten(&self) -> bool {
        !self.listed && matches!(self.connection, ConnectionState::Waiting { busy: false, .. })
    }

    fn standing(&self) -> Standing {
        match (&self.connection, &self.failure) {
            (ConnectionState::Alive { since }, _) => Standing::Alive { since: *since },
            (_, None) => Standing::Pending,
            (_, Some((reason, since))) => {
                Standing::Dead { reason: reason.clone(), since: *since, attempt: self.attempt }
            }
        }
    }
}

#[cfg(test)]
mod tests;
