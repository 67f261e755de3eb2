//! A publisher whose disk fills up: 64 MiB of memory mounted for it alone, segments of 1 MiB.
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
    BatchOptions, Cluster, EnqueueError, Glob, Job, JobContext, NewJob, Path, Producer,
    ProducerOptions, Queues, Worker, new_job,
};
use rustix::fs::{FallocateFlags, fallocate};

const QUEUE: &str = "/jobs/full";
const MIB: u64 = 1024 * 1024;
const DISK_MIB: u64 = 64;
const PAYLOAD_BYTES: usize = 4_000;
const BATCH_JOBS: usize = 100;
/// How long it may take until a full disk is as it has to be.
const FULL_WITHIN: Duration = Duration::from_secs(30);
/// What something else has on the disk, until an operator removes it.
const BALLAST_MIB: u64 = 24;

/// A replica, and a publisher on a disk of its own.
struct SmallDisk {
    resolver: Service,
    publisher: Service,
    /// The disk, as seen from here.
    disk: PathBuf,
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// None where mounting is not permitted.
    fn start() -> Option<SmallDisk> {
        let may_mount = Command::new("unshare")
            .args(["-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"])
            .output()
            .is_ok_and(|tried| tried.status.success());
        if !may_mount {
            eprintln!(
                "SKIPPED: this machine lets nobody mount a small disk (unshare -rm, mount -t tmpfs)"
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("config.toml");
        std::fs::write(&configuration, "[publisher]\nsegment_bytes = 1048576\n").unwrap();
        let resolver = Service::start(longshore(&[
            "resolver",
            "--json",
            "--fresh",
            "--listen",
            "127.0.0.1:0",
        ]));
        let mount = folder.path().join("disk");
        std::fs::create_dir(&mount).unwrap();
        // The mount is the publisher's alone, and goes with it.
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o size=\"$1\"m tmpfs \"$2\" && shift 2 && exec \"$@\"";
        command.args(["-rm", "sh", "-c", script, "sh", &DISK_MIB.to_string()]).arg(&mount);
        command.arg(env!("CARGO_BIN_EXE_longshore"));
        command.args(["publisher", "--json", "--default", "/", "--listen", "127.0.0.1:0"]);
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

    /// Room that something else takes, or gives back.
    fn ballast(&self, mib: u64) {
        let file = File::create(self.disk.join("ballast")).unwrap();
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

/// Enqueues batches of so many until one is refused for want of room, then single jobs until one
/// is; gives what was acknowledged.
async fn fill(producer: &Producer, mut at_a_time: usize) -> HashSet<JobId> {
    let mut acknowledged = HashSet::new();
    loop {
        let mut refused = 0;
        for receipt in producer.enqueue_all(jobs(at_a_time), BatchOptions::default()).await {
            match receipt.outcome {
                Ok(_) => assert!(acknowledged.insert(receipt.id)),
                Err(EnqueueError::Refused { refusal: Refusal::NoSpace, .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        if refused > 0 && at_a_time == 1 {
            return acknowledged;
        }
        if refused > 0 {
            at_a_time = 1;
        }
        assert!(acknowledged.len() < 100_000, "the disk is never full");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_jobs_but_settles_and_recovers() {
    let Some(mut system) = SmallDisk::start() else { return };
    eventually("the publisher is registered", || async { system.run(&["check"]).code == 0 }).await;
    system.ballast(BALLAST_MIB);
    let producer = Producer::connect(system.cluster(), ProducerOptions::default());
    let mut acknowledged = fill(&producer, BATCH_JOBS).await;
    // 40 MiB less the ballast and four segments hold at least 7,000 jobs of 4 kB. That one was
    // refused does not say that the next one is: while a cycle of the journal runs it needs room,
    // and when it ends it has made some. A full disk says so: to who enqueues, to who checks, to
    // who looks.
    let began = Instant::now();
    let tells_it = || {
        let check = system.run(&["check"]);
        let stat = system.run(&["stat"]).code(0);
        check.code != 0
            && check.stdout.contains("short of room")
            && stat.stdout.contains("refuses new jobs (NoSpace)")
    };
    while acknowledged.len() < 6_000 || !tells_it() {
        let taken = acknowledged.len();
        assert!(began.elapsed() < FULL_WITHIN, "not full within {FULL_WITHIN:?}; {taken} taken");
        acknowledged.extend(fill(&producer, 1).await);
    }
    // What a cycle writes takes the place of the ballast, which has its length again at its end.
    let ballast = || {
        let stat = system.run(&["stat", "--json"]).json();
        stat["publishers"][0]["ballast_bytes"].as_u64().unwrap()
    };
    eventually("the ballast is whole", || async { ballast() >= 2 * MIB }).await;
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

    // Workers go on, to the last job.
    let ran = Arc::new(Mutex::new(HashSet::new()));
    let worker = Worker::connect(system.cluster()).await.unwrap().durable_subscribe(QUEUE);
    let worker = worker.concurrency(16).prefetch(500);
    let (handle, noted) = (worker.handle(), ran.clone());
    let working = tokio::spawn(worker.run(move |_: Job<Bytes>, context: JobContext| {
        let again = !noted.lock().unwrap().insert(context.id());
        assert!(!again, "each runs once");
        async { Ok(()) }
    }));
    let all = acknowledged.len() as u64 + by_hand;
    eventually("all that was taken is done", || async { system.completed().await == all }).await;
    assert!(system.publisher.is_running(), "it never ends for want of room");
    // What is done is kept, and the disk as full as it was.
    acknowledged.extend(fill(&producer, 1).await);

    // Room, from somebody who knows nothing of Longshore.
    system.ballast(0);
    let resumed = eventually("jobs are taken again", || async {
        let receipt = producer.enqueue(jobs(1).remove(0)).await;
        receipt.is_ok()
    })
    .await;
    assert!(resumed < Duration::from_secs(10), "after {resumed:?}");
    eventually("check is content again", || async { system.run(&["check"]).code == 0 }).await;
    let before = acknowledged.len();
    while acknowledged.len() < before + 2_000 {
        let more = acknowledged.len() - before;
        assert!(began.elapsed() < 3 * FULL_WITHIN, "{more} more were taken");
        acknowledged.extend(fill(&producer, BATCH_JOBS).await);
    }
    let all = acknowledged.len() as u64 + by_hand + 1;
    eventually("those, too", || async { system.completed().await == all }).await;
    handle.drain();
    working.await.unwrap().unwrap();
    let ran = std::mem::take(&mut *ran.lock().unwrap());
    assert!(acknowledged.iter().all(|id| ran.contains(id)), "nothing is lost");
    let stats = system.direct_queues().stats(Glob::everything()).await.unwrap().merged();
    assert_eq!(stats.iter().map(|queue| queue.stale_refused).sum::<u64>(), 0);
    assert!(system.publisher.is_running());
    assert_eq!(system.publisher.stop(), 0);
}
