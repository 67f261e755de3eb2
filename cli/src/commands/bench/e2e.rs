//! Jobs per second, end to end: enqueued, made durable, delivered, run, settled, and the settles
//! answered.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::system::System;
use super::{head, rounded};
use crate::arguments::BenchSystem;
use crate::commands::Context;
use crate::output::grouped;

/// Handlers at a time: they do nothing, so a few are enough to keep the link busy.
const CONCURRENCY: usize = 8;
/// Jobs held beside them: what a round trip and an fdatasync take is bridged by what is here
/// already.
const PREFETCH: usize = 16 * 1024;

pub(crate) async fn measure(
    jobs: u64,
    size: u32,
    given: BenchSystem,
    context: &Context,
) -> anyhow::Result<Value> {
    let system = System::start(given, context).await?;
    let before = system.figures().await?;
    let path = system.path.to_string();
    let (jobs_text, size_text) = (jobs.to_string(), size.to_string());
    let (concurrency, prefetch) = (CONCURRENCY.to_string(), PREFETCH.to_string());
    let mut worker = system
        .part(
            "the worker",
            &[
                "bench-worker",
                &path,
                "--jobs",
                &jobs_text,
                "--concurrency",
                &concurrency,
                "--prefetch",
                &prefetch,
            ],
        )
        .await?;
    let mut producer = system
        .part(
            "the producer",
            &["bench-producer", &path, "--jobs", &jobs_text, "--size", &size_text],
        )
        .await?;
    producer.tell("go").await?;
    let enqueued = producer.next().await?;
    say(
        context,
        &format!(
            "{} jobs enqueued in {:.2} s",
            grouped(jobs),
            seconds(&enqueued, "began_ns", &enqueued)?
        ),
    );
    let done = worker.next().await?;
    let enqueue_s = seconds(&enqueued, "began_ns", &enqueued)?;
    let drain_s = seconds(&enqueued, "ended_ns", &done)?;
    let total_s = seconds(&enqueued, "began_ns", &done)?;
    say(context, &format!("drained {drain_s:.2} s later"));

    let after = system.figures().await?;
    producer.end().await?;
    worker.end().await?;
    let mut figures = head("e2e", &after.durability, system.sync_us);
    system.end().await?;
    let payload = after.payload_bytes.saturating_sub(before.payload_bytes);
    let written = after.written_bytes.saturating_sub(before.written_bytes);
    let ratio = if payload == 0 { 0.0 } else { written as f64 / payload as f64 };
    figures["jobs"] = json!(jobs);
    figures["size"] = json!(size);
    figures["jobs_per_s"] = json!((jobs as f64 / total_s).round());
    figures["bytes_written_per_payload_byte"] = json!(rounded(ratio));
    figures["enqueue_s"] = json!(rounded(enqueue_s));
    figures["drain_s"] = json!(rounded(drain_s));
    Ok(figures)
}

fn say(context: &Context, text: &str) {
    if !context.output.is_json() {
        eprintln!("{text}");
    }
}

/// From a moment in one report to the end in another; 0 when that came first.
fn seconds(from: &Value, key: &str, to: &Value) -> anyhow::Result<f64> {
    let from = from[key].as_u64().with_context(|| format!("a report without {key}"))?;
    let to = to["ended_ns"].as_u64().context("a report without ended_ns")?;
    Ok(to.saturating_sub(from) as f64 / 1e9)
}
