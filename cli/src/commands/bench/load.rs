//! A producer and a worker of one queue in a separate process, driven by commands on standard
//! input. It answers each command with one line when it is done:
//!
//! | Command | Effect |
//! |---|---|
//! | `enqueue N` | enqueues N jobs |
//! | `work` | starts the worker, which fetches jobs up to its limit and completes none |
//! | `take N` | completes N jobs and fetches as many others |
//! | `pass N [RATE]` | enqueues and completes N jobs, at RATE a second or at full speed |
//! | `probe N RATE` | enqueues N single jobs, each timed from its schedule to its receipt |

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use longshore::{
    EnqueueError, Job, JobContext, JobFailure, NewJob, Producer, ShutdownHandle, StatsWatch,
    Worker, new_id,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::monotonic_ns;
use super::producer::{IN_FLIGHT_MAX, next_command, send_times, timed_job};
use crate::arguments::BenchLoad;
use crate::commands::Context;

/// The polling interval, which is also the resolution of the end time.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// After this long without a completed job the measurement fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Jobs enqueued between two checks of the number completed.
const CHUNK_JOBS: u64 = 500;
/// The interval between the bursts of a paced load.
const TICK: Duration = Duration::from_millis(5);

pub(crate) async fn run(arguments: BenchLoad, mut context: Context) -> anyhow::Result<()> {
    let mut load = LoadGenerator {
        producer: Producer::connect(context.cluster()),
        payload: Bytes::from(vec![b'x'; arguments.size as usize]),
        work: None,
        arguments,
    };
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    context.output.json(&json!({ "ready": "load" }))?;
    while let Ok(command) = next_command(&mut input).await {
        let began = monotonic_ns();
        let mut report =
            load.execute(&command, &context).await.with_context(|| format!("at '{command}'"))?;
        report["began_ns"] = json!(began);
        report["ended_ns"] = json!(monotonic_ns());
        context.output.json(&report)?;
    }
    if let Some(work) = load.work {
        // Its handlers would wait forever: release their jobs.
        work.handle.stop_now();
        work.running.await??;
    }
    Ok(())
}

struct LoadGenerator {
    arguments: BenchLoad,
    producer: Producer,
    payload: Bytes,
    work: Option<GatedWorker>,
}

/// A worker whose handlers wait for permits to return.
struct GatedWorker {
    /// A permit for each handler that may return.
    permits: Arc<Semaphore>,
    stats: StatsWatch,
    handle: ShutdownHandle,
    running: JoinHandle<anyhow::Result<()>>,
    /// Permits issued so far.
    allowed: u64,
    /// Jobs that the worker fetches ahead.
    capacity: u64,
}

impl LoadGenerator {
    async fn execute(&mut self, command: &str, context: &Context) -> anyhow::Result<Value> {
        let words: Vec<&str> = command.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().with_context(|| format!("'{text}'"));
        match words[..] {
            ["enqueue", jobs] => self.enqueue(number(jobs)?).await,
            ["work"] => self.begin_work(context).await,
            ["take", jobs] => {
                let jobs = number(jobs)?;
                let work = self.work.as_mut().context("no worker yet")?;
                work.allow(jobs)?;
                work.until_settled().await?;
                Ok(json!({ "jobs": jobs }))
            }
            ["pass", jobs] => self.pass(number(jobs)?, None).await,
            ["pass", jobs, rate] => self.pass(number(jobs)?, Some(number(rate)?)).await,
            ["probe", jobs, rate] => self.probe(number(jobs)?, number(rate)?).await,
            _ => bail!("unknown command"),
        }
    }

    async fn enqueue(&mut self, jobs: u64) -> anyhow::Result<Value> {
        let (mut pipeline, mut receipts) = self.producer.pipeline();
        let sending = async {
            for _ in 0..jobs {
                pipeline.send(self.job()).await?;
            }
            drop(pipeline);
            anyhow::Ok(())
        };
        let receiving = async {
            let mut acknowledged = 0;
            while let Some(batch) = receipts.next().await {
                acknowledged += all_acknowledged(&batch)?;
            }
            anyhow::Ok(acknowledged)
        };
        let ((), acknowledged) = tokio::try_join!(sending, receiving)?;
        Ok(json!({ "jobs": acknowledged }))
    }

    async fn begin_work(&mut self, context: &Context) -> anyhow::Result<Value> {
        let BenchLoad { path, concurrency, prefetch, .. } = &self.arguments;
        let permits = Arc::new(Semaphore::new(0));
        let subscription = Worker::connect(context.cluster())
            .durable_subscribe(path)
            .concurrency(*concurrency)
            .prefetch(*prefetch);
        let (stats, handle) = (subscription.stats(), subscription.shutdown_handle());
        let shared = permits.clone();
        let running = subscription.run(move |_: Job<Bytes>, _: JobContext| {
            let permits = shared.clone();
            async move {
                if let Ok(permit) = permits.acquire().await {
                    permit.forget();
                }
                Ok::<_, JobFailure>(())
            }
        });
        let running = tokio::spawn(async move { running.await.map(|_| ()).map_err(Into::into) });
        let capacity = (concurrency + prefetch) as u64;
        let work =
            self.work.insert(GatedWorker { permits, stats, handle, running, allowed: 0, capacity });
        work.until_settled().await?;
        Ok(json!({ "jobs_held": capacity }))
    }

    /// Enqueues and completes `jobs`, so that the queue's length stays about the same.
    async fn pass(&mut self, jobs: u64, rate: Option<u64>) -> anyhow::Result<Value> {
        let (mut pipeline, mut receipts) = self.producer.pipeline();
        let mut work = self.work.take().context("no worker yet")?;
        let (stats, before, ahead) = (work.stats.clone(), work.allowed, self.arguments.ahead);
        let sending = async {
            let began = Instant::now();
            let mut sent = 0;
            while sent < jobs {
                let scheduled = match rate {
                    None => sent + CHUNK_JOBS,
                    Some(rate) => (began.elapsed().as_secs_f64() * rate as f64) as u64,
                };
                let completed = stats.now().completed.saturating_sub(before);
                let until = scheduled.min(jobs).min(completed + ahead);
                if until <= sent {
                    tokio::time::sleep(if rate.is_some() { TICK } else { POLL_INTERVAL }).await;
                }
                while sent < until {
                    pipeline.send(self.job()).await?;
                    sent += 1;
                }
            }
            drop(pipeline);
            anyhow::Ok(())
        };
        let receiving = async {
            while let Some(batch) = receipts.next().await {
                work.allow(all_acknowledged(&batch)?)?;
            }
            work.until_settled().await
        };
        tokio::try_join!(sending, receiving)?;
        self.work = Some(work);
        Ok(json!({ "jobs": jobs }))
    }

    async fn probe(&self, jobs: u64, rate: u64) -> anyhow::Result<Value> {
        let (path, size) = (&self.arguments.path, self.arguments.size as usize);
        let mut times = send_times(jobs, rate);
        let mut in_flight = JoinSet::new();
        let mut samples = Vec::new();
        let mut add = |sample: Result<(u64, u64), EnqueueError>| {
            let (at, took) = sample?;
            samples.push(json!([at, took]));
            anyhow::Ok(())
        };
        while let Some(at) = times.recv().await {
            if in_flight.len() >= IN_FLIGHT_MAX {
                bail!("{IN_FLIGHT_MAX} jobs are not answered");
            }
            let (producer, job) = (self.producer.clone(), timed_job(path, at, size));
            in_flight.spawn(async move {
                producer.enqueue(job).await?;
                Ok((at, monotonic_ns().saturating_sub(at)))
            });
            while let Some(sample) = in_flight.try_join_next() {
                add(sample?)?;
            }
        }
        while let Some(sample) = in_flight.join_next().await {
            add(sample?)?;
        }
        Ok(json!({ "jobs": jobs, "samples": samples }))
    }

    fn job(&self) -> NewJob {
        NewJob::new(self.arguments.path.clone(), new_id(), self.payload.clone())
    }
}

impl GatedWorker {
    fn allow(&mut self, jobs: u64) -> anyhow::Result<()> {
        self.allowed += jobs;
        self.permits.add_permits(usize::try_from(jobs)?);
        Ok(())
    }

    /// Waits until all allowed jobs are completed and as many others are fetched.
    async fn until_settled(&self) -> anyhow::Result<()> {
        let (mut last, mut since) = ((0, 0), Instant::now());
        loop {
            let now = self.stats.now();
            if now.completed == self.allowed && now.jobs_held == self.capacity {
                return Ok(());
            }
            if (now.completed, now.jobs_held) != last {
                (last, since) = ((now.completed, now.jobs_held), Instant::now());
            }
            if since.elapsed() > STALL_TIMEOUT {
                bail!("stalled after {} of {} jobs: {now:?}", now.completed, self.allowed);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// The number of jobs in a batch; an error unless all are acknowledged.
fn all_acknowledged(batch: &longshore::BatchReceipt) -> anyhow::Result<u64> {
    if batch.accepted() != batch.len()
        && let Some(Err(error)) = batch.iter().map(|job| job.outcome).find(Result::is_err)
    {
        bail!("a job was not accepted: {error}");
    }
    Ok(batch.accepted() as u64)
}
