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

use super::director::{Director, TRY_WAIT_MAX};
use super::link::{IDLE, ValueLink};
use super::net::Net;
use super::race::race;
use super::sub::{Lost, Refusals, Sub};
use super::subscriber::SubscribeError;

/// The longest that a publisher may take to answer those that are subscribed together; it gives its
/// program 10 s to make a value. One that has welcomed the link and sends nothing counts as failed.
pub(crate) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(15);

/// Subscriptions that are made together.
pub(crate) struct Party {
    /// Each with the reason of its last refusal.
    pub(crate) subs: Vec<(Arc<Sub>, Option<Arc<str>>)>,
    /// Publishers to try, in order.
    pub(crate) candidates: VecDeque<PublisherInfo>,
    /// Publishers of this group that were slower than another, or failed: they are tried last.
    /// Shared by all parties that come of the group, so that what one has learned costs the next
    /// nothing.
    pub(crate) behind: Arc<Mutex<HashSet<PublisherId>>>,
    /// From then on no publisher is tried any more.
    pub(crate) until: Instant,
}

impl Party {
    /// Makes its subscriptions, in a task of its own.
    pub(crate) fn start<N: Net>(self, director: &Arc<Director<N>>) {
        tokio::spawn(self.run(director.clone()));
    }

    /// Returns when each is held, has failed, or has gone on in another party.
    async fn run<N: Net>(mut self, director: Arc<Director<N>>) {
        let order = self.ordered();
        let link_to = |publisher| director.link_to(publisher);
        let raced = timeout_at(self.until, race(&mut self.candidates, link_to)).await;
        let (publisher, link) = match raced {
            Ok(Ok(won)) if Instant::now() < self.until => won,
            Ok(Err(reasons)) => return self.give_up(&director, reasons),
            Ok(Ok(_)) | Err(_) => return self.give_up(&director, Vec::new()),
        };
        self.won(publisher.id, &order);
        let subs: Vec<Arc<Sub>> = self.subs.iter().map(|(sub, _)| sub.clone()).collect();
        let (refusals, mut refused) = mpsc::unbounded_channel();
        link.hold(director.now(), &subs, &refusals);
        // Open while some of them are not answered.
        let unanswered = refusals.downgrade();
        drop(refusals);
        let until = Instant::now() + ANSWER_WAIT_MAX;
        loop {
            let mut some = Lost::new();
            let answered = timeout_at(until, refused.recv_many(&mut some, usize::MAX)).await;
            if answered.is_err() {
                director.is_mute(publisher.id);
                if let Some(refusals) = unanswered.upgrade() {
                    some.extend(withdraw(&subs, &link, &refusals));
                }
            }
            // Whoever is being refused at this moment holds the table: all of the frame is here
            // after it.
            drop(link.table.lock());
            some.extend(std::iter::from_fn(|| refused.try_recv().ok()));
            let done = some.is_empty() || answered.is_err();
            self.go_on(&director, &publisher, some);
            if done {
                return;
            }
        }
    }

    /// Puts the candidates in their order, and returns it.
    fn ordered(&mut self) -> Vec<PublisherId> {
        let behind = self.behind.lock();
        let candidates = self.candidates.make_contiguous();
        // Stable: the order stays among those that are behind, and among the others.
        candidates.sort_by_key(|publisher| behind.contains(&publisher.id));
        candidates.iter().map(|publisher| publisher.id).collect()
    }

    /// Those in front of the winner were tried before it.
    fn won(&self, winner: PublisherId, order: &[PublisherId]) {
        let mut behind = self.behind.lock();
        behind.extend(order.iter().take_while(|id| **id != winner));
        behind.remove(&winner);
    }

    /// These were refused: they try the next publisher, or the same one if its link closed for want
    /// of subscriptions just before they came.
    fn go_on<N: Net>(&self, director: &Arc<Director<N>>, publisher: &PublisherInfo, refused: Lost) {
        let refused = refused.into_iter().filter(|(sub, _)| !sub.is_dropped());
        let (idle, refused): (Vec<_>, Vec<_>) = refused.partition(|(_, reason)| **reason == *IDLE);
        let party = |subs: Vec<_>| Party {
            subs,
            candidates: self.candidates.clone(),
            behind: self.behind.clone(),
            until: self.until,
        };
        let named = |reason| Some(format!("{}: {reason}", publisher.name).into());
        let earlier: HashMap<_, _> = match idle.is_empty() {
            true => HashMap::new(),
            false => self.subs.iter().map(|(sub, reason)| (sub.key, reason)).collect(),
        };
        let with_reason = |(sub, _): (Arc<Sub>, _)| {
            let reason = earlier.get(&sub.key).and_then(|reason| (*reason).clone());
            (sub, reason)
        };
        let mut again = party(idle.into_iter().map(with_reason).collect());
        again.candidates.push_front(publisher.clone());
        let next = party(refused.into_iter().map(|(sub, reason)| (sub, named(reason))).collect());
        for party in [again, next].into_iter().filter(|party| !party.subs.is_empty()) {
            party.start(director);
        }
    }

    /// There is no publisher left, or no time.
    fn give_up<N: Net>(self, director: &Arc<Director<N>>, no_link: Vec<String>) {
        let no_link = match no_link.is_empty() {
            true => format!("no answer within {TRY_WAIT_MAX:?}"),
            false => no_link.join("; "),
        };
        let no_link = SubscribeError::NoLink(no_link.into());
        director.failed(self.subs.into_iter().map(|(sub, reason)| {
            (sub, reason.map_or_else(|| no_link.clone(), SubscribeError::Refused))
        }));
    }
}

/// Takes back those that the publisher has not answered in time.
fn withdraw(subs: &[Arc<Sub>], link: &Arc<ValueLink>, refusals: &Refusals) -> Lost {
    let reason: Arc<str> = format!("no answer within {ANSWER_WAIT_MAX:?}").into();
    let late = subs.iter().filter(|sub| sub.withdraw(link, refusals));
    late.map(|sub| (sub.clone(), reason.clone())).collect()
}
