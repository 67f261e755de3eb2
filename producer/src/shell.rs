//! The core's shell: one lock around it, a task for its time, a task per link. Whoever brings news
//! steps the core and does what it says, so a job goes from its caller to the socket without a hop
//! between tasks.

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use longshore_protocol::messages::work::{Enqueued, SealedBatch};
use longshore_protocol::{BatchRefusal, FrameWriter, NewJob, PublisherId, SessionId, check_name};
use longshore_transport::{LinkSender, SendError};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::core::NoRoute;
use crate::core::{Action, Core, LaneId, LaneRules, LinkNumber, PushError, Pushed, Routed, Time};
use crate::directory::Directory;
use crate::link;
use crate::options::{ANSWER_TIMEOUT_MAX, ProducerOptions};
use crate::outcome::{BatchReceipt, EnqueueError};
use crate::pipeline::Completed;

/// Where those who wait for a batch find its end.
#[derive(Default)]
pub(crate) struct Cell {
    end: OnceLock<BatchReceipt>,
    told: Notify,
}

impl Cell {
    /// The batch's end. Cancel safe.
    pub(crate) async fn wait(&self) -> &BatchReceipt {
        loop {
            let told = self.told.notified();
            if let Some(end) = self.end.get() {
                return end;
            }
            told.await;
        }
    }

    fn tell(&self, end: BatchReceipt) {
        // A batch ends once; the core lets go of it then.
        let _ = self.end.set(end);
        self.told.notify_waiters();
    }
}

/// A lane as its users hold it.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// Notified whenever jobs of the lane have come to their end.
    pub(crate) room: Arc<Notify>,
    /// Where a pipeline's receipts go; other callers wait for their [`Cell`].
    completed: Option<Arc<Completed>>,
}

struct LiveLink {
    number: LinkNumber,
    stop: CancellationToken,
    /// Once it is attached.
    sender: Option<LinkSender>,
}

pub(crate) struct Inner {
    pub(crate) core: Core<Arc<Cell>>,
    links: HashMap<PublisherId, LiveLink>,
    lanes: HashMap<LaneId, Lane>,
    /// When the task for time will wake.
    wakes_at: Time,
}

pub(crate) struct Shell {
    inner: Mutex<Inner>,
    earlier: Notify,
    routes_changed: Notify,
    /// Told whenever a batch has come to its end.
    ended: Notify,
    started: Instant,
    pub(crate) directory: Directory,
    pub(crate) options: ProducerOptions,
    pub(crate) session: SessionId,
    pub(crate) closed: CancellationToken,
}

impl Shell {
    /// Starts the task for time. Needs a tokio runtime.
    pub(crate) fn start(
        directory: Directory,
        session: SessionId,
        mut options: ProducerOptions,
    ) -> Arc<Shell> {
        options.answer_timeout = options.answer_timeout.min(ANSWER_TIMEOUT_MAX);
        let core = Core::new(options.answer_timeout, options.failover, rand::rng().next_u64());
        let wakes_at = core.next_deadline();
        let shell = Arc::new(Shell {
            inner: Mutex::new(Inner {
                core,
                links: HashMap::new(),
                lanes: HashMap::new(),
                wakes_at,
            }),
            earlier: Notify::new(),
            routes_changed: Notify::new(),
            ended: Notify::new(),
            started: Instant::now(),
            directory,
            options,
            session,
            closed: CancellationToken::new(),
        });
        tokio::spawn(keep_time(shell.clone()));
        shell
    }

    /// Brings news to the core, then does what it says.
    pub(crate) fn step<R>(self: &Arc<Self>, news: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let mut inner = self.inner.lock();
        let result = news(&mut inner, self.started.elapsed());
        self.act(&mut inner);
        result
    }

    pub(crate) fn open_lane(
        self: &Arc<Self>,
        rules: LaneRules,
        completed: Option<Arc<Completed>>,
    ) -> Lane {
        self.step(|inner, _| {
            let room = Arc::new(Notify::new());
            let lane = Lane { id: inner.core.open_lane(rules), room, completed };
            inner.lanes.insert(lane.id, lane.clone());
            lane
        })
    }

