//! A black-box test: three replicas, two publishers, four workers and two producers run as
//! processes that are killed, stopped and terminated at random. Only what clients observe is
//! checked.
//!
//! It runs for 20 seconds, or ten minutes with `LONGSHORE_LONG=1`. `LONGSHORE_SEED=N` repeats a
//! schedule of faults, but not their exact timing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use crate::common;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::harness::Harness;
use common::{eventually, long};
use longshore::protocol::messages::work::{Filter, JobInfo, JobsQuery};
use longshore::{
    AttemptOutcome, Cluster, Glob, Job, JobContext, JobFailure, JobState, Path, Producer, Queues,
    Worker, new_job,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

/// The test that runs as a client process.
const TEST: &str = "black_box::a_client_process";
const PLAN_VARIABLE: &str = "LONGSHORE_TEST_CLIENT";
/// With eight queues, ten minutes of jobs stay below the 100,000 ended jobs that each retains.
const QUEUES: u64 = 8;
const BATCH: u64 = 40;
/// `longshore check` reports a fault of a replica or publisher within this time.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);
/// Publishers register at a replica within this time of its start, on a busy machine, too.
const REGISTERED_WITHIN: Duration = Duration::from_secs(5);
/// All acknowledged jobs have completed this long after the last fault.
const HEALED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
enum Role {
    Producer,
    Worker,
}

#[derive(Serialize, Deserialize)]
struct ClientPlan {
    role: Role,
    name: String,
    /// The first number of a producer's jobs; restarted producers use other numbers.
    first: u64,
    replicas: Vec<String>,
    folder: PathBuf,
}

/// Appends a line with one write, so that SIGKILL leaves all of it or nothing.
fn note(folder: &FilePath, file: &str, line: &str) {
    let notes = OpenOptions::new().create(true).append(true).open(folder.join(file));
    notes.unwrap().write_all(line.as_bytes()).unwrap();
}

fn notes(folder: &FilePath, file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

#[test]
#[ignore = "run as a process by the other test"]
fn a_client_process() {
    let Ok(plan) = std::env::var(PLAN_VARIABLE) else { return };
    let plan: ClientPlan = serde_json::from_str(&plan).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match plan.role {
            Role::Producer => produce(plan).await,
            Role::Worker => work(plan).await,
        }
    });
}

/// Enqueues numbered jobs in batches. Notes each batch before it is sent, and the answers
/// afterwards.
async fn produce(plan: ClientPlan) {
    let cluster = Cluster { timing: common::harness::timing(), ..Cluster::new(&plan.replicas) };
    let producer = Producer::connect(cluster);
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    for batch in 0.. {
        let first = plan.first + batch * BATCH;
        note(&plan.folder, "sent", &format!("{first} {}\n", first + BATCH));
        let jobs = (first..first + BATCH).map(|n| {
            let path = Path::new(&format!("/jobs/box/{}", n % QUEUES)).unwrap();
            let mut job = new_job(path, n.to_string().into_bytes());
            job.options.keep_result = true;
            job
        });
        let receipts = producer.enqueue_all(jobs).await;
        let mut lines = String::new();
        for (n, receipt) in (first..).zip(receipts) {
            match receipt.outcome {
                Ok(receipt) => lines += &format!("acknowledged {n} {}\n", receipt.job),
                Err(error) if error.is_unknown() => lines += &format!("unknown {n}\n"),
                Err(error) => lines += &format!("refused {n} {error}\n"),
            }
        }
        note(&plan.folder, "answers", &lines);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(250)) => {}
            _ = terminate.recv() => return,
        }
    }
}

/// Squares numbers. Notes the token of each run at its start and its end.
async fn work(plan: ClientPlan) {
    let cluster = Cluster { timing: common::harness::timing(), ..Cluster::new(&plan.replicas) };
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let folder = Arc::new(plan.folder);
    Worker::builder()
        .name(&plan.name)
        .connect(cluster)
        .durable_subscribe("/jobs/box/**")
        .concurrency(8)
        .shutdown(async move {
            terminate.recv().await;
        })
        .run(move |job: Job<String>, context: JobContext| {
            let folder = folder.clone();
            async move {
                let n: u64 = job.payload.parse().map_err(JobFailure::bury)?;
                let run = format!("{n} {}", context.token().0);
                note(&folder, "began", &format!("{run}\n"));
                tokio::time::sleep(Duration::from_millis(5 + n % 30)).await;
                note(&folder, "ended", &format!("{run}\n"));
                Ok(format!("{run} {}", n.wrapping_mul(n)))
            }
        })
        .await
        .unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum FaultKind {
    Kill,
    Stop,
    Terminate,
}

/// A process that can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Target {
    Replica(usize),
    Publisher(usize),
    Client(usize),
}

