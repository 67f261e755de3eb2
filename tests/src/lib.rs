//! A whole system in this process, for scenarios: a resolver, publishers, and what a user would
//! hold.

use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::time::Duration;

use longshore::embedded::{ANY_PORT, RunningPublisher, RunningReplica};
use longshore::{
    Cluster, Producer, ProducerOptions, PublisherOptions, Queues, QueuesOptions, ResolverTiming,
    ServerOptions, Worker,
};

/// Waits and lifetimes cut to what a test can wait for; the formulas stay.
pub fn short_timing() -> ResolverTiming {
    ResolverTiming {
        writer_ttl: Duration::from_secs(4),
        retry_wait_min: Duration::from_millis(50),
        retry_wait_max: Duration::from_millis(300),
        ..ResolverTiming::default()
    }
}

/// A resolver of one replica, whose clients wait as briefly as a test can.
pub struct Resolver(RunningReplica);

impl Resolver {
    /// A fresh one on a free port.
    pub async fn start() -> Resolver {
        Resolver::start_at(ANY_PORT, true).await
    }

    /// One at an address.
    pub async fn start_at(address: SocketAddr, fresh: bool) -> Resolver {
        let options = ServerOptions { fresh, timing: short_timing(), ..ServerOptions::default() };
        Resolver(RunningReplica::start(address, options).await.expect("a free port"))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// How clients find it.
    pub fn cluster(&self) -> Cluster {
        Cluster { timing: short_timing(), ..self.0.cluster() }
    }

    /// Stops it; what it knew is gone.
    pub async fn stop(self) {
        self.0.stop().await.expect("its directory goes on");
    }

    /// A producer.
    pub fn producer(&self) -> Producer {
        Producer::connect(self.cluster(), ProducerOptions::default())
    }

    /// A look into queues.
    pub fn queues(&self) -> Queues {
        Queues::connect(self.cluster(), QueuesOptions::default())
    }

    /// A worker.
    pub async fn worker(&self) -> Worker {
        Worker::connect(self.cluster()).await.expect("a cluster with a replica")
    }
}

/// A publisher with its journal in `data`, a default for everything, and small segments.
pub async fn start_publisher(data: &FilePath, cluster: Cluster) -> RunningPublisher {
    let mut options = PublisherOptions::new(data);
    options.cluster = Some(cluster);
    options.segment_bytes = 4 * 1024 * 1024;
    RunningPublisher::start(options).await.expect("a usable data directory")
}

/// Asks until the answer is yes; fails after 30 s, which no test should come near.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let started = tokio::time::Instant::now();
    while !ask().await {
        assert!(started.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
