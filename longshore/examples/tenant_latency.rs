//! How long a small tenant's job waits for its start while another tenant has a long queue: both
//! have a fair key in one queue. Each job takes a handler 10 to 20 ms; a hundred run at once, and
//! none is prefetched.
//!
//! ```text
//! cargo run --release -p longshore --features testing --example tenant_latency [WAITING]
//! ```

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longshore::embedded::{System, SystemOptions};
use longshore::prelude::*;
use longshore::{IntoJob as _, State, new_id};
use serde::{Deserialize, Serialize};

const HANDLERS: usize = 100;
/// A job runs for 10 to 20 ms.
const RUN_US_MIN: u64 = 10_000;
/// Jobs of the small tenant, one every 20 ms.
const MEASURED: u64 = 500;
const EVERY: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/tenants", fair_key = "{tenant}", keep = "0s")]
struct Work {
    tenant: String,
    number: u64,
    sent_us: u64,
}

type Latencies = Arc<Mutex<Vec<u64>>>;

async fn work(job: Payload<Work>, latencies: State<Latencies>) -> anyhow::Result<()> {
    if job.0.tenant == "small"
        && let Ok(mut latencies) = latencies.0.lock()
    {
        latencies.push(now_us().saturating_sub(job.0.sent_us));
    }
    // Of equal length, all handlers would become free at once, and then none for a while.
    tokio::time::sleep(Duration::from_micros(RUN_US_MIN + job.0.number * 7_919 % RUN_US_MIN)).await;
    Ok(())
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

fn job(tenant: &str, number: u64) -> Work {
    Work { tenant: tenant.to_owned(), number, sent_us: now_us() }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let waiting = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse::<u64>())?;
    let data = tempfile::tempdir()?;
    let system = System::start_with(SystemOptions::new(data.path())).await?;
    let (producer, latencies) = (system.producer(), Latencies::default());
    let worker = system.worker().state(latencies.clone()).handle(work);
    let running = tokio::spawn(worker.concurrency(HANDLERS).prefetch(0).run());

    let measure = async |name: &str| -> anyhow::Result<()> {
        for number in 0..MEASURED {
            producer.enqueue(job("small", number)).await?;
            tokio::time::sleep(EVERY).await;
        }
        let Ok(mut latencies) = latencies.lock() else { anyhow::bail!("a handler panicked") };
        let mut all = std::mem::take(&mut *latencies);
        all.sort_unstable();
        let at = |part: usize| all.get(all.len() * part / 100).copied().unwrap_or_default();
        println!("{name:<28} {:>5} jobs  p50 {:>6} µs  p99 {:>6} µs", all.len(), at(50), at(99));
        Ok(())
    };
    measure("alone").await?;
    let began = Instant::now();
    for batch in 0..waiting.div_ceil(10_000) {
        let jobs = (0..10_000).map(|n| job("large", 10_000 * batch + n).into_job(new_id));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        for receipt in producer.enqueue_all(jobs).await {
            receipt.outcome?;
        }
    }
    println!("{waiting} jobs of another tenant enqueued in {:.1?}", began.elapsed());
    measure("beside the other tenant").await?;
    running.abort();
    Ok(())
}
