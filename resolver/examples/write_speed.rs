//! What publishing many paths costs: memory per path that is wanted, how long a publisher waits, and how many reach a replica a second.
//!
//!     cargo run --release -p longshore-resolver --example write_speed [PATHS] [REPLICA]
//!
//! Without a replica's address, as `host:port`, it starts one of its own in a thread: then the processor time of the client's thread is
//! told apart from the replica's. The write client runs on one thread, like a publisher's.

use std::error::Error;
use std::time::{Duration, Instant};

use longshore_protocol::{Epoch, Path, PublisherId, PublisherInfo, SessionId};
use longshore_resolver::{Cluster, PublicationTerms, ResolverServer, ServerOptions, WriteClient};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let replica = match arguments.next() {
        Some(replica) => replica,
        None => start_replica()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        memory(count)?;
        speed(count, replica).await
    })
}

/// A replica on a thread of its own.
fn start_replica() -> Result<String, Failure> {
    let (ready, address) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("replica".into()).spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let options = ServerOptions { fresh: true, ..ServerOptions::default() };
            let server = ResolverServer::bind(([127, 0, 0, 1], 0).into(), options).await?;
            ready.send(server.local_address().to_string())?;
            server.run(std::future::pending()).await?;
            Ok(())
        })
    })?;
    Ok(address.recv()?)
}

/// Paths of 30 bytes, a thousand below each parent.
fn paths(count: usize) -> impl Iterator<Item = Path> {
    (0..count)
        .filter_map(|n| Path::new(&format!("/jobs/queue-{:010}/{:05}", n / 1_000, n % 1_000)).ok())
}

fn client(cluster: Cluster) -> WriteClient {
    let publisher = PublisherInfo {
        id: PublisherId([7; 16]),
        epoch: Epoch(1),
        name: "write-speed".into(),
        addresses: vec![([127, 0, 0, 1], 4771).into()],
        later: Default::default(),
    };
    WriteClient::new(cluster, publisher, SessionId([7; 16]))
}

/// Of a client without replicas: what is wanted, and nothing else.
fn memory(count: usize) -> Result<(), Failure> {
    let client = client(Cluster::new(Vec::<String>::new()));
    let terms = PublicationTerms::default();
    let before = resident()?;
    client.publish_all(paths(count).map(|path| (path, terms.clone())));
    let bytes = resident()?.saturating_sub(before);
    println!("wanted: {:.1} bytes of resident memory per path", bytes as f64 / count as f64);
    Ok(())
}

async fn speed(count: usize, replica: String) -> Result<(), Failure> {
    let client = client(Cluster::new([replica]));
    client.flushed(1).await;
    let terms = PublicationTerms::default();
    let paths: Vec<Path> = paths(count).collect();
    let (begun, used) = (Instant::now(), thread_time()?);
    let publishing = client.clone();
    let recording = tokio::task::spawn_blocking(move || -> Result<Duration, Failure> {
        let used = thread_time()?;
        publishing.publish_all(paths.into_iter().map(|path| (path, terms.clone())));
        Ok(thread_time()? - used)
    });
    // Queues that are made meanwhile, as a publisher's owner would.
    let mut waits = Vec::new();
    for n in 0..200 {
        let path = Path::new(&format!("/meanwhile/{n}"))?;
        let (begun, queued) = (Instant::now(), thread_queued()?);
        client.publish(path, &PublicationTerms::default());
        let waited = begun.elapsed();
        waits.push((waited, thread_queued()? - queued));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let recorded = recording.await??;
    client.flushed(1).await;
    let (all, used) = (begun.elapsed(), thread_time()? - used);
    waits.sort_unstable();
    let per_path = |time: Duration| time.as_nanos() as f64 / count as f64;
    println!("at the replica after {all:?}: {:.0} paths/s", count as f64 / all.as_secs_f64());
    println!(
        "processor time: recording {:.0} ns a path, telling the replica {:.0}",
        per_path(recorded),
        per_path(used)
    );
    let (longest, queued) = waits[199];
    println!("a publish meanwhile takes {:?}, at most {longest:?}", waits[100].0);
    println!("of which it was ready, and another had the processor, for {queued:?}");
    let blocked = waits.iter().map(|(took, queued)| took.saturating_sub(*queued)).max();
    println!("without that: at most {:?}", blocked.unwrap_or_default());
    client.close(Duration::from_secs(2)).await;
    Ok(())
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<usize, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).ok_or("no resident pages in statm")?.parse()?;
    Ok(pages * 4_096)
}

/// Processor time of this thread.
fn thread_time() -> Result<Duration, Failure> {
    schedstat(0)
}

/// For how long this thread was ready to run while others had the processors.
fn thread_queued() -> Result<Duration, Failure> {
    schedstat(1)
}

fn schedstat(field: usize) -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = stat.split(' ').nth(field).ok_or("a short schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}
