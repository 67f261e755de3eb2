//! Ten processes follow the values of one publisher, and one of them is stopped: the others do not
//! notice, the publisher's memory stays within its bound, and a flush with a timeout parts with the
//! stopped one in time.
//!
//! `LONGSHORE_LONG=1` measures for longer, and holds the rate and the waits of the nine to exact
//! bounds.
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
/// Updates of every value a second.
const COMMITS_PER_S: u64 = 20;
/// The kernel's buffers and a link's queue together take less than this many commits.
const COMMITS: u64 = 80;
/// How long whoever is flushed may refuse what it is sent.
const FLUSH_MS: u64 = 1_000;
/// From its first refused byte to its end.
const PARTED_MS: f64 = 1_200.0;
/// What the publisher's process may need beside the queue and the marks of the stopped one.
const OF_THE_PROCESS: u64 = 4 * 1024 * 1024;
/// How long a part may take for one word.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A part of a measurement, driven by words. Killed when dropped.
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

    fn send_line(&mut self, word: &str) {
        self.input.write_all(format!("{word}\n").as_bytes()).unwrap();
    }

    /// What it says next; meanwhile somebody looks.
    #[track_caller]
    fn answer(&mut self, mut look: impl FnMut()) -> Value {
        let turns = ANSWERS_WITHIN.as_millis() / POLL_INTERVAL.as_millis();
        for _ in 0..turns {
            look();
            match self.answers.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the part has ended"),
            }
        }
        panic!("no answer within {ANSWERS_WITHIN:?}")
    }

    #[track_caller]
    fn ask(&mut self, word: &str) -> Value {
        self.send_line(word);
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

/// Every page counted.
fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// What some of the subscribers got of a load.
#[derive(Debug)]
struct LoadResult {
    /// Updates a second, of the slowest.
    per_s: f64,
    /// Of the one that waited most.
    p99_ms: f64,
    /// How often one lost its link.
    dead: u64,
}

/// Sends a load, and has `these` count what they get of it.
fn load(
    publisher: &mut BenchProcess,
    these: &mut [BenchProcess],
    commits: u64,
    look: impl FnMut(),
) -> LoadResult {
    these.iter_mut().for_each(|one| drop(one.ask("time")));
    publisher.send_line(&format!("steady {commits} {COMMITS_PER_S} {PATHS}"));
    let sent = publisher.answer(look);
    let began = sent["began_ns"].as_u64().unwrap();
    let updates = sent["updates"].as_u64().unwrap();
    assert_eq!(updates, commits * PATHS);
    these.iter_mut().for_each(|one| one.send_line(&format!("until {updates}")));
    let mut got = LoadResult { per_s: f64::INFINITY, p99_ms: 0.0, dead: 0 };
    for one in these {
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
    let replica =
        Service::start(longshore(&["resolver", "--listen", "127.0.0.1:0", "--fresh", "--json"]));
    let part = |what: &str| {
        let (paths, size) = (PATHS.to_string(), SIZE.to_string());
        let mut command = longshore(&[what, "/values", "--paths", &paths, "--size", &size]);
        command.args(["--conflate", "--json", "--resolver", replica.text("address")]);
        BenchProcess::start(command)
    };
    let mut publisher = part("bench-value-publisher");
    let mut all: Vec<BenchProcess> =
        (0..SUBSCRIBERS).map(|_| part("bench-value-subscriber")).collect();
    let commits = if long() { 10 * COMMITS } else { COMMITS };
    let process = publisher.process.id();
    let mut most = 0;

    let (nine, tenth) = all.split_at_mut(SUBSCRIBERS - 1);
    load(&mut publisher, nine, COMMITS, || {});
    let quiet = load(&mut publisher, nine, commits, || most = most.max(resident(process)));
    let before = most;
    send(&tenth[0].process, Signal::STOP);
    let beside = load(&mut publisher, nine, commits, || most = most.max(resident(process)));
    let more = most - before;
    println!("all ten run: {quiet:?}\none stopped: {beside:?}, {} KiB more", more / 1024);

    assert_eq!(beside.dead, 0, "nobody is disconnected for another");
    let bound = (VALUE_QUEUE_BYTES_MAX + VALUE_BACKLOG_BYTES_MAX) as u64 + OF_THE_PROCESS;
    assert!(more <= bound, "{more} bytes more are over {bound}");
    let (rate_kept, waits) = (beside.per_s / quiet.per_s, beside.p99_ms / quiet.p99_ms);
    if long() {
        assert!(rate_kept >= 0.9, "{rate_kept:.2} of the rate");
        assert!(waits <= 2.0, "p99 is {waits:.2} times as long");
    } else {
        // Other tests share the machine.
        assert!(rate_kept >= 0.5, "{rate_kept:.2} of the rate");
        assert!(beside.p99_ms <= 2_000.0, "p99 is {:.0} ms", beside.p99_ms);
    }

    // It has refused bytes for long: its second counts from the flush.
    let flushed = publisher.ask(&format!("flush 1 {FLUSH_MS}"));
    parted(&flushed, &tenth[0]);

    // Everybody else has all that was published, so the next one's second counts from the first
    // byte that it refuses.
    let ninth = &nine[SUBSCRIBERS - 2];
    send(&ninth.process, Signal::STOP);
    let mut flushed = Value::Null;
    for _ in 0..10 {
        flushed = publisher.ask(&format!("flush 20 {FLUSH_MS}"));
        if flushed["disconnected"] != serde_json::json!([]) {
            break;
        }
    }
    parted(&flushed, ninth);
    for one in &mut nine[..SUBSCRIBERS - 2] {
        assert_eq!(one.ask("now")["dead"], 0);
    }
}

/// It, and nobody else, was disconnected after the timeout, and hardly later.
#[track_caller]
fn parted(flushed: &Value, stopped: &BenchProcess) {
    println!("{flushed}");
    assert_eq!(flushed["disconnected"], serde_json::json!([stopped.name()]));
    let longest = flushed["longest_ms"].as_f64().unwrap();
    assert!((FLUSH_MS as f64..=PARTED_MS).contains(&longest), "{longest} ms");
}
