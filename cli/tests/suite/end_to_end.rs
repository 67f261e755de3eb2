//! From lines to results: each line becomes a job, a command runs for each, and every result is
//! readable.

use crate::common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::System;

#[test]
fn up_is_ready_within_a_second_and_stops_cleanly() {
    let mut system = System::up();
    assert!(
        system.service.ready_after < Duration::from_secs(1),
        "{:?}",
        system.service.ready_after
    );
    assert_eq!(system.service.stop(), 0);
}

#[test]
fn every_line_becomes_a_job_with_a_result() {
    let system = System::up();
    let folder = tempfile::tempdir().unwrap();
    let names =
        ["plain", "two words", "it's \"quoted\"", "ümläut", "-dash", " lead", "back\\slash"];
    let files: Vec<String> = names
        .iter()
        .map(|name| {
            let file = folder.path().join(name);
            std::fs::write(&file, name).unwrap();
            file.to_str().unwrap().to_owned()
        })
        .collect();

    let lines = files.join("\n");
    let enqueued =
        system.run_with(&["enqueue", "/jobs/sha", "--lines", "--json"], lines.as_bytes()).code(0);
    assert_eq!(enqueued.json()["acknowledged"], files.len());

    let work = ["work", "/jobs/sha", "--until-empty", "--concurrency", "8", "--"];
    let xargs = ["xargs", "-d", "\\n", "sha256sum", "--"];
    let worked = system.run(&[&work[..], &xargs].concat()).code(0);
    assert!(worked.stdout.contains(&format!("{} completed", files.len())), "{worked:?}");

    let listed = system.run(&["jobs", "/jobs/sha", "--state", "completed", "--json"]).code(0);
    let results: BTreeMap<String, String> = listed
        .json_lines()
        .iter()
        .map(|job| {
            let text = |key: &str| job[key].as_str().unwrap().to_owned();
            (text("payload"), text("result"))
        })
        .collect();
    assert_eq!(results.len(), files.len());
    for file in &files {
        let output = std::process::Command::new("sha256sum").arg("--").arg(file).output().unwrap();
        assert_eq!(results[file], String::from_utf8(output.stdout).unwrap());
    }
}

#[test]
fn wait_prints_the_result_or_fails_with_the_job() {
    let system = System::up();
    let mut worker = system.command(&[
        "work",
        "/jobs/**",
        "--",
        "sh",
        "-c",
        "read a; echo got $a; test $a != bad || exit 65",
    ]);
    let mut worker = worker.stdout(std::process::Stdio::null()).spawn().unwrap();
    let good = system.run(&["enqueue", "/jobs/a", "good", "--wait"]).code(0);
    assert!(good.stdout.contains("got good"), "{good:?}");
    system.run(&["enqueue", "/jobs/a", "bad", "--wait"]).code(1).stderr_has(&["dead", "buried"]);
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn wait_is_bounded_and_reports_the_remaining_lines() {
    let system = System::up();
    let lines = "x\n".repeat(100_001);
    system
        .run_with(&["enqueue", "/jobs/many", "--lines", "--wait"], lines.as_bytes())
        .code(1)
        .stderr_has(&["at most 100000 jobs", "--only 100001-"]);
    assert_eq!(system.stat("/jobs/many")["ready"], 100_000);
}

#[test]
fn version_names_the_build() {
    let printed = common::run(common::longshore(&["--version"]), b"").code(0).stdout;
    let version = printed.strip_prefix(concat!("longshore ", env!("CARGO_PKG_VERSION"), " ("));
    assert!(version.is_some_and(|build| build.ends_with(" build)\n")), "{printed}");
}
