//! A complete system in this process for tests: a resolver, publishers and clients.

pub mod graphs;
pub mod hostile;
pub mod kinds;

use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::time::Duration;

use longshore::embedded::{ANY_PORT, RunningPublisher, RunningReplica};
use longshore::{
    Cluster, Producer, PublisherOptions, Queues, ResolverTiming, ServerOptions, Worker,
};

/// Waits and lifetimes shortened for tests; the formulas are unchanged.
pub fn short_timing() -> ResolverTiming {
    ResolverTiming {
        writer_ttl: Duration::from_secs(4),
        retry_wait_min: Duration::from_millis(50),
        retry_wait_max: Duration::from_millis(300),
        ..ResolverTiming::default()
    }
}

/// A resolver with one replica, whose clients use short waits.
pub struct Resolver(RunningReplica);

impl Resolver {
    /// Starts a fresh resolver on a free port.
    pub async fn start() -> Resolver {
        Resolver::start_at(ANY_PORT, true).await
    }

    /// Starts a resolver at an address.
    pub async fn start_at(address: SocketAddr, fresh: bool) -> Resolver {
        let options = ServerOptions { fresh, timing: short_timing(), ..ServerOptions::default() };
        Resolver(RunningReplica::start(address, options).await.expect("a free port"))
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// The cluster for its clients.
    pub fn cluster(&self) -> Cluster {
        Cluster { timing: short_timing(), ..self.0.cluster() }
    }

    /// Stops it; its directory is lost.
    pub async fn stop(self) {
        self.0.stop().await.expect("the replica stops");
    }

    /// Connects a producer.
    pub fn producer(&self) -> Producer {
        Producer::connect(self.cluster())
    }

    /// Connects a client for queue operations.
    pub fn queues(&self) -> Queues {
        Queues::connect(self.cluster())
    }

    /// A worker.
    pub fn worker(&self) -> Worker {
        Worker::connect(self.cluster())
    }
}

/// Starts a publisher with its journal in `data`, a default for all paths, and small segments.
pub async fn start_publisher(data: &FilePath, cluster: Cluster) -> RunningPublisher {
    let mut options = PublisherOptions::new(data);
    options.cluster = Some(cluster);
    options.segment_bytes = 4 * 1024 * 1024;
    RunningPublisher::start(options).await.expect("a usable data directory")
}

/// Polls a condition until it is true; fails after 30 s, far more than any test needs.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let started = tokio::time::Instant::now();
    while !condition().await {
        assert!(started.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
