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
use crate::server::job::{Bench, Job, Progress, Refusal, SLICE};

/// Most things said to the desk that wait for it; beyond, connections are not read.
pub(super) const SAID_MAX: usize = 1_024;
/// Most bytes of answers that wait in a client's send queue; beyond, it gets no turn.
const ANSWER_BYTES_QUEUED_MAX: usize = 1024 * 1024;
/// A frame with more than that is sent before more is added.
const FRAME_BYTES_GOAL: usize = 256 * 1024;
/// Paths taken out, or looked at for new watches, between two turns.
const SWEEP_PATHS: usize = 1_024;
/// A desk with nothing to do looks at the clock this often: from one look to the next it can tell whether it stood still.
const PULSE: Duration = Duration::from_millis(250);
/// A desk that comes to its next pass this late did not run: it was stopped, or its machine was.
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
        /// Or why it is not even begun.
        request: Result<ToReplica, Refusal>,
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
    /// When it last looked at the clock for all it does by time.
    looked_at: Instant,
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
            looked_at: now(),
            sweeping: false,
        }
    }

    /// Runs until nobody can say anything any more.
    pub(super) async fn run(mut self) {
        while self.pass().await {}
    }

    /// Waits until there is something to do, and does some of it. False when nobody can say anything any more.
    async fn pass(&mut self) -> bool {
        let mut next_look = self.looked_at;
        if self.turns.is_empty() && !self.sweeping {
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
        while let Ok(said) = self.said.try_recv() {
            self.hear(said);
        }
        // At the time of the look: one that stands still from here on is noticed at the next.
        self.directory.tick(self.looked_at);
        if let Some(client) = self.turns.pop_front() {
            self.serve(client);
        }
        self.sweeping = self.directory.sweep(SWEEP_PATHS);
        self.push_watches();
        true
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

    /// Looks at the clock, `by` that time unless the desk stood still, whatever it was doing. While it did nobody could be heard:
    /// nobody was silent.
    fn look(&mut self, by: Instant) {
        self.looked_at = now();
        let late = self.looked_at.saturating_duration_since(by);
        if late > LATENESS_MAX {
            tracing::warn!(?late, "the replica stood still; publishers get the time back");
            self.directory.stood_still(self.looked_at, late);
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
            uptime_ms: millis(uptime),
            warming: !directory.is_complete(),
            publishers: directory.publishers_len() as u64,
            paths: directory.published_len() as u64,
            defaults: directory.defaults_len() as u64,
            connections,
            watches: directory.watches_len() as u64,
            warming_left_ms: millis(directory.warming_left(now())),
            hidden: directory.hidden_len() as u64,
            refused_busy: 0,
            slice_max_us: 0,
            memory_bytes: 0,
            publishers_max: directory.rules().publishers_max as u64,
            paths_max: directory.rules().paths_max as u64,
            connections_max: 0,
            watches_max: directory.rules().watches_max as u64,
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

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::resolver::Change;
    use longshore_protocol::{Epoch, Incarnation, Path, PublisherId, PublisherInfo};

    use super::*;
    use crate::directory::Rules;

    const TTL: Duration = Duration::from_secs(120);
    const STAND_STILL_MAX: Duration = Duration::from_secs(15);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn info(number: u8) -> PublisherInfo {
        PublisherInfo {
            id: PublisherId([number; 16]),
            epoch: Epoch(1),
            name: format!("publisher-{number}"),
            addresses: vec![([127, 0, 0, 1], 4000).into()],
        }
    }

    /// A desk that is complete, and one publisher, heard of just now. Nobody but the test moves the clock on.
    struct Story {
        desk: Desk,
        said: mpsc::Sender<Said>,
    }

    impl Story {
        async fn new() -> Story {
            let rules = Rules {
                writer_ttl: TTL,
                stand_still_max: STAND_STILL_MAX,
                fresh: true,
                publishers_max: 8,
                paths_max: 100_000,
                watches_max: 8,
            };
            let directory = Directory::new(now(), Incarnation([1; 16]), rules);
            let (said, received) = mpsc::channel(SAID_MAX);
            let desk = Desk::new("left".into(), directory, received, said.downgrade());
            let mut story = Story { desk, said };
            story.announce(1);
            story.pass_until(now() + secs(1)).await;
            story
        }

        fn announce(&mut self, number: u8) {
            let client = Client(number.into());
            self.desk.directory.announce(now(), client, &info(number), &[]).unwrap();
        }

        fn sees(&self, number: u8) -> bool {
            self.desk.directory.writer(Client(number.into())).is_ok()
        }

        fn is_complete(&self) -> bool {
            self.desk.directory.is_complete()
        }

        /// A publisher that stops with more paths than one pass takes out.
        async fn give_work(&mut self) {
            self.announce(2);
            let slot = self.desk.directory.writer(Client(2)).unwrap();
            for n in 0..20 * SWEEP_PATHS {
                let path = Path::new(&format!("/jobs/{n}")).unwrap();
                self.desk.directory.change(slot, Change::Publish, &path).unwrap();
            }
            self.desk.directory.clear(Client(2)).unwrap();
            self.said.send(Said::Ready { client: Client(9) }).await.unwrap();
            self.pass().await;
            assert!(self.desk.sweeping);
        }

        /// One pass. A desk that waits for an hour, though nothing is said to it, would wait for ever.
        async fn pass(&mut self) {
            let pass = tokio::time::timeout(secs(3_600), self.desk.pass());
            assert_eq!(pass.await, Ok(true));
        }

        /// The desk at work, with nothing said to it, for as long.
        async fn pass_until(&mut self, end: Instant) {
            while now() < end {
                let pass = tokio::time::timeout_at(end.into(), self.desk.pass());
                if pass.await.is_err() {
                    // It waits for longer. Once more with the clock at the end, as a shell would that is asked at that moment.
                    self.said.send(Said::Ready { client: Client(9) }).await.unwrap();
                    self.pass().await;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_publisher_is_hidden_in_time_by_a_desk_that_never_stood_still() {
        let mut story = Story::new().await;
        story.pass_until(now() + TTL - secs(2)).await;
        assert!(story.sees(1));
        story.pass_until(now() + secs(1)).await;
        assert!(!story.sees(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_desk_that_stood_still_with_nothing_to_do_hides_nobody() {
        let mut story = Story::new().await;
        story.pass_until(now() + secs(59)).await;
        tokio::time::advance(secs(200)).await;
        story.pass().await;
        assert!(story.sees(1));
        // A minute was left, and is left still; it is over then.
        story.pass_until(now() + secs(59)).await;
        assert!(story.sees(1), "the time that the replica stood still counts for nobody");
        story.pass_until(now() + secs(2)).await;
        assert!(!story.sees(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_desk_that_stood_still_with_work_to_do_hides_nobody() {
        let mut story = Story::new().await;
        story.give_work().await;
        for _ in 0..3 {
            tokio::time::advance(secs(200)).await;
            story.pass().await;
            assert!(story.desk.sweeping && story.sees(1));
        }
        story.pass_until(now() + secs(121)).await;
        assert!(!story.sees(1));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_stand_still_the_replica_warms_for_half_a_writer_ttl() {
        let mut story = Story::new().await;
        tokio::time::advance(STAND_STILL_MAX - secs(1)).await;
        story.pass().await;
        assert!(story.is_complete(), "its writers have not given up yet");
        tokio::time::advance(STAND_STILL_MAX + secs(1)).await;
        story.pass().await;
        assert!(!story.is_complete(), "what was published meanwhile it does not know");
        story.pass_until(now() + TTL / 2 - secs(1)).await;
        assert!(!story.is_complete());
        story.pass_until(now() + secs(2)).await;
        assert!(story.is_complete());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stand_still_while_warming_is_made_up_for() {
        let mut story = Story::new().await;
        tokio::time::advance(secs(16)).await;
        story.pass().await;
        story.pass_until(now() + secs(55)).await;
        // Short enough to be no reason to warm anew, and yet nobody could be heard meanwhile.
        tokio::time::advance(secs(14)).await;
        story.pass().await;
        story.pass_until(now() + secs(4)).await;
        assert!(!story.is_complete());
        story.pass_until(now() + secs(2)).await;
        assert!(story.is_complete());
    }
}
