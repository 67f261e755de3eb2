//! A long job with a progress bar. Its first attempt fails halfway; the second resumes from the
//! last checkpoint: `cargo run --package longshore-examples --example progress`.

use std::time::Duration;

use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{Receipt, ResultError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/imports", backoff = "fixed:100ms", output = u32, keep_result)]
struct Import {
    rows: u32,
}

async fn import(Payload(job): Payload<Import>, context: JobContext) -> anyhow::Result<u32> {
    let done = context.checkpoints().await?;
    let first: u32 = done.last().map_or(Ok(0), |last| serde_json::from_slice(&last.bytes))?;
    for row in first..job.rows {
        if context.attempt() == 1 && row == job.rows / 2 {
            anyhow::bail!("the connection broke");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        context.progress((100 * (row + 1) / job.rows) as u8, format!("row {row}"));
        if (row + 1) % 5 == 0 {
            context.checkpoint((row + 1).to_string()).await?;
        }
    }
    Ok(job.rows - first)
}

/// Draws the bar until the job has ended.
async fn draw(queues: Queues, receipt: Receipt) -> anyhow::Result<()> {
    loop {
        if let Some(progress) = queues.job(&receipt).await?.job.progress {
            let bar = "#".repeat(progress.percent.into());
            eprint!("\r{bar:100} {}", progress.message);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns how many rows the second attempt imported.
pub(crate) async fn rows(rows: u32) -> anyhow::Result<u32> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let worker = system.worker().handle(import);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());

    let producer = system.producer();
    let receipt = producer.enqueue(Import { rows }).await?;
    let result: Result<u32, ResultError> = tokio::select! {
        result = producer.result::<Import>(&receipt, Duration::from_secs(60)) => result,
        Err(error) = draw(system.queues(), receipt) => return Err(error),
    };
    stop.drain();
    working.await??;
    system.stop().await?;
    Ok(result?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("\n{} rows by the second attempt", rows(40).await?);
    Ok(())
}
