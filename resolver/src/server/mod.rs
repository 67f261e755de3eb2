//! A replica as a service.

mod access;
mod announcing;
mod connection;
mod known_publishers_file;
mod limits;
mod memory;
mod request;
mod server_loop;

#[cfg(test)]
mod audit_test;
#[cfg(test)]
mod permissions_test;
#[cfg(test)]
mod server_loop_test;
#[cfg(test)]
mod slice_test;
#[cfg(test)]
mod slow_client_test;
#[cfg(test)]
pub(crate) mod socket_test;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use longshore_access::AccessControl;
use longshore_protocol::limits::{NAME_BYTES_MAX, RESOLVER_PUBLISHERS_MAX};
use longshore_protocol::messages::resolver::ReplicaStatus;
use longshore_protocol::{Incarnation, LinkTiming, ResolverTiming, Role, SocketPath};
use longshore_transport::{
    AuditLog, BindError, CONNECTIONS_MAX, FrameBudget, HANDSHAKES_MAX, LINK_BYTES, Listener,
    ListenerOptions, MemoryBounds, ServerInfo, TlsAcceptor,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cluster::link_timing;
use crate::directory::{Client, Directory, Rules};
use crate::replica_link::now;
use crate::server::access::AccessLog;
use crate::server::connection::FRAME_BYTES_MAX;
use crate::server::known_publishers_file::{
    KnownPublishers, KnownPublishersFile, RestoredPublishers,
};
pub use crate::server::limits::{Limits, LimitsHandle};
use crate::server::request::{
    ANSWER_BYTES_GOAL, DECODED_BYTES_MAX, GLOB_SEGMENT_BYTES, GLOB_SEGMENTS_MAX,
};
use crate::server::server_loop::{
    ANSWER_BYTES_QUEUED_MAX, EVENTS_QUEUED_MAX, Event, FRAME_BYTES_GOAL, KnownWriter, ServerLoop,
};

/// Most watches of one replica, over all its connections.
const WATCHES_MAX: usize = 16_384;
/// Most paths of one replica, defaults included.
const PATHS_MAX: usize = 16_000_000;
/// The longest wait at shutdown for the directory, and for the write of the known publishers.
const SHUTDOWN_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

/// The options of a replica. Each limit refuses requests beyond it with the reason; it never drops
/// an existing connection, watch or path.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The name that operators see; cut to 128 bytes. `resolver` by default.
    pub name: String,
    /// A replica uses only `reader_ttl`, `writer_ttl` and `handshake_timeout`.
    pub timing: ResolverTiming,
    /// Marks a new cluster: nothing was published before, so nothing is missing at the start. False
    /// by default: then the replica warms, and marks every answer accordingly, until the publishers
    /// that it knows from `data` have confirmed, or for a `writer_ttl` (120 s).
    pub fresh: bool,
    /// A directory used by this replica alone, created if missing: the replica records there which
    /// publishers it knows. After a restart it warms until those publishers have confirmed what
    /// they publish, at most 15 s after a short downtime and half a `writer_ttl` (60 s) after a
    /// longer one, and continues to report the missing ones. None by default: nothing is recorded.
    pub data: Option<PathBuf>,
    /// Most connections; an excess one is refused with `Busy`. Default 768. Fewer if the process
    /// may not open that many files.
    pub connections_max: usize,
    /// Connections reserved for writers; writers may use unreserved ones too. Default an eighth.
    /// Together with those reserved for tools at most half.
    pub writers_reserved: Option<usize>,
    /// Connections reserved for tools, such as `longshore resolver status`. Default 8, or an eighth
    /// if that is less.
    pub tools_reserved: Option<usize>,
    /// Most watches, over all connections. Default 16,384.
    pub watches_max: usize,
    /// Most paths, defaults included. Default 16 million.
    pub paths_max: usize,
    /// The budget of received frames. While it has no room, a connection is not read, except for
    /// one frame of 8 KiB; 64 MiB, at most a quarter, are reserved for publishers. By default 256
    /// MiB of its own; services of one process share one.
    pub budget: FrameBudget,
    /// Allows an address that other machines can reach, without TLS. False by default.
    pub insecure: bool,
    /// The name of its cluster: diallers that name another are refused. Empty by default.
    pub cluster: String,
    /// TLS, for every connection. None by default.
    pub tls: Option<TlsAcceptor>,
    /// Who may do what. By default every client everything.
    pub access_control: AccessControl,
    /// Records acts of tools, registrations of publishers, refused accesses and changes of the
    /// rules; while it cannot be written, acts are refused. None by default.
    pub audit: AuditLog,
    /// A Unix socket beside the address, without TLS: under a policy its clients are known by their
    /// users, unless they have a token. Its owner and its group may connect; only root and this
    /// user may write to its folder. None by default.
    pub listen_unix: Option<SocketPath>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            name: String::from("resolver"),
            timing: ResolverTiming::default(),
            fresh: false,
            data: None,
            connections_max: CONNECTIONS_MAX,
            writers_reserved: None,
            tools_reserved: None,
            watches_max: WATCHES_MAX,
            paths_max: PATHS_MAX,
            budget: FrameBudget::default(),
            insecure: false,
            cluster: String::new(),
            tls: None,
            access_control: AccessControl::default(),
            audit: AuditLog::default(),
            listen_unix: None,
        }
    }
}

