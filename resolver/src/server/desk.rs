//! The one task that owns the directory. It serves its clients in turn, each for a slice of time,
//! so that one huge request holds up nobody else's; a client that does not read its answers gets no
//! turn until it does.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::messages::resolver::{ReplicaStatus, RequestCounts};
use longshore_transport::{LinkSender, LogLimit, SendError, SlotsHandle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::directory::{Client, Directory, Push};
use crate::replica_link::{now, until};
use crate::server::job::{Bench, GLOB_PIECES_MAX, Job, Progress, SLICE};
use crate::server::known_file::Knowledge;
use crate::server::limits::Limits;
use crate::server::memory::resident_bytes;
use crate::slept::{Reading, Slept};

/// Most things said to the desk that wait for it; beyond, connections are not read.
pub(super) const SAID_MAX: usize = 1_024;
/// Most bytes of answers that wait in a client's send queue; beyond, it gets no turn.
pub(super) const ANSWER_BYTES_QUEUED_MAX: usize = 1024 * 1024;
/// A frame with more than that is sent before more is added.
pub(super) const FRAME_BYTES_GOAL: usize = 256 * 1024;
/// Most things heard between two turns.
const HEARD_MAX: usize = 256;
/// While the replica warms, turns of writers before one of somebody else: however many ask, what
/// publishers have to tell is written in time, and who asks is answered meanwhile.
const WRITERS_TURNS: usize = 3;
/// How long hearing may take between two turns: a client that leaves may leave thousands of
/// watches.
const HEAR_SLICE: Duration = Duration::from_millis(1);
/// Paths taken out between two looks at the clock.
const SWEEP_PATHS: usize = 256;
/// Most of them between two turns.
pub(super) const SWEPT_MAX: usize = 4_096;
/// How long sweeping may take between two turns.
const SWEEP_SLICE: Duration = Duration::from_millis(1);
/// With so much of telling watchers, and of walks for what they watch, no further client gets its
/// first turn before other work is done.
const PUSH_SLICE: Duration = Duration::from_millis(1);
/// A client's first turn may take so long: enough for 10,000 nodes below a prefix.
const FIRST_PUSH: Duration = Duration::from_millis(2);
/// And each that it needs after that. There is one between two turns: with 64 clients that walk
/// through all paths each has one in 32 ms.
const NEXT_PUSH: Duration = Duration::from_micros(500);
/// A desk with nothing to do looks at the clock this often: from one look to the next it can tell
/// whether it stood still.
const PULSE: Duration = Duration::from_millis(250);
/// A desk that comes to its next pass this late did not run: it was stopped, or its machine was.
const LATENESS_MAX: Duration = Duration::from_millis(100);

/// How often at most it is written down which publishers are known.
const KNOWN_EVERY: Duration = Duration::from_millis(500);

/// Where the replica writes down which publishers it knows.
#[derive(Debug)]
pub(super) struct KnownWriter {
    newest: watch::Sender<Knowledge>,
    /// Of what was written last.
    version: u64,
    next_at: Instant,
}

impl KnownWriter {
    pub(super) fn new(newest: watch::Sender<Knowledge>) -> KnownWriter {
        KnownWriter { newest, version: 0, next_at: now() }
    }
}
/// One line of the log about it in this time, at most.
const STAND_STILLS_LOGGED: Duration = Duration::from_secs(10);

/// What is said to the desk.
#[derive(Debug)]
pub(super) enum Said {
    Joined {
        client: Client,
        sender: LinkSender,
        writes: bool,
    },
    Frame {
        client: Client,
        /// Decoded one by one, each when it is its turn: what waits takes no memory beside its
        /// frame.
        messages: Messages,
        /// When it came.
        at: Instant,
        /// Its part of what its connection may have unanswered.
        counted: OwnedSemaphorePermit,
    },
    /// The client has read its answers.
    Ready {
        client: Client,
    },
    Left {
        client: Client,
    },
    /// What the replica takes on from now on.
    Limits(Limits),
    /// Somebody in this process asks how the replica is.
    Status(oneshot::Sender<ReplicaStatus>),
}

/// How the replica is, beside its directory.
struct Standing<'a> {
    name: &'a str,
    connections: u64,
    uptime: Duration,
    slice_max: Duration,
    requests: &'a Cell<RequestCounts>,
    places: Option<&'a SlotsHandle>,
}

