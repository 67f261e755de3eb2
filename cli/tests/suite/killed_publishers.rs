//! Publishers killed with SIGKILL or stopped with SIGSTOP: nothing acknowledged is lost or
//! duplicated, and work continues.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, its helpers too")]

use crate::common;

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::harness::{Harness, direct_queues, info_of, jobs_of, stat_of};
use common::{BackgroundCommand, eventually, long};
use longshore::values::{DurableValue, Event, Subscriber, ValueState};
use longshore::{
    AttemptOutcome, Job, JobContext, JobId, JobLocator, LinkTiming, NewJob, Path, Pipeline,
    Producer, Receipts, Value, Worker, new_job,
};
use rustix::process::Signal;
use tokio::time::timeout;

const QUEUE: &str = "/jobs/load";
/// The smallest segments, so that snapshots are written and segments removed between kills; and
/// replicas that do not hide a publisher while a busy machine restarts it.
const CONFIGURATION: &str = "\
[timing]
writer_ttl = \"30s\"
retry_wait_min = \"50ms\"
retry_wait_max = \"300ms\"

[publisher]
segment_bytes = 1048576
";
/// Within this time after a publisher's restart, ready jobs are delivered and batches answered.
const RECOVERY: Duration = Duration::from_secs(5);
/// Tolerance for a busy machine.
const SLACK: Duration = Duration::from_secs(3);

fn numbered(n: u64, priority: i32) -> NewJob {
    let mut job = new_job(Path::new(QUEUE).unwrap(), n.to_be_bytes().to_vec());
    job.options.priority = priority;
    job
}

fn number(payload: &[u8]) -> u64 {
    u64::from_be_bytes(payload.try_into().unwrap())
}

