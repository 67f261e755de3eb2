//! A media pipeline: a movie is probed, its parts are encoded, two at a time whatever the number of
//! workers, and joined. Each step has the outputs of those before it.

use std::time::Duration;

use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{JobLimit, LimitScope};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/media/probe", output = u64)]
struct Probe(String);

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/media/encode", output = String, max_attempts = 5, timeout = "10m")]
struct Encode(u64);

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/media/join", output = String)]
struct Join;

impl After<Probe> for Encode {}
impl After<Encode> for Join {}

async fn probe(Payload(Probe(movie)): Payload<Probe>) -> anyhow::Result<u64> {
    Ok(movie.len() as u64)
}

async fn encode(Payload(part): Payload<Encode>, probe: Parents<Probe>) -> anyhow::Result<String> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(format!("{} of {} minutes", part.0, probe.output().await?))
}

async fn join(_: Payload<Join>, parts: Parents<Encode>) -> anyhow::Result<String> {
    Ok(parts.outputs().await?.join(", "))
}

/// Returns the joined parts.
pub(crate) async fn run() -> anyhow::Result<String> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let limit = JobLimit {
        name: "encoders".to_owned(),
        pattern: "/media/encode".parse()?,
        scope: LimitScope::Queue,
        concurrency: Some(2),
        rate: None,
    };
    system.queues().set_limit(limit).await?;
    let worker = system.worker().handle(probe).handle(encode).handle(join);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());

    let flow = Workflow::new("/media/movies".parse()?, "a movie");
    let probed = flow.step(Probe("ninety minutes".to_owned()));
    let joined = probed.fan_out(1..=6, Encode).join(Join);
    let (producer, movie) = (system.producer(), joined.id());
    flow.enqueue(&producer).await?;
    let movie = producer.result::<Join>(movie, Duration::from_secs(30)).await?;

    stop.drain();
    working.await??;
    system.stop().await?;
    Ok(movie)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{}", run().await?);
    Ok(())
}
