//! Enqueues one job per file, as far ahead of the results as is allowed.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use longshore::{
    BatchOptions, Cluster, EnqueueError, NewJob, Path, Producer, ProducerOptions, new_job,
};
use tokio::sync::watch;

use super::FILES_PER_QUEUE;
use super::ledger::Ledger;

/// Jobs of one call.
const BATCH_JOBS: u64 = 500;
/// How long a job that nobody took waits until it is enqueued again, and how often.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const TRIES: u32 = 60;

/// Enqueues every file of the ledger, and notes what the publishers say.
pub(crate) async fn all(
    cluster: Cluster,
    ledger: &RefCell<Ledger>,
    paths: &[Path],
    mut allowed: watch::Receiver<u64>,
) -> anyhow::Result<()> {
    let producer = Producer::connect(cluster, ProducerOptions::default());
    let total = ledger.borrow().len() as u64;
    let mut next = 0;
    while next < total {
        let Ok(most) = allowed.wait_for(|most| *most > next).await.map(|most| *most) else {
            // Nobody watches any more: that error is the one to tell.
            return Ok(());
        };
        let to = most.min(next + BATCH_JOBS).min(total);
        let mut jobs = Vec::new();
        for row in next..to {
            let row = usize::try_from(row)?;
            let mut ledger = ledger.borrow_mut();
            let payload = Bytes::copy_from_slice(ledger.name(row));
            let mut job = new_job(paths[row / FILES_PER_QUEUE].clone(), payload);
            job.options.keep_result = true;
            ledger.enqueue(row, job.id);
            jobs.push(job);
        }
        enqueue(&producer, jobs, ledger).await?;
        next = to;
    }
    Ok(())
}

/// Enqueues jobs until each was taken, or may have been. One that is certainly nowhere is enqueued
/// again.
async fn enqueue(
    producer: &Producer,
    mut jobs: Vec<NewJob>,
    ledger: &RefCell<Ledger>,
) -> anyhow::Result<()> {
    let mut last: Option<EnqueueError> = None;
    for _ in 0..TRIES {
        let mut nowhere = Vec::new();
        let receipts = producer.enqueue_all(jobs.clone(), BatchOptions::default()).await;
        for (job, receipt) in jobs.into_iter().zip(receipts) {
            match receipt.outcome {
                Ok(_) => ledger.borrow_mut().taken(receipt.id),
                Err(error) if error.is_unknown() => ledger.borrow_mut().unknown(receipt.id),
                Err(error) => {
                    nowhere.push(job);
                    last = Some(error);
                }
            }
        }
        if nowhere.is_empty() {
            return Ok(());
        }
        jobs = nowhere;
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    let why = last.map(|error| error.to_string()).unwrap_or_default();
    bail!("{} jobs were not taken in {TRIES} tries: {why}", jobs.len())
}
