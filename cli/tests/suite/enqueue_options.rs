//! Options of enqueued jobs: each is shown and has its effect.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{BackgroundCommand, Service, System, longshore, wait_until};
use rustix::process::{Pid, Signal, test_kill_process_group};
use serde_json::Value;

const LATER: &str = "2036-11-20T21:30:00.000Z";

/// Milliseconds between two timestamps of the same day or of consecutive days.
fn ms_between(from: &Value, to: &Value) -> i64 {
    let ms = |timestamp: &Value| {
        let timestamp = timestamp.as_str().unwrap();
        let field = |at: usize, digits: usize| timestamp[at..at + digits].parse::<i64>().unwrap();
        ((field(11, 2) * 60 + field(14, 2)) * 60 + field(17, 2)) * 1_000 + field(20, 3)
    };
    (ms(to) - ms(from)).rem_euclid(86_400_000)
}

/// Fails unless `to` is `ms` after `from`, with a tolerance of 2 s for a busy machine.
#[track_caller]
fn assert_after(from: &Value, to: &Value, ms: i64) {
    let between = ms_between(from, to);
    assert!((ms - 2_000..=ms + 2_000).contains(&between), "{between} ms from {from} to {to}");
}

/// A job's options, without the fields that differ from job to job.
fn options_of(job: &Value) -> Value {
    let mut job = job.clone();
    let fields = job.as_object_mut().unwrap();
    for own in ["job", "id", "publisher", "enqueued_at", "due_at", "waits"] {
        fields.remove(own);
    }
    job
}

fn dead_or_done(system: &System, name: &str) -> Value {
    wait_until("the job has ended", || {
        let state = system.job(name)["state"].clone();
        ["completed", "dead"].iter().any(|end| state == *end)
    });
    system.job(name)
}

#[test]
fn options_from_flags_and_json_lines_are_equal() {
    let system = System::up();
    let plain = system.job(&system.enqueue("/jobs/a", "x", &[]));
    let defaults = ["priority", "max_attempts", "lease_ms", "run_timeout_ms"].map(|f| &plain[f]);
    assert_eq!(defaults, [0, 25, 30_000, 3_600_000]);
    assert_eq!((&plain["state"], &plain["payload"]), (&"ready".into(), &"x".into()));
    let unset = ["due_at", "expires_at", "headers", "attempts", "retrying"].map(|f| &plain[f]);
    assert!(unset.iter().all(|field| field.is_null()), "{plain}");

    let id = "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6";
    let flags = [
        ["--priority", "-7"],
        ["--delay", "1h"],
        ["--expires", LATER],
        ["--max-attempts", "3"],
        ["--lease", "90s"],
        ["--run-timeout", "10m"],
        ["--backoff", "linear:5s..10m"],
        ["--keep", "2d"],
        ["--header", "lang=en"],
        ["--header", "to=ann=bob"],
    ];
    let with_id = [&["--id", id][..], flags.as_flattened()].concat();
    let flagged = system.job(&system.enqueue("/jobs/a", "x", &with_id));
    assert_eq!((&flagged["id"], &flagged["priority"]), (&id.into(), &(-7).into()));
    assert_eq!((&flagged["state"], &flagged["retrying"]), (&"scheduled".into(), &Value::Null));
    assert_after(&flagged["enqueued_at"], &flagged["due_at"], 3_600_000);
    assert_eq!((&flagged["expires_at"], &flagged["max_attempts"]), (&LATER.into(), &3.into()));
    assert_eq!(
        (&flagged["lease_ms"], &flagged["run_timeout_ms"]),
        (&90_000.into(), &600_000.into())
    );
    assert_eq!(
        (&flagged["backoff"], &flagged["keep_ms"]),
        (&"linear:5s..10m".into(), &172_800_000.into())
    );
    assert_eq!(flagged["headers"], serde_json::json!({ "lang": "en", "to": "ann=bob" }));

    let line = format!(
        r#"{{"payload":"x","priority":-7,"delay":"1h","expires":"{LATER}","max_attempts":3,
        "lease":"90s","run_timeout":"10m","backoff":"linear:5s..10m","keep":"2d",
        "headers":{{"lang":"en","to":"ann=bob"}}}}"#
    );
    let jsonl = ["enqueue", "/jobs/a", "--jsonl", "--json"];
    let receipt = system.run_with(&jsonl, line.replace('\n', "").as_bytes()).code(0).json();
    let lined = system.job(receipt["job"].as_str().unwrap());
    assert_eq!(options_of(&lined), options_of(&flagged));
    assert_after(&lined["enqueued_at"], &lined["due_at"], 3_600_000);

    let at = system.job(&system.enqueue("/jobs/a", "x", &["--at", LATER, "--run-timeout", "0s"]));
    assert_eq!((&at["due_at"], &at["run_timeout_ms"]), (&LATER.into(), &0.into()));
}