impl Standing<'_> {
    fn status(&self, directory: &Directory) -> ReplicaStatus {
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
            refused_busy: self.places.map_or(0, SlotsHandle::refused),
            slice_max_us: u64::try_from(self.slice_max.as_micros()).unwrap_or(u64::MAX),
            memory_bytes: resident_bytes(),
            publishers_max: directory.rules().publishers_max as u64,
            paths_max: directory.rules().paths_max as u64,
            connections_max: self.places.map_or(0, |places| places.most() as u64),
            watches_max: directory.rules().watches_max as u64,
            requests: Box::new(self.requests.get()),
        }
    }
}

/// The desk.
#[derive(Debug)]
pub(super) struct Desk {
    name: String,
    pub(super) directory: Directory,
    said: mpsc::Receiver<Said>,
    /// For the waits of clients that do not read.
    own_said: mpsc::WeakSender<Said>,
    clients: HashMap<Client, At>,
    /// Clients with a turn to come, each once.
    turns: VecDeque<Client>,
    /// Writers with a turn to come that had something to be done while the replica warmed, each
    /// once and none in `turns`.
    writers_turns: VecDeque<Client>,
    /// Turns of those since one of `turns`.
    writers_served: usize,
    started: Instant,
    /// When it last looked at the clock for all it does by time.
    looked_at: Instant,
    /// How often it is said that it stood still.
    stand_stills: LogLimit,
    slept: Slept,
    /// There is more to sweep.
    pub(super) sweeping: bool,
    /// Clients that are to be told something of what they watch, each once.
    pub(super) pushing: VecDeque<Client>,
    /// Those that had a turn and need more of them, each once and none in `pushing`.
    pub(super) pushing_on: VecDeque<Client>,
    /// The longest that one pass has taken.
    slice_max: Duration,
    /// What it was asked. Its own alone, as all that is here: counting takes no lock.
    pub(super) requests: Cell<RequestCounts>,
    /// What the globs of listings that are being answered may stand for.
    glob_pieces: Arc<Semaphore>,
    /// Where it writes down which publishers it knows.
    pub(super) known: Option<KnownWriter>,
    /// Of the listener, for the status. None of a desk that is tested alone.
    pub(super) places: Option<SlotsHandle>,
}

/// A client at the desk.
#[derive(Debug)]
struct At {
    sender: LinkSender,
    writes: bool,
    /// Requests that wait, the first ones of the frame of `job` left out.
    frames: VecDeque<(Messages, OwnedSemaphorePermit)>,
    /// The request that is being answered.
    job: Option<Job>,
    /// It has a place among the turns.
    waits: bool,
    /// It is to be told something of what it watches; unless it is clogged, it has a place among
    /// those that are.
    due: bool,
    /// It has a place in `pushing`, or in `pushing_on`.
    pushes: bool,
    /// It does not read its answers: whoever waits until it has.
    clogged: Option<Waiter>,
}

impl At {
    fn has_work(&self) -> bool {
        self.job.is_some() || !self.frames.is_empty()
    }

    /// The request that is being answered, or the next.
    fn job(&mut self, counts: &Cell<RequestCounts>) -> Option<&mut Job> {
        while self.job.is_none() {
            match self.frames.front_mut()?.0.next() {
                Some(message) => self.job = Job::next(message, counts),
                None => drop(self.frames.pop_front()),
            }
        }
        self.job.as_mut()
    }
}

