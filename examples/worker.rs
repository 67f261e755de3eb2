//! Runs the jobs of `producer` until Ctrl-C, then finishes the running jobs.

use longshore::prelude::*;

#[derive(serde::Deserialize)]
struct Welcome {
    to: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let report = Worker::connect("127.0.0.1")
        .await?
        .durable_subscribe("/jobs/mail/**")
        .concurrency(64)
        .shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .run(|job: Job<Welcome>, context: JobContext| async move {
            println!("attempt {}: a welcome to {}", context.attempt(), job.payload.to);
            Ok(())
        })
        .await?;
    println!("{} completed", report.completed);
    Ok(())
}
