//! A whole system in your program: resolver replicas and a publisher as tasks of its runtime. Use
//! it for a self-contained program, for demonstrations and for tests;
//! [`testing`](../testing/index.html) adds a clock that a test moves.
//!
//! ```
//! use longshore::embedded::System;
//! use longshore::Path;
//! use longshore::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let folder = tempfile::tempdir()?;
//! let system = System::start(folder.path()).await?;
//! let receipt = system.producer().enqueue(new_job(Path::new("/jobs/a")?, "payload")).await?;
//! println!("{receipt} is on disk");
//! system.stop().await?;
//! # Ok(())
//! # }
//! ```

use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use longshore_protocol::Address;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;

#[cfg(feature = "worker")]
use crate::Worker;
use crate::{
    Access, Cluster, HealthHandle, MemoryBounds, OpenError, Opened, PublicationStatus, Publisher,
    PublisherFailed, PublisherInfo, PublisherOptions, ReplicaStartError, ReplicaStopped,
    ResolverServer, ResolverTiming, ServerOptions, StatusHandle, values::Values,
};
#[cfg(feature = "producer")]
use crate::{LinkOptions, Producer, Queues};

/// How long a start waits for the publisher's registration at every replica, which continues in the
/// background.
pub const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Any free port of the loopback address.
pub const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Options of a [`System`].
#[derive(Debug)]
pub struct SystemOptions {
    /// The address and options of each resolver replica. The default is one replica on a free port
    /// that is complete at once: it does not wait a minute for publishers that it does not know.
    /// Without TLS, clients use the Unix socket of a replica that has one, and the publisher's if
    /// it is in the same folder.
    pub replicas: Vec<(SocketAddr, ServerOptions)>,
    /// Timing of the replicas' clients.
    pub timing: ResolverTiming,
    /// How its clients reach it, the publisher included: the cluster's name, which is also that of
    /// its servers, and TLS. The replicas' and the publisher's own options have their certificates.
    pub access: Access,
    /// Options of the publisher. The system sets its cluster.
    pub publisher: PublisherOptions,
}

impl SystemOptions {
    /// One replica and a publisher of every path, with its journal in this directory.
    pub fn new(data: impl Into<PathBuf>) -> SystemOptions {
        SystemOptions {
            replicas: vec![(ANY_PORT, ServerOptions { fresh: true, ..ServerOptions::default() })],
            timing: ResolverTiming::default(),
            access: Access::default(),
            publisher: PublisherOptions::new(data),
        }
    }
}

/// Running resolver replicas and a publisher. When dropped, they stop in order, in the background.
/// Needs a tokio runtime with its time and io drivers.
#[derive(Debug)]
pub struct System {
    cluster: Cluster,
    publisher: RunningPublisher,
    replicas: Vec<RunningReplica>,
}

/// Errors of a system's start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A replica of the resolver did not start.
    #[error("cannot start replica {nth} of the resolver")]
    Replica {
        /// The replica's position in the options, from 1.
        nth: usize,
        /// The cause.
        #[source]
        error: ReplicaStartError,
    },
    /// The options name no replica.
    #[error("a system needs a replica of the resolver, and its options name none")]
    NoReplica,
    /// The publisher did not start.
    #[error(transparent)]
    Publisher(#[from] OpenError),
}

