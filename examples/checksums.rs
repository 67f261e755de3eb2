//! SHA-256 of every file below a folder, one job per file: `cargo run --release --package
//! longshore-examples --example checksums FOLDER`. Prints the format of `sha256sum`. Jobs of
//! unreadable files become dead letters and are listed at the end. The whole system runs in this
//! program.

use std::io::Read;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::JobEnd;
use longshore::Path;
use longshore::embedded::System;
use longshore::prelude::*;
use sha2::{Digest, Sha256};

/// Hashes one file. It blocks its thread, so it needs `run_blocking`.
fn hash(job: Job<PathBuf>, context: JobContext) -> Result<String, JobFailure> {
    // A retry would not find a missing file either.
    let mut file = std::fs::File::open(&job.payload).map_err(JobFailure::bury)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            n => hash.update(&chunk[..n]),
        }
        if context.is_cancelled() {
            return Err(JobFailure::Release);
        }
    }
}

/// All files below a folder, sorted. Symbolic links are not followed.
fn files_below(folder: &FilePath) -> std::io::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Hashes the files; returns each one's digest or error.
pub(crate) async fn checksums(files: &[PathBuf]) -> anyhow::Result<Vec<Result<String, String>>> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;

    let worker = system.worker().durable_subscribe("/checksums");
    let handle = worker.shutdown_handle();
    let working = tokio::spawn(worker.run_blocking(hash));

    let producer = system.producer();
    let path = Path::new("/checksums")?;
    let mut jobs = Vec::with_capacity(files.len());
    for file in files {
        let mut job = new_job(path.clone(), serde_json::to_vec(file)?);
        job.options.keep_result = true;
        jobs.push(job);
    }
    let mut digests = Vec::with_capacity(files.len());
    for receipt in producer.enqueue_all(jobs).await {
        digests.push(match producer.wait(&receipt.outcome?, Duration::from_secs(600)).await? {
            JobEnd::Completed { result: Some(digest) } => {
                Ok(String::from_utf8_lossy(&digest).into_owned())
            }
            JobEnd::Dead { error: Some(error), .. } => Err(error.message),
            end => Err(format!("{end:?}")),
        });
    }
    handle.drain();
    working.await??;
    system.stop().await?;
    Ok(digests)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    let files = files_below(FilePath::new(&folder))?;
    let digests = checksums(&files).await?;
    for (file, digest) in files.iter().zip(&digests) {
        match digest {
            Ok(digest) => println!("{digest}  {}", file.display()),
            Err(why) => eprintln!("{}: {why}", file.display()),
        }
    }
    Ok(())
}
