//! The contract between `longshore work` and its commands.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::time::{Duration, Instant};

use common::{BackgroundCommand, System, wait_until};
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};

/// Runs a script for every job of a queue, until it is empty.
fn work(system: &System, path: &str, script: &str) -> common::CommandOutput {
    system.run(&["work", path, "--until-empty", "--json", "--", "sh", "-c", script])
}

/// The file to which a script writes, as a path and as text.
fn note(system: &System) -> (std::path::PathBuf, String) {
    let file = system.folder.path().join("note");
    let words = file.display().to_string();
    (file, words)
}

fn noted(system: &System) -> String {
    std::fs::read_to_string(note(system).0).unwrap_or_default()
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

#[test]
fn exit_codes_set_outcomes_and_stderr_the_error() {
    let system = System::up();
    let options = ["--max-attempts", "2", "--backoff", "fixed:0s"];
    let [done, bad, back, fails, killed] = ["exit 0", "exit 65", "exit 75", "exit 3", "kill -9 $$"]
        .map(|payload| {
            let payload = format!("echo attempt $LONGSHORE_JOB_ATTEMPT >&2; echo out; {payload}");
            system.enqueue("/jobs/a", &payload, &options)
        });
    // A job that is always released would run forever.
    let (_, file) = note(&system);
    let script = format!(
        "script=$(cat); case $script in *75) test -e {file} || {{ touch {file}; exit 75; }};; \
         *) eval \"$script\";; esac"
    );
    let report = work(&system, "/jobs/a", &script).code(1).json();
    let counts = ["completed", "buried", "released", "failed", "died"].map(|count| &report[count]);
    assert_eq!(counts, [2, 1, 1, 4, 3], "{report}");

    let ends = [
        (done, "completed", 1, "completed", None),
        (back, "completed", 1, "completed", None),
        (bad, "dead", 1, "buried", Some(("Exit65", "attempt 1"))),
        (fails, "dead", 2, "failed", Some(("Exit3", "attempt 2"))),
        (killed, "dead", 2, "failed", Some(("Signal9", "attempt 2"))),
    ];
    for (name, state, attempts, outcome, error) in ends {
        let job = system.job(&name);
        let all = job["attempts"].as_array().unwrap();
        assert_eq!((job["state"].as_str(), all.len()), (Some(state), attempts), "{job}");
        let last = all.last().unwrap();
        assert_eq!(last["outcome"], outcome, "{job}");
        if let Some((kind, message)) = error {
            assert_eq!(
                (&last["error"]["kind"], &last["error"]["message"]),
                (&kind.into(), &message.into())
            );
            assert_eq!(job["error"], last["error"]);
            assert!(job["result"].is_null(), "only a completed job has a result: {job}");
        }
    }
}

#[test]
fn unretained_results_are_discarded_and_stderr_is_retained() {
    let system = System::up();
    let discarded = system.enqueue("/jobs/a", "2000000", &["--no-result"]);
    let retained = system.enqueue("/jobs/a", "2", &[]);
    let script = "echo 3 rows skipped >&2; echo next >&2; head -c $(cat) /dev/zero | tr '\\0' x";
    work(&system, "/jobs/a", script).code(0);
    let job = system.job(&discarded);
    let left = ["state", "result", "stderr"].map(|field| &job[field]);
    assert_eq!(left, [&json!("completed"), &Value::Null, &Value::Null], "{job}");
    let result = system.run(&["job", &discarded, "--result"]).code(1);
    result.stderr_has(&["completed", "no result"]);
    let job = system.job(&retained);
    assert_eq!((&job["result"], &job["stderr"]), (&json!("xx"), &json!("3 rows skipped\nnext")));
    let shown = system.run(&["job", &retained]).code(0).stdout;
    assert!(shown.contains("stderr       of attempt 1: 3 rows skipped\\nnext"), "{shown}");
    assert!(shown.contains("1 of 25, 1 delivery") && shown.contains("1 byte: 2"), "{shown}");
    assert!(!shown.contains("begins with"), "the stderr checkpoint is not listed: {shown}");
}

#[test]
fn grace_bounds_commands_and_a_second_signal_ends_them() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    let (file, words) = note(&system);
    let script = format!("echo x > {words}; exec sleep 60");
    for (grace, signals, code, within) in [
        ("0s", &[Signal::TERM][..], 0, 5),
        ("1h", &[Signal::INT, Signal::INT], 130, 5),
        ("1h", &[Signal::INT, Signal::TERM], 143, 5),
    ] {
        let _ = std::fs::remove_file(&file);
        let mut worker = system
            .spawn(&["work", "/jobs/a", "--json", "--grace", grace, "--", "sh", "-c", &script]);
        wait_until("the command runs", || file.exists());
        let began = Instant::now();
        worker.send(signals[0]);
        for &signal in &signals[1..] {
            worker.wait_for_stderr("once more to stop now");
            worker.send(signal);
        }
        let ended = worker.ended().code(code);
        assert!(began.elapsed() < Duration::from_secs(within), "{grace}: {:?}", began.elapsed());
        if code == 0 {
            assert_eq!(ended.json()["released"], 1);
        }
    }
}

