//! A worker of the demo. A job's payload is a file's path, its result the file's SHA-256.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use longshore::{Job, JobContext, JobFailure, Worker};
use serde_json::json;

use super::digests::sha256_of;
use crate::arguments::DemoWorker;
use crate::commands::Context;
use crate::signals::{StopSignal, parent_exited};

pub(crate) async fn run(arguments: DemoWorker, mut context: Context) -> anyhow::Result<()> {
    let stop = StopSignal::listen()?;
    let stopped = stop.requested();
    let subscription = Worker::builder()
        .name(&arguments.name)
        .connect(context.cluster())
        .durable_subscribe(&arguments.pattern)
        .concurrency(arguments.concurrency)
        .shutdown(async move {
            tokio::select! {
                () = stopped => {}
                () = parent_exited() => {}
            }
        });
    context.output.json(&json!({ "ready": "worker", "name": arguments.name }))?;
    subscription.run_blocking(digest).await?;
    Ok(())
}

/// Buries the job of an unreadable file with the reason: a later attempt would fail too.
fn digest(job: Job<Bytes>, _: JobContext) -> Result<String, JobFailure> {
    let file = Path::new(OsStr::from_bytes(&job.payload));
    sha256_of(file).map_err(|error| JobFailure::bury(error).kind("CannotRead"))
}
