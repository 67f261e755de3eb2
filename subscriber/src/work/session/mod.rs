//! The desk between links and lanes: jobs come in by the batch, lanes take them one by one, ends go
//! out by the batch. It joins the cores under one lock, which nobody holds across an await; a lane
//! takes it once per job, a link once per frame.

mod checkpoints;
mod handler_tasks;
mod lifecycle;
mod links;
mod progress;
mod quiet;
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

use crate::work::lease_signal::LeaseSignal;
use crate::work::state::checkpoints::CheckpointRequest;
use crate::work::state::durable::{Action, DurableSubscription};
use crate::work::state::leases::Leases;
use crate::work::state::pause::PauseDetector;
use crate::work::state::progress::PendingProgress;
use crate::work::state::reconnect_grace::ReconnectGrace;
use crate::work::state::settles::Settles;
use crate::{PublisherState, WorkerStats};

/// Everything that a run of a worker knows.
#[derive(Debug)]
pub(crate) struct WorkerSession {
    pub(crate) started: Instant,
    pause_detector: Mutex<PauseDetector>,
    state: Mutex<State>,
    /// Wakes one lane.
    handler_task_wakeup: Notify,
    /// Wakes the director: something to connect, a deadline that moved, a count that it waits for.
    pub(crate) supervisor: Notify,
    publishers: watch::Sender<Vec<PublisherState>>,
}

/// A publisher's number at the desk; it keeps it when its link dies and comes back.
pub(crate) type SlotId = u32;

/// How times of links become the worker's own.
#[derive(Clone, Copy, Debug)]
struct RunClock {
    started: Instant,
    pause_detector: PauseDetector,
}

#[derive(Debug)]
struct State {
    durable: DurableSubscription,
    actions: Vec<Action>,
    published_revision: u64,
    take_connects: Vec<Connect>,
    slots: Vec<PublisherSlot>,
    slot_ids: HashMap<PublisherId, SlotId>,
    /// Jobs that wait for a lane.
    ready: VecDeque<QueuedJob>,
    /// Jobs whose publisher was told that they start: never more than there are lanes for them.
    announced: VecDeque<QueuedJob>,
    announcing: bool,
    concurrency: usize,
    running: usize,
    intake: Intake,
    /// An operator asked that no job begins: what waits is given back, and what comes.
    quiet: bool,
    stats: WorkerStats,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Intake {
    Open,
    /// No job is begun any more.
    Draining,
    /// What handlers still return is not wanted any more.
    Released,
}

/// A publisher to be dialled.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) slot_id: SlotId,
    pub(crate) info: PublisherInfo,
    pub(crate) last: LastAddress,
}

/// One publisher.
#[derive(Debug)]
struct PublisherSlot {
    id: PublisherId,
    /// It is not dialled any more, unless it is found again.
    given_up: bool,
    /// Handlers that run its jobs, whether or not their leases still stand.
    running: usize,
    leases: Leases<Option<Arc<LeaseSignal>>>,
    settles: Settles,
    checkpoints: checkpoints::PendingCheckpoints,
    pending_progress: PendingProgress,
    last_address: LastAddress,
    /// The link, from the moment it is attached.
    sender: Option<LinkSender>,
    grace: ReconnectGrace,
    /// Jobs that may be another worker's by now, until a byte comes or their leases are over.
    suspended: VecDeque<QueuedJob>,
    wake: Arc<Notify>,
    /// To be said at the next opportunity.
    grant: u32,
    recall: u32,
    unsubscribe: bool,
    /// The publisher is to be told whether the worker is quiet: the number of what it asked, or 0.
    quiet_reply: Option<u64>,
}

/// A job that waits for a lane.
#[derive(Debug)]
pub(crate) struct QueuedJob {
    pub(crate) slot_id: SlotId,
    pub(crate) token: Token,
    pub(crate) path: Path,
    pub(crate) attempt: u16,
    pub(crate) deliveries: u16,
    pub(crate) checkpoints: u16,
    pub(crate) entry: Bytes,
}

/// What a handler made of its job.
#[derive(Debug)]
pub(crate) struct FinishedJob {
    pub(crate) slot_id: SlotId,
    pub(crate) token: Token,
    pub(crate) settle: NewSettle,
    pub(crate) panicked: bool,
    pub(crate) damaged: bool,
}