#[test]
fn a_second_signal_leaves_no_command_running() {
    const COMMANDS: usize = 100;
    let system = System::up();
    let lines = "x\n".repeat(COMMANDS);
    system.run_with(&["enqueue", "/jobs/a", "--lines"], lines.as_bytes()).code(0);
    let (_, file) = note(&system);
    let script = format!("echo $$ >> {file}; exec sleep 60");
    let concurrency = COMMANDS.to_string();
    let arguments = ["work", "/jobs/a", "--grace", "1h", "--concurrency", &concurrency, "--"];
    let mut command = system.command(&[&arguments[..], &["sh", "-c", &script]].concat());
    // A single thread takes longer to kill them than the process takes to end.
    command.env("TOKIO_WORKER_THREADS", "1");
    let mut worker = BackgroundCommand::start(command);
    wait_until("all commands run", || noted(&system).lines().count() == COMMANDS);
    worker.send(Signal::TERM);
    worker.wait_for_stderr("once more to stop now");
    worker.send(Signal::TERM);
    worker.ended().code(143);
    for command in noted(&system).lines() {
        // Nobody may have read its exit code.
        wait_until("the command has ended", || {
            let status = std::fs::read_to_string(format!("/proc/{command}/stat"));
            status.map_or(true, |status| status.contains(") Z "))
        });
    }
}

/// As when a terminal is closed: its commands have groups of their own, and would run on.
#[test]
fn a_worker_that_ends_before_its_queue_is_empty_says_so_in_its_exit_code() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    let (file, words) = note(&system);
    let script = format!("echo $$ > {words}; exec sleep 60");
    let arguments =
        ["work", "/jobs/a", "--until-empty", "--grace", "0s", "--", "sh", "-c", &script];
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let _ = std::fs::remove_file(&file);
        let worker = system.spawn(&arguments);
        wait_until("the command runs", || noted(&system).ends_with('\n'));
        worker.send(signal);
        worker.ended().code(code);
        let command = pid(&noted(&system));
        wait_until("the command has ended", || test_kill_process(command).is_err());
    }
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
}

#[test]
fn a_command_gets_its_job_in_the_environment() {
    let system = System::up();
    let options = ["--max-attempts", "2", "--backoff", "fixed:0s"];
    let job = system.enqueue("/jobs/deep/a", "x", &options);
    let script = "test $LONGSHORE_JOB_ATTEMPT = 2 && env | grep ^LONGSHORE_JOB_ | sort";
    work(&system, "/jobs/**", script).code(0);
    let result = system.run(&["job", &job, "--result"]).code(0).stdout;
    let mut variables: Vec<(&str, &str)> =
        result.lines().filter_map(|line| line.split_once('=')).collect();
    let token = variables.pop().unwrap();
    let id = job.split_once(':').unwrap().1;
    let expected = [
        ("LONGSHORE_JOB_ATTEMPT", "2"),
        ("LONGSHORE_JOB_ID", id),
        ("LONGSHORE_JOB_PATH", "/jobs/deep/a"),
    ];
    assert_eq!(variables, expected);
    assert_eq!(token.0, "LONGSHORE_JOB_TOKEN");
    assert!(token.1.parse::<u64>().unwrap() > 0);
}

