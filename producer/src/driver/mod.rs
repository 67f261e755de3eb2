//! Runs the state machine: one lock around it, a task for its timers, and a task per link. Every
//! caller steps the state machine and performs its actions, so a job passes from its caller to the
//! socket without a hop between tasks.

mod links;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use longshore_protocol::messages::work::{Enqueued, SealedBatch};
use longshore_protocol::{
    BatchRefusal, FrameWriter, NewJob, Path, PublisherId, SessionId, check_name,
};
use longshore_transport::{LinkSender, SendError};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::core::{
    Action, Core, LinkNumber, NoRoute, PushError, Pushed, RouteLookup, StreamId, StreamLimits, Time,
};
use crate::directory::Directory;
use crate::options::ProducerBuilder;
use crate::outcome::{BatchReceipt, EnqueueError};
use crate::receipt_queue::ReceiptQueue;

/// The outcome of a batch, for its waiting callers.
#[derive(Default)]
pub(crate) struct BatchCompletion {
    end: OnceLock<BatchReceipt>,
    notify: Notify,
}

impl BatchCompletion {
    /// Waits for the outcome. Cancel safe.
    pub(crate) async fn wait(&self) -> &BatchReceipt {
        loop {
            let notify = self.notify.notified();
            if let Some(end) = self.end.get() {
                return end;
            }
            notify.await;
        }
    }

    fn complete(&self, end: BatchReceipt) {
        // A batch finishes once.
        let _ = self.end.set(end);
        self.notify.notify_waiters();
    }
}

/// A stream, for its users.
#[derive(Clone)]
pub(crate) struct StreamHandle {
    pub(crate) id: StreamId,
    /// Notified when jobs of the stream have finished.
    pub(crate) room: Arc<Notify>,
    /// The receipts of a pipeline; other callers wait for their [`BatchCompletion`].
    receipts: Option<Arc<ReceiptQueue>>,
}

struct LinkHandle {
    number: LinkNumber,
    stop: CancellationToken,
    /// Present once the link is attached.
    sender: Option<LinkSender>,
}

pub(crate) struct DriverState {
    pub(crate) core: Core<Arc<BatchCompletion>>,
    links: HashMap<PublisherId, LinkHandle>,
    streams: HashMap<StreamId, StreamHandle>,
    /// When the timer task will wake.
    wakes_at: Time,
}

/// A call that waits for a route or for room with its jobs.
struct WaitingCall<'a>(&'a Driver);

impl WaitingCall<'_> {
    fn begin(driver: &Driver) -> WaitingCall<'_> {
        driver.waiting_calls.fetch_add(1, Ordering::SeqCst);
        WaitingCall(driver)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.waiting_calls.fetch_sub(1, Ordering::SeqCst);
        self.0.batch_ended.notify_waiters();
    }
}

pub(crate) struct Driver {
    state: Mutex<DriverState>,
    timer_moved: Notify,
    routes_changed: Notify,
    /// Notified when a batch has finished.
    batch_ended: Notify,
    waiting_calls: AtomicUsize,
    started: Instant,
    /// Of its tasks: callers may be on others, which may end before it.
    runtime: tokio::runtime::Handle,
    pub(crate) directory: Directory,
    pub(crate) options: ProducerBuilder,
    pub(crate) session: SessionId,
    pub(crate) closed: CancellationToken,
}

impl Driver {
    /// Starts the timer task. Needs a tokio runtime.
    pub(crate) fn start(
        directory: Directory,
        session: SessionId,
        options: ProducerBuilder,
    ) -> Arc<Driver> {
        let core = Core::new(options.answer_timeout, options.failover, rand::rng().next_u64());
        let wakes_at = core.next_deadline();
        let driver = Arc::new(Driver {
            state: Mutex::new(DriverState {
                core,
                links: HashMap::new(),
                streams: HashMap::new(),
                wakes_at,
            }),
            timer_moved: Notify::new(),
            routes_changed: Notify::new(),
            batch_ended: Notify::new(),
            waiting_calls: AtomicUsize::new(0),
            started: Instant::now(),
            runtime: tokio::runtime::Handle::current(),
            directory,
            options,
            session,
            closed: CancellationToken::new(),
        });
        driver.runtime.spawn(run_timers(driver.clone()));
        driver
    }

