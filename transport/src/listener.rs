//! Accepting links. One task accepts connections and runs all handshakes concurrently, so that a
//! slow or hostile one delays no other. It is a single task that yields after each slice of time:
//! if each handshake were its own task, thousands arriving at once would put hundreds of tasks
//! before every message of an established link.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use longshore_protocol::SocketPath;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until};

use crate::admission::Admission;
use crate::audit::LinkAudit;
use crate::descriptors::{self, DescriptorBudget, Reserve};
use crate::link::Link;
use crate::negotiation::ServerInfo;
use crate::options::ListenerOptions;
use crate::slots::ReservedSlots;
use crate::unix_socket::{LOCAL_PEER, UnixSocket};

/// Connections that the kernel queues for this process before it accepts them; the system may allow
/// fewer. Beyond it the kernel ignores diallers, which try again only a second later: thousands at
/// once have to fit.
pub(crate) const BACKLOG: u32 = 4_096;
/// The first wait after the system had no descriptor or memory for a connection; it doubles.
const ACCEPT_WAIT_MIN: Duration = Duration::from_millis(10);
/// The longest such wait.
const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long the listener works for diallers before it yields to other ready tasks.
const SLICE: Duration = Duration::from_micros(200);

/// Why binding failed. [`InUse`](BindError::InUse) may pass; the others are wrong addresses or a
/// misconfigured system.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process has the port.
    #[error(
        "{address} is in use by another process; stop it (`ss -ltnp` shows which) \
         or choose another port"
    )]
    InUse {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// Other machines can reach the address, and nothing would be encrypted or authenticated.
    #[error(
        "{address} can be reached from other machines and there is no TLS: \
         anyone there could read, add and take jobs; give a certificate and key, and \
         the authority of its clients, \
         listen on 127.0.0.1, or accept it with --insecure"
    )]
    NeedsTls {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// No interface of this machine has the address.
    #[error("{address} is not an address of this machine; choose one that `ip address` shows")]
    NotHere {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// The user may not listen there.
    #[error(
        "no permission to listen on {address}; ports below 1024 need privileges, \
         choose a higher one"
    )]
    NotAllowed {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// Another process listens on its Unix socket, or is about to.
    #[error("{path} belongs to {}; stop that process, or choose another path", owner(path, *.pid))]
    UnixInUse {
        /// The path.
        path: SocketPath,
        /// The process, if it listens, and is of this process's namespace.
        pid: Option<u32>,
    },
    /// There is something else at the path of its Unix socket.
    #[error("{path} is not a socket; remove it, or choose another path")]
    UnixNotASocket {
        /// The path.
        path: SocketPath,
    },
    /// Others could put a socket of their own at the path of its Unix socket.
    #[error(
        "{path}: its folder belongs to another user, or others may write to it, and so replace the \
         socket; `chmod go-w` the folder, or choose one that only root and this user may write \
         to, like /run/longshore"
    )]
    UnixFolder {
        /// The path.
        path: SocketPath,
    },
    /// The Unix socket cannot be made.
    #[error("cannot listen on the Unix socket {path}: {source}; its folder has to exist")]
    Unix {
        /// The path.
        path: SocketPath,
        /// The system's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// A process that has a Unix socket, or how to find it.
fn owner(path: &SocketPath, pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}, which listens on it"),
        None => format!("another process (`fuser -v {path}.lock` shows which)"),
    }
}

/// Listens, makes handshakes, and returns links. Dropped, it stops listening; links that it has
/// returned stay open.
#[derive(Debug)]
pub struct Listener {
    local_address: SocketAddr,
    links: mpsc::Receiver<Link>,
    admission: Arc<Admission>,
    accepting: JoinHandle<()>,
    authorizing: JoinHandle<()>,
}

