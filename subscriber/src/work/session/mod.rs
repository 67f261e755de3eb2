//! The state of a worker's run. Links add jobs in batches, handler tasks take them one by one, and
//! settles leave in batches. One lock protects the state machines and is never held across an
//! await; a handler task locks once per job, a link once per frame.

mod checkpoints;
mod handler_tasks;
mod lifecycle;
mod links;
mod progress;
mod quiet;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::messages::work::{JobTimes, NewSettle, Progress, Quiet, Tokens};
use longshore_protocol::{Glob, Path, PublisherId, PublisherInfo, Token};
use longshore_transport::{LastAddress, LinkSender};
use parking_lot::Mutex;
use tokio::sync::{Notify, SetOnce, watch};
use tokio::time::Instant;

pub(crate) use self::checkpoints::earlier;
use crate::work::handler_task::JobClock;
use crate::work::lease_signal::LeaseSignal;
use crate::work::state::blocked::BlockedDetector;
use crate::work::state::checkpoints::CheckpointRequest;
use crate::work::state::counts::SubscriptionCounts;
use crate::work::state::credits::SubscriptionKey;
use crate::work::state::durable::{Action, ReconnectingSubscription};
use crate::work::state::leases::Leases;
use crate::work::state::pause::PauseDetector;
use crate::work::state::progress::PendingProgress;
use crate::work::state::ready_jobs::{ReadyJobs, SourceLimits};
use crate::work::state::reconnect_grace::ReconnectGrace;
use crate::work::state::run_length::RunLength;
use crate::work::state::settles::Settles;
use crate::work::state::subscriptions;
use crate::{PublisherState, SubscriptionStatus, WorkerStats};

/// The shared state of a run.
#[derive(Debug)]
pub(crate) struct WorkerSession {
    pub(crate) started: Instant,
    /// How long a handler has to return once its job was taken away.
    cancel_grace: Duration,
    pause_detector: Mutex<PauseDetector>,
    state: Mutex<State>,
    /// Wakes one handler task.
    handler_task_wakeup: Notify,
    /// Wakes the supervisor: a publisher to dial, a changed deadline, or a changed count.
    pub(crate) supervisor: Notify,
    publishers: watch::Sender<Vec<PublisherState>>,
}

/// The index of a publisher's slot, which stays the same over reconnects.
pub(crate) type SlotId = u32;

/// Converts a link's timestamps to the worker's time.
#[derive(Clone, Copy, Debug)]
struct RunClock {
    started: Instant,
    pause_detector: PauseDetector,
}

#[derive(Debug)]
struct State {
    durable: ReconnectingSubscription,
    actions: Vec<Action>,
    published_revision: u64,
    connects: Vec<Connect>,
    slots: Vec<PublisherSlot>,
    slot_ids: HashMap<PublisherId, SlotId>,
    /// The patterns of sources with limits; empty without limits.
    patterns: Vec<Glob>,
    /// Jobs that wait for a handler task.
    ready: ReadyJobs<QueuedJob>,
    /// Jobs that were reported as started, and have not begun.
    announced: VecDeque<QueuedJob>,
    announcing: bool,
    /// When a handler task that began last woke another; none once a woken one has begun.
    waking_since: Option<Duration>,
    run_length: RunLength,
    concurrency: usize,
    /// Handler tasks with a job.
    running: usize,
    /// Those whose job was settled, and whose blocking handler still runs.
    outlived: usize,
    intake: Intake,
    /// An operator requested quiet.
    quiet: bool,
    /// Publishers have no space for more results than may wait here.
    is_full: bool,
    handlers: BlockedDetector,
    stats: WorkerStats,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Intake {
    Open,
    /// No further job starts.
    Draining,
    /// Running jobs were released: what their handlers return is dropped.
    Released,
}

/// A publisher to dial.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) slot_id: SlotId,
    pub(crate) info: PublisherInfo,
    pub(crate) last: LastAddress,
}

/// The state of one publisher.
#[derive(Debug)]
struct PublisherSlot {
    id: PublisherId,
    /// The publisher is not dialled any more, unless it is found again.
    forgotten: bool,
    /// Handlers that run its jobs, with or without a lease.
    running: usize,
    leases: Leases<LeasedJob>,
    settles: Settles,
    checkpoints: checkpoints::PendingCheckpoints,
    pending_progress: PendingProgress,
    last_address: LastAddress,
    /// The link, once it is attached.
    sender: Option<LinkSender>,
    /// A failed attempt was logged since the last link.
    failure_logged: bool,
    grace: ReconnectGrace,
    /// Jobs that another worker may have, until a byte arrives or their leases are over.
    suspended: VecDeque<QueuedJob>,
    wake: Arc<Notify>,
    /// Credits to grant, credits to recall, and the unsubscription: to send next.
    grant: SubscriptionCounts,
    recall: SubscriptionCounts,
    unsubscribe: bool,
    /// The quiet state is to be reported: the number of the request, or 0.
    quiet_reply: Option<u64>,
}

