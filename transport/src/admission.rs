//! Admission: which diallers become links, and how the others are refused.
//!
//! A refusal takes time too, since the dialler has to read it. Refusals have a limit of their
//! own, so that they occupy no handshake permit. Beyond that limit a refusal is still sent, but the
//! listener does not wait until it is read.

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
use longshore_access::{Action, Credentials, Rights};
use longshore_protocol::{Handshake, HandshakeAnswer, HandshakeRefusal, Role, Welcome};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout, timeout_at};

use crate::audit::AuditClient;
use crate::authorization::{Authorization, LinkClient, NotAuthorized, Registration};
use crate::budget::LinkBudget;
use crate::descriptors::DescriptorBudget;
use crate::handshake::{self, HandshakeError};
use crate::handshakes::{HandshakePermit, Handshakes, Origin, PendingConnection};
use crate::link::{Link, LinkPlace, LinkTerms, Peer};
use crate::listener::Accepted;
use crate::liveness::HeartbeatSchedule;
use crate::log_limit::LogLimit;
use crate::negotiation::{self, OfferedTerms, Refused, ServerInfo};
use crate::options::ListenerOptions;
use crate::slots::{ReservedSlots, Slot, SlotTable};
use crate::socket::{self, Connection, open_options};
use crate::unix_socket::unmapped_user;

/// The longest wait for a refused dialler to read the reason.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);

/// Log lines about connections that were not accepted, in [`LOG_PERIOD`].
const LOG_LINES_MAX: u32 = 10;
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The shared state of all handshakes of a listener.
#[derive(Debug)]
pub(crate) struct Admission {
    info: ServerInfo,
    options: ListenerOptions,
    slots: Arc<Mutex<SlotTable>>,
    handshakes: Arc<Handshakes>,
    refusals: Arc<Semaphore>,
    stopping: AtomicBool,
    /// Diallers refused for lack of a slot, a handshake permit or a descriptor.
    busy: AtomicU64,
    log: Mutex<LogLimit>,
    /// The heartbeat schedule of all links.
    schedule: HeartbeatSchedule,
    authorization: Arc<Authorization>,
    ready: mpsc::Sender<Link>,
}

impl Admission {
    /// Admission within `budget`; established links go to `ready`.
    pub(crate) fn new(
        info: ServerInfo,
        options: ListenerOptions,
        budget: DescriptorBudget,
        ready: mpsc::Sender<Link>,
    ) -> Admission {
        let slots = SlotTable::new(budget.links, &options.reserved);
        let slots = slots.with_values_at_most(values_limit(&options, budget.links));
        Admission {
            slots: Arc::new(Mutex::new(slots)),
            handshakes: Arc::new(Handshakes::new(budget.handshakes)),
            refusals: Arc::new(Semaphore::new(budget.refusals)),
            stopping: AtomicBool::new(false),
            busy: AtomicU64::new(0),
            log: Mutex::new(LogLimit::new(LOG_LINES_MAX, LOG_PERIOD)),
            schedule: HeartbeatSchedule { origin: Instant::now().into_std() },
            authorization: Arc::new(Authorization::new(
                options.access_control.clone(),
                options.audit.clone(),
                info.name.clone(),
            )),
            info,
            options,
            ready,
        }
    }

    pub(crate) fn options(&self) -> &ListenerOptions {
        &self.options
    }

    /// The server's name.
    pub(crate) fn server_name(&self) -> &str {
        &self.info.name
    }

    /// The rights of open links.
    pub(crate) fn authorization(&self) -> &Arc<Authorization> {
        &self.authorization
    }

    /// Changes the limit of links and the reserved slots.
    pub(crate) fn resize(&self, links: usize, reserved: &[ReservedSlots]) {
        self.slots.lock().resize(links, reserved);
    }