/// An interval in which a target was down or stopped.
struct Fault {
    target: Target,
    kind: FaultKind,
    began: Instant,
    ended: Instant,
}

/// A producer or worker process, killed on drop.
struct Client {
    role: Role,
    name: String,
    restarts: u64,
    process: Child,
}

impl Client {
    fn start(role: Role, name: String, number: u64, harness: &Harness) -> Client {
        let process = Client::spawn(role, &name, number << 32, harness);
        Client { role, name, restarts: number << 12, process }
    }

    fn spawn(role: Role, name: &str, first: u64, harness: &Harness) -> Child {
        let plan = ClientPlan {
            role,
            name: name.to_owned(),
            first,
            replicas: harness.cluster().replicas,
            folder: harness.folder.path().to_owned(),
        };
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--ignored", "--nocapture"])
            .env(PLAN_VARIABLE, serde_json::to_string(&plan).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn restart(&mut self, harness: &Harness) {
        self.restarts += 1;
        self.process = Client::spawn(self.role, &self.name, self.restarts << 20, harness);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Injects faults, and ends them.
struct FaultInjector<'a> {
    harness: &'a mut Harness,
    clients: &'a mut [Client],
    random: StdRng,
    /// Active faults: since when, of which kind, and until when.
    failing: BTreeMap<Target, (Instant, FaultKind, Instant)>,
    faults: Arc<Mutex<Vec<Fault>>>,
    kinds_seen: BTreeSet<(&'static str, FaultKind)>,
}

impl FaultInjector<'_> {
    fn begin(&mut self, target: Target, kind: FaultKind, length: Duration) {
        let signal = match kind {
            FaultKind::Kill => Signal::KILL,
            FaultKind::Stop => Signal::STOP,
            FaultKind::Terminate => Signal::TERM,
        };
        self.send(target, signal);
        if kind != FaultKind::Stop {
            self.wait(target);
        }
        let now = Instant::now();
        self.failing.insert(target, (now, kind, now + length));
        self.kinds_seen.insert((class(target, self.clients), kind));
    }

    fn end(&mut self, target: Target) {
        let Some((began, kind, _)) = self.failing.remove(&target) else { return };
        self.faults.lock().unwrap().push(Fault { target, kind, began, ended: Instant::now() });
        match (kind, target) {
            (FaultKind::Stop, _) => self.send(target, Signal::CONT),
            (_, Target::Replica(n)) => self.harness.replicas[n].restart(),
            (_, Target::Publisher(n)) => self.harness.publishers[n].restart(),
            (_, Target::Client(n)) => self.clients[n].restart(self.harness),
        }
    }

    fn send(&self, target: Target, signal: Signal) {
        match target {
            Target::Replica(n) => self.harness.replicas[n].service.send(signal),
            Target::Publisher(n) => self.harness.publishers[n].service.send(signal),
            Target::Client(n) => common::send(&self.clients[n].process, signal),
        }
    }

    fn wait(&mut self, target: Target) {
        match target {
            Target::Replica(n) => self.harness.replicas[n].service.wait(),
            Target::Publisher(n) => self.harness.publishers[n].service.wait(),
            Target::Client(n) => drop(self.clients[n].process.wait().unwrap()),
        }
    }

    /// Injects faults of at most `fault_max` each for `length`, then ends them all.
    fn run(&mut self, length: Duration, fault_max: Duration) {
        let all = [
            (0..self.harness.replicas.len()).map(Target::Replica).collect::<Vec<_>>(),
            (0..self.harness.publishers.len()).map(Target::Publisher).collect(),
            (0..self.clients.len()).map(Target::Client).collect(),
        ]
        .concat();
        let until = Instant::now() + length;
        let mut next = Instant::now();
        while Instant::now() < until {
            let now = Instant::now();
            let ended = self.failing.iter().filter(|(_, (_, _, ends))| *ends <= now);
            for target in ended.map(|(target, _)| *target).collect::<Vec<_>>() {
                self.end(target);
            }
            let target = all[self.random.random_range(0..all.len())];
            if now >= next && self.failing.len() < 4 && !self.failing.contains_key(&target) {
                let kinds = [FaultKind::Kill, FaultKind::Stop, FaultKind::Terminate];
                let kind = kinds[self.random.random_range(0..3)];
                let ms = self.random.random_range(1_000..=fault_max.as_millis() as u64);
                self.begin(target, kind, Duration::from_millis(ms));
                let rest = self.random.random_range(200..fault_max.as_millis() as u64 / 5);
                next = Instant::now() + Duration::from_millis(rest);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for target in self.failing.keys().copied().collect::<Vec<_>>() {
            self.end(target);
        }
    }
}

fn class(target: Target, clients: &[Client]) -> &'static str {
    match target {
        Target::Replica(_) => "replica",
        Target::Publisher(_) => "publisher",
        Target::Client(n) if clients[n].role == Role::Worker => "worker",
        Target::Client(_) => "producer",
    }
}

/// A run of `longshore check`: its time, and the components it reported.
struct Checked {
    began: Instant,
    ended: Instant,
    reported: HashSet<String>,
    text: String,
}

fn check(mut command: Command) -> Checked {
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output().unwrap();
    let ended = Instant::now();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = found["parts"].to_string();
    let parts = found["parts"].as_array().unwrap().iter();
    let reported = parts
        .filter(|part| part["level"] != "OK")
        .map(|part| part["part"].as_str().unwrap().to_owned())
        .collect();
    Checked { began, ended, reported, text }
}

/// Checks that each run of `check` during a fault of a replica or publisher reports it, and that
/// long faults are reported in time.
fn assert_faults_reported(faults: &[Fault], checks: &[Checked], names: &HashMap<Target, String>) {
    let is_replica = |target: &Target| matches!(target, Target::Replica(_));
    let replicas = names.keys().filter(|target| is_replica(target)).count();
    // `check` learns of a lost publisher from a replica that had it. One that is out, or started
    // again when the publisher was already lost or had no time to register, cannot tell.
    let blind = |publisher: &Fault, check: &Checked| {
        let unable = faults.iter().filter(|fault| {
            let out = fault.began < check.ended && check.began < fault.ended;
            let restarted = fault.kind != FaultKind::Stop
                && fault.began < check.ended
                && fault.ended + REGISTERED_WITHIN > publisher.began;
            is_replica(&fault.target) && (out || restarted)
        });
        unable.map(|fault| fault.target).collect::<HashSet<_>>().len() == replicas
    };
    let mut relevant = 0;
    for fault in faults {
        let Some(name) = names.get(&fault.target) else { continue };
        let is_publisher = matches!(fault.target, Target::Publisher(_));
        let within = checks.iter().filter(|c| c.began >= fault.began && c.ended <= fault.ended);
        let mut first = None;
        let mut blinded = false;
        for check in within {
            if is_publisher && blind(fault, check) {
                blinded = true;
                continue;
            }
            relevant += 1;
            assert!(
                check.reported.contains(name),
                "{name} was down for {:?} and not reported {:?} after the fault: {}",
                fault.ended - fault.began,
                check.ended - fault.began,
                check.text
            );
            first.get_or_insert(check.ended - fault.began);
        }
        if fault.ended - fault.began > NOTICED_WITHIN && !blinded {
            let first = first.unwrap_or_else(|| panic!("{name}: no check within its fault"));
            assert!(first <= NOTICED_WITHIN, "{name} was reported after {first:?}");
        }
    }
    println!("{} checks, {relevant} of them during a fault that they had to report", checks.len());
}

/// Every job at any publisher.
async fn jobs(queues: &Queues) -> Vec<JobInfo> {
    let filter = Filter::of(Glob::new("/jobs/box/**").unwrap());
    let query = JobsQuery { full: true, ..JobsQuery::of(filter) };
    let mut pages = queues.jobs(query).await.unwrap();
    let mut jobs = Vec::new();
    while let Some(page) = pages.next().await {
        jobs.extend(page.jobs);
    }
    assert!(pages.is_complete() && pages.missing().is_empty(), "{:?}", pages.missing());
    jobs
}

/// Checks that no acknowledged job is lost, doubled or wrong, and that every job was sent.
fn assert_jobs_correct(folder: &FilePath, jobs: &[JobInfo]) {
    let number = |text: &String| text.parse::<u64>().unwrap();
    let sent: BTreeSet<u64> = notes(folder, "sent")
        .iter()
        .flat_map(|words| number(&words[0])..number(&words[1]))
        .collect();
    let ended: HashSet<String> = notes(folder, "ended").iter().map(|run| run.join(" ")).collect();
    let mut by_number: HashMap<u64, &JobInfo> = HashMap::new();
    for job in jobs {
        let n: u64 = std::str::from_utf8(job.payload.as_ref().unwrap()).unwrap().parse().unwrap();
        assert!(sent.contains(&n), "{n} was never sent: {job:?}");
        let twin = by_number.insert(n, job);
        assert!(twin.is_none(), "{n} exists twice: {job:?} and {twin:?}");
        assert_eq!(job.state, JobState::Completed, "{n} has not completed: {job:?}");
        let completed = job.attempts.iter().filter(|a| a.outcome == AttemptOutcome::Completed);
        assert_eq!(completed.count(), 1, "{n} was accepted more than once: {job:?}");
        let result = String::from_utf8(job.result.clone().unwrap().to_vec()).unwrap();
        let (run, square) = result.rsplit_once(' ').unwrap();
        assert_eq!(square, n.wrapping_mul(n).to_string(), "{n}: {job:?}");
        assert!(run.starts_with(&format!("{n} ")) && ended.contains(run), "{n}: {job:?}");
    }
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    for answer in notes(folder, "answers") {
        *answers.entry(answer[0].clone()).or_default() += 1;
        if answer[0] == "acknowledged" {
            let n = number(&answer[1]);
            let job = by_number.get(&n).unwrap_or_else(|| panic!("{n} is lost: {answer:?}"));
            assert!(answer[2].ends_with(&job.id.to_string()), "{answer:?}: {job:?}");
        }
    }
    let runs = ended.len();
    println!("{} jobs, {runs} runs, answers to producers: {answers:?}", jobs.len());
    let least = if long() { 20_000 } else { 200 };
    assert!(answers["acknowledged"] > least, "too few jobs: {answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_faults_lose_nothing_and_check_reports_them() {
    let (length, fault_max) = match long() {
        true => (Duration::from_secs(600), Duration::from_secs(20)),
        false => (Duration::from_secs(20), Duration::from_secs(5)),
    };
    let seed = std::env::var("LONGSHORE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("LONGSHORE_SEED={seed}");
    let mut harness = Harness::start_with(3, 2, None).await;
    let mut names = HashMap::new();
    for (n, replica) in harness.replicas.iter().enumerate() {
        names.insert(Target::Replica(n), format!("replica {}", replica.address()));
    }
    for (n, publisher) in harness.publishers.iter().enumerate() {
        let name = format!("publisher {}", publisher.service.text("name"));
        names.insert(Target::Publisher(n), name);
    }
    let roles = [(Role::Worker, 4), (Role::Producer, 2)];
    let all = roles.iter().flat_map(|(role, count)| (0..*count).map(move |n| (*role, n)));
    let mut clients: Vec<Client> = all
        .zip(1..)
        .map(|((role, n), number)| Client::start(role, format!("{role:?}-{n}"), number, &harness))
        .collect();

    let stop = Arc::new(AtomicBool::new(false));
    let command = || harness.command(&["check", "--json"]);
    let words: Vec<_> = command().get_args().map(ToOwned::to_owned).collect();
    let folder = harness.folder.path().to_owned();
    let stopped = stop.clone();
    let checking = std::thread::spawn(move || {
        let mut checks = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let mut command = common::longshore(&[]);
            command.env("LONGSHORE_CONFIG", folder.join("config.toml")).args(&words);
            checks.push(check(command));
            std::thread::sleep(Duration::from_millis(300));
        }
        checks
    });

    let faults = Arc::new(Mutex::new(Vec::new()));
    let mut injector = FaultInjector {
        harness: &mut harness,
        clients: &mut clients,
        random: StdRng::seed_from_u64(seed),
        failing: BTreeMap::new(),
        faults: faults.clone(),
        kinds_seen: BTreeSet::new(),
    };
    tokio::task::block_in_place(|| injector.run(length, fault_max));
    let kinds_seen = injector.kinds_seen.len();
    stop.store(true, Ordering::Relaxed);
    let checks = tokio::task::spawn_blocking(|| checking.join().unwrap()).await.unwrap();
    let faults = std::mem::take(&mut *faults.lock().unwrap());
    println!("{} faults of {kinds_seen} of 12 kinds", faults.len());
    // A long run has to cover every kind of fault.
    assert!(kinds_seen == 12 || !long(), "only {kinds_seen} kinds of faults occurred");

    for producer in clients.iter_mut().filter(|client| client.role == Role::Producer) {
        common::send(&producer.process, Signal::TERM);
        assert!(producer.process.wait().unwrap().success());
    }
    let queues = Queues::connect(harness.cluster());
    let began = Instant::now();
    loop {
        let stats = queues.stats(Glob::new("/jobs/box/**").unwrap()).await;
        let whole = stats.ok().filter(|stats| stats.complete && stats.missing.is_empty());
        let left: Option<u64> = whole.map(|stats| {
            let counts = stats.merged().into_iter().map(|stat| stat.counts);
            counts.map(|c| c.ready + c.running + c.scheduled + c.retrying).sum()
        });
        if left == Some(0) {
            break;
        }
        assert!(began.elapsed() < HEALED_WITHIN, "{left:?} jobs left {HEALED_WITHIN:?} after");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("all jobs had ended {:?} after the last fault", began.elapsed());
    assert_jobs_correct(harness.folder.path(), &jobs(&queues).await);
    assert_faults_reported(&faults, &checks, &names);
    eventually("check has nothing to report", || async {
        let command = harness.command(&["check", "--json"]);
        tokio::task::spawn_blocking(|| check(command)).await.unwrap().reported.is_empty()
    })
    .await;
}