/// A task that waits for a client to read. Dropped, it does not wait any more: there is one for
/// each client that is clogged, at most.
#[derive(Debug)]
struct Waiter(AbortHandle);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Desk {
    pub(super) fn new(
        name: String,
        directory: Directory,
        said: mpsc::Receiver<Said>,
        own_said: mpsc::WeakSender<Said>,
    ) -> Desk {
        Desk {
            name,
            directory,
            said,
            own_said,
            clients: HashMap::new(),
            turns: VecDeque::new(),
            writers_turns: VecDeque::new(),
            writers_served: 0,
            started: now(),
            looked_at: now(),
            stand_stills: LogLimit::new(1, STAND_STILLS_LOGGED),
            slept: Slept::new(Reading::take()),
            sweeping: false,
            pushing: VecDeque::new(),
            pushing_on: VecDeque::new(),
            slice_max: Duration::ZERO,
            requests: Cell::default(),
            glob_pieces: Arc::new(Semaphore::new(GLOB_PIECES_MAX)),
            known: None,
            places: None,
        }
    }

    /// Runs until nobody can say anything any more.
    pub(super) async fn run(mut self) {
        while self.pass().await {}
        // What has changed within the last half second is written down, too.
        if let Some(known) = &mut self.known {
            known.next_at = self.looked_at;
        }
        self.write_known();
    }

    /// Waits until there is something to do, and does some of it. False when nobody can say
    /// anything any more.
    pub(super) async fn pass(&mut self) -> bool {
        let mut next_look = self.looked_at;
        let no_turns = self.turns.is_empty() && self.writers_turns.is_empty();
        let no_pushes = self.pushing.is_empty() && self.pushing_on.is_empty();
        if no_turns && no_pushes && !self.sweeping {
            let deadline = self.directory.next_deadline();
            let pulse = self.looked_at + PULSE;
            next_look = deadline.map_or(pulse, |deadline| deadline.clamp(self.looked_at, pulse));
            tokio::select! {
                said = self.said.recv() => match said {
                    Some(said) => self.hear(said),
                    None => return false,
                },
                () = until(Some(next_look)) => {}
            }
        } else {
            // Connections, and whoever else shares the threads, get theirs.
            tokio::task::yield_now().await;
        }
        self.look(next_look);
        for _ in 0..HEARD_MAX {
            let Ok(said) = self.said.try_recv() else { break };
            self.hear(said);
            if now() >= self.looked_at + HEAR_SLICE {
                break;
            }
        }
        // At the time of the look: one that stands still from here on is noticed at the next.
        self.directory.tick(self.looked_at);
        if let Some(client) = self.next_turn() {
            self.serve(client);
        }
        self.sweep();
        self.push_watches();
        self.write_known();
        self.slice_max = self.slice_max.max(now().saturating_duration_since(self.looked_at));
        true
    }

    /// Passes on which publishers are known, if that has changed.
    fn write_known(&mut self) {
        let Some(known) = &mut self.known else { return };
        let version = self.directory.known_version();
        if known.version != version && known.next_at <= self.looked_at {
            (known.version, known.next_at) = (version, self.looked_at + KNOWN_EVERY);
            let publishers = self.directory.known(self.looked_at);
            let all = self.directory.knows_all();
            known.newest.send_replace(Knowledge { publishers, all });
        }
    }

