//! A fixed amount of work on one thread, for `cargo xtask count`: `count WORKLOAD WARM_UP NUMBER`.
//!
//! What is counted begins and ends with a call of [`mark`].

use std::ops::Range;
use std::time::Duration;

use longshore::embedded::{RunningReplica, System, SystemOptions};
use longshore::middleware::Identity;
use longshore::prelude::*;
use longshore::protocol::{Epoch, PublisherId, PublisherInfo};
use longshore::values::{SubscribeOptions, Subscriber, Updates, ValuePublisher};
use longshore::{
    CheckedTerms, Durability, Glob, JobLimit, Kinds, LimitScope, Path, PathAnswer, ReadClient,
    RunError, ShutdownHandle, StatsWatch, Subscription, Value, WorkerReport, WriteClient,
};
use longshore_tests::kinds::{Completed, QUEUES, worker_of_all, worker_of_one};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// The payload size of a job or a value.
const BYTES: usize = 256;
/// Jobs per enqueue batch, paths per request, and paths below one parent.
const BATCH: u64 = 1_000;
/// Paths per request to resolve. A replica reads the clock after each 64 paths to end its slice,
/// and valgrind is so slow that a larger request has as many slices as the machine's load leaves.
const RESOLVED: u64 = 64;
/// Jobs that a worker runs at once, and further jobs that it holds.
const CONCURRENCY: usize = 64;
const PREFETCH: usize = 1_000;
/// Order keys, and as many limit keys, of jobs that have both.
const KEYS: u64 = 1_000;
/// Subscribed values; each round updates all of them.
const VALUES: u64 = 100;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [workload, warm_up, number] = &arguments[..] else {
        anyhow::bail!("count WORKLOAD WARM_UP NUMBER")
    };
    let numbers = [warm_up.parse()?, number.parse()?];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match workload.as_str() {
        "jobs" => runtime.block_on(jobs(numbers, 0)),
        "keyed_jobs" => runtime.block_on(jobs(numbers, KEYS)),
        "one_kind" => runtime.block_on(kinds(numbers, worker_of_one)),
        "twenty_kinds" => runtime.block_on(kinds(numbers, worker_of_all)),
        "values" => runtime.block_on(values(numbers)),
        "registrations" => runtime.block_on(registrations(numbers)),
        "resolutions" => runtime.block_on(resolutions(numbers)),
        other => anyhow::bail!("no workload '{other}'"),
    }
}

/// Does the work first for the warm-up, then for what is counted.
async fn counted(
    [warm_up, number]: [u64; 2],
    mut work: impl AsyncFnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    work(warm_up).await?;
    mark();
    work(number).await?;
    mark();
    Ok(())
}

/// Callgrind begins a new part here, and so does the list of system calls, by this line.
#[inline(never)]
fn mark() {
    eprintln!("MARK");
}

/// Completes jobs of one queue with a worker that has one handler for all. With `keys`, they have
/// order and limit keys in turn.
async fn jobs(numbers: [u64; 2], keys: u64) -> anyhow::Result<()> {
    let (_folder, system) = system(keys).await?;
    // Jobs with keys are not prefetched: as many handlers hold them.
    let (concurrency, prefetch) = match keys {
        0 => (CONCURRENCY, PREFETCH),
        _ => (CONCURRENCY + PREFETCH, 0),
    };
    let worker = system.worker().durable_subscribe("/jobs/count");
    let worker = worker.concurrency(concurrency).prefetch(prefetch);
    let (handle, stats) = (worker.shutdown_handle(), worker.stats());
    let run = worker.run(|_: Job<Vec<u8>>, _: JobContext| async { Ok(()) });
    let running = tokio::spawn(run);
    complete(numbers, &system, &["/jobs/count"], keys, stats).await?;
    stop(system, handle, running).await
}

/// Completes jobs of twenty queues in turn with one worker.
async fn kinds(
    numbers: [u64; 2],
    worker: fn(Worker, Completed) -> Subscription<Identity, Kinds<Completed>>,
) -> anyhow::Result<()> {
    let (_folder, system) = system(0).await?;
    let worker = worker(system.worker(), Completed::default());
    let worker = worker.concurrency(CONCURRENCY).prefetch(PREFETCH);
    let (handle, stats) = (worker.shutdown_handle(), worker.stats());
    let running = tokio::spawn(worker.run());
    complete(numbers, &system, &QUEUES, 0, stats).await?;
    stop(system, handle, running).await
}

/// A system, with a limit for each key if jobs have any.
async fn system(keys: u64) -> anyhow::Result<(TempDir, System)> {
    let folder = tempfile::tempdir()?;
    let mut options = SystemOptions::new(folder.path());
    // Without syncs: their number depends on the speed of the disk.
    options.publisher.durability = Durability::None;
    let system = System::start_with(options).await?;
    if keys > 0 {
        let limit = JobLimit {
            name: "count".to_owned(),
            pattern: Glob::everything(),
            scope: LimitScope::Key,
            concurrency: Some(10),
            rate: None,
        };
        system.queues().set_limit(limit).await?;
    }
    Ok((folder, system))
}

