//! A publisher whose disk hangs: its own file system is frozen while jobs are enqueued. A second
//! publisher has a healthy disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::harness::{CONFIGURATION, direct_queues, info_of, stat_of, timing};
use common::notify_socket::NotifySocket;
use common::{CommandOutput, Service, eventually, longshore, run};
use longshore::protocol::handshake::MAGIC;
use longshore::protocol::messages::HEARTBEAT;
use longshore::protocol::{
    Encode, FrameWriter, Handshake, LinkTiming, Messages, Reader, Role, SessionId,
};
use longshore::{
    Cluster, EnqueueError, Glob, Job, JobContext, JobId, NewJob, Path, Producer, PublisherId,
    ShutdownHandle, Worker, new_job,
};
use tokio::task::JoinHandle;

/// Published by both. Its jobs run only after the disk has recovered.
const SHARED_QUEUE: &str = "/jobs/shared";
/// A worker takes its jobs all the time.
const WORKED_QUEUE: &str = "/jobs/worked";
/// Published only by the publisher that hangs.
const OWN_QUEUE: &str = "/alone/queue";
const HANG_AFTER: Duration = Duration::from_secs(2);
const CONFIGURED: &str = "\n[publisher]\nhang_after = \"2s\"\nsegment_bytes = 1048576\n";
/// Tolerance for a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const ENQUEUEING: usize = 16;
const WATCHDOG: Duration = Duration::from_millis(400);
const DISK_BYTES: u64 = 256 * 1024 * 1024;

/// A file system in a file, on its own mount point. A shell that waits for the test's end thaws and
/// unmounts it in any case: a process that writes to a frozen disk cannot even be killed.
struct Disk {
    mount: PathBuf,
    /// A shell that cleans up when its standard input is closed.
    cleanup: Child,
}

impl Disk {
    /// None if mounting is not permitted.
    fn mounted(folder: &FilePath) -> Option<Disk> {
        let (image, mount) = (folder.join("image"), folder.join("disk"));
        std::fs::File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let script =
            "mkfs.ext4 -q -F \"$1\" && mount -o loop \"$1\" \"$2\" && mountpoint -q \"$2\"";
        let tried = shell(script, &[&image, &mount]).output().unwrap();
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr);
            eprintln!(
                "SKIPPED: mounting a disk image is not permitted \
                 (mkfs.ext4, mount -o loop): {why}"
            );
            return None;
        }
        // If the test is killed, its publisher may still run: it ends once its disk is gone.
        let script = "cat; fsfreeze -u \"$1\"; umount \"$1\" || umount -l \"$1\"";
        let mut command = shell(script, &[&mount]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(Disk { cleanup: command.spawn().unwrap(), mount })
    }

    /// Blocks all writes to the disk.
    fn freeze(&self) {
        // Check the mount point: without it, this would freeze the machine's own disk.
        let frozen = shell("mountpoint -q \"$1\" && fsfreeze -f \"$1\"", &[&self.mount]).status();
        assert!(frozen.unwrap().success());
    }

    fn thaw(&self) {
        let _not_frozen = shell("fsfreeze -u \"$1\"", &[&self.mount]).output();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        let _ = self.cleanup.wait();
    }
}

fn shell(script: &str, arguments: &[&FilePath]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments);
    command
}

/// A replica, a publisher on a disk that can be frozen, and one on a healthy disk.
struct HangingDisk {
    resolver: Service,
    hanging: Service,
    healthy: Service,
    /// The service manager of the one that hangs.
    manager: NotifySocket,
    /// Declared after the services, so that it is dropped after them.
    disk: Disk,
    folder: tempfile::TempDir,
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        // Thaw first: a publisher on a frozen disk cannot be killed.
        self.disk.thaw();
    }
}

impl HangingDisk {
    fn start() -> Option<HangingDisk> {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::mounted(folder.path())?;
        let configuration = folder.path().join("config.toml");
        std::fs::write(&configuration, [CONFIGURATION, CONFIGURED].concat()).unwrap();
        let manager = NotifySocket::bind(folder.path());
        let service = |arguments: &[&str], more: &[&str], data: Option<PathBuf>| {
            let mut command = longshore(arguments);
            if arguments.contains(&"hanging") {
                manager.manage(&mut command, WATCHDOG);
            }
            command.args(["--json", "--listen", "127.0.0.1:0"]).args(more);
            command.env("LONGSHORE_CONFIG", &configuration);
            command.args(data.map(|data| format!("--data={}", data.display())));
            Service::start(command)
        };
        let resolver = service(&["resolver", "run", "--fresh"], &[], None);
        let to = resolver.text("address");
        let publisher = |name, more: &[&str], data| {
            let arguments =
                ["publisher", "run", "--name", name, "--default", "/jobs", "--resolver", to];
            service(&arguments, more, Some(data))
        };
        let hanging = publisher("hanging", &["--path", OWN_QUEUE], disk.mount.join("data"));
        let healthy = publisher("healthy", &[], folder.path().join("data"));
        Some(HangingDisk { resolver, hanging, healthy, manager, disk, folder })
    }

