//! The one task that owns the directory. It serves clients in turns, each for a slice of time, so
//! that a huge request does not delay the others. A client that does not read its answers gets no
//! turn until it does.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_access::{AccessControl, Binding, Rights};
use longshore_protocol::PublisherId;
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{ReplicaStatus, RequestCounts};
use longshore_transport::{LinkSender, LogLimit, SendError, SlotsHandle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::directory::{Client, Directory, Push};
use crate::replica_link::{now, until};
use crate::server::access::{AccessLog, ClientAccess};
use crate::server::known_publishers_file::KnownPublishers;
use crate::server::limits::Limits;
use crate::server::memory::resident_bytes;
use crate::server::request::{Context, GLOB_SEGMENTS_MAX, Progress, Request, SLICE};
use crate::sleep_detector::{ClockReading, SleepDetector};

/// The capacity of the event queue; while it is full, connections are not read.
pub(super) const EVENTS_QUEUED_MAX: usize = 1_024;
/// Most bytes of answers in a client's send queue; above that it gets no turn.
pub(super) const ANSWER_BYTES_QUEUED_MAX: usize = 1024 * 1024;
/// A frame that has reached this size is sent before more is added.
pub(super) const FRAME_BYTES_GOAL: usize = 256 * 1024;
/// Most events handled between two turns.
const EVENTS_PER_PASS_MAX: usize = 256;
/// While the replica warms, writers get this many turns for each turn of another client: however
/// many clients read, publishers' writes are applied in time, and readers are still answered.
const WRITER_TURNS: usize = 3;
/// The longest time for events between two turns: a client that leaves may leave thousands of
/// watches.
const EVENTS_SLICE: Duration = Duration::from_millis(1);
/// Paths removed between two reads of the clock.
const SWEEP_PATHS: usize = 256;
/// Most of them between two turns.
pub(super) const SWEPT_PER_PASS_MAX: usize = 4_096;
/// The longest time for sweeping between two turns.
const SWEEP_SLICE: Duration = Duration::from_millis(1);
/// After this long in one pass for watchers' first pushes, including the walks for what they watch,
/// the remaining first pushes wait for the next pass.
const PUSH_SLICE: Duration = Duration::from_millis(1);
/// The limit of a client's first push: enough for 10,000 nodes below a prefix.
const FIRST_PUSH: Duration = Duration::from_millis(2);
/// The limit of each further push of the same client. There is one between two turns: with 64
/// clients that walk through all paths each has one in 32 ms.
const FURTHER_PUSH: Duration = Duration::from_micros(500);
/// An idle loop reads the clock this often: a longer gap between two reads shows that the loop did
/// not run.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// A loop that starts its next pass this late did not run: the process or its machine was stopped.
const LATENESS_MAX: Duration = Duration::from_millis(100);
/// The period in which stalls are logged at most once.
const STALL_LOG_PERIOD: Duration = Duration::from_secs(10);
/// The shortest time between two writes of the known publishers.
const KNOWN_EVERY: Duration = Duration::from_millis(500);

/// Writes the known publishers to disk.
#[derive(Debug)]
pub(super) struct KnownWriter {
    newest: watch::Sender<KnownPublishers>,
    /// The version that was written last.
    version: u64,
    next_at: Instant,
}

impl KnownWriter {
    pub(super) fn new(newest: watch::Sender<KnownPublishers>) -> KnownWriter {
        KnownWriter { newest, version: 0, next_at: now() }
    }
}

/// An event of the server loop.
#[derive(Debug)]
pub(super) enum Event {
    Joined {
        client: Client,
        sender: LinkSender,
        writes: bool,
        access: Arc<ClientAccess>,
    },
    /// The client has other rights from now on: the policy has changed. If it has lost some, its
    /// link ends, too.
    Rights {
        client: Client,
        rights: Arc<Rights>,
    },
    Frame {
        client: Client,
        /// Decoded one by one, each in its turn: a waiting frame takes no further memory.
        messages: Messages,
        /// When it arrived.
        at: Instant,
        /// Its share of the connection's limit of unanswered bytes.
        permit: OwnedSemaphorePermit,
    },
    /// The client has read its answers.
    Ready {
        client: Client,
    },
    Left {
        client: Client,
    },
    /// The new limits of the replica.
    Limits(Limits),
    /// A request for the status from within this process.
    Status(oneshot::Sender<ReplicaStatus>),
}

/// The parts of the status that the directory does not know.
pub(super) struct StatusContext<'a> {
    pub(super) name: &'a str,
    pub(super) connections: u64,
    pub(super) uptime: Duration,
    pub(super) slice_max: Duration,
    pub(super) requests: &'a Cell<RequestCounts>,
    pub(super) slots: Option<&'a SlotsHandle>,
}