    /// From now on every handshake is refused.
    pub(crate) fn refuse_new(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The limit of links.
    pub(crate) fn limit(&self) -> usize {
        self.slots.lock().limit()
    }

    /// Diallers that were refused for lack of room.
    pub(crate) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Links that are open.
    pub(crate) fn links(&self) -> usize {
        self.slots.lock().open()
    }

    /// Starts the handshake of one connection, and returns the rest of it if that takes time.
    pub(crate) fn start_handshake(
        self: &Arc<Self>,
        Accepted { stream, peer, user }: Accepted,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let connection = match user {
            Some(user) => Connection::unix(stream, user),
            None => {
                if let Err(error) = open_options(&stream) {
                    self.not_accepted(peer, &error.to_string());
                    return None;
                }
                Connection::plain(stream)
            }
        };
        let origin = Origin::new(peer.ip(), user);
        if self.handshakes.make_room(origin, |pending| self.displaced(&pending)) {
            let pending = PendingConnection {
                raw: connection.raw.clone(),
                activity: connection.activity.clone(),
            };
            let (abort, ends) = AbortHandle::new_pair();
            let permit = self.handshakes.begin(pending, origin, abort);
            let (admission, accepted_at) = (self.clone(), Instant::now());
            let receiving =
                async move { admission.receive(connection, peer, permit, accepted_at).await };
            return Some(Either::Left(Abortable::new(receiving, ends).map(drop)));
        }
        let (code, reason) = self.no_permit();
        self.not_accepted(peer, &reason);
        let Ok(permit) = self.refusals.clone().try_acquire_owned() else {
            self.refuse_at_once(connection.raw.as_ref().as_ref(), &reason);
            return None;
        };
        let admission = self.clone();
        Some(Either::Right(async move {
            admission.refuse_before_handshake(connection, code, &reason).await;
            drop(permit);
        }))
    }

    /// Refuses a connection that took the reserve descriptor, as far as that works without waiting.
    pub(crate) fn refuse_for_descriptors(&self, stream: TcpStream, peer: SocketAddr) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let reason =
            format!("`{}` has reached its limit of open files; try another server", self.info.name);
        self.refuse_at_once(&stream, &reason);
        self.not_accepted(peer, &reason);
    }

