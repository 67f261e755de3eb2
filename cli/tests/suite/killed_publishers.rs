//! Publishers killed with SIGKILL, or stopped with SIGSTOP: nothing acknowledged is lost, nothing
//! is there twice, and work goes on.
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
use longshore::values::{DurableValue, Event, Subscriber, SubscriberOptions, ValueState};
use longshore::{
    AttemptOutcome, BatchOptions, Job, JobContext, JobId, JobName, LinkTiming, NewJob, Path,
    PipelineOptions, Producer, ProducerOptions, Receipts, Value, Worker, new_job,
};
use rustix::process::Signal;
use tokio::time::timeout;

const QUEUE: &str = "/jobs/load";
/// The smallest there are: snapshots are made and segments go while the publisher is killed.
const SMALL_SEGMENTS: &str = "\n[publisher]\nsegment_bytes = 1048576\n";
/// A job that is ready is with a worker again, and a batch answered, this soon after a killed
/// publisher was started again.
const RECOVERY: Duration = Duration::from_secs(5);
/// What processes that share a busy machine may take beyond a promised time.
const SLACK: Duration = Duration::from_secs(3);

fn numbered(n: u64, priority: i32) -> NewJob {
    let mut job = new_job(Path::new(QUEUE).unwrap(), n.to_be_bytes().to_vec());
    job.options.priority = priority;
    job
}

fn number(payload: &[u8]) -> u64 {
    u64::from_be_bytes(payload.try_into().unwrap())
}

