//! Who is let in, and how the others are told that they are not.
//!
//! A refusal costs time too, since the dialler has to hear it; it has a bound of its own, so that
//! it takes no turn of a handshake. Beyond that bound it is said all the same, but nobody waits
//! until it is heard.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, Abortable, Either};
use longshore_protocol::{Handshake, HandshakeAnswer, HandshakeRefusal, Role, Welcome};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout, timeout_at};

use crate::budget::LinkBudget;
use crate::descriptors::Budget;
use crate::handshake::{self, HandshakeError};
use crate::handshakes::{Handshakes, Line, Turn};
use crate::link::{Link, Peer, Terms};
use crate::liveness::Beat;
use crate::log_limit::LogLimit;
use crate::negotiation::{self, Identity, Refused};
use crate::options::ListenerOptions;
use crate::places::{Kept, Place, Places};
use crate::socket::{self, Connection, open_options};

/// The longest that a refused dialler is waited for, so that it gets to read why.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);

/// Lines about connections that were not accepted, in [`LOG_PERIOD`].
const LOG_LINES_MAX: u32 = 10;
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// What every handshake needs.
#[derive(Debug)]
pub(crate) struct Door {
    identity: Identity,
    options: ListenerOptions,
    places: Arc<Mutex<Places>>,
    handshakes: Arc<Handshakes>,
    refusals: Arc<Semaphore>,
    stopping: AtomicBool,
    /// Diallers for whom there was no place, no turn or no descriptor.
    busy: AtomicU64,
    log: Mutex<LogLimit>,
    /// Of all links' heartbeats.
    beat: Beat,
    ready: mpsc::Sender<Link>,
}

impl Door {
    /// A door to so many places; links that stand go to `ready`.
    pub(crate) fn new(
        identity: Identity,
        options: ListenerOptions,
        budget: Budget,
        ready: mpsc::Sender<Link>,
    ) -> Door {
        let places = Places::new(budget.links, &options.kept);
        let places = places.with_values_at_most(values_most(&options, budget.links));
        Door {
            places: Arc::new(Mutex::new(places)),
            handshakes: Arc::new(Handshakes::new(budget.handshakes)),
            refusals: Arc::new(Semaphore::new(budget.refusals)),
            stopping: AtomicBool::new(false),
            busy: AtomicU64::new(0),
            log: Mutex::new(LogLimit::new(LOG_LINES_MAX, LOG_PERIOD)),
            beat: Beat { origin: Instant::now().into_std() },
            identity,
            options,
            ready,
        }
    }

    pub(crate) fn options(&self) -> &ListenerOptions {
        &self.options
    }

    /// Changes how many places there are.
    pub(crate) fn resize(&self, links: usize, kept: &[Kept]) {
        self.places.lock().resize(links, kept);
    }

    /// From now on every handshake is refused.
    pub(crate) fn refuse_new(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Most links that there may be.
    pub(crate) fn most(&self) -> usize {
        self.places.lock().most()
    }

    /// How many diallers were too many.
    pub(crate) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Links that are open.
    pub(crate) fn links(&self) -> usize {
        self.places.lock().open()
    }

    /// Sees to one connection: what is to be done for it, as far as that takes time.
    pub(crate) fn meet(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        if let Err(error) = open_options(&stream) {
            self.not_accepted(peer, &error.to_string());
            return None;
        }
        let connection = Connection::plain(stream);
        if self.handshakes.make_room(|line| self.displaced(&line)) {
            let line = Line { raw: connection.raw.clone(), pulse: connection.pulse.clone() };
            let (hearing, ends) = AbortHandle::new_pair();
            let turn = self.handshakes.begin(line, hearing);
            let (door, came_at) = (self.clone(), Instant::now());
            let receiving = async move { door.receive(connection, peer, turn, came_at).await };
            return Some(Either::Left(Abortable::new(receiving, ends).map(drop)));
        }
        let (code, reason) = self.no_turn();
        self.not_accepted(peer, &reason);
        let Ok(permit) = self.refusals.clone().try_acquire_owned() else {
            self.turn_away(connection.raw.as_ref().as_ref(), &reason);
            return None;
        };
        let door = self.clone();
        Some(Either::Right(async move {
            door.refuse_unheard(connection, code, &reason).await;
            drop(permit);
        }))
    }

    /// There is no descriptor for this connection but one in reserve: it is told so as far as that
    /// goes without waiting.
    pub(crate) fn cannot_afford(&self, stream: TcpStream, peer: SocketAddr) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let reason =
            format!("`{}` may open no more files for now; try another server", self.identity.name);
        self.turn_away(&stream, &reason);
        self.not_accepted(peer, &reason);
    }

