//! How long the jobs of another queue take meanwhile: while a parent with many children ends, and
//! while a large batch is filled, cancelled and collected. And the memory of a child and a member.
//!
//! ```text
//! cargo run --release -p longshore --features testing --example graph_latency [JOBS]
//! ```

use std::time::{Duration, Instant};

use anyhow::Context as _;
use longshore::embedded::{System, SystemOptions};
use longshore::prelude::*;
use longshore::protocol::messages::work::JobCounts;
use longshore::{Action, Glob, JobLocator, NewBatch, NewJob, Path, ShutdownHandle, new_job};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Jobs of one enqueued batch.
const BATCH: u64 = 10_000;
/// How often a job of the other queue is enqueued.
const EVERY: Duration = Duration::from_millis(2);
/// The length of the first measurement.
const ALONE: Duration = Duration::from_secs(3);
const OTHER: &str = "/jobs/other";
const GRAPH: &str = "/jobs/graph";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let jobs = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse::<u64>())?;
    let data = tempfile::tempdir()?;
    let system = System::start_with(SystemOptions::new(data.path())).await?;
    let _other = work(&system, OTHER);
    let alone = Probe::start(&system);
    tokio::time::sleep(ALONE).await;
    alone.finish("alone").await?;

    let probe = Probe::start(&system);
    enqueue(&system, jobs, |job| job).await?;
    probe.finish("plain jobs are enqueued").await?;
    let worker = work(&system, GRAPH);
    has(&system, |counts| counts.ready == 0).await?;
    worker.drain();

    let parent = new_job(GRAPH.parse()?, "parent");
    system.producer().enqueue(parent.clone()).await?;
    let (before, probe) = (memory()?, Probe::start(&system));
    enqueue(&system, jobs, |job| job.after(parent.id)).await?;
    probe.finish("children are enqueued").await?;
    let of_children = memory()? - before;
    let probe = Probe::start(&system);
    let worker = work(&system, GRAPH);
    has(&system, |counts| counts.blocked == 0).await?;
    probe.finish("the end of their parent reaches them").await?;
    let probe = Probe::start(&system);
    has(&system, |counts| counts.ready == 0).await?;
    probe.finish("they run").await?;
    worker.drain();

    for end in ["runs", "is cancelled"] {
        let batch = new_job(GRAPH.parse()?, "batch").batch(NewBatch::Open);
        system.producer().enqueue(batch.clone()).await?;
        let (before, probe) = (memory()?, Probe::start(&system));
        enqueue(&system, jobs, |job| job.in_batch(batch.id)).await?;
        probe.finish("members join a batch").await?;
        println!(
            "bytes of memory of a child: {}, of a member: {}",
            of_children / jobs as i64,
            (memory()? - before) / jobs as i64
        );
        let (queues, at) = (system.queues(), [JobLocator::from(batch.id)]);
        let probe = Probe::start(&system);
        if end == "runs" {
            let worker = work(&system, GRAPH);
            queues.act_on(Action::CloseBatch, &at, false).await?;
            has(&system, |counts| counts.blocked == 0).await?;
            probe.finish("its members run").await?;
            let probe = Probe::start(&system);
            tokio::time::sleep(ALONE).await;
            probe.finish("what it held is forgotten").await?;
            worker.drain();
        } else {
            queues.act_on(Action::Cancel, &at, false).await?;
            has(&system, |counts| counts.ready == 0).await?;
            probe.finish("its members are cancelled").await?;
        }
    }
    system.stop().await?;
    Ok(())
}

/// A worker of the queue.
fn work(system: &System, queue: &str) -> ShutdownHandle {
    let worker = system.worker().durable_subscribe(queue).concurrency(64).prefetch(1_000);
    let handle = worker.shutdown_handle();
    tokio::spawn(worker.run(|_: Job<Vec<u8>>, _: JobContext| async { Ok(()) }));
    handle
}

/// Enqueues jobs in large batches.
async fn enqueue(
    system: &System,
    jobs: u64,
    with: impl Fn(NewJob) -> NewJob,
) -> anyhow::Result<()> {
    let (producer, path) = (system.producer(), GRAPH.parse::<Path>()?);
    for _ in 0..jobs.div_ceil(BATCH) {
        let jobs = (0..BATCH).map(|_| with(new_job(path.clone(), vec![7; 100])));
        for receipt in producer.enqueue_all(jobs).await {
            receipt.outcome?;
        }
    }
    Ok(())
}

/// Waits until the graph's queue has such counts.
async fn has(system: &System, is: impl Fn(&JobCounts) -> bool) -> anyhow::Result<()> {
    loop {
        let stats = system.queues().stats(Glob::new(GRAPH)?).await?.merged();
        if is(&stats.first().context("no queue")?.counts) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Jobs of the other queue: each is enqueued, and awaited.
struct Probe {
    began: Instant,
    stop: oneshot::Sender<()>,
    running: JoinHandle<anyhow::Result<Vec<Duration>>>,
}

impl Probe {
    fn start(system: &System) -> Probe {
        let (stop, mut stopped) = oneshot::channel();
        let (producer, queues) = (system.producer(), system.queues());
        let running = tokio::spawn(async move {
            let mut all = Vec::new();
            while stopped.try_recv().is_err() {
                let began = Instant::now();
                let receipt = producer.enqueue(new_job(OTHER.parse()?, vec![7; 100])).await?;
                queues.wait(receipt.job, Duration::from_secs(60)).await?;
                all.push(began.elapsed());
                tokio::time::sleep(EVERY).await;
            }
            Ok(all)
        });
        Probe { began: Instant::now(), stop, running }
    }

    async fn finish(self, name: &str) -> anyhow::Result<()> {
        let lasted = self.began.elapsed();
        let _ = self.stop.send(());
        let mut all = self.running.await??;
        all.sort_unstable();
        let at = |part: usize| all.get((all.len() * part / 1_000).min(all.len() - 1));
        let [half, most, last] =
            [500, 990, 1_000].map(|part| at(part).copied().unwrap_or_default());
        println!(
            "{name:<38} {lasted:>6.1?}  {:>6} jobs  p50 {half:>8.1?}  p99 {most:>8.1?}  max \
             {last:>8.1?}",
            all.len()
        );
        Ok(())
    }
}

/// Resident bytes of this process.
fn memory() -> anyhow::Result<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).context("no resident pages")?;
    Ok(pages.parse::<i64>()? * 4096)
}