/// Reads receipts into `seen`, each of which has to be a job made by its first batch; false once
/// all were read.
async fn read(receipts: &mut Receipts, seen: &mut HashSet<JobId>) -> bool {
    let Some(batch) = receipts.next().await else { return false };
    for receipt in batch.iter() {
        let held = receipt.outcome.unwrap();
        assert!(!held.existing, "a batch that was sent again was taken for a new one");
        assert!(seen.insert(receipt.id), "two receipts for job {}", receipt.id);
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_survive_a_publisher_killed_during_enqueue() {
    let jobs: u64 = 100_000;
    let mut harness = Harness::with_proxy().await;
    let options = PipelineOptions { in_flight_jobs_max: 10_000, ..PipelineOptions::default() };
    let producer = harness.producer();
    let (mut pipeline, mut receipts) = producer.pipeline(options);
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

    // A third is acknowledged. From now on the publisher's answers are lost, while it goes on
    // taking jobs; then it is killed.
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
    eventually("jobs are durable whose receipts were lost", unanswered).await;
    assert!(proxy.dropped_bytes() > 0);
    harness.kill_publisher();
    assert!((seen.len() as u64) < jobs);

    // Nobody has found it yet, so what it has is what its disk had.
    let mut hidden = harness.start_publisher_behind_proxy();
    let held = jobs_of(&direct_queues(&hidden), QUEUE).await;
    let ids: HashSet<JobId> = held.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), held.len(), "a job is there twice");
    let lost = seen.difference(&ids).count();
    assert_eq!(lost, 0, "of {} receipts", seen.len());
    assert_eq!(stat_of(&direct_queues(&hidden), QUEUE).await.enqueued, ids.len() as u64);
    hidden.kill();

    // Found again, it is sent what has no answer, and gives the receipts that were lost.
    harness.proxy.as_ref().unwrap().drop_answers(false);
    harness.restart_publisher();
    while read(&mut receipts, &mut seen).await {}
    let order = sending.await.unwrap();
    assert_eq!(seen.len() as u64, jobs);
    let stat = harness.stat(QUEUE).await;
    assert_eq!((stat.enqueued, stat.counts.ready), (jobs, jobs));

    let ran = Arc::new(Mutex::new(Vec::new()));
    let worker = Worker::connect(harness.cluster()).await.unwrap().durable_subscribe(QUEUE);
    let worker = worker.concurrency(1).prefetch(5_000);
    let (handle, noted) = (worker.handle(), ran.clone());
    let running = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        noted.lock().unwrap().push(number(&job.payload));
        async { Ok(()) }
    }));
    eventually("all jobs have completed", || async { harness.stat(QUEUE).await.completed == jobs })
        .await;
    handle.drain();
    running.await.unwrap().unwrap();
    let ran = ran.lock().unwrap();
    assert_eq!(ran.len(), order.len());
    let astray = ran.iter().zip(&order).position(|(ran, expected)| ran != expected);
    if let Some(at) = astray {
        let around = at..ran.len().min(at + 5);
        panic!(
            "not in the order of priority and age from {at} on: {:?} instead of {:?}",
            &ran[around.clone()],
            &order[around]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_publisher_kills_lose_and_duplicate_nothing() {
    let kills = if long() { 500 } else { 20 };
    let mut harness = Harness::with_more_configuration(1, 1, None, SMALL_SEGMENTS).await;
    let worker = Worker::connect(harness.cluster()).await.unwrap().durable_subscribe(QUEUE);
    let worker = worker.concurrency(16).prefetch(1_000);
    let (handle, stats) = (worker.handle(), worker.stats());
    let runs = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
    let noted = runs.clone();
    let working = tokio::spawn(worker.run(move |job: Job<Bytes>, _: JobContext| {
        *noted.lock().unwrap().entry(number(&job.payload)).or_default() += 1;
        async { Ok(()) }
    }));

    let options = PipelineOptions { in_flight_jobs_max: 5_000, ..PipelineOptions::default() };
    let (mut pipeline, mut receipts) = harness.producer().pipeline(options);
    let enough = Arc::new(AtomicBool::new(false));
    let stop = enough.clone();
    let sending = tokio::spawn(async move {
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut job = numbered(sent, 0);
            // Kept jobs would make the state as large as the log: then there is nothing to gain by
            // a snapshot.
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
        // Of about 100 bytes of log each: a few snapshots for twenty kills.
        let loaded = || async { at().0 > acknowledged + 2_500 && at().1 > completed + 2_500 };
        eventually("jobs go in and are done", loaded).await;
        harness.kill_publisher();
        // What was on its way to them arrives; then both stand still.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (acknowledged, completed) = at();
        let began = Instant::now();
        harness.restart_publisher();
        let again = || async { at().0 > acknowledged && at().1 > completed };
        eventually("jobs go in and are done again", again).await;
        slowest = slowest.max(began.elapsed());
        assert!(slowest < RECOVERY, "kill {kill}: {slowest:?}");
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
    // Each life may have been too short for a cycle to end in it, and while the queue grows its log
    // stays the smaller part; once all is done it is not. Asking gives the publisher its turns.
    // (Segments go with the second snapshot after that: the journal's tests.)
    let snapshots = harness.folder.path().join("publisher-1/snapshots");
    let is_made = || async {
        harness.stat(QUEUE).await;
        let mut names = snapshots.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().ends_with(".snap"))
    };
    eventually("a snapshot is made", is_made).await;
    println!("{sent} jobs, {kills} kills, slowest recovery {slowest:?}");
}

/// Jobs of the publisher that is stopped that the worker holds, of two kinds each.
const HELD: usize = 4;
/// Those that wait there for one.
const WAITING: usize = 40;
/// Jobs enqueued at the other publisher at a time.
const MEANWHILE: usize = 16;
/// A lease that outlives the stop, and one that does not.
const LEASES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(2)];

/// Jobs at one publisher, by the label that each has for its payload and is to have for its result.
struct EnqueuedJobs {
    producer: Producer,
    jobs: BTreeMap<String, JobName>,
}

impl EnqueuedJobs {
    fn to(harness: &Harness, publisher: usize) -> EnqueuedJobs {
        let info = info_of(&harness.publishers[publisher].service);
        let producer = Producer::to_publishers(vec![info], ProducerOptions::default());
        EnqueuedJobs { producer, jobs: BTreeMap::new() }
    }

    async fn more(&mut self, count: usize, kind: &str, lease: Duration) {
        let mut jobs = Vec::new();
        for _ in 0..count {
            let label = format!("{kind}-{}", self.jobs.len());
            let mut job = new_job(Path::new(QUEUE).unwrap(), format!("{label}\n").into_bytes());
            job.options.keep_result = true;
            job.options.lease_ms = Some(lease.as_millis() as u32);
            self.jobs.insert(label, JobName::from(job.id));
            jobs.push(job);
        }
        let receipts = self.producer.enqueue_all(jobs, BatchOptions::default()).await;
        assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()), "{receipts:?}");
    }
}