    /// Greets one dialler, within the handshake timeout from `came_at` on, whatever trickles in.
    async fn receive(
        &self,
        connection: Connection,
        peer: SocketAddr,
        turn: Turn,
        came_at: Instant,
    ) {
        let limit = self.options.handshake_timeout;
        let handshake = async {
            match self.hear(connection, turn).await? {
                Some((connection, handshake)) => {
                    self.welcome(connection, handshake, peer).await.map(Some)
                }
                None => Ok(None),
            }
        };
        let shaken = match timeout_at(came_at + limit, handshake).await {
            Ok(Ok(Some(link))) => Ok(link),
            Ok(Ok(None)) => return,
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Unwelcome::TooSlow(limit)),
        };
        let reason = match shaken {
            Ok(link) => match self.ready.try_send(link) {
                Ok(()) | Err(TrySendError::Closed(_)) => return,
                Err(TrySendError::Full(_)) => "nobody takes links from the listener".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        self.not_accepted(peer, &reason);
    }

    /// All that the dialler has to say before it is answered; nothing if it was displaced.
    async fn hear(
        &self,
        connection: Connection,
        turn: Turn,
    ) -> Result<Option<(Connection, Handshake)>, Unwelcome> {
        let mut connection = self.secure(connection).await.map_err(Unwelcome::Tls)?;
        let handshake = handshake::read_handshake(&mut connection).await;
        if !turn.end() {
            return Ok(None);
        }
        match handshake {
            Ok(handshake) => Ok(Some((connection, handshake))),
            Err(error @ (HandshakeError::Closed | HandshakeError::Io(_))) => Err(error.into()),
            Err(error) => {
                self.refuse(connection, HandshakeRefusal::Malformed, &error.to_string()).await;
                Err(error.into())
            }
        }
    }

    /// Answers a handshake, and makes the link if it may be.
    async fn welcome(
        &self,
        mut connection: Connection,
        handshake: Handshake,
        peer_address: SocketAddr,
    ) -> Result<Link, Unwelcome> {
        let (welcome, place) = match self.admit(&handshake) {
            Ok(admitted) => admitted,
            Err((code, reason)) => {
                self.refuse(connection, code, &reason).await;
                return Err(Unwelcome::Refused { role: handshake.role.to_string(), reason });
            }
        };
        let terms = Terms {
            peer_address,
            version: welcome.version,
            features: welcome.features,
            timing: welcome.timing,
            beat: Some(self.beat),
            own_frame_bytes_max: welcome.frame_bytes_max as usize,
            peer_frame_bytes_max: handshake.frame_bytes_max as usize,
            send_queue_bytes_max: self.options.send_queue_bytes_max,
            oldest: self.options.oldest.clone(),
            budget: Some(LinkBudget::new(self.options.budget.clone(), handshake.role)),
            peer: Peer::Client(handshake),
        };
        let answer = HandshakeAnswer::Welcome(welcome);
        handshake::write_answer(&mut connection, &answer).await.map_err(HandshakeError::Io)?;
        Ok(Link::start(connection, terms, Some(place)))
    }

    fn admit(&self, handshake: &Handshake) -> Result<(Welcome, Place), Refused> {
        let name = &self.identity.name;
        if self.stopping.load(Ordering::Acquire) {
            return Err((HandshakeRefusal::Stopping, format!("`{name}` is stopping")));
        }
        let timing = match handshake.role {
            Role::Values => self.options.value_timing,
            _ => self.options.timing,
        };
        let (frame_limit, features) = (self.options.frame_bytes_max, self.options.features);
        let welcome =
            negotiation::answer(handshake, &self.identity, timing, frame_limit, features)?;
        let place = Place::take(&self.places, handshake.role).map_err(|full| {
            self.busy.fetch_add(1, Ordering::Relaxed);
            let role = handshake.role;
            let reason = format!("`{name}` has no place for a {role}: {full}; try another server");
            (HandshakeRefusal::Busy, reason)
        })?;
        Ok((welcome, place))
    }

    async fn secure(&self, connection: Connection) -> io::Result<Connection> {
        match &self.options.tls {
            None => Ok(connection),
            Some(tls) => connection.tls(|stream| tls.accept(stream)).await,
        }
    }

    /// Says no to whom has said what it came for.
    async fn refuse(&self, mut connection: Connection, code: HandshakeRefusal, reason: &str) {
        let permit = self.refusals.try_acquire().ok();
        wait_if(permit.is_some(), say_no(&mut connection, code, reason)).await;
    }

    /// Says no before a word was heard. With TLS that takes a handshake.
    async fn refuse_unheard(&self, connection: Connection, code: HandshakeRefusal, reason: &str) {
        let saying = async {
            if let Ok(mut connection) = self.secure(connection).await {
                say_no(&mut connection, code, reason).await;
            }
        };
        let _ = timeout(REFUSAL_WAIT, saying).await;
    }

    /// Says `Busy` without waiting. Under TLS nothing can be said: there was no handshake, and
    /// there is no room for one.
    fn turn_away(&self, stream: &TcpStream, reason: &str) {
        if self.options.tls.is_none() {
            let answer = handshake::refusal(HandshakeRefusal::Busy, reason);
            socket::last_word(stream, &handshake::encoded(&answer));
        }
    }

    /// Tells a dialler that was silent or slow that another has its turn.
    fn displaced(&self, line: &Line) {
        let (_, reason) = self.no_turn();
        self.turn_away(line.raw.as_ref().as_ref(), &reason);
        if let Ok(peer) = line.raw.peer_addr() {
            self.not_accepted(peer, &format!("it was silent or slow; {reason}"));
        }
    }

    fn no_turn(&self) -> Refused {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let reason = format!(
            "`{}` has as many handshakes under way as it may ({}); try another server",
            self.identity.name,
            self.handshakes.most()
        );
        (HandshakeRefusal::Busy, reason)
    }

    fn not_accepted(&self, peer: SocketAddr, reason: &str) {
        self.log(
            |left_out| tracing::warn!(%peer, reason, left_out, "a connection was not accepted"),
        );
    }

    /// Writes a line of the log, unless there were many just now.
    pub(crate) fn log(&self, write: impl FnOnce(u64)) {
        let admitted = self.log.lock().admit(Instant::now().into_std());
        if let Some(left_out) = admitted {
            write(left_out);
        }
    }
}

/// Says no, and waits until the other side has closed.
async fn say_no(connection: &mut Connection, code: HandshakeRefusal, reason: &str) {
    let answer = handshake::refusal(code, reason);
    if handshake::write_answer(connection, &answer).await.is_ok()
        && poll_fn(|cx| connection.writes.poll_finish(cx)).await.is_ok()
    {
        socket::drain(&connection.raw).await;
    }
}

/// Does it for [`REFUSAL_WAIT`] at most; or, without waiting, as much of it as goes at once.
async fn wait_if(wait: bool, what: impl Future<Output = ()>) {
    if wait {
        let _ = timeout(REFUSAL_WAIT, what).await;
    } else {
        let mut what = pin!(unconstrained(what));
        poll_fn(|cx| {
            let _ = what.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
    }
}

/// Why a connection did not become a link.
#[derive(Debug, thiserror::Error)]
enum Unwelcome {
    #[error(transparent)]
    Greeting(#[from] HandshakeError),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("no handshake within {0:?}")]
    TooSlow(Duration),
    #[error("refused as {role}: {reason}")]
    Refused { role: String, reason: String },
}

/// How many of `links` places those of the role `Values` may take.
fn values_most(options: &ListenerOptions, links: usize) -> Option<usize> {
    let wanted = options.value_connections_max?;
    if links >= options.connections_max {
        return Some(wanted);
    }
    // Not more than `wanted`, which was a usize.
    let part = (wanted as u128 * links as u128).div_ceil(options.connections_max.max(1) as u128);
    Some(part as usize)
}