/// Adds the next receipts to `seen`, and checks that each is for a new job; false at the end.
async fn read(receipts: &mut Receipts, seen: &mut HashSet<JobId>) -> bool {
    let Some(batch) = receipts.next().await else { return false };
    for receipt in batch.iter() {
        let accepted = receipt.outcome.unwrap();
        assert!(!accepted.existing, "a repeated batch counted as a new one");
        assert!(seen.insert(receipt.id), "two receipts for job {}", receipt.id);
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_survive_a_publisher_killed_during_enqueue() {
    let jobs: u64 = 100_000;
    let mut harness = Harness::with_proxy().await;
    let options = Pipeline::builder().in_flight_jobs_max(10_000);
    let producer = harness.producer();
    let (mut pipeline, mut receipts) = options.open(&producer);
    let sending = tokio::spawn(async move {
        let mut order = Vec::new();
        for n in 0..jobs {
            let priority = [0, 5, -3, 5, i32::MIN, i32::MAX, 1][(n % 7) as usize];
            pipeline.send(numbered(n, priority)).await.unwrap();
            order.push((std::cmp::Reverse(priority), n));
        }
        order.sort();
        order.into_iter().map(|(_, n)| n).collect::<Vec<u64>>()
    });

    // After a third is acknowledged, the publisher's answers are dropped while it still accepts
    // jobs; then it is killed.
    let mut seen = HashSet::new();
    while (seen.len() as u64) < jobs / 3 {
        assert!(read(&mut receipts, &mut seen).await);
    }
    let proxy = harness.proxy.as_ref().unwrap();
    proxy.drop_answers(true);
    while let Ok(more) = timeout(Duration::from_millis(200), read(&mut receipts, &mut seen)).await {
        assert!(more, "all jobs were acknowledged before the publisher could be killed");
    }
    let unanswered = || async { harness.stat(QUEUE).await.enqueued > seen.len() as u64 };
    eventually("jobs are durable without a receipt", unanswered).await;
    assert!(proxy.dropped_bytes() > 0);
    harness.kill_publisher();
    assert!((seen.len() as u64) < jobs);

    // No client has reconnected yet, so it has only the jobs from its disk.
    let mut hidden = harness.start_publisher_behind_proxy();
    let recovered = jobs_of(&direct_queues(&hidden), QUEUE).await;
    let ids: HashSet<JobId> = recovered.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), recovered.len(), "a job exists twice");
    let lost = seen.difference(&ids).count();
    assert_eq!(lost, 0, "of {} receipts", seen.len());
    assert_eq!(stat_of(&direct_queues(&hidden), QUEUE).await.enqueued, ids.len() as u64);
    hidden.kill();

    // After a reconnect the producer repeats unanswered batches and gets the missing receipts.
    harness.proxy.as_ref().unwrap().drop_answers(false);
    harness.restart_publisher();
    while read(&mut receipts, &mut seen).await {}
    let order = sending.await.unwrap();
    assert_eq!(seen.len() as u64, jobs);
    let stat = harness.stat(QUEUE).await;
    assert_eq!((stat.enqueued, stat.counts.ready), (jobs, jobs));

    let ran = Arc::new(Mutex::new(Vec::new()));
    let worker = Worker::connect(harness.cluster()).durable_subscribe(QUEUE);
    let worker = worker.concurrency(1).prefetch(5_000);
    let (handle, shared) = (worker.shutdown_handle(), ran.clone());
    let running = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        shared.lock().unwrap().push(number(&job.payload));
        async { Ok(()) }
    }));
    eventually("all jobs have completed", || async { harness.stat(QUEUE).await.completed == jobs })
        .await;
    handle.drain();
    let report = running.await.unwrap().unwrap();
    let ran = ran.lock().unwrap();
    assert_eq!(ran.len(), order.len());
    // A worker that a busy machine stops for seconds releases what it has prefetched, and receives
    // it again after what was delivered meanwhile.
    if report.redelivered > 0 {
        return;
    }
    let misplaced = ran.iter().zip(&order).position(|(ran, expected)| ran != expected);
    if let Some(at) = misplaced {
        let around = at..ran.len().min(at + 5);
        panic!(
            "not in the order of priority and age from {at} on: {:?} instead of {:?}; {report:?}",
            &ran[around.clone()],
            &order[around]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_publisher_kills_lose_and_duplicate_nothing() {
    let kills = if long() { 500 } else { 12 };
    let mut harness = Harness::with_configuration(1, 1, None, CONFIGURATION).await;
    let worker = Worker::connect(harness.cluster()).durable_subscribe(QUEUE);
    let worker = worker.concurrency(16).prefetch(1_000);
    let (handle, stats) = (worker.shutdown_handle(), worker.stats());
    let runs = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
    let shared = runs.clone();
    let working = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        *shared.lock().unwrap().entry(number(&job.payload)).or_default() += 1;
        async { Ok(()) }
    }));

    let options = Pipeline::builder().in_flight_jobs_max(5_000);
    let (mut pipeline, mut receipts) = options.open(&harness.producer());
    let enough = Arc::new(AtomicBool::new(false));
    let stop = enough.clone();
    let sending = tokio::spawn(async move {
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut job = numbered(sent, 0);
            // Retained jobs would make the state as large as the log, and no snapshot would be due.
            job.options.keep_ms = Some(0);
            pipeline.send(job).await.unwrap();
            sent += 1;
        }
        sent
    });
    let acknowledged = Arc::new(AtomicU64::new(0));
    let counted = acknowledged.clone();
    let reading = tokio::spawn(async move {
        let mut seen = HashSet::new();
        while read(&mut receipts, &mut seen).await {
            counted.store(seen.len() as u64, Ordering::Relaxed);
        }
        seen
    });

    let mut slowest = Duration::ZERO;
    let at = || (acknowledged.load(Ordering::Relaxed), stats.now().completed);
    for kill in 1..=kills {
        let (acknowledged, completed) = at();
        // At about 100 bytes of log per job, this makes a few snapshots in a dozen kills.
        let loaded = || async { at().0 > acknowledged + 2_500 && at().1 > completed + 2_500 };
        eventually("jobs are enqueued and completed", loaded).await;
        harness.kill_publisher();
        // Let messages in flight arrive; then both counts stop.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (acknowledged, completed) = at();
        let began = Instant::now();
        harness.restart_publisher();
        let again = || async { at().0 > acknowledged && at().1 > completed };
        eventually("jobs are enqueued and completed again", again).await;
        slowest = slowest.max(began.elapsed());
        assert!(slowest < RECOVERY + SLACK, "kill {kill}: {slowest:?}");
    }

    enough.store(true, Ordering::Relaxed);
    let sent: u64 = sending.await.unwrap();
    let seen = reading.await.unwrap();
    assert_eq!(seen.len() as u64, sent);
    let done = || async { harness.stat(QUEUE).await.completed >= sent };
    eventually("all jobs have completed", done).await;
    handle.drain();
    let report = working.await.unwrap().unwrap();
    let stat = harness.stat(QUEUE).await;
    assert_eq!((stat.enqueued, stat.completed), (sent, sent));
    assert_eq!((stat.counts.ready, stat.counts.running, stat.counts.dead), (0, 0, 0));
    assert_eq!((report.completed, report.unanswered), (sent, 0), "{report:?}");
    let runs = std::mem::take(&mut *runs.lock().unwrap());
    assert!(runs.keys().copied().eq(0..sent), "{} of {sent} jobs ran", runs.len());
    // Between kills a cycle may not finish, and while the queue grows, its log is the smaller part.
    // Once all jobs are done, a snapshot is due; queries drive the publisher's loop. (The journal's
    // tests cover the removal of segments, with the second snapshot.)
    let snapshots = harness.folder.path().join("publisher-1/snapshots");
    let is_made = || async {
        harness.stat(QUEUE).await;
        let mut names = snapshots.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().ends_with(".snap"))
    };
    eventually("a snapshot is made", is_made).await;
    println!("{sent} jobs, {kills} kills, slowest recovery {slowest:?}");
}

