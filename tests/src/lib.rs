//! A whole system in this process, for stories: a resolver, publishers, and what a user would hold.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path as FilePath;
use std::time::Duration;

use longshore::{
    Cluster, Producer, ProducerOptions, Publisher, PublisherInfo, PublisherOptions, Queues,
    QueuesOptions, ResolverServer, ResolverTiming, ServerOptions, Worker,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Waits and lifetimes cut to what a test can wait for; the formulas stay.
pub fn short_timing() -> ResolverTiming {
    ResolverTiming {
        writer_ttl: Duration::from_secs(4),
        retry_wait_min: Duration::from_millis(50),
        retry_wait_max: Duration::from_millis(300),
        ..ResolverTiming::default()
    }
}

/// A resolver of one replica.
pub struct Resolver {
    /// Where it listens.
    pub address: SocketAddr,
    running: Running,
}

/// A task that serves until it is told to stop.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        let _gone_already = self.stop.send(());
        let _ended = self.task.await;
    }
}

impl Resolver {
    /// A fresh one on a free port.
    pub async fn start() -> Resolver {
        Resolver::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), true).await
    }

    /// One at an address.
    pub async fn start_at(address: SocketAddr, fresh: bool) -> Resolver {
        let options = ServerOptions { fresh, timing: short_timing(), ..ServerOptions::default() };
        let server = ResolverServer::bind(address, options).await.expect("a free port");
        let address = server.local_address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            server.run(stopped).await.expect("its directory goes on");
        });
        Resolver { address, running: Running { stop, task } }
    }

    /// How clients find it.
    pub fn cluster(&self) -> Cluster {
        Cluster { timing: short_timing(), ..Cluster::new([self.address.to_string()]) }
    }

    /// Stops it; what it knew is gone.
    pub async fn stop(self) {
        self.running.stop().await;
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

/// A publisher that runs.
pub struct RunningPublisher {
    /// Where it listens.
    pub address: SocketAddr,
    info: PublisherInfo,
    running: Running,
}

impl RunningPublisher {
    /// One with its journal in `data`, a default for everything, and small segments.
    pub async fn start(data: &FilePath, cluster: Cluster) -> RunningPublisher {
        let mut options = PublisherOptions::new(data);
        options.cluster = Some(cluster);
        options.segment_bytes = 4 * 1024 * 1024;
        RunningPublisher::start_with(options).await
    }

    /// One with options of its own.
    pub async fn start_with(options: PublisherOptions) -> RunningPublisher {
        let publisher = Publisher::open(options).await.expect("a usable data directory");
        let (address, info) = (publisher.local_address(), publisher.info().clone());
        if let Some(registry) = publisher.write_client() {
            registry.flushed(1).await;
        }
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            publisher.run(stopped).await.expect("a journal that works");
        });
        RunningPublisher { address, info, running: Running { stop, task } }
    }

    /// A producer that hands its jobs to this one and no other.
    pub fn producer(&self) -> Producer {
        Producer::to_publishers(vec![self.info.clone()], ProducerOptions::default())
    }

    /// Stops it in order.
    pub async fn stop(self) {
        self.running.stop().await;
    }
}

/// Asks until the answer is yes; fails after 30 s, which no test should come near.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let started = tokio::time::Instant::now();
    while !ask().await {
        assert!(started.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
