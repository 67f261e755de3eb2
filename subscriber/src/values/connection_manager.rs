//! Subscribes: collects new subscriptions and due retries, resolves all their paths in one request,
//! and starts a [`SubscribeBatch`] for each set of publishers, in the order of
//! [`PublisherRanking`]. Each publisher has one link, served by one task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared, WeakShared};
use hashbrown::HashMap;
use longshore_protocol::{PublisherId, PublisherInfo};
use longshore_resolver::PathAnswer;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::link::{self, ValueLink, ValueLinkEnd};
use super::network::Network;
use super::ranking::{Groups, PublisherRanking};
use super::retries::RetryQueue;
use super::subscribe_batch::SubscribeBatch;
use super::subscriber::SubscribeError;
use super::subscription_core::{LostSubscriptions, SubscriptionCore};

/// The longest that one attempt may take, for any number of publishers. The next attempt resolves
/// again.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The state that all subscriptions of one subscriber share.
pub(crate) struct ConnectionManager<N: Network> {
    pub(super) net: N,
    pub(crate) started: Instant,
    /// Lock order: before a link's table, never after.
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    ranking: PublisherRanking,
    /// Durable subscriptions that wait for their next attempt.
    retries: RetryQueue<Arc<SubscriptionCore>>,
    /// Subscriptions whose first attempt starts as soon as possible.
    new_subscriptions: Vec<Arc<SubscriptionCore>>,
    links: HashMap<PublisherId, Arc<ValueLink>>,
    /// Dials in progress, shared by all callers that need the link. A dial stops when its last
    /// caller drops it.
    dials: HashMap<PublisherId, WeakShared<Dial>>,
    /// True while a task serves `new_subscriptions` and `retries`.
    running: bool,
}

type Dial = BoxFuture<'static, Result<Arc<ValueLink>, Arc<str>>>;

impl<N: Network> ConnectionManager<N> {
    pub(crate) fn new(net: N, local_first: bool, seed: u64) -> Arc<ConnectionManager<N>> {
        let state = State {
            ranking: PublisherRanking::new(local_first, seed),
            retries: RetryQueue::new(seed.wrapping_add(1)),
            new_subscriptions: Vec::new(),
            links: HashMap::new(),
            dials: HashMap::new(),
            running: false,
        };
        let (started, state) = (Instant::now(), Mutex::new(state));
        Arc::new(ConnectionManager { net, started, state, wake: Notify::new() })
    }

    /// Starts an attempt for `subs` as soon as possible.
    pub(crate) fn subscribe_soon(
        self: &Arc<Self>,
        subs: impl IntoIterator<Item = Arc<SubscriptionCore>>,
    ) {
        let mut state = self.state.lock();
        state.new_subscriptions.extend(subs);
        self.ensure_running(&mut state);
    }

    /// The number of open links.
    #[cfg(test)]
    pub(crate) fn links(&self) -> usize {
        self.state.lock().links.len()
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Starts the task that serves new subscriptions and retries, unless it runs, and wakes it.
    fn ensure_running(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.running, true) {
            tokio::spawn(self.clone().run());
        }
        self.wake.notify_one();
    }

