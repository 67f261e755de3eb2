//! Three kinds of jobs, one worker: kinds declare their queues and options, handlers are plain
//! functions that share a state, and a producer waits for a result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore::State;
use longshore::embedded::System;
use longshore::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/mail/welcome", max_attempts = 5, timeout = "30s", backoff = "exponential:1s..10m")]
struct Welcome {
    to: String,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/tenants/{tenant}/invoices", max_attempts = 50, keep = "30d", output = String)]
struct Invoice {
    tenant: String,
    cents: u64,
}

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/cleanup", priority = -10)]
struct Cleanup;

/// What the handlers share: in a real program, a pool of connections.
#[derive(Clone, Default)]
struct Pool(Arc<AtomicU64>);

async fn welcome(Payload(mail): Payload<Welcome>, State(pool): State<Pool>) -> anyhow::Result<()> {
    anyhow::ensure!(mail.to.contains('@'), "{} is no address", mail.to);
    pool.0.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn invoice(Payload(bill): Payload<Invoice>) -> Result<String, JobFailure> {
    if bill.cents == 0 {
        return Err(JobFailure::bury("nothing to pay"));
    }
    Ok(format!("{} owes {}.{:02}", bill.tenant, bill.cents / 100, bill.cents % 100))
}

async fn clean_up(_: Payload<Cleanup>, job: JobContext) -> Result<(), JobFailure> {
    Err(JobFailure::bury(format!("{} has nothing to clean", job.path())))
}

/// Returns the text of an invoice.
pub(crate) async fn run() -> anyhow::Result<String> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let worker = system.worker().state(Pool::default());
    let worker = worker.handle(welcome).handle(invoice).handle(clean_up);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());

    let producer = system.producer();
    producer.enqueue(Welcome { to: "ada@example.com".to_owned() }).await?;
    producer.enqueue(Cleanup).delay(Duration::from_secs(3_600)).await?;
    let bill = Invoice { tenant: "acme".to_owned(), cents: 1_250 };
    let text = producer.enqueue(bill).result(Duration::from_secs(10)).await?;

    stop.drain();
    working.await??;
    system.stop().await?;
    Ok(text)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{}", run().await?);
    Ok(())
}