    fn sweep(&mut self) {
        let until = now() + SWEEP_SLICE;
        for _ in 0..SWEPT_MAX / SWEEP_PATHS {
            self.sweeping = self.directory.sweep(SWEEP_PATHS);
            if !self.sweeping || now() >= until {
                break;
            }
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Joined { client, sender, writes } => {
                let (frames, job) = (VecDeque::new(), None);
                let (waits, due, pushes, clogged) = (false, false, false, None);
                let at = At { sender, writes, frames, job, waits, due, pushes, clogged };
                self.clients.insert(client, at);
            }
            Said::Frame { client, messages, at, counted } => {
                self.directory.heard(client, at);
                if let Some(at) = self.clients.get_mut(&client) {
                    at.frames.push_back((messages, counted));
                    self.turn(client);
                }
            }
            Said::Ready { client } => {
                if let Some(at) = self.clients.get_mut(&client) {
                    at.clogged = None;
                    self.push_turn(client, false);
                    self.turn(client);
                }
            }
            Said::Left { client } => {
                self.clients.remove(&client);
                self.directory.client_gone(client);
            }
            Said::Limits(limits) => {
                self.directory.limit(limits.paths_max, limits.watches_max);
            }
            Said::Status(answer) => {
                let standing = Standing {
                    name: &self.name,
                    connections: self.clients.len() as u64,
                    uptime: now().saturating_duration_since(self.started),
                    slice_max: self.slice_max,
                    requests: &self.requests,
                    places: self.places.as_ref(),
                };
                // Nobody may want it any more.
                let _ = answer.send(standing.status(&self.directory));
            }
        }
    }

