//! Enqueues one job per file, a limited number ahead of the results.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use longshore::{Cluster, EnqueueError, NewJob, Path, Producer, new_job};
use tokio::sync::watch;

use super::FILES_PER_QUEUE;
use super::ledger::Ledger;

/// Jobs per call.
const BATCH_JOBS: u64 = 500;
/// The wait before a refused job is enqueued again, and the number of tries.
const RETRY_WAIT: Duration = Duration::from_millis(500);
const TRIES: u32 = 60;

/// Enqueues every file of the ledger, and records the publishers' answers.
pub(crate) async fn all(
    cluster: Cluster,
    ledger: &RefCell<Ledger>,
    paths: &[Path],
    mut allowed: watch::Receiver<u64>,
) -> anyhow::Result<()> {
    let producer = Producer::connect(cluster);
    let total = ledger.borrow().len() as u64;
    let mut next = 0;
    while next < total {
        let Ok(most) = allowed.wait_for(|most| *most > next).await.map(|most| *most) else {
            // The observer has failed; its error is the one to report.
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

/// Enqueues jobs until each is acknowledged or unknown. A job that was certainly not accepted is
/// enqueued again.
async fn enqueue(
    producer: &Producer,
    mut jobs: Vec<NewJob>,
    ledger: &RefCell<Ledger>,
) -> anyhow::Result<()> {
    let mut last: Option<EnqueueError> = None;
    for _ in 0..TRIES {
        let mut refused = Vec::new();
        let receipts = producer.enqueue_all(jobs.clone()).await;
        for (job, receipt) in jobs.into_iter().zip(receipts) {
            match receipt.outcome {
                Ok(_) => ledger.borrow_mut().acknowledged(receipt.id),
                Err(error) if error.is_unknown() => ledger.borrow_mut().unknown(receipt.id),
                Err(error) => {
                    refused.push(job);
                    last = Some(error);
                }
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        jobs = refused;
        tokio::time::sleep(RETRY_WAIT).await;
    }
    let why = last.map(|error| error.to_string()).unwrap_or_default();
    bail!("{} jobs were not accepted in {TRIES} tries: {why}", jobs.len())
}
