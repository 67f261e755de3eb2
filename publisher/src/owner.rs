//! The owner: the only task that accesses the store. It applies what links send, and routes what is
//! durable.

mod clock_moves;
mod disk;
mod follow;
mod home;
mod messages;
mod metrics;
mod quiet;
mod quotas;
mod release;
mod requests;
mod schedules;

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_access::{Action, Rights};
use longshore_protocol::{LinkId, PublisherId, Revoked, Token};
use longshore_queue::{
    Clock, Command, Cursor, Event, Now, PAUSE_MS, Poisoned, Released, Store, UNCOMMITTED_BYTES_MAX,
};
use longshore_transport::AuditLog;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use self::disk::DiskWatch;
use crate::cold::ColdLoads;
use crate::completion_waiters::CompletionWaiters;
use crate::delayed_refusals::{DelayedRefusals, RefusedBatch};
use crate::event::{EventSender, NewLink, OwnerEvent};
use crate::feeds::Feeds;
use crate::health::{HealthHandle, HealthRequest};
use crate::homes::OwnHomes;
use crate::idle::IdleQueues;
use crate::link::{refuse_unread, send_goodbye};
use crate::link_log;
use crate::operator_log::OperatorLog;
use crate::pauses::DurablePauses;
use crate::permissions;
use crate::queue_quotas::QueueQuotas;
use crate::quiet_requests::QuietRequests;
use crate::recording::EventRecording;
use crate::registry::Registry;
use crate::router::Router;
use crate::test_clock::ClockMove;
use crate::values::{PathKinds, Values};

/// Events processed per round: enough for large commits, few enough not to delay releases.
const EVENTS_PER_ROUND: usize = 128;
/// The longest that leases and timers wait while events keep arriving.
const TIMER_DELAY_MAX: Duration = Duration::from_millis(50);
/// Events that were held back for longer are a pause: every lease gets its full length again.
const FULL_PAUSE: Duration = Duration::from_millis(PAUSE_MS);
/// The longest sleep before a timer: the runtime's clock stands still while the machine sleeps, and
/// the publisher's does not.
const TIMER_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a stop waits for the last commit.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// The owner's state.
pub(crate) struct Owner {
    store: Store,
    clock: Clock,
    router: Router,
    cold: ColdLoads,
    events: mpsc::Receiver<OwnerEvent>,
    registry: Option<Registry>,
    names: Arc<PathKinds>,
    name: String,
    journal: PublisherId,
    started: Instant,
    /// Tokens revoked in one release, by link, until they are sent.
    revoked: Vec<(LinkId, Revoked, Token)>,
    waiters: CompletionWaiters,
    /// The waiters' position in the tail of events.
    waiters_cursor: Option<Cursor>,
    /// A reused buffer of the events that they read.
    events_read: Vec<Event>,
    feeds: Feeds,
    recording: EventRecording,
    operator_log: OperatorLog,
    pauses: DurablePauses,
    quiet_requests: QuietRequests,
    refusals: DelayedRefusals,
    queue_quotas: QueueQuotas,
    homes: OwnHomes,
    /// A reused buffer of the refusals to submit now.
    refused_batches: Vec<RefusedBatch>,
    disk: DiskWatch,
    health: mpsc::Receiver<HealthRequest>,
    idle: IdleQueues,
    /// Metrics that wait until the state they show is durable.
    metrics: metrics::MetricsState,
    /// A test's requests to move the clock.
    moves: Option<mpsc::Receiver<ClockMove>>,
}

impl Owner {
    pub(crate) fn new(
        store: Store,
        clock: Clock,
        (registry, names): (Option<Registry>, Arc<PathKinds>),
        (name, journal, audit): (String, PublisherId, AuditLog),
        (disk, idle, queue_quotas, homes): (DiskWatch, IdleQueues, QueueQuotas, OwnHomes),
        values: Values,
        moves: Option<mpsc::Receiver<ClockMove>>,
    ) -> (Owner, EventSender, HealthHandle) {
        let (sender, events) = EventSender::new();
        let (health_handle, health) = HealthHandle::new();
        let owner = Owner {
            router: Router::new(sender.sender().clone()),
            pauses: DurablePauses::from_durable(store.state()),
            cold: ColdLoads::new(store.reader(), sender.sender().clone()),
            store,
            clock,
            events,
            registry,
            names,
            operator_log: OperatorLog::new(name.clone(), audit),
            name,
            journal,
            started: Instant::now(),
            revoked: Vec::new(),
            waiters: CompletionWaiters::default(),
            waiters_cursor: None,
            events_read: Vec::new(),
            feeds: Feeds::default(),
            recording: EventRecording::started(Instant::now()),
            quiet_requests: QuietRequests::default(),
            refusals: DelayedRefusals::default(),
            queue_quotas,
            homes,
            refused_batches: Vec::new(),
            disk,
            health,
            idle,
            metrics: metrics::MetricsState::new(values),
            moves,
        };
        (owner, sender, health_handle)
    }