#[test]
fn bad_lines_are_numbered_and_flags_apply_to_all() {
    let system = System::up();
    let lines = "{\"payload\":1}\n{\"payload\":2,\"backoff\":\"often\"}\n\
                 {\"payload\":3,\"max_attempts\":4}\nnonsense\n\
                 {\"payload\":2,\"backoff\":\"often\"}\n\
                 {\"payload\":6,\"delay\":\"3s\",\"expires\":\"2s\"}\n";
    let arguments = ["enqueue", "/jobs/a", "--jsonl", "--max-attempts", "2", "--header", "a=b"];
    let ended = system.run_with(&arguments, lines.as_bytes()).code(1).stderr_has(&["--only 2,4-6"]);
    let errors: Vec<&str> =
        ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let [often, nonsense, late] = errors[..] else { panic!("{errors:?}") };
    assert!(often.starts_with("error: lines 2,5: backoff: ") && often.ends_with("(2 times)"));
    assert!(nonsense.starts_with("error: line 4: not a job as JSON"), "{nonsense}");
    assert!(late.starts_with("error: line 6: it would expire at "), "{late}");
    let jobs = system.run(&["jobs", "/jobs/a", "--json"]).code(0).json_lines();
    let limits: Vec<&Value> = jobs.iter().map(|job| &job["max_attempts"]).collect();
    assert_eq!(limits, [2, 4]);
    assert!(jobs.iter().all(|job| job["headers"]["a"] == "b"), "{jobs:?}");

    let prepared = ["enqueue", "/jobs/b", "--jsonl", "--wait", "--timeout", "20s"];
    let refused = system.run_with(&prepared, b"{\"payload\":1,\"prepare\":true}\n").code(1);
    refused.stderr_has(&["line 1: prepare: --wait would wait"]);
    let twice = ["enqueue", "/jobs/b", "x", "--header", "a=1", "--header", "a=2"];
    system.run(&twice).code(0);
    let jobs = system.run(&["jobs", "/jobs/b", "--json"]).code(0).json_lines();
    assert_eq!(jobs[0]["headers"]["a"], "1", "the first counts, for workers too");
}

#[test]
fn suggested_shell_commands_are_quoted() {
    let system = System::up();
    let ended = system.run(&["enqueue", "/jobs/it's here", "x"]).code(0);
    ended.stderr_has(&["longshore work '/jobs/it'\\''s here' -- COMMAND"]);
}