#[test]
fn a_cancelled_command_gets_sigterm_within_a_second() {
    let system = System::up();
    let (_, file) = note(&system);
    let script =
        format!("trap 'echo asked >> {file}; exit' TERM; echo runs >> {file}; sleep 30 & wait");
    let job = system.enqueue("/jobs/a", "x", &[]);
    let worker = system.spawn(&["work", "/jobs/a", "--json", "--", "sh", "-c", &script]);
    wait_until("the command runs", || noted(&system) == "runs\n");
    system.run(&["cancel", &job]).code(0);
    let waited = wait_until("it gets SIGTERM", || noted(&system) == "runs\nasked\n");
    assert!(waited < Duration::from_secs(1), "{waited:?}");

    let job = system.job(&job);
    assert_eq!(
        (&job["state"], &job["attempts"][0]["outcome"]),
        (&"cancelled".into(), &"cancelled".into())
    );
    // The command's exit code is ignored now, and the worker takes the next job.
    let next = system.enqueue("/jobs/a", "x", &[]);
    wait_until("the next job runs", || noted(&system) == "runs\nasked\nruns\n");
    system.run(&["cancel", &next]).code(0);
    worker.send(Signal::TERM);
    let report = worker.ended().code(0).json();
    assert_eq!((&report["completed"], &report["failed"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn a_command_with_a_lost_lease_is_terminated() {
    let system = System::up();
    let (_, file) = note(&system);
    let job = system.enqueue("/jobs/a", "x", &["--lease", "1s"]);
    // It takes longer to end than a handler would have.
    let script = format!(
        "trap 'echo asked >> {file}; sleep 2; echo cleaned >> {file}; exit' TERM; \
         echo runs >> {file}; sleep 30 & wait"
    );
    let late = ["work", "/jobs/a", "--name", "late", "--json", "--", "sh", "-c", &script];
    let late = system.spawn(&late);
    wait_until("the command runs", || noted(&system) == "runs\n");
    // The worker is stopped, its command is not.
    late.send(Signal::STOP);
    work(&system, "/jobs/a", "echo in time").code(0);
    late.send(Signal::CONT);
    let waited = wait_until("the late command gets SIGTERM", || noted(&system) == "runs\nasked\n");
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    wait_until("it has cleaned up", || noted(&system) == "runs\nasked\ncleaned\n");
    let job = system.job(&job);
    assert_eq!((&job["attempt"], &job["result"]), (&2.into(), &"in time\n".into()));
    let first = &job["attempts"][0];
    assert_eq!((&first["worker"], &first["outcome"]), (&"late".into(), &"worker_lost".into()));
    late.send(Signal::TERM);
    let report = late.ended().code(0).json();
    let refused = ["stale_refused", "leases_revoked"].map(|field| report[field].as_u64().unwrap());
    assert!(report["completed"] == 0 && refused.iter().sum::<u64>() >= 1, "{report}");
}

#[test]
fn strict_order_drains_the_first_queue_first() {
    let system = System::up();
    let (_, file) = note(&system);
    let script = format!("cat >> {file}");
    for n in 0..3 {
        system.enqueue("/jobs/bulk", &format!("b{n} "), &["--priority", "9"]);
    }
    for n in 0..3 {
        system.enqueue("/jobs/urgent", &format!("u{n} "), &[]);
    }
    let patterns = ["work", "/jobs/urgent", "/jobs/bulk", "--until-empty"];
    let strict = [&patterns[..], &["--order", "strict", "--", "sh", "-c", &script]].concat();
    system.run(&strict).code(0);
    assert_eq!(noted(&system), "u0 u1 u2 b0 b1 b2 ");
    let wrong = [&patterns[..], &["--order", "weighted", "--weights", "3", "--", "true"]].concat();
    system.run(&wrong).code(2).stderr_has(&["--weights has 1 numbers for 2 patterns"]);
}

#[test]
fn weights_set_shares_and_age_merges_queues() {
    let system = System::up();
    let (path, file) = note(&system);
    let script = format!("cat >> {file}");
    for (order, expected) in [
        (&["--order", "weighted", "--weights", "2,1"][..], None),
        (&["--order", "age"], Some("b0 b1 b2 u0 u1 u2 ")),
    ] {
        for queue in ["bulk", "urgent"] {
            for n in 0..3 {
                system.enqueue(&format!("/jobs/{queue}"), &format!("{}{n} ", &queue[..1]), &[]);
            }
        }
        let arguments = ["work", "/jobs/urgent", "/jobs/bulk", "--until-empty"];
        system.run(&[&arguments[..], order, &["--", "sh", "-c", &script]].concat()).code(0);
        let ran = std::mem::take(&mut std::fs::read_to_string(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        match expected {
            Some(expected) => assert_eq!(ran, expected),
            // The first three jobs are two to one.
            None => {
                let first: Vec<&str> = ran.split(' ').take(3).collect();
                let urgent = first.iter().filter(|label| label.starts_with('u')).count();
                assert_eq!(urgent, 2, "{ran}");
            }
        }
    }
}

#[test]
fn scheduled_prepared_and_blocked_jobs_are_counted_and_left() {
    let system = System::up();
    system.enqueue("/jobs/a", "now", &[]);
    system.enqueue("/jobs/a", "later", &["--delay", "1h"]);
    system.enqueue("/jobs/b", "later", &["--delay", "1h"]);
    let prepared = system.enqueue("/jobs/b", "not confirmed", &["--prepare"]);
    let (_, prepared) = prepared.split_once(':').unwrap();
    system.enqueue("/jobs/b", "after it", &["--after", prepared]);
    let arguments = ["work", "/jobs/a", "/jobs/b", "--until-empty"];
    let report = system.run(&[&arguments[..], &["--json", "--", "cat"]].concat()).code(0).json();
    let counts = ["completed", "scheduled_left", "prepared_left", "blocked_left"];
    assert_eq!(counts.map(|count| &report[count]), [1, 2, 1, 1], "{report}");
    let expected = ["2 jobs", "scheduled", "confirmed: 1 job", "blocked: 1 job"];
    system.run(&[&arguments[..], &["--", "cat"]].concat()).code(0).stderr_has(&expected);
}

#[test]
fn until_empty_waits_for_retries() {
    let system = System::up();
    let job = system.enqueue("/jobs/a", "x", &["--backoff", "fixed:700ms"]);
    let report = work(&system, "/jobs/a", "test $LONGSHORE_JOB_ATTEMPT = 2").code(0).json();
    assert_eq!((&report["completed"], &report["failed"]), (&1.into(), &1.into()));
    assert_eq!(system.job(&job)["attempt"], 2);
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
