//! Latency from a job's scheduled enqueue time to the start of its handler. The rate is fixed (open
//! loop): a job sent late is timed from its schedule, not from when it was sent.

use serde_json::{Value, json};

use super::head;
use super::system::MeasuredSystem;
use crate::arguments::BenchSystem;
use crate::commands::Context;

const CONCURRENCY: usize = 8;
const PREFETCH: usize = 1_024;

pub(crate) async fn measure(
    rate: u64,
    seconds: u64,
    size: u32,
    arguments: BenchSystem,
    context: &Context,
) -> anyhow::Result<Value> {
    let system = MeasuredSystem::start(arguments, context).await?;
    let jobs = (rate * seconds).to_string();
    let (rate_text, size, path) = (rate.to_string(), size.to_string(), system.path.to_string());
    let (concurrency, prefetch) = (CONCURRENCY.to_string(), PREFETCH.to_string());
    let mut worker = system
        .start_process(
            "the worker",
            &[
                "bench",
                "worker",
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
        .start_process(
            "the producer",
            &["bench", "producer", &path, "--jobs", &jobs, "--size", &size, "--rate", &rate_text],
        )
        .await?;
    producer.send_line("go").await?;
    producer.next().await?;
    let done = worker.next().await?;
    let durability = system.stats().await?.durability;
    producer.end().await?;
    worker.end().await?;
    let mut results = head("latency", &durability, system.sync_us);
    system.end().await?;
    results["offered_per_s"] = json!(rate);
    results["jobs"] = done["timed"].clone();
    for key in ["p50_us", "p99_us", "p999_us", "max_us"] {
        results[key] = done[key].clone();
    }
    Ok(results)
}
