//! A nightly report whose publisher is down for maintenance at its time: the report catches up, and
//! still is of that night. The clock of the testing system makes a night pass in a moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use longshore::prelude::*;
use longshore::testing::TestSystem;
use longshore::{Missed, NewSchedule, State};
use serde::{Deserialize, Serialize};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/reports/nightly")]
struct Report;

/// The nights of which there is a report.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<SystemTime>>>);

async fn report(
    _: Payload<Report>,
    job: JobContext,
    State(reports): State<Reports>,
) -> anyhow::Result<()> {
    // When the schedule says, however late it is.
    reports.0.lock().unwrap_or_else(PoisonError::into_inner).push(job.enqueued_at());
    Ok(())
}

/// Returns the times of the reports, and those that they should have.
pub(crate) async fn run() -> anyhow::Result<[Vec<SystemTime>; 2]> {
    let (system, reports) = (TestSystem::start().await?, Reports::default());
    let queues = system.queues();
    let nightly = NewSchedule::cron("nightly", "30 3 * * *", Report)
        .zone("Europe/Berlin")
        .missed(Missed::Latest);
    queues.put_schedule(&nightly).await?;
    let nights = queues.preview_schedule(&nightly, 2).await?;

    queues.drain(true).await?;
    for night in &nights {
        let until_then = Duration::from_millis(night - system.now_ms());
        system.advance(until_then + 20 * MINUTE).await?;
        queues.drain(false).await?;
        let worker = system.worker().state(reports.clone()).handle(report);
        system.drain(worker, |worker| worker.run()).await?;
    }
    system.stop().await;
    let reports = reports.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let nights = nights.into_iter().map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
    Ok([reports, nights.collect()])
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{:?}", run().await?);
    Ok(())
}
