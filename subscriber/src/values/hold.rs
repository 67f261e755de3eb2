//! Holding one group: at the publisher that is tried first, those that it refuses at the next, and so on. Each goes on as soon as it is
//! refused, whatever the others wait for.
//!
//! ```text
//!  waiting ─▶ race for a link ─▶ load at publisher 1 ─refused─▶ load at publisher 2 ─refused─▶ waiting ─▶ race …
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hashbrown::HashMap;
use longshore_protocol::PublisherInfo;
use tokio::time::{Instant, timeout_at};

use super::batch::Batch;
use super::director::{Director, TRY_WAIT_MAX};
use super::link::{IDLE, ValueLink};
use super::net::Net;
use super::race::race;
use super::sub::{Lost, Sub};
use super::subscriber::SubscribeError;

/// The longest that a publisher may take to answer those that are subscribed together; it gives its program 10 s to make
/// a value. One that has welcomed the link and says nothing counts as failed.
pub(crate) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(15);

/// One group on its way from publisher to publisher.
pub(crate) struct Hold<'a, N: Net> {
    director: &'a Arc<Director<N>>,
    /// Not tried yet, in order; while there is a race they are with it.
    candidates: VecDeque<PublisherInfo>,
    /// Those that took a link, in order: who is refused at one goes on to the next.
    won: Vec<PublisherInfo>,
    /// Those that were refused at all of them.
    waiting: Vec<Arc<Sub>>,
    /// Why each of those that were refused was, the last time.
    refusals: HashMap<u64, Arc<str>>,
    /// Why there was no link to those that were tried.
    no_link: Vec<String>,
    until: Instant,
}

/// Subscriptions that went to one publisher together and are not all answered.
struct Load {
    /// Which of those that took a link.
    at: usize,
    publisher: PublisherInfo,
    subs: Vec<Arc<Sub>>,
    asked: Option<Asked>,
}

/// Its link was asked for them.
struct Asked {
    link: Arc<ValueLink>,
    batch: Arc<Batch>,
    until: Instant,
}

impl<'a, N: Net> Hold<'a, N> {
    /// `subs` are to be held at one of `candidates`; from `until` on none is tried any more.
    pub(crate) fn new(
        director: &'a Arc<Director<N>>,
        candidates: VecDeque<PublisherInfo>,
        subs: Vec<Arc<Sub>>,
        until: Instant,
    ) -> Hold<'a, N> {
        Hold {
            director,
            candidates,
            won: Vec::new(),
            waiting: subs,
            refusals: HashMap::new(),
            no_link: Vec::new(),
            until,
        }
    }

    /// Returns when each stands, or has failed.
    pub(crate) async fn run(mut self) {
        let (director, until) = (self.director, self.until);
        let answered = |load: Load| load.answered(director);
        let mut loads = FuturesUnordered::new();
        // One at most.
        let mut races = FuturesUnordered::new();
        loop {
            if races.is_empty() && !self.waiting.is_empty() {
                match self.next_candidates() {
                    Some(mut candidates) => races.push(async move {
                        let link_to = |publisher| director.link_to(publisher);
                        let winner = timeout_at(until, race(&mut candidates, link_to)).await;
                        (candidates, winner)
                    }),
                    None => self.give_up(),
                }
            }
            tokio::select! {
                Some((candidates, winner)) = races.next() => {
                    self.candidates = candidates;
                    match winner {
                        Ok(Ok((publisher, _))) => {
                            self.won.push(publisher);
                            let subs = std::mem::take(&mut self.waiting);
                            loads.extend(self.load(self.won.len() - 1, subs).map(answered));
                        }
                        Ok(Err(failures)) => self.no_link.extend(failures),
                        // Its time is over.
                        Err(_) => self.candidates.clear(),
                    }
                }
                Some((at, rest, refused)) = loads.next() => {
                    loads.extend(rest.map(answered));
                    let (again, on) = self.refused(refused);
                    if Instant::now() >= until {
                        self.waiting.extend(again.into_iter().chain(on));
                        continue;
                    }
                    loads.extend(self.load(at, again).map(answered));
                    if self.won.len() > at + 1 {
                        loads.extend(self.load(at + 1, on).map(answered));
                    } else {
                        self.waiting.extend(on);
                    }
                }
                else => return,
            }
        }
    }

    /// Those that were not tried yet; none if there are none, or no time is left.
    fn next_candidates(&mut self) -> Option<VecDeque<PublisherInfo>> {
        let candidates = std::mem::take(&mut self.candidates);
        (!candidates.is_empty() && Instant::now() < self.until).then_some(candidates)
    }

    /// That publisher is to be asked for these.
    fn load(&self, at: usize, subs: Vec<Arc<Sub>>) -> Option<Load> {
        let publisher = self.won.get(at).filter(|_| !subs.is_empty())?.clone();
        Some(Load { at, publisher, subs, asked: None })
    }

    /// These were refused. Gives those of which the link closed for want of subscriptions just before they came, and those that are to go on.
    fn refused(&mut self, refused: Lost) -> (Vec<Arc<Sub>>, Vec<Arc<Sub>>) {
        let (mut again, mut on) = (Vec::new(), Vec::new());
        for (sub, reason) in refused {
            if sub.is_dropped() {
                continue;
            }
            if *reason == *IDLE {
                again.push(sub);
            } else {
                self.refusals.insert(sub.key.0, reason);
                on.push(sub);
            }
        }
        (again, on)
    }

    /// For those that wait there is no publisher left, or no time.
    fn give_up(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let mut by_reason: HashMap<Option<Arc<str>>, Vec<Arc<Sub>>> = HashMap::new();
        for sub in waiting {
            let reason = self.refusals.remove(&sub.key.0);
            by_reason.entry(reason).or_default().push(sub);
        }
        for (reason, subs) in by_reason {
            let why = match reason {
                Some(reason) => SubscribeError::Refused(reason),
                None if self.no_link.is_empty() => {
                    SubscribeError::NoLink(format!("no answer within {TRY_WAIT_MAX:?}").into())
                }
                None => SubscribeError::NoLink(self.no_link.join("; ").into()),
            };
            self.director.failed(subs, &why);
        }
    }
}

