//! Exit codes of commands, dead letters, and cancelling.

use crate::common;

use std::time::{Duration, Instant};

use common::System;

#[test]
fn a_buried_job_can_be_shown_revived_and_completed() {
    let system = System::up();
    let job = system.enqueue("/jobs/a", "bad", &[]);
    let bury = ["work", "/jobs/a", "--until-empty", "--", "sh", "-c", "echo no good >&2; exit 65"];
    system.run(&bury).code(1).stderr_has(&["dead ls"]);

    let listed = system.run(&["dead", "ls", "--json"]).code(0).json_lines();
    assert_eq!(listed[0]["job"], job.as_str());
    assert_eq!(listed[0]["death"], "buried");
    assert_eq!(listed[0]["error"]["kind"], "Exit65");
    assert_eq!(listed[0]["error"]["message"], "no good");
    let shown = system.run(&["dead", "show", &job]).code(0);
    assert!(shown.stdout.contains("no good"), "{shown:?}");

    let dry = system.run(&["dead", "revive", "/jobs/**", "--dry-run", "--json"]).code(0);
    assert_eq!(dry.json()["done"], 1);
    assert_eq!(system.stat("/jobs/a")["dead"], 1);
    system.run(&["dead", "revive", &job]).code(0);
    system.run(&["dead", "show", &job]).code(1).stderr_has(&["not dead"]);
    system.run(&["work", "/jobs/a", "--until-empty", "--", "cat"]).code(0);
    let result = system.run(&["job", &job, "--result"]).code(0);
    assert_eq!(result.stdout, "bad");
}

#[test]
fn only_dead_jobs_can_be_dropped() {
    let system = System::up();
    let dead = system.enqueue("/jobs/a", "x", &["--max-attempts", "1"]);
    system.run(&["work", "/jobs/a", "--until-empty", "--", "false"]).code(1);
    let ready = system.enqueue("/jobs/a", "y", &[]);
    let mixed = system.run(&["dead", "drop", "--json", &dead, &ready]).code(1).json();
    assert_eq!((&mixed["done"], &mixed["refused"]), (&1.into(), &1.into()));
    system.run(&["job", &dead]).code(1).stderr_has(&["none has it"]);
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
}

#[test]
fn a_released_job_keeps_its_attempt() {
    let system = System::up();
    let job = system.enqueue("/jobs/a", "x", &["--max-attempts", "1"]);
    let flag = system.folder.path().join("flag");
    // The first run releases the job, the second completes it.
    let script = format!("test -e {flag} || {{ touch {flag}; exit 75; }}", flag = flag.display());
    system.run(&["work", "/jobs/a", "--until-empty", "--", "sh", "-c", &script]).code(0);
    let job = system.run(&["job", &job, "--json"]).code(0).json();
    assert_eq!((&job["state"], &job["attempt"]), (&"completed".into(), &1.into()));
    assert_eq!(job["deliveries"], 2);
}

#[test]
fn cancel_prevents_waiting_jobs_and_stops_running_ones() {
    let system = System::up();
    let waiting = system.enqueue("/jobs/a", "x", &["--delay", "1h"]);
    system.run(&["cancel", &waiting]).code(0);
    system
        .run(&["cancel", &waiting])
        .code(1)
        .stderr_has(&["is cancelled; only jobs that have not ended can be cancelled"]);

    let running = system.enqueue("/jobs/a", "x", &[]);
    let mut worker = system.command(&["work", "/jobs/a", "--until-empty", "--", "sleep", "60"]);
    let mut worker = worker.stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while system.stat("/jobs/a")["running"] != 1 {
        assert!(began.elapsed() < Duration::from_secs(10), "the job never ran");
    }
    system.run(&["cancel", &running]).code(0);
    worker.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "the command ran on");
    let job = system.run(&["job", &running, "--json"]).code(0).json();
    assert_eq!(job["state"], "cancelled");
}

#[test]
fn scheduled_jobs_are_counted_and_left() {
    let system = System::up();
    system.enqueue("/jobs/a", "later", &["--delay", "1h"]);
    let worked = system.run(&["work", "/jobs/a", "--until-empty", "--json", "--", "cat"]).code(0);
    assert_eq!(worked.json()["scheduled_left"], 1);
    assert_eq!(system.stat("/jobs/a")["scheduled"], 1);
}

#[test]
fn json_lines_set_options_and_bad_lines_are_reported() {
    let system = System::up();
    let lines = "{\"payload\":\"low\",\"priority\":-1}\n{\"payload\":\"x\",\"prority\":1}\n\
                 {\"payload\":\"high\",\"priority\":1}\n";
    let ended = system.run_with(&["enqueue", "/jobs/a", "--jsonl"], lines.as_bytes()).code(1);
    ended.stderr_has(&["prority", "--only 2"]);
    let ran = system.folder.path().join("ran");
    let script = format!("cat >> {}", ran.display());
    system.run(&["work", "/jobs/a", "--until-empty", "--", "sh", "-c", &script]).code(0);
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "highlow");
}

#[test]
fn the_same_id_again_is_the_same_job() {
    let system = System::up();
    let id = "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6";
    let first = system.enqueue("/jobs/a", "x", &["--id", id]);
    let again = system.run(&["enqueue", "/jobs/a", "x", "--id", id, "--json"]).code(0).json();
    assert_eq!((again["job"].as_str(), &again["existing"]), (Some(first.as_str()), &1.into()));
    system.run(&["enqueue", "/jobs/a", "other", "--id", id]).code(1).stderr_has(&["IdConflict"]);
}

#[test]
fn a_command_that_does_not_exist_takes_no_job() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    system
        .run(&["work", "/jobs/a", "--", "/no/such/program"])
        .code(1)
        .stderr_has(&["/no/such/program"]);
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
}

#[test]
fn a_command_that_cannot_start_releases_its_job() {
    use std::os::unix::fs::PermissionsExt;
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    let script = system.folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    system.run(&["work", "/jobs/a", "--until-empty", "--", script]).code(1).stderr_has(&[script]);
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
}

#[test]
fn sigterm_finishes_the_running_command_only() {
    let system = System::up();
    let first = system.enqueue("/jobs/a", "x", &["--priority", "1"]);
    system.enqueue("/jobs/a", "y", &[]);
    let script = "sleep 0.5; cat";
    let mut worker = system.command(&["work", "/jobs/a", "--json", "--", "sh", "-c", script]);
    let worker = worker.stdout(std::process::Stdio::piped()).spawn().unwrap();
    while system.stat("/jobs/a")["running"] != 1 {}
    std::process::Command::new("kill").arg(worker.id().to_string()).status().unwrap();
    let ended = worker.wait_with_output().unwrap();
    assert!(ended.status.success());
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["completed"], 1, "{report}");
    let job = system.run(&["job", &first, "--json"]).code(0).json();
    assert_eq!((&job["state"], &job["attempt"]), (&"completed".into(), &1.into()));
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
}

#[test]
fn check_warns_about_jobs_without_workers() {
    let system = System::up();
    system.run(&["check"]).code(0);
    system.enqueue("/jobs/a", "x", &[]);
    let warned = system.run(&["check", "--nagios"]).code(1);
    assert!(warned.stdout.starts_with("LONGSHORE WARNING - "), "{warned:?}");
    assert!(warned.stdout.contains("/jobs/a"), "{warned:?}");
}
