//! The owner: the one task that touches the store. It applies what links say, and routes what is
//! durable.

mod follow;
mod hanging;
mod metrics;
mod quiet;
mod release;
mod requests;
mod verbs;
mod walk;

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::{LinkId, Revoked, Token};
use longshore_queue::{
    Clock, Command, Cursor, Event, Now, Poisoned, Released, Store, UNCOMMITTED_BYTES_MAX,
};
use tokio::sync::mpsc;
use tracing::{info, warn};

pub(crate) use self::hanging::WatchedDisk;
use crate::awaits::Awaits;
use crate::cold::ColdLoads;
use crate::feeds::Feeds;
use crate::idle::IdleQueues;
use crate::input::{Input, Inputs, Up};
use crate::notices::Notices;
use crate::pauses::Pauses;
use crate::quiets::Quiets;
use crate::recording::Recording;
use crate::refusals::{Refusals, Refused};
use crate::registry::Registry;
use crate::router::Router;
use crate::test_clock::Move;
use crate::values::{Names, Values};

/// Inputs taken at a time: enough for large commits, few enough that releases are not held up.
const INPUTS_AT_A_TIME: usize = 128;
/// The longest that leases and due jobs wait for their turn while there is always more input.
const TURN_AT_LATEST: Duration = Duration::from_millis(50);
/// How long a stop waits for the last commit.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// The owner's parts.
pub(crate) struct Owner {
    store: Store,
    clock: Clock,
    router: Router,
    cold: ColdLoads,
    inputs: mpsc::Receiver<Input>,
    registry: Option<Registry>,
    names: Arc<Names>,
    name: String,
    started: Instant,
    /// Tokens revoked in one release, by link, until they are said.
    revoked: Vec<(LinkId, Revoked, Token)>,
    awaits: Awaits,
    /// How far the waits have read of what happened.
    awaits_read: Option<Cursor>,
    /// What they read, filled anew each time.
    happened: Vec<Event>,
    feeds: Feeds,
    recording: Recording,
    notices: Notices,
    pauses: Pauses,
    quiets: Quiets,
    refusals: Refusals,
    /// Those of them that are due; used again.
    refused: Vec<Refused>,
    disk: WatchedDisk,
    idle: IdleQueues,
    /// Metrics that wait until what they say is durable.
    metrics: metrics::Kept,
    /// What a test asks of the clock.
    moves: Option<mpsc::Receiver<Move>>,
}

impl Owner {
    pub(crate) fn new(
        store: Store,
        clock: Clock,
        (registry, names): (Option<Registry>, Arc<Names>),
        name: String,
        (disk, idle): (WatchedDisk, IdleQueues),
        values: Values,
        moves: Option<mpsc::Receiver<Move>>,
    ) -> (Owner, Inputs) {
        let (sender, inputs) = Inputs::new();
        let owner = Owner {
            router: Router::new(sender.sender().clone()),
            pauses: Pauses::started(store.state()),
            cold: ColdLoads::new(store.reader(), sender.sender().clone()),
            store,
            clock,
            inputs,
            registry,
            names,
            name,
            started: Instant::now(),
            revoked: Vec::new(),
            awaits: Awaits::default(),
            awaits_read: None,
            happened: Vec::new(),
            feeds: Feeds::default(),
            recording: Recording::started(Instant::now()),
            notices: Notices::default(),
            quiets: Quiets::default(),
            refusals: Refusals::default(),
            refused: Vec::new(),
            disk,
            idle,
            metrics: metrics::Kept::new(values),
            moves,
        };
        (owner, sender)
    }

    /// Serves until `stop` resolves, then lets what was taken become durable and tells every link.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), Poisoned> {
        match self.serve(stop).await {
            Ok(Stop::Durable) => Ok(()),
            Ok(Stop::Hangs) => {
                // The journal closes with its last sync. On a disk that hangs that may be never:
                // the process ends all the same.
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
                moved = walk::next_move(&mut self.moves), if room => {
                    self.walk(moved, &mut released).await?;
                }
                // Also while input is held back: that may be because the disk hangs.
                () = tokio::time::sleep_until(self.disk.look_at.into()) => {}
            }
            self.look_at_the_disk()?;
            // Input already received is applied before any lease ends, so none ends while input is
            // held back: a renewal may be in it. To the store such a time is a pause.
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

    /// Ends leases, makes due jobs ready, goes on with feeds that have something to say; says when
    /// to come again.
    fn turn(&mut self) -> Result<Option<Instant>, Poisoned> {
        let now = self.clock.now();
        let at = Instant::now();
        let next = self.store.turn(now)?;
        self.refusals.due(at, &mut self.refused);
        self.refuse(now)?;
        self.store.flush();
        self.notices.clock(self.clock.alarm());
        if self.turn_quiets(at) || self.feeds.next(at).is_some_and(|due| due <= at) {
            self.send()?;
        }
        let next = next.map(|ms| at + Duration::from_millis(ms.saturating_sub(now.mono_ms)));
        let feeds = self.feeds.next(at);
        let deaths = self.notices.deaths(at, self.store.appended(), self.store.state().deaths());
        let idle = self.turn_idle(at);
        let (refusals, quiets) = (self.refusals.next(), self.quiets.next());
        Ok([next, self.turn_recording(at), feeds, deaths, refusals, quiets, idle]
            .into_iter()
            .flatten()
            .min())
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
                self.awaits.link_lost(link);
                self.feeds.link_lost(link);
                self.refusals.link_lost(link);
                self.quiet_link_lost(link);
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
            Input::FeedReady { link } => {
                self.router.feed_ready(link);
                self.feeds.ready();
                Ok(())
            }
            Input::Loaded { load, jobs } => self.loaded(now, load, jobs),
            Input::Answered(loaded) => {
                self.answer_loaded(loaded);
                Ok(())
            }
            Input::Metrics(ask) => {
                self.take_metrics(now, ask);
                Ok(())
            }
        }
    }

    fn link_up(&mut self, now: Now, up: Up) -> Result<(), Poisoned> {
        if self.disk.hang.is_on() {
            self.refuse_link(now, &up);
            return Ok(());
        }
        self.router.add(&up, now.wall_ms);
        let Up { link, role, session, name, resume, .. } = up;
        self.store.submit(now, Command::LinkUp { link, role, session, name, resume })?;
        Ok(())
    }

    /// What was taken becomes durable and is answered; then every link is told.
    async fn stop(&mut self, mut released: Released) -> Result<Stop, Poisoned> {
        info!("stopping: no more jobs are taken");
        self.refusals.take_all(&mut self.refused);
        let now = self.clock.now();
        self.refuse(now)?;
        self.store.flush();
        // Durable is not enough: its answers have to leave, too.
        let done = tokio::time::timeout(STOP_WAIT, self.release_all(&mut released)).await;
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

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