/// Jobs of each lease that the worker runs for the stopped publisher.
const RUNNING: usize = 4;
/// Ready jobs at the stopped publisher.
const WAITING: usize = 40;
/// Jobs per batch at the other publisher.
const MEANWHILE: usize = 16;
/// A lease that outlasts the stop, and one that ends during it.
const LEASES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(2)];

/// Jobs at one publisher by label, which is both payload and expected result.
struct EnqueuedJobs {
    producer: Producer,
    jobs: BTreeMap<String, JobLocator>,
}

impl EnqueuedJobs {
    fn to(harness: &Harness, publisher: usize) -> EnqueuedJobs {
        let info = info_of(&harness.publishers[publisher].service);
        let producer = Producer::to_publishers(vec![info]);
        EnqueuedJobs { producer, jobs: BTreeMap::new() }
    }

    async fn more(&mut self, count: usize, kind: &str, lease: Duration) {
        let mut jobs = Vec::new();
        for _ in 0..count {
            let label = format!("{kind}-{}", self.jobs.len());
            let mut job = new_job(Path::new(QUEUE).unwrap(), format!("{label}\n").into_bytes());
            job.options.keep_result = true;
            job.options.lease_ms = Some(lease.as_millis() as u32);
            self.jobs.insert(label, JobLocator::from(job.id));
            jobs.push(job);
        }
        let receipts = self.producer.enqueue_all(jobs).await;
        assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()), "{receipts:?}");
    }
}

/// Notes its start, waits for the file of its kind of job, and notes its end.
const COMMAND: &str = "read label; echo began $label >> notes; \
    case $label in late*|short*) while [ ! -e ${label%-*} ]; do sleep 0.05; done;; esac; \
    sleep 0.05; echo ended $label >> notes; printf %s $label";