    /// Adds a job to a lane, once there is room and its path has a route. Cancel safe: a job whose
    /// future was dropped was not added.
    pub(crate) async fn push(
        self: &Arc<Self>,
        lane: &Lane,
        ticket: u64,
        job: &NewJob,
        want_tag: bool,
    ) -> Result<Pushed<Arc<Cell>>, EnqueueError> {
        check_name(&self.options.name)?;
        let push =
            |inner: &mut Inner, now: Time| inner.core.push(now, lane.id, ticket, job, want_tag);
        match self.step(push) {
            Ok(pushed) => Ok(pushed),
            Err(PushError::Never(error)) => Err(error),
            Err(PushError::Full | PushError::NoRoute) => {
                let since = self.started.elapsed();
                self.wait(lane, since, &[job], push).await
            }
        }
    }

    /// The same for a path that was found to have no route: `None` while it still has none, without
    /// asking again.
    pub(crate) async fn push_if_routed(
        self: &Arc<Self>,
        lane: &Lane,
        ticket: u64,
        job: &NewJob,
    ) -> Option<Result<Pushed<Arc<Cell>>, EnqueueError>> {
        match self.step(|inner, now| inner.core.push(now, lane.id, ticket, job, false)) {
            Ok(pushed) => Some(Ok(pushed)),
            Err(PushError::Never(error)) => Some(Err(error)),
            Err(PushError::Full) => Some(self.push(lane, ticket, job, false).await),
            Err(PushError::NoRoute) => None,
        }
    }

    /// Tries `push` until it is taken or refused; every wait is bounded by the time for an answer.
    pub(crate) async fn wait<R>(
        self: &Arc<Self>,
        lane: &Lane,
        since: Time,
        jobs: &[&NewJob],
        mut push: impl FnMut(&mut Inner, Time) -> Result<R, PushError>,
    ) -> Result<R, EnqueueError> {
        let time_up = self.started + since + self.options.answer_timeout;
        let mut why: &'static str = "";
        loop {
            let (room, routes) = (lane.room.notified(), self.routes_changed.notified());
            tokio::pin!(room, routes);
            // Enabled before the try: what changes after it is not missed.
            room.as_mut().enable();
            routes.as_mut().enable();
            let routed = match self.step(&mut push) {
                Ok(done) => return Ok(done),
                Err(PushError::Never(error)) => return Err(error),
                Err(PushError::Full) => None,
                Err(PushError::NoRoute) => Some(self.step(|inner, now| {
                    let mut stand = Routed::Known;
                    for job in jobs {
                        match inner.core.route(now, &job.path, since) {
                            Routed::Known => {}
                            Routed::Asked => stand = Routed::Asked,
                            Routed::No(no) => return (Routed::No(no), Some(job.path.clone())),
                        }
                    }
                    (stand, None)
                })),
            };
            let in_time = match routed {
                None => {
                    why = "as many jobs as may be are in flight already";
                    tokio::time::timeout_at(time_up, room).await.is_ok()
                }
                Some((Routed::Known, _)) => true,
                Some((Routed::No(no), Some(path))) => return Err(no_route(path, no)),
                Some((Routed::Asked | Routed::No(_), _)) => {
                    why = "the resolver has not yet said who publishes its path";
                    tokio::time::timeout_at(time_up, routes).await.is_ok()
                }
            };
            if !in_time || self.closed.is_cancelled() {
                let waited = self.started.elapsed() - since;
                return Err(EnqueueError::NotSent { waited, why: why.into() });
            }
        }
    }

