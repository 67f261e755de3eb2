//! Holding one group: at the publisher that is tried first, those that it refuses at the next, and so on. Each goes on as soon as it is
//! refused, whatever the others wait for.
//!
//! ```text
//!  waiting ─▶ race for a link ─▶ load at publisher 1 ─refused─▶ race ─▶ load at publisher 2 ─refused─▶ waiting ─▶ race …
//! ```
//!
//! A link that stands wins its race at once. One that held nothing for a while was closed meanwhile and is made anew: its publisher may
//! hang by now, so it is raced as in the beginning, and no longer than the try has.

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
    /// Not tried yet, in order; `None` while one of the races has them.
    candidates: Option<VecDeque<PublisherInfo>>,
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

/// Subscriptions, and where they have been.
struct Party {
    subs: Vec<Arc<Sub>>,
    /// So many of those that took a link are known to them.
    known: usize,
    /// Those of the known that are still to be asked.
    left: VecDeque<PublisherInfo>,
}

/// Subscriptions, and the publishers among whom there is a race for their link.
struct Race {
    party: Party,
    among: VecDeque<PublisherInfo>,
    /// The candidates are with it.
    has_candidates: bool,
    /// Who won, or why nobody did; nothing until then, and when the time for it is over.
    outcome: Option<Result<Won, Vec<String>>>,
}

/// Who won a race, and the link to it.
type Won = (PublisherInfo, Arc<ValueLink>);

/// Subscriptions that went to one publisher together and are not all answered.
struct Load {
    party: Party,
    publisher: PublisherInfo,
    asked: Asked,
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
            candidates: Some(candidates),
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
        let run = |race: Race| race.run(director, until);
        let mut loads = FuturesUnordered::new();
        let mut races = FuturesUnordered::new();
        loop {
            races.extend(self.next_of_the_waiting().map(run));
            tokio::select! {
                Some(race) = races.next() => {
                    let (to_load, again) = self.raced(race);
                    loads.extend(to_load.into_iter().flatten().map(answered));
                    races.extend(again.map(run));
                }
                Some((load, more, refused)) = loads.next() => {
                    for party in self.refused(&load, refused) {
                        races.extend(self.next(party).map(run));
                    }
                    loads.extend(more.then_some(load).map(answered));
                }
                else => return,
            }
        }
    }

    /// Those that wait go on together, to whoever was not tried yet.
    fn next_of_the_waiting(&mut self) -> Option<Race> {
        if self.waiting.is_empty() || self.candidates.is_none() {
            return None;
        }
        let among = self.candidates.take().filter(|_| Instant::now() < self.until);
        let Some(among) = among.filter(|among| !among.is_empty()) else {
            self.candidates = Some(VecDeque::new());
            self.give_up();
            return None;
        };
        let (subs, known) = (std::mem::take(&mut self.waiting), self.won.len());
        let party = Party { subs, known, left: VecDeque::new() };
        Some(Race { party, among, has_candidates: true, outcome: None })
    }

    /// Where these go on: to the next of those that took a link, with the candidates beside it should it not answer. Without any, or
    /// without time, they wait.
    fn next(&mut self, mut party: Party) -> Option<Race> {
        if party.subs.is_empty() {
            return None;
        }
        let mut among = std::mem::take(&mut party.left);
        among.extend(self.won.iter().skip(party.known).cloned());
        party.known = self.won.len();
        if among.is_empty() || Instant::now() >= self.until {
            self.waiting.append(&mut party.subs);
            return None;
        }
        // With none left nobody waits for this race: those that all have refused are told at once.
        let candidates = self.candidates.take_if(|candidates| !candidates.is_empty());
        let has_candidates = candidates.is_some();
        among.extend(candidates.into_iter().flatten());
        Some(Race { party, among, has_candidates, outcome: None })
    }

    /// A race is over. Gives who is to be loaded now, and the next race if there was no link.
    fn raced(&mut self, race: Race) -> ([Option<Load>; 2], Option<Race>) {
        let Race { mut party, among, has_candidates, outcome } = race;
        // Those of the first kind were all there when it began: only a race that has the candidates adds to them.
        let known = || self.won.iter().take(party.known);
        let is_known = |publisher: &PublisherInfo| known().any(|one| one.id == publisher.id);
        let (left, candidates): (VecDeque<_>, VecDeque<_>) = among.into_iter().partition(is_known);
        let is_new = matches!(&outcome, Some(Ok((publisher, _))) if !is_known(publisher));
        party.left = left;
        if has_candidates {
            self.candidates = Some(candidates);
        }
        match outcome {
            Some(Ok((publisher, link))) => {
                let mut waiting = None;
                if is_new {
                    self.won.push(publisher.clone());
                    party.known = self.won.len();
                    let subs = std::mem::take(&mut self.waiting);
                    if party.left.is_empty() {
                        party.subs.extend(subs);
                    } else if !subs.is_empty() {
                        waiting = Some(Party { subs, known: party.known, left: VecDeque::new() });
                    }
                }
                let load = |party| self.load(party, &publisher, &link);
                ([Some(load(party)), waiting.map(load)], None)
            }
            Some(Err(failures)) => {
                self.no_link.extend(failures);
                ([None, None], self.next(party))
            }
            // Its time is over.
            None => {
                self.waiting.append(&mut party.subs);
                ([None, None], None)
            }
        }
    }

    /// That publisher is asked for these.
    fn load(&self, party: Party, publisher: &PublisherInfo, link: &Arc<ValueLink>) -> Load {
        let asked = Asked::of(link.clone(), party.subs.clone(), self.director.now());
        Load { party, publisher: publisher.clone(), asked }
    }

    /// These were refused. Gives those of which the link closed for want of subscriptions just before they came, and those that are to go on.
    fn refused(&mut self, load: &Load, refused: Lost) -> [Party; 2] {
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
        let Party { known, left, .. } = &load.party;
        let mut and_this = left.clone();
        and_this.push_front(load.publisher.clone());
        [
            Party { subs: again, known: *known, left: and_this },
            Party { subs: on, known: *known, left: left.clone() },
        ]
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

impl Race {
    /// Returns with its outcome, or at `until` without.
    async fn run<N: Net>(mut self, director: &Arc<Director<N>>, until: Instant) -> Race {
        let link_to = |publisher| director.link_to(publisher);
        self.outcome = timeout_at(until, race(&mut self.among, link_to)).await.ok();
        self
    }
}

impl Load {
    /// Waits until some came to nothing, or all are answered, or the time for it is over. Gives itself, whether others of it are still
    /// to be answered, and those that came to nothing.
    async fn answered<N: Net>(self, director: &Arc<Director<N>>) -> (Load, bool, Lost) {
        let Asked { link, batch, until } = &self.asked;
        let in_time = timeout_at(*until, batch.news()).await.is_ok();
        let mut late = Lost::new();
        if !in_time {
            let reason: Arc<str> = format!("no answer within {ANSWER_WAIT_MAX:?}").into();
            let withdrawn = self.party.subs.iter().filter(|sub| sub.withdraw(link, batch));
            late.extend(withdrawn.map(|sub| (sub.clone(), reason.clone())));
            director.is_mute(self.publisher.id);
        }
        // Whoever is being refused at this moment holds the table: all of the frame is in the batch after it.
        drop(link.table.lock());
        let (mut refused, more) = batch.take_refused();
        refused.append(&mut late);
        for (_, reason) in refused.iter_mut().filter(|(_, reason)| **reason != *IDLE) {
            *reason = format!("{}: {reason}", self.publisher.name).into();
        }
        (self, more && in_time, refused)
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