impl Listener {
    /// Listens on `address`; with port 0 the system chooses one. Needs a tokio runtime.
    pub fn bind(
        address: SocketAddr,
        info: ServerInfo,
        options: ListenerOptions,
    ) -> Result<Listener, BindError> {
        if options.tls.is_none() && !options.insecure && !is_loopback(address.ip()) {
            return Err(BindError::NeedsTls { address });
        }
        // No client finds the port without the socket.
        let unix = options.unix.as_ref().map(UnixSocket::bind).transpose()?;
        let (listener, local_address) =
            listen(address).map_err(|source| bind_error(address, source))?;
        let budget = affordable(&options, options.connections_max, local_address);
        // As large as the limit of links; it fills only if links end faster than they are accepted.
        let (ready, links) = mpsc::channel(budget.links.max(1));
        let admission = Arc::new(Admission::new(info, options, budget, ready));
        let sockets = Sockets { tcp: listener, unix, unix_first: false };
        let accepting = tokio::spawn(accept_all(sockets, admission.clone(), Reserve::new()));
        let authorizing = tokio::spawn(admission.authorization().clone().run());
        Ok(Listener { local_address, links, admission, accepting, authorizing })
    }

    /// The local address, with the port that was chosen.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The next link whose handshake has ended. Cancel safe.
    pub async fn accept(&mut self) -> Link {
        match self.links.recv().await {
            Some(link) => link,
            // `admission` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Records in the audit log what the client of a link is refused later.
    pub fn audit_of(&self, link: &Link) -> LinkAudit {
        LinkAudit {
            audit: self.admission.options().audit.clone(),
            server: self.admission.server_name().to_owned(),
            identity: link.identity().cloned(),
            address: link.peer_address(),
        }
    }

    /// A handle that changes the limit of links.
    pub fn slots(&self) -> SlotsHandle {
        SlotsHandle { admission: self.admission.clone(), address: self.local_address }
    }

    /// From now on every handshake is refused with `Stopping`, so that diallers go elsewhere at
    /// once.
    pub fn refuse_new(&self) {
        self.admission.refuse_new();
    }

    /// Stops listening, and returns once the port is free. Links that were not yet returned close.
    pub async fn close(mut self) {
        self.accepting.abort();
        // The task ends by cancellation; only its end matters.
        let _ = (&mut self.accepting).await;
    }

    /// Links that are open, those not yet returned included.
    pub fn connections(&self) -> usize {
        self.admission.links()
    }
}

/// Changes the limit of a listener's links while it listens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SlotsHandle {
    admission: Arc<Admission>,
    address: SocketAddr,
}

impl SlotsHandle {
    /// Sets the limit to `connections_max` links, fewer if the process may not open that many
    /// files, and the reserved slots. Links that are open beyond the limit stay.
    pub fn set(&self, connections_max: usize, reserved: &[ReservedSlots]) {
        let budget = affordable(self.admission.options(), connections_max, self.address);
        self.admission.resize(budget.links, reserved);
    }

    /// The limit of links.
    pub fn limit(&self) -> usize {
        self.admission.limit()
    }

    /// Diallers that were refused with `Busy`, or for lack of a descriptor, since the listener
    /// began.
    pub fn refused(&self) -> u64 {
        self.admission.busy()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
        self.authorizing.abort();
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted process can bind its port again while old connections are in TIME_WAIT.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let local_address = listener.local_addr()?;
    Ok((listener, local_address))
}

fn bind_error(address: SocketAddr, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address },
        io::ErrorKind::AddrNotAvailable => BindError::NotHere { address },
        io::ErrorKind::PermissionDenied => BindError::NotAllowed { address },
        _ => BindError::Io { address, source },
    }
}

/// The part of what the options allow that the process can open.
fn affordable(options: &ListenerOptions, links: usize, address: SocketAddr) -> DescriptorBudget {
    let requested = DescriptorBudget {
        links,
        handshakes: options.handshakes_max,
        refusals: options.refusals_max,
    };
    let (budget, limit) = descriptors::within_limit(requested, options.descriptors_reserved);
    if let (true, Some(limit)) = (budget.links < requested.links, limit) {
        tracing::warn!(
            %address, connections = budget.links, requested = requested.links, open_files = limit,
            "fewer connections than requested: \
             raise the limit of open files (LimitNOFILE, ulimit -n)"
        );
    }
    budget
}

