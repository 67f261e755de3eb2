//! A worker of the demo: each job's payload is the path of a file, its result the file's SHA-256.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use longshore::{Job, JobContext, JobFailure, Worker, WorkerOptions};
use serde_json::json;

use super::digests::sha256_of;
use crate::arguments::DemoWorker;
use crate::commands::Context;
use crate::signals::{Stop, parent_gone};

pub(crate) async fn run(arguments: DemoWorker, mut context: Context) -> anyhow::Result<()> {
    let stop = Stop::listen()?;
    let options = WorkerOptions { name: arguments.name.clone(), ..WorkerOptions::default() };
    let asked = stop.asked();
    let subscription = Worker::connect_with(context.cluster(), options)
        .await?
        .durable_subscribe(&arguments.pattern)
        .concurrency(arguments.concurrency)
        .shutdown(async move {
            tokio::select! {
                () = asked => {}
                () = parent_gone() => {}
            }
        });
    context.output.json(&json!({ "ready": "worker", "name": arguments.name }))?;
    subscription.run_blocking(digest).await?;
    Ok(())
}

/// A file that cannot be read now cannot be read later: its job is buried with the reason.
fn digest(job: Job<Bytes>, _: JobContext) -> Result<String, JobFailure> {
    let file = Path::new(OsStr::from_bytes(&job.payload));
    sha256_of(file).map_err(|error| JobFailure::bury(error).kind("CannotRead"))
}
