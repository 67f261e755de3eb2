//! The producer of a measurement: as fast as its jobs are taken, or at a steady rate.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use longshore::{
    EnqueueError, NewJob, Path, PipelineOptions, Producer, ProducerOptions, Receipt, new_id,
    new_job,
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::monotonic_ns;
use crate::arguments::BenchProducer;
use crate::commands::Context;

/// How long before its time a job's thread stops sleeping and watches the clock: sleeps end late,
/// by about this much.
const WATCH_CLOCK_NS: u64 = 100_000;

/// Jobs whose time has come and that wait for the runtime.
const DUE_MAX: usize = 65_536;
/// Jobs sent and not answered, beyond which a rate cannot be measured.
pub(super) const UNDER_WAY_MAX: usize = 100_000;

pub(crate) async fn run(arguments: BenchProducer, mut context: Context) -> anyhow::Result<()> {
    let producer = Producer::connect(context.cluster(), ProducerOptions::default());
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    context.output.json(&json!({ "ready": "producer" }))?;
    next_word(&mut input).await?;

    let began = monotonic_ns();
    match arguments.rate {
        None => flood(&producer, &arguments).await?,
        Some(rate) => steady(&producer, &arguments, rate).await?,
    }
    let ended = monotonic_ns();
    context
        .output
        .json(&json!({ "jobs": arguments.jobs, "began_ns": began, "ended_ns": ended }))?;
    // The end of the measurement ends this process: its links are not torn down while others are
    // still measured.
    let _ = next_word(&mut input).await;
    Ok(())
}

pub(super) async fn next_word(input: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    input.next_line().await?.context("nobody waits for this measurement any more")
}

async fn flood(producer: &Producer, arguments: &BenchProducer) -> anyhow::Result<()> {
    let payload = Bytes::from(vec![b'x'; arguments.size as usize]);
    let (mut pipeline, mut receipts) = producer.pipeline(PipelineOptions::default());
    let sending = async {
        for _ in 0..arguments.jobs {
            let job = NewJob::new(arguments.path.clone(), new_id(), payload.clone());
            pipeline.send(job).await?;
        }
        drop(pipeline);
        anyhow::Ok(())
    };
    let receiving = async {
        let mut held = 0u64;
        while let Some(batch) = receipts.next().await {
            held += batch.held() as u64;
            if batch.held() != batch.len()
                && let Some(Err(error)) = batch.iter().map(|job| job.outcome).find(Result::is_err)
            {
                bail!("a job was not taken: {error}");
            }
        }
        Ok(held)
    };
    let ((), held) = tokio::try_join!(sending, receiving)?;
    if held != arguments.jobs {
        bail!("{held} of {} jobs were taken", arguments.jobs);
    }
    Ok(())
}

/// Each job goes out at its own time, whatever became of those before it.
async fn steady(producer: &Producer, arguments: &BenchProducer, rate: u64) -> anyhow::Result<()> {
    let size = arguments.size as usize;
    let mut dues = due_times(arguments.jobs, rate);
    let mut under_way: JoinSet<Result<Receipt, EnqueueError>> = JoinSet::new();
    while let Some(at) = dues.recv().await {
        if under_way.len() >= UNDER_WAY_MAX {
            bail!(
                "the system falls behind the offered rate: {UNDER_WAY_MAX} jobs are not answered; offer less"
            );
        }
        let (producer, job) = (producer.clone(), timed_job(&arguments.path, at, size));
        under_way.spawn(async move { producer.enqueue(job).await });
        while let Some(receipt) = under_way.try_join_next() {
            receipt??;
        }
    }
    while let Some(receipt) = under_way.join_next().await {
        receipt??;
    }
    Ok(())
}

/// The moments of so many jobs at a steady rate, each told when it has come. One that is told late
/// is meant for its own moment nonetheless.
pub(super) fn due_times(jobs: u64, rate: u64) -> mpsc::Receiver<u64> {
    let (due, dues) = mpsc::channel(DUE_MAX);
    let start = monotonic_ns() + 100_000_000;
    // A thread of its own: the runtime's timers are good to a millisecond.
    std::thread::spawn(move || {
        for n in 0..jobs {
            let at = start + n * 1_000_000_000 / rate;
            wait_until(at);
            if due.blocking_send(at).is_err() {
                return;
            }
        }
    });
    dues
}

fn wait_until(at: u64) {
    loop {
        match at.checked_sub(monotonic_ns()) {
            None | Some(0) => return,
            Some(left) if left > WATCH_CLOCK_NS => {
                std::thread::sleep(Duration::from_nanos(left - WATCH_CLOCK_NS));
            }
            Some(_) => std::hint::spin_loop(),
        }
    }
}

/// A job whose payload begins with the moment that it was meant to go out.
pub(super) fn timed_job(path: &Path, at: u64, size: usize) -> NewJob {
    let mut payload = BytesMut::zeroed(size.max(8));
    payload[..8].copy_from_slice(&at.to_le_bytes());
    new_job(path.clone(), payload.freeze())
}
