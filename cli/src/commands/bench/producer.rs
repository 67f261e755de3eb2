//! The producer of a measurement: at full speed, or at a fixed rate.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use longshore::{EnqueueError, NewJob, Path, Producer, Receipt, new_id, new_job};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::monotonic_ns;
use crate::arguments::{BenchKeys, BenchProducer};
use crate::commands::Context;

/// A sleep ends late by about this much, so the thread spins for the rest of the time.
const SPIN_NS: u64 = 100_000;

/// Jobs of the producer before the measurement, which the worker completes too.
pub(super) const WARM_UP_JOBS: u64 = 1;

/// Scheduled jobs that may wait for the runtime.
const SCHEDULED_MAX: usize = 65_536;
/// Unacknowledged jobs beyond which a rate cannot be measured.
pub(super) const IN_FLIGHT_MAX: usize = 100_000;

pub(crate) async fn run(arguments: BenchProducer, mut context: Context) -> anyhow::Result<()> {
    let producer = Producer::connect(context.cluster());
    warm_up(&producer, &arguments.path).await?;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    context.output.json(&json!({ "ready": "producer" }))?;
    next_command(&mut input).await?;

    let began = monotonic_ns();
    match arguments.rate {
        None => flood(&producer, &arguments).await?,
        Some(rate) => steady(&producer, &arguments, rate).await?,
    }
    let ended = monotonic_ns();
    context
        .output
        .json(&json!({ "jobs": arguments.jobs, "began_ns": began, "ended_ns": ended }))?;
    // Keep the links open until the whole measurement has ended.
    let _ = next_command(&mut input).await;
    Ok(())
}

/// Enqueues a job: the first one resolves the path, opens the links and creates the queue, which
/// takes longer than any later job. Its empty payload has no send time, so it is not timed.
async fn warm_up(producer: &Producer, path: &Path) -> anyhow::Result<()> {
    for _ in 0..WARM_UP_JOBS {
        producer.enqueue(new_job(path.clone(), Bytes::new())).await?;
    }
    Ok(())
}

pub(super) async fn next_command(input: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    input.next_line().await?.context("the measurement has ended")
}

async fn flood(producer: &Producer, arguments: &BenchProducer) -> anyhow::Result<()> {
    let payload = Bytes::from(vec![b'x'; arguments.size as usize]);
    let (mut pipeline, mut receipts) = producer.pipeline();
    let sending = async {
        let BenchKeys { order_keys, limit_keys, fair_keys } = arguments.keys;
        for n in 0..arguments.jobs {
            let mut job = NewJob::new(arguments.path.clone(), new_id(), payload.clone());
            if let Some(key) = n.checked_rem(order_keys) {
                job = job.order_key(format!("order-{key}"));
            }
            if let Some(key) = n.checked_rem(limit_keys) {
                job = job.limit_key(format!("limit-{key}"));
            }
            if let Some(key) = n.checked_rem(fair_keys) {
                job = job.fair_key(format!("tenant-{key}"), 1);
            }
            pipeline.send(job).await?;
        }
        drop(pipeline);
        anyhow::Ok(())
    };
    let receiving = async {
        let mut acknowledged = 0u64;
        while let Some(batch) = receipts.next().await {
            acknowledged += batch.accepted() as u64;
            if batch.accepted() != batch.len()
                && let Some(Err(error)) = batch.iter().map(|job| job.outcome).find(Result::is_err)
            {
                bail!("a job was not accepted: {error}");
            }
        }
        Ok(acknowledged)
    };
    let ((), acknowledged) = tokio::try_join!(sending, receiving)?;
    if acknowledged != arguments.jobs {
        bail!("{acknowledged} of {} jobs were acknowledged", arguments.jobs);
    }
    Ok(())
}

/// Sends each job at its scheduled time, whether or not earlier ones are acknowledged.
async fn steady(producer: &Producer, arguments: &BenchProducer, rate: u64) -> anyhow::Result<()> {
    let size = arguments.size as usize;
    let mut times = send_times(arguments.jobs, rate);
    let mut in_flight: JoinSet<Result<Receipt, EnqueueError>> = JoinSet::new();
    while let Some(at) = times.recv().await {
        if in_flight.len() >= IN_FLIGHT_MAX {
            bail!(
                "the system falls behind the offered rate: {IN_FLIGHT_MAX} jobs are not \
                 acknowledged; offer less"
            );
        }
        let (producer, job) = (producer.clone(), timed_job(&arguments.path, at, size));
        in_flight.spawn(async move { producer.enqueue(job).await });
        while let Some(receipt) = in_flight.try_join_next() {
            receipt??;
        }
    }
    while let Some(receipt) = in_flight.join_next().await {
        receipt??;
    }
    Ok(())
}

/// Emits the send time of each job at a fixed rate, when it is reached. A time that is emitted late
/// keeps its scheduled value.
pub(super) fn send_times(jobs: u64, rate: u64) -> mpsc::Receiver<u64> {
    let (sender, times) = mpsc::channel(SCHEDULED_MAX);
    let start = monotonic_ns() + 100_000_000;
    // On its own thread: the runtime's timers have a resolution of a millisecond.
    std::thread::spawn(move || {
        for n in 0..jobs {
            let at = start + n * 1_000_000_000 / rate;
            wait_until(at);
            if sender.blocking_send(at).is_err() {
                return;
            }
        }
    });
    times
}

fn wait_until(at: u64) {
    loop {
        match at.checked_sub(monotonic_ns()) {
            None | Some(0) => return,
            Some(left) if left > SPIN_NS => {
                std::thread::sleep(Duration::from_nanos(left - SPIN_NS));
            }
            Some(_) => std::hint::spin_loop(),
        }
    }
}

/// A job whose payload begins with its scheduled send time.
pub(super) fn timed_job(path: &Path, at: u64, size: usize) -> NewJob {
    let mut payload = BytesMut::zeroed(size.max(8));
    payload[..8].copy_from_slice(&at.to_le_bytes());
    new_job(path.clone(), payload.freeze())
}