    /// Passes an event to the state machine, and performs its actions.
    pub(crate) fn step<R>(self: &Arc<Self>, event: impl FnOnce(&mut DriverState, Time) -> R) -> R {
        let mut state = self.state.lock();
        let result = event(&mut state, self.started.elapsed());
        self.act(&mut state);
        result
    }

    pub(crate) fn open_stream(
        self: &Arc<Self>,
        limits: StreamLimits,
        receipts: Option<Arc<ReceiptQueue>>,
    ) -> StreamHandle {
        self.step(|state, _| {
            let room = Arc::new(Notify::new());
            let stream = StreamHandle { id: state.core.open_stream(limits), room, receipts };
            state.streams.insert(stream.id, stream.clone());
            stream
        })
    }

    /// Adds a job to a stream, once it has room and the path has a route. Cancel safe: if the
    /// future is dropped, the job was not added.
    pub(crate) async fn push(
        self: &Arc<Self>,
        stream: &StreamHandle,
        index: u64,
        job: &NewJob,
        want_tag: bool,
    ) -> Result<Pushed<Arc<BatchCompletion>>, EnqueueError> {
        match self.try_push(stream, index, job, want_tag) {
            Ok(pushed) => Ok(pushed),
            Err(PushError::Never(error)) => Err(error),
            Err(PushError::Full | PushError::NoRoute) => {
                self.push_later(stream, self.now(), index, job, want_tag).await
            }
        }
    }

    /// Adds a job to a stream if this needs no wait.
    pub(crate) fn try_push(
        self: &Arc<Self>,
        stream: &StreamHandle,
        index: u64,
        job: &NewJob,
        want_tag: bool,
    ) -> Result<Pushed<Arc<BatchCompletion>>, PushError> {
        check_name(&self.options.name).map_err(|error| PushError::Never(error.into()))?;
        let mut state = self.state.lock();
        let pushed = state.core.push(self.started.elapsed(), stream.id, index, job, want_tag);
        // Most jobs only join an open batch. The next deadline is found in all open batches of all
        // streams: that is for each batch, not for each job.
        if !pushed.as_ref().is_ok_and(|pushed| pushed.joined) {
            self.act(&mut state);
        }
        pushed
    }

    /// Like [`push`](Driver::push), and has waited since `since`: a path that was found to have no
    /// publisher since then is not resolved again. Cancel safe.
    pub(crate) async fn push_later(
        self: &Arc<Self>,
        stream: &StreamHandle,
        since: Time,
        index: u64,
        job: &NewJob,
        want_tag: bool,
    ) -> Result<Pushed<Arc<BatchCompletion>>, EnqueueError> {
        let push = |state: &mut DriverState, now: Time| {
            state.core.push(now, stream.id, index, job, want_tag)
        };
        self.wait(stream, since, &[job], push).await
    }