/// Each job of the stopped publisher takes effect once, whether its command or its lease ended
/// during the stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_publisher_counts_as_crashed_and_jobs_end_once() {
    let harness = Harness::start_with(1, 2, None).await;
    let folder = harness.folder.path();
    let notes = || std::fs::read_to_string(folder.join("notes")).unwrap_or_default();
    let noted = |what: &str| notes().lines().filter(|line| line.starts_with(what)).count();
    let direct = [harness.direct_queues(0), harness.direct_queues(1)];
    let done = async |publisher: usize| stat_of(&direct[publisher], QUEUE).await.completed;
    let [long, short] = LEASES;
    let mut enqueued = [EnqueuedJobs::to(&harness, 0), EnqueuedJobs::to(&harness, 1)];
    let [first, second] = &mut enqueued;
    first.more(RUNNING, "late", long).await;
    first.more(RUNNING, "short", short).await;
    first.more(WAITING, "waiting", long).await;
    second.more(MEANWHILE, "other", long).await;

    let arguments = ["work", QUEUE, "--json", "--concurrency", "12", "--", "sh", "-c", COMMAND];
    let mut worker = harness.command(&arguments);
    worker.current_dir(folder).env("LONGSHORE_LOG", "warn");
    let mut worker = BackgroundCommand::start(worker);
    let both_running =
        || async { noted("began late") == RUNNING && noted("began short") == RUNNING };
    eventually("jobs of both kinds run", both_running).await;
    eventually("the other publisher's are done", || async { done(1).await > 0 }).await;

    let stopped = &harness.publishers[0].service;
    stopped.send(Signal::STOP);
    let began = Instant::now();
    // These commands end while the publisher cannot accept results.
    std::fs::write(folder.join("late"), "").unwrap();
    let losing = std::thread::spawn(move || {
        let line = worker.wait_for_stderr("link to the publisher lost");
        (worker, line, Instant::now())
    });
    let mut slowest = Duration::ZERO;
    while !losing.is_finished() {
        let since = Instant::now();
        second.more(MEANWHILE, "other", long).await;
        let all = second.jobs.len() as u64;
        eventually("jobs of the other are done", || async { done(1).await == all }).await;
        slowest = slowest.max(since.elapsed());
    }
    let (worker, line, lost) = losing.join().unwrap();
    let noticed = lost - began;
    println!("noticed after {noticed:?}; {MEANWHILE} jobs of the other took at most {slowest:?}");
    assert!(line.contains(stopped.text("publisher")), "the wrong link was lost: {line}");
    assert!(noticed <= LinkTiming::WORK.hang + SLACK, "noticed after {noticed:?}");
    // Jobs that waited for the hang detection would take as long.
    assert!(slowest < LinkTiming::WORK.hang / 2, "{MEANWHILE} jobs of the other: {slowest:?}");
    assert_eq!(noted("ended late"), RUNNING);

    std::fs::write(folder.join("short"), "").unwrap();
    stopped.send(Signal::CONT);
    let all = first.jobs.len() as u64;
    let took = eventually("all its jobs have ended", || async { done(0).await >= all }).await;
    first.more(MEANWHILE, "waiting", long).await;
    let all = first.jobs.len() as u64;
    eventually("its new jobs are done", || async { done(0).await >= all }).await;
    println!("all its jobs had ended {took:?} after SIGCONT");

    worker.send(Signal::TERM);
    let report = worker.ended().code(0).json();
    println!("{report}");
    assert_eq!(report["completed"], first.jobs.len() + second.jobs.len(), "{report}");
    for (direct_queues, enqueued) in direct.iter().zip(&enqueued) {
        let (stat, all) = (stat_of(direct_queues, QUEUE).await, enqueued.jobs.len() as u64);
        assert_eq!((stat.enqueued, stat.completed, stat.died), (all, all, 0));
        for (label, name) in &enqueued.jobs {
            let job = direct_queues.job(name).await.unwrap().job;
            assert_eq!(job.result.as_deref(), Some(label.as_bytes()), "{job:?}");
            let outcomes = job.attempts.iter().map(|attempt| attempt.outcome);
            let completed = outcomes.filter(|outcome| *outcome == AttemptOutcome::Completed);
            assert_eq!(completed.count(), 1, "{job:?}");
            // A job at the worker may have run twice.
            let ran = notes().lines().filter(|line| line[6..] == **label).count() / 2;
            assert!(ran == 1 || (!label.starts_with("other") && ran == 2), "{label}: {ran} times");
        }
    }
}

/// A `longshore value publish` process, which reads values from its standard input.
struct ValueProcess {
    process: Child,
    input: ChildStdin,
    id: String,
}

impl ValueProcess {
    fn start(harness: &Harness, priority: u16, value: u64) -> ValueProcess {
        let priority = priority.to_string();
        let mut command =
            harness.command(&["value", "publish", VALUE, "-", "--json", "--priority", &priority]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        writeln!(input, "{value}").unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        ValueProcess { process, input, id: ready["publisher"].as_str().unwrap().to_owned() }
    }

    fn set(&mut self, value: u64) {
        writeln!(self.input, "{value}").unwrap();
    }

    fn send(&self, signal: Signal) {
        common::send(&self.process, signal);
    }
}

impl Drop for ValueProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A `longshore value subscribe` process, which prints into a file.
struct SubscribeProcess {
    process: Child,
    file: PathBuf,
}

impl SubscribeProcess {
    fn start(harness: &Harness) -> SubscribeProcess {
        let file = harness.folder.path().join("followed");
        let mut command = harness.command(&["value", "subscribe", VALUE]);
        let stdout = std::fs::File::create(&file).unwrap();
        let process = command.stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
        SubscribeProcess { process, file }
    }