    fn cluster(&self) -> Cluster {
        Cluster { timing: timing(), ..Cluster::new([self.resolver.text("address")]) }
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = longshore(&["--resolver", self.resolver.text("address")]);
        command.args(arguments).current_dir(self.folder.path());
        run(command, b"")
    }

    /// The names of the publishers that the resolver returns.
    fn resolved(&self, path: &str) -> Vec<String> {
        let resolved = self.run(&["directory", "resolve", path, "--json"]).json();
        let publishers = resolved["paths"][0]["publishers"].as_array().cloned();
        let name = |publisher: &serde_json::Value| publisher["name"].as_str().unwrap().to_owned();
        let mut names: Vec<_> = publishers.unwrap_or_default().iter().map(name).collect();
        names.sort();
        names
    }

    fn hanging_id(&self) -> PublisherId {
        info_of(&self.hanging).id
    }
}

/// Ages of the oldest uncommitted command in milliseconds, from a publisher's heartbeats.
type Ages = Arc<Mutex<Vec<u64>>>;

/// Opens a link that sends nothing, and reads heartbeats until it ends.
fn read_heartbeats(publisher: &Service) -> Ages {
    let timing =
        LinkTiming { heartbeat: Duration::from_millis(100), hang: Duration::from_secs(10) };
    let mut handshake = FrameWriter::new();
    Handshake::new(Role::Tool, SessionId([7; 16]), "listener", timing).encode(&mut handshake);
    let mut stream = TcpStream::connect(publisher.text("address")).unwrap();
    stream.write_all(&[&MAGIC[..], &handshake.finish().parts().concat()].concat()).unwrap();
    stream.read_exact(&mut [0; MAGIC.len()]).unwrap();
    let mut frame = move || -> Option<Bytes> {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut body).ok().map(|()| body.into())
    };
    assert!(frame().is_some(), "the handshake is accepted");
    let ages = Ages::default();
    let shared = ages.clone();
    std::thread::spawn(move || {
        while let Some(body) = frame() {
            for message in Messages::new(body) {
                let (tag, body) = message.unwrap();
                let age = Reader::new(body).u64();
                shared.lock().unwrap().extend(age.ok().filter(|_| tag == HEARTBEAT));
            }
        }
    });
    ages
}

fn job(queue: &str) -> NewJob {
    new_job(Path::new(queue).unwrap(), vec![7; 100])
}

/// The publisher in each job's receipt.
type Receipts = Arc<Mutex<HashMap<JobId, PublisherId>>>;

/// Enqueues one job after the other until stopped.
async fn enqueue(producer: Producer, receipts: Receipts, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let receipt = producer.enqueue(job(SHARED_QUEUE)).await.unwrap();
        assert!(!receipt.existing, "a repeated batch counted as a new one");
        let previous = receipts.lock().unwrap().insert(receipt.job.id, receipt.job.publisher);
        assert_eq!(previous, None, "two receipts for one job");
    }
}

/// Runs of each job.
type Runs = Arc<Mutex<HashMap<JobId, u32>>>;

async fn work(cluster: Cluster, queue: &str) -> (ShutdownHandle, JoinHandle<()>, Runs) {
    let worker = Worker::connect(cluster).durable_subscribe(queue);
    let worker = worker.concurrency(16).prefetch(100);
    let (handle, runs) = (worker.shutdown_handle(), Runs::default());
    let shared = runs.clone();
    let running = worker.run(move |_: Job<Bytes>, context: JobContext| {
        *shared.lock().unwrap().entry(context.id()).or_default() += 1;
        async { Ok(()) }
    });
    let working = tokio::spawn(async move {
        running.await.unwrap();
    });
    (handle, working, runs)
}

