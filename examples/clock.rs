//! A test that moves the clock: a reminder is sent a day after its order, unless it was paid. In
//! your program this is a `#[tokio::test]`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longshore::State;
use longshore::prelude::*;
use longshore::testing::TestSystem;
use serde::{Deserialize, Serialize};

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/reminders", backoff = "fixed:1h")]
struct Reminder {
    order: u64,
}

/// The orders that were paid.
#[derive(Clone, Default)]
struct Paid(Arc<Mutex<BTreeSet<u64>>>);

async fn remind(
    Payload(reminder): Payload<Reminder>,
    State(paid): State<Paid>,
    job: JobContext,
) -> anyhow::Result<()> {
    if paid.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&reminder.order) {
        return Ok(());
    }
    anyhow::ensure!(job.attempt() > 1, "the mail server is busy");
    Ok(())
}

/// Returns the numbers of completed and failed attempts on the first day, after it, and an hour
/// later.
pub(crate) async fn a_day_passes() -> anyhow::Result<[(u64, u64); 3]> {
    let (system, paid) = (TestSystem::start().await?, Paid::default());
    for order in [1, 2] {
        system.producer().enqueue(Reminder { order }).delay(DAY).await?;
    }
    paid.0.lock().unwrap_or_else(PoisonError::into_inner).insert(1);
    let drain = async || {
        let worker = system.worker().state(paid.clone()).handle(remind);
        let report = system.drain(worker, |worker| worker.run()).await?;
        anyhow::Ok((report.completed, report.failed))
    };
    let first = drain().await?;
    system.advance(DAY).await?;
    let second = drain().await?;
    system.advance(Duration::from_secs(3_600)).await?;
    Ok([first, second, drain().await?])
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("completed and failed: {:?}", a_day_passes().await?);
    Ok(())
}
