//! Subscribes a group of paths at one publisher after another.
//!
//! A batch has an ordered list of candidates. It races them for a link, subscribes all of its paths
//! at the winner, and is done when all are answered. Subscriptions that the publisher refuses
//! continue at once as a batch of their own, with the remaining candidates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use longshore_protocol::{PublisherId, PublisherInfo};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::connection_manager::{ATTEMPT_TIMEOUT, ConnectionManager};
use super::link::{IDLE_REASON, ValueLink};
use super::network::Network;
use super::race::race;
use super::subscriber::SubscribeError;
use super::subscription_core::{LostSubscriptions, RefusalSender, SubscriptionCore};

/// The longest that a publisher may take to answer the subscriptions of a batch, counted from the
/// last subscription that it accepted on this link, or from the request; it gives its program 10 s
/// to create a value. A publisher that accepted the link and sends nothing counts as failed.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Subscriptions that are made together.
pub(crate) struct SubscribeBatch {
    /// Each subscription with the reason of its last refusal.
    pub(crate) subs: Vec<(Arc<SubscriptionCore>, Option<Arc<str>>)>,
    /// Publishers to try, in order.
    pub(crate) candidates: VecDeque<PublisherInfo>,
    /// Publishers of this group that failed or were slower than another; they are tried last. All
    /// batches that originate from the group share this set, so that none repeats a slow attempt.
    pub(crate) slow: Arc<Mutex<HashSet<PublisherId>>>,
    /// No publisher is tried after this time.
    pub(crate) until: Instant,
}

impl SubscribeBatch {
    /// Starts a task that makes the subscriptions.
    pub(crate) fn start<N: Network>(self, manager: &Arc<ConnectionManager<N>>) {
        tokio::spawn(self.run(manager.clone()));
    }

    /// Returns when each subscription is active, has failed, or has moved to another batch.
    async fn run<N: Network>(mut self, manager: Arc<ConnectionManager<N>>) {
        let order = self.sort_candidates();
        let link_to = |publisher| manager.link_to(publisher);
        let raced = timeout_at(self.until, race(&mut self.candidates, link_to)).await;
        let (publisher, link) = match raced {
            Ok(Ok(won)) if Instant::now() < self.until => won,
            Ok(Err(reasons)) => return self.give_up(&manager, reasons),
            Ok(Ok(_)) | Err(_) => return self.give_up(&manager, Vec::new()),
        };
        self.record_winner(publisher.id, &order);
        let subs: Vec<Arc<SubscriptionCore>> =
            self.subs.iter().map(|(sub, _)| sub.clone()).collect();
        let (refusals, mut refused) = mpsc::unbounded_channel();
        link.subscribe(manager.now(), &subs, &refusals);
        // Upgradable while some subscriptions are unanswered.
        let unanswered = refusals.downgrade();
        drop(refusals);
        let (mut deadline, mut waiting) = (Instant::now() + ANSWER_TIMEOUT, subs.len());
        loop {
            let mut some = LostSubscriptions::new();
            let answered = timeout_at(deadline, refused.recv_many(&mut some, usize::MAX)).await;
            if answered.is_err() {
                let later = manager.started + link.table.lock().subscribed_at() + ANSWER_TIMEOUT;
                // Each waiting subscription has a sender. Other batches on the link extend this
                // one only as long as there is time for another candidate.
                let (now, still_waiting) = (Instant::now(), unanswered.strong_count());
                let has_time = later + ANSWER_TIMEOUT <= self.until;
                if later > now && (has_time || still_waiting < waiting) {
                    (deadline, waiting) = (later, still_waiting);
                    continue;
                }
                manager.answer_timed_out(publisher.id);
                if let Some(refusals) = unanswered.upgrade() {
                    some.extend(withdraw(&subs, &link, &refusals));
                }
            }
            // The link's task holds the table's lock while it handles refusals: after this lock,
            // all refusals of the current frame are in the channel.
            drop(link.table.lock());
            some.extend(std::iter::from_fn(|| refused.try_recv().ok()));
            let done = some.is_empty() || answered.is_err();
            self.retry_refused(&manager, &publisher, some);
            if done {
                return;
            }
        }
    }

    /// Sorts the candidates, and returns their order.
    fn sort_candidates(&mut self) -> Vec<PublisherId> {
        let slow = self.slow.lock();
        let candidates = self.candidates.make_contiguous();
        // Stable: the order is preserved among slow publishers and among the others.
        candidates.sort_by_key(|publisher| slow.contains(&publisher.id));
        candidates.iter().map(|publisher| publisher.id).collect()
    }

    /// Marks the candidates before the winner as slow: they were tried first.
    fn record_winner(&self, winner: PublisherId, order: &[PublisherId]) {
        let mut slow = self.slow.lock();
        slow.extend(order.iter().take_while(|id| **id != winner));
        slow.remove(&winner);
    }

    /// Refused subscriptions try the next publisher, or the same one if its link was closed as idle
    /// just before they arrived.
    fn retry_refused<N: Network>(
        &self,
        manager: &Arc<ConnectionManager<N>>,
        publisher: &PublisherInfo,
        refused: LostSubscriptions,
    ) {
        let refused = refused.into_iter().filter(|(sub, _)| !sub.is_cancelled());
        let (idle, refused): (Vec<_>, Vec<_>) =
            refused.partition(|(_, reason)| **reason == *IDLE_REASON);
        let batch = |subs: Vec<_>| SubscribeBatch {
            subs,
            candidates: self.candidates.clone(),
            slow: self.slow.clone(),
            until: self.until,
        };
        let named = |reason| Some(format!("{}: {reason}", publisher.name).into());
        let earlier: HashMap<_, _> = match idle.is_empty() {
            true => HashMap::new(),
            false => self.subs.iter().map(|(sub, reason)| (sub.key, reason)).collect(),
        };
        let with_reason = |(sub, _): (Arc<SubscriptionCore>, _)| {
            let reason = earlier.get(&sub.key).and_then(|reason| (*reason).clone());
            (sub, reason)
        };
        let mut again = batch(idle.into_iter().map(with_reason).collect());
        again.candidates.push_front(publisher.clone());
        let next = batch(refused.into_iter().map(|(sub, reason)| (sub, named(reason))).collect());
        for batch in [again, next].into_iter().filter(|batch| !batch.subs.is_empty()) {
            batch.start(manager);
        }
    }

    /// No candidate is left, or the time is up.
    fn give_up<N: Network>(self, manager: &Arc<ConnectionManager<N>>, no_link: Vec<String>) {
        let no_link = match no_link.is_empty() {
            true => format!("no answer within {ATTEMPT_TIMEOUT:?}"),
            false => no_link.join("; "),
        };
        let no_link = SubscribeError::NoLink(no_link.into());
        manager.record_failure(self.subs.into_iter().map(|(sub, reason)| {
            (sub, reason.map_or_else(|| no_link.clone(), SubscribeError::Refused))
        }));
    }
}

/// Withdraws the subscriptions that the publisher has not answered in time.
fn withdraw(
    subs: &[Arc<SubscriptionCore>],
    link: &Arc<ValueLink>,
    refusals: &RefusalSender,
) -> LostSubscriptions {
    let reason: Arc<str> = format!("no answer within {ANSWER_TIMEOUT:?}").into();
    let late = subs.iter().filter(|sub| sub.withdraw(link, refusals));
    late.map(|sub| (sub.clone(), reason.clone())).collect()
}