    /// Runs one dialler's handshake, within the handshake timeout from `accepted_at` on.
    async fn receive(
        &self,
        connection: Connection,
        peer: SocketAddr,
        permit: HandshakePermit,
        accepted_at: Instant,
    ) {
        let limit = self.options.handshake_timeout;
        let handshake = async {
            match self.read_handshake(connection, permit).await? {
                Some((connection, handshake)) => {
                    self.welcome(connection, handshake, peer).await.map(Some)
                }
                None => Ok(None),
            }
        };
        let outcome = match timeout_at(accepted_at + limit, handshake).await {
            Ok(Ok(Some(link))) => Ok(link),
            Ok(Ok(None)) => return,
            Ok(Err(error)) => Err(error),
            Err(_) => Err(NotAdmitted::TooSlow(limit)),
        };
        let reason = match outcome {
            Ok(link) => match self.ready.try_send(link) {
                Ok(()) | Err(TrySendError::Closed(_)) => return,
                Err(TrySendError::Full(_)) => "the queue of accepted links is full".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        self.not_accepted(peer, &reason);
    }

    /// Reads the dialler's handshake; `None` if it was displaced.
    async fn read_handshake(
        &self,
        connection: Connection,
        permit: HandshakePermit,
    ) -> Result<Option<(Connection, Handshake)>, NotAdmitted> {
        let mut connection = self.secure(connection).await.map_err(NotAdmitted::Tls)?;
        let handshake = handshake::read_handshake(&mut connection).await;
        if !permit.end() {
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

    /// Answers a handshake, and makes the link if it is admitted.
    async fn welcome(
        &self,
        mut connection: Connection,
        mut handshake: Handshake,
        peer_address: SocketAddr,
    ) -> Result<Link, NotAdmitted> {
        let admitted = self.admit(&handshake, &connection, peer_address);
        // Nothing after this needs the secret.
        handshake::wipe(std::mem::take(&mut handshake.credential));
        let (welcome, slot, client, registration) = match admitted {
            Ok(admitted) => admitted,
            Err((code, reason)) => {
                self.refuse(connection, code, &reason).await;
                return Err(NotAdmitted::Refused { role: handshake.role.to_string(), reason });
            }
        };
        let terms = LinkTerms {
            peer_address,
            version: welcome.version,
            features: welcome.features,
            timing: welcome.timing,
            schedule: Some(self.schedule),
            own_frame_bytes_max: welcome.frame_bytes_max as usize,
            peer_frame_bytes_max: handshake.frame_bytes_max as usize,
            send_queue_bytes_max: self.options.send_queue_bytes_max,
            oldest: self.options.oldest.clone(),
            budget: Some(LinkBudget::new(&self.options.budget, &client.holder, slot.role())),
            peer: Peer::Client(handshake),
            client: Some(client),
        };
        let answer = HandshakeAnswer::Welcome(welcome);
        handshake::write_answer(&mut connection, &answer).await.map_err(HandshakeError::Io)?;
        Ok(Link::start(connection, terms, Some(LinkPlace { _slot: slot, registration })))
    }

    fn admit(
        &self,
        handshake: &Handshake,
        connection: &Connection,
        address: SocketAddr,
    ) -> Result<(Welcome, Slot, LinkClient, Registration), Refused> {
        let name = &self.info.name;
        if self.stopping.load(Ordering::Acquire) {
            return Err((HandshakeRefusal::Stopping, format!("`{name}` is stopping")));
        }
        let timing = match handshake.role {
            Role::Values => self.options.value_timing,
            _ => self.options.timing,
        };
        let ListenerOptions { frame_bytes_max, features, cluster, .. } = &self.options;
        let (frame_bytes_max, features) = (*frame_bytes_max, *features);
        let terms = OfferedTerms { cluster, timing, frame_bytes_max, features };
        let welcome = negotiation::answer(handshake, &self.info, terms)?;
        let credentials = Credentials {
            certificate: connection.peer_certificate.as_deref(),
            credential: &handshake.credential.0,
            is_private: self.options.tls.is_some() || connection.user.is_some(),
            // One number for all users who have none here is no name.
            user: connection.user.filter(|&user| Some(user) != unmapped_user()),
        };
        let admitted = self.authorization.admit(&credentials, address.ip(), handshake.session);
        let (client, registration) = admitted.map_err(|why| {
            let (code, identity) = match &why {
                NotAuthorized::Access(why) if why.is_of_identity() => {
                    (HandshakeRefusal::Unauthenticated, why.identity())
                }
                NotAuthorized::Access(why) => (HandshakeRefusal::Forbidden, why.identity()),
                NotAuthorized::OverQuota { identity, .. } => {
                    self.busy.fetch_add(1, Ordering::Relaxed);
                    (HandshakeRefusal::Busy, identity.as_deref())
                }
            };
            let client = AuditClient { server: name, identity, address };
            let reason = || (handshake.role.to_string(), format!("{code:?}: {why}"));
            self.options.audit.refuse(client, "connect", reason);
            (code, format!("`{name}`: {why}"))
        })?;
        let role = entitled_role(handshake.role, &client.rights.borrow());
        let slot = Slot::take(&self.slots, role, client.other_links).map_err(|full| {
            self.busy.fetch_add(1, Ordering::Relaxed);
            let role = handshake.role;
            let reason =
                format!("`{name}` has no free connection for a {role}: {full}; try another server");
            (HandshakeRefusal::Busy, reason)
        })?;
        Ok((welcome, slot, client, registration))
    }

    async fn secure(&self, connection: Connection) -> io::Result<Connection> {
        match &self.options.tls {
            Some(_) if connection.user.is_some() => Ok(connection),
            None => Ok(connection),
            Some(tls) => connection.tls(|stream| tls.accept(stream)).await,
        }
    }

    /// Refuses a dialler after its handshake was read.
    async fn refuse(&self, mut connection: Connection, code: HandshakeRefusal, reason: &str) {
        let permit = self.refusals.try_acquire().ok();
        run_or_poll_once(permit.is_some(), send_refusal(&mut connection, code, reason)).await;
    }

    /// Refuses a dialler before anything was read. With TLS that takes a TLS handshake.
    async fn refuse_before_handshake(
        &self,
        connection: Connection,
        code: HandshakeRefusal,
        reason: &str,
    ) {
        let refusal = async {
            if let Ok(mut connection) = self.secure(connection).await {
                send_refusal(&mut connection, code, reason).await;
            }
        };
        let _ = timeout(REFUSAL_WAIT, refusal).await;
    }

    /// Sends `Busy` without waiting. With TLS nothing can be sent: there was no TLS handshake, and
    /// there is no room for one.
    fn refuse_at_once(&self, stream: &TcpStream, reason: &str) {
        if self.options.tls.is_none() {
            let answer = handshake::refusal(HandshakeRefusal::Busy, reason);
            socket::send_final(stream, &handshake::encoded(&answer));
        }
    }

    /// Refuses a silent or slow dialler whose permit another takes.
    fn displaced(&self, pending: &PendingConnection) {
        let (_, reason) = self.no_permit();
        self.refuse_at_once(pending.raw.as_ref().as_ref(), &reason);
        if let Ok(peer) = pending.raw.peer_addr() {
            self.not_accepted(peer, &format!("it was silent or slow; {reason}"));
        }
    }

    fn no_permit(&self) -> Refused {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let reason = format!(
            "`{}` has reached its limit of handshakes ({}); try another server",
            self.info.name,
            self.handshakes.limit()
        );
        (HandshakeRefusal::Busy, reason)
    }

    fn not_accepted(&self, peer: SocketAddr, reason: &str) {
        self.log(
            |left_out| tracing::warn!(%peer, reason, left_out, "a connection was not accepted"),
        );
    }

    /// Calls `write` to log a line, unless there were too many just now.
    pub(crate) fn log(&self, write: impl FnOnce(u64)) {
        let admitted = self.log.lock().admit(Instant::now().into_std());
        if let Some(left_out) = admitted {
            write(left_out);
        }
    }
}

/// Sends a refusal, and waits until the other side has closed.
async fn send_refusal(connection: &mut Connection, code: HandshakeRefusal, reason: &str) {
    let answer = handshake::refusal(code, reason);
    if handshake::write_answer(connection, &answer).await.is_ok()
        && poll_fn(|cx| connection.writes.poll_finish(cx)).await.is_ok()
    {
        socket::drain(&connection.raw).await;
    }
}

/// Runs `refusal` for at most [`REFUSAL_WAIT`]; without `wait`, polls it only once.
async fn run_or_poll_once(wait: bool, refusal: impl Future<Output = ()>) {
    if wait {
        let _ = timeout(REFUSAL_WAIT, refusal).await;
    } else {
        let mut refusal = pin!(unconstrained(refusal));
        poll_fn(|cx| {
            let _ = refusal.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
    }
}

/// Why a connection did not become a link.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("no handshake within {0:?}")]
    TooSlow(Duration),
    #[error("refused as {role}: {reason}")]
    Refused { role: String, reason: String },
}

/// The role under which a link is counted. Slots and memory that are reserved for a role are only
/// for clients with a right that the role needs; others count as readers, for whom nothing is
/// reserved.
fn entitled_role(claimed: Role, rights: &Rights) -> Role {
    let has = |action| !rights.paths(action).is_empty();
    let entitled = match claimed {
        Role::Worker => has(Action::Work),
        Role::ResolverWriter => has(Action::Serve) || has(Action::Publish),
        Role::Tool => rights.may_at_server(Action::Operate),
        Role::Producer | Role::ResolverReader | Role::Values => true,
    };
    if entitled { claimed } else { Role::ResolverReader }
}

/// The slots of `links` that the role `Values` may take.
fn values_limit(options: &ListenerOptions, links: usize) -> Option<usize> {
    let requested = options.value_connections_max?;
    if links >= options.connections_max {
        return Some(requested);
    }
    // At most `requested`, which fits a usize.
    let part = (requested as u128 * links as u128).div_ceil(options.connections_max.max(1) as u128);
    Some(part as usize)
}
