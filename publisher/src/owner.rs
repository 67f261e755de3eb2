//! The owner: the one task that touches the store. It applies what links say, and routes what is durable.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::messages::work::{
    Answer, FromPublisher, PublisherStatus, Request, RequestError, ToPublisher, Tokens,
};
use longshore_protocol::{LinkId, Path, Revoked};
use longshore_queue::{
    Clock, Command, Handed, LogStore, Now, Poisoned, QueueId, Released, Reply,
    UNCOMMITTED_BYTES_MAX,
};
use longshore_resolver::WriteClient;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::cold::{ColdJob, ColdLoads};
use crate::input::{Input, Inputs, Up};
use crate::router::{Entries, Router};

/// Inputs taken at a time: enough for large commits, few enough that releases are not held up.
const INPUTS_AT_A_TIME: usize = 128;
/// The longest that leases and due jobs wait for their turn while there is always more input.
const TURN_AT_LATEST: Duration = Duration::from_millis(50);
/// How long a stop waits for the last commit.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// The owner's parts.
pub(crate) struct Owner {
    store: LogStore,
    clock: Clock,
    router: Router,
    cold: ColdLoads,
    inputs: mpsc::Receiver<Input>,
    registry: Option<WriteClient>,
    name: String,
    started: Instant,
    /// Tokens revoked in one release, by link, until they are said.
    revoked: Vec<(LinkId, Revoked, longshore_protocol::Token)>,
}

impl Owner {
    pub(crate) fn new(
        store: LogStore,
        clock: Clock,
        registry: Option<WriteClient>,
        name: String,
    ) -> (Owner, Inputs) {
        let (sender, inputs) = Inputs::new();
        let owner = Owner {
            router: Router::new(sender.sender().clone()),
            cold: ColdLoads::new(store.reader(), sender.sender().clone()),
            store,
            clock,
            inputs,
            registry,
            name,
            started: Instant::now(),
            revoked: Vec::new(),
        };
        (owner, sender)
    }

