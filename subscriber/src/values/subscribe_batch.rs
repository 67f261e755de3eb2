//! Subscriptions on their way from publisher to publisher.
//!
//! A party has an ordered list of candidates. It races them for a link, asks the winner for all of
//! its subscriptions, and is done when all are answered. Those that the publisher refuses go on at
//! once as a party of their own, with the candidates that are left.

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

/// The longest that a publisher may take to answer those that are subscribed together; it gives its
/// program 10 s to make a value. One that has welcomed the link and sends nothing counts as failed.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Subscriptions that are made together.
pub(crate) struct SubscribeBatch {
    /// Each with the reason of its last refusal.
    pub(crate) subs: Vec<(Arc<SubscriptionCore>, Option<Arc<str>>)>,
    /// Publishers to try, in order.
    pub(crate) candidates: VecDeque<PublisherInfo>,
    /// Publishers of this group that were slower than another, or failed: they are tried last.
    /// Shared by all parties that come of the group, so that what one has learned costs the next
    /// nothing.
    pub(crate) slow: Arc<Mutex<HashSet<PublisherId>>>,
    /// From then on no publisher is tried any more.
    pub(crate) until: Instant,
}

impl SubscribeBatch {
    /// Makes its subscriptions, in a task of its own.
    pub(crate) fn start<N: Network>(self, manager: &Arc<ConnectionManager<N>>) {
        tokio::spawn(self.run(manager.clone()));
    }

    /// Returns when each is held, has failed, or has gone on in another party.
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
        // Open while some of them are not answered.
        let unanswered = refusals.downgrade();
        drop(refusals);
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let mut some = LostSubscriptions::new();
            let answered = timeout_at(until, refused.recv_many(&mut some, usize::MAX)).await;
            if answered.is_err() {
                manager.answer_timed_out(publisher.id);
                if let Some(refusals) = unanswered.upgrade() {
                    some.extend(withdraw(&subs, &link, &refusals));
                }
            }
            // Whoever is being refused at this moment holds the table: all of the frame is here
            // after it.
            drop(link.table.lock());
            some.extend(std::iter::from_fn(|| refused.try_recv().ok()));
            let done = some.is_empty() || answered.is_err();
            self.retry_refused(&manager, &publisher, some);
            if done {
                return;
            }
        }
    }

    /// Puts the candidates in their order, and returns it.
    fn sort_candidates(&mut self) -> Vec<PublisherId> {
        let slow = self.slow.lock();
        let candidates = self.candidates.make_contiguous();
        // Stable: the order stays among those that are behind, and among the others.
        candidates.sort_by_key(|publisher| slow.contains(&publisher.id));
        candidates.iter().map(|publisher| publisher.id).collect()
    }

    /// Those in front of the winner were tried before it.
    fn record_winner(&self, winner: PublisherId, order: &[PublisherId]) {
        let mut slow = self.slow.lock();
        slow.extend(order.iter().take_while(|id| **id != winner));
        slow.remove(&winner);
    }

    /// These were refused: they try the next publisher, or the same one if its link closed for want
    /// of subscriptions just before they came.
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

    /// There is no publisher left, or no time.
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

/// Takes back those that the publisher has not answered in time.
fn withdraw(
    subs: &[Arc<SubscriptionCore>],
    link: &Arc<ValueLink>,
    refusals: &RefusalSender,
) -> LostSubscriptions {
    let reason: Arc<str> = format!("no answer within {ANSWER_TIMEOUT:?}").into();
    let late = subs.iter().filter(|sub| sub.withdraw(link, refusals));
    late.map(|sub| (sub.clone(), reason.clone())).collect()
}
