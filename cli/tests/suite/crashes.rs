//! Processes killed, stopped and restarted: nothing acknowledged is lost, and a late worker's
//! result is refused.
#![allow(clippy::unwrap_used, reason = "this is a test, its helpers too")]

use crate::common;

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Service, longshore, run};

/// Polls a condition until it holds, at most for `within`.
#[track_caller]
fn wait_until(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn resolver(listen: &str, fresh: bool, config: &Path) -> Service {
    let mut command = longshore(&["resolver", "run", "--json", "--listen", listen]);
    command.arg("--config").arg(config);
    command.arg("--data").arg(config.with_file_name("replica"));
    if fresh {
        command.arg("--fresh");
    }
    Service::start(command)
}

/// A publisher on a free port: after a restart its clients have to resolve it again.
fn publisher(data: &Path, resolver: &str, config: &Path) -> Service {
    let mut command =
        longshore(&["publisher", "run", "--json", "--listen", "127.0.0.1:0", "--default", "/"]);
    command.args(["--resolver", resolver, "--data"]).arg(data).arg("--config").arg(config);
    Service::start(command)
}

/// Timing short enough for tests.
fn short_timing(folder: &Path) -> std::path::PathBuf {
    let config = folder.join("config.toml");
    let text = "[timing]\nwriter_ttl = '2s'\nreader_ttl = '2s'\n\
                retry_wait_min = '50ms'\nretry_wait_max = '200ms'\n";
    std::fs::write(&config, text).unwrap();
    config
}

#[test]
fn a_publisher_killed_during_enqueue_has_each_job_once() {
    const JOBS: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let config = short_timing(folder.path());
    let data = folder.path().join("data");
    let resolver = resolver("127.0.0.1:0", true, &config);
    let resolver = resolver.text("address");
    let mut first = publisher(&data, resolver, &config);
    let ask = |arguments: &[&str]| {
        let mut command = longshore(arguments);
        command.args(["--json", "--resolver", resolver, "--config"]).arg(&config);
        command
    };
    let ready = || {
        let stat = run(ask(&["stat", "/jobs/n"]), b"");
        let stat: Option<serde_json::Value> = serde_json::from_str(&stat.stdout).ok();
        stat.and_then(|stat| stat["queues"][0]["ready"].as_u64()).unwrap_or(0)
    };
    wait_until("the resolver knows the publisher", Duration::from_secs(10), || {
        run(ask(&["directory", "resolve", "/jobs/n"]), b"").code == 0
    });

    let mut enqueue = ask(&["enqueue", "/jobs/n", "--lines"]);
    let mut enqueue = enqueue
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = enqueue.stdin.take().unwrap();
    let feed = std::thread::spawn(move || {
        for thousand in 0..JOBS / 1_000 {
            let lines: String = (0..1_000).map(|n| format!("{}\n", thousand * 1_000 + n)).collect();
            input.write_all(lines.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    wait_until("a fifth is enqueued", Duration::from_secs(20), || ready() >= JOBS as u64 / 5);
    first.kill();
    let _second = publisher(&data, resolver, &config);
    feed.join().unwrap();
    let output = enqueue.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["acknowledged"], JOBS, "{report}");

    let jobs = run(ask(&["jobs", "/jobs/n", "--state", "ready"]), b"").code(0).json_lines();
    let payloads: HashSet<String> =
        jobs.iter().map(|job| job["payload"].as_str().unwrap().to_owned()).collect();
    assert_eq!((jobs.len(), payloads.len()), (JOBS, JOBS));
}
