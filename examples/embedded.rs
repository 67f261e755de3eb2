//! A whole system in one program: a resolver, a publisher with its journal in a temporary folder, a
//! producer and a worker. It ends once every job has completed.

use longshore::Path;
use longshore::embedded::System;
use longshore::prelude::*;

const JOBS: usize = 100;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{} completed", squares().await?);
    Ok(())
}

/// Squares the first hundred numbers; returns the number of completed jobs.
pub(crate) async fn squares() -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let system = System::start(folder.path()).await?;

    let worker = system.worker().durable_subscribe("/jobs/square");
    let (handle, stats) = (worker.shutdown_handle(), worker.stats());
    let working = tokio::spawn(worker.run(|job: Job<u64>, _: JobContext| async move {
        let square = job.payload.checked_mul(job.payload);
        square.map(longshore::Json).ok_or_else(|| JobFailure::bury("its square is too large"))
    }));

    let path = Path::new("/jobs/square")?;
    let jobs = (0..JOBS).map(|n| new_job(path.clone(), n.to_string()));
    for receipt in system.producer().enqueue_all(jobs).await {
        receipt.outcome?;
    }
    println!("{JOBS} jobs are on disk");
    while stats.now().completed < JOBS as u64 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    handle.drain();
    let completed = working.await??.completed;
    system.stop().await?;
    Ok(completed)
}
