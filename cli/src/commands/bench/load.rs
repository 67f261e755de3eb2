//! A producer and a worker of one queue, in a process of their own, driven by words on standard
//! input. Each word is answered with one line when it is done:
//!
//! | Word | What is done |
//! |---|---|
//! | `enqueue N` | N jobs are enqueued, and acknowledged |
//! | `work` | the worker begins, and holds as many jobs as it may; it ends none |
//! | `take N` | N jobs are completed, acknowledged, and as many others are held instead |
//! | `pass N [RATE]` | N jobs go in and as many come out, at RATE a second or as fast as they are taken |
//! | `probe N RATE` | N jobs go in one by one, each timed from the moment that it was meant to go out to its receipt |

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use longshore::{
    EnqueueError, Job, JobContext, JobFailure, NewJob, PipelineOptions, Producer, ProducerOptions,
    ShutdownHandle, StatsWatch, Worker, new_id,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::monotonic_ns;
use super::producer::{UNDER_WAY_MAX, due_times, next_word, timed_job};
use crate::arguments::BenchLoad;
use crate::commands::Context;

/// How often it looks whether all is done; also how exact the end is.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Without a single job that ends for so long, something is wrong.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Jobs enqueued between two looks at how many have come out.
const CHUNK_JOBS: u64 = 500;
/// A paced load goes in small bursts, this far apart.
const TICK: Duration = Duration::from_millis(5);

pub(crate) async fn run(arguments: BenchLoad, mut context: Context) -> anyhow::Result<()> {
    let mut load = Load {
        producer: Producer::connect(context.cluster(), ProducerOptions::default()),
        payload: Bytes::from(vec![b'x'; arguments.size as usize]),
        work: None,
        arguments,
    };
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    context.output.json(&json!({ "ready": "load" }))?;
    while let Ok(word) = next_word(&mut input).await {
        let began = monotonic_ns();
        let mut report =
            load.obey(&word, &context).await.with_context(|| format!("at '{word}'"))?;
        report["began_ns"] = json!(began);
        report["ended_ns"] = json!(monotonic_ns());
        context.output.json(&report)?;
    }
    if let Some(work) = load.work {
        // Its handlers wait for what will not come: the jobs are given back.
        work.handle.stop_now();
        work.running.await??;
    }
    Ok(())
}

struct Load {
    arguments: BenchLoad,
    producer: Producer,
    payload: Bytes,
    work: Option<Work>,
}

/// A worker whose handlers wait until they may end.
struct Work {
    /// How many more jobs may end.
    may_end: Arc<Semaphore>,
    stats: StatsWatch,
    handle: ShutdownHandle,
    running: JoinHandle<anyhow::Result<()>>,
    /// How many have been allowed to end, ever.
    allowed: u64,
    held: u64,
}

impl Load {
    async fn obey(&mut self, word: &str, context: &Context) -> anyhow::Result<Value> {
        let words: Vec<&str> = word.split(' ').collect();
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
            _ => bail!("this word is not known"),
        }
    }

    async fn enqueue(&mut self, jobs: u64) -> anyhow::Result<Value> {
        let (mut pipeline, mut receipts) = self.producer.pipeline(PipelineOptions::default());
        let sending = async {
            for _ in 0..jobs {
                pipeline.send(self.job()).await?;
            }
            drop(pipeline);
            anyhow::Ok(())
        };
        let receiving = async {
            let mut held = 0;
            while let Some(batch) = receipts.next().await {
                held += all_held(&batch)?;
            }
            anyhow::Ok(held)
        };
        let ((), held) = tokio::try_join!(sending, receiving)?;
        Ok(json!({ "jobs": held }))
    }

    async fn begin_work(&mut self, context: &Context) -> anyhow::Result<Value> {
        let BenchLoad { path, concurrency, prefetch, .. } = &self.arguments;
        let may_end = Arc::new(Semaphore::new(0));
        let subscription = Worker::connect(context.cluster())
            .await?
            .durable_subscribe(path)
            .concurrency(*concurrency)
            .prefetch(*prefetch);
        let (stats, handle) = (subscription.stats(), subscription.handle());
        let permits = may_end.clone();
        let running = subscription.run(move |_: Job<Bytes>, _: JobContext| {
            let permits = permits.clone();
            async move {
                if let Ok(permit) = permits.acquire().await {
                    permit.forget();
                }
                Ok::<_, JobFailure>(())
            }
        });
        let running = tokio::spawn(async move { running.await.map(|_| ()).map_err(Into::into) });
        let held = (concurrency + prefetch) as u64;
        let work = self.work.insert(Work { may_end, stats, handle, running, allowed: 0, held });
        work.until_settled().await?;
        Ok(json!({ "held": held }))
    }

    /// As many come out as went in: those that wait stay about as many.
    async fn pass(&mut self, jobs: u64, rate: Option<u64>) -> anyhow::Result<Value> {
        let (mut pipeline, mut receipts) = self.producer.pipeline(PipelineOptions::default());
        let mut work = self.work.take().context("no worker yet")?;
        let (stats, before, ahead) = (work.stats.clone(), work.allowed, self.arguments.ahead);
        let sending = async {
            let began = Instant::now();
            let mut sent = 0;
            while sent < jobs {
                let due = match rate {
                    None => sent + CHUNK_JOBS,
                    Some(rate) => (began.elapsed().as_secs_f64() * rate as f64) as u64,
                };
                let out = stats.now().completed.saturating_sub(before);
                let until = due.min(jobs).min(out + ahead);
                if until <= sent {
                    tokio::time::sleep(if rate.is_some() { TICK } else { LOOK_EVERY }).await;
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
                work.allow(all_held(&batch)?)?;
            }
            work.until_settled().await
        };
        tokio::try_join!(sending, receiving)?;
        self.work = Some(work);
        Ok(json!({ "jobs": jobs }))
    }

    async fn probe(&self, jobs: u64, rate: u64) -> anyhow::Result<Value> {
        let (path, size) = (&self.arguments.path, self.arguments.size as usize);
        let mut dues = due_times(jobs, rate);
        let mut under_way = JoinSet::new();
        let mut samples = Vec::new();
        let mut keep = |sample: Result<(u64, u64), EnqueueError>| {
            let (at, took) = sample?;
            samples.push(json!([at, took]));
            anyhow::Ok(())
        };
        while let Some(at) = dues.recv().await {
            if under_way.len() >= UNDER_WAY_MAX {
                bail!("{UNDER_WAY_MAX} jobs are not answered");
            }
            let (producer, job) = (self.producer.clone(), timed_job(path, at, size));
            under_way.spawn(async move {
                producer.enqueue(job).await?;
                Ok((at, monotonic_ns().saturating_sub(at)))
            });
            while let Some(sample) = under_way.try_join_next() {
                keep(sample?)?;
            }
        }
        while let Some(sample) = under_way.join_next().await {
            keep(sample?)?;
        }
        Ok(json!({ "jobs": jobs, "samples": samples }))
    }

    fn job(&self) -> NewJob {
        NewJob::new(self.arguments.path.clone(), new_id(), self.payload.clone())
    }
}

impl Work {
    fn allow(&mut self, jobs: u64) -> anyhow::Result<()> {
        self.allowed += jobs;
        self.may_end.add_permits(usize::try_from(jobs)?);
        Ok(())
    }

    /// Waits until all that may end have ended, acknowledged, and others are held instead.
    async fn until_settled(&self) -> anyhow::Result<()> {
        let (mut last, mut since) = ((0, 0), Instant::now());
        loop {
            let now = self.stats.now();
            if now.completed == self.allowed && now.in_hand == self.held {
                return Ok(());
            }
            if (now.completed, now.in_hand) != last {
                (last, since) = ((now.completed, now.in_hand), Instant::now());
            }
            if since.elapsed() > STALLED_AFTER {
                bail!(
                    "{} of {} jobs have ended and nothing moves: {now:?}",
                    now.completed,
                    self.allowed
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// How many jobs of a batch are held by the publisher; an error unless all are.
fn all_held(batch: &longshore::BatchReceipt) -> anyhow::Result<u64> {
    if batch.held() != batch.len()
        && let Some(Err(error)) = batch.iter().map(|job| job.outcome).find(Result::is_err)
    {
        bail!("a job was not taken: {error}");
    }
    Ok(batch.held() as u64)
}