impl StatusContext<'_> {
    pub(super) fn status(&self, directory: &Directory) -> ReplicaStatus {
        ReplicaStatus {
            name: self.name.to_owned(),
            incarnation: directory.incarnation(),
            uptime_ms: millis(self.uptime),
            warming: !directory.is_complete(),
            publishers: directory.publishers_len() as u64,
            paths: directory.published_len() as u64,
            defaults: directory.defaults_len() as u64,
            connections: self.connections,
            watches: directory.watches_len() as u64,
            warming_left_ms: millis(directory.warming_left(now())),
            hidden: directory.hidden_len() as u64,
            refused_busy: self.slots.map_or(0, SlotsHandle::refused),
            slice_max_us: u64::try_from(self.slice_max.as_micros()).unwrap_or(u64::MAX),
            memory_bytes: resident_bytes(),
            publishers_max: directory.rules().publishers_max as u64,
            paths_max: directory.rules().paths_max as u64,
            connections_max: self.slots.map_or(0, |slots| slots.limit() as u64),
            watches_max: directory.rules().watches_max as u64,
            requests: Box::new(self.requests.get()),
        }
    }
}

/// The server loop.
#[derive(Debug)]
pub(super) struct ServerLoop {
    name: String,
    pub(super) directory: Directory,
    events: mpsc::Receiver<Event>,
    /// For the tasks that wait until slow clients have read.
    own_events: mpsc::WeakSender<Event>,
    clients: HashMap<Client, ClientState>,
    /// Clients that wait for a turn, each once.
    turns: VecDeque<Client>,
    /// Writers that wait for a turn and queued it while the replica warmed, each once and none in
    /// `turns`.
    writer_turns: VecDeque<Client>,
    /// Turns of `writer_turns` since the last one of `turns`.
    writer_turns_taken: usize,
    started: Instant,
    /// The last read of the clock, which all decisions of a pass use.
    clock_read_at: Instant,
    /// Limits the log lines about stalls.
    stall_log: LogLimit,
    pub(super) access_log: AccessLog,
    /// For the quotas of its clients.
    pub(super) access_control: AccessControl,
    sleep_detector: SleepDetector,
    /// There is more to sweep.
    pub(super) sweeping: bool,
    /// Clients with a first push to send, each once.
    pub(super) first_pushes: VecDeque<Client>,
    /// Clients that had a push and need more of them, each once and none in `first_pushes`.
    pub(super) further_pushes: VecDeque<Client>,
    /// The longest time of one pass.
    slice_max: Duration,
    /// Counts of requests. Owned by this task, so that counting takes no lock.
    pub(super) requests: Cell<RequestCounts>,
    /// The budget of segments for the globs of listings in progress.
    glob_segments: Arc<Semaphore>,
    /// Writes the known publishers, if there is a file for them.
    pub(super) known: Option<KnownWriter>,
    /// The listener's slots, for the status. `None` if the loop is tested alone.
    pub(super) slots: Option<SlotsHandle>,
}