/// Enqueues jobs in batches, in turn into each of these queues. Their payloads are the number of
/// the queue.
async fn enqueue(system: &System, number: u64, paths: &[&str], keys: u64) -> anyhow::Result<()> {
    let paths: Vec<Path> = paths.iter().map(|path| Path::new(path)).collect::<Result<_, _>>()?;
    let producer = system.producer();
    for batch in 0..number / BATCH {
        let paths = (0u8..).zip(&paths).cycle().zip(batch * BATCH..(batch + 1) * BATCH);
        let jobs = paths.map(|((queue, path), job)| {
            let plain = new_job(path.clone(), vec![queue; BYTES]);
            match job.checked_rem(keys) {
                None => plain,
                Some(key) => {
                    let key = format!("account-{key}");
                    plain.order_key(key.clone()).limit_key(key)
                }
            }
        });
        for receipt in producer.enqueue_all(jobs).await {
            receipt.outcome?;
        }
    }
    Ok(())
}

/// Enqueues jobs while the queues are paused, and waits until the worker has completed them.
async fn complete(
    numbers: [u64; 2],
    system: &System,
    paths: &[&str],
    keys: u64,
    stats: StatsWatch,
) -> anyhow::Result<()> {
    let everything = || Glob::everything();
    let mut all = 0;
    counted(numbers, async |number| {
        system.queues().pause(everything()).await?;
        enqueue(system, number, paths, keys).await?;
        system.queues().resume(everything()).await?;
        all += number;
        while stats.now().completed < all {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    })
    .await
}

async fn stop(
    system: System,
    handle: ShutdownHandle,
    running: JoinHandle<Result<WorkerReport, RunError>>,
) -> anyhow::Result<()> {
    handle.drain();
    running.await??;
    Ok(system.stop().await?)
}

/// Updates all values repeatedly; each round is received before the next begins.
async fn values(numbers: [u64; 2]) -> anyhow::Result<()> {
    let resolver = RunningReplica::local().await?;
    let publisher = ValuePublisher::connect(resolver.cluster()).await?;
    let paths = (0..VALUES).map(|n| Path::new(&format!("/values/{n}")));
    let paths: Vec<Path> = paths.collect::<Result<_, _>>()?;
    let values = publisher.values();
    let published =
        paths.iter().map(|path| values.publish(path.clone(), Value::Bytes(vec![0; BYTES].into())));
    let published: Vec<_> = published.collect::<Result<_, _>>()?;
    publisher.ready().await;
    let subscriber = Subscriber::connect(resolver.cluster());
    let mut updates = Updates::new(2 * VALUES as usize);
    let options = SubscribeOptions { into: Some(updates.sink()), ..SubscribeOptions::default() };
    let subscriptions = subscriber.durable_subscribe_all(paths, &options);
    receive(&mut updates).await;
    let mut batch = values.batch();
    counted(numbers, async |number| {
        for round in 0..number / VALUES {
            for value in &published {
                batch.update(value, Value::Bytes(vec![round as u8; BYTES].into()))?;
            }
            batch.commit();
            receive(&mut updates).await;
        }
        Ok(())
    })
    .await?;
    drop(subscriptions);
    publisher.stop().await;
    resolver.stop().await?;
    Ok(())
}

/// Receives one update per value.
async fn receive(updates: &mut Updates) {
    let mut received = 0;
    while received < VALUES as usize {
        received += updates.next().await.len();
    }
}

/// Registers new paths at a replica, a batch at a time.
async fn registrations(numbers: [u64; 2]) -> anyhow::Result<()> {
    let (replica, writer) = directory().await?;
    let mut next = 0;
    counted(numbers, async |number| {
        for _ in 0..number / BATCH {
            register(&writer, next..next + BATCH).await?;
            next += BATCH;
        }
        Ok(())
    })
    .await?;
    replica.stop().await?;
    Ok(())
}

/// Resolves the same paths repeatedly, a batch at a time.
async fn resolutions(numbers: [u64; 2]) -> anyhow::Result<()> {
    let (replica, writer) = directory().await?;
    let registered = register(&writer, 0..RESOLVED).await?;
    let reader = ReadClient::connect(replica.cluster());
    counted(numbers, async |number| {
        for _ in 0..number / RESOLVED {
            let answers = reader.resolve(registered.clone()).await?.answers;
            let found = |answer: &PathAnswer| matches!(answer, PathAnswer::Publishers { .. });
            anyhow::ensure!(answers.iter().all(found), "a registered path was not found");
        }
        Ok(())
    })
    .await?;
    replica.stop().await?;
    Ok(())
}

/// A replica, and a publisher's client.
async fn directory() -> anyhow::Result<(RunningReplica, WriteClient)> {
    let replica = RunningReplica::local().await?;
    let address = [([127, 0, 0, 1], 1)];
    let publisher = PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "count", address);
    let writer = WriteClient::connect(replica.cluster(), publisher);
    Ok((replica, writer))
}

/// Registers paths of 30 bytes, and returns them once the replica has acknowledged them.
async fn register(writer: &WriteClient, numbers: Range<u64>) -> anyhow::Result<Vec<Path>> {
    let path = |n| Path::new(&format!("/count/{:05}/job-{n:013}", n / BATCH));
    let paths: Vec<Path> = numbers.map(path).collect::<Result<_, _>>()?;
    let terms = CheckedTerms::default();
    writer.publish_all(paths.iter().map(|path| (path.clone(), terms.clone())));
    writer.flushed(1).await;
    Ok(paths)
}
