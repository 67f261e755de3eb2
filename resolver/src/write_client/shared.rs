//! The state shared by the handles of a write client and its tasks.

use std::time::{Duration, Instant};

use longshore_transport::LogLimit;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::replica_link::now;
use crate::write_client::buckets::Key;
use crate::write_client::core::{Action, Event, WriteCore};
use crate::write_client::desired_state::DesiredState;
use crate::write_client::pending_changes::WRITE_PATHS_MAX;
use crate::write_client::terms::CheckedTerms;
use crate::write_client::{PublicationStatus, ReplicaHealth};

/// Most keys that are recorded under one lock: some 100 µs.
const KEYS_AT_ONCE: usize = 512;

/// The period in which refused paths are logged at most once.
const REFUSAL_LOG_PERIOD: Duration = Duration::from_secs(1);

/// The desired state, and the state of each replica.
#[derive(Debug)]
pub(super) struct Shared {
    /// Locked for about a millisecond at most, however many paths there are; no other lock is taken
    /// and nothing is awaited under it.
    all: Mutex<All>,
    /// One for each replica's task.
    wakes: Vec<Notify>,
    /// A replica's state has changed.
    changed: Notify,
    /// Limits the log lines about refused paths: a replica that refuses all paths refuses a
    /// million, each time they are sent.
    refusal_log: Mutex<LogLimit>,
}

#[derive(Debug)]
struct All {
    desired: DesiredState,
    closing: bool,
    replicas: Vec<PerReplica>,
}

#[derive(Debug)]
struct PerReplica {
    state: PublicationStatus,
    /// The number of changes that its core has handled.
    changes: u64,
    /// The first change that it still needs.
    needs_changes: Option<u64>,
    /// Its core was stepped with the close.
    close_sent: bool,
    up_to_date: bool,
    closed: bool,
}

impl Shared {
    pub(super) fn new(replicas: &[String]) -> Shared {
        let health = ReplicaHealth::Connecting { since: now() };
        let per_replica = |replica: &String| PerReplica {
            state: PublicationStatus {
                replica: replica.clone(),
                health,
                pending: 0,
                refused: 0,
                last_error: None,
            },
            changes: 0,
            needs_changes: None,
            close_sent: false,
            up_to_date: false,
            closed: false,
        };
        let replicas: Vec<PerReplica> = replicas.iter().map(per_replica).collect();
        Shared {
            wakes: replicas.iter().map(|_| Notify::new()).collect(),
            all: Mutex::new(All { desired: DesiredState::default(), closing: false, replicas }),
            changed: Notify::new(),
            refusal_log: Mutex::new(LogLimit::new(1, REFUSAL_LOG_PERIOD)),
        }
    }

    /// Whether a refused path may be logged at `now`, for any replica; if so, the number of lines
    /// suppressed since the last one.
    pub(super) fn admit_refusal_line(&self, now: Instant) -> Option<u64> {
        self.refusal_log.lock().admit(now)
    }

    /// Records the desired state of keys: their terms, or removal. Ignored once the publisher
    /// stops.
    pub(super) fn set_desired(&self, keys: impl IntoIterator<Item = (Key, Option<CheckedTerms>)>) {
        let mut keys = keys.into_iter();
        let (mut hashed_keys, mut terms, mut changes_since_wake) = (Vec::new(), Vec::new(), 0);
        loop {
            // The caller's iterator runs outside the lock.
            for (key, on) in keys.by_ref().take(KEYS_AT_ONCE) {
                hashed_keys.push((key.hash(), key));
                terms.push(on);
            }
            let more = hashed_keys.len() == KEYS_AT_ONCE;
            let mut all = self.all.lock();
            if all.closing {
                return;
            }
            changes_since_wake += all.desired.set_all(&mut hashed_keys, &mut terms);
            all.forget();
            drop(all);
            if changes_since_wake >= WRITE_PATHS_MAX || changes_since_wake > 0 && !more {
                self.wakes.iter().for_each(Notify::notify_one);
                changes_since_wake = 0;
            }
            if !more {
                return;
            }
        }
    }

