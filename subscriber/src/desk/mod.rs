//! The desk between links and lanes: jobs come in by the batch, lanes take them one by one, ends go
//! out by the batch. It joins the cores under one lock, which nobody holds across an await; a lane
//! takes it once per job, a link once per frame.

mod checkpoints;
mod lanes;
mod links;
mod progress;
mod quiet;
mod run;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::messages::work::{NewSettle, Progress, Quiet, Tokens};
use longshore_protocol::{Path, PublisherId, PublisherInfo, Token};
use longshore_transport::{LastAddress, LinkSender};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::checkpoints::ToSend;
use crate::durable::{Action, Durable};
use crate::grace::Grace;
use crate::leases::Leases;
use crate::progress::Progresses;
use crate::settles::Settles;
use crate::signal::LeaseSignal;
use crate::standstill::Standstill;
use crate::{PublisherState, WorkerStats};

/// Everything that a run of a worker knows.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) started: Instant,
    standstill: Mutex<Standstill>,
    state: Mutex<State>,
    /// Wakes one lane.
    lanes: Notify,
    /// Wakes the director: something to connect, a deadline that moved, a count that it waits for.
    pub(crate) director: Notify,
    publishers: watch::Sender<Vec<PublisherState>>,
}

/// A publisher's number at the desk; it keeps it when its link dies and comes back.
pub(crate) type PlaceId = u32;

/// How times of links become the worker's own.
#[derive(Clone, Copy, Debug)]
struct Ran {
    started: Instant,
    standstill: Standstill,
}

#[derive(Debug)]
struct State {
    durable: Durable,
    actions: Vec<Action>,
    shown: u64,
    connects: Vec<Connect>,
    places: Vec<Place>,
    place_ids: HashMap<PublisherId, PlaceId>,
    /// Jobs that wait for a lane.
    ready: VecDeque<Waiting>,
    /// Jobs whose publisher was told that they start: never more than there are lanes for them.
    announced: VecDeque<Waiting>,
    announcing: bool,
    concurrency: usize,
    running: usize,
    stage: Stage,
    /// An operator asked that no job begins: what waits is given back, and what comes.
    quiet: bool,
    stats: WorkerStats,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Open,
    /// No job is begun any more.
    Draining,
    /// What handlers still return is not wanted any more.
    GivenBack,
}

/// A publisher to be dialled.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) place: PlaceId,
    pub(crate) info: PublisherInfo,
    pub(crate) last: LastAddress,
}

/// One publisher.
#[derive(Debug)]
struct Place {
    id: PublisherId,
    /// It is not dialled any more, unless it is found again.
    given_up: bool,
    /// Handlers that run its jobs, whether or not their leases still stand.
    running: usize,
    leases: Leases<Option<Arc<LeaseSignal>>>,
    settles: Settles,
    checkpoints: checkpoints::Waiting,
    progresses: Progresses,
    last_address: LastAddress,
    /// The link, from the moment it is attached.
    sender: Option<LinkSender>,
    grace: Grace,
    /// Jobs that may be another worker's by now, until a byte comes or their leases are over.
    aside: VecDeque<Waiting>,
    wake: Arc<Notify>,
    /// To be said at the next opportunity.
    grant: u32,
    recall: u32,
    unsubscribe: bool,
    /// The publisher is to be told whether the worker is quiet: the number of what it asked, or 0.
    quiet_to_say: Option<u64>,
}

/// A job that waits for a lane.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) place: PlaceId,
    pub(crate) token: Token,
    pub(crate) path: Path,
    pub(crate) attempt: u16,
    pub(crate) deliveries: u16,
    pub(crate) checkpoints: u16,
    pub(crate) entry: Bytes,
}

/// What a handler made of its job.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) place: PlaceId,
    pub(crate) token: Token,
    pub(crate) settle: NewSettle,
    pub(crate) panicked: bool,
    pub(crate) damaged: bool,
}

/// What a lane that asks for work is told.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run this.
    Job(Waiting),
    /// Tell these publishers that these attempts begin, then call [`Desk::announced`], whatever
    /// becomes of the telling.
    Announce(Vec<(LinkSender, Tokens)>, Vec<Waiting>),
    /// Wait for [`Desk::wait`], then ask again.
    Nothing,
    /// There will be no more.
    Stop,
}