    /// The printed values.
    fn printed(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.lines().map(|line| line.strip_prefix("/values/a ").unwrap().to_owned()).collect()
    }
}

impl Drop for SubscribeProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const VALUE: &str = "/values/a";
/// Short timing for the test; the default for values is 5 s and 100 s. The shorter of both sides
/// applies.
const SHORT: LinkTiming =
    LinkTiming { heartbeat: Duration::from_millis(300), hang: Duration::from_millis(1_500) };

/// Reads numbers up to `wanted`.
async fn up_to(value: &mut DurableValue, wanted: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    let reading = async {
        while seen.last() != Some(&wanted) {
            match value.next().await.unwrap() {
                Event::Update(Value::U64(n)) => seen.push(n),
                Event::Update(other) => panic!("{other}"),
                Event::Dead(_) => {}
            }
        }
    };
    let in_time = timeout(Duration::from_secs(30), reading).await.is_ok();
    assert!(in_time, "{wanted} did not arrive, only {seen:?}");
    seen
}

/// With `LONGSHORE_LONG=1` the test also waits for the `value subscribe` process, whose links
/// count as hung after 100 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_durable_value_fails_over_from_a_stopped_publisher() {
    let harness = Harness::start_with(1, 0, None).await;
    // Subscribers prefer the publisher with the lowest number.
    let mut first = ValueProcess::start(&harness, 0, 1);
    let mut second = ValueProcess::start(&harness, 1, 100);
    let link = longshore::LinkOptions { timing: SHORT, ..longshore::LinkOptions::default() };
    let subscriber = Subscriber::builder().link(link).connect(harness.cluster());
    let mut value = subscriber.durable_subscribe(Path::new(VALUE).unwrap());
    let subscriber_process = SubscribeProcess::start(&harness);
    up_to(&mut value, 1).await;
    first.set(2);
    up_to(&mut value, 2).await;
    eventually("a subscriber follows it", || async {
        subscriber_process.printed().last().is_some_and(|n| n == "2")
    })
    .await;
    let publisher_of = |value: &DurableValue| match value.state() {
        ValueState::Alive { publisher, .. } => publisher.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(publisher_of(&value), first.id);

    first.send(Signal::STOP);
    let began = Instant::now();
    // It cannot send this value before its link is given up, and has no subscriber afterwards.
    first.set(3);
    second.set(101);
    assert_eq!(up_to(&mut value, 101).await, [101]);
    let took = began.elapsed();
    println!("{took:?} after SIGSTOP it is subscribed at the next");
    assert!(took <= SHORT.hang + SLACK, "{took:?}");
    assert_eq!(publisher_of(&value), second.id);
    // A new subscriber does not wait for a hang.
    let since = Instant::now();
    let once = harness.run(&["value", "subscribe", VALUE, "--once"]).code(0);
    assert_eq!(once.stdout, "/values/a 101\n");
    println!("a new subscriber has it after {:?}", since.elapsed());
    assert!(since.elapsed() < SLACK, "{:?}", since.elapsed());
    if long() {
        let has_value =
            || async { subscriber_process.printed().last().is_some_and(|n| n == "101") };
        let limit = LinkTiming::VALUES.hang + SLACK;
        while !has_value().await {
            assert!(
                began.elapsed() <= limit,
                "not within {limit:?}: {:?}",
                subscriber_process.printed()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("{:?} after SIGSTOP the program's subscriber has it", began.elapsed());
        assert!(
            !subscriber_process.printed().contains(&"3".to_owned()),
            "{:?}",
            subscriber_process.printed()
        );
    }

    first.send(Signal::CONT);
    second.set(102);
    assert_eq!(up_to(&mut value, 102).await, [102]);
    // The resumed publisher has its new value; a subscriber of the other publisher does not receive
    // it.
    let has_resumed = || async {
        harness.run(&["value", "subscribe", VALUE, "--once"]).stdout == "/values/a 3\n"
    };
    eventually("the first has resumed", has_resumed).await;
    second.set(103);
    assert_eq!(up_to(&mut value, 103).await, [103]);
    assert_eq!(publisher_of(&value), second.id);
    if !long() {
        // Its link did not count as hung, so it stayed with the first publisher.
        eventually("a subscriber follows it", || async {
            subscriber_process.printed().last().is_some_and(|n| n == "3")
        })
        .await;
        assert!(
            subscriber_process.printed().iter().all(|n| n.len() == 1),
            "{:?}",
            subscriber_process.printed()
        );
    }
}