async fn completed(publisher: &Service, queue: &str) -> u64 {
    stat_of(&direct_queues(publisher), queue).await.completed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_disk_withdraws_the_publisher_until_it_recovers() {
    let Some(mut system) = HangingDisk::start() else { return };
    let both = ["hanging", "healthy"];
    eventually("both are registered", || async {
        system.resolved(SHARED_QUEUE) == both && system.resolved(OWN_QUEUE) == ["hanging"]
    })
    .await;
    let (worked, working, _) = work(system.cluster(), WORKED_QUEUE).await;
    let (receipts, stop) = (Receipts::default(), Arc::new(AtomicBool::new(false)));
    let producer = Producer::connect(system.cluster());
    let enqueueing: Vec<_> = (0..ENQUEUEING)
        .map(|_| tokio::spawn(enqueue(producer.clone(), receipts.clone(), stop.clone())))
        .collect();
    let hanging = system.hanging_id();
    let acknowledged = || receipts.lock().unwrap().values().filter(|&&at| at == hanging).count();
    eventually("it acknowledges jobs", || async { acknowledged() >= 500 }).await;
    // A producer without another publisher, with a timeout slightly above the hang detection.
    let short_timeout = Producer::builder().answer_timeout(HANG_AFTER + Duration::from_secs(2));
    let alone = short_timeout.to_publishers([info_of(&system.hanging)]);
    alone.enqueue(job(OWN_QUEUE)).await.unwrap();

    let ages = read_heartbeats(&system.hanging);
    let frozen = Instant::now();
    system.disk.freeze();
    let unanswered = tokio::spawn(async move { alone.enqueue(job(OWN_QUEUE)).await });
    eventually("it withdraws", || async { system.resolved(SHARED_QUEUE) == ["healthy"] }).await;
    let withdrawn = frozen.elapsed();
    assert!(HANG_AFTER <= withdrawn && withdrawn < HANG_AFTER + SLACK, "after {withdrawn:?}");
    let before = acknowledged();
    // The watchdog of a service manager would end it.
    system.manager.lines_until("STATUS=its disk hangs: nothing has become durable for ");
    let reported = system.manager.next_within(2 * WATCHDOG).unwrap_or_default();
    assert!(!reported.contains("WATCHDOG=1"), "{reported}");

    // Its heartbeats reported the growing age before.
    let oldest = ages.lock().unwrap().iter().max().copied();
    assert!(oldest.is_some_and(|ms| ms > 1_000), "its heartbeats reported {oldest:?}");

    // New links are refused and existing ones closed, both with the reason.
    eventually("its own queue is gone", || async { system.resolved(OWN_QUEUE).is_empty() }).await;
    let listed = system.run(&["directory", "ls"]).code(0);
    assert!(!listed.stdout.contains("/alone"), "{listed:?}");
    let stats = direct_queues(&system.hanging).stats(Glob::everything()).await.unwrap();
    let why = &stats.missing.first().unwrap().why;
    assert!(why.contains("the publisher's disk hangs"), "{why}");
    match unanswered.await.unwrap() {
        Err(EnqueueError::Unknown { why, .. }) => {
            assert!(why.contains("the publisher's disk hangs"), "{why}");
        }
        other => panic!("{other:?}"),
    }

    // Other jobs go to the healthy publisher.
    let new_producer = Producer::connect(system.cluster());
    for _ in 0..20 {
        let receipt = new_producer.enqueue(job(WORKED_QUEUE)).await.unwrap();
        assert_ne!(receipt.job.publisher, hanging);
    }
    eventually("jobs complete at the healthy publisher", || async {
        completed(&system.healthy, WORKED_QUEUE).await == 20
    })
    .await;
    assert_eq!(acknowledged(), before, "nothing is acknowledged while the disk hangs");
    assert_eq!(system.resolved(SHARED_QUEUE), ["healthy"]);
    assert!(system.hanging.is_running());

    // The publisher recovers by itself.
    system.disk.thaw();
    eventually("it is registered again", || async {
        system.resolved(SHARED_QUEUE) == both && system.resolved(OWN_QUEUE) == ["hanging"]
    })
    .await;
    system.manager.lines_until("WATCHDOG=1");
    eventually("it acknowledges jobs again", || async { acknowledged() > before }).await;
    let direct = vec![info_of(&system.hanging)];
    let direct = Producer::to_publishers(direct);
    direct.enqueue(job(WORKED_QUEUE)).await.unwrap();
    eventually("it delivers jobs again", || async {
        completed(&system.hanging, WORKED_QUEUE).await == 1
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for one in enqueueing {
        one.await.unwrap();
    }

    // Every acknowledged job exists and runs once. An unacknowledged job exists at most once.
    let all = std::mem::take(&mut *receipts.lock().unwrap());
    let at_hanging = all.values().filter(|&&at| at == hanging).count() as u64;
    let (here, there) = (direct_queues(&system.hanging), direct_queues(&system.healthy));
    assert_eq!(stat_of(&here, SHARED_QUEUE).await.enqueued, at_hanging);
    assert_eq!(stat_of(&there, SHARED_QUEUE).await.enqueued, all.len() as u64 - at_hanging);
    assert_eq!(
        stat_of(&here, OWN_QUEUE).await.enqueued,
        2,
        "the second was sent before the link closed"
    );
    let (handle, running, runs) = work(system.cluster(), SHARED_QUEUE).await;
    eventually("all are done", || async {
        let done = completed(&system.hanging, SHARED_QUEUE).await
            + completed(&system.healthy, SHARED_QUEUE).await;
        done == all.len() as u64
    })
    .await;
    for handle in [&worked, &handle] {
        handle.drain();
    }
    working.await.unwrap();
    running.await.unwrap();
    let runs = runs.lock().unwrap();
    assert!(all.keys().all(|id| runs.get(id) == Some(&1)), "each runs once");
    assert_eq!(runs.len(), all.len());
    for publisher in [&mut system.hanging, &mut system.healthy] {
        assert_eq!(publisher.stop(), 0);
    }
}
