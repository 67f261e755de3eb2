//! A replica as a service.

mod connection;
mod desk;
mod job;
mod known_file;
mod limits;
mod memory;

#[cfg(test)]
mod clog_test;
#[cfg(test)]
mod desk_test;
#[cfg(test)]
mod slice_test;
#[cfg(test)]
pub(crate) mod socket_test;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use longshore_protocol::limits::{NAME_BYTES_MAX, RESOLVER_PUBLISHERS_MAX};
use longshore_protocol::messages::resolver::ReplicaStatus;
use longshore_protocol::{Incarnation, LinkTiming, ResolverTiming, Role};
use longshore_transport::{
    BindError, CONNECTIONS_MAX, FrameBudget, HANDSHAKES_MAX, Identity, LINK_BYTES, Listener,
    ListenerOptions, MemoryBounds, TlsAcceptor,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::cluster::link_timing;
use crate::directory::{Client, Directory, Rules};
use crate::replica_link::now;
use crate::server::connection::FRAME_BYTES_MAX;
use crate::server::desk::{ANSWER_BYTES_QUEUED_MAX, Desk, FRAME_BYTES_GOAL, KnownWriter, SAID_MAX};
use crate::server::job::{ANSWER_BYTES_GOAL, DECODED_BYTES_MAX, GLOB_PIECE_BYTES, GLOB_PIECES_MAX};
use crate::server::known_file::{Knowledge, KnownFile, Recalled};
pub use crate::server::limits::{Limits, LimitsHandle};

/// Most watches of one replica, over all its connections.
const WATCHES_MAX: usize = 16_384;
/// Most paths of one replica, defaults included.
const PATHS_MAX: usize = 16_000_000;
/// How long the directory, and the writing of what it knows, may take to end.
const ENDS_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

/// How to serve a replica. Limits are refusals, each with its reason: what is over one is told so,
/// and nothing that stands is thrown out.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What operators see; at most 128 bytes, what is over is cut. `resolver` by default.
    pub name: String,
    /// Of these `reader_ttl`, `writer_ttl` and `handshake_timeout` count here.
    pub timing: ResolverTiming,
    /// This is a new cluster: nobody can have published before, so nothing is missing at the start.
    /// False by default: then the replica warms, and says so with every answer: until those that it
    /// knows from `data` have confirmed, or for a `writer_ttl` (120 s).
    pub fresh: bool,
    /// A directory of this replica alone, made if need be: there it writes down which publishers it
    /// knows. Started again it warms until those that were there have confirmed what they publish,
    /// 15 s after a short absence and half a `writer_ttl` (60 s) after a longer one at most, and
    /// goes on to report those that are missing. None by default: it remembers nothing.
    pub data: Option<PathBuf>,
    /// Most connections; an excess one is told `Busy`. Default 768. Fewer if the process may not
    /// open that many files.
    pub connections_max: usize,
    /// Connections that only writers may have; they may have others too. Default an eighth.
    /// Together with those for tools at most half.
    pub writers_kept: Option<usize>,
    /// Connections that only tools may have, such as `longshore resolver status`. Default 8, or an
    /// eighth if that is less.
    pub tools_kept: Option<usize>,
    /// Most watches, over all connections. Default 16,384.
    pub watches_max: usize,
    /// Most paths, defaults included. Default 16 million.
    pub paths_max: usize,
    /// What received frames are charged to. A connection is not read while it has no room for the
    /// next one, but for one frame of 8 KiB; 64 MiB, at most a quarter, are reserved for
    /// publishers. 256 MiB of its own by default; services of one process share one.
    pub budget: FrameBudget,
    /// Allows an address that other machines can reach, without TLS. False by default.
    pub insecure: bool,
    /// TLS, for every connection. None by default.
    pub tls: Option<TlsAcceptor>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            name: String::from("resolver"),
            timing: ResolverTiming::default(),
            fresh: false,
            data: None,
            connections_max: CONNECTIONS_MAX,
            writers_kept: None,
            tools_kept: None,
            watches_max: WATCHES_MAX,
            paths_max: PATHS_MAX,
            budget: FrameBudget::default(),
            insecure: false,
            tls: None,
        }
    }
}

/// The replica's directory has stopped though nobody asked it to: the process should end, and be
/// started again. Publishers tell it everything anew.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the replica's directory has stopped: {why}")]
pub struct DirectoryStopped {
    /// For people.
    pub why: String,
}

