//! A whole system in your program: resolver replicas and a publisher, as tasks of its runtime. For
//! a program that is complete by itself, for demonstrations and tests; [`testing`](crate::testing)
//! adds a clock that a test moves.
//!
//! ```
//! use longshore::embedded::System;
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

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;

use crate::{
    Cluster, DirectoryStopped, MemoryBounds, OpenError, Opened, Publisher, PublisherFailed,
    PublisherInfo, PublisherOptions, ReplicaStartError, ResolverServer, ResolverTiming,
    ServerOptions, StandingHandle, values::Values,
};
#[cfg(feature = "producer")]
use crate::{Producer, ProducerOptions, Queues, QueuesOptions};
#[cfg(feature = "worker")]
use crate::{Worker, WorkerOptions};

/// How long a start waits until every replica knows the publisher, which keeps trying by itself.
pub const REGISTERED_WITHIN: Duration = Duration::from_secs(5);
/// Any free port of the loopback address.
pub const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What a [`System`] is made of.
#[derive(Debug)]
pub struct SystemOptions {
    /// Each replica of the resolver: where it listens, and its options. One on any free port by
    /// default, without the minute in which a new replica waits for publishers that it does not
    /// know.
    pub replicas: Vec<(SocketAddr, ServerOptions)>,
    /// Timeouts of the clients of these replicas.
    pub timing: ResolverTiming,
    /// The publisher; its cluster is the system's.
    pub publisher: PublisherOptions,
}

impl SystemOptions {
    /// One replica and a publisher of every path, with its journal in this directory.
    pub fn new(data: impl Into<PathBuf>) -> SystemOptions {
        SystemOptions {
            replicas: vec![(ANY_PORT, ServerOptions { fresh: true, ..ServerOptions::default() })],
            timing: ResolverTiming::default(),
            publisher: PublisherOptions::new(data),
        }
    }
}

/// Resolver replicas and a publisher that run. Dropped, they stop by themselves, in order and
/// without being waited for. Needs a tokio runtime with its time and io drivers.
#[derive(Debug)]
pub struct System {
    cluster: Cluster,
    publisher: RunningPublisher,
    replicas: Vec<RunningReplica>,
}