/// What a link is to send, in this order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) asked: Vec<ToSend>,
    pub(crate) settles: Vec<Bytes>,
    pub(crate) unsubscribe: bool,
    pub(crate) grant: u32,
    pub(crate) recall: u32,
    /// Credits are asked back before anything is settled: what is given back would come again by
    /// them.
    pub(crate) recall_first: bool,
    pub(crate) renew: Vec<Token>,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) progress: Vec<Progress>,
    /// There are more settles or checkpoints: ask again once these are sent.
    pub(crate) more: bool,
    /// When to ask again if nothing happens before.
    pub(crate) deadline: Option<Duration>,
}

/// A publisher pushed more jobs than a link could ever resume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it pushed jobs far beyond its credits: {held} are held, the limit is {limit}")]
pub(crate) struct Flooded {
    held: usize,
    limit: usize,
}

impl Desk {
    pub(crate) fn new(concurrency: usize, bound: usize, seed: u64) -> Arc<Desk> {
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        Arc::new(Desk {
            started: Instant::now(),
            standstill: Mutex::default(),
            state: Mutex::new(State {
                durable: Durable::new(bound, seed),
                actions: Vec::new(),
                shown: 0,
                connects: Vec::new(),
                places: Vec::new(),
                place_ids: HashMap::new(),
                ready: VecDeque::new(),
                announced: VecDeque::new(),
                announcing: false,
                concurrency,
                running: 0,
                stage: Stage::Open,
                quiet: false,
                stats: WorkerStats::default(),
            }),
            lanes: Notify::new(),
            director: Notify::new(),
            publishers: watch::Sender::default(),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The worker runs: to be said every [`TICK`](crate::standstill::TICK).
    pub(crate) fn beat(&self) {
        self.standstill.lock().tick(self.now());
    }

    fn ran(&self) -> Ran {
        Ran { started: self.started, standstill: *self.standstill.lock() }
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        self.state.lock().stats_now()
    }

    pub(crate) fn publishers(&self) -> watch::Receiver<Vec<PublisherState>> {
        self.publishers.subscribe()
    }
}

impl State {
    fn place(&mut self, place: PlaceId) -> &mut Place {
        &mut self.places[place as usize]
    }

    fn place_at(&mut self, publisher: PublisherId) -> &mut Place {
        let place = self.place_of(publisher);
        self.place(place)
    }

    /// The publisher's place; a new one takes that of a publisher that was given up, if there is
    /// one that nothing refers to.
    fn place_of(&mut self, publisher: PublisherId) -> PlaceId {
        if let Some(id) = self.place_ids.get(&publisher) {
            return *id;
        }
        // Jobs that are being announced may be of any place.
        let free = |place: &Place| !self.announcing && place.is_free();
        let id = match self.places.iter().position(free) {
            Some(at) => {
                let old = std::mem::replace(&mut self.places[at], Place::new(publisher));
                self.place_ids.remove(&old.id);
                at as PlaceId
            }
            None => {
                self.places.push(Place::new(publisher));
                (self.places.len() - 1) as PlaceId
            }
        };
        self.place_ids.insert(publisher, id);
        id
    }

    /// Takes as many jobs as there are lanes without one, and whom to tell of them. One whose lease
    /// is over is another worker's by now, whether or not its link has seen that already: after a
    /// pause of the process, lanes may be first. One whose publisher has been silent for its grace
    /// may be another's, and is put aside.
    fn announce(&mut self, ran: Ran, now: Duration) -> Next {
        let free = self.concurrency.saturating_sub(self.running + self.announced.len());
        let mut jobs = Vec::with_capacity(free.min(self.ready.len()));
        let mut told: Vec<(LinkSender, Tokens)> = Vec::new();
        let mut last = None;
        while jobs.len() < free
            && let Some(job) = self.ready.pop_front()
        {
            let place = &mut self.places[job.place as usize];
            let owned = place.owns(ran, now);
            let lease = place.leases.get_mut(job.token).filter(|lease| now < lease.ends());
            let Some(lease) = lease else { continue };
            if !owned {
                place.put_aside(job);
                continue;
            }
            lease.began = Some(now);
            // Jobs come by the batch, so neighbours are mostly of one publisher.
            match (&mut told[..], &place.sender) {
                ([.., (_, tokens)], _) if last == Some(job.place) => tokens.0.push(job.token),
                (_, Some(sender)) => {
                    told.push((sender.clone(), Tokens(vec![job.token])));
                    last = Some(job.place);
                }
                // It is told when its link is attached again.
                (_, None) => {}
            }
            jobs.push(job);
        }
        if jobs.is_empty() {
            return Next::Nothing;
        }
        self.announcing = true;
        Next::Announce(told, jobs)
    }

    /// Jobs whose leases have gone leave the queues, so that these are never longer than what is
    /// held.
    fn drop_the_lost(&mut self) {
        for Place { aside, leases, .. } in &mut self.places {
            aside.retain(|job| leases.get_mut(job.token).is_some());
        }
        let places = &mut self.places;
        let mut held =
            |job: &Waiting| places[job.place as usize].leases.get_mut(job.token).is_some();
        self.ready.retain(&mut held);
        self.announced.retain(&mut held);
    }

    /// What was put aside may be begun again, if a byte of its publisher came. True if there is
    /// some.
    fn take_from_aside(&mut self, place: PlaceId, ran: Ran, now: Duration) -> bool {
        let at = &mut self.places[place as usize];
        if at.aside.is_empty() || !at.owns(ran, now) {
            return false;
        }
        while let Some(job) = at.aside.pop_back() {
            self.ready.push_front(job);
        }
        true
    }

    fn stats_now(&self) -> WorkerStats {
        let (alive, all) = self.durable.counts();
        let held = |place: &Place| place.leases.len() as u64 + place.settles.held();
        WorkerStats {
            in_hand: self.places.iter().map(held).sum(),
            running: self.running as u64,
            publishers_alive: alive as u64,
            publishers: all as u64,
            ..self.stats.clone()
        }
    }
}

impl Place {
    fn new(id: PublisherId) -> Place {
        Place {
            id,
            given_up: false,
            running: 0,
            leases: Leases::default(),
            settles: Settles::default(),
            checkpoints: checkpoints::Waiting::default(),
            progresses: Progresses::default(),
            last_address: LastAddress::default(),
            sender: None,
            grace: Grace::default(),
            aside: VecDeque::new(),
            wake: Arc::default(),
            grant: 0,
            recall: 0,
            unsubscribe: false,
            quiet_to_say: None,
        }
    }

    /// Its publisher was given up, and no link, job or handler is of it any more.
    fn is_free(&self) -> bool {
        self.given_up
            && self.sender.is_none()
            && self.running == 0
            && self.leases.len() == 0
            && self.settles.unanswered() == 0
    }

    /// True while no other worker can have been given what is held from the publisher.
    fn owns(&mut self, ran: Ran, now: Duration) -> bool {
        self.hear(ran, now);
        self.grace.holds(now)
    }

    /// Takes over when the link's last byte came.
    fn hear(&mut self, ran: Ran, now: Duration) {
        if let Some(sender) = &self.sender {
            let read = sender.received_at().saturating_duration_since(ran.started);
            self.grace.heard(ran.standstill.came(now, read));
        }
    }

    /// The job may be another worker's. It has not been announced.
    fn put_aside(&mut self, job: Waiting) {
        self.aside.push_back(job);
        self.wake.notify_one();
    }
}

/// Shows a worker's counts and publishers while it runs. Cheap to clone. Before the run everything
/// is 0.
#[derive(Clone, Debug, Default)]
pub struct StatsWatch {
    desk: Arc<OnceLock<Arc<Desk>>>,
}

impl StatsWatch {
    pub(crate) fn show(&self, desk: Arc<Desk>) {
        // A subscription runs once: it is empty before.
        let _ = self.desk.set(desk);
    }

    /// The counts as they are now.
    pub fn now(&self) -> WorkerStats {
        self.desk.get().map(|desk| desk.stats()).unwrap_or_default()
    }

    /// True while an operator has asked that no job begins (`longshore workers quiet`): those that
    /// run go on.
    pub fn is_quiet(&self) -> bool {
        self.desk.get().is_some_and(|desk| desk.is_quiet())
    }

    /// How the subscription stands at each publisher; none before the run.
    pub fn publishers(&self) -> Vec<PublisherState> {
        self.desk.get().map(|desk| desk.publishers().borrow().clone()).unwrap_or_default()
    }

    /// The same as a watchable value, changed with each publisher's standing. `None` before the
    /// run.
    pub fn watch_publishers(&self) -> Option<watch::Receiver<Vec<PublisherState>>> {
        self.desk.get().map(|desk| desk.publishers())
    }
}
