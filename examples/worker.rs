//! Runs the jobs of `producer` until Ctrl-C, then finishes the running jobs.

use longshore::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/mail/welcome")]
struct Welcome {
    to: String,
}

async fn welcome(Payload(mail): Payload<Welcome>, job: JobContext) -> anyhow::Result<()> {
    println!("attempt {}: a welcome to {}", job.attempt(), mail.to);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let worker = Worker::connect("127.0.0.1").handle(welcome).concurrency(64);
    let report = worker.shutdown(async { drop(tokio::signal::ctrl_c().await) }).run().await?;
    println!("{} completed", report.completed);
    Ok(())
}