/// Failures of a running system.
#[derive(Debug, thiserror::Error)]
pub enum SystemFailed {
    /// A replica of the resolver failed.
    #[error("a replica of the resolver stopped")]
    Replica(#[from] ReplicaStopped),
    /// The publisher failed. Its journal has everything that it acknowledged.
    #[error(transparent)]
    Publisher(#[from] PublisherFailed),
}

impl System {
    /// Starts one replica and a publisher of every path, with its journal in this directory.
    pub async fn start(data: impl Into<PathBuf>) -> Result<System, StartError> {
        System::start_with(SystemOptions::new(data)).await
    }

    /// Starts a system, and returns once every replica knows the publisher, or after
    /// [`REGISTRATION_TIMEOUT`]. Dropping the future stops what it has started.
    pub async fn start_with(options: SystemOptions) -> Result<System, StartError> {
        System::start_with_guard(options, ()).await
    }

    /// Like [`System::start_with`]; drops `guard` once the publisher has ended in any way.
    pub(crate) async fn start_with_guard(
        options: SystemOptions,
        guard: impl Send + 'static,
    ) -> Result<System, StartError> {
        let SystemOptions { replicas: replica_options, timing, access, mut publisher } = options;
        if replica_options.is_empty() {
            return Err(StartError::NoReplica);
        }
        let mut replicas = Vec::with_capacity(replica_options.len());
        let mut names = Vec::with_capacity(replica_options.len());
        for (nth, (address, mut options)) in (1..).zip(replica_options) {
            options.cluster.clone_from(&access.cluster);
            let unix = options.listen_unix.clone().filter(|_| access.tls.is_none());
            let replica = RunningReplica::start(address, options).await;
            let replica = replica.map_err(|error| StartError::Replica { nth, error })?;
            names.push(unix.map_or_else(
                || replica.address.to_string(),
                |path| Address::Unix(path).to_string(),
            ));
            replicas.push(replica);
        }
        let mut cluster = Cluster::new(names);
        cluster.timing = timing;
        cluster.access = access;
        publisher.cluster = Some(cluster.clone());
        let publisher = RunningPublisher::start_with_guard(publisher, guard).await?;
        Ok(System { cluster, publisher, replicas })
    }

    /// The cluster for clients.
    pub fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    /// The publisher.
    pub fn publisher(&self) -> &RunningPublisher {
        &self.publisher
    }

    /// The replicas, in the order of the options.
    pub fn replicas(&self) -> &[RunningReplica] {
        &self.replicas
    }

    /// A producer with its own links.
    #[cfg(feature = "producer")]
    pub fn producer(&self) -> Producer {
        Producer::connect(self.cluster())
    }

    /// A client that reads queues and acts on them.
    #[cfg(feature = "producer")]
    pub fn queues(&self) -> Queues {
        Queues::connect(self.cluster())
    }

    /// A worker.
    #[cfg(feature = "worker")]
    pub fn worker(&self) -> Worker {
        Worker::connect(self.cluster())
    }

    /// Waits until the publisher or a replica has failed; [`System::stop`] returns the error.
    /// Cancel safe.
    pub async fn ended(&self) {
        let replicas = self.replicas.iter().map(|replica| &replica.serving.ended);
        let tasks = replicas.chain([&self.publisher.serving.ended]);
        let mut ends: Vec<_> = tasks.map(|task| Box::pin(closed(task.clone()))).collect();
        poll_fn(|context| {
            let mut ends = ends.iter_mut().map(|end| end.as_mut().poll(context));
            if ends.any(|end| end.is_ready()) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Stops the publisher, which unpublishes its paths, then the replicas. Returns the first
    /// failure. Dropping the future stops them without waiting.
    pub async fn stop(self) -> Result<(), SystemFailed> {
        let mut ended = self.publisher.stop().await.map_err(SystemFailed::from);
        for replica in self.replicas {
            let replica = replica.stop().await;
            ended = ended.and(replica.map_err(SystemFailed::from));
        }
        ended
    }
}

/// A resolver replica that serves in its own task. It stops when dropped.
#[derive(Debug)]
pub struct RunningReplica {
    address: SocketAddr,
    memory: MemoryBounds,
    status_handle: StatusHandle,
    serving: ServiceTask<ReplicaStopped>,
}

impl RunningReplica {
    /// Starts a replica on a free port of the loopback address.
    pub async fn local() -> Result<RunningReplica, ReplicaStartError> {
        let options = ServerOptions { fresh: true, ..ServerOptions::default() };
        RunningReplica::start(ANY_PORT, options).await
    }

    /// Starts a replica that listens on this address.
    pub async fn start(
        address: SocketAddr,
        options: ServerOptions,
    ) -> Result<RunningReplica, ReplicaStartError> {
        let server = ResolverServer::bind(address, options)?;
        Ok(RunningReplica {
            address: server.local_address(),
            memory: server.memory_bounds().clone(),
            status_handle: server.status_handle(),
            serving: ServiceTask::spawn(|stop| server.run(stop)),
        })
    }

    /// The listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A cluster of this one replica, for clients; without the name and TLS that it may have.
    pub fn cluster(&self) -> Cluster {
        Cluster::new([self.address.to_string()])
    }

    /// The memory bounds of its links.
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// A handle to read its state, for metrics.
    pub fn status_handle(&self) -> StatusHandle {
        self.status_handle.clone()
    }

    /// Stops the replica.
    pub async fn stop(self) -> Result<(), ReplicaStopped> {
        self.serving.stop().await
    }
}

/// A publisher that serves in its own task. It stops in order when dropped.
#[derive(Debug)]
pub struct RunningPublisher {
    address: SocketAddr,
    info: PublisherInfo,
    memory: MemoryBounds,
    opened: Opened,
    registration: Vec<PublicationStatus>,
    values: Values,
    health: HealthHandle,
    /// How its own clients reach it.
    access: Access,
    serving: ServiceTask<PublisherFailed>,
}

impl RunningPublisher {
    /// Opens a publisher, and returns once every replica of its cluster knows it, or after
    /// [`REGISTRATION_TIMEOUT`].
    pub async fn start(options: PublisherOptions) -> Result<RunningPublisher, OpenError> {
        RunningPublisher::start_with_guard(options, ()).await
    }

    async fn start_with_guard(
        options: PublisherOptions,
        guard: impl Send + 'static,
    ) -> Result<RunningPublisher, OpenError> {
        let replicas = options.cluster.as_ref().map_or(0, |cluster| cluster.replicas.len());
        let access = options.cluster.as_ref().map(|cluster| cluster.access.clone());
        let publisher = Publisher::open(options).await?;
        let registry = publisher.write_client().cloned();
        let mut running = RunningPublisher {
            address: publisher.local_address(),
            info: publisher.info().clone(),
            memory: publisher.memory_bounds().clone(),
            opened: publisher.opened().clone(),
            registration: Vec::new(),
            values: publisher.values(),
            health: publisher.health_handle(),
            access: access.unwrap_or_default(),
            serving: ServiceTask::spawn(|stop| async move {
                let _guard = guard;
                publisher.run(stop).await
            }),
        };
        // It already serves clients of the replicas that know it.
        if let Some(registry) = registry {
            let _ = timeout(REGISTRATION_TIMEOUT, registry.flushed(replicas)).await;
            running.registration = registry.status();
        }
        Ok(running)
    }

    /// The listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its id, name and addresses.
    pub fn info(&self) -> &PublisherInfo {
        &self.info
    }

    /// The result of its recovery from the data directory.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The memory bounds of its links.
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// The state of its registration at each replica when its start returned; empty without a
    /// resolver.
    pub fn registration(&self) -> &[PublicationStatus] {
        &self.registration
    }

    /// Reads its health while it runs, for a watchdog.
    pub fn health_handle(&self) -> HealthHandle {
        self.health.clone()
    }

    /// Publishes live values at this publisher.
    pub fn values(&self) -> Values {
        self.values.clone()
    }

    /// A producer that enqueues only at this publisher.
    #[cfg(feature = "producer")]
    pub fn producer(&self) -> Producer {
        let link = LinkOptions::default().or_access(&self.access);
        Producer::builder().link(link).to_publishers(vec![self.info.clone()])
    }

    /// Stops the publisher in order.
    pub async fn stop(self) -> Result<(), PublisherFailed> {
        self.serving.stop().await
    }
}

/// Resolves when the task has to stop, also when its owner is dropped.
type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that serves until it is stopped.
#[derive(Debug)]
struct ServiceTask<E> {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), E>>,
    /// Closed once the task has ended.
    ended: watch::Receiver<()>,
}

impl<E: Send + 'static> ServiceTask<E> {
    fn spawn<F>(serve: impl FnOnce(Stop) -> F) -> ServiceTask<E>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = watch::channel(());
        let serving = serve(Box::pin(async { drop(stopped.await) }));
        let task = tokio::spawn(async move {
            let _end = end;
            serving.await
        });
        ServiceTask { stop, task, ended }
    }

    async fn stop(self) -> Result<(), E> {
        drop(self.stop);
        outcome(self.task.await)
    }
}

async fn closed(mut channel: watch::Receiver<()>) {
    while channel.changed().await.is_ok() {}
}

/// The task's result. A panic is propagated to the caller; a task that the runtime has dropped
/// counts as success.
fn outcome<E>(joined: Result<Result<(), E>, JoinError>) -> Result<(), E> {
    match joined {
        Ok(ended) => ended,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(_) => Ok(()),
    }
}
