//! A worker in a separate process, which a test can stop or kill. It runs this test's binary, and
//! writes notes of its actions to a file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use longshore::{Job, JobContext, JobFailure, JobOptions, Json, NewJob, Path, new_job};
use longshore::{LinkOptions, LinkTiming, Worker};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::harness::Harness;
use super::send;

/// The test that runs as the worker process.
const TEST: &str = "common::worker::a_worker_process";

#[test]
#[ignore = "run as a process by other tests"]
fn a_worker_process() {
    main();
}
const PLAN: &str = "LONGSHORE_TEST_WORKER";

/// The settings of a worker process.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct WorkerPlan {
    pub(crate) name: String,
    pub(crate) concurrency: usize,
    pub(crate) prefetch: usize,
    pub(crate) grace_ms: u64,
    /// When it gives a link up, if not after the default time.
    hang_ms: Option<u64>,
    /// Records the runs of numbered jobs, in a file of its own, instead of doing tasks.
    records: bool,
    replicas: Vec<String>,
    folder: PathBuf,
}

impl WorkerPlan {
    fn new(harness: &Harness, name: &str, concurrency: usize, prefetch: usize) -> WorkerPlan {
        WorkerPlan {
            name: name.to_owned(),
            concurrency,
            prefetch,
            grace_ms: 25_000,
            hang_ms: None,
            records: false,
            replicas: harness.cluster().replicas,
            folder: harness.folder.path().to_owned(),
        }
    }
}

/// The payload of a job. The worker notes its start, waits, and notes its end.
#[derive(Serialize, Deserialize, Clone, Default)]
pub(crate) struct Task {
    pub(crate) label: String,
    /// How long the handler runs, even if cancelled.
    pub(crate) ms: u64,
    /// Only the first delivery runs for `ms`.
    pub(crate) only_first: bool,
    /// Kills its worker.
    pub(crate) kills_worker: bool,
    /// The first attempt kills its worker after the handler has returned.
    pub(crate) kills_worker_when_done: bool,
    /// Notes existing checkpoints, and stores this many of its own, before it waits.
    pub(crate) checkpoints: u64,
    /// The first delivery reports progress and stores a checkpoint at its end, and notes the
    /// answer.
    pub(crate) reports_late: bool,
    /// Later deliveries wait until the test opens the gate.
    pub(crate) waits_for_gate: bool,
}

/// A handler's result: its worker's name. Serialising it may kill the worker.
struct Done {
    worker: String,
    kills_worker: bool,
}

impl Serialize for Done {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.kills_worker {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        serializer.serialize_str(&self.worker)
    }
}

/// A job for [`QUEUE`].
pub(crate) fn task_job(task: Task, options: JobOptions) -> NewJob {
    let payload = serde_json::to_vec(&task).unwrap();
    let mut job = new_job(Path::new(QUEUE).unwrap(), payload);
    job.options = JobOptions { keep_result: true, ..options };
    job
}

/// The queue of the tasks.
pub(crate) const QUEUE: &str = "/jobs/tasks";

/// A running worker, killed on drop.
pub(crate) struct WorkerProcess {
    pub(crate) process: Child,
    report: PathBuf,
}

impl WorkerProcess {
    pub(crate) fn start(
        harness: &Harness,
        name: &str,
        concurrency: usize,
        prefetch: usize,
    ) -> WorkerProcess {
        WorkerProcess::start_with(harness, name, concurrency, prefetch, Duration::from_secs(25))
    }

    pub(crate) fn start_with(
        harness: &Harness,
        name: &str,
        concurrency: usize,
        prefetch: usize,
        grace: Duration,
    ) -> WorkerProcess {
        let grace_ms = grace.as_millis() as u64;
        WorkerProcess::with(WorkerPlan {
            grace_ms,
            ..WorkerPlan::new(harness, name, concurrency, prefetch)
        })
    }

    /// Starts one whose links end after so long without a byte.
    pub(crate) fn start_with_hang(harness: &Harness, name: &str, hang: Duration) -> WorkerProcess {
        let plan = WorkerPlan::new(harness, name, 1, 0);
        WorkerProcess::with(WorkerPlan { hang_ms: Some(hang.as_millis() as u64), ..plan })
    }

    /// Starts one that records its runs: see [`recorded_lines`]. The payloads are numbers.
    pub(crate) fn start_recording(
        harness: &Harness,
        name: &str,
        concurrency: usize,
        prefetch: usize,
    ) -> WorkerProcess {
        let plan = WorkerPlan::new(harness, name, concurrency, prefetch);
        WorkerProcess::with(WorkerPlan { records: true, ..plan })
    }

