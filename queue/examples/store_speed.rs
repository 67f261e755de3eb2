//! How fast a store takes jobs from enqueue to settle, durably: batches of 500 jobs of 256 bytes on the file system of the
//! temporary directory (or of the first argument), then how fast it recovers.
//!
//! ```text
//! cargo run --release -p longshore-queue --example store_speed [DIR [JOBS]]
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    BatchBuilder, EnqueueBatch, NewSettle, SealedBatch, SettleBatch, SettleBatchBuilder, Sources,
    Tokens,
};
use longshore_protocol::{Glob, JobId, LinkId, NewJob, Path, Role, SessionId};
use longshore_queue::{Clock, Command, Released, Store, StoreOptions};

const BATCH_JOBS: usize = 500;
const PAYLOAD_BYTES: usize = 256;
/// Batches sent and not yet settled.
const BATCHES_IN_FLIGHT: usize = 32;
const PRODUCER: LinkId = LinkId(1);
const WORKER: LinkId = LinkId(2);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let jobs: usize = arguments.next().map_or(Ok(1_000_000), |jobs| jobs.parse())?;
    let dir = dir.join(format!("store-speed-{}", std::process::id()));
    let measured =
        tokio::runtime::Builder::new_current_thread().build()?.block_on(measure(&dir, jobs));
    let recovered = measured.and_then(|()| recover(&dir));
    std::fs::remove_dir_all(&dir)?;
    recovered
}

async fn measure(dir: &std::path::Path, jobs: usize) -> Result<(), Box<dyn Error>> {
    let batches = (jobs / BATCH_JOBS).max(1);
    let made: Vec<SealedBatch> = (0..batches).map(batch).collect::<Result<_, _>>()?;
    let made: Vec<EnqueueBatch> = made
        .iter()
        .enumerate()
        .map(|(n, batch)| batch.to_batch(n as u64 + 1))
        .collect::<Result<_, _>>()?;
    let (mut store, mut clock, _) = Store::open(dir, StoreOptions::default())?;
    link(&mut store, &mut clock, PRODUCER, Role::Producer)?;
    link(&mut store, &mut clock, WORKER, Role::Worker)?;
    let now = clock.now();
    let pattern: Glob = "/jobs/**".parse()?;
    store.submit(
        now,
        Command::Subscribe { link: WORKER, subscription: 1, sources: Sources::one(pattern) },
    )?;
    let credits = (BATCHES_IN_FLIGHT * BATCH_JOBS) as u32;
    store.submit(now, Command::Credit { link: WORKER, subscription: 1, count: credits })?;

    let before = store.figures(now);
    let began = Instant::now();
    let mut released = Released::default();
    let (mut sent, mut settled, mut settles, mut read) = (0, 0, 0, 0);
    let mut made = made.into_iter();
    let mut waits = Vec::new();
    while settled < batches * BATCH_JOBS {
        let now = clock.now();
        while sent - settled / BATCH_JOBS < BATCHES_IN_FLIGHT {
            let Some(batch) = made.next() else { break };
            store.submit(now, Command::Enqueue { link: PRODUCER, batch })?;
            sent += 1;
        }
        for handed in released.handed.chunks(BATCH_JOBS) {
            let mut batch = SettleBatchBuilder::new();
            for job in handed {
                read += store.payload(job.entry).map_or(0, |entry| entry.len());
                batch.push(job.token, &NewSettle::Complete { result: None });
            }
            settles += 1;
            let batch = SettleBatch::decode(batch.seal(settles))?;
            let count = handed.len() as u32;
            settled += handed.len();
            store.submit(now, Command::Settle { link: WORKER, batch })?;
            store.submit(now, Command::Credit { link: WORKER, subscription: 1, count })?;
        }
        released.handed.clear();
        released.replies.clear();
        store.turn(now)?;
        store.flush();
        let waited = Instant::now();
        store.released(&mut released).await?;
        waits.push(waited.elapsed());
    }
    while store.committed() < store.appended() {
        store.released(&mut released).await?;
    }
    let took = began.elapsed();
    let after = store.figures(clock.now());
    let payload = (batches * BATCH_JOBS * PAYLOAD_BYTES) as f64;
    let written = (after.written_bytes - before.written_bytes) as f64;
    let jobs = (batches * BATCH_JOBS) as f64;
    println!("{:.0} jobs/s enqueued, delivered, settled, durable", jobs / took.as_secs_f64());
    println!("{:.3} bytes written per payload byte", written / payload);
    println!("{:.0} syncs/s", (after.syncs - before.syncs) as f64 / took.as_secs_f64());
    println!("{:.0} MB of entries read", read as f64 / 1e6);
    let waiting: std::time::Duration = waits.iter().sum();
    println!(
        "{:.0} % of the time waiting for commits",
        100.0 * waiting.as_secs_f64() / took.as_secs_f64()
    );

    // One job at a time: what a commit costs.
    let mut times = Vec::new();
    for n in 0..1_000 {
        let batch = single(batches + n)?.to_batch((batches + n) as u64 + 1)?;
        let began = Instant::now();
        store.submit(clock.now(), Command::Enqueue { link: PRODUCER, batch })?;
        while store.committed() < store.appended() {
            store.released(&mut released).await?;
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!("one job: p50 {:?}, p99 {:?} from submit to release", times[500], times[990]);
    Ok(())
}

fn recover(dir: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let (_, _, opened) = Store::open(dir, StoreOptions::default())?;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "recovered {} commands, {:.0} MB, in {seconds:.2} s: {:.0} MB/s",
        opened.records,
        opened.bytes as f64 / 1e6,
        opened.bytes as f64 / 1e6 / seconds
    );
    Ok(())
}

fn link(
    store: &mut Store,
    clock: &mut Clock,
    link: LinkId,
    role: Role,
) -> Result<(), Box<dyn Error>> {
    let session = SessionId([link.0 as u8; 16]);
    let (name, resume) = ("store_speed".to_owned(), Tokens::default());
    store.submit(clock.now(), Command::LinkUp { link, role, session, name, resume })?;
    Ok(())
}

fn batch(n: usize) -> Result<SealedBatch, Box<dyn Error>> {
    jobs(n * BATCH_JOBS, BATCH_JOBS)
}

fn single(n: usize) -> Result<SealedBatch, Box<dyn Error>> {
    jobs((1 << 40) + n, 1)
}

fn jobs(first: usize, count: usize) -> Result<SealedBatch, Box<dyn Error>> {
    let path: Path = "/jobs/speed".parse()?;
    let payload = Bytes::from(vec![7; PAYLOAD_BYTES]);
    let mut batch = BatchBuilder::new();
    for n in first..first + count {
        let mut random = [0; 10];
        random[2..].copy_from_slice(&(n as u64).to_be_bytes());
        batch.push(&NewJob::new(
            path.clone(),
            JobId::new_v7(n as u64 >> 20, random),
            payload.clone(),
        ));
    }
    Ok(batch.seal(false))
}