/// One replica of the resolver, to be served by this process. It knows of no other replica.
#[derive(Debug)]
pub struct ResolverServer {
    listener: Listener,
    desk: Desk,
    said: mpsc::Sender<desk::Said>,
    memory: MemoryBounds,
    known: Option<(KnownFile, watch::Receiver<Knowledge>)>,
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
        /// Which.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl ResolverServer {
    /// Listens at `address`; port 0 takes any free one. The replica warms from now on, unless it is
    /// `fresh`. Needs a tokio runtime. Cancel safe: dropped, it listens no more.
    pub async fn bind(
        address: SocketAddr,
        options: ServerOptions,
    ) -> Result<ResolverServer, ReplicaStartError> {
        let incarnation = Incarnation(rand::random());
        let kept = Limits::from(&options).kept();
        let mut name = options.name;
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        let timing = options.timing;
        let identity = Identity {
            instance: incarnation.0,
            epoch: 0,
            name: name.clone(),
            serves: |role| role.is_for_resolver() || role == Role::Tool,
        };
        let of = |role| link_timing(&timing, role);
        let (reader, writer) = (of(Role::ResolverReader), of(Role::ResolverWriter));
        let listener_options = ListenerOptions {
            // The client's handshake says what its role wants; this is the longest of any role.
            timing: LinkTiming {
                heartbeat: reader.heartbeat.max(writer.heartbeat),
                hang: reader.hang.max(writer.hang),
            },
            handshake_timeout: timing.handshake_timeout,
            connections_max: options.connections_max,
            reserved: kept.to_vec(),
            tls: options.tls,
            insecure: options.insecure,
            frame_bytes_max: FRAME_BYTES_MAX,
            budget: options.budget.clone(),
            ..ListenerOptions::default()
        };
        let listener = Listener::bind(address, identity, listener_options).await?;
        let rules = Rules {
            writer_ttl: timing.writer_ttl,
            stand_still_max: timing.request_timeout_min,
            fresh: options.fresh,
            publishers_max: RESOLVER_PUBLISHERS_MAX,
            paths_max: options.paths_max,
            watches_max: options.watches_max,
        };
        let (said, received) = mpsc::channel(SAID_MAX);
        let mut directory = Directory::keyed(now(), incarnation, rand::random(), rules);
        let mut known = None;
        if let Some(folder) = options.data {
            let opened = KnownFile::open(&folder, options.fresh);
            let (file, recalled) =
                opened.map_err(|error| ReplicaStartError::Data { folder, error })?;
            if let Some(Recalled { knowledge, away }) = recalled {
                let wait = known_file::wait(&timing, away);
                directory.restore(now(), knowledge.publishers, knowledge.all, wait);
            }
            let (newest, received) = watch::channel(Knowledge::default());
            known = Some((newest, (file, received)));
        }
        let (newest, known) = known.unzip();
        let mut desk = Desk::new(name, directory, received, said.downgrade());
        desk.known = newest.map(KnownWriter::new);
        desk.places = Some(listener.places());
        let memory = memory_bounds(&options.budget, listener.places().most());
        tracing::info!(%memory, "memory of a replica beside its directory");
        Ok(ResolverServer { listener, desk, said, memory, known })
    }

    /// How long it will warm at most.
    pub fn warming_left(&self) -> Duration {
        self.desk.directory.warming_left(now())
    }

    /// Where it listens, the port that was chosen included.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// The most memory that its clients can make it take, beside the directory: about 70 bytes a
    /// path.
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// Changes its limits while it serves.
    pub fn limits(&self) -> LimitsHandle {
        LimitsHandle { places: self.listener.places(), desk: self.said.downgrade() }
    }

    /// Says how it is, to this process.
    pub fn standing(&self) -> StandingHandle {
        StandingHandle { desk: self.said.downgrade() }
    }

    /// Serves until `shutdown` is ready, or its directory has stopped; then closes every link. The
    /// port is free when it returns. Dropping the future ends all of it at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), DirectoryStopped> {
        let ResolverServer { mut listener, desk, said, known, .. } = self;
        // Dropped at the end, they stop.
        let mut keeping = JoinSet::new();
        if let Some((file, newest)) = known {
            keeping.spawn(known_file::keep(file, newest));
        }
        let mut desk_task = JoinSet::new();
        desk_task.spawn(desk.run());
        let mut connections = JoinSet::new();
        let mut clients = (0..).map(Client);
        let mut shutdown = std::pin::pin!(shutdown);
        let served = loop {
            tokio::select! {
                () = &mut shutdown => break Ok(()),
                link = listener.accept() => {
                    if let Some(client) = clients.next() {
                        connections.spawn(connection::serve(client, link, said.clone()));
                    }
                }
                Some(_) = connections.join_next() => {}
                Some(ended) = desk_task.join_next() => break Err(DirectoryStopped::after(ended)),
            }
        };
        if let Err(error) = &served {
            tracing::error!(%error, "the replica stops");
        }
        listener.refuse_new();
        listener.close().await;
        connections.shutdown().await;
        // Nobody else can say anything: the desk ends, and what it knows is written down, unless
        // the disk hangs.
        drop(said);
        let _ = timeout(ENDS_WITHIN, desk_task.join_next()).await;
        desk_task.shutdown().await;
        let _ = timeout(ENDS_WITHIN, keeping.join_next()).await;
        served
    }
}

fn memory_bounds(budget: &FrameBudget, links: usize) -> MemoryBounds {
    // A frame that is written has up to twice its length: its buffer doubles as it grows.
    let unread = 2 * (ANSWER_BYTES_QUEUED_MAX + FRAME_BYTES_GOAL + ANSWER_BYTES_GOAL);
    MemoryBounds {
        frames: budget.bytes(),
        parts: vec![
            ("links", (links + HANDSHAKES_MAX) * LINK_BYTES),
            ("globs of listings", GLOB_PIECES_MAX * GLOB_PIECE_BYTES),
            ("decoding", DECODED_BYTES_MAX),
        ],
        unread,
        links,
    }
}

/// Says how a replica of this process is. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StandingHandle {
    desk: mpsc::WeakSender<desk::Said>,
}

impl StandingHandle {
    /// How it is; none once it serves no more. Waits until [`ResolverServer::run`] serves. Cancel
    /// safe.
    pub async fn status(&self) -> Option<ReplicaStatus> {
        let (answer, answered) = oneshot::channel();
        let desk = self.desk.upgrade()?;
        desk.send(desk::Said::Status(answer)).await.ok()?;
        drop(desk);
        answered.await.ok()
    }
}

impl DirectoryStopped {
    fn after(ended: Result<(), JoinError>) -> DirectoryStopped {
        let why = match ended.map_err(JoinError::try_into_panic) {
            Ok(()) => String::from("nobody could say anything to it any more"),
            Err(Ok(panic)) => {
                match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                    (Some(text), _) => format!("it panicked: {text}"),
                    (None, Some(text)) => format!("it panicked: {text}"),
                    (None, None) => String::from("it panicked"),
                }
            }
            Err(Err(error)) => error.to_string(),
        };
        DirectoryStopped { why }
    }
}