/// What a lane that asks for work is told.
#[derive(Debug)]
pub(crate) enum HandlerTaskStep {
    /// Run this.
    Run(QueuedJob),
    /// Tell these publishers that these attempts begin, then call [`WorkerSession::announced`], whatever
    /// becomes of the telling.
    Announce(Vec<(LinkSender, Tokens)>, Vec<QueuedJob>),
    /// Wait for [`WorkerSession::wait`], then ask again.
    Wait,
    /// There will be no more.
    Stop,
}

/// What a link is to send, in this order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) checkpoint_requests: Vec<CheckpointRequest>,
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
pub(crate) struct ExcessJobs {
    held: usize,
    limit: usize,
}

impl WorkerSession {
    pub(crate) fn new(concurrency: usize, bound: usize, seed: u64) -> Arc<WorkerSession> {
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        Arc::new(WorkerSession {
            started: Instant::now(),
            pause_detector: Mutex::default(),
            state: Mutex::new(State {
                durable: DurableSubscription::new(bound, seed),
                actions: Vec::new(),
                published_revision: 0,
                take_connects: Vec::new(),
                slots: Vec::new(),
                slot_ids: HashMap::new(),
                ready: VecDeque::new(),
                announced: VecDeque::new(),
                announcing: false,
                concurrency,
                running: 0,
                intake: Intake::Open,
                quiet: false,
                stats: WorkerStats::default(),
            }),
            handler_task_wakeup: Notify::new(),
            supervisor: Notify::new(),
            publishers: watch::Sender::default(),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The worker runs: to be said every [`TICK_INTERVAL`](crate::standstill::TICK).
    pub(crate) fn record_tick(&self) {
        self.pause_detector.lock().tick(self.now());
    }

    fn clock(&self) -> RunClock {
        RunClock { started: self.started, pause_detector: *self.pause_detector.lock() }
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        self.state.lock().stats_now()
    }

    pub(crate) fn publishers(&self) -> watch::Receiver<Vec<PublisherState>> {
        self.publishers.subscribe()
    }
}

impl State {
    fn slot(&mut self, slot_id: SlotId) -> &mut PublisherSlot {
        &mut self.slots[slot_id as usize]
    }

    fn slot_of(&mut self, publisher: PublisherId) -> &mut PublisherSlot {
        let slot_id = self.slot_for(publisher);
        self.slot(slot_id)
    }

    /// The publisher's place; a new one takes that of a publisher that was given up, if there is
    /// one that nothing refers to.
    fn slot_for(&mut self, publisher: PublisherId) -> SlotId {
        if let Some(id) = self.slot_ids.get(&publisher) {
            return *id;
        }
        // Jobs that are being announced may be of any place.
        let free = |slot: &PublisherSlot| !self.announcing && slot.is_free();
        let id = match self.slots.iter().position(free) {
            Some(at) => {
                let old = std::mem::replace(&mut self.slots[at], PublisherSlot::new(publisher));
                self.slot_ids.remove(&old.id);
                at as SlotId
            }
            None => {
                self.slots.push(PublisherSlot::new(publisher));
                (self.slots.len() - 1) as SlotId
            }
        };
        self.slot_ids.insert(publisher, id);
        id
    }

    /// Takes as many jobs as there are lanes without one, and whom to tell of them. One whose lease
    /// is over is another worker's by now, whether or not its link has seen that already: after a
    /// pause of the process, lanes may be first. One whose publisher has been silent for its grace
    /// may be another's, and is put aside.
    fn announce(&mut self, clock: RunClock, now: Duration) -> HandlerTaskStep {
        let free = self.concurrency.saturating_sub(self.running + self.announced.len());
        let mut jobs = Vec::with_capacity(free.min(self.ready.len()));
        let mut query_answered: Vec<(LinkSender, Tokens)> = Vec::new();
        let mut last = None;
        while jobs.len() < free
            && let Some(job) = self.ready.pop_front()
        {
            let slot = &mut self.slots[job.slot_id as usize];
            let owned = slot.owns_jobs(clock, now);
            let lease = slot.leases.get_mut(job.token).filter(|lease| now < lease.ends());
            let Some(lease) = lease else { continue };
            if !owned {
                slot.suspend(job);
                continue;
            }
            lease.began = Some(now);
            // Jobs come by the batch, so neighbours are mostly of one publisher.
            match (&mut query_answered[..], &slot.sender) {
                ([.., (_, tokens)], _) if last == Some(job.slot_id) => tokens.0.push(job.token),
                (_, Some(sender)) => {
                    query_answered.push((sender.clone(), Tokens(vec![job.token])));
                    last = Some(job.slot_id);
                }
                // It is told when its link is attached again.
                (_, None) => {}
            }
            jobs.push(job);
        }
        if jobs.is_empty() {
            return HandlerTaskStep::Wait;
        }
        self.announcing = true;
        HandlerTaskStep::Announce(query_answered, jobs)
    }

    /// Jobs whose leases have gone leave the queues, so that these are never longer than what is
    /// held.
    fn remove_lost_jobs(&mut self) {
        for PublisherSlot { suspended, leases, .. } in &mut self.slots {
            suspended.retain(|job| leases.get_mut(job.token).is_some());
        }
        let slots = &mut self.slots;
        let mut held =
            |job: &QueuedJob| slots[job.slot_id as usize].leases.get_mut(job.token).is_some();
        self.ready.retain(&mut held);
        self.announced.retain(&mut held);
    }

    /// What was put aside may be begun again, if a byte of its publisher came. True if there is
    /// some.
    fn resume_suspended(&mut self, slot_id: SlotId, clock: RunClock, now: Duration) -> bool {
        let slot = &mut self.slots[slot_id as usize];
        if slot.suspended.is_empty() || !slot.owns_jobs(clock, now) {
            return false;
        }
        while let Some(job) = slot.suspended.pop_back() {
            self.ready.push_front(job);
        }
        true
    }

    fn stats_now(&self) -> WorkerStats {
        let (alive, all) = self.durable.counts();
        let held = |slot: &PublisherSlot| slot.leases.len() as u64 + slot.settles.unsent_jobs();
        WorkerStats {
            in_hand: self.slots.iter().map(held).sum(),
            running: self.running as u64,
            publishers_alive: alive as u64,
            publishers: all as u64,
            ..self.stats.clone()
        }
    }
}

impl PublisherSlot {
    fn new(id: PublisherId) -> PublisherSlot {
        PublisherSlot {
            id,
            given_up: false,
            running: 0,
            leases: Leases::default(),
            settles: Settles::default(),
            checkpoints: checkpoints::PendingCheckpoints::default(),
            pending_progress: PendingProgress::default(),
            last_address: LastAddress::default(),
            sender: None,
            grace: ReconnectGrace::default(),
            suspended: VecDeque::new(),
            wake: Arc::default(),
            grant: 0,
            recall: 0,
            unsubscribe: false,
            quiet_reply: None,
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
    fn owns_jobs(&mut self, clock: RunClock, now: Duration) -> bool {
        self.update_last_byte(clock, now);
        self.grace.protects(now)
    }

    /// Takes over when the link's last byte came.
    fn update_last_byte(&mut self, clock: RunClock, now: Duration) {
        if let Some(sender) = &self.sender {
            let read = sender.received_at().saturating_duration_since(clock.started);
            self.grace.byte_received(clock.pause_detector.arrival_time(now, read));
        }
    }

    /// The job may be another worker's. It has not been announced.
    fn suspend(&mut self, job: QueuedJob) {
        self.suspended.push_back(job);
        self.wake.notify_one();
    }
}

/// Shows a worker's counts and publishers while it runs. Cheap to clone. Before the run everything
/// is 0.
#[derive(Clone, Debug, Default)]
pub struct StatsWatch {
    session: Arc<OnceLock<Arc<WorkerSession>>>,
}

impl StatsWatch {
    pub(crate) fn show(&self, session: Arc<WorkerSession>) {
        // A subscription runs once: it is empty before.
        let _ = self.session.set(session);
    }

    /// The counts as they are now.
    pub fn now(&self) -> WorkerStats {
        self.session.get().map(|session| session.stats()).unwrap_or_default()
    }

    /// True while an operator has asked that no job begins (`longshore workers quiet`): those that
    /// run go on.
    pub fn is_quiet(&self) -> bool {
        self.session.get().is_some_and(|session| session.is_quiet())
    }

    /// How the subscription stands at each publisher; none before the run.
    pub fn publishers(&self) -> Vec<PublisherState> {
        self.session.get().map(|session| session.publishers().borrow().clone()).unwrap_or_default()
    }

    /// The same as a watchable value, changed with each publisher's standing. `None` before the
    /// run.
    pub fn watch_publishers(&self) -> Option<watch::Receiver<Vec<PublisherState>>> {
        self.session.get().map(|session| session.publishers())
    }
}
