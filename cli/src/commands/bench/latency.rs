//! From the moment a job should be enqueued to the start of its handler. The rate waits for
//! nothing: a job that goes out late is counted from when it should have gone out.

use serde_json::{Value, json};

use super::head;
use super::system::System;
use crate::arguments::BenchSystem;
use crate::commands::Context;

const CONCURRENCY: usize = 8;
const PREFETCH: usize = 1_024;

pub(crate) async fn measure(
    rate: u64,
    seconds: u64,
    size: u32,
    given: BenchSystem,
    context: &Context,
) -> anyhow::Result<Value> {
    let system = System::start(given, context).await?;
    let jobs = (rate * seconds).to_string();
    let (rate_text, size, path) = (rate.to_string(), size.to_string(), system.path.to_string());
    let (concurrency, prefetch) = (CONCURRENCY.to_string(), PREFETCH.to_string());
    let mut worker = system
        .part(
            "the worker",
            &[
                "bench-worker",
                &path,
                "--jobs",
                &jobs,
                "--concurrency",
                &concurrency,
                "--prefetch",
                &prefetch,
                "--timed",
            ],
        )
        .await?;
    let mut producer = system
        .part(
            "the producer",
            &["bench-producer", &path, "--jobs", &jobs, "--size", &size, "--rate", &rate_text],
        )
        .await?;
    producer.tell("go").await?;
    producer.next().await?;
    let done = worker.next().await?;
    let durability = system.figures().await?.durability;
    producer.end().await?;
    worker.end().await?;
    let mut figures = head("latency", &durability, system.sync_us);
    system.end().await?;
    figures["offered_per_s"] = json!(rate);
    figures["jobs"] = done["jobs"].clone();
    for key in ["p50_us", "p99_us", "p999_us", "max_us"] {
        figures[key] = done[key].clone();
    }
    Ok(figures)
}