    /// Serves until `stopping`, then commits what was received and closes every link. Cancels it if
    /// the journal fails, so that no new link waits for a publisher that is about to end.
    pub(crate) async fn run(mut self, stopping: CancellationToken) -> Result<(), Poisoned> {
        let stopped = self.serve(stopping.cancelled()).await;
        if stopped.is_err() {
            stopping.cancel();
            self.close_links("the publisher's journal has failed").await;
        }
        // The journal closes with its last sync. On a disk that hangs that may be never, also after
        // an error of another of its threads, and the process has to end all the same.
        let hangs = matches!(stopped, Ok(StopOutcome::Hangs));
        let (closed, is_closed) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            drop(self);
            // Nobody may wait any more.
            let _ = closed.send(());
        });
        if !hangs {
            let _ = tokio::time::timeout(STOP_WAIT, is_closed).await;
        }
        stopped.map(drop)
    }

    async fn serve(&mut self, stop: impl Future<Output = ()>) -> Result<StopOutcome, Poisoned> {
        tokio::pin!(stop);
        let mut events = Vec::with_capacity(EVENTS_PER_ROUND);
        let mut released = Released::default();
        let mut deadline = self.run_timers()?;
        let mut timers_ran = Instant::now();
        let mut full_since = None;
        loop {
            let room = self.has_room();
            // While the disk hangs, links are refused, and the messages of closed ones ignored.
            let takes = room || self.disk.hang.is_hung();
            tokio::select! {
                biased;
                () = &mut stop => return self.stop(released).await,
                // Before events, which may never end, and also while they are held back.
                Some(answer) = self.health.recv() => self.answer_health(answer),
                outcome = self.store.released(&mut released) => {
                    outcome?;
                    self.route(&mut released)?;
                }
                received = self.events.recv_many(&mut events, EVENTS_PER_ROUND), if takes => {
                    debug_assert!(received > 0, "the router has a sender, so it stays open");
                    let now = self.clock.now();
                    for event in events.drain(..) {
                        self.process(now, event)?;
                    }
                    self.send()?;
                }
                () = sleep_until(deadline), if room => {}
                clock_move = clock_moves::next_clock_move(&mut self.moves), if room => {
                    self.move_clock(clock_move, &mut released).await?;
                }
                // Also while events are held back: a hanging disk may be the reason.
                () = tokio::time::sleep_until(self.disk.check_at.into()) => {}
            }
            self.check_disk()?;
            // Received events are applied before any lease ends, and no lease ends while events are
            // held back: one may be a renewal. After a longer time more may wait elsewhere.
            if !self.has_room() {
                full_since.get_or_insert_with(Instant::now);
                continue;
            }
            if full_since.take().is_some_and(|since| since.elapsed() > FULL_PAUSE) {
                self.store.restart_leases(self.clock.now());
            }
            if !self.events.is_empty() {
                if timers_ran.elapsed() < TIMER_DELAY_MAX {
                    continue;
                }
                self.process_queued_events()?;
            }
            deadline = self.run_timers()?;
            timers_ran = Instant::now();
        }
    }

    fn has_room(&self) -> bool {
        self.store.uncommitted_bytes() < UNCOMMITTED_BYTES_MAX
    }

    fn process_queued_events(&mut self) -> Result<(), Poisoned> {
        let now = self.clock.now();
        for _ in 0..self.events.len() {
            let Ok(event) = self.events.try_recv() else { break };
            self.process(now, event)?;
        }
        self.send()
    }

    /// Ends leases, makes scheduled jobs ready and pumps feeds; returns when to run again.
    fn run_timers(&mut self) -> Result<Option<Instant>, Poisoned> {
        let now = self.clock.now();
        let at = Instant::now();
        // While links are refused no lease ends.
        let next = if self.disk.hang.is_hung() { None } else { self.advance(now)? };
        self.refusals.take_due(at, &mut self.refused_batches);
        self.refuse(now)?;
        self.store.flush();
        self.operator_log.clock(self.clock.alarm());
        if self.expire_quiet_requests(at) || self.feeds.next(at).is_some_and(|due| due <= at) {
            self.send()?;
        }
        let next = next.map(|ms| {
            let wait = Duration::from_millis(ms.saturating_sub(now.mono_ms));
            at + wait.min(TIMER_WAIT_MAX)
        });
        let feeds = self.feeds.next(at);
        let deaths =
            self.operator_log.deaths(at, self.store.appended(), self.store.state().deaths());
        let idle = self.withdraw_idle_queues(at);
        let (refusals, quiet_requests) = (self.refusals.next(), self.quiet_requests.next());
        Ok([next, self.update_recording(at), feeds, deaths, refusals, quiet_requests, idle]
            .into_iter()
            .flatten()
            .min())
    }

    fn process(&mut self, now: Now, event: OwnerEvent) -> Result<(), Poisoned> {
        match event {
            OwnerEvent::LinkUp(new_link) => self.link_up(now, new_link),
            OwnerEvent::Messages { link, messages, .. } if self.router.serves(link) => {
                for message in messages {
                    self.message(now, link, message)?;
                }
                Ok(())
            }
            OwnerEvent::Messages { .. } => Ok(()),
            OwnerEvent::LinkDown { link } => {
                self.waiters.link_lost(link);
                self.feeds.link_lost(link);
                self.refusals.link_lost(link);
                self.quiet_link_lost(link);
                self.store.return_unsent(now, link)?;
                if self.router.remove(link) {
                    self.store.submit(now, Command::LinkLost { link })?;
                } else {
                    self.store.link_replaced(now, link);
                }
                Ok(())
            }
            OwnerEvent::Rights { link, rights } => self.rights_changed(now, link, rights),
            OwnerEvent::LinkReady { link } => {
                self.router.ready(link);
                Ok(())
            }
            OwnerEvent::FeedReady { link } => {
                self.router.feed_ready(link);
                self.feeds.ready();
                Ok(())
            }
            OwnerEvent::JobsLoaded { load, jobs } => self.loaded(now, load, jobs),
            OwnerEvent::AnswerLoaded(loaded) => {
                self.answer_loaded(loaded);
                Ok(())
            }
            OwnerEvent::Metrics(request) => {
                self.answer_metrics(now, request);
                Ok(())
            }
        }
    }

    fn link_up(&mut self, now: Now, new_link: NewLink) -> Result<(), Poisoned> {
        if self.disk.hang.is_hung() {
            self.refuse_link(now, &new_link);
            return Ok(());
        }
        // The state refuses it too. But adding the link would close the one of the session's owner.
        if self.router.belongs_to_another(&new_link) {
            let reason = "the session belongs to another client".to_owned();
            if let Some(left_out) = link_log::admit() {
                let (link, name) = (new_link.link.0, &new_link.name);
                warn!(link, name, reason, left_out, "link refused");
            }
            send_goodbye(&new_link.sender, reason);
            return Ok(());
        }
        if let Some(older) = self.router.add(&new_link, now.wall_ms) {
            self.store.return_unsent(now, older)?;
        }
        let NewLink { link, role, session, name, identity, rights, resume, .. } = new_link;
        let identity = identity.map_or_else(String::new, |identity| identity.to_string());
        let work = permissions::limit(&rights, Action::Work).cloned();
        self.store
            .submit(now, Command::LinkUp { link, role, session, name, identity, work, resume })?;
        Ok(())
    }

    /// A client has gained rights: its subscriptions take jobs of more queues.
    fn rights_changed(
        &mut self,
        now: Now,
        link: LinkId,
        rights: Arc<Rights>,
    ) -> Result<(), Poisoned> {
        let Some(before) = self.router.set_rights(link, rights.clone()) else { return Ok(()) };
        if before.paths(Action::Work) != rights.paths(Action::Work) {
            let work = permissions::limit(&rights, Action::Work).cloned();
            self.store.submit(now, Command::Permit { link, work })?;
        }
        Ok(())
    }

    /// Commits and answers what was received; then closes every link.
    async fn stop(&mut self, mut released: Released) -> Result<StopOutcome, Poisoned> {
        info!("stopping: no more jobs are taken");
        // They were sent before: settles of a worker that stops at the same time are among them.
        if self.has_room() {
            self.process_queued_events()?;
        }
        self.refusals.take_all(&mut self.refused_batches);
        let now = self.clock.now();
        self.refuse(now)?;
        self.store.flush();
        // Durable is not enough: its answers have to leave, too.
        let done = tokio::time::timeout(STOP_WAIT, self.release_all(&mut released)).await;
        self.close_links("the publisher is stopping").await;
        match done {
            Ok(done) => done.map(|()| StopOutcome::Durable),
            Err(_) => {
                warn!(
                    wait = ?STOP_WAIT,
                    "the journal did not become durable in time; what was not acknowledged \
                     may be lost"
                );
                Ok(StopOutcome::Hangs)
            }
        }
    }

    /// Closes every link with the reason, also those that have just attached.
    async fn close_links(&mut self, reason: &str) {
        self.router.close_all(reason);
        refuse_unread(&mut self.events, reason).await;
    }
}

/// How a stop ended.
enum StopOutcome {
    /// Everything received is durable and answered.
    Durable,
    /// The journal did not finish in time.
    Hangs,
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