#[test]
fn a_closed_output_hides_no_failure() {
    let system = System::up();
    let (read, closed) = std::io::pipe().unwrap();
    drop(read);
    let run = |arguments: &[&str], input: &str| {
        let mut command = system.command(arguments);
        command.stdin(Stdio::piped()).stdout(closed.try_clone().unwrap()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = run(&["enqueue", "/jobs/a", "--jsonl"], "{\"payload\": \"x\"}\n{\n");
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("--only 2"), "{errors}");
    let (code, errors) = run(&["cancel", "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6"], "");
    assert_eq!(code, Some(1), "{errors}");
    assert_eq!(run(&["jobs", "/**"], ""), (Some(0), String::new()), "a reader has what it wants");
}

#[test]
fn a_service_goes_on_without_its_output() {
    let (read, closed) = std::io::pipe().unwrap();
    drop(read);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for stdout in [Stdio::from(closed), Stdio::from(full)] {
        let replica = ["resolver", "run", "--json", "--fresh", "--listen", "127.0.0.1:0"];
        let replica = Service::start(longshore(&replica));
        let at_it = ["--resolver", replica.text("address")];
        let folder = tempfile::tempdir().unwrap();
        let publisher =
            ["publisher", "run", "--listen", "127.0.0.1:0", "--default", "/", "--end-with-stdin"];
        let mut publisher = longshore(&[&publisher[..], &at_it].concat());
        publisher.arg("--data").arg(folder.path().join("data"));
        publisher.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::null());
        let mut publisher = publisher.spawn().unwrap();
        let enqueue = [&["enqueue", "/jobs/a", "x"][..], &at_it].concat();
        wait_until("the publisher takes jobs", || common::run(longshore(&enqueue), b"").code == 0);
        // By then it has tried to print that it is ready.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(publisher.try_wait().unwrap(), None);
        common::run(longshore(&enqueue), b"").code(0);
        common::send(&publisher, Signal::TERM);
        assert_eq!(publisher.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_signal_while_reading_stdin_sets_the_exit_code() {
    let system = System::up();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = system.command(&["enqueue", "/jobs/a"]);
        let mut waiting = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // `wait` would close standard input, and the command would enqueue an empty payload.
        let input = waiting.stdin.take();
        let status = format!("/proc/{}/status", waiting.id());
        let caught = || -> Option<u64> {
            let status = std::fs::read_to_string(&status).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        let both = (1 << (Signal::INT.as_raw() - 1)) | (1 << (Signal::TERM.as_raw() - 1));
        wait_until("it listens for signals", || {
            caught().is_some_and(|caught| caught & both == both)
        });
        common::send(&waiting, signal);
        assert_eq!(waiting.wait().unwrap().code(), Some(code));
        drop(input);
    }
    assert_eq!(system.run(&["jobs", "/**", "--json"]).code(0).stdout, "");
}

#[test]
fn a_signal_while_no_publisher_is_known_ends_the_command_at_once() {
    // Without `--fresh` it does not know yet that there is no publisher.
    let replica = ["resolver", "run", "--json", "--listen", "127.0.0.1:0"];
    let replica = Service::start(longshore(&replica));
    let enqueue = ["enqueue", "/jobs/a", "x", "--resolver", replica.text("address")];
    let waiting = BackgroundCommand::start(longshore(&enqueue));
    // By then it waits for a publisher, for 30 s in all.
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    waiting.send(Signal::INT);
    waiting.ended().code(130);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn run_timeout_kills_the_whole_process_group() {
    let system = System::up();
    let options = ["--run-timeout", "1s", "--max-attempts", "1", "--lease", "5s"];
    let job = system.enqueue("/jobs/a", "x", &options);
    let groups = system.folder.path().join("groups");
    let script = format!("echo $$ >> {}; sleep 61 & sleep 62; true", groups.display());
    let began = Instant::now();
    let work = ["work", "/jobs/a", "--until-empty", "--name", "overrun", "--", "sh", "-c", &script];
    system.run(&work).code(1);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());

    let job = dead_or_done(&system, &job);
    assert_eq!((&job["state"], &job["death"]), (&"dead".into(), &"timed_out".into()));
    let attempt = &job["attempts"][0];
    assert_eq!((&attempt["outcome"], &attempt["worker"]), (&"timed_out".into(), &"overrun".into()));
    let ran = ms_between(&attempt["delivered_at"], &attempt["ended_at"]);
    assert!((1_000..2_500).contains(&ran), "it ran for {ran} ms");
    let group = std::fs::read_to_string(groups).unwrap();
    let group = Pid::from_raw(group.trim().parse().unwrap()).unwrap();
    wait_until("its process group is gone", || test_kill_process_group(group).is_err());
}

#[test]
fn waiting_for_an_unretained_job_reports_only_its_end() {
    let system = System::up();
    let _worker = system.spawn(&["work", "/jobs/a", "--", "sleep", "0.5"]);
    let enqueue = ["enqueue", "/jobs/a", "hello", "--keep", "0s", "--wait"];
    system.run(&enqueue).code(1).stderr_has(&["is no longer retained: how it ended"]);
    assert_eq!(system.stat("/jobs/a")["completed_ever"], 1);
}

/// The second job is removed a second after its end, long before the first one has ended.
#[test]
fn waiting_reports_a_job_that_is_removed_before_an_earlier_one_ends() {
    let system = System::up();
    let handler = "read line; [ $line = slow ] && sleep 5; echo $line";
    let _worker =
        system.spawn(&["work", "/jobs/a", "--concurrency", "2", "--", "sh", "-c", handler]);
    let enqueue = ["enqueue", "/jobs/a", "--lines", "--wait", "--keep", "1s"];
    let ended = system.run_with(&enqueue, b"slow\nfast\n").code(0);
    assert!(ended.stdout.ends_with("slow\nfast\n"), "{}", ended.stdout);
}

/// The second job dies, and runs again when the first one ends.
#[test]
fn waiting_goes_on_for_a_dead_job_that_was_revived() {
    let system = System::up();
    let path = |name: &str| system.folder.path().join(name).to_str().unwrap().to_owned();
    let (first, second, revived, go) = (path("first"), path("second"), path("revived"), path("go"));
    std::fs::write(&first, "first\n").unwrap();
    std::fs::write(&second, "second\n").unwrap();
    let handler = format!(
        "read line; [ $line = first ] || [ -e {revived} ] || exit 1; \
         until [ -e {go} ]; do sleep 0.1; done; [ $line = first ] || sleep 2; echo $line"
    );
    let _worker =
        system.spawn(&["work", "/jobs/a", "--concurrency", "2", "--", "sh", "-c", &handler]);
    let enqueue =
        ["enqueue", "/jobs/a", "--file", &first, &second, "--wait", "--max-attempts", "1"];
    let waiting = system.spawn(&enqueue);
    wait_until("the second job is dead", || system.stat("/jobs/a")["dead"] == 1);
    std::fs::write(&revived, "").unwrap();
    system.run(&["dead", "revive", "/jobs/a"]).code(0);
    std::fs::write(&go, "").unwrap();
    let ended = waiting.ended().code(0);
    assert!(ended.stdout.ends_with("first\nsecond\n"), "{}", ended.stdout);
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
fn a_key_is_the_same_job_under_another_id_even_when_it_is_gone() {
    let system = System::up();
    let key = ["--idempotency-key", "order-42", "--idempotency-for", "1h"];
    let first = system.enqueue("/jobs/a", "x", &[&key[..], &["--keep", "0s"]].concat());
    let enqueue = |payload| [&["enqueue", "/jobs/a", payload, "--json"], &key[..]].concat();
    let again = system.run(&enqueue("x")).code(0).json();
    assert_eq!((again["job"].as_str(), &again["existing"]), (Some(first.as_str()), &1.into()));
    system.run(&enqueue("other")).code(1).stderr_has(&["KeyConflict", "make a new key"]);
    system.run(&["work", "/jobs/a", "--until-empty", "--", "true"]).code(0);
    let gone = system.run(&enqueue("x")).code(0).json();
    assert_eq!(gone["job"].as_str(), Some(first.as_str()), "the key outlives its job");
    assert_eq!(system.stat("/jobs/a")["enqueued_ever"], 1);
}

#[test]
fn jobs_of_an_order_key_wait_for_their_turn_and_say_so() {
    let system = System::up();
    let first = system.enqueue("/jobs/a", "1", &["--order-key", "ann"]);
    let second = system.enqueue("/jobs/a", "2", &["--order-key", "ann"]);
    system.enqueue("/jobs/a", "3", &["--order-key", "bob"]);
    let stat = system.stat("/jobs/a");
    assert_eq!((&stat["ready"], &stat["blocked"]), (&2.into(), &1.into()));
    let waits = system.job(&second);
    let id = first.rsplit(':').next().unwrap();
    assert_eq!(
        waits["blocked"],
        serde_json::json!({ "order_key": "ann", "job": id, "state": "ready" })
    );
    assert_eq!(waits["waits"][0]["reason"], "order", "{waits}");
    let blocked = system.run(&["jobs", "--state", "blocked"]).code(0).stdout;
    assert!(blocked.contains("order key ann") && blocked.contains(id), "{blocked}");
    system.run(&["work", "/jobs/a", "--until-empty", "--", "true"]).code(0);
    assert_eq!(system.stat("/jobs/a")["completed"], 3);
}
