//! What many watches of one subtree cost while it changes: how long until the last of them is told,
//! and the replica's processor time and memory. The replica is a process of its own; writer and
//! watchers share this one.
//!
//!     cargo run --release -p longshore-resolver --example watches_speed -- [WATCHES] [LINKS] [CHANGES] [SECONDS] [PATHS]
//!
//! CHANGES is for each second. A change costs its watchers something too: where this process has no
//! time left, the replica tells it of many changes at once.

#[path = "../tests/suite/common/crowd.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    reason = "shared with the tests, which use more of it"
)]
mod crowd;
#[path = "../tests/suite/common/process.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    reason = "shared with the tests, which use more of it"
)]
mod process;

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crowd::{Crowd, Writer};
use longshore_protocol::{ResolverTiming, SessionId};
use longshore_resolver::{Cluster, ReadClient};
use process::ReplicaProcess;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How often a change is followed to the last watcher, and the replica's memory looked at.
const MARK_EVERY: Duration = Duration::from_millis(100);
/// How often it is looked whether everybody has been told.
const LOOK: Duration = Duration::from_millis(20);
const MIB: u64 = 1024 * 1024;

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
    let (watches, links) = (number(0, 10_000)?, number(1, 40)?);
    let (rate, seconds, paths) = (number(2, 1_000)?, number(3, 10)?, number(4, 500)?);

    let writer_ttl = ResolverTiming::default().writer_ttl;
    let itself = Command::new(std::env::current_exe()?);
    let replica = ReplicaProcess::start(itself, ([127, 0, 0, 1], 0).into(), true, writer_ttl)?;
    let cluster = Cluster::new([replica.address.to_string()]);
    let mut writer = Writer::new(&cluster, paths, 1);
    writer.begin();
    writer.flushed(1).await;
    let before = replica.resident();

    let since = Instant::now();
    let lasts = Duration::from_secs(seconds as u64);
    let marks = (lasts.as_millis() / MARK_EVERY.as_millis()) as usize;
    let crowd = Crowd::start(&cluster, watches, links, paths, marks);
    let mut most = before;
    all_told(&crowd, &writer, &replica, &mut most).await;
    let (connected, used) = (replica.resident(), replica.used());
    println!(
        "{watches} watches over {links} links, {paths} paths: all told after {:?}, replica {used:?}",
        since.elapsed()
    );

    let (events, own_used, since) =
        (crowd.events.load(Ordering::Relaxed), process::used_by("self"), Instant::now());
    let mut changes = 0;
    while since.elapsed() < lasts {
        writer.mark(&crowd.marks);
        changes += writer.run(rate, MARK_EVERY).await;
        most = most.max(replica.resident());
    }
    let ran = since.elapsed();
    writer.flushed(1).await;
    all_told(&crowd, &writer, &replica, &mut most).await;
    let settled = since.elapsed() - ran;
    let marks = loop {
        if let Some(took) = crowd.marks.took() {
            break took;
        }
        tokio::time::sleep(LOOK).await;
    };
    let used = replica.used() - used;
    let told = crowd.events.load(Ordering::Relaxed) - events;
    println!(
        "{changes} changes in {ran:?}: {:.0} a second; {:.0} told a second; all true {settled:?} after the last",
        changes as f64 / ran.as_secs_f64(),
        told as f64 / (ran + settled).as_secs_f64()
    );
    println!(
        "to the last watcher: p50 {:?} p99 {:?} max {:?} of {} changes",
        part(&marks, 0.5),
        part(&marks, 0.99),
        part(&marks, 1.0),
        marks.len()
    );
    println!(
        "processor time: replica {used:?}, {:.1} ns for each change and watcher; this process {:?}",
        used.as_nanos() as f64 / (changes * watches) as f64,
        process::used_by("self") - own_used,
    );
    drop(crowd);
    let after = without_watches(&cluster, &replica).await?;
    println!(
        "replica's memory in MiB: before {}, with the watches {}, at most {}, without them again {}",
        before / MIB,
        connected / MIB,
        most / MIB,
        after / MIB
    );
    Ok(())
}

/// The replica's memory once it has noticed that the watches' links have ended.
async fn without_watches(cluster: &Cluster, replica: &ReplicaProcess) -> Result<u64, Failure> {
    let client = ReadClient::new(cluster.clone(), SessionId([5; 16]), "looking");
    while client.replica_status().await.remove(0).1?.watches > 0 {
        tokio::time::sleep(LOOK).await;
    }
    Ok(replica.resident())
}

/// Waits until every watch believes what is true.
async fn all_told(crowd: &Crowd, writer: &Writer, replica: &ReplicaProcess, most: &mut u64) {
    let truth = writer.truth();
    while crowd.astray(&truth) > 0 {
        *most = (*most).max(replica.resident());
        tokio::time::sleep(LOOK).await;
    }
}

fn part(sorted: &[Duration], part: f64) -> Duration {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}