/// A job with a lease.
#[derive(Default, Debug)]
struct LeasedJob {
    /// The index of the subscription that brought it.
    subscription: u32,
    holder: LeaseHolder,
}

/// What needs a job's lease.
#[derive(Default, Debug)]
enum LeaseHolder {
    /// It waits for a handler.
    #[default]
    Queue,
    /// It runs.
    Handler(Arc<LeaseSignal>),
    /// Its settle waits for the link, or for space at the publisher: without the lease the job
    /// would run again. Sending the settle ends it.
    Settle,
}

impl LeasedJob {
    /// Only its settle needs the lease.
    fn of_settle() -> LeasedJob {
        LeasedJob { subscription: 0, holder: LeaseHolder::Settle }
    }

    fn signal(&self) -> Option<&Arc<LeaseSignal>> {
        match &self.holder {
            LeaseHolder::Handler(signal) => Some(signal),
            LeaseHolder::Queue | LeaseHolder::Settle => None,
        }
    }

    fn is_settled(&self) -> bool {
        matches!(self.holder, LeaseHolder::Settle)
    }
}

/// A job that waits for a handler task.
#[derive(Debug)]
pub(crate) struct QueuedJob {
    pub(crate) slot_id: SlotId,
    pub(crate) subscription: u32,
    pub(crate) source: usize,
    pub(crate) token: Token,
    pub(crate) path: Path,
    pub(crate) attempt: u16,
    pub(crate) deliveries: u16,
    pub(crate) checkpoints: u16,
    pub(crate) times: JobTimes,
    pub(crate) entry: Bytes,
}

/// The outcome of a handler.
#[derive(Debug)]
pub(crate) struct FinishedJob {
    pub(crate) slot_id: SlotId,
    pub(crate) subscription: u32,
    pub(crate) source: usize,
    pub(crate) token: Token,
    pub(crate) settle: NewSettle,
    /// Its settle was sent before its handler task was free.
    pub(crate) settled: bool,
    pub(crate) panicked: bool,
    pub(crate) damaged: bool,
}

/// What a handler task does next.
#[derive(Debug)]
pub(crate) enum HandlerTaskStep {
    /// Run this job.
    Run(QueuedJob),
    /// Report these attempts as started, then call [`WorkerSession::announced`], whether or not the
    /// messages were sent.
    Announce(Vec<(LinkSender, Tokens)>, Vec<QueuedJob>),
    /// Wait for [`WorkerSession::wait`], then try again.
    Wait,
    /// There are no more jobs.
    Stop,
}

/// What a link is to send, in this order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) checkpoint_requests: Vec<CheckpointRequest>,
    pub(crate) settles: Vec<Bytes>,
    pub(crate) unsubscribe: bool,
    pub(crate) grant: SubscriptionCounts,
    pub(crate) recall: SubscriptionCounts,
    /// The recall goes before the settles: after a release, unused credits would bring the job
    /// again.
    pub(crate) recall_first: bool,
    pub(crate) renew: Vec<Token>,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) progress: Vec<Progress>,
    /// More settles or checkpoints are ready once these are sent.
    pub(crate) more: bool,
    /// When to call again if nothing happens before.
    pub(crate) deadline: Option<Duration>,
}

/// A publisher pushed more jobs than a link could ever resume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the publisher pushed jobs far beyond its credits: {jobs_held} held, over the limit of {limit}"
)]
pub(crate) struct ExcessJobs {
    jobs_held: usize,
    limit: usize,
}

