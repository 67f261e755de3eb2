//! A publisher whose disk fills up: a private tmpfs of 64 MiB, with segments of 1 MiB.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{CommandOutput, Service, eventually, longshore, run};
use longshore::protocol::{JobId, Refusal};
use longshore::{
    Cluster, EnqueueError, Glob, Job, JobContext, NewJob, Path, Producer, Queues, Worker, new_job,
};
use rustix::fs::{FallocateFlags, fallocate};

const QUEUE: &str = "/jobs/full";
const MIB: u64 = 1024 * 1024;
const DISK_MIB: u64 = 64;
const PAYLOAD_BYTES: usize = 4_000;
const BATCH_JOBS: usize = 100;
/// The longest wait until the publisher reports a full disk.
const FULL_TIMEOUT: Duration = Duration::from_secs(30);
/// Space used by another file, until it is removed.
const OTHER_FILE_MIB: u64 = 24;

/// A replica, and a publisher on a small disk.
struct SmallDisk {
    resolver: Service,
    publisher: Service,
    /// The disk's path in this process's mount namespace.
    disk: PathBuf,
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// None if mounting is not permitted.
    fn start() -> Option<SmallDisk> {
        let may_mount = Command::new("unshare")
            .args(["-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"])
            .output()
            .is_ok_and(|tried| tried.status.success());
        if !may_mount {
            eprintln!(
                "SKIPPED: mounting a small disk is not permitted (unshare -rm, mount -t tmpfs)"
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("config.toml");
        std::fs::write(&configuration, "[publisher]\nsegment_bytes = 1048576\n").unwrap();
        let resolver = Service::start(longshore(&[
            "resolver",
            "run",
            "--json",
            "--fresh",
            "--listen",
            "127.0.0.1:0",
        ]));
        let mount = folder.path().join("disk");
        std::fs::create_dir(&mount).unwrap();
        // The mount exists only in the publisher's namespace, and ends with it.
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o size=\"$1\"m tmpfs \"$2\" && shift 2 && exec \"$@\"";
        command.args(["-rm", "sh", "-c", script, "sh", &DISK_MIB.to_string()]).arg(&mount);
        command.arg(env!("CARGO_BIN_EXE_longshore"));
        command.args(["publisher", "run", "--json", "--default", "/", "--listen", "127.0.0.1:0"]);
        command.args(["--resolver", resolver.text("address"), "--data"]).arg(mount.join("data"));
        command.env("HOME", "/nonexistent").env("LONGSHORE_CONFIG", &configuration);
        let publisher = Service::start(command);
        let root = PathBuf::from(format!("/proc/{}/root", publisher.id()));
        let disk = root.join(mount.strip_prefix("/").unwrap());
        Some(SmallDisk { resolver, publisher, disk, folder })
    }

    fn cluster(&self) -> Cluster {
        Cluster::new([self.resolver.text("address")])
    }

    fn direct_queues(&self) -> Queues {
        common::harness::direct_queues(&self.publisher)
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = longshore(&["--resolver", self.resolver.text("address")]);
        command.args(arguments).current_dir(self.folder.path());
        run(command, b"")
    }

    /// Takes space on the disk with another file; 0 frees it.
    fn take_space(&self, mib: u64) {
        let file = File::create(self.disk.join("other")).unwrap();
        if mib > 0 {
            fallocate(&file, FallocateFlags::empty(), 0, mib * MIB).unwrap();
        }
    }

    async fn completed(&self) -> u64 {
        common::harness::stat_of(&self.direct_queues(), QUEUE).await.completed
    }
}

fn jobs(count: usize) -> Vec<NewJob> {
    let payload = Bytes::from(vec![7; PAYLOAD_BYTES]);
    (0..count).map(|_| new_job(Path::new(QUEUE).unwrap(), payload.clone())).collect()
}

/// Enqueues batches until one is refused with `NoSpace`, then single jobs until one is. Returns the
/// acknowledged ids.
async fn fill(producer: &Producer, mut batch: usize) -> HashSet<JobId> {
    let mut acknowledged = HashSet::new();
    loop {
        let mut refused = 0;
        for receipt in producer.enqueue_all(jobs(batch)).await {
            match receipt.outcome {
                Ok(_) => assert!(acknowledged.insert(receipt.id)),
                Err(EnqueueError::Refused { refusal: Refusal::NoSpace, .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        if refused > 0 && batch == 1 {
            return acknowledged;
        }
        if refused > 0 {
            batch = 1;
        }
        assert!(acknowledged.len() < 100_000, "the disk never becomes full");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_jobs_but_settles_and_recovers() {
    let Some(mut system) = SmallDisk::start() else { return };
    eventually("the publisher is registered", || async { system.run(&["check"]).code == 0 }).await;
    system.take_space(OTHER_FILE_MIB);
    let producer = Producer::connect(system.cluster());
    let mut acknowledged = fill(&producer, BATCH_JOBS).await;
    // 40 MiB less the ballast and four segments hold at least 7,000 jobs of 4 kB. One refusal does
    // not mean a full disk: a running compaction cycle needs space, and frees some at its end. A
    // full disk is reported by `enqueue`, `check` and `stat`.
    let began = Instant::now();
    let is_reported = || {
        let check = system.run(&["check"]);
        let stat = system.run(&["stat"]).code(0);
        check.code != 0
            && check.stdout.contains("short of room")
            && stat.stdout.contains("refuses new jobs (NoSpace)")
    };
    while acknowledged.len() < 6_000 || !is_reported() {
        let accepted = acknowledged.len();
        assert!(
            began.elapsed() < FULL_TIMEOUT,
            "not full within {FULL_TIMEOUT:?}; {accepted} accepted"
        );
        acknowledged.extend(fill(&producer, 1).await);
    }
    // A cycle writes into the ballast's space; the ballast has its full size again at the end.
    let ballast = || {
        let stat = system.run(&["stat", "--json"]).json();
        stat["publishers"][0]["ballast_bytes"].as_u64().unwrap()
    };
    eventually("the ballast has its full size", || async { ballast() >= 2 * MIB }).await;
    let mut by_hand = 0;
    let payload = "x".repeat(PAYLOAD_BYTES);
    loop {
        let enqueue = system.run(&["enqueue", QUEUE, &payload]);
        if enqueue.code != 0 {
            enqueue.code(1).stderr_has(&["NoSpace", "resumes by itself"]);
            break;
        }
        by_hand += 1;
        assert!(by_hand < 100, "it is never refused");
        acknowledged.extend(fill(&producer, 1).await);
    }

    // Workers continue to the last job.
    let ran = Arc::new(Mutex::new(HashSet::new()));
    let worker = Worker::connect(system.cluster()).durable_subscribe(QUEUE);
    let worker = worker.concurrency(16).prefetch(500);
    let (handle, runs) = (worker.shutdown_handle(), ran.clone());
    let working = tokio::spawn(worker.run(move |_: Job<Bytes>, context: JobContext| {
        let again = !runs.lock().unwrap().insert(context.id());
        assert!(!again, "each runs once");
        async { Ok(()) }
    }));
    let all = acknowledged.len() as u64 + by_hand;
    eventually("all accepted jobs are done", || async { system.completed().await == all }).await;
    assert!(system.publisher.is_running(), "a full disk does not end the publisher");
    // Completed jobs are retained, so the disk is still full.
    acknowledged.extend(fill(&producer, 1).await);

    // Free space by deleting the other file.
    system.take_space(0);
    let resumed = eventually("jobs are accepted again", || async {
        let receipt = producer.enqueue(jobs(1).remove(0)).await;
        receipt.is_ok()
    })
    .await;
    assert!(resumed < Duration::from_secs(10), "after {resumed:?}");
    eventually("check reports no problem again", || async { system.run(&["check"]).code == 0 })
        .await;
    let before = acknowledged.len();
    while acknowledged.len() < before + 2_000 {
        let more = acknowledged.len() - before;
        assert!(began.elapsed() < 3 * FULL_TIMEOUT, "{more} more were accepted");
        acknowledged.extend(fill(&producer, BATCH_JOBS).await);
    }
    let all = acknowledged.len() as u64 + by_hand + 1;
    eventually("the new jobs are done", || async { system.completed().await == all }).await;
    handle.drain();
    working.await.unwrap().unwrap();
    let ran = std::mem::take(&mut *ran.lock().unwrap());
    assert!(acknowledged.iter().all(|id| ran.contains(id)), "nothing is lost");
    let stats = system.direct_queues().stats(Glob::everything()).await.unwrap().merged();
    assert_eq!(stats.iter().map(|queue| queue.stale_refused).sum::<u64>(), 0);
    assert!(system.publisher.is_running());
    assert_eq!(system.publisher.stop(), 0);
}
