//! A whole system in one program: a resolver, a publisher with its journal in a temporary folder, a producer and a worker.
//! Ends by itself once every job has its result.

use std::net::{Ipv4Addr, SocketAddr};

use longshore::prelude::*;
use longshore::{BatchOptions, Publisher, PublisherOptions, ResolverServer, ServerOptions};

const JOBS: usize = 100;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{} completed", squares().await?);
    Ok(())
}

/// Squares the first hundred numbers; how many jobs were completed.
pub(crate) async fn squares() -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ServerOptions { fresh: true, ..ServerOptions::default() };
    let resolver = ResolverServer::bind(any_port, options).await?;
    let cluster = Cluster::new([resolver.local_address().to_string()]);
    tokio::spawn(resolver.run(std::future::pending()));

    let mut options = PublisherOptions::new(folder.path());
    options.cluster = Some(cluster.clone());
    let publisher = Publisher::open(options).await?;
    if let Some(registry) = publisher.write_client() {
        registry.flushed(1).await;
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(publisher.run(async { drop(stopped.await) }));

    let worker = Worker::connect(cluster.clone()).await?.durable_subscribe("/jobs/square");
    let (handle, stats) = (worker.handle(), worker.stats());
    let working = tokio::spawn(worker.run(|job: Job<u64>, _: JobContext| async move {
        let square = job.payload.checked_mul(job.payload);
        square.map(Json).ok_or_else(|| JobFailure::bury("its square is too large"))
    }));

    let producer = Producer::connect(cluster, ProducerOptions::default());
    let path = Path::new("/jobs/square")?;
    let jobs = (0..JOBS).map(|n| new_job(path.clone(), n.to_string())).collect();
    for receipt in producer.enqueue_all(jobs, BatchOptions::default()).await {
        receipt.outcome?;
    }
    println!("{JOBS} jobs are on disk");
    while stats.now().completed < JOBS as u64 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    handle.drain();
    let completed = working.await??.completed;
    drop(stop);
    serving.await??;
    Ok(completed)
}
