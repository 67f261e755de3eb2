//! What the handles of a write client and its tasks share.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::replica_link::now;
use crate::write_client::core::{Action, Input, WriteCore};
use crate::write_client::wanted::{Key, Wanted};
use crate::write_client::{ReplicaStanding, ReplicaState};

/// The wanted set, and how far each replica is with it.
#[derive(Debug)]
pub(super) struct Shared {
    /// Held for a moment only; no lock is taken, nothing is awaited under it.
    all: Mutex<All>,
    /// One for each replica's task.
    wakes: Vec<Notify>,
    /// A replica's state has changed.
    changed: Notify,
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
    /// What has changed since its task last looked: a set, so that it is bounded by what there is.
    fresh: BTreeSet<Key>,
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
            fresh: BTreeSet::new(),
            told_to_close: false,
            whole: false,
            closed: false,
        };
        let replicas: Vec<PerReplica> = replicas.iter().map(per_replica).collect();
        Shared {
            wakes: replicas.iter().map(|_| Notify::new()).collect(),
            all: Mutex::new(All { wanted: Wanted::default(), closing: false, replicas }),
            changed: Notify::new(),
        }
    }

    /// Records what is wanted.
    pub(super) fn want(&self, key: Key, wanted: bool) {
        let mut all = self.all.lock();
        if all.closing || !all.wanted.set(&key, wanted) {
            return;
        }
        for replica in &mut all.replicas {
            replica.fresh.insert(key.clone());
        }
        drop(all);
        self.wakes.iter().for_each(Notify::notify_one);
    }

    pub(super) fn close(&self) {
        self.all.lock().closing = true;
        self.wakes.iter().for_each(Notify::notify_one);
    }

    /// Waits until something is wanted otherwise, or the publisher stops. Cancel safe.
    pub(super) async fn woken(&self, replica: usize) {
        self.wakes[replica].notified().await;
    }

    /// Steps a replica's core, told of what has changed first, and notes how far it is. One lock over all of it: whoever looks
    /// sees a change either in `fresh` or in the core's state.
    pub(super) fn step(&self, replica: usize, core: &mut WriteCore, input: Input) -> Vec<Action> {
        let now = now();
        let mut all = self.all.lock();
        let All { wanted, closing, replicas } = &mut *all;
        let own = &mut replicas[replica];
        let mut actions = Vec::new();
        if !own.fresh.is_empty() {
            let fresh = std::mem::take(&mut own.fresh);
            actions.extend(core.step(now, wanted, Input::Changed(fresh)));
        }
        if *closing && !own.told_to_close {
            own.told_to_close = true;
            actions.extend(core.step(now, wanted, Input::Close));
        }
        actions.extend(core.step(now, wanted, input));
        own.whole = core.is_whole();
        own.closed |= actions.contains(&Action::Closed);
        own.state.standing = core.standing();
        own.state.lacking = core.lacking();
        own.state.refused = core.refused();
        if own.state.last_error.as_deref() != core.last_error() {
            own.state.last_error = core.last_error().map(str::to_owned);
        }
        drop(all);
        self.changed.notify_waiters();
        actions
    }

    pub(super) fn states(&self) -> Vec<ReplicaState> {
        let all = self.all.lock();
        let state = |replica: &PerReplica| {
            let mut state = replica.state.clone();
            state.lacking += replica.fresh.len();
            state
        };
        all.replicas.iter().map(state).collect()
    }

    pub(super) async fn flushed(&self, n: usize) {
        self.reached(|all| {
            let whole = |replica: &&PerReplica| replica.whole && replica.fresh.is_empty();
            all.replicas.iter().filter(whole).count() >= n.min(all.replicas.len())
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