/// The state of one client.
#[derive(Debug)]
struct ClientState {
    sender: LinkSender,
    writes: bool,
    access: Arc<ClientAccess>,
    /// Most paths that its identity may have registered, and the version of the rules that say so.
    paths_max: (Option<u32>, Option<u64>),
    /// The publisher as which it has registered first: a link is one publisher.
    registered_as: Option<PublisherId>,
    /// Requests that wait, without the part of the first frame that was already decoded.
    frames: VecDeque<(Messages, OwnedSemaphorePermit)>,
    /// The request in progress.
    request: Option<Request>,
    /// It is in the queue of turns.
    in_turn_queue: bool,
    /// Changes for its watches are pending; unless it is a slow reader, it is in a push queue.
    push_pending: bool,
    /// It is in `first_pushes` or `further_pushes`.
    in_push_queue: bool,
    /// Set while it does not read its answers: the task that waits until it has.
    slow_reader: Option<ReadWaiter>,
}

impl ClientState {
    /// Most paths that its identity may have registered.
    fn paths_max(&mut self, access_control: &AccessControl) -> Option<u32> {
        let version = Some(access_control.version());
        if self.writes && self.paths_max.1 != version {
            let quota = access_control.quota(self.access.identity.as_deref());
            self.paths_max = (quota.registered_paths.map(NonZeroU32::get), version);
        }
        self.paths_max.0
    }

    fn has_work(&self) -> bool {
        self.request.is_some() || !self.frames.is_empty()
    }

    /// The request in progress, or the next one.
    fn request(&mut self, counts: &Cell<RequestCounts>) -> Option<&mut Request> {
        while self.request.is_none() {
            match self.frames.front_mut()?.0.next() {
                Some(message) => self.request = Request::next(message, counts),
                None => drop(self.frames.pop_front()),
            }
        }
        self.request.as_mut()
    }
}

/// A task that waits for a client to read, aborted when dropped: at most one for each client.
#[derive(Debug)]
struct ReadWaiter(AbortHandle);

impl Drop for ReadWaiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServerLoop {
    pub(super) fn new(
        name: String,
        directory: Directory,
        events: mpsc::Receiver<Event>,
        own_events: mpsc::WeakSender<Event>,
    ) -> ServerLoop {
        ServerLoop {
            name,
            directory,
            events,
            own_events,
            clients: HashMap::new(),
            turns: VecDeque::new(),
            writer_turns: VecDeque::new(),
            writer_turns_taken: 0,
            started: now(),
            clock_read_at: now(),
            stall_log: LogLimit::new(1, STALL_LOG_PERIOD),
            access_log: AccessLog::new(),
            access_control: AccessControl::default(),
            sleep_detector: SleepDetector::new(ClockReading::take()),
            sweeping: false,
            first_pushes: VecDeque::new(),
            further_pushes: VecDeque::new(),
            slice_max: Duration::ZERO,
            requests: Cell::default(),
            glob_segments: Arc::new(Semaphore::new(GLOB_SEGMENTS_MAX)),
            known: None,
            slots: None,
        }
    }

    /// Runs until no event can come any more.
    pub(super) async fn run(mut self) {
        while self.pass().await {}
        // Writes the changes of the last half second, too.
        if let Some(known) = &mut self.known {
            known.next_at = self.clock_read_at;
        }
        self.write_known();
    }

