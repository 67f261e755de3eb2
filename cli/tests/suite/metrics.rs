//! The metrics below /sys, and the tools that show them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::harness::Harness;
use common::{BackgroundCommand, Service, System, eventually, longshore};
use longshore::values::{Event, Subscriber};
use longshore::{
    Cluster, Job, JobContext, Path, Producer, Publisher, PublisherOptions, ResolverServer,
    ServerOptions, Worker, new_job,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, LocalModes, Winsize, tcflow, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A generous timeout.
const LONG: Duration = Duration::from_secs(30);

fn next(command: &mut BackgroundCommand) -> Value {
    let line = command.line();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Reads what `subscribe` prints up to a matching value.
fn read_until(command: &mut BackgroundCommand, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let value = next(command)["value"].take();
        if wanted(&value) {
            return value;
        }
    }
}

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// The name of the publisher of `up`, which is the host name.
fn name_of(system: &System) -> String {
    let top = system.run(&["top", "--once", "--json"]).code(0).json();
    top["publishers"][0]["name"].as_str().unwrap().to_owned()
}

#[test]
fn queue_metrics_follow_job_transitions() {
    let system = System::up();
    let name = name_of(&system);
    system.enqueue("/jobs/a", "x", &[]);
    let metric = format!("/sys/publishers/{name}/queues/jobs/a");
    let mut queue = system.spawn(&["value", "subscribe", &metric, "--json"]);
    let first = read_until(&mut queue, |_| true);
    assert_eq!((&first["ready"], &first["enqueued_ever"]), (&json!(1), &json!(1)), "{first}");
    system.enqueue("/jobs/a", "y", &[]);
    read_until(&mut queue, |value| value["ready"] == 2);
    system.run(&["work", "/jobs/a", "--until-empty", "--", "true"]).code(0);
    let done = read_until(&mut queue, |value| value["completed_ever"] == 2);
    assert_eq!(
        (&done["ready"], &done["failed_ever"], &done["died_ever"]),
        (&json!(0), &json!(0), &json!(0))
    );

    let one = |metric: String| {
        let shown = system.run(&["value", "subscribe", &metric, "--once", "--json"]).code(0).json();
        shown["value"].clone()
    };
    let publisher = one(format!("/sys/publishers/{name}"));
    assert_eq!(publisher["id"], system.service.text("publisher"));
    assert_eq!((&publisher["queues"], &publisher["states"]["completed"]), (&json!(1), &json!(2)));
    assert_eq!((&publisher["durability"], &publisher["room"]), (&json!("fsync"), &json!("open")));
    assert!(publisher["links"]["values"].as_u64() >= Some(2), "{publisher}");
    let queues = one(format!("/sys/publishers/{name}/queues"));
    assert_eq!((&queues["queues"][0]["path"], &queues["more"]), (&json!("/jobs/a"), &json!(0)));
    let replica = one("/sys/replicas/up-1".to_owned());
    assert_eq!(
        (&replica["warming"], &replica["publishers"]),
        (&json!(false), &json!(1)),
        "{replica}"
    );

    // A missing metric is reported, and not created.
    let none =
        system.run(&["value", "write", &format!("{metric}/none"), "1", "--within", "3s"]).code(1);
    none.stderr_has(&["no queue /jobs/a/none"]);
    let none = system.run(&[
        "value",
        "write",
        &format!("/sys/publishers/{name}/else"),
        "1",
        "--within",
        "3s",
    ]);
    none.code(1).stderr_has(&["no such metrics"]);
    // A pattern below /sys also matches metrics that are not in the directory.
    let all =
        system.run(&["value", "subscribe", "/sys/*/*", "--once", "--json"]).code(0).json_lines();
    let mut paths: Vec<&str> = all.iter().map(|line| line["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, [&format!("/sys/publishers/{name}"), "/sys/replicas/up-1"]);
}

#[test]
fn up_serves_replica_metrics_at_the_configured_address() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "[resolver]\nmetrics = '127.0.0.9:0'\n").unwrap();
    let mut up = longshore(&["up", "--json", "--replicas", "2", "--config"]);
    up.arg(&file).args(["--resolver-port", "0", "--publisher-port", "0", "--data"]);
    up.arg(folder.path().join("data"));
    let system = System { service: Service::start(up), folder };
    for replica in ["up-1", "up-2"] {
        let metric = format!("/sys/replicas/{replica}");
        let shown = system.run(&["value", "subscribe", &metric, "--once", "--json"]).code(0).json();
        assert_eq!(shown["value"]["name"], replica, "{shown}");
        let found =
            system.run(&["directory", "resolve", &metric, "--json"]).code(0).json().to_string();
        assert!(found.contains("\"127.0.0.9:") && found.contains("replica-up"), "{found}");
        assert!(!found.contains(system.publisher()), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn metrics_are_collected_only_while_subscribed() {
    let fresh = ServerOptions { fresh: true, ..ServerOptions::default() };
    let replica = ResolverServer::bind("127.0.0.1:0".parse().unwrap(), fresh).unwrap();
    let cluster = Cluster::new([replica.local_address().to_string()]);
    tokio::spawn(replica.run(std::future::pending()));
    let folder = tempfile::tempdir().unwrap();
    let publisher = Publisher::open(PublisherOptions {
        name: "p1".to_owned(),
        cluster: Some(cluster.clone()),
        ..PublisherOptions::new(folder.path())
    })
    .await
    .unwrap();
    let values = publisher.values();
    timeout(LONG, publisher.write_client().unwrap().flushed(1)).await.unwrap();
    tokio::spawn(publisher.run(std::future::pending()));

    // A worker that reports progress on request.
    let (report, reported) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel::<()>();
    let waits = std::sync::Mutex::new(Some((reported, ended)));
    let worker = Worker::connect(cluster.clone());
    let running = worker.durable_subscribe("/jobs/**").concurrency(2).run(
        move |_: Job<String>, context: JobContext| {
            let waits = waits.lock().unwrap().take();
            async move {
                let (reported, ended) = waits.unwrap();
                context.progress(10, "begun");
                reported.await.unwrap();
                context.progress(70, "nearly there");
                ended.await.unwrap();
                Ok(())
            }
        },
    );
    tokio::spawn(async move { running.await.unwrap() });
    let producer = Producer::connect(cluster.clone());
    let job = new_job(path("/jobs/a"), b"\"x\"".to_vec());
    let id = job.id;
    producer.enqueue(job).await.unwrap();
    assert_eq!(values.len(), 0, "there is no subscriber");

    let subscriber = Subscriber::connect(cluster);
    let metric = path(&format!("/sys/publishers/p1/progress/{id}"));
    let mut progress = subscriber.durable_subscribe(metric);
    let percent = |event: Event| match event {
        Event::Update(value) => {
            let value: Value = serde_json::from_str(&value.to_string()).unwrap();
            Some((value["percent"].as_u64(), value["state"].as_str().unwrap().to_owned(), value))
        }
        Event::Dead(_) => None,
    };
    let seen = async {
        let (mut report, mut end) = (Some(report), Some(end));
        loop {
            let Some((percent, state, value)) = percent(progress.next().await.unwrap()) else {
                continue;
            };
            match (percent, state.as_str()) {
                (Some(10), "running") => {
                    assert_eq!((&value["text"], &value["attempt"]), (&json!("begun"), &json!(1)));
                    report.take().unwrap().send(()).unwrap();
                }
                (Some(70), "running") => {
                    assert_eq!(values.len(), 1);
                    end.take().unwrap().send(()).unwrap();
                }
                (_, "completed") => return,
                _ => {}
            }
        }
    };
    timeout(LONG, seen).await.unwrap();
    // An ended job has no metrics; metrics without subscribers are removed.
    eventually("the progress is removed", || async { values.is_empty() }).await;
    let workers = subscriber.subscribe(path("/sys/publishers/p1/workers")).await.unwrap();
    assert_eq!(values.len(), 1);
    drop(workers);
    eventually("the workers are removed", || async { values.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_ls_lists_workers_of_all_publishers() {
    let mut harness = Harness::start_with(1, 2, None).await;
    let worker = BackgroundCommand::start(harness.command(&[
        "work",
        "/jobs/**",
        "--concurrency",
        "3",
        "--",
        "true",
    ]));
    let listed = |pattern: Option<&str>| {
        let mut arguments = vec!["workers", "ls", "--json"];
        arguments.extend(pattern);
        let listed = harness.run(&arguments).code(0).json();
        listed["workers"].as_array().unwrap().clone()
    };
    common::wait_until("the worker is linked to both", || {
        let workers = listed(None);
        workers.len() == 2 && workers.iter().all(|worker| worker["patterns"][0] == "/jobs/**")
    });
    let workers = listed(Some("/jobs/a"));
    let mut publishers: Vec<&str> =
        workers.iter().map(|worker| worker["publisher"].as_str().unwrap()).collect();
    publishers.sort_unstable();
    assert_eq!(publishers, ["publisher-1", "publisher-2"]);
    assert_eq!(workers[0]["session"].as_str().unwrap().len(), 8);
    assert_eq!(listed(Some("/other")), [] as [Value; 0]);
    let shown = harness.run(&["workers", "ls"]).code(0).stdout;
    assert!(shown.starts_with("worker ") && shown.contains("/jobs/**"), "{shown}");
    drop(worker);
    common::wait_until("it is gone", || listed(None).is_empty());

    harness.kill_publisher();
    let missing = harness.run(&["workers", "ls", "--json"]).code(1).json();
    assert_eq!(missing["missing"][0]["name"], "publisher-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn publishers_without_metrics_are_reported_and_skipped() {
    let harness =
        Harness::with_more_configuration(1, 2, None, "[publisher]\nmetrics = false\n").await;
    let _worker = BackgroundCommand::start(harness.command(&["work", "/jobs/**", "--", "true"]));
    harness.run(&["enqueue", "/jobs/a", "x"]).code(0);
    let note = "publishes no metrics (publisher.metrics is false)";
    common::wait_until("the worker is counted", || {
        harness.run(&["stat", "/jobs/a", "--json"]).code(0).json()["queues"][0]["workers"] == 1
    });
    let stat = harness.run(&["stat", "--json"]).code(0).json();
    assert_eq!(stat["without_metrics"], json!(["publisher-1", "publisher-2"]));
    let check = harness.run(&["check"]).code(0).stdout;
    assert!(check.contains(note), "{check}");
    let top = harness.run(&["top", "--once"]).code(0).stdout;
    assert!(top.contains(&format!("publisher publisher-2 {note}")), "{top}");
    let listed = harness.run(&["workers", "ls"]).code(0).stderr;
    assert!(listed.contains(&format!("publisher publisher-1 {note}")), "{listed}");
    let quiet = harness.run(&["workers", "quiet", "*", "--wait"]).code(1).stderr;
    assert!(quiet.contains(note), "{quiet}");
}

#[test]
fn top_prints_the_system_as_lines_and_json() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    let top = system.run(&["top", "--once", "--json"]).code(0).json();
    assert_eq!(top["queues"][0]["path"], "/jobs/a");
    assert_eq!((&top["queues"][0]["ready"], &top["workers"]), (&json!(1), &json!([])));
    assert_eq!(top["replicas"][0]["name"], "up-1");
    let shown = system.run(&["top", "--once"]).code(0).stdout;
    for part in ["publisher ", "queue ", "replica "] {
        assert!(shown.lines().any(|line| line.starts_with(part)), "{part}: {shown}");
    }
    assert!(!shown.contains('\x1b'), "no terminal, no drawing");

    // `top --json` prints a line with rates every second.
    let mut top = system.spawn(&["top", "--json"]);
    let rated = loop {
        let shown = next(&mut top);
        if !shown["queues"][0]["enqueued_per_s"].is_null() {
            break shown;
        }
    };
    assert_eq!(rated["queues"][0]["enqueued_per_s"], 0.0);
    top.send(Signal::INT);
    top.ended().code(0);
}

/// `longshore top` on a pseudo-terminal controlled by the test. Killed on drop.
struct TopOnTerminal {
    process: Child,
    controller: File,
    terminal: OwnedFd,
    drawn: Arc<Mutex<Vec<u8>>>,
    /// The terminal's original modes.
    original_modes: String,
}

/// The alternate screen and back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
/// The whole sequence that leaves it.
const LEAVE_SEQUENCE: &str = "\x1b[?1006l\x1b[?1000l\x1b[?7h\x1b[?25h\x1b[?1049l";

impl TopOnTerminal {
    fn start(system: &System, rows: u16, columns: u16) -> TopOnTerminal {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(name, flags, Mode::empty()).unwrap();
        resize(&terminal, rows, columns);
        let original_modes = modes(&terminal);
        let end = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = system.command(&["top"]);
        // A process group with a parent in another group, as under a shell. Only such a group can
        // be stopped by Ctrl-Z.
        command.process_group(0);
        let process = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let (controller, drawn) = (File::from(controller), Arc::new(Mutex::new(Vec::new())));
        let (mut reader, output) = (controller.try_clone().unwrap(), drawn.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                output.lock().unwrap().extend(&chunk[..count]);
            }
        });
        TopOnTerminal { process, controller, terminal, drawn, original_modes }
    }

    fn drawn(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    /// Waits until a word was drawn.
    #[track_caller]
    fn shows(&self, word: &str) {
        common::wait_until(word, || self.drawn().contains(word));
    }

    /// Waits for a clean exit that has restored the terminal.
    #[track_caller]
    fn ended(&mut self) {
        common::wait_until("it ends", || self.process.try_wait().unwrap().is_some());
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
        assert_eq!(modes(&self.terminal), self.original_modes);
        // The message about a signal may follow.
        common::wait_until("the terminal is left", || self.drawn().contains(LEAVE));
        assert!(!self.drawn().contains("panicked"), "{}", self.drawn());
    }
}

impl Drop for TopOnTerminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn resize(terminal: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

fn modes(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).unwrap())
}

#[test]
fn top_restores_its_terminal_on_every_exit() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    for ending in [None, Some(Signal::INT), Some(Signal::TERM)] {
        let mut top = TopOnTerminal::start(&system, 24, 120);
        top.shows("/jobs/a");
        assert!(top.drawn().starts_with(ENTER), "{}", top.drawn());
        let local = tcgetattr(&top.terminal).unwrap().local_modes;
        assert!(!local.intersects(LocalModes::ICANON | LocalModes::ECHO), "{local:?}");
        assert!(local.contains(LocalModes::ISIG), "Ctrl-C remains a signal: {local:?}");
        match ending {
            Some(signal) => common::send(&top.process, signal),
            // Other keys have no effect and are not echoed.
            None => top.controller.write_all(b"xyzzyq").unwrap(),
        }
        top.ended();
        assert!(!top.drawn().contains("xyzzy"), "{}", top.drawn());
    }
}

#[test]
fn top_restores_its_terminal_while_suspended() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    let mut top = TopOnTerminal::start(&system, 24, 120);
    top.shows("/jobs/a");
    for times in 1..=2 {
        common::send(&top.process, Signal::TSTP);
        let pid = Pid::from_child(&top.process);
        let stopped = || {
            let known = waitpid(Some(pid), WaitOptions::UNTRACED | WaitOptions::NOHANG).unwrap();
            known.is_some_and(|(_, status)| status.stopped())
        };
        common::wait_until("it stops", stopped);
        assert_eq!(modes(&top.terminal), top.original_modes);
        common::wait_until("the terminal is left", || top.drawn().ends_with(LEAVE_SEQUENCE));
        assert_eq!(top.drawn().matches(LEAVE).count(), times);

        common::send(&top.process, Signal::CONT);
        common::wait_until("it is redrawn", || {
            let drawn = top.drawn();
            let mut since = drawn.split(ENTER).skip(1 + times);
            since.next().is_some_and(|frame| frame.contains("/jobs/a"))
        });
        let local = tcgetattr(&top.terminal).unwrap().local_modes;
        assert!(!local.intersects(LocalModes::ICANON | LocalModes::ECHO), "{local:?}");
    }
    top.controller.write_all(b"q").unwrap();
    top.ended();
}

#[test]
fn top_restores_a_terminal_that_blocks_output() {
    let system = System::up();
    let mut top = TopOnTerminal::start(&system, 24, 80);
    top.shows("Replicas");
    tcflow(&top.terminal, Action::OOff).unwrap();
    // It draws every second, so by then it blocks on its terminal.
    std::thread::sleep(Duration::from_millis(2_500));
    // After the first signal it waits for the terminal; the second ends it.
    let ended = || {
        common::send(&top.process, Signal::TERM);
        top.process.try_wait().unwrap().is_some()
    };
    common::wait_until("it ends", ended);
    assert_eq!(top.process.wait().unwrap().code(), Some(143));
    assert_eq!(modes(&top.terminal), top.original_modes);
}
