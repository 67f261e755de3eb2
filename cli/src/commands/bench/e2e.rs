//! Jobs per second, end to end: enqueue, commit, delivery, run, settle, and the settle's
//! acknowledgement.

use anyhow::{Context as _, ensure};
use longshore::{Glob, JobLimit, LimitScope};
use serde_json::{Value, json};

use super::system::MeasuredSystem;
use super::{head, rounded};
use crate::arguments::{BenchKeys, BenchSystem};
use crate::commands::Context;
use crate::output::grouped;

/// Concurrent handlers. They do nothing, so a few keep the link busy.
const CONCURRENCY: usize = 8;
/// Large enough to keep the handlers busy during a round trip and an fdatasync.
const PREFETCH: usize = 16 * 1024;
/// The limit of each limit key.
const RUNNING_PER_LIMIT_KEY: u32 = 10;

pub(crate) async fn measure(
    jobs: u64,
    size: u32,
    keys: BenchKeys,
    arguments: BenchSystem,
    context: &Context,
) -> anyhow::Result<Value> {
    let system = MeasuredSystem::start(arguments, context).await?;
    let before = system.stats().await?;
    let path = system.path.to_string();
    let (jobs_text, size_text) = (jobs.to_string(), size.to_string());
    // Jobs with order keys, or to which a limit applies, are not prefetched: as many handlers hold
    // them.
    let (concurrency, prefetch) = match keys.order_keys + keys.limit_keys {
        0 => (CONCURRENCY, PREFETCH),
        _ => (CONCURRENCY + PREFETCH, 0),
    };
    let limit = JobLimit {
        name: format!("bench {path}"),
        pattern: Glob::new(&path)?,
        scope: LimitScope::Key,
        concurrency: Some(RUNNING_PER_LIMIT_KEY),
        rate: None,
    };
    if keys.limit_keys > 0 {
        let set = system.queues().set_limit(limit.clone()).await?;
        ensure!(set.is_whole(), "a publisher did not set the limit of the measured queue");
    }
    let (concurrency, prefetch) = (concurrency.to_string(), prefetch.to_string());
    let mut worker = system
        .start_process(
            "the worker",
            &[
                "bench",
                "worker",
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
        .start_process(
            "the producer",
            &[
                "bench",
                "producer",
                &path,
                "--jobs",
                &jobs_text,
                "--size",
                &size_text,
                "--order-keys",
                &keys.order_keys.to_string(),
                "--limit-keys",
                &keys.limit_keys.to_string(),
                "--fair-keys",
                &keys.fair_keys.to_string(),
            ],
        )
        .await?;
    producer.send_line("go").await?;
    let enqueued = producer.next().await?;
    report(
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
    report(context, &format!("drained {drain_s:.2} s later"));

    let after = system.stats().await?;
    producer.end().await?;
    worker.end().await?;
    if keys.limit_keys > 0 {
        system.queues().remove_limit(&limit.name).await?;
    }
    let mut results = head("e2e", &after.durability, system.sync_us);
    system.end().await?;
    let payload = after.payload_bytes.saturating_sub(before.payload_bytes);
    let written = after.written_bytes.saturating_sub(before.written_bytes);
    let ratio = if payload == 0 { 0.0 } else { written as f64 / payload as f64 };
    results["jobs"] = json!(jobs);
    results["size"] = json!(size);
    results["jobs_per_s"] = json!((jobs as f64 / total_s).round());
    results["bytes_written_per_payload_byte"] = json!(rounded(ratio));
    results["enqueue_s"] = json!(rounded(enqueue_s));
    results["drain_s"] = json!(rounded(drain_s));
    Ok(results)
}

fn report(context: &Context, text: &str) {
    if !context.output.is_json() {
        eprintln!("{text}");
    }
}

/// Seconds from a time in one report to the end in another; 0 if the end came first.
fn seconds(from: &Value, key: &str, to: &Value) -> anyhow::Result<f64> {
    let from = from[key].as_u64().with_context(|| format!("a report without {key}"))?;
    let to = to["ended_ns"].as_u64().context("a report without ended_ns")?;
    Ok(to.saturating_sub(from) as f64 / 1e9)
}