impl WorkerSession {
    /// `limits` has a pattern for each limited source, or is empty: then jobs begin in the order
    /// of their arrival.
    pub(crate) fn new(
        concurrency: usize,
        bound: usize,
        limits: Vec<(Glob, SourceLimits)>,
        cancel_grace: Duration,
        seed: u64,
    ) -> Arc<WorkerSession> {
        let (patterns, limits): (Vec<Glob>, Vec<SourceLimits>) = limits.into_iter().unzip();
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        let subscriptions = subscriptions::bounds(bound, &limits);
        Arc::new(WorkerSession {
            started: Instant::now(),
            cancel_grace,
            pause_detector: Mutex::default(),
            state: Mutex::new(State {
                durable: ReconnectingSubscription::new(bound, subscriptions, seed),
                actions: Vec::new(),
                published_revision: 0,
                connects: Vec::new(),
                slots: Vec::new(),
                slot_ids: HashMap::new(),
                patterns,
                ready: ReadyJobs::new(&limits),
                announced: VecDeque::new(),
                announcing: false,
                waking_since: None,
                run_length: RunLength::default(),
                concurrency,
                running: 0,
                outlived: 0,
                intake: Intake::Open,
                quiet: false,
                is_full: false,
                handlers: BlockedDetector::default(),
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

    pub(crate) fn clock_of_jobs(&self) -> JobClock {
        JobClock { started: self.started, cancel_grace: self.cancel_grace }
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

    /// The publisher's slot. A new publisher reuses the slot of a forgotten one that nothing refers
    /// to.
    fn slot_for(&mut self, publisher: PublisherId) -> SlotId {
        if let Some(id) = self.slot_ids.get(&publisher) {
            return *id;
        }
        // Jobs that are being announced are in no queue, and may refer to any slot.
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

    /// Takes a run of jobs, with the links to notify. Suspends a job whose lease is over: after a
    /// pause of the process a handler task may notice this before the link does. Suspends a job
    /// whose publisher was silent for its reconnect grace, too: another worker may have it.
    ///
    /// More jobs than there are idle handler tasks are taken only if each is at its first delivery:
    /// a job that kills its worker uses up an attempt of the jobs in its run once, not each time.
    fn announce(&mut self, clock: RunClock, now: Duration) -> HandlerTaskStep {
        let idle = self.concurrency.saturating_sub(self.running + self.announced.len());
        let length = self.run_length.next(now, idle);
        let mut jobs = Vec::with_capacity(length.min(self.ready.startable()));
        let mut notices: Vec<(LinkSender, Tokens)> = Vec::new();
        let mut last = None;
        while jobs.len() < length
            && let Some(job) = self.ready.take()
        {
            if jobs.len() >= idle && job.deliveries > 1 {
                self.ready.not_begun(job.source);
                self.ready.push_front(job.source, job);
                break;
            }
            let slot = &mut self.slots[job.slot_id as usize];
            let owned = slot.owns_jobs(clock, now);
            let Some(lease) = slot.leases.get_mut(job.token) else {
                self.ready.not_begun(job.source);
                continue;
            };
            // The answer to the renewal of a lease that is over may be unread: the link decides.
            if !owned || now >= lease.ends() {
                self.ready.not_begun(job.source);
                slot.suspend(job);
                continue;
            }
            lease.began = Some(now);
            // Jobs arrive in batches, so neighbours are mostly of one publisher.
            match (&mut notices[..], &slot.sender) {
                ([.., (_, tokens)], _) if last == Some(job.slot_id) => tokens.0.push(job.token),
                (_, Some(sender)) => {
                    notices.push((sender.clone(), Tokens(vec![job.token])));
                    last = Some(job.slot_id);
                    if length > idle {
                        // It releases the jobs that do not begin in time.
                        slot.wake.notify_one();
                    }
                }
                // The next link reports the job as started.
                (_, None) => {}
            }
            jobs.push(job);
        }
        if jobs.is_empty() {
            return HandlerTaskStep::Wait;
        }
        self.run_length.reported(now);
        self.announcing = true;
        HandlerTaskStep::Announce(notices, jobs)
    }

    /// Removes jobs without a lease from the queues, so that these never exceed the jobs held.
    fn remove_lost_jobs(&mut self) {
        for PublisherSlot { suspended, leases, .. } in &mut self.slots {
            suspended.retain(|job| leases.get_mut(job.token).is_some());
        }
        let slots = &mut self.slots;
        let mut has_lease =
            |job: &QueuedJob| slots[job.slot_id as usize].leases.get_mut(job.token).is_some();
        self.ready.retain(&mut has_lease);
        self.announced.retain(|job| {
            let keep = has_lease(job);
            if !keep {
                self.ready.not_begun(job.source);
            }
            keep
        });
    }

    /// The source of a path's jobs: the first pattern that matches.
    fn source_of(&self, path: &Path) -> usize {
        self.patterns.iter().position(|pattern| pattern.matches(path)).unwrap_or(0)
    }

    /// Makes suspended jobs ready again if a byte of their publisher arrived. Returns true if there
    /// are some.
    fn resume_suspended(&mut self, slot_id: SlotId, clock: RunClock, now: Duration) -> bool {
        let slot = &mut self.slots[slot_id as usize];
        if slot.suspended.is_empty() || !slot.owns_jobs(clock, now) {
            return false;
        }
        while let Some(job) = slot.suspended.pop_back() {
            self.ready.push_front(job.source, job);
        }
        true
    }

    /// Settles without an answer.
    fn unanswered(&self) -> usize {
        self.slots.iter().map(|slot| slot.settles.unanswered()).sum()
    }

    fn stats_now(&self) -> WorkerStats {
        let (alive, all) = self.durable.counts();
        let jobs_held = |slot: &PublisherSlot| slot.unsettled() as u64 + slot.settles.unsent_jobs();
        WorkerStats {
            jobs_held: self.slots.iter().map(jobs_held).sum(),
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
            forgotten: false,
            running: 0,
            leases: Leases::default(),
            settles: Settles::default(),
            checkpoints: checkpoints::PendingCheckpoints::default(),
            pending_progress: PendingProgress::default(),
            last_address: LastAddress::default(),
            sender: None,
            failure_logged: false,
            grace: ReconnectGrace::default(),
            suspended: VecDeque::new(),
            wake: Arc::default(),
            grant: SubscriptionCounts::default(),
            recall: SubscriptionCounts::default(),
            unsubscribe: false,
            quiet_reply: None,
        }
    }

    /// True if the publisher was forgotten and has no link, job or running handler any more.
    fn is_free(&self) -> bool {
        self.forgotten
            && self.sender.is_none()
            && self.running == 0
            && self.leases.len() == 0
            && self.settles.unanswered() == 0
    }

    /// Jobs with a lease that wait for a handler or run.
    fn unsettled(&self) -> usize {
        self.leases.iter().filter(|(_, lease)| !lease.job.is_settled()).count()
    }

    fn key(&self, subscription: u32) -> SubscriptionKey {
        SubscriptionKey { publisher: self.id, subscription }
    }

    /// True while no other worker can have received this publisher's jobs.
    fn owns_jobs(&mut self, clock: RunClock, now: Duration) -> bool {
        self.update_last_byte(clock, now);
        self.grace.protects(now)
    }

    /// Updates the time of the link's last byte.
    fn update_last_byte(&mut self, clock: RunClock, now: Duration) {
        if let Some(sender) = &self.sender {
            let read = sender.received_at().saturating_duration_since(clock.started);
            self.grace.byte_received(clock.pause_detector.arrival_time(now, read));
        }
    }

    /// Suspends a job that was not announced: another worker may have it.
    fn suspend(&mut self, job: QueuedJob) {
        self.suspended.push_back(job);
        self.wake.notify_one();
    }
}

/// The counters and publishers of a worker while it runs. Cheap to clone. Before the run all
/// counters are 0.
#[derive(Clone, Debug, Default)]
pub struct StatsWatch {
    session: Arc<SetOnce<Arc<WorkerSession>>>,
}

impl StatsWatch {
    pub(crate) fn show(&self, session: Arc<WorkerSession>) {
        // A subscription runs once, so the cell is empty.
        let _ = self.session.set(session);
    }

    /// Waits until the worker is subscribed at a publisher. Never returns if the run ends before.
    /// Cancel safe.
    pub async fn ready(&self) {
        let alive = |publisher: &PublisherState| {
            matches!(publisher.status, SubscriptionStatus::Alive { .. })
        };
        let mut publishers = self.session.wait().await.publishers();
        // The session holds the sender.
        let _ = publishers.wait_for(|publishers| publishers.iter().any(alive)).await;
    }

    /// The current counters.
    pub fn now(&self) -> WorkerStats {
        self.session.get().map(|session| session.stats()).unwrap_or_default()
    }

    /// True while an operator's request for quiet is in effect (`longshore workers quiet`): no job
    /// starts, and running jobs continue.
    pub fn is_quiet(&self) -> bool {
        self.session.get().is_some_and(|session| session.is_quiet())
    }

    /// How long ago the thread of the worker's links ran last, which it does four times a second;
    /// zero before the run. A watchdog ends a process in which it is stuck.
    pub fn links_silent_for(&self) -> Duration {
        self.session.get().map_or(Duration::ZERO, |session| session.links_silent_for())
    }

    /// The state of the subscription at each publisher; empty before the run.
    pub fn publishers(&self) -> Vec<PublisherState> {
        self.session.get().map(|session| session.publishers().borrow().clone()).unwrap_or_default()
    }

    /// The same as a watch channel, which changes with each publisher's state. `None` before the
    /// run.
    pub fn watch_publishers(&self) -> Option<watch::Receiver<Vec<PublisherState>>> {
        self.session.get().map(|session| session.publishers())
    }
}