    /// Serves until `stop` resolves, then lets what was taken become durable and tells every link.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), Poisoned> {
        match self.serve(stop).await {
            Ok(Stop::Durable) => Ok(()),
            Ok(Stop::Hangs) => {
                // The journal closes with its last sync. On a disk that hangs that may be never: the process ends all the same.
                std::thread::spawn(move || drop(self));
                Ok(())
            }
            Err(why) => {
                self.router.close_all("the publisher's journal has failed");
                Err(why)
            }
        }
    }

    async fn serve(&mut self, stop: impl Future<Output = ()>) -> Result<Stop, Poisoned> {
        tokio::pin!(stop);
        let mut inputs = Vec::with_capacity(INPUTS_AT_A_TIME);
        let mut released = Released::default();
        let mut deadline = self.turn()?;
        let mut turned = Instant::now();
        loop {
            let room = self.has_room();
            tokio::select! {
                biased;
                () = &mut stop => return self.stop(released).await,
                outcome = self.store.released(&mut released) => {
                    outcome?;
                    self.route(&mut released)?;
                }
                taken = self.inputs.recv_many(&mut inputs, INPUTS_AT_A_TIME), if room => {
                    debug_assert!(taken > 0, "the router holds a sender: the channel never closes");
                    let now = self.clock.now();
                    for input in inputs.drain(..) {
                        self.take(now, input)?;
                    }
                    self.send()?;
                }
                () = sleep_until(deadline), if room => {}
            }
            // Input already received is applied before any lease ends, so none ends while input is held back: a renewal may
            // be in it. To the store such a time is a pause.
            if !self.has_room() {
                continue;
            }
            if !self.inputs.is_empty() {
                if turned.elapsed() < TURN_AT_LATEST {
                    continue;
                }
                self.take_what_waits()?;
            }
            deadline = self.turn()?;
            turned = Instant::now();
        }
    }

    fn has_room(&self) -> bool {
        self.store.uncommitted_bytes() < UNCOMMITTED_BYTES_MAX
    }

    fn take_what_waits(&mut self) -> Result<(), Poisoned> {
        let now = self.clock.now();
        for _ in 0..self.inputs.len() {
            let Ok(input) = self.inputs.try_recv() else { break };
            self.take(now, input)?;
        }
        self.send()
    }

    /// Ends leases, makes due jobs ready; says when to come again.
    fn turn(&mut self) -> Result<Option<Instant>, Poisoned> {
        let now = self.clock.now();
        let at = Instant::now();
        let next = self.store.turn(now)?;
        self.store.flush();
        Ok(next.map(|mono_ms| at + Duration::from_millis(mono_ms.saturating_sub(now.mono_ms))))
    }

    fn take(&mut self, now: Now, input: Input) -> Result<(), Poisoned> {
        match input {
            Input::Up(up) => self.link_up(now, up),
            Input::Messages { link, messages, .. } if self.router.has(link) => {
                for message in messages {
                    self.message(now, link, message)?;
                }
                Ok(())
            }
            Input::Messages { .. } => Ok(()),
            Input::Down { link } => {
                if self.router.remove(link) {
                    self.store.submit(now, Command::LinkLost { link })?;
                } else {
                    self.store.link_replaced(now, link);
                }
                Ok(())
            }
            Input::Ready { link } => {
                self.router.ready(link);
                Ok(())
            }
            Input::Loaded { load, jobs } => self.loaded(now, load, jobs),
            Input::Answered(loaded) => {
                self.cold.answer_loaded();
                self.router.end_request(loaded.link);
                self.router.say(
                    loaded.link,
                    &FromPublisher::Answer { id: loaded.id, answer: loaded.answer },
                );
                Ok(())
            }
        }
    }

    fn link_up(&mut self, now: Now, up: Up) -> Result<(), Poisoned> {
        self.router.add(&up);
        let Up { link, role, session, name, resume, .. } = up;
        self.store.submit(now, Command::LinkUp { link, role, session, name, resume })?;
        Ok(())
    }

    fn message(&mut self, now: Now, link: LinkId, message: ToPublisher) -> Result<(), Poisoned> {
        let command = match message {
            ToPublisher::Enqueue(batch) => Command::Enqueue { link, batch },
            ToPublisher::Settle(batch) => Command::Settle { link, batch },
            ToPublisher::Credit(credit) => {
                Command::Credit { link, subscription: credit.subscription, count: credit.count }
            }
            ToPublisher::Recall(credit) => {
                Command::Recall { link, subscription: credit.subscription, count: credit.count }
            }
            ToPublisher::Subscribe(subscribe) => Command::Subscribe {
                link,
                subscription: subscribe.subscription,
                sources: subscribe.sources,
            },
            ToPublisher::Unsubscribe(subscription) => Command::Unsubscribe { link, subscription },
            ToPublisher::Started(started) => {
                self.store.started(link, &started.tokens);
                return Ok(());
            }
            ToPublisher::Checkpoint(checkpoint) => Command::Checkpoint { link, checkpoint },
            ToPublisher::Progress(_) | ToPublisher::Forget(_) => return Ok(()),
            ToPublisher::Renew(tokens) => {
                let stale = self.store.renew(now, link, &tokens);
                self.router.say(link, &FromPublisher::Renewed { stale });
                return Ok(());
            }
            ToPublisher::Request { id, request } => return self.request(now, link, id, request),
            // Once is enough; a second one on a link that stands changes nothing.
            ToPublisher::Attach(_) => return Ok(()),
        };
        self.store.submit(now, command)?;
        Ok(())
    }

    fn request(
        &mut self,
        now: Now,
        link: LinkId,
        id: u64,
        request: Request,
    ) -> Result<(), Poisoned> {
        match request {
            // Figures of what is durable: nothing to wait for.
            Request::Status => {
                let answer = Ok(Answer::Status(self.status(now)));
                self.router.say(link, &FromPublisher::Answer { id, answer });
            }
            Request::Act { action, selection, pace, dry_run: false } => {
                let command = Command::Act { link, request: id, action, selection, pace };
                self.store.submit(now, command)?;
            }
            Request::Replace { id: job, entry } => {
                let command = Command::Replace { link, request: id, id: job, entry };
                self.store.submit(now, command)?;
            }
            Request::Pause { pattern, paused } => {
                let command = Command::Pause { link, request: id, pattern, paused };
                self.store.submit(now, command)?;
            }
            Request::Configure { path, changes, reset } => {
                let command = Command::Configure { link, request: id, path, changes, reset };
                self.store.submit(now, command)?;
            }
            Request::ConfirmClock => {
                self.clock.confirm();
                self.router.say(link, &FromPublisher::Answer { id, answer: Ok(Answer::Done) });
            }
            request if self.router.begin_request(link) => self.store.ask(now, link, id, request),
            _ => {
                let answer = Err(RequestError::TooMany);
                self.router.say(link, &FromPublisher::Answer { id, answer });
            }
        }
        Ok(())
    }

    fn status(&self, now: Now) -> PublisherStatus {
        let figures = self.store.figures(now);
        PublisherStatus {
            name: self.name.clone(),
            durability: figures.durability,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            links: self.router.len() as u64,
            jobs: figures.jobs,
            queues: figures.queues,
            committed_index: figures.committed_index,
            oldest_uncommitted_ms: figures.oldest_uncommitted_ms,
            journal_bytes: figures.journal_bytes,
            written_bytes: figures.written_bytes,
            payload_bytes: figures.payload_bytes,
            syncs: figures.syncs,
            stale_refused: figures.stale_refused,
            clock_held: self.clock.alarm().is_some(),
        }
    }

    /// Entries have come back from the disk. A lease may have ended meanwhile; an entry may be damaged.
    fn loaded(&mut self, now: Now, load: u64, jobs: Vec<ColdJob>) -> Result<(), Poisoned> {
        for jobs in self.cold.jobs_loaded(load, jobs) {
            self.hand_loaded(now, jobs)?;
        }
        Ok(())
    }

    fn hand_loaded(&mut self, now: Now, jobs: Vec<ColdJob>) -> Result<(), Poisoned> {
        self.router.loaded(jobs.iter().map(|(handed, _)| handed));
        let mut whole = Vec::with_capacity(jobs.len());
        for (handed, entry) in jobs {
            match entry {
                _ if !self.store.state().holds(handed.token, handed.link) => {
                    self.router.unsent.push(handed);
                }
                Some(entry) => whole.push((handed, entry)),
                None => {
                    self.store.submit(now, Command::Damaged { token: handed.token })?;
                    self.router.unsent.push(handed);
                }
            }
        }
        self.router.hand_loaded(&whole, &Source(&self.store));
        Ok(())
    }

    /// Puts what has become durable on its way.
    fn route(&mut self, released: &mut Released) -> Result<(), Poisoned> {
        for path in released.queues_made.drain(..) {
            if let Some(registry) = &self.registry {
                registry.publish(path);
            }
        }
        for (link, reply) in released.replies.drain(..) {
            match reply {
                Reply::LinkRefused { reason } => self.router.refuse(link, reason),
                reply => self.router.say(link, &message_of(reply)),
            }
        }
        for handed in released.handed.drain(..) {
            self.router.hand(handed);
        }
        // A job that is revoked in the release that hands it out is not sent at all.
        released.revoked.iter().for_each(|&(link, ..)| self.router.doubt(link));
        self.revoked.append(&mut released.revoked);
        self.say_revoked();
        for (link, id, asked) in released.answered.drain(..) {
            self.cold.answer(link, id, asked);
        }
        self.send()
    }

    fn say_revoked(&mut self) {
        self.revoked.sort_unstable_by_key(|&(link, reason, token)| (link, reason, token));
        for run in self.revoked.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (link, reason, _) = run[0];
            let tokens = Tokens(run.iter().map(|&(_, _, token)| token).collect());
            self.router.say(link, &FromPublisher::Revoked { reason, tokens });
        }
        self.revoked.clear();
    }

    fn send(&mut self) -> Result<(), Poisoned> {
        self.store.flush();
        self.router.send_all(&Source(&self.store), &mut self.cold.jobs);
        self.cold.start();
        self.give_back()
    }

    /// Gives links the credits again that were used up for jobs which were never sent: a worker counts what it receives.
    fn give_back(&mut self) -> Result<(), Poisoned> {
        if self.router.unsent.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let mut unsent = std::mem::take(&mut self.router.unsent);
        unsent.sort_unstable_by_key(|handed| (handed.link, handed.subscription));
        for run in unsent.chunk_by(|a, b| (a.link, a.subscription) == (b.link, b.subscription)) {
            let (link, subscription) = (run[0].link, run[0].subscription);
            // No subscription has more credits than a `u32` holds.
            let count = run.len() as u32;
            if self.router.has(link) {
                self.store.submit(now, Command::Credit { link, subscription, count })?;
            }
        }
        self.store.flush();
        Ok(())
    }

    /// What was taken becomes durable and is answered; then every link is told.
    async fn stop(&mut self, mut released: Released) -> Result<Stop, Poisoned> {
        info!("stopping: no more jobs are taken");
        let wait = async {
            // Durable is not enough: its answers have to leave, too.
            while !self.store.is_released() {
                self.store.released(&mut released).await?;
                self.route(&mut released)?;
            }
            Ok(())
        };
        let done = tokio::time::timeout(STOP_WAIT, wait).await;
        self.router.close_all("the publisher is stopping");
        match done {
            Ok(done) => done.map(|()| Stop::Durable),
            Err(_) => {
                warn!(wait = ?STOP_WAIT, "the journal did not become durable in time; what was not acknowledged may be lost");
                Ok(Stop::Hangs)
            }
        }
    }
}

