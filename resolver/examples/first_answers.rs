//! How long a reader waits for the first answer to a watch over publishers, beside other clients
//! with thousands of globs that have no literal prefix or a large subtree. The replica is a process
//! of its own; the writer and all readers share this one.
//!
//!     cargo run --release -p longshore-resolver --example first_answers -- PATHS GLOBS CLIENTS
//!
//! GLOBS are those of the other clients, over all CLIENTS.

#[path = "../tests/suite/common/process.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    reason = "shared with the tests, which use more of it"
)]
mod process;

use std::process::Command;
use std::time::{Duration, Instant};

use longshore_protocol::{Epoch, Glob, Path, PublisherId, PublisherInfo, ResolverTiming};
use longshore_resolver::{CheckedTerms, Cluster, PublisherWatch, ReadClient, WriteClient};
use process::ReplicaProcess;
use tokio::task::JoinSet;
use tokio::time::timeout;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Paths below one parent.
const SIBLINGS: usize = 1_000;
/// Parents in one group: fewer than 10,000 nodes lie below it.
const PARENTS: usize = 9;
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 5;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    if process::is_replica() {
        return process::serve().await;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| match arguments.get(at) {
        Some(text) => text.parse(),
        None => Ok(otherwise),
    };
    let (paths, globs, clients) = (number(0, 1_000_000)?, number(1, 4_096)?, number(2, 1)?);

    let itself = Command::new(std::env::current_exe()?);
    let writer_ttl = ResolverTiming::default().writer_ttl;
    let replica = ReplicaProcess::start(itself, ([127, 0, 0, 1], 0).into(), true, writer_ttl)?;
    let cluster = Cluster::new([replica.address.to_string()]);
    let publisher =
        PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "publisher", [([127, 0, 0, 1], 4000)]);
    let writer = WriteClient::connect(cluster.clone(), publisher);
    let all: Result<Vec<Path>, _> = (0..paths).map(|n| Path::new(&path(n))).collect();
    writer.publish_all(all?.into_iter().map(|path| (path, CheckedTerms::default())));
    writer.flushed(1).await;
    println!("{paths} paths, replica {} MiB", replica.resident() >> 20);

    let middle = paths / 2;
    let asked = [
        ("literal path", path(middle)),
        ("9,009 nodes below", format!("/load/{:03}/**", middle / SIBLINGS / PARENTS)),
        ("everything", "/**".into()),
        ("all below a prefix", "/load/**".into()),
    ];
    let reader = || ReadClient::builder().name("reader").connect(cluster.clone());
    measure("alone", &reader(), &asked).await?;

    let others: Vec<ReadClient> = (0..clients)
        .map(|_| ReadClient::builder().name("other").connect(cluster.clone()))
        .collect();
    let mut watches: Vec<PublisherWatch> = Vec::new();
    for n in 0..globs {
        let glob = match n % 3 {
            0 => format!("/*/x{n}"),
            1 => format!("/**/y{n}"),
            _ => format!("/load/**/z{n}"),
        };
        watches.push(others[n % clients].watch_publishers(Glob::new(&glob)?));
    }
    let status = reader();
    while status.replica_status().await.remove(0).1?.watches < globs as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let beside = format!("beside {globs} globs of {clients} clients");
    let connected = reader();
    measure(&beside, &connected, &asked).await?;
    // All at once over a new link, as when a reader moves to a replica.
    let begun = Instant::now();
    let turned = reader();
    let mut waits = JoinSet::new();
    for (name, glob) in &asked {
        let mut watch = turned.watch_publishers(Glob::new(glob)?);
        let what = format!("{beside}, over a new link, {name}");
        waits.spawn(async move {
            let answered = timeout(PATIENCE, watch.changed()).await.is_ok();
            println!("  {what}: {}", shown(begun, answered));
        });
    }
    waits.join_all().await;
    let status = status.replica_status().await.remove(0).1?;
    println!(
        "replica {} MiB, slowest pass {} us, processor {:?}",
        replica.resident() >> 20,
        status.slice_max_us,
        replica.used()
    );
    Ok(())
}

/// The path of that number: 30 bytes.
fn path(number: usize) -> String {
    let parent = number / SIBLINGS;
    format!("/load/{:03}/{parent:04}/job-{number:011}", parent / PARENTS)
}

async fn measure(
    beside: &str,
    reader: &ReadClient,
    asked: &[(&str, String)],
) -> Result<(), Failure> {
    // Establish the link before the measurement.
    reader.resolve(vec![Path::new("/load")?]).await?;
    for (name, glob) in asked {
        let mut took = Vec::new();
        for _ in 0..ATTEMPTS {
            let begun = Instant::now();
            let mut watch = reader.watch_publishers(Glob::new(glob)?);
            let answered = timeout(PATIENCE, watch.changed()).await.is_ok();
            took.push(shown(begun, answered));
            if !answered {
                break;
            }
        }
        println!("  {beside}, {name} ({glob}): {}", took.join(", "));
    }
    Ok(())
}

fn shown(begun: Instant, answered: bool) -> String {
    if answered { format!("{:.1?}", begun.elapsed()) } else { format!("over {PATIENCE:?}") }
}