    /// Gives a client a place among the turns, if it has something to be done.
    fn turn(&mut self, client: Client) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        if !at.waits && at.clogged.is_none() && at.has_work() {
            at.waits = true;
            let first = at.writes && !self.directory.is_complete();
            if first { &mut self.writers_turns } else { &mut self.turns }.push_back(client);
        }
    }

    /// Whose turn it is.
    fn next_turn(&mut self) -> Option<Client> {
        let others = self.writers_served >= WRITERS_TURNS && !self.turns.is_empty();
        if !others && let Some(writer) = self.writers_turns.pop_front() {
            self.writers_served += 1;
            return Some(writer);
        }
        self.writers_served = 0;
        self.turns.pop_front()
    }

    /// Gives a client a place among those that are told something, if there is something for it: it
    /// had a turn already, or not.
    fn push_turn(&mut self, client: Client, again: bool) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        if !at.pushes && at.clogged.is_none() && at.due {
            at.pushes = true;
            if again { &mut self.pushing_on } else { &mut self.pushing }.push_back(client);
        }
    }

    /// Looks at the clock, `by` that time unless the desk stood still, whatever it was doing. While
    /// it did nobody could be heard: nobody was silent.
    fn look(&mut self, by: Instant) {
        self.looked_at = now();
        let late = self.looked_at.saturating_duration_since(by);
        if late > LATENESS_MAX {
            if let Some(left_out) = self.stand_stills.admit(self.looked_at) {
                tracing::warn!(
                    ?late,
                    left_out,
                    "the replica stood still; publishers get the time back"
                );
            }
            self.directory.stood_still(self.looked_at, late);
        }
        let slept = self.slept.since_last(Reading::take());
        if slept > Duration::ZERO && self.directory.slept(self.looked_at, slept) {
            tracing::warn!(?slept, "the machine slept; the replica warms again");
        }
    }

    /// One client's turn: its requests, in their order, for one slice.
    fn serve(&mut self, client: Client) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        at.waits = false;
        if at.clogged.is_some() {
            return;
        }
        if at.sender.queued_bytes() > ANSWER_BYTES_QUEUED_MAX {
            self.clog(client);
            return;
        }
        let standing = Standing {
            name: &self.name,
            connections: self.clients.len() as u64,
            uptime: now().saturating_duration_since(self.started),
            slice_max: self.slice_max,
            requests: &self.requests,
            places: self.places.as_ref(),
        };
        let status = |directory: &Directory| standing.status(directory);
        let Some(at) = self.clients.get_mut(&client) else { return };
        let begun = now();
        // A publisher whose writes are waiting here is not silent.
        self.directory.heard(client, begun);
        let mut bench = Bench {
            writer_ttl: self.directory.writer_ttl(),
            directory: &mut self.directory,
            client,
            writes: at.writes,
            status: &status,
            glob_pieces: &self.glob_pieces,
            until: begun + SLICE,
        };
        let mut out = FrameWriter::new();
        while let Some(job) = at.job(&self.requests) {
            let answer = match job.slice(&mut bench) {
                Progress::More(answer) => answer,
                Progress::Done(answer) => {
                    at.job = None;
                    answer
                }
            };
            if let Some(answer) = answer {
                answer.encode(&mut out);
            }
            if now() >= bench.until || out.body_len() >= FRAME_BYTES_GOAL {
                break;
            }
        }
        send(&at.sender, out);
        self.turn(client);
    }

    /// Tells watchers what has changed, in turns. Who does not read is told later, once, what is so
    /// then.
    pub(super) fn push_watches(&mut self) {
        let newly_due: Vec<Client> = self.directory.newly_due().collect();
        for client in newly_due {
            if let Some(at) = self.clients.get_mut(&client) {
                at.due = true;
                self.push_turn(client, false);
            }
        }
        let until = now() + PUSH_SLICE;
        for _ in 0..self.pushing.len() {
            let Some(client) = self.pushing.pop_front() else { break };
            self.push(client, now() + FIRST_PUSH);
            if now() >= until {
                break;
            }
        }
        // Whoever has news waits for one of these, and not for all.
        if let Some(client) = self.pushing_on.pop_front() {
            self.push(client, now() + NEXT_PUSH);
        }
    }

    fn push(&mut self, client: Client, until: Instant) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        at.pushes = false;
        if at.clogged.is_some() {
            return;
        }
        let mut out = FrameWriter::new();
        let full = loop {
            let full = at.sender.queued_bytes() + out.body_len() > ANSWER_BYTES_QUEUED_MAX;
            if full || out.body_len() >= FRAME_BYTES_GOAL || now() >= until {
                break full;
            }
            match self.directory.push(client) {
                Push::Tell(news) => news.encode(&mut out),
                Push::Working => {}
                Push::Done => {
                    at.due = false;
                    break false;
                }
            }
        };
        send(&at.sender, out);
        if full {
            self.clog(client);
        } else {
            self.push_turn(client, true);
        }
    }

    /// Lets a client wait until it has read most of its answers.
    fn clog(&mut self, client: Client) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        if at.clogged.is_some() {
            return;
        }
        let (sender, said) = (at.sender.clone(), self.own_said.clone());
        let waiter = tokio::spawn(async move {
            // An error is the link's end; then `Left` follows.
            if sender.ready(ANSWER_BYTES_QUEUED_MAX / 2).await.is_ok()
                && let Some(said) = said.upgrade()
            {
                let _ = said.send(Said::Ready { client }).await;
            }
        });
        at.clogged = Some(Waiter(waiter.abort_handle()));
    }
}

#[cfg(test)]
impl Desk {
    /// Panics where the desk's books disagree.
    pub(super) fn invariant(&self) {
        let places =
            |row: &VecDeque<Client>, client| row.iter().filter(|&&at| at == client).count();
        for (&client, at) in &self.clients {
            let turns = places(&self.turns, client) + places(&self.writers_turns, client);
            let pushes = places(&self.pushing, client) + places(&self.pushing_on, client);
            assert_eq!(turns, usize::from(at.waits), "{client:?} among the turns");
            assert_eq!(pushes, usize::from(at.pushes), "{client:?} among those that are told");
            let clogged = at.clogged.is_some();
            assert!(clogged || at.waits == at.has_work(), "{client:?} waits for its turn");
            assert!(clogged || at.pushes || !at.due, "{client:?} waits to be told");
        }
    }

    /// Whether somebody waits for that client to read.
    pub(super) fn is_clogged(&self, client: Client) -> bool {
        self.clients.get(&client).is_some_and(|at| at.clogged.is_some())
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
        // The connection's task sees the end, and says so.
        Ok(()) | Err(SendError::Closed) => {}
        Err(error @ (SendError::Full { .. } | SendError::TooLong { .. })) => {
            sender.close(error.to_string());
        }
    }
}
