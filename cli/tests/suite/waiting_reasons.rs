//! Why jobs wait: each reason that the program can tell, in `job`, `jobs`, `check` and waits.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use common::{System, wait_until};

/// The reasons why a job waits.
fn reasons(system: &System, name: &str) -> Vec<String> {
    let job = system.job(name);
    let waits = job["waits"].as_array().cloned().unwrap_or_default();
    waits.iter().map(|reason| reason["reason"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_job_names_every_reason_why_it_waits() {
    let system = System::up();
    let waits = |name: &str| reasons(&system, name);
    let ready = system.enqueue("/jobs/a", "x", &[]);
    let prepared = system.enqueue("/jobs/a", "x", &["--prepare"]);
    let delayed = system.enqueue("/jobs/a", "x", &["--delay", "1h"]);
    assert_eq!(waits(&ready), ["no_worker"]);
    system.run(&["pause", "/jobs/**"]).code(0);
    system.run(&["pause", "/jobs/a"]).code(0);
    assert_eq!(waits(&ready), ["paused", "paused", "no_worker"]);
    assert_eq!(waits(&prepared), ["not_confirmed", "paused", "paused", "no_worker"]);
    assert_eq!(waits(&delayed), ["not_due", "paused", "paused", "no_worker"]);

    let all = "the queue is paused by '/jobs/**': longshore resume '/jobs/**'; \
               the queue is paused by '/jobs/a': longshore resume /jobs/a; \
               no worker takes from the queue: longshore work /jobs/a -- COMMAND";
    let shown = system.run(&["job", &ready]).code(0).stdout;
    for reason in all.split("; ") {
        assert!(shown.contains(&format!("waits        {reason}\n")), "{shown}");
        system.run(&["jobs"]).code(0).stderr_has(&[reason]);
    }
    let check = system.run(&["check"]).code(0).stdout;
    assert!(check.contains(&format!("queue /jobs/a: 1 job waits: {all}\n")), "{check}");
    let check = system.run(&["check", "--json"]).code(0).json();
    let parts = check["parts"].as_array().unwrap();
    let queue = parts.iter().find(|part| part["part"] == "queue /jobs/a").unwrap();
    assert_eq!(queue["reasons"].as_array().unwrap().len(), 3, "{check}");

    // A wait reports them, and ends with the job.
    let waits_for = [&["job", &ready, "--wait"][..], &["enqueue", "/jobs/a", "x", "--wait"]];
    let mut waiting = waits_for.map(|command| system.spawn(command));
    for wait in &mut waiting {
        wait.wait_for_stderr("waits: the queue is paused by '/jobs/**'");
    }
    for pattern in ["/jobs/**", "/jobs/a"] {
        system.run(&["resume", pattern]).code(0);
    }
    system.run(&["work", "/jobs/a", "--until-empty", "--", "true"]).code(0);
    for wait in waiting {
        wait.ended().code(0);
    }
    assert_eq!(waits(&ready), [""; 0], "it has ended");
}

#[test]
fn a_job_behind_others_names_busy_workers_and_the_jobs_before_it() {
    let system = System::up();
    let running = system.enqueue("/jobs/a", "x", &[]);
    let work = ["work", "/jobs/a", "--concurrency", "1", "--prefetch", "0", "--", "sleep", "60"];
    let _worker = system.spawn(&work);
    wait_until("it runs", || system.job(&running)["state"] == "running");
    assert_eq!(reasons(&system, &running), [""; 0]);
    system.enqueue("/jobs/a", "x", &["--priority", "1"]);
    system.enqueue("/jobs/a", "x", &[]);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let last = system.enqueue("/jobs/a", "x", &[]);
    assert_eq!(reasons(&system, &last), ["workers_busy", "jobs_before"]);
    let shown = system.run(&["job", &last]).code(0).stdout;
    let before = "2 jobs of the queue are before it, 1 job of higher priority";
    assert!(shown.contains(before) && shown.contains("(1 job of it runs)"), "{shown}");
    // A backlog is no problem.
    let check = system.run(&["check"]).code(0).stdout;
    assert!(!check.contains("/jobs/a"), "{check}");

    let retried = system.enqueue("/jobs/b", "x", &["--backoff", "fixed:1h"]);
    let _failing = system.spawn(&["work", "/jobs/b", "--", "false"]);
    wait_until("it waits for its retry", || system.job(&retried)["retrying"] == true);
    assert_eq!(reasons(&system, &retried), ["retry"]);
    let delayed = system.enqueue("/jobs/b", "x", &["--delay", "1h"]);
    for (state, job) in [("retrying", &retried), ("scheduled", &delayed)] {
        let listed = system.run(&["jobs", "/jobs/b", "--state", state, "--json"]).json_lines();
        let names: Vec<&str> = listed.iter().map(|job| job["job"].as_str().unwrap()).collect();
        assert_eq!(names, [job.as_str()], "{state}");
    }
    let cancel = ["cancel", "/jobs/b", "--state", "retrying", "--yes"];
    system.run(&cancel).code(2).stderr_has(&["--state scheduled"]);
}