    /// Requests the routes of the jobs, together. Returns the time of the request.
    pub(crate) fn request_routes<'a>(
        self: &Arc<Self>,
        jobs: impl Iterator<Item = &'a NewJob>,
    ) -> Time {
        let mut requested = hashbrown::HashSet::new();
        let paths = jobs.map(|job| (&job.path, job.has_keys()));
        self.step(|state, now| {
            for (path, at_home) in paths.filter(|path| requested.insert(*path)) {
                state.core.route(now, path, at_home, now);
            }
            now
        })
    }

    /// Whether the path is resolved or being resolved.
    pub(crate) fn is_known(&self, path: &Path) -> bool {
        self.state.lock().core.is_known(path)
    }

    /// Retries `push` until it succeeds or fails. Every wait is limited by the answer timeout.
    pub(crate) async fn wait<R>(
        self: &Arc<Self>,
        stream: &StreamHandle,
        since: Time,
        jobs: &[&NewJob],
        mut push: impl FnMut(&mut DriverState, Time) -> Result<R, PushError>,
    ) -> Result<R, EnqueueError> {
        let deadline = self.started + since + self.options.answer_timeout;
        let (mut why, mut is_away): (Arc<str>, bool) = ("".into(), false);
        let mut waits = None;
        loop {
            let (room, routes) = (stream.room.notified(), self.routes_changed.notified());
            tokio::pin!(room, routes);
            // Enabled before the attempt, so that a later change is not missed.
            room.as_mut().enable();
            routes.as_mut().enable();
            let routed = match self.step(&mut push) {
                Ok(done) => return Ok(done),
                Err(PushError::Never(error)) => return Err(error),
                Err(PushError::Full) => None,
                Err(PushError::NoRoute) => Some(self.step(|state, now| {
                    let mut lookup = RouteLookup::Known;
                    for job in jobs {
                        let at_home = job.has_keys();
                        match state.core.route(now, &job.path, at_home, since) {
                            RouteLookup::Known => {}
                            waiting @ (RouteLookup::Pending | RouteLookup::HomeAway(_)) => {
                                lookup = waiting;
                            }
                            RouteLookup::NoRoute(no) => {
                                return (RouteLookup::NoRoute(no), Some(job.path.clone()));
                            }
                        }
                    }
                    (lookup, None)
                })),
            };
            waits.get_or_insert_with(|| WaitingCall::begin(self));
            let in_time = match routed {
                None => {
                    (why, is_away) = ("the in-flight limit is reached".into(), false);
                    tokio::time::timeout_at(deadline, room).await.is_ok()
                }
                Some((RouteLookup::Known, _)) => true,
                Some((RouteLookup::NoRoute(no), Some(path))) => return Err(no_route(path, no)),
                Some((RouteLookup::HomeAway(name), _)) => {
                    (why, is_away) = (format!("{name} does not publish it").into(), true);
                    tokio::time::timeout_at(deadline, routes).await.is_ok()
                }
                Some((RouteLookup::Pending | RouteLookup::NoRoute(_), _)) => {
                    why = "no replica of the resolver has answered, or all are warming".into();
                    is_away = false;
                    tokio::time::timeout_at(deadline, routes).await.is_ok()
                }
            };
            if !in_time || self.closed.is_cancelled() {
                let waited = self.started.elapsed() - since;
                return Err(match is_away {
                    true => EnqueueError::HomeAway { waited, why },
                    false => EnqueueError::NotSent { waited, why },
                });
            }
        }
    }

    /// Calls with jobs that wait for a route or for room.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.waiting_calls.load(Ordering::SeqCst)
    }

    /// Notified when the next batch finishes, or the next call has its jobs in one.
    pub(crate) fn batch_ended(&self) -> tokio::sync::futures::Notified<'_> {
        self.batch_ended.notified()
    }

    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Performs the actions, under the lock, so that batches reach a link in the order of their
    /// numbers.
    fn act(self: &Arc<Self>, state: &mut DriverState) {
        while let Some(action) = state.core.poll_action() {
            match action {
                Action::Send { publisher, link, sequence, batch } => {
                    self.send(state, publisher, link, sequence, &batch);
                }
                Action::Finish { stream, tag, ids, indices, end } => {
                    let receipt = BatchReceipt { ids: ids.into(), indices, end };
                    let stream = state.streams.get(&stream);
                    match stream.and_then(|stream| stream.receipts.as_ref()) {
                        Some(receipts) => receipts.add(receipt),
                        None => tag.complete(receipt),
                    }
                    if let Some(stream) = stream {
                        stream.room.notify_waiters();
                    }
                    self.batch_ended.notify_waiters();
                }
                Action::Resolve { paths, all_publishers } => {
                    let driver = self.clone();
                    self.runtime.spawn(async move {
                        let resolving = driver.directory.resolve(paths.clone(), all_publishers);
                        tokio::select! {
                            () = driver.closed.cancelled() => {}
                            answer = resolving => {
                                driver.step(|state, now| state.core.resolved(now, &paths, answer));
                            }
                        }
                    });
                }
                Action::Dial { publisher, link } => {
                    let stop = self.closed.child_token();
                    let link_handle = LinkHandle { number: link, stop: stop.clone(), sender: None };
                    state.links.insert(publisher.id, link_handle);
                    self.runtime.spawn(self.clone().run_link(publisher, link, stop));
                }
                Action::Close { publisher, link, reason } => {
                    tracing::debug!(publisher = %publisher, reason, "closing the link");
                    if state
                        .links
                        .get(&publisher)
                        .is_some_and(|link_handle| link_handle.number == link)
                        && let Some(link_handle) = state.links.remove(&publisher)
                    {
                        link_handle.stop.cancel();
                    }
                }
                Action::RoutesChanged => self.routes_changed.notify_waiters(),
                Action::StreamClosed(stream) => {
                    if let Some(receipts) = state.streams.remove(&stream).and_then(|l| l.receipts) {
                        receipts.finish();
                    }
                }
            }
        }
        let next = state.core.next_deadline();
        if next < state.wakes_at {
            state.wakes_at = next;
            self.timer_moved.notify_one();
        }
    }

    fn send(
        &self,
        state: &mut DriverState,
        publisher: PublisherId,
        link: LinkNumber,
        sequence: u64,
        batch: &SealedBatch,
    ) {
        let Some(link_handle) =
            state.links.get(&publisher).filter(|link_handle| link_handle.number == link)
        else {
            return;
        };
        let Some(sender) = &link_handle.sender else { return };
        let mut out = FrameWriter::with_capacity(256);
        batch.encode(sequence, &mut out);
        match sender.send(out.finish()) {
            // The link's task reports its end.
            Ok(()) | Err(SendError::Closed) => {}
            Err(SendError::TooLong { .. }) => {
                let outcome = Err(BatchRefusal::TooLarge);
                let now = self.started.elapsed();
                state.core.answered(now, publisher, link, Enqueued { sequence, outcome });
            }
            Err(error @ SendError::Full { .. }) => {
                tracing::warn!(publisher = %publisher, %error, "ending the link");
                sender.close("the send queue is full");
            }
        }
    }

    /// A link is attached. Returns false if the state machine no longer needs it.
    pub(crate) fn attached(
        self: &Arc<Self>,
        publisher: PublisherId,
        link: LinkNumber,
        sender: LinkSender,
        attached: &longshore_protocol::messages::work::Attached,
    ) -> bool {
        self.step(|state, now| {
            let link_handle =
                state.links.get_mut(&publisher).filter(|link_handle| link_handle.number == link);
            let Some(link_handle) = link_handle else { return false };
            link_handle.sender = Some(sender);
            state.core.linked(now, publisher, link, attached);
            true
        })
    }

    /// A link has ended, or could not be made.
    pub(crate) fn lost(self: &Arc<Self>, publisher: PublisherId, link: LinkNumber, why: String) {
        self.step(|state, now| {
            if state.links.get(&publisher).is_some_and(|link_handle| link_handle.number == link) {
                state.links.remove(&publisher);
            }
            state.core.link_lost(now, publisher, link, why);
        });
    }
}

fn no_route(path: Path, no: NoRoute) -> EnqueueError {
    match no {
        NoRoute::NoPublisher => EnqueueError::NoPublisher { path },
        NoRoute::Value(publisher) => EnqueueError::IsValue { path, publisher },
        NoRoute::Refused(reason) => EnqueueError::PathRefused { path, reason },
        NoRoute::Resolver(error) => EnqueueError::Resolver { path, error },
        NoRoute::NoHome(why) => EnqueueError::NoHome { path, why },
        NoRoute::HomesDisagree(why) => EnqueueError::HomesDisagree { path, why },
    }
}

/// Ticks the state machine at its deadlines.
async fn run_timers(driver: Arc<Driver>) {
    let mut at = driver.state.lock().wakes_at;
    loop {
        tokio::select! {
            () = driver.closed.cancelled() => return,
            () = driver.timer_moved.notified() => {
                at = driver.state.lock().wakes_at;
            }
            () = sleep_until(driver.started + at) => {
                at = driver.step(|state, now| {
                    state.core.tick(now);
                    state.wakes_at = state.core.next_deadline();
                    state.wakes_at
                });
            }
        }
    }
}