/// How a stop went.
enum Stop {
    /// All that was taken is durable and answered.
    Durable,
    /// The journal did not come to its end in time.
    Hangs,
}

/// What the router asks of the store.
struct Source<'a>(&'a LogStore);

impl Entries for Source<'_> {
    fn hot(&self, handed: &Handed) -> Option<Bytes> {
        self.0.payload(handed.entry)
    }

    fn holds(&self, handed: &Handed) -> bool {
        self.0.state().holds(handed.token, handed.link)
    }

    fn path(&self, queue: QueueId) -> Path {
        self.0.state().path(queue).clone()
    }
}

fn message_of(reply: Reply) -> FromPublisher {
    match reply {
        Reply::Attached(attached) => FromPublisher::Attached(attached),
        Reply::LinkRefused { reason } => FromPublisher::Goodbye { reason },
        Reply::Enqueued(answer) => FromPublisher::Enqueued(answer),
        Reply::Settled(answer) => FromPublisher::Settled(answer),
        Reply::Returned(credit) => FromPublisher::Returned(credit),
        Reply::Waiting(waiting) => FromPublisher::Waiting(waiting),
        Reply::SubscribeRefused { subscription, reason } => {
            FromPublisher::SubscribeRefused { subscription, reason }
        }
        Reply::Acted { request, report } => {
            FromPublisher::Answer { id: request, answer: Ok(Answer::Acted(report)) }
        }
        Reply::Checkpointed(answer) => FromPublisher::Checkpointed(answer),
        Reply::Replaced { request, outcome } => {
            FromPublisher::Answer { id: request, answer: Ok(Answer::Replaced(outcome)) }
        }
        Reply::Paused { request, report } => {
            FromPublisher::Answer { id: request, answer: report.map(Answer::Paused) }
        }
        Reply::Configured { request, result } => {
            FromPublisher::Answer { id: request, answer: Ok(Answer::Configured(result)) }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