impl Load {
    /// Waits until some came to nothing, or all are answered, or the time for it is over. Gives at which publisher that was, what is left of
    /// the load, and those that came to nothing.
    async fn answered<N: Net>(
        mut self,
        director: &Arc<Director<N>>,
    ) -> (usize, Option<Load>, Lost) {
        let asked = match self.asked.take() {
            Some(asked) => asked,
            // The link that was won, or, if it held nothing for a while since, another.
            None => match director.link_to(self.publisher.clone()).await {
                Ok(link) => Asked::of(link, self.subs.clone(), director.now()),
                Err(reason) => {
                    let reason = Arc::from(reason);
                    let refused = self.subs.into_iter().map(|sub| (sub, Arc::clone(&reason)));
                    return (self.at, None, refused.collect());
                }
            },
        };
        let in_time = timeout_at(asked.until, asked.batch.news()).await.is_ok();
        let mut late = Lost::new();
        if !in_time {
            let reason: Arc<str> = format!("no answer within {ANSWER_WAIT_MAX:?}").into();
            let withdrawn = self.subs.iter().filter(|sub| sub.withdraw(&asked.link, &asked.batch));
            late.extend(withdrawn.map(|sub| (sub.clone(), reason.clone())));
            director.is_mute(self.publisher.id);
        }
        // Whoever is being refused at this moment holds the table: all of the frame is in the batch after it.
        drop(asked.link.table.lock());
        let (mut refused, more) = asked.batch.take_refused();
        refused.append(&mut late);
        for (_, reason) in refused.iter_mut().filter(|(_, reason)| **reason != *IDLE) {
            *reason = format!("{}: {reason}", self.publisher.name).into();
        }
        self.asked = Some(asked);
        (self.at, (more && in_time).then_some(self), refused)
    }
}

impl Asked {
    fn of(link: Arc<ValueLink>, subs: Vec<Arc<Sub>>, now: Duration) -> Asked {
        let batch = Arc::new(Batch::default());
        for (sub, reason) in link.hold(now, subs, &batch) {
            batch.ask();
            batch.refuse(sub, reason);
        }
        Asked { link, batch, until: Instant::now() + ANSWER_WAIT_MAX }
    }
}
