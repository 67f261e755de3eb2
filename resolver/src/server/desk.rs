//! The one task that owns the directory. It serves its clients in turn, each for a slice of time, so that one huge request holds up
//! nobody else's; a client that does not read its answers gets no turn until it does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::resolver::{FromReplica, ReplicaStatus, ToReplica};
use longshore_transport::{LinkSender, SendError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::directory::{Client, Directory};
use crate::replica_link::{now, until};
use crate::server::job::{Bench, Job, Progress, SLICE};

/// Most things said to the desk that wait for it; beyond, connections are not read.
pub(super) const SAID_MAX: usize = 1_024;
/// Most bytes of answers that wait in a client's send queue; beyond, it gets no turn.
const ANSWER_BYTES_QUEUED_MAX: usize = 1024 * 1024;
/// A frame with more than that is sent before more is added.
const FRAME_BYTES_GOAL: usize = 256 * 1024;
/// Paths taken out, or looked at for new watches, between two turns.
const SWEEP_PATHS: usize = 1_024;
/// A desk that wakes this late did not run: it was stopped, or its machine was.
const LATENESS_MAX: Duration = Duration::from_millis(100);

/// What is said to the desk.
#[derive(Debug)]
pub(super) enum Said {
    Joined {
        client: Client,
        sender: LinkSender,
        writes: bool,
    },
    Request {
        client: Client,
        /// Or the number of one that does not decode, and why.
        request: Result<ToReplica, (u64, String)>,
        /// When it came.
        at: Instant,
        /// Its part of what the client may have unanswered.
        permit: OwnedSemaphorePermit,
    },
    /// The client has read its answers.
    Ready {
        client: Client,
    },
    Left {
        client: Client,
    },
}

/// The desk.
#[derive(Debug)]
pub(super) struct Desk {
    name: String,
    directory: Directory,
    said: mpsc::Receiver<Said>,
    /// For the waits of clients that do not read.
    own_said: mpsc::WeakSender<Said>,
    clients: HashMap<Client, At>,
    /// Clients with a turn to come, each once.
    turns: VecDeque<Client>,
    started: Instant,
    /// There is more to sweep.
    sweeping: bool,
}

/// A client at the desk.
#[derive(Debug)]
struct At {
    sender: LinkSender,
    writes: bool,
    jobs: VecDeque<(Job, OwnedSemaphorePermit)>,
    /// It has a place in `turns`.
    waits: bool,
    /// It does not read its answers.
    clogged: bool,
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
            started: now(),
            sweeping: false,
        }
    }

    /// Runs until nobody can say anything any more.
    pub(super) async fn run(mut self) {
        loop {
            if self.turns.is_empty() && !self.sweeping {
                let deadline = self.directory.next_deadline();
                tokio::select! {
                    said = self.said.recv() => match said {
                        Some(said) => self.hear(said),
                        None => return,
                    },
                    () = until(deadline) => {}
                }
                self.forgive_lateness(deadline);
            } else {
                // Connections, and whoever else shares the threads, get theirs.
                tokio::task::yield_now().await;
            }
            while let Ok(said) = self.said.try_recv() {
                self.hear(said);
            }
            self.directory.tick(now());
            if let Some(client) = self.turns.pop_front() {
                self.serve(client);
            }
            self.sweeping = self.directory.sweep(SWEEP_PATHS);
            self.push_watches();
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Joined { client, sender, writes } => {
                let jobs = VecDeque::new();
                let at = At { sender, writes, jobs, waits: false, clogged: false };
                self.clients.insert(client, at);
            }
            Said::Request { client, request, at, permit } => {
                self.directory.heard(client, at);
                if let Some(at) = self.clients.get_mut(&client) {
                    at.jobs.push_back((Job::new(request), permit));
                    self.turn(client);
                }
            }
            Said::Ready { client } => {
                if let Some(at) = self.clients.get_mut(&client) {
                    at.clogged = false;
                    self.turn(client);
                }
            }
            Said::Left { client } => {
                self.clients.remove(&client);
                self.directory.client_gone(client);
            }
        }
    }

    /// Gives a client a place among the turns, if it has something to be done.
    fn turn(&mut self, client: Client) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        if !at.waits && !at.clogged && !at.jobs.is_empty() {
            at.waits = true;
            self.turns.push_back(client);
        }
    }

    /// While the desk did not run nobody could be heard: nobody was silent.
    fn forgive_lateness(&mut self, deadline: Option<Instant>) {
        let late = deadline.map(|deadline| now().saturating_duration_since(deadline));
        if let Some(late) = late.filter(|&late| late > LATENESS_MAX) {
            tracing::warn!(?late, "the replica stood still; publishers get the time back");
            self.directory.stood_still(late + LATENESS_MAX);
        }
    }

    /// One client's turn: its requests, in their order, for one slice.
    fn serve(&mut self, client: Client) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        at.waits = false;
        if at.sender.queued_bytes() > ANSWER_BYTES_QUEUED_MAX {
            self.clog(client);
            return;
        }
        let connections = self.clients.len() as u64;
        let uptime = now().saturating_duration_since(self.started);
        let name = &self.name;
        let status = |directory: &Directory| ReplicaStatus {
            name: name.clone(),
            incarnation: directory.incarnation(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            warming: !directory.is_complete(),
            publishers: directory.publishers_len() as u64,
            paths: directory.published_len() as u64,
            defaults: directory.defaults_len() as u64,
            connections,
            watches: directory.watches_len() as u64,
        };
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
            until: begun + SLICE,
        };
        let mut out = FrameWriter::new();
        while let Some((job, _)) = at.jobs.front_mut() {
            let answer = match job.slice(&mut bench) {
                Progress::More(answer) => answer,
                Progress::Done(answer) => {
                    at.jobs.pop_front();
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

    /// Tells watchers what has changed. Who does not read is told later, once, what is so then.
    fn push_watches(&mut self) {
        for client in self.directory.clients_to_push() {
            let Some(at) = self.clients.get(&client) else { continue };
            if at.clogged {
                continue;
            }
            let mut out = FrameWriter::new();
            while at.sender.queued_bytes() + out.body_len() <= ANSWER_BYTES_QUEUED_MAX {
                let Some(publishers) = self.directory.push(client) else { break };
                FromReplica::Publishers(publishers).encode(&mut out);
            }
            let full = at.sender.queued_bytes() + out.body_len() > ANSWER_BYTES_QUEUED_MAX;
            send(&at.sender, out);
            if full {
                self.clog(client);
            }
        }
    }

    /// Lets a client wait until it has read most of its answers.
    fn clog(&mut self, client: Client) {
        let Some(at) = self.clients.get_mut(&client) else { return };
        at.clogged = true;
        let (sender, said) = (at.sender.clone(), self.own_said.clone());
        tokio::spawn(async move {
            // An error is the link's end; then `Left` follows.
            if sender.ready(ANSWER_BYTES_QUEUED_MAX / 2).await.is_ok()
                && let Some(said) = said.upgrade()
            {
                let _ = said.send(Said::Ready { client }).await;
            }
        });
    }
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
