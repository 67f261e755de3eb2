//! SHA-256 of files, one job for each, enqueued in bulk: `cargo run --release --package
//! longshore-examples --example checksums FILE…`. Prints the format of `sha256sum`. A blocking
//! handler runs in a thread of its own. The whole system runs in this program.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{JobEnd, ResultError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/checksums", output = String, keep_result)]
struct Checksum(PathBuf);

fn hash(Payload(Checksum(path)): Payload<Checksum>) -> Result<String, JobFailure> {
    // A retry would not find a missing file either.
    let mut file = std::fs::File::open(&path).map_err(JobFailure::bury)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            n => hash.update(&chunk[..n]),
        }
    }
}

/// Hashes the files; returns each one's digest or error.
pub(crate) async fn checksums(files: &[PathBuf]) -> anyhow::Result<Vec<Result<String, String>>> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let worker = system.worker().handle_blocking(hash);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());

    let producer = system.producer();
    let mut digests = Vec::with_capacity(files.len());
    for enqueued in producer.enqueue_all(files.iter().cloned().map(Checksum)).await {
        let job = enqueued.outcome?;
        digests.push(match producer.result::<Checksum>(&job, Duration::from_secs(600)).await {
            Err(ResultError::Ended { end: JobEnd::Dead { error: Some(error), .. }, .. }) => {
                Err(error.message)
            }
            digest => Ok(digest?),
        });
    }
    stop.drain();
    working.await??;
    system.stop().await?;
    Ok(digests)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    for (file, digest) in files.iter().zip(checksums(&files).await?) {
        match digest {
            Ok(digest) => println!("{digest}  {}", file.display()),
            Err(why) => eprintln!("{}: {why}", file.display()),
        }
    }
    Ok(())
}