    fn with(plan: WorkerPlan) -> WorkerProcess {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--ignored", "--nocapture"])
            .env(PLAN, serde_json::to_string(&plan).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        WorkerProcess { process, report: report_of(&plan) }
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(&self.process, signal);
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends SIGKILL, and waits.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends SIGTERM and waits; returns its report.
    pub(crate) async fn stop(&mut self) -> Value {
        self.send(Signal::TERM);
        self.report().await
    }

    /// Waits for its end; returns its report.
    pub(crate) async fn report(&mut self) -> Value {
        let status = self.ended().await;
        assert!(status.success(), "{status}");
        serde_json::from_slice(&std::fs::read(&self.report).unwrap()).unwrap()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// All notes of all workers in order: `worker began label attempt`,
/// `worker ended label attempt`.
pub(crate) fn notes(harness: &Harness) -> Vec<String> {
    let notes = std::fs::read_to_string(notes_in(harness.folder.path())).unwrap_or_default();
    notes.lines().map(str::to_owned).collect()
}

/// What each recording worker has written: `began JOB AT` and `ended JOB AT`, in nanoseconds since
/// 1970.
pub(crate) fn recorded_lines(harness: &Harness) -> Vec<String> {
    let files = std::fs::read_dir(harness.folder.path()).unwrap().map(|file| file.unwrap().path());
    let is_record = |file: &PathBuf| file.extension().is_some_and(|ext| ext == RECORD);
    files.filter(is_record).map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// The extension of a recording worker's file.
const RECORD: &str = "record";

/// Waits for a worker's note.
pub(crate) async fn wait_for_note(harness: &Harness, note: &str) {
    super::eventually(note, || async { notes(harness).iter().any(|line| line == note) }).await;
}

/// Lets waiting deliveries continue.
pub(crate) fn open_gate(harness: &Harness) {
    std::fs::write(gate_in(harness.folder.path()), "").unwrap();
}

fn gate_in(folder: &FilePath) -> PathBuf {
    folder.join("gate")
}

fn notes_in(folder: &FilePath) -> PathBuf {
    folder.join("notes")
}

fn report_of(plan: &WorkerPlan) -> PathBuf {
    plan.folder.join(format!("report-{}.json", plan.name))
}

/// The worker process. It does nothing without a plan, as when all ignored tests are run.
fn main() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let plan: WorkerPlan = serde_json::from_str(&plan).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(serve(plan));
}

async fn serve(plan: WorkerPlan) {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let folder = plan.folder.clone();
    let name = plan.name.clone();
    let mut link = LinkOptions::default();
    if let Some(ms) = plan.hang_ms {
        let (heartbeat, hang) = (Duration::from_millis(ms / 4), Duration::from_millis(ms));
        link.timing = LinkTiming { heartbeat, hang };
    }
    let subscription = Worker::builder()
        .name(&plan.name)
        .link(link)
        .connect(longshore::Cluster::new(&plan.replicas))
        .durable_subscribe(QUEUE)
        .concurrency(plan.concurrency)
        // Handlers outlive their leases, so that what they send late is refused.
        .cancel_grace(Duration::from_millis(plan.grace_ms.min(5_000)))
        .prefetch(plan.prefetch)
        .grace(Duration::from_millis(plan.grace_ms))
        .shutdown(async move {
            terminate.recv().await;
        });
    let report = if plan.records {
        let file = folder.join(&name).with_extension(RECORD);
        let file = Arc::new(OpenOptions::new().create(true).append(true).open(file).unwrap());
        subscription.run(move |job: Job<Bytes>, _: JobContext| record(job, file.clone())).await
    } else {
        let handler = move |job: Job<Task>, context: JobContext| {
            work(job.payload, context, name.clone(), folder.clone())
        };
        subscription.run(handler).await
    };
    let report = report.unwrap();
    let report_json = serde_json::json!({
        "completed": report.completed, "released": report.released,
        "redelivered": report.redelivered, "stale_refused": report.stale_refused,
        "leases_revoked": report.leases_revoked, "unanswered": report.unanswered,
    });
    std::fs::write(report_of(&plan), report_json.to_string()).unwrap();
}

/// Records when the job began and ended, each with one write: SIGKILL loses none of them.
async fn record(job: Job<Bytes>, file: Arc<File>) -> Result<(), JobFailure> {
    let number = String::from_utf8_lossy(&job.payload).into_owned();
    let write = |what: &str| {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        (&*file).write_all(format!("{what} {number} {at}\n").as_bytes()).unwrap();
    };
    write("began");
    tokio::time::sleep(Duration::from_millis(5)).await;
    write("ended");
    Ok(())
}

async fn work(
    task: Task,
    context: JobContext,
    name: String,
    folder: PathBuf,
) -> Result<Json<Done>, JobFailure> {
    let note = |what: &str| {
        let line = format!("{name} {what} {} {}\n", task.label, context.attempt());
        let file = OpenOptions::new().create(true).append(true).open(notes_in(&folder));
        file.unwrap().write_all(line.as_bytes()).unwrap();
    };
    let is_first = context.deliveries() == 1;
    note("began");
    if task.kills_worker {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    if task.checkpoints > 0 {
        for checkpoint in context.checkpoints().await? {
            let bytes = String::from_utf8_lossy(&checkpoint.bytes).into_owned();
            note(&format!("read {bytes} {}", checkpoint.sequence));
        }
        for n in 1..=task.checkpoints {
            context.checkpoint(format!("{name}-{n}")).await?;
        }
        context.progress(50, format!("at {name}"));
    }
    if task.waits_for_gate && !is_first {
        while !gate_in(&folder).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    if is_first || !task.only_first {
        tokio::time::sleep(Duration::from_millis(task.ms)).await;
    }
    if task.reports_late && is_first {
        context.progress(99, format!("late at {name}"));
        let stored = context.checkpoint(format!("{name}-late")).await.is_ok();
        note(if stored { "stored" } else { "refused" });
    }
    note("ended");
    let kills_worker = task.kills_worker_when_done && context.attempt() == 1;
    Ok(Json(Done { worker: name.clone(), kills_worker }))
}