/// Notes that it began; waits for the file that its kind of jobs waits for; notes that it ended.
const COMMAND: &str = "read label; echo began $label >> notes; \
    case $label in late*|short*) while [ ! -e ${label%-*} ]; do sleep 0.05; done;; esac; \
    sleep 0.05; echo ended $label >> notes; printf %s $label";

/// A job of the stopped one takes effect once, whether its command, its lease or nothing of it
/// ended meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_publisher_counts_as_crashed_and_jobs_end_once() {
    let harness = Harness::start_with(1, 2, None).await;
    let folder = harness.folder.path();
    let notes = || std::fs::read_to_string(folder.join("notes")).unwrap_or_default();
    let noted = |what: &str| notes().lines().filter(|line| line.starts_with(what)).count();
    let inside = [harness.direct_queues(0), harness.direct_queues(1)];
    let done = async |publisher: usize| stat_of(&inside[publisher], QUEUE).await.completed;
    let [long, short] = LEASES;
    let mut enqueued = [EnqueuedJobs::to(&harness, 0), EnqueuedJobs::to(&harness, 1)];
    let [first, second] = &mut enqueued;
    first.more(HELD, "late", long).await;
    first.more(HELD, "short", short).await;
    first.more(WAITING, "waiting", long).await;
    second.more(MEANWHILE, "other", long).await;

    let arguments = ["work", QUEUE, "--json", "--concurrency", "12", "--", "sh", "-c", COMMAND];
    let mut worker = harness.command(&arguments);
    worker.current_dir(folder).env("LONGSHORE_LOG", "warn");
    let mut worker = BackgroundCommand::start(worker);
    let both_held = || async { noted("began late") == HELD && noted("began short") == HELD };
    eventually("jobs of both kinds are held", both_held).await;
    eventually("the other publisher's are done", || async { done(1).await > 0 }).await;

    let stopped = &harness.publishers[0].service;
    stopped.send(Signal::STOP);
    let began = Instant::now();
    // Their commands end now, and nobody takes the results.
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
    assert!(line.contains(stopped.text("publisher")), "another one was lost: {line}");
    assert!(noticed <= LinkTiming::WORK.hang + SLACK, "noticed after {noticed:?}");
    // Those that waited for the hang would have taken as long as that.
    assert!(slowest < LinkTiming::WORK.hang / 2, "{MEANWHILE} jobs of the other: {slowest:?}");
    assert_eq!(noted("ended late"), HELD);

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
    for (direct_queues, enqueued) in inside.iter().zip(&enqueued) {
        let (stat, all) = (stat_of(direct_queues, QUEUE).await, enqueued.jobs.len() as u64);
        assert_eq!((stat.enqueued, stat.completed, stat.died), (all, all, 0));
        for (label, name) in &enqueued.jobs {
            let job = inside.job(name).await.unwrap().job;
            assert_eq!(job.result.as_deref(), Some(label.as_bytes()), "{job:?}");
            let outcomes = job.attempts.iter().map(|attempt| attempt.outcome);
            let completed = outcomes.filter(|outcome| *outcome == AttemptOutcome::Completed);
            assert_eq!(completed.count(), 1, "{job:?}");
            // What was with the worker may have run twice.
            let ran = notes().lines().filter(|line| line[6..] == **label).count() / 2;
            assert!(ran == 1 || (!label.starts_with("other") && ran == 2), "{label}: {ran} times");
        }
    }
}

/// A publisher of one value, that takes what is next from lines.
struct ValueProcess {
    process: Child,
    input: ChildStdin,
    id: String,
}