    /// Returns once no retry is scheduled.
    async fn run(self: Arc<Self>) {
        loop {
            let (subs, deadline) = {
                let mut state = self.state.lock();
                let mut subs = state.retries.take_due(self.now());
                subs.append(&mut state.new_subscriptions);
                subs.retain(|sub| !sub.is_cancelled());
                let deadline = state.retries.next_deadline();
                // The next new subscription starts another task. An idle task would keep the
                // manager alive.
                state.running = deadline.is_some();
                (subs, deadline)
            };
            if !subs.is_empty() {
                tokio::spawn(self.clone().attempt(subs));
            }
            let Some(deadline) = deadline else { return };
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep_until(self.started + deadline) => {}
            }
        }
    }

    /// Makes one attempt for each of `subs`: resolve, rank, connect.
    async fn attempt(self: Arc<Self>, subs: Vec<Arc<SubscriptionCore>>) {
        let until = Instant::now() + ATTEMPT_TIMEOUT;
        let (blocked, subs): (Vec<_>, Vec<_>) =
            subs.into_iter().partition(|sub| sub.blocks_resubscribe());
        self.record_failure(blocked.into_iter().map(|sub| (sub, SubscribeError::ReaderFull)));
        let paths = subs.iter().map(|sub| sub.path.clone()).collect();
        let late = || Err(format!("no answer within {ATTEMPT_TIMEOUT:?}").into());
        let answer = timeout_at(until, self.net.resolve(paths)).await.unwrap_or_else(|_| late());
        let resolution = match answer {
            Ok(resolution) => resolution,
            Err(reason) => {
                let why = SubscribeError::Resolver(reason);
                return self.record_failure(subs.into_iter().map(|sub| (sub, why.clone())));
            }
        };
        let complete = resolution.complete;
        let not_found = || SubscribeError::NotFound { complete };
        let (mut groups, mut failed) = (Groups::default(), Vec::new());
        for (sub, answer) in subs.into_iter().zip(resolution.answers) {
            match answer {
                PathAnswer::Publishers { set, .. } => groups.add(set, sub),
                PathAnswer::NotFound => failed.push((sub, not_found())),
                PathAnswer::Refused(reason) => {
                    failed.push((sub, SubscribeError::Refused(reason.into())));
                }
            }
        }
        for (set, subs) in groups.groups {
            let candidates: VecDeque<PublisherInfo> = {
                let local = |publisher: &PublisherInfo| self.net.is_local(publisher);
                let order = self.state.lock().ranking.order(self.now(), &set, local);
                order.into_iter().cloned().collect()
            };
            if candidates.is_empty() {
                failed.extend(subs.into_iter().map(|sub| (sub, not_found())));
                continue;
            }
            let subs = subs.into_iter().map(|sub| (sub, None)).collect();
            SubscribeBatch { subs, candidates, slow: Arc::default(), until }.start(&self);
        }
        self.record_failure(failed);
    }

    /// The publisher accepted a link and did not answer a subscription in time.
    pub(super) fn answer_timed_out(&self, publisher: PublisherId) {
        self.state.lock().ranking.failed(self.now(), publisher);
    }

    /// Returns the link to the publisher: the open one, the one being dialled, or a new one.
    pub(super) async fn link_to(
        self: &Arc<Self>,
        publisher: PublisherInfo,
    ) -> Result<Arc<ValueLink>, String> {
        let dial = {
            let mut state = self.state.lock();
            if let Some(link) = state.links.get(&publisher.id).filter(|link| link.is_open()) {
                return Ok(link.clone());
            }
            match state.dials.get(&publisher.id).and_then(WeakShared::upgrade) {
                Some(dial) => dial,
                None => {
                    let dial: Shared<Dial> = self.clone().dial(publisher.clone()).boxed().shared();
                    if let Some(weak) = dial.downgrade() {
                        state.dials.retain(|_, dial| dial.upgrade().is_some());
                        state.dials.insert(publisher.id, weak);
                    }
                    dial
                }
            }
        };
        dial.await.map_err(|reason| format!("{}: {reason}", publisher.name))
    }

    async fn dial(self: Arc<Self>, publisher: PublisherInfo) -> Result<Arc<ValueLink>, Arc<str>> {
        let id = publisher.id;
        let halves = match self.net.dial(&publisher).await {
            Ok(halves) => halves,
            Err(reason) => {
                let mut state = self.state.lock();
                state.dials.remove(&id);
                state.ranking.failed(self.now(), id);
                return Err(reason);
            }
        };
        let link = ValueLink::new(id);
        {
            let mut state = self.state.lock();
            state.dials.remove(&id);
            state.links.insert(id, link.clone());
        }
        tokio::spawn(self.serve(link.clone(), halves));
        Ok(link)
    }

    /// Serves a link from its handshake to its end.
    async fn serve(
        self: Arc<Self>,
        link: Arc<ValueLink>,
        (sending, receiving): (N::FrameSender, N::FrameReceiver),
    ) {
        // Notifies the link's subscriptions however this task ends.
        let mut ended = LinkCleanup { manager: self, link, why: None };
        let manager = ended.manager.clone();
        let lost = |lost| manager.connection_lost(lost);
        let end = link::serve(&ended.link, sending, receiving, manager.started, lost).await;
        ended.why = Some(end);
    }

    /// Reports lost subscriptions, and schedules a retry for the durable ones.
    fn connection_lost(self: &Arc<Self>, lost: LostSubscriptions) {
        let now = self.now();
        let mark_lost =
            |(sub, reason): (Arc<SubscriptionCore>, Arc<str>)| Some((sub.lost(now, reason)?, sub));
        let failed_durable: Vec<_> = lost.into_iter().filter_map(mark_lost).collect();
        self.schedule_retry(now, failed_durable);
    }

    /// Reports a failed attempt, and schedules a retry for durable subscriptions.
    pub(super) fn record_failure(
        self: &Arc<Self>,
        subs: impl IntoIterator<Item = (Arc<SubscriptionCore>, SubscribeError)>,
    ) {
        let now = self.now();
        let mark_failed =
            |(sub, why): (Arc<SubscriptionCore>, _)| Some((sub.attempt_failed(now, &why)?, sub));
        let failed_durable: Vec<_> = subs.into_iter().filter_map(mark_failed).collect();
        self.schedule_retry(now, failed_durable);
    }

    fn schedule_retry(
        self: &Arc<Self>,
        now: Duration,
        failed_durable: Vec<(u32, Arc<SubscriptionCore>)>,
    ) {
        if !failed_durable.is_empty() {
            let mut state = self.state.lock();
            state.retries.schedule(now, failed_durable);
            self.ensure_running(&mut state);
        }
    }
}

/// Ends a link, also when its task is dropped with its runtime.
struct LinkCleanup<N: Network> {
    manager: Arc<ConnectionManager<N>>,
    link: Arc<ValueLink>,
    why: Option<ValueLinkEnd>,
}

impl<N: Network> Drop for LinkCleanup<N> {
    fn drop(&mut self) {
        let (manager, link) = (&self.manager, &self.link);
        let panicked = std::thread::panicking();
        let why = self.why.take();
        // A panic is a fault of this link's task alone: other links and retries continue.
        let why =
            why.or_else(|| panicked.then(|| ValueLinkEnd::Lost("the link's task panicked".into())));
        {
            let mut state = manager.state.lock();
            if state.links.get(&link.publisher).is_some_and(|known| Arc::ptr_eq(known, link)) {
                state.links.remove(&link.publisher);
            }
            if let Some(ValueLinkEnd::Lost(_)) = why {
                state.ranking.failed(manager.now(), link.publisher);
            }
        }
        match why {
            Some(ValueLinkEnd::Idle) => {}
            Some(ValueLinkEnd::Lost(reason)) => {
                let publisher = link.publisher.prefix();
                tracing::debug!(%publisher, %reason, "link to a publisher of values lost");
                let lost = link.table.lock().end(&reason);
                manager.connection_lost(lost);
            }
            None => {
                // The runtime has stopped: no task is left to retry.
                link.table.lock().end(&"the runtime has stopped".into());
            }
        }
    }
}
