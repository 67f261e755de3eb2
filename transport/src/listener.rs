//! Accepting links. One task accepts; every hello runs in a task of its own, so that a slow or hostile one holds up nobody.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longshore_protocol::{HelloAnswer, HelloRefusal};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::greeting::{self, GreetingError};
use crate::link::{Link, Peer, Terms};
use crate::log_limit::LogLimit;
use crate::negotiation::{self, Identity};
use crate::options::ListenerOptions;
use crate::socket::{self, Connection, open_options};

/// Connections that the kernel holds for this process before it accepts them.
const BACKLOG: u32 = 1_024;
/// The first wait after the system had no descriptor or memory for a connection; it doubles.
const ACCEPT_WAIT_MIN: Duration = Duration::from_millis(10);
/// The longest such wait.
const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(1);
/// The longest that a refused dialler is waited for, so that it gets to read why.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);

/// Why nothing listens.
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

/// Listens, greets, and hands out links. Dropped, it stops listening; links that it has handed out go on.
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
        // As many as may be open; it fills only if links end faster than they are taken.
        let (ready, links) = mpsc::channel(options.connections_max.max(1));
        let door = Arc::new(Door {
            places: Arc::new(Semaphore::new(options.connections_max)),
            hellos: Arc::new(Semaphore::new(options.hellos_max)),
            stopping: AtomicBool::new(false),
            log: Mutex::new(LogLimit::new(Instant::now().into_std())),
            identity,
            options,
            ready,
        });
        let accepting = tokio::spawn(accept_all(listener, door.clone()));
        Ok(Listener { local_address, links, door, accepting })
    }

    /// Where it listens, the port that was chosen included.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The next link whose hello has ended. Cancel safe.
    pub async fn accept(&mut self) -> Link {
        match self.links.recv().await {
            Some(link) => link,
            // `door` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// From now on every hello is refused with `Stopping`, so that diallers go elsewhere at once.
    pub fn refuse_new(&self) {
        self.door.stopping.store(true, Ordering::Release);
    }

    /// Stops listening, and returns once the port is free. Links that were not handed out close.
    pub async fn close(mut self) {
        self.accepting.abort();
        // It ends by being cancelled: that is what is waited for.
        let _ = (&mut self.accepting).await;
    }

    /// Links that are open, those not yet handed out included.
    pub fn connections(&self) -> usize {
        self.door.options.connections_max - self.door.places.available_permits()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What every hello needs.
#[derive(Debug)]
struct Door {
    identity: Identity,
    options: ListenerOptions,
    places: Arc<Semaphore>,
    hellos: Arc<Semaphore>,
    stopping: AtomicBool,
    log: Mutex<LogLimit>,
    ready: mpsc::Sender<Link>,
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

async fn accept_all(listener: TcpListener, door: Arc<Door>) {
    // Hellos under way end with the listener.
    let mut hellos = JoinSet::new();
    let mut wait = ACCEPT_WAIT_MIN;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                door.log(|left_out| {
                    tracing::warn!(%error, ?wait, left_out, "cannot accept connections; trying again");
                });
                sleep(wait).await;
                wait = (wait * 2).min(ACCEPT_WAIT_MAX);
                continue;
            }
        };
        wait = ACCEPT_WAIT_MIN;
        while hellos.try_join_next().is_some() {}
        match door.hellos.clone().try_acquire_owned() {
            Ok(permit) => {
                let door = door.clone();
                hellos.spawn(async move {
                    door.receive(stream, peer).await;
                    drop(permit);
                });
            }
            Err(_) => door.turn_away(stream, peer),
        }
    }
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

impl Door {
    /// Greets one dialler, within the hello timeout.
    async fn receive(&self, stream: TcpStream, peer: SocketAddr) {
        let limit = self.options.hello_timeout;
        let greeted = timeout(limit, self.greet(stream, peer)).await;
        let reason = match greeted {
            Ok(Ok(link)) => match self.ready.try_send(link) {
                Ok(()) => return,
                Err(TrySendError::Full(_)) => "nobody takes links from the listener".to_owned(),
                Err(TrySendError::Closed(_)) => return,
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no hello within {limit:?}"),
        };
        self.log(
            |left_out| tracing::warn!(%peer, reason, left_out, "a connection was not accepted"),
        );
    }

    async fn greet(&self, stream: TcpStream, peer_address: SocketAddr) -> Result<Link, Unwelcome> {
        open_options(&stream).map_err(GreetingError::Io)?;
        let mut connection = match &self.options.tls {
            None => Connection::plain(stream),
            Some(tls) => Connection::tls(stream, |stream| tls.accept(stream))
                .await
                .map_err(Unwelcome::Tls)?,
        };
        let hello = match greeting::read_hello(&mut connection).await {
            Ok(hello) => hello,
            Err(error @ (GreetingError::Closed | GreetingError::Io(_))) => return Err(error.into()),
            Err(error) => {
                refuse(&mut connection, HelloRefusal::Malformed, &error.to_string()).await;
                return Err(error.into());
            }
        };
        let (timing, frame_limit) = (self.options.timing, self.options.frame_bytes_max);
        let answer = if self.stopping.load(Ordering::Acquire) {
            Err((HelloRefusal::Stopping, format!("`{}` is stopping", self.identity.name)))
        } else {
            negotiation::answer(&hello, &self.identity, timing, frame_limit)
        };
        let place = self.places.clone().try_acquire_owned().map_err(|_| self.busy());
        let (welcome, place) = match answer.and_then(|welcome| Ok((welcome, place?))) {
            Ok(welcomed) => welcomed,
            Err((code, reason)) => {
                refuse(&mut connection, code, &reason).await;
                return Err(Unwelcome::Refused { role: hello.role.to_string(), reason });
            }
        };
        let terms = Terms {
            peer_address,
            version: welcome.version,
            timing: welcome.timing,
            own_frame_bytes_max: welcome.frame_bytes_max as usize,
            peer_frame_bytes_max: hello.frame_bytes_max as usize,
            send_queue_bytes_max: self.options.send_queue_bytes_max,
            oldest: self.options.oldest.clone(),
            peer: Peer::Client(hello),
        };
        greeting::write_answer(&mut connection, &HelloAnswer::Welcome(welcome))
            .await
            .map_err(GreetingError::Io)?;
        Ok(Link::start(connection, terms, Some(place)))
    }

    /// Too many hellos are under way even to read this one: it is told so as far as that goes without waiting.
    fn turn_away(&self, stream: TcpStream, peer: SocketAddr) {
        let (code, reason) = self.busy();
        if self.options.tls.is_none() {
            let _ = stream.try_write(&greeting::encoded(&greeting::refusal(code, reason.as_str())));
        }
        self.log(
            |left_out| tracing::warn!(%peer, reason, left_out, "a connection was not accepted"),
        );
    }

    fn busy(&self) -> negotiation::Refused {
        let reason = format!(
            "`{}` has as many connections as it may ({}); try another server",
            self.identity.name, self.options.connections_max
        );
        (HelloRefusal::Busy, reason)
    }

    fn log(&self, write: impl FnOnce(u64)) {
        let admitted = self.log.lock().admit(Instant::now().into_std());
        if let Some(left_out) = admitted {
            write(left_out);
        }
    }
}

/// Says no, and waits a moment so that it is heard.
async fn refuse(connection: &mut Connection, code: HelloRefusal, reason: &str) {
    let answer = greeting::refusal(code, reason);
    let _ = timeout(REFUSAL_WAIT, async {
        if greeting::write_answer(connection, &answer).await.is_ok()
            && std::future::poll_fn(|cx| connection.writes.poll_finish(cx)).await.is_ok()
        {
            socket::drain(&connection.raw).await;
        }
    })
    .await;
}

/// Why a connection did not become a link.
#[derive(Debug, thiserror::Error)]
enum Unwelcome {
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("refused as {role}: {reason}")]
    Refused { role: String, reason: String },
}