    /// Waits until there is something to do, and does some of it. False when no event can come any
    /// more.
    pub(super) async fn pass(&mut self) -> bool {
        let mut next_clock_read = self.clock_read_at;
        let no_turns = self.turns.is_empty() && self.writer_turns.is_empty();
        let no_pushes = self.first_pushes.is_empty() && self.further_pushes.is_empty();
        if no_turns && no_pushes && !self.sweeping {
            let deadline = self.directory.next_deadline();
            let tick = self.clock_read_at + IDLE_TICK;
            next_clock_read =
                deadline.map_or(tick, |deadline| deadline.clamp(self.clock_read_at, tick));
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return false,
                },
                () = until(Some(next_clock_read)) => {}
            }
        } else {
            // Yields to connections and other tasks on the same threads.
            tokio::task::yield_now().await;
        }
        self.read_clock(next_clock_read);
        for _ in 0..EVENTS_PER_PASS_MAX {
            let Ok(event) = self.events.try_recv() else { break };
            self.handle(event);
            if now() >= self.clock_read_at + EVENTS_SLICE {
                break;
            }
        }
        // Uses the clock as read above: a stall from here on is noticed at the next read.
        self.directory.tick(self.clock_read_at);
        if let Some(client) = self.next_turn() {
            self.serve(client);
        }
        self.sweep();
        self.push_watches();
        self.write_known();
        self.slice_max = self.slice_max.max(now().saturating_duration_since(self.clock_read_at));
        true
    }

    /// Writes the known publishers, if they have changed.
    fn write_known(&mut self) {
        let Some(known) = &mut self.known else { return };
        let version = self.directory.known_version();
        if known.version != version && known.next_at <= self.clock_read_at {
            (known.version, known.next_at) = (version, self.clock_read_at + KNOWN_EVERY);
            let publishers = self.directory.known(self.clock_read_at);
            let all = self.directory.knows_all();
            known.newest.send_replace(KnownPublishers { publishers, all });
        }
    }

    fn sweep(&mut self) {
        let until = now() + SWEEP_SLICE;
        for _ in 0..SWEPT_PER_PASS_MAX / SWEEP_PATHS {
            self.sweeping = self.directory.sweep(SWEEP_PATHS);
            if !self.sweeping || now() >= until {
                break;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Joined { client, sender, writes, access } => {
                self.directory.set_scope(client, access.scope.clone());
                let state = ClientState {
                    sender,
                    writes,
                    access,
                    paths_max: (None, None),
                    registered_as: None,
                    frames: VecDeque::new(),
                    request: None,
                    in_turn_queue: false,
                    push_pending: false,
                    in_push_queue: false,
                    slow_reader: None,
                };
                self.clients.insert(client, state);
            }
            Event::Rights { client, rights } => {
                if let Some(state) = self.clients.get_mut(&client) {
                    state.access = Arc::new(state.access.with_rights(rights));
                    self.directory.set_scope(client, state.access.scope.clone());
                    self.directory.rights_changed(client);
                    self.end_if_bound_to_others(client);
                }
            }
            Event::Frame { client, messages, at, permit } => {
                self.directory.record_activity(client, at);
                if let Some(state) = self.clients.get_mut(&client) {
                    state.frames.push_back((messages, permit));
                    self.queue_turn(client);
                }
            }
            Event::Ready { client } => {
                if let Some(state) = self.clients.get_mut(&client) {
                    state.slow_reader = None;
                    self.queue_push(client, false);
                    self.queue_turn(client);
                }
            }
            Event::Left { client } => {
                self.clients.remove(&client);
                self.directory.client_gone(client);
            }
            Event::Limits(limits) => {
                self.directory.limit(limits.paths_max, limits.watches_max);
            }
            Event::Status(answer) => {
                let status_context = StatusContext {
                    name: &self.name,
                    connections: self.clients.len() as u64,
                    uptime: now().saturating_duration_since(self.started),
                    slice_max: self.slice_max,
                    requests: &self.requests,
                    slots: self.slots.as_ref(),
                };
                // The requester may have gone.
                let _ = answer.send(status_context.status(&self.directory));
            }
        }
    }

    /// Ends a link that has registered as a publisher which the policy has bound to others since.
    fn end_if_bound_to_others(&mut self, client: Client) {
        let (Some(state), Ok(slot)) = (self.clients.get(&client), self.directory.writer(client))
        else {
            return;
        };
        let publisher = self.directory.publisher_at(slot);
        if state.access.publishing(publisher).binding == Binding::Others {
            state.sender.close(format!("publisher {publisher} belongs to others now"));
            // What it has already sent is no longer done.
            self.handle(Event::Left { client });
        }
    }

    /// Queues a turn for a client, if it has work.
    fn queue_turn(&mut self, client: Client) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        if !state.in_turn_queue && state.slow_reader.is_none() && state.has_work() {
            state.in_turn_queue = true;
            let first = state.writes && !self.directory.is_complete();
            if first { &mut self.writer_turns } else { &mut self.turns }.push_back(client);
        }
    }

    /// Takes the next client that has a turn.
    fn next_turn(&mut self) -> Option<Client> {
        let others = self.writer_turns_taken >= WRITER_TURNS && !self.turns.is_empty();
        if !others && let Some(writer) = self.writer_turns.pop_front() {
            self.writer_turns_taken += 1;
            return Some(writer);
        }
        self.writer_turns_taken = 0;
        self.turns.pop_front()
    }

    /// Queues a push for a client, if changes are pending for it. `again` if it already had one.
    fn queue_push(&mut self, client: Client, again: bool) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        if !state.in_push_queue && state.slow_reader.is_none() && state.push_pending {
            state.in_push_queue = true;
            if again { &mut self.further_pushes } else { &mut self.first_pushes }.push_back(client);
        }
    }

    /// Reads the clock. `by` is when it would have been read, had the loop not stalled. During a
    /// stall no publisher could be heard, so none counts as silent.
    fn read_clock(&mut self, by: Instant) {
        self.clock_read_at = now();
        let late = self.clock_read_at.saturating_duration_since(by);
        if late > LATENESS_MAX {
            if let Some(left_out) = self.stall_log.admit(self.clock_read_at) {
                tracing::warn!(
                    ?late,
                    left_out,
                    "the replica stalled; publishers' deadlines are extended"
                );
            }
            self.directory.stalled(self.clock_read_at, late);
        }
        let slept = self.sleep_detector.since_last(ClockReading::take());
        if slept > Duration::ZERO && self.directory.slept(self.clock_read_at, slept) {
            tracing::warn!(?slept, "the machine slept; the replica warms again");
        }
    }

    /// One client's turn: its requests, in their order, for one slice.
    fn serve(&mut self, client: Client) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        state.in_turn_queue = false;
        // What waits here when a client loses its rights does not count.
        if state.slow_reader.is_some() || state.sender.was_cut() {
            return;
        }
        if state.sender.queued_bytes() > ANSWER_BYTES_QUEUED_MAX {
            self.wait_for_reader(client);
            return;
        }
        let status_context = StatusContext {
            name: &self.name,
            connections: self.clients.len() as u64,
            uptime: now().saturating_duration_since(self.started),
            slice_max: self.slice_max,
            requests: &self.requests,
            slots: self.slots.as_ref(),
        };
        let status = |directory: &Directory| status_context.status(directory);
        let Some(state) = self.clients.get_mut(&client) else { return };
        let begun = now();
        // A publisher whose writes are waiting here is not silent.
        self.directory.record_activity(client, begun);
        let access = state.access.clone();
        let paths_max = state.paths_max(&self.access_control);
        let mut registered_as = state.registered_as;
        let mut context = Context {
            access: &access,
            access_log: &mut self.access_log,
            writer_ttl: self.directory.writer_ttl(),
            directory: &mut self.directory,
            client,
            writes: state.writes,
            status: &status,
            glob_segments: &self.glob_segments,
            registered_as: &mut registered_as,
            paths_max,
            until: begun + SLICE,
        };
        let mut out = FrameWriter::new();
        while let Some(request) = state.request(&self.requests) {
            let answer = match request.slice(&mut context) {
                Progress::More(answer) => answer,
                Progress::Done(answer) => {
                    state.request = None;
                    answer
                }
            };
            if let Some(answer) = answer {
                answer.encode(&mut out);
            }
            if now() >= context.until || out.body_len() >= FRAME_BYTES_GOAL {
                break;
            }
        }
        state.registered_as = registered_as;
        send(&state.sender, out);
        self.queue_turn(client);
    }

    /// Sends changes to watchers, in turns. A slow reader receives only the latest state, later.
    pub(super) fn push_watches(&mut self) {
        let newly_due: Vec<Client> = self.directory.newly_due().collect();
        for client in newly_due {
            if let Some(state) = self.clients.get_mut(&client) {
                state.push_pending = true;
                self.queue_push(client, false);
            }
        }
        let until = now() + PUSH_SLICE;
        for _ in 0..self.first_pushes.len() {
            let Some(client) = self.first_pushes.pop_front() else { break };
            self.push(client, now() + FIRST_PUSH);
            if now() >= until {
                break;
            }
        }
        // A client with a new change waits for one of these, and not for all.
        if let Some(client) = self.further_pushes.pop_front() {
            self.push(client, now() + FURTHER_PUSH);
        }
    }

    fn push(&mut self, client: Client, until: Instant) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        state.in_push_queue = false;
        if state.slow_reader.is_some() {
            return;
        }
        let mut out = FrameWriter::new();
        let full = loop {
            let full = state.sender.queued_bytes() + out.body_len() > ANSWER_BYTES_QUEUED_MAX;
            if full || out.body_len() >= FRAME_BYTES_GOAL || now() >= until {
                break full;
            }
            match self.directory.push(client) {
                Push::Send(news) => news.encode(&mut out),
                Push::Working => {}
                Push::Done => {
                    state.push_pending = false;
                    break false;
                }
            }
        };
        send(&state.sender, out);
        if full {
            self.wait_for_reader(client);
        } else {
            self.queue_push(client, true);
        }
    }

    /// Stops serving a client until it has read most of its answers.
    fn wait_for_reader(&mut self, client: Client) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        if state.slow_reader.is_some() {
            return;
        }
        let (sender, events) = (state.sender.clone(), self.own_events.clone());
        let waiter = tokio::spawn(async move {
            // An error means that the link has ended; then `Left` follows.
            if sender.ready(ANSWER_BYTES_QUEUED_MAX / 2).await.is_ok()
                && let Some(events) = events.upgrade()
            {
                let _ = events.send(Event::Ready { client }).await;
            }
        });
        state.slow_reader = Some(ReadWaiter(waiter.abort_handle()));
    }
}

