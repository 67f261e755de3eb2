//! The worker of a measurement: its handlers only read the clock.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use hdrhistogram::Histogram;
use longshore::{Job, JobContext, JobFailure, Worker};
use parking_lot::Mutex;
use serde_json::json;

use super::monotonic_ns;
use super::producer::WARM_UP_JOBS;
use crate::arguments::BenchWorker;
use crate::commands::Context;
use crate::signals::parent_exited;

/// The polling interval, which is also the resolution of the end time.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The longest wait for a publisher at the start.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn run(arguments: BenchWorker, mut context: Context) -> anyhow::Result<()> {
    let latencies = Arc::new(Mutex::new(Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3)?));
    let subscription = Worker::connect(context.cluster())
        .durable_subscribe(&arguments.path)
        .concurrency(arguments.concurrency)
        .prefetch(arguments.prefetch);
    let stats = subscription.stats();
    let handle = subscription.shutdown_handle();
    let running = if arguments.timed {
        let latencies = latencies.clone();
        tokio::spawn(subscription.run(move |job: Job<Bytes>, _: JobContext| {
            let late = sent_at(&job.payload).map(|at| monotonic_ns().saturating_sub(at).max(1));
            // Latencies above ten minutes count as ten minutes.
            late.into_iter().for_each(|late| latencies.lock().saturating_record(late));
            async { Ok::<_, JobFailure>(()) }
        }))
    } else {
        let nothing = |_: Job<Bytes>, _: JobContext| async { Ok::<_, JobFailure>(()) };
        tokio::spawn(subscription.run(nothing))
    };

    tokio::time::timeout(SUBSCRIBE_TIMEOUT, stats.ready())
        .await
        .context("no publisher was reached")?;
    context.output.json(&json!({ "ready": "worker" }))?;
    let parent_exit = parent_exited();
    tokio::pin!(parent_exit);
    let done = async {
        while stats.now().completed < arguments.jobs + WARM_UP_JOBS {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        () = done => {}
        () = &mut parent_exit => return Ok(()),
    }
    let ended = monotonic_ns();
    let us = |ns: u64| ns as f64 / 1_000.0;
    let histogram = latencies.lock().clone();
    context.output.json(&json!({
        "timed": histogram.len(), "ended_ns": ended,
        "p50_us": us(histogram.value_at_quantile(0.5)),
        "p99_us": us(histogram.value_at_quantile(0.99)),
        "p999_us": us(histogram.value_at_quantile(0.999)),
        "max_us": us(histogram.max()),
    }))?;
    parent_exit.await;
    handle.drain();
    running.await??;
    Ok(())
}

fn sent_at(payload: &Bytes) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
