//! Accepting links. One task accepts and hears all handshakes, each as it comes, so that a slow or
//! hostile one holds up nobody. And only one, in slices: were each handshake a task of its own,
//! then of thousands that come at once hundreds would be ready before every message of a link that
//! stands.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until};

use crate::descriptors::{self, Budget, Reserve};
use crate::door::Door;
use crate::link::Link;
use crate::negotiation::Identity;
use crate::options::ListenerOptions;
use crate::places::Kept;

/// Connections that the kernel holds for this process before it accepts them; it may be set to hold
/// fewer. Beyond, it ignores diallers, who try again only a second later: thousands at once have to
/// fit.
const BACKLOG: u32 = 4_096;
/// The first wait after the system had no descriptor or memory for a connection; it doubles.
const ACCEPT_WAIT_MIN: Duration = Duration::from_millis(10);
/// The longest such wait.
const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long the listener works for diallers before everything else that is ready has its turn.
const SLICE: Duration = Duration::from_micros(200);

/// Why nothing listens. [`InUse`](BindError::InUse) may pass; the others are wrong addresses or a
/// system that has to be set up.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process has the port.
    #[error(
        "{address} is in use by another process; stop it (`ss -ltnp` shows which) or choose another port"
    )]
    InUse {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// Other machines can reach the address, and nothing would be encrypted or authenticated.
    #[error(
        "{address} can be reached from other machines and there is no TLS: anyone there could read, add and take jobs; \
         give a certificate and key, listen on 127.0.0.1, or accept it with --insecure"
    )]
    NeedsTls {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// No interface of this machine has the address.
    #[error("{address} is not an address of this machine; choose one that `ip address` shows")]
    NotHere {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// The user may not listen there.
    #[error(
        "no permission to listen on {address}; ports below 1024 need privileges, choose a higher one"
    )]
    NotAllowed {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// Listens, makes handshakes, and returns links. Dropped, it stops listening; links that it has
/// handed out go on.
#[derive(Debug)]
pub struct Listener {
    local_address: SocketAddr,
    links: mpsc::Receiver<Link>,
    door: Arc<Door>,
    accepting: JoinHandle<()>,
}

impl Listener {
    /// Listens on `address`; port 0 lets the system choose one.
    pub async fn bind(
        address: SocketAddr,
        identity: Identity,
        options: ListenerOptions,
    ) -> Result<Listener, BindError> {
        if options.tls.is_none() && !options.insecure && !is_loopback(address.ip()) {
            return Err(BindError::NeedsTls { address });
        }
        let (listener, local_address) =
            listen(address).map_err(|source| bind_error(address, source))?;
        let budget = affordable(&options, options.connections_max, local_address);
        // As many as may be open; it fills only if links end faster than they are taken.
        let (ready, links) = mpsc::channel(budget.links.max(1));
        let door = Arc::new(Door::new(identity, options, budget, ready));
        let accepting = tokio::spawn(accept_all(listener, door.clone(), Reserve::new()));
        Ok(Listener { local_address, links, door, accepting })
    }

    /// Where it listens, the port that was chosen included.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The next link whose handshake has ended. Cancel safe.
    pub async fn accept(&mut self) -> Link {
        match self.links.recv().await {
            Some(link) => link,
            // `door` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Changes how many links there may be.
    pub fn places(&self) -> PlacesHandle {
        PlacesHandle { door: self.door.clone(), address: self.local_address }
    }

    /// From now on every handshake is refused with `Stopping`, so that diallers go elsewhere at
    /// once.
    pub fn refuse_new(&self) {
        self.door.refuse_new();
    }

    /// Stops listening, and returns once the port is free. Links that were not handed out close.
    pub async fn close(mut self) {
        self.accepting.abort();
        // It ends by being cancelled: that is what is waited for.
        let _ = (&mut self.accepting).await;
    }

    /// Links that are open, those not yet handed out included.
    pub fn connections(&self) -> usize {
        self.door.links()
    }
}

/// Changes how many links a listener takes while it listens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PlacesHandle {
    door: Arc<Door>,
    address: SocketAddr,
}

impl PlacesHandle {
    /// From now on there may be `connections_max` links, fewer if the process may not open that
    /// many files, with those kept. Links that are open beyond that stay.
    pub fn set(&self, connections_max: usize, kept: &[Kept]) {
        let budget = affordable(self.door.options(), connections_max, self.address);
        self.door.resize(budget.links, kept);
    }

    /// Most links that there may be.
    pub fn most(&self) -> usize {
        self.door.most()
    }

    /// Diallers that were told `Busy`, or that there was not even a descriptor for, since the
    /// listener began.
    pub fn refused(&self) -> u64 {
        self.door.busy()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted process takes its port back although old connections still wait out their time.
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

/// What the process can open of what the options allow.
fn affordable(options: &ListenerOptions, links: usize, address: SocketAddr) -> Budget {
    let wanted =
        Budget { links, handshakes: options.handshakes_max, refusals: options.refusals_max };
    let (budget, limit) = descriptors::within_limit(wanted, options.descriptors_kept);
    if let (true, Some(limit)) = (budget.links < wanted.links, limit) {
        tracing::warn!(
            %address, connections = budget.links, wanted = wanted.links, open_files = limit,
            "fewer connections than wanted: raise the limit of open files (LimitNOFILE, ulimit -n)"
        );
    }
    budget
}

async fn accept_all(listener: TcpListener, door: Arc<Door>, reserve: Reserve) {
    let wait = ACCEPT_WAIT_MIN;
    let mut accepting = Accepting { listener, door, reserve, wait, rest_until: None };
    // They end with the listener.
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

/// What befalls one dialler befalls no other.
async fn unless_it_panics(what: impl Future<Output = ()>) {
    if AssertUnwindSafe(what).catch_unwind().await.is_err() {
        tracing::error!("a handshake has panicked; its connection is closed");
    }
}

/// What accepts.
struct Accepting {
    listener: TcpListener,
    door: Arc<Door>,
    reserve: Reserve,
    /// How long it rests after the next failure.
    wait: Duration,
    rest_until: Option<Instant>,
}

impl Accepting {
    /// The next connection, and what is to be done for it if that takes time. Cancel safe.
    async fn next(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        if let Some(until) = self.rest_until {
            sleep_until(until).await;
            self.rest_until = None;
        }
        let mut accepted = Some(self.listener.accept().await);
        let out_of_files = matches!(&accepted, Some(Err(error)) if descriptors::none_left(error));
        if out_of_files && self.reserve.give() {
            accepted = accept_now(&self.listener).await;
        }
        let mut met = None;
        match accepted {
            // It went away meanwhile.
            None => {}
            Some(Ok((stream, peer))) if out_of_files => self.door.cannot_afford(stream, peer),
            Some(Ok((stream, peer))) => {
                self.wait = ACCEPT_WAIT_MIN;
                met = self.door.meet(stream, peer);
            }
            Some(Err(error)) if is_of_one_connection(&error) => {}
            Some(Err(error)) => {
                let wait = self.wait;
                self.door.log(|left_out| {
                    tracing::warn!(%error, ?wait, left_out, "cannot accept connections; trying again");
                });
                self.rest_until = Some(Instant::now() + wait);
                self.wait = (wait * 2).min(ACCEPT_WAIT_MAX);
            }
        }
        self.reserve.restore();
        met
    }
}

/// A connection, or the failure, if there is one without waiting.
async fn accept_now(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    poll_fn(|cx| match listener.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// True of errors of a connection that broke before it was accepted: the next one may be well.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
