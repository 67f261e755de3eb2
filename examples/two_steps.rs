//! A job that runs if and only if an order was written: prepared, then confirmed. Its first attempt
//! fails halfway; the second resumes from the last checkpoint. The producer waits for the result.
//! The whole system runs in this program, which ends by itself.

use std::time::Duration;

use longshore::Path;
use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{Backoff, JobEnd, Json};

/// Sends the rows of an order one by one, with a checkpoint after each.
async fn send(job: Job<Vec<String>>, context: JobContext) -> Result<Json<usize>, JobFailure> {
    let sent: usize = match context.checkpoints().await?.last() {
        Some(checkpoint) => serde_json::from_slice(&checkpoint.bytes)?,
        None => 0,
    };
    let rows = &job.payload;
    for (row, what) in rows.iter().enumerate().skip(sent) {
        if context.attempt() == 1 && row == 2 {
            return Err(JobFailure::retry("the line went dead"));
        }
        println!("attempt {} sends {what}", context.attempt());
        context.checkpoint(serde_json::to_vec(&(row + 1))?).await?;
        context.progress((100 * (row + 1) / rows.len()) as u8, what);
    }
    Ok(Json(rows.len()))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{} rows sent", order().await?);
    Ok(())
}

/// Writes an order and sends it; returns the job's result.
pub(crate) async fn order() -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let system = System::start(folder.path()).await?;
    let worker = system.worker().durable_subscribe("/orders/send");
    let handle = worker.shutdown_handle();
    let working = tokio::spawn(worker.run(send));

    let producer = system.producer();
    let rows = ["a kettle", "two cups", "a spoon", "some tea"];
    let mut job = new_job(Path::new("/orders/send")?, serde_json::to_vec(&rows)?);
    job.options.keep_result = true;
    job.options.backoff = Some(Backoff::Fixed(100));
    let receipt = producer.prepare(job).await?;

    // With a database, store the receipt in the transaction that writes the order, and delete it
    // once the job is confirmed.
    let order = folder.path().join("order");
    std::fs::write(&order, format!("{rows:?}\nto be confirmed: {receipt}\n"))?;
    producer.confirm(&receipt).await?;

    let sent = match producer.wait(&receipt, Duration::from_secs(30)).await? {
        JobEnd::Completed { result: Some(result) } => String::from_utf8_lossy(&result).into_owned(),
        end => anyhow::bail!("it ended otherwise: {end:?}"),
    };
    handle.drain();
    working.await??;
    system.stop().await?;
    Ok(sent)
}