impl ValueProcess {
    fn start(harness: &Harness, priority: u16, value: u64) -> ValueProcess {
        let priority = priority.to_string();
        let mut command =
            harness.command(&["publish", VALUE, "-", "--json", "--priority", &priority]);
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

/// `longshore subscribe`, which prints into a file.
struct SubscribeProcess {
    process: Child,
    file: PathBuf,
}

impl SubscribeProcess {
    fn start(harness: &Harness) -> SubscribeProcess {
        let file = harness.folder.path().join("subscriber_process");
        let mut command = harness.command(&["subscribe", VALUE]);
        let stdout = std::fs::File::create(&file).unwrap();
        let process = command.stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
        SubscribeProcess { process, file }
    }

    /// The values that it has printed.
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
/// For a test; on values 5 s and 100 s are usual. The shorter of both sides' holds.
const SHORT: LinkTiming =
    LinkTiming { heartbeat: Duration::from_millis(300), hang: Duration::from_millis(1_500) };

/// The numbers that come, up to this one.
async fn up_to(value: &mut DurableValue, wanted: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    let coming = async {
        while seen.last() != Some(&wanted) {
            match value.next().await.unwrap() {
                Event::Update(Value::U64(n)) => seen.push(n),
                Event::Update(other) => panic!("{other}"),
                Event::Dead(_) => {}
            }
        }
    };
    let in_time = timeout(Duration::from_secs(30), coming).await.is_ok();
    assert!(in_time, "{wanted} never comes, but {seen:?}");
    seen
}

/// With `LONGSHORE_LONG=1` also the program's own subscriber is waited for, whose links hang after
/// 100 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_durable_value_fails_over_from_a_stopped_publisher() {
    let harness = Harness::start_with(1, 0, None).await;
    // Held at the one with the lowest number.
    let mut first = ValueProcess::start(&harness, 0, 1);
    let mut second = ValueProcess::start(&harness, 1, 100);
    let mut options = SubscriberOptions::default();
    assert_eq!(options.link.timing, LinkTiming::VALUES);
    options.link.timing = SHORT;
    let subscriber = Subscriber::connect_with(harness.cluster(), options).await.unwrap();
    let mut value = subscriber.durable_subscribe(Path::new(VALUE).unwrap());
    let subscriber_process = SubscribeProcess::start(&harness);
    up_to(&mut value, 1).await;
    first.set(2);
    up_to(&mut value, 2).await;
    eventually("it is subscriber_process", || async {
        subscriber_process.printed().last().is_some_and(|n| n == "2")
    })
    .await;
    let held_by = |value: &DurableValue| match value.state() {
        ValueState::Alive { publisher, .. } => publisher.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(held_by(&value), first.id);

    first.send(Signal::STOP);
    let began = Instant::now();
    // It has not said this when it is given up, and nobody hears of it once it goes on.
    first.set(3);
    second.set(101);
    assert_eq!(up_to(&mut value, 101).await, [101]);
    let took = began.elapsed();
    println!("{took:?} after SIGSTOP it is held at the next");
    assert!(took <= SHORT.hang + SLACK, "{took:?}");
    assert_eq!(held_by(&value), second.id);
    // Who comes new need not wait for a hang.
    let since = Instant::now();
    let once = harness.run(&["subscribe", VALUE, "--once"]).code(0);
    assert_eq!(once.stdout, "/values/a 101\n");
    println!("who comes new has it after {:?}", since.elapsed());
    assert!(since.elapsed() < SLACK, "{:?}", since.elapsed());
    if long() {
        let told = || async { subscriber_process.printed().last().is_some_and(|n| n == "101") };
        let patience = LinkTiming::VALUES.hang + SLACK;
        while !told().await {
            assert!(
                began.elapsed() <= patience,
                "not within {patience:?}: {:?}",
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
    // The one that stood still has gone on, with what it was told meanwhile; who holds on elsewhere
    // hears nothing of it.
    let went_on =
        || async { harness.run(&["subscribe", VALUE, "--once"]).stdout == "/values/a 3\n" };
    eventually("the first goes on", went_on).await;
    second.set(103);
    assert_eq!(up_to(&mut value, 103).await, [103]);
    assert_eq!(held_by(&value), second.id);
    if !long() {
        // Its link had not hung yet, so it has lost nothing.
        eventually("it is subscriber_process", || async {
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
