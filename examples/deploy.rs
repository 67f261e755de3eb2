//! A deploy without a lost job: the new version starts, then the old one drains. It takes no more
//! jobs, finishes those that run, and releases the rest to the new version: `cargo run --package
//! longshore-examples --example deploy`. In production `SIGTERM` starts the drain.

use std::time::Duration;

use longshore::State;
use longshore::embedded::System;
use longshore::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/thumbnails", max_attempts = 1)]
struct Thumbnail(u64);

async fn draw(_: Payload<Thumbnail>, _: State<&'static str>) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// Returns how many jobs each version completed, and how many failed.
pub(crate) async fn deploy() -> anyhow::Result<(u64, u64, u64)> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let version = |name| {
        // A handler that still runs after the grace is cancelled, and its job released.
        let worker = system.worker().state(name).handle(draw).grace(Duration::from_secs(60));
        (worker.shutdown_handle(), worker.stats(), tokio::spawn(worker.run()))
    };
    let (stop_old, old_stats, old) = version("1.0");
    for receipt in system.producer().enqueue_all((0..200).map(Thumbnail)).await {
        receipt.outcome?;
    }
    let (stop_new, new_stats, new) = version("1.1");
    while old_stats.now().completed == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop_old.drain();
    let old = old.await??;
    while old.completed + new_stats.now().completed < 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop_new.drain();
    let new = new.await??;
    system.stop().await?;
    Ok((old.completed, new.completed, old.failed + new.failed))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (old, new, failed) = deploy().await?;
    println!("{old} by the old version, {new} by the new one, {failed} failed");
    Ok(())
}