    pub(super) fn close(&self) {
        self.all.lock().closing = true;
        self.wakes.iter().for_each(Notify::notify_one);
        self.changed.notify_waiters();
    }

    /// Waits until the desired state changes, or the publisher stops. Cancel safe.
    pub(super) async fn woken(&self, replica: usize) {
        self.wakes[replica].notified().await;
    }

    /// Steps a replica's core, and records its state, under one lock: a change is visible either as
    /// not yet handled by the core, or in its state.
    pub(super) fn step(&self, replica: usize, core: &mut WriteCore, event: Event) -> Vec<Action> {
        let now = now();
        let mut all = self.all.lock();
        let All { desired, closing, replicas } = &mut *all;
        let own = &mut replicas[replica];
        let mut actions = Vec::new();
        if *closing && !own.close_sent {
            own.close_sent = true;
            actions.extend(core.step(now, desired, Event::Close));
        }
        actions.extend(core.step(now, desired, event));
        own.up_to_date = core.is_up_to_date();
        own.changes = core.changes();
        own.needs_changes = core.needs_changes();
        own.closed |= actions.iter().any(|action| matches!(action, Action::Closed));
        own.state.health = core.health();
        own.state.pending = core.pending();
        own.state.refused = core.refused();
        if own.state.last_error.as_deref() != core.last_error() {
            own.state.last_error = core.last_error().map(str::to_owned);
        }
        all.forget();
        drop(all);
        self.changed.notify_waiters();
        actions
    }

    pub(super) fn states(&self) -> Vec<PublicationStatus> {
        let all = self.all.lock();
        let state = |replica: &PerReplica| {
            let mut state = replica.state.clone();
            state.pending += all.unhandled(replica);
            state
        };
        all.replicas.iter().map(state).collect()
    }

    /// Waits until `n` replicas are up to date, or the publisher stops: then none will be.
    pub(super) async fn flushed(&self, n: usize) {
        self.reached(|all| {
            let up_to_date =
                |replica: &&PerReplica| replica.up_to_date && all.unhandled(replica) == 0;
            let n = n.min(all.replicas.len());
            all.closing || all.replicas.iter().filter(up_to_date).count() >= n
        })
        .await;
    }

    pub(super) async fn closed(&self) {
        self.reached(|all| all.replicas.iter().all(|replica| replica.closed)).await;
    }

    async fn reached(&self, condition: impl Fn(&All) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if condition(&self.all.lock()) {
                return;
            }
            changed.await;
        }
    }
}

impl All {
    /// Drops the changes that no replica needs any more.
    fn forget(&mut self) {
        let needed = self.replicas.iter().filter_map(|replica| replica.needs_changes).min();
        self.desired.forget(needed.unwrap_or(u64::MAX));
    }

    /// The number of changes that a replica's core has not handled yet.
    fn unhandled(&self, replica: &PerReplica) -> usize {
        let unhandled = self.desired.changes().end() - replica.changes;
        usize::try_from(unhandled).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn flushed_returns_when_the_publisher_stops() {
        let shared = Shared::new(&["replica:1".to_owned()]);
        let flushed = shared.flushed(1);
        let waits = async {
            tokio::task::yield_now().await;
            assert!(!shared.all.lock().replicas[0].up_to_date);
            shared.close();
        };
        let both = async { tokio::join!(flushed, waits) };
        timeout(Duration::from_secs(30), both).await.expect("it still waits");
        timeout(Duration::from_secs(30), shared.flushed(1)).await.expect("nor after that");
    }

    #[test]
    fn refused_paths_log_one_line_a_second_with_the_number_suppressed() {
        let shared = Shared::new(&["a:1".into(), "b:1".into()]);
        let start = Instant::now();
        let mut lines = Vec::new();
        for n in 0..1_000_000 {
            // 250,000 a second, at two replicas.
            lines.extend(shared.admit_refusal_line(start + Duration::from_micros(4 * n)));
        }
        assert_eq!(lines, [0, 249_999, 249_999, 249_999]);
    }
}