    /// Told at the next end of a batch.
    pub(crate) fn ended(&self) -> tokio::sync::futures::Notified<'_> {
        self.ended.notified()
    }

    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Does what the core says. Under the lock, so that batches reach a link in the order of their
    /// numbers.
    fn act(self: &Arc<Self>, inner: &mut Inner) {
        while let Some(action) = inner.core.poll_action() {
            match action {
                Action::Send { publisher, link, sequence, batch } => {
                    self.send(inner, publisher, link, sequence, &batch);
                }
                Action::Finish { lane, tag, ids, tickets, end } => {
                    let receipt = BatchReceipt { ids: ids.into(), tickets, end };
                    let lane = inner.lanes.get(&lane);
                    match lane.and_then(|lane| lane.completed.as_ref()) {
                        Some(completed) => completed.add(receipt),
                        None => tag.tell(receipt),
                    }
                    if let Some(lane) = lane {
                        lane.room.notify_waiters();
                    }
                    self.ended.notify_waiters();
                }
                Action::Resolve(paths) => {
                    let shell = self.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = shell.closed.cancelled() => {}
                            answer = shell.directory.resolve(paths.clone()) => {
                                shell.step(|inner, now| inner.core.resolved(now, &paths, answer));
                            }
                        }
                    });
                }
                Action::Dial { publisher, link, addresses } => {
                    let stop = self.closed.child_token();
                    let live = LiveLink { number: link, stop: stop.clone(), sender: None };
                    inner.links.insert(publisher, live);
                    tokio::spawn(link::keep(self.clone(), publisher, link, addresses, stop));
                }
                Action::Close { publisher, link, reason } => {
                    tracing::debug!(publisher = %publisher, reason, "closing the link");
                    if inner.links.get(&publisher).is_some_and(|live| live.number == link)
                        && let Some(live) = inner.links.remove(&publisher)
                    {
                        live.stop.cancel();
                    }
                }
                Action::RoutesChanged => self.routes_changed.notify_waiters(),
                Action::LaneGone(lane) => {
                    if let Some(completed) = inner.lanes.remove(&lane).and_then(|l| l.completed) {
                        completed.finish();
                    }
                }
            }
        }
        let next = inner.core.next_deadline();
        if next < inner.wakes_at {
            inner.wakes_at = next;
            self.earlier.notify_one();
        }
    }

    fn send(
        &self,
        inner: &mut Inner,
        publisher: PublisherId,
        link: LinkNumber,
        sequence: u64,
        batch: &SealedBatch,
    ) {
        let Some(live) = inner.links.get(&publisher).filter(|live| live.number == link) else {
            return;
        };
        let Some(sender) = &live.sender else { return };
        let mut out = FrameWriter::with_capacity(256);
        batch.encode(sequence, &mut out);
        match sender.send(out.finish()) {
            // The link's own task tells of its end.
            Ok(()) | Err(SendError::Closed) => {}
            Err(SendError::TooLong { .. }) => {
                let outcome = Err(BatchRefusal::TooLarge);
                let now = self.started.elapsed();
                inner.core.answered(now, publisher, link, Enqueued { sequence, outcome });
            }
            Err(error @ SendError::Full { .. }) => {
                tracing::warn!(publisher = %publisher, %error, "ending the link");
                sender.close("the send queue is full");
            }
        }
    }

    /// A link is attached; false when the core no longer wants it.
    pub(crate) fn attached(
        self: &Arc<Self>,
        publisher: PublisherId,
        link: LinkNumber,
        sender: LinkSender,
        attached: &longshore_protocol::messages::work::Attached,
    ) -> bool {
        self.step(|inner, now| {
            let live = inner.links.get_mut(&publisher).filter(|live| live.number == link);
            let Some(live) = live else { return false };
            live.sender = Some(sender);
            inner.core.linked(now, publisher, link, attached);
            true
        })
    }

    /// A link has ended, or could not be made.
    pub(crate) fn lost(self: &Arc<Self>, publisher: PublisherId, link: LinkNumber, why: String) {
        self.step(|inner, now| {
            if inner.links.get(&publisher).is_some_and(|live| live.number == link) {
                inner.links.remove(&publisher);
            }
            inner.core.link_lost(now, publisher, link, why);
        });
    }
}

fn no_route(path: longshore_protocol::Path, no: NoRoute) -> EnqueueError {
    match no {
        NoRoute::Nobody => EnqueueError::NoPublisher { path },
        NoRoute::Value(publisher) => EnqueueError::IsValue { path, publisher },
        NoRoute::Refused(reason) => EnqueueError::PathRefused { path, reason },
        NoRoute::Resolver(error) => EnqueueError::Resolver { path, error },
    }
}

/// Wakes the core when something is due.
async fn keep_time(shell: Arc<Shell>) {
    let mut at = shell.inner.lock().wakes_at;
    loop {
        tokio::select! {
            () = shell.closed.cancelled() => return,
            () = shell.earlier.notified() => {
                at = shell.inner.lock().wakes_at;
            }
            () = sleep_until(shell.started + at) => {
                at = shell.step(|inner, now| {
                    inner.core.turn(now);
                    inner.wakes_at = inner.core.next_deadline();
                    inner.wakes_at
                });
            }
        }
    }
}
