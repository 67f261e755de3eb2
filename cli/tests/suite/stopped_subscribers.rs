//! One of ten subscriber processes is stopped: the others keep their rate, the publisher's memory
//! stays bounded, and a flush with a timeout disconnects the stopped one in time.
//!
//! `LONGSHORE_LONG=1` measures for longer, with exact bounds for the rate and latency of the nine.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use common::{Service, long, longshore, send};
use longshore::values::limits::{VALUE_BACKLOG_BYTES_MAX, VALUE_QUEUE_BYTES_MAX};
use rustix::process::Signal;
use serde_json::Value;

const SUBSCRIBERS: usize = 10;
const PATHS: u64 = 1_000;
const SIZE: u64 = 256;
/// Updates per second of every value.
const COMMITS_PER_S: u64 = 20;
/// More commits than the kernel's buffers and a link's queue hold together.
const COMMITS: u64 = 80;
/// The flush timeout: how long a subscriber may accept no bytes.
const FLUSH_MS: u64 = 1_000;
/// The longest time from the first refused byte to the disconnection.
const DISCONNECT_MS: f64 = 1_200.0;
/// Memory of the publisher's process, excluding the queue and backlog of the stopped subscriber.
const PROCESS_BYTES: u64 = 4 * 1024 * 1024;
/// The timeout of one command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A process of `longshore bench`, driven by commands. Killed on drop.
struct BenchProcess {
    process: Child,
    input: ChildStdin,
    answers: Receiver<Value>,
    ready: Value,
}

impl BenchProcess {
    fn start(mut command: Command) -> BenchProcess {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, answers) = sync_channel(4);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut part = BenchProcess { process, input, answers, ready: Value::Null };
        part.ready = part.answer(|| {});
        part
    }

    fn send_line(&mut self, command: &str) {
        self.input.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// Waits for its next answer, and polls `observe` in the meantime.
    #[track_caller]
    fn answer(&mut self, mut observe: impl FnMut()) -> Value {
        let turns = ANSWER_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis();
        for _ in 0..turns {
            observe();
            match self.answers.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the process has ended"),
            }
        }
        panic!("no answer within {ANSWER_TIMEOUT:?}")
    }

    #[track_caller]
    fn ask(&mut self, command: &str) -> Value {
        self.send_line(command);
        self.answer(|| {})
    }

    fn name(&self) -> &str {
        self.ready["name"].as_str().unwrap()
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Resident memory, counting every page.
fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The result of a load at some subscribers.
#[derive(Debug)]
struct LoadResult {
    /// Updates per second at the slowest.
    per_s: f64,
    /// The worst latency.
    p99_ms: f64,
    /// The number of lost links.
    dead: u64,
}

/// Sends a load, and lets `subscribers` count their updates.
fn load(
    publisher: &mut BenchProcess,
    subscribers: &mut [BenchProcess],
    commits: u64,
    observe: impl FnMut(),
) -> LoadResult {
    subscribers.iter_mut().for_each(|one| drop(one.ask("time")));
    publisher.send_line(&format!("steady {commits} {COMMITS_PER_S} {PATHS}"));
    let sent = publisher.answer(observe);
    let began = sent["began_ns"].as_u64().unwrap();
    let updates = sent["updates"].as_u64().unwrap();
    assert_eq!(updates, commits * PATHS);
    subscribers.iter_mut().for_each(|one| one.send_line(&format!("until {updates}")));
    let mut got = LoadResult { per_s: f64::INFINITY, p99_ms: 0.0, dead: 0 };
    for one in subscribers {
        let report = one.answer(|| {});
        let took_s = (report["last_ns"].as_u64().unwrap() - began) as f64 / 1e9;
        got.per_s = got.per_s.min(report["received"].as_f64().unwrap() / took_s);
        got.p99_ms = got.p99_ms.max(report["p99_us"].as_f64().unwrap() / 1e3);
        got.dead += report["dead"].as_u64().unwrap();
    }
    got
}

#[test]
fn one_stopped_subscriber_does_not_slow_the_others() {
    let replica = Service::start(longshore(&[
        "resolver",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--fresh",
        "--json",
    ]));
    let part = |what: &str| {
        let (paths, size) = (PATHS.to_string(), SIZE.to_string());
        let mut command =
            longshore(&["bench", what, "/values", "--paths", &paths, "--size", &size]);
        command.args(["--conflate", "--json", "--resolver", replica.text("address")]);
        BenchProcess::start(command)
    };
    let mut publisher = part("value-publisher");
    let mut all: Vec<BenchProcess> = (0..SUBSCRIBERS).map(|_| part("value-subscriber")).collect();
    let commits = if long() { 10 * COMMITS } else { COMMITS };
    let process = publisher.process.id();
    let mut most = 0;

    let (nine, tenth) = all.split_at_mut(SUBSCRIBERS - 1);
    load(&mut publisher, nine, COMMITS / 4, || {});
    let quiet = load(&mut publisher, nine, commits / 2, || most = most.max(resident(process)));
    let before = most;
    send(&tenth[0].process, Signal::STOP);
    let with_one_stopped =
        load(&mut publisher, nine, commits, || most = most.max(resident(process)));
    let more = most - before;
    println!("all ten run: {quiet:?}\none stopped: {with_one_stopped:?}, {} KiB more", more / 1024);

    assert_eq!(with_one_stopped.dead, 0, "a stopped subscriber does not disconnect others");
    let bound = (VALUE_QUEUE_BYTES_MAX + VALUE_BACKLOG_BYTES_MAX) as u64 + PROCESS_BYTES;
    assert!(more <= bound, "{more} bytes more are over {bound}");
    let (rate_ratio, waits) =
        (with_one_stopped.per_s / quiet.per_s, with_one_stopped.p99_ms / quiet.p99_ms);
    if long() {
        assert!(rate_ratio >= 0.9, "{rate_ratio:.2} of the rate");
        assert!(waits <= 2.0, "p99 is {waits:.2} times as long");
    } else {
        // Other tests may run at the same time.
        assert!(rate_ratio >= 0.5, "{rate_ratio:.2} of the rate");
        assert!(with_one_stopped.p99_ms <= 2_000.0, "p99 is {:.0} ms", with_one_stopped.p99_ms);
    }

    // It already refuses bytes, so the timeout counts from the flush.
    let flushed = publisher.ask(&format!("flush 1 {FLUSH_MS}"));
    assert_disconnected(&flushed, &tenth[0]);

    // The others have received everything, so the next one's timeout counts from its first refused
    // byte.
    let ninth = &nine[SUBSCRIBERS - 2];
    send(&ninth.process, Signal::STOP);
    let mut flushed = Value::Null;
    for _ in 0..10 {
        flushed = publisher.ask(&format!("flush 20 {FLUSH_MS}"));
        if flushed["disconnected"] != serde_json::json!([]) {
            break;
        }
    }
    assert_disconnected(&flushed, ninth);
    for one in &mut nine[..SUBSCRIBERS - 2] {
        assert_eq!(one.ask("now")["dead"], 0);
    }
}

/// Checks that only the stopped subscriber was disconnected, soon after the timeout.
#[track_caller]
fn assert_disconnected(flushed: &Value, stopped: &BenchProcess) {
    println!("{flushed}");
    assert_eq!(flushed["disconnected"], serde_json::json!([stopped.name()]));
    let longest = flushed["longest_ms"].as_f64().unwrap();
    assert!((FLUSH_MS as f64..=DISCONNECT_MS).contains(&longest), "{longest} ms");
}