/// Why a system did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A replica of the resolver did not start.
    #[error("cannot start replica {nth} of the resolver")]
    Replica {
        /// Which of the options, from 1.
        nth: usize,
        /// Why.
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

/// Why a system stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum SystemFailed {
    /// A replica of the resolver failed.
    #[error("a replica of the resolver stopped")]
    Replica(#[from] DirectoryStopped),
    /// The publisher failed. Everything that it had acknowledged is in its journal.
    #[error(transparent)]
    Publisher(#[from] PublisherFailed),
}

impl System {
    /// Starts one replica and a publisher of every path, with its journal in this directory.
    pub async fn start(data: impl Into<PathBuf>) -> Result<System, StartError> {
        System::start_with(SystemOptions::new(data)).await
    }

    /// Starts a system, and returns once every replica knows the publisher, or after
    /// [`REGISTERED_WITHIN`]. Dropping the future stops what it has started.
    pub async fn start_with(options: SystemOptions) -> Result<System, StartError> {
        System::start_beside(options, ()).await
    }

    /// The same; `beside` is dropped once the publisher has ended, however that was.
    pub(crate) async fn start_beside(
        options: SystemOptions,
        beside: impl Send + 'static,
    ) -> Result<System, StartError> {
        let SystemOptions { replicas: wanted, timing, mut publisher } = options;
        if wanted.is_empty() {
            return Err(StartError::NoReplica);
        }
        let mut replicas = Vec::with_capacity(wanted.len());
        for (nth, (address, options)) in (1..).zip(wanted) {
            let replica = RunningReplica::start(address, options).await;
            replicas.push(replica.map_err(|error| StartError::Replica { nth, error })?);
        }
        let mut cluster = Cluster::new(replicas.iter().map(|replica| replica.address.to_string()));
        cluster.timing = timing;
        publisher.cluster = Some(cluster.clone());
        let publisher = RunningPublisher::start_beside(publisher, beside).await?;
        Ok(System { cluster, publisher, replicas })
    }

    /// The resolver, for clients.
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

    /// A producer with links of its own.
    #[cfg(feature = "producer")]
    pub fn producer(&self) -> Producer {
        Producer::connect(self.cluster(), ProducerOptions::default())
    }

    /// A client that reads queues and acts on them.
    #[cfg(feature = "producer")]
    pub fn queues(&self) -> Queues {
        Queues::connect(self.cluster(), QueuesOptions::default())
    }

    /// A worker.
    #[cfg(feature = "worker")]
    pub fn worker(&self) -> Worker {
        Worker::new(self.cluster(), WorkerOptions::default())
            .expect("the default options, and a cluster with a replica")
    }

    /// Waits until a part has ended by itself: [`System::stop`] returns why. Cancel safe.
    pub async fn ended(&self) {
        let replicas = self.replicas.iter().map(|replica| &replica.serving.ended);
        let parts = replicas.chain([&self.publisher.serving.ended]);
        let mut ends: Vec<_> = parts.map(|part| Box::pin(closed(part.clone()))).collect();
        poll_fn(|context| {
            let mut ends = ends.iter_mut().map(|end| end.as_mut().poll(context));
            if ends.any(|end| end.is_ready()) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Stops the publisher, then the replicas: it withdraws its paths on its way out. Their first
    /// failure, if any failed. Dropping the future stops them without waiting.
    pub async fn stop(self) -> Result<(), SystemFailed> {
        let mut ended = self.publisher.stop().await.map_err(SystemFailed::from);
        for replica in self.replicas {
            let replica = replica.stop().await;
            ended = ended.and(replica.map_err(SystemFailed::from));
        }
        ended
    }
}

/// A resolver replica that serves in a task of its own. Dropped, it stops by itself.
#[derive(Debug)]
pub struct RunningReplica {
    address: SocketAddr,
    memory: MemoryBounds,
    standing: StandingHandle,
    serving: Serving<DirectoryStopped>,
}

impl RunningReplica {
    /// Starts one on any free port of the loopback address.
    pub async fn local() -> Result<RunningReplica, ReplicaStartError> {
        let options = ServerOptions { fresh: true, ..ServerOptions::default() };
        RunningReplica::start(ANY_PORT, options).await
    }

    /// Starts one that listens at this address.
    pub async fn start(
        address: SocketAddr,
        options: ServerOptions,
    ) -> Result<RunningReplica, ReplicaStartError> {
        let server = ResolverServer::bind(address, options).await?;
        Ok(RunningReplica {
            address: server.local_address(),
            memory: server.memory_bounds().clone(),
            standing: server.standing(),
            serving: Serving::spawn(|stop| server.run(stop)),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A resolver of this one replica, for clients.
    pub fn cluster(&self) -> Cluster {
        Cluster::new([self.address.to_string()])
    }

    /// The most memory that its links can take.
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// Its own state, for its metrics.
    pub fn standing(&self) -> StandingHandle {
        self.standing.clone()
    }

    /// Stops it.
    pub async fn stop(self) -> Result<(), DirectoryStopped> {
        self.serving.stop().await
    }
}

/// A publisher that serves in a task of its own. Dropped, it stops by itself, in order.
#[derive(Debug)]
pub struct RunningPublisher {
    address: SocketAddr,
    info: PublisherInfo,
    memory: MemoryBounds,
    opened: Opened,
    values: Values,
    serving: Serving<PublisherFailed>,
}

impl RunningPublisher {
    /// Opens one, and returns once every replica of its cluster knows it, or after
    /// [`REGISTERED_WITHIN`].
    pub async fn start(options: PublisherOptions) -> Result<RunningPublisher, OpenError> {
        RunningPublisher::start_beside(options, ()).await
    }

    async fn start_beside(
        options: PublisherOptions,
        beside: impl Send + 'static,
    ) -> Result<RunningPublisher, OpenError> {
        let replicas = options.cluster.as_ref().map_or(0, |cluster| cluster.replicas.len());
        let publisher = Publisher::open(options).await?;
        let registry = publisher.write_client().cloned();
        let running = RunningPublisher {
            address: publisher.local_address(),
            info: publisher.info().clone(),
            memory: publisher.memory_bounds().clone(),
            opened: publisher.opened().clone(),
            values: publisher.values(),
            serving: Serving::spawn(|stop| async move {
                let _beside = beside;
                publisher.run(stop).await
            }),
        };
        // It serves meanwhile: those replicas that know it already send clients.
        if let Some(registry) = registry {
            let _ = timeout(REGISTERED_WITHIN, registry.flushed(replicas)).await;
        }
        Ok(running)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its id, name and addresses.
    pub fn info(&self) -> &PublisherInfo {
        &self.info
    }

    /// What its start found in the data directory.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The most memory that its links can take.
    pub fn memory_bounds(&self) -> &MemoryBounds {
        &self.memory
    }

    /// Publishes live values beside its queues.
    pub fn values(&self) -> Values {
        self.values.clone()
    }

    /// A producer that enqueues here and nowhere else.
    #[cfg(feature = "producer")]
    pub fn producer(&self) -> Producer {
        Producer::to_publishers(vec![self.info.clone()], ProducerOptions::default())
    }

    /// Stops it in order.
    pub async fn stop(self) -> Result<(), PublisherFailed> {
        self.serving.stop().await
    }
}

/// Completes when a task is to stop: also once what it belongs to is dropped.
type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that serves until it is stopped.
#[derive(Debug)]
struct Serving<E> {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), E>>,
    /// Closed once the task has ended.
    ended: watch::Receiver<()>,
}

impl<E: Send + 'static> Serving<E> {
    fn spawn<F>(serve: impl FnOnce(Stop) -> F) -> Serving<E>
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
        Serving { stop, task, ended }
    }

    async fn stop(self) -> Result<(), E> {
        drop(self.stop);
        outcome(self.task.await)
    }
}

async fn closed(mut channel: watch::Receiver<()>) {
    while channel.changed().await.is_ok() {}
}

/// What the task returned. A panic goes on in whoever waits; a task that the runtime has dropped
/// has nothing to report.
fn outcome<E>(joined: Result<Result<(), E>, JoinError>) -> Result<(), E> {
    match joined {
        Ok(ended) => ended,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(_) => Ok(()),
    }
}
