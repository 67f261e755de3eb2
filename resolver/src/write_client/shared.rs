//! What the handles of a write client and its tasks share.

use std::time::{Duration, Instant};

use longshore_transport::LogLimit;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::replica_link::now;
use crate::write_client::buckets::Key;
use crate::write_client::core::{Action, Input, WriteCore};
use crate::write_client::lacking::WRITE_PATHS_MAX;
use crate::write_client::terms::PublicationTerms;
use crate::write_client::wanted::Wanted;
use crate::write_client::{ReplicaStanding, ReplicaState};

/// Most keys that are recorded under one lock: some 100 µs.
const WANTED_AT_ONCE: usize = 512;

/// One line of the log about a refused path in this time, at most.
const REFUSALS_LOGGED: Duration = Duration::from_secs(1);

/// The wanted set, and how far each replica is with it.
#[derive(Debug)]
pub(super) struct Shared {
    /// Held for about a millisecond at most, however many paths there are; no lock is taken,
    /// nothing is awaited under it.
    all: Mutex<All>,
    /// One for each replica's task.
    wakes: Vec<Notify>,
    /// A replica's state has changed.
    changed: Notify,
    /// Of lines about refused paths: a replica that refuses all of them refuses a million, again
    /// each time it is told of them.
    refusals_logged: Mutex<LogLimit>,
}

#[derive(Debug)]
struct All {
    wanted: Wanted,
    closing: bool,
    replicas: Vec<PerReplica>,
}

#[derive(Debug)]
struct PerReplica {
    state: ReplicaState,
    /// How many changes its core has taken in.
    changes: u64,
    /// From which one on it needs them.
    needs_changes: Option<u64>,
    /// It has been told to close.
    told_to_close: bool,
    whole: bool,
    closed: bool,
}

impl Shared {
    pub(super) fn new(replicas: &[String]) -> Shared {
        let standing = ReplicaStanding::Connecting { since: now() };
        let per_replica = |replica: &String| PerReplica {
            state: ReplicaState {
                replica: replica.clone(),
                standing,
                lacking: 0,
                refused: 0,
                last_error: None,
            },
            changes: 0,
            needs_changes: None,
            told_to_close: false,
            whole: false,
            closed: false,
        };
        let replicas: Vec<PerReplica> = replicas.iter().map(per_replica).collect();
        Shared {
            wakes: replicas.iter().map(|_| Notify::new()).collect(),
            all: Mutex::new(All { wanted: Wanted::default(), closing: false, replicas }),
            changed: Notify::new(),
            refusals_logged: Mutex::new(LogLimit::new(1, REFUSALS_LOGGED)),
        }
    }

    /// Whether a refused path may be logged at `now`, whichever replica refuses it; if so, how many
    /// were left out since the last one.
    pub(super) fn admit_refusal_line(&self, now: Instant) -> Option<u64> {
        self.refusals_logged.lock().admit(now)
    }

    /// Records what is wanted: keys on terms, or no longer. Ignored once the publisher stops.
    pub(super) fn want(&self, keys: impl IntoIterator<Item = (Key, Option<PublicationTerms>)>) {
        let mut keys = keys.into_iter();
        let (mut taken, mut terms, mut unsaid) = (Vec::new(), Vec::new(), 0);
        loop {
            // Whatever the caller does to come by them is not done under the lock.
            for (key, on) in keys.by_ref().take(WANTED_AT_ONCE) {
                taken.push((key.hash(), key));
                terms.push(on);
            }
            let more = taken.len() == WANTED_AT_ONCE;
            let mut all = self.all.lock();
            if all.closing {
                return;
            }
            unsaid += all.wanted.set_all(&mut taken, &mut terms);
            all.forget();
            drop(all);
            if unsaid >= WRITE_PATHS_MAX || unsaid > 0 && !more {
                self.wakes.iter().for_each(Notify::notify_one);
                unsaid = 0;
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

    /// Waits until something is wanted otherwise, or the publisher stops. Cancel safe.
    pub(super) async fn woken(&self, replica: usize) {
        self.wakes[replica].notified().await;
    }

    /// Steps a replica's core, and notes how far it is. One lock over all of it: whoever looks sees
    /// a change either as one that the core has not taken in, or in its state.
    pub(super) fn step(&self, replica: usize, core: &mut WriteCore, input: Input) -> Vec<Action> {
        let now = now();
        let mut all = self.all.lock();
        let All { wanted, closing, replicas } = &mut *all;
        let own = &mut replicas[replica];
        let mut actions = Vec::new();
        if *closing && !own.told_to_close {
            own.told_to_close = true;
            actions.extend(core.step(now, wanted, Input::Close));
        }
        actions.extend(core.step(now, wanted, input));
        own.whole = core.is_whole();
        own.changes = core.changes();
        own.needs_changes = core.needs_changes();
        own.closed |= actions.iter().any(|action| matches!(action, Action::Closed));
        own.state.standing = core.standing();
        own.state.lacking = core.lacking();
        own.state.refused = core.refused();
        if own.state.last_error.as_deref() != core.last_error() {
            own.state.last_error = core.last_error().map(str::to_owned);
        }
        all.forget();
        drop(all);
        self.changed.notify_waiters();
        actions
    }

    pub(super) fn states(&self) -> Vec<ReplicaState> {
        let all = self.all.lock();
        let state = |replica: &PerReplica| {
            let mut state = replica.state.clone();
            state.lacking += all.unseen(replica);
            state
        };
        all.replicas.iter().map(state).collect()
    }

    /// Waits until `n` replicas are whole, or the publisher stops: then none will be.
    pub(super) async fn flushed(&self, n: usize) {
        self.reached(|all| {
            let whole = |replica: &&PerReplica| replica.whole && all.unseen(replica) == 0;
            let n = n.min(all.replicas.len());
            all.closing || all.replicas.iter().filter(whole).count() >= n
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
    /// Drops the changes that every replica that keeps up has been told of.
    fn forget(&mut self) {
        let needed = self.replicas.iter().filter_map(|replica| replica.needs_changes).min();
        self.wanted.forget(needed.unwrap_or(u64::MAX));
    }

    /// How many changes a replica's core has not taken in yet.
    fn unseen(&self, replica: &PerReplica) -> usize {
        let unseen = self.wanted.changes().end() - replica.changes;
        usize::try_from(unseen).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_replicas_of_a_publisher_that_stops() {
        let shared = Shared::new(&["replica:1".to_owned()]);
        let flushed = shared.flushed(1);
        let waits = async {
            tokio::task::yield_now().await;
            assert!(!shared.all.lock().replicas[0].whole);
            shared.close();
        };
        let both = async { tokio::join!(flushed, waits) };
        timeout(Duration::from_secs(30), both).await.expect("it still waits");
        timeout(Duration::from_secs(30), shared.flushed(1)).await.expect("nor after that");
    }

    #[test]
    fn a_million_refused_paths_log_a_line_a_second_and_how_many_were_left_out() {
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