/// The replica's directory has stopped unexpectedly: the process should end and be restarted.
/// Publishers then send everything again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the replica's directory has stopped: {why}")]
pub struct ReplicaStopped {
    /// For people.
    pub why: String,
}

/// One replica of the resolver, to be served by this process. It knows no other replica.
#[derive(Debug)]
pub struct ResolverServer {
    listener: Listener,
    server_loop: ServerLoop,
    events: mpsc::Sender<Event>,
    memory: MemoryBounds,
    known: Option<(KnownPublishersFile, watch::Receiver<KnownPublishers>)>,
}

/// Why a replica does not start.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaStartError {
    /// It cannot listen.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its directory cannot be used.
    #[error("the replica's directory {}: {error}", folder.display())]
    Data {
        /// The directory.
        folder: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl ResolverServer {
    /// Listens at `address`; port 0 takes any free one. The replica warms from now on, unless it is
    /// `fresh`. Needs a tokio runtime. Dropped, it stops listening.
    pub fn bind(
        address: SocketAddr,
        options: ServerOptions,
    ) -> Result<ResolverServer, ReplicaStartError> {
        let incarnation = Incarnation(rand::random());
        let reserved = Limits::from(&options).reserved_slots();
        let mut name = options.name;
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        let timing = options.timing;
        let info = ServerInfo {
            instance: incarnation.0,
            epoch: 0,
            name: name.clone(),
            serves: |role| role.is_for_resolver() || role == Role::Tool,
        };
        let of = |role| link_timing(&timing, role);
        let (reader, writer) = (of(Role::ResolverReader), of(Role::ResolverWriter));
        let listener_options = ListenerOptions {
            // The client's handshake asks for the timing of its role; this is the longest of any
            // role.
            timing: LinkTiming {
                heartbeat: reader.heartbeat.max(writer.heartbeat),
                hang: reader.hang.max(writer.hang),
            },
            handshake_timeout: timing.handshake_timeout,
            connections_max: options.connections_max,
            reserved: reserved.to_vec(),
            cluster: options.cluster,
            tls: options.tls,
            access_control: options.access_control.clone(),
            audit: options.audit.clone(),
            insecure: options.insecure,
            unix: options.listen_unix,
            frame_bytes_max: FRAME_BYTES_MAX,
            budget: options.budget.clone(),
            ..ListenerOptions::default()
        };
        let listener = Listener::bind(address, info, listener_options)?;
        let rules = Rules {
            writer_ttl: timing.writer_ttl,
            stall_max: timing.request_timeout_min,
            fresh: options.fresh,
            publishers_max: RESOLVER_PUBLISHERS_MAX,
            paths_max: options.paths_max,
            watches_max: options.watches_max,
        };
        let (events, received) = mpsc::channel(EVENTS_QUEUED_MAX);
        let mut directory = Directory::keyed(now(), incarnation, rand::random(), rules);
        let mut known = None;
        if let Some(folder) = options.data {
            let opened = KnownPublishersFile::open(&folder, options.fresh);
            let (file, restored) =
                opened.map_err(|error| ReplicaStartError::Data { folder, error })?;
            if let Some(RestoredPublishers { known, downtime }) = restored {
                let wait = known_publishers_file::wait(&timing, downtime);
                directory.restore(now(), known.publishers, known.all, wait);
            }
            let (newest, received) = watch::channel(KnownPublishers::default());
            known = Some((newest, (file, received)));
        }
        let (newest, known) = known.unzip();
        let access_log = AccessLog::beside(options.audit, name.clone());
        let mut server_loop = ServerLoop::new(name, directory, received, events.downgrade());
        server_loop.access_log = access_log;
        server_loop.access_control = options.access_control;
        server_loop.known = newest.map(KnownWriter::new);
        server_loop.slots = Some(listener.slots());
        let memory = memory_bounds(&options.budget, listener.slots().limit());
        tracing::info!(%memory, "memory of a replica beside its directory");
        Ok(ResolverServer { listener, server_loop, events, memory, known })
    }

    /// The longest that it will still warm.
    pub fn warming_left(&self) -> Duration {
        self.server_loop.directory.warming_left(now())
    }

    /// The local address, with the port that was chosen.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// The most memory that clients can make it take, beside the directory: about 70 bytes a path.
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// A handle that changes the limits while the replica serves.
    pub fn limits(&self) -> LimitsHandle {
        LimitsHandle { slots: self.listener.slots(), server_loop: self.events.downgrade() }
    }

    /// A handle that returns the replica's status to this process.
    pub fn status_handle(&self) -> StatusHandle {
        StatusHandle { server_loop: self.events.downgrade() }
    }

    /// Serves until `shutdown` is ready, or its directory has stopped; then closes every link. The
    /// port is free when it returns. Dropping the future ends all of it at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ReplicaStopped> {
        let stopping = CancellationToken::new();
        let mut serving = self.serve(stopping.clone());
        tokio::select! {
            // Polled whenever the replica waits, or has used up the budget of its task.
            biased;
            () = shutdown => stopping.cancel(),
            served = &mut serving => return served,
        }
        serving.await
    }

    /// Boxed: see Build in `docs/ARCHITECTURE.md`.
    fn serve(
        self,
        stopping: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = Result<(), ReplicaStopped>> + Send>> {
        Box::pin(self.serve_until(stopping))
    }

    async fn serve_until(self, stopping: CancellationToken) -> Result<(), ReplicaStopped> {
        let ResolverServer { mut listener, server_loop, events, known, .. } = self;
        // Dropping the sets aborts their tasks.
        let mut file_task = JoinSet::new();
        if let Some((file, newest)) = known {
            file_task.spawn(known_publishers_file::run_writer(file, newest));
        }
        let mut loop_task = JoinSet::new();
        loop_task.spawn(server_loop.run());
        let mut connections = JoinSet::new();
        let mut clients = (0..).map(Client);
        let served = loop {
            tokio::select! {
                () = stopping.cancelled() => break Ok(()),
                link = listener.accept() => {
                    if let Some(client) = clients.next() {
                        connections.spawn(connection::serve(client, link, events.clone()));
                    }
                }
                Some(_) = connections.join_next() => {}
                Some(ended) = loop_task.join_next() => break Err(ReplicaStopped::after(ended)),
            }
        };
        if let Err(error) = &served {
            tracing::error!(%error, "the replica stops");
        }
        listener.refuse_new();
        listener.close().await;
        connections.shutdown().await;
        // Without senders the server loop ends and the known publishers are written, unless the
        // disk hangs.
        drop(events);
        let _ = timeout(SHUTDOWN_WAIT, loop_task.join_next()).await;
        loop_task.shutdown().await;
        let _ = timeout(SHUTDOWN_WAIT, file_task.join_next()).await;
        served
    }
}

fn memory_bounds(budget: &FrameBudget, links: usize) -> MemoryBounds {
    // A buffered frame takes up to twice its length: its buffer doubles as it grows.
    let unread = 2 * (ANSWER_BYTES_QUEUED_MAX + FRAME_BYTES_GOAL + ANSWER_BYTES_GOAL);
    MemoryBounds {
        frames: budget.bytes(),
        parts: vec![
            ("links", (links + HANDSHAKES_MAX) * LINK_BYTES),
            ("globs of listings", GLOB_SEGMENTS_MAX * GLOB_SEGMENT_BYTES),
            ("decoding", DECODED_BYTES_MAX),
        ],
        unread,
        links,
    }
}

/// Returns the status of a replica of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatusHandle {
    server_loop: mpsc::WeakSender<Event>,
}

impl StatusHandle {
    /// The status; `None` once the replica has stopped. Waits until [`ResolverServer::run`] serves.
    /// Cancel safe.
    pub async fn status(&self) -> Option<ReplicaStatus> {
        let (answer, answered) = oneshot::channel();
        let server_loop = self.server_loop.upgrade()?;
        server_loop.send(Event::Status(answer)).await.ok()?;
        drop(server_loop);
        answered.await.ok()
    }
}

impl ReplicaStopped {
    fn after(ended: Result<(), JoinError>) -> ReplicaStopped {
        let why = match ended.map_err(JoinError::try_into_panic) {
            Ok(()) => String::from("it has no more clients"),
            Err(Ok(panic)) => {
                match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                    (Some(text), _) => format!("it panicked: {text}"),
                    (None, Some(text)) => format!("it panicked: {text}"),
                    (None, None) => String::from("it panicked"),
                }
            }
            Err(Err(error)) => error.to_string(),
        };
        ReplicaStopped { why }
    }
}
