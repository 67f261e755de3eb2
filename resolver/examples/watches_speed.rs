//! The cost of many watches of one subtree while it changes: the time until the last of them has
//! received a change, and the replica's processor time and memory. The replica is a process of its
//! own; writer and watchers share this one.
//!
//!     cargo run --release -p longshore-resolver --example watches_speed -- \
//!         [WATCHES] [LINKS] [CHANGES] [SECONDS] [PATHS]
//!
//! CHANGES is per second. A change also costs its watchers time: where this process has none left,
//! the replica sends many changes at once.

#[path = "../tests/suite/common/process.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    reason = "shared with the tests, which use more of it"
)]
mod process;
#[path = "../tests/suite/common/watchers.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    reason = "shared with the tests, which use more of it"
)]
mod watchers;

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use longshore_protocol::ResolverTiming;
use longshore_resolver::{Cluster, ReadClient};
use process::ReplicaProcess;
use watchers::{WatcherGroup, Writer};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How often a change is timed to the last watcher, and the replica's memory is measured.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How often to check whether all watches are up to date.
const CHECK_EVERY: Duration = Duration::from_millis(20);
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
    let probes = (lasts.as_millis() / PROBE_EVERY.as_millis()) as usize;
    let watchers = WatcherGroup::start(&cluster, watches, links, paths, probes);
    let mut most = before;
    all_up_to_date(&watchers, &writer, &replica, &mut most).await;
    let (connected, used) = (replica.resident(), replica.used());
    println!(
        "{watches} watches over {links} links, {paths} paths: all up to date after {:?}, \
         replica {used:?}",
        since.elapsed()
    );

    let (events, own_used, since) =
        (watchers.events.load(Ordering::Relaxed), process::used_by("self"), Instant::now());
    let mut changes = 0;
    while since.elapsed() < lasts {
        writer.probe(&watchers.probes);
        changes += writer.run(rate, PROBE_EVERY).await;
        most = most.max(replica.resident());
    }
    let ran = since.elapsed();
    writer.flushed(1).await;
    all_up_to_date(&watchers, &writer, &replica, &mut most).await;
    let settled = since.elapsed() - ran;
    let probes = loop {
        if let Some(took) = watchers.probes.took() {
            break took;
        }
        tokio::time::sleep(CHECK_EVERY).await;
    };
    let used = replica.used() - used;
    let received = watchers.events.load(Ordering::Relaxed) - events;
    println!(
        "{changes} changes in {ran:?}: {:.0} a second; {:.0} events a second; \
         all up to date {settled:?} after the last",
        changes as f64 / ran.as_secs_f64(),
        received as f64 / (ran + settled).as_secs_f64()
    );
    println!(
        "to the last watcher: p50 {:?} p99 {:?} max {:?} of {} changes",
        part(&probes, 0.5),
        part(&probes, 0.99),
        part(&probes, 1.0),
        probes.len()
    );
    println!(
        "processor time: replica {used:?}, {:.1} ns for each change and watcher; this process {:?}",
        used.as_nanos() as f64 / (changes * watches) as f64,
        process::used_by("self") - own_used,
    );
    drop(watchers);
    let after = without_watches(&cluster, &replica).await?;
    println!(
        "replica's memory in MiB: before {}, with the watches {}, at most {}, \
         without them again {}",
        before / MIB,
        connected / MIB,
        most / MIB,
        after / MIB
    );
    Ok(())
}

/// The replica's memory once it has noticed that the watches' links have ended.
async fn without_watches(cluster: &Cluster, replica: &ReplicaProcess) -> Result<u64, Failure> {
    let client = ReadClient::builder().name("status").connect(cluster.clone());
    while client.replica_status().await.remove(0).1?.watches > 0 {
        tokio::time::sleep(CHECK_EVERY).await;
    }
    Ok(replica.resident())
}

/// Waits until every watch has the current state.
async fn all_up_to_date(
    watchers: &WatcherGroup,
    writer: &Writer,
    replica: &ReplicaProcess,
    most: &mut u64,
) {
    let expected = writer.expected();
    while watchers.differing(&expected) > 0 {
        *most = (*most).max(replica.resident());
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

fn part(sorted: &[Duration], part: f64) -> Duration {
    let index = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or_default()
}
