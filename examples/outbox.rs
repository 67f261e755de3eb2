//! An outbox: a transaction writes an order and its job, and a relay enqueues the jobs that it
//! finds. If the relay dies before it deletes a row, it enqueues the same id again, which the
//! publisher recognizes. `cargo run --package longshore-examples --example outbox`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{IntoJob, JobId, new_id};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize, JobKind)]
#[job(path = "/orders/confirm")]
struct ConfirmOrder {
    order: u64,
}

/// A table of your database: `create table outbox (id uuid primary key, payload jsonb)`.
#[derive(Clone, Default)]
struct Outbox(Arc<Mutex<BTreeMap<JobId, ConfirmOrder>>>);

impl Outbox {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<JobId, ConfirmOrder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One pass: enqueues up to a thousand rows, and deletes those that are on disk.
    async fn relay(&self, producer: &Producer) -> anyhow::Result<()> {
        let rows: Vec<_> = self.rows().clone().into_iter().take(1_000).collect();
        let jobs: Result<Vec<_>, _> =
            rows.into_iter().map(|(id, order)| order.into_job(|| id)).collect();
        for job in producer.enqueue_all(jobs?).await {
            match job.outcome {
                Ok(_) => drop(self.rows().remove(&job.id)),
                Err(error) => eprintln!("{}: {error}; the next pass repeats it", job.id),
            }
        }
        Ok(())
    }
}

/// Returns how many jobs there are after two relays that know nothing of each other.
pub(crate) async fn orders() -> anyhow::Result<u64> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let outbox = Outbox::default();
    for order in 1..=3 {
        // In the transaction that writes the order.
        outbox.rows().insert(new_id(), ConfirmOrder { order });
    }
    let producer = system.producer();
    let before_a_crash = Outbox(Arc::new(Mutex::new(outbox.rows().clone())));
    outbox.relay(&producer).await?;
    before_a_crash.relay(&producer).await?;
    let queues = system.queues().stats("/orders/**".parse()?).await?.merged();
    system.stop().await?;
    Ok(queues.iter().map(|queue| queue.counts.ready).sum())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{} jobs", orders().await?);
    Ok(())
}