#[cfg(test)]
impl ServerLoop {
    /// Panics if queues and flags are inconsistent.
    pub(super) fn invariant(&self) {
        let entries =
            |queue: &VecDeque<Client>, client| queue.iter().filter(|&&at| at == client).count();
        for (&client, state) in &self.clients {
            let turns = entries(&self.turns, client) + entries(&self.writer_turns, client);
            let in_push_queue =
                entries(&self.first_pushes, client) + entries(&self.further_pushes, client);
            assert_eq!(turns, usize::from(state.in_turn_queue), "{client:?} among the turns");
            assert_eq!(
                in_push_queue,
                usize::from(state.in_push_queue),
                "{client:?} in the push queues"
            );
            let slow_reader = state.slow_reader.is_some();
            assert!(
                slow_reader || state.in_turn_queue == state.has_work(),
                "{client:?} is queued for its turn"
            );
            assert!(
                slow_reader || state.in_push_queue || !state.push_pending,
                "{client:?} is queued for a push"
            );
        }
    }

    /// Whether the loop waits for this client to read.
    pub(super) fn is_slow_reader(&self, client: Client) -> bool {
        self.clients.get(&client).is_some_and(|state| state.slow_reader.is_some())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn send(sender: &LinkSender, out: FrameWriter) {
    if out.is_empty() {
        return;
    }
    match sender.send(out.finish()) {
        // The connection's task notices the end, and sends `Left`.
        Ok(()) | Err(SendError::Closed) => {}
        Err(error @ (SendError::Full { .. } | SendError::TooLong { .. })) => {
            sender.close(error.to_string());
        }
    }
}