async fn accept_all(sockets: Sockets, admission: Arc<Admission>, reserve: Reserve) {
    let wait = ACCEPT_WAIT_MIN;
    let mut accepting = Accepting { sockets, admission, reserve, wait, rest_until: None };
    // Handshakes end with the listener.
    let mut under_way = FuturesUnordered::new();
    let mut slice = Instant::now();
    loop {
        tokio::select! {
            met = accepting.next() => under_way.extend(met.map(unless_it_panics)),
            Some(()) = under_way.next() => {}
        }
        if slice.elapsed() >= SLICE {
            yield_now().await;
            slice = Instant::now();
        }
    }
}

/// A panic in one handshake affects no other.
async fn unless_it_panics(what: impl Future<Output = ()>) {
    if AssertUnwindSafe(what).catch_unwind().await.is_err() {
        tracing::error!("a handshake panicked; its connection is closed");
    }
}

/// The sockets of a listener. Dropped, the port goes first.
struct Sockets {
    tcp: TcpListener,
    unix: Option<UnixSocket>,
    /// Which comes first takes turns, so that a flood at one keeps nobody from the other.
    unix_first: bool,
}

/// A connection that was accepted.
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// Of a Unix socket: the number of its user.
    pub(crate) user: Option<u32>,
}

impl Sockets {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        self.unix_first = !self.unix_first;
        for is_unix in [self.unix_first, !self.unix_first] {
            let polled =
                match &self.unix {
                    Some(unix) if is_unix => unix.poll_accept(cx).map_ok(|(stream, user)| {
                        Accepted { stream, peer: LOCAL_PEER, user: Some(user) }
                    }),
                    None if is_unix => Poll::Pending,
                    _ => self.tcp.poll_accept(cx).map_ok(|(stream, peer)| Accepted {
                        stream,
                        peer,
                        user: None,
                    }),
                };
            if polled.is_ready() {
                return polled;
            }
        }
        Poll::Pending
    }
}

/// The accept loop's state.
struct Accepting {
    sockets: Sockets,
    admission: Arc<Admission>,
    reserve: Reserve,
    /// The wait after the next failure.
    wait: Duration,
    rest_until: Option<Instant>,
}

impl Accepting {
    /// The next connection, and the rest of its handling if that takes time. Cancel safe.
    async fn next(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        if let Some(until) = self.rest_until {
            sleep_until(until).await;
            self.rest_until = None;
        }
        let mut accepted = Some(poll_fn(|cx| self.sockets.poll_accept(cx)).await);
        let out_of_files = matches!(&accepted, Some(Err(error)) if descriptors::none_left(error));
        if out_of_files && self.reserve.give() {
            accepted = accept_now(&mut self.sockets).await;
        }
        let mut met = None;
        match accepted {
            // It was closed meanwhile.
            None => {}
            Some(Ok(Accepted { stream, peer, .. })) if out_of_files => {
                self.admission.refuse_for_descriptors(stream, peer)
            }
            Some(Ok(accepted)) => {
                self.wait = ACCEPT_WAIT_MIN;
                met = self.admission.start_handshake(accepted);
            }
            Some(Err(error)) if is_of_one_connection(&error) => {}
            Some(Err(error)) => {
                let wait = self.wait;
                self.admission.log(|left_out| {
                    tracing::warn!(
                        %error, ?wait, left_out,
                        "cannot accept connections; trying again"
                    );
                });
                self.rest_until = Some(Instant::now() + wait);
                self.wait = (wait * 2).min(ACCEPT_WAIT_MAX);
            }
        }
        self.reserve.restore();
        met
    }
}

/// A connection, or the error, if one is ready without waiting.
async fn accept_now(sockets: &mut Sockets) -> Option<io::Result<Accepted>> {
    poll_fn(|cx| match sockets.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// True for errors of a connection that broke before it was accepted: the next one may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
