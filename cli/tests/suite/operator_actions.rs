//! Operator actions on jobs, queues and workers: dead letters, pausing, settings, cancelling, quiet
//! workers; and the refusal of actions that do not apply.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::time::{Duration, Instant};

use common::{CommandOutput, Service, System, longshore, wait_until};
use serde_json::Value;

/// An operator's action has to take effect within this time.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Runs the script in the payload of every job of a queue.
fn work(system: &System, path: &str) -> CommandOutput {
    system.run(&["work", path, "--until-empty", "--", "sh", "-c", "eval \"$(cat)\""])
}

/// Creates a dead letter whose last attempt fails with this error.
fn fail(system: &System, path: &str, error: &str) -> String {
    let job = system.enqueue(path, &format!("echo {error} >&2; exit 1"), &["--max-attempts", "1"]);
    work(system, path).code(1).stderr_has(&["dead ls"]);
    job
}

fn json(ended: CommandOutput) -> Value {
    ended.code(0).json()
}

fn states(system: &System, pattern: &str, filters: &[&str]) -> Vec<String> {
    let arguments = [&["jobs", pattern, "--json"], filters].concat();
    let jobs = system.run(&arguments).code(0).json_lines();
    jobs.iter().map(|job| job["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn dead_jobs_are_grouped_and_revived_by_fingerprint() {
    let system = System::up();
    let first = fail(&system, "/jobs/a", "cannot reach host 10.0.0.1 after 3 tries");
    let second = fail(&system, "/jobs/a", "cannot reach host 10.0.0.2 after 5 tries");
    let other = fail(&system, "/jobs/a", "no such user");
    let buried = system.enqueue("/jobs/b", "echo no such user >&2; exit 65", &[]);
    work(&system, "/jobs/b").code(1);

    let groups = json(system.run(&["dead", "groups", "--json"]));
    let groups = groups["groups"].as_array().unwrap();
    let shown: Vec<_> = groups.iter().map(|g| (&g["jobs"], &g["path"], &g["death"])).collect();
    let (a, b) = (&Value::from("/jobs/a"), &Value::from("/jobs/b"));
    let (exhausted, by_worker) = (&Value::from("attempts_exhausted"), &Value::from("buried"));
    let (one, two) = (&Value::from(1), &Value::from(2));
    assert_eq!(shown, [(two, a, exhausted), (one, a, exhausted), (one, b, by_worker)]);
    let fingerprint = groups[0]["fingerprint"].as_str().unwrap();
    let job = system.job(&first);
    assert_eq!(job["attempts"][0]["fingerprint"], fingerprint, "as the job shows it");
    let table = system.run(&["dead", "groups", "/jobs/a"]).code(0).stdout;
    let row = table.lines().nth(1).unwrap();
    assert!(row.contains("10.0.0.2") && row.contains(fingerprint), "{table}");

    let by_error = ["/jobs/**", "--error", fingerprint];
    let revive = |more: &[&str]| {
        json(system.run(&[&["dead", "revive", "--json"], &by_error[..], more].concat()))["done"]
            .clone()
    };
    assert_eq!(revive(&["--dry-run"]), 2);
    assert_eq!(system.stat("/jobs/a")["dead"], 3);
    assert_eq!(revive(&[]), 2);
    for name in [&first, &second] {
        let job = system.job(name);
        assert_eq!((&job["state"], &job["attempt"]), (&"ready".into(), &0.into()));
        assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "its history is retained");
    }
    let listed = system.run(&["dead", "ls", "/jobs/b", "--json"]).code(0).json_lines();
    let listed = (&listed[0]["job"], &listed[0]["death"]);
    assert_eq!(listed, (&buried.as_str().into(), &"buried".into()));
    assert!(system.run(&["dead", "show", &buried]).code(0).stdout.contains("no such user"));
    let buried_ones = ["dead", "drop", "/jobs/**", "--reason", "buried", "--yes", "--json"];
    assert_eq!(json(system.run(&buried_ones))["done"], 1);
    system.run(&["job", &buried]).code(1).stderr_has(&["does not have it", "and was dropped"]);
    assert_eq!(system.job(&other)["state"], "dead");
}

#[test]
fn dead_jobs_are_revived_at_a_rate() {
    let system = System::up();
    let lines = "exit 65\n".repeat(5);
    system.run_with(&["enqueue", "/jobs/a", "--lines"], lines.as_bytes()).code(0);
    work(&system, "/jobs/a").code(1);
    let revive = ["dead", "revive", "/jobs/a", "--rate", "1", "--json"];
    assert_eq!(json(system.run(&revive))["done"], 5);
    let jobs = system.run(&["jobs", "/jobs/a", "--json"]).code(0).json_lines();
    assert!(jobs.iter().any(|job| job["state"] == "ready"), "the first is ready at once");
    let mut due: Vec<&str> = jobs.iter().filter_map(|job| job["due_at"].as_str()).collect();
    due.sort();
    assert!(due.len() >= 3, "{jobs:?}");
    let ms = |moment: &str| {
        let number = |at: usize, to: usize| moment[at..to].parse::<i64>().unwrap();
        number(14, 16) * 60_000 + number(17, 19) * 1_000 + number(20, 23)
    };
    for pair in due.windows(2) {
        let apart = (ms(pair[1]) - ms(pair[0])).rem_euclid(3_600_000);
        assert!((990..=1_010).contains(&apart), "{apart} ms apart: {due:?}");
    }
    assert_eq!(system.stat("/jobs/a")["retrying"], 0, "they wait by an operator's wish");
    let by_name = ["dead", "revive", jobs[0]["job"].as_str().unwrap(), "--rate", "1"];
    system.run(&by_name).code(2).stderr_has(&["--rate goes with a pattern"]);
}

#[test]
fn a_dead_job_is_replaced_with_another_payload() {
    let system = System::up();
    let options =
        ["--max-attempts", "2", "--priority", "4", "--header", "lang=en", "--lease", "1m"];
    let old = system.enqueue("/jobs/a", "exit 65", &options);
    system
        .run(&["dead", "revive", &old, "--payload", "echo y"])
        .code(1)
        .stderr_has(&["only a dead job"]);
    work(&system, "/jobs/a").code(1);
    let new = system.run(&["dead", "revive", &old, "--payload", "echo y"]).code(0);
    let new = new.stdout.trim();
    assert_ne!(new, old);
    let replaced = format!("was replaced by {new}, with another payload");
    for command in [&["job", &old][..], &["dead", "show", &old]] {
        system.run(command).code(1).stderr_has(&[&replaced, &format!("longshore job {new}")]);
    }
    let job = system.job(new);
    let id = old.split_once(':').unwrap().1;
    assert_eq!((&job["replaces"], &job["payload"]), (&id.into(), &"echo y".into()));
    let options = ["priority", "max_attempts", "lease_ms", "attempt"].map(|field| &job[field]);
    assert_eq!(options, [4, 2, 60_000, 0]);
    assert_eq!(job["headers"]["lang"], "en");
    work(&system, "/jobs/a").code(0);
    assert_eq!(system.job(new)["result"], "y\n");

    let many = ["dead", "revive", "/jobs/**", "--payload", "x"];
    system.run(&many).code(2).stderr_has(&["a payload replaces one job"]);
    // A payload from a file is used verbatim.
    let old = system.enqueue("/jobs/a", "exit 65", &[]);
    work(&system, "/jobs/a").code(1);
    let file = system.folder.path().join("payload");
    std::fs::write(&file, "exit 0\n\n").unwrap();
    let from_file = ["dead", "revive", &old, "--json", "--payload-file", file.to_str().unwrap()];
    let receipt = json(system.run(&from_file));
    assert_eq!(receipt["replaces"], old.as_str());
    assert_eq!(system.job(receipt["job"].as_str().unwrap())["payload"], "exit 0\n\n");
}

#[test]
fn a_revived_job_shows_its_last_error_until_it_has_completed() {
    let system = System::up();
    let file = system.folder.path().join("there");
    let payload = format!("test -e {} || {{ echo there >&2; exit 1; }}", file.display());
    let job = system.enqueue("/jobs/a", &payload, &["--max-attempts", "1"]);
    work(&system, "/jobs/a").code(1);
    let shown = || system.run(&["job", &job]).code(0).stdout;
    assert!(shown().contains("\nerror        Exit1: there\n"), "{}", shown());
    system.run(&["dead", "revive", &job]).code(0);
    let last = "\nlast error   Exit1: there; revived since\n";
    assert!(shown().contains(last), "{}", shown());
    let listed = system.run(&["jobs", "/jobs/a"]).code(0).stdout;
    assert!(listed.contains("revived after Exit1: there"), "{listed}");
    std::fs::write(file, "").unwrap();
    work(&system, "/jobs/a").code(0);
    assert!(!shown().contains("last error"), "{}", shown());
    let completed = system.job(&job);
    assert_eq!(completed["error"], Value::Null);
    assert_eq!(completed["attempts"][0]["error"]["message"], "there", "{completed}");
}

#[test]
fn purge_deletes_only_ended_jobs_in_that_state() {
    let system = System::up();
    fail(&system, "/jobs/a", "broken");
    for path in ["/jobs/a", "/jobs/a", "/jobs/b"] {
        system.enqueue(path, "true", &[]);
    }
    work(&system, "/jobs/**").code(0);
    let cancelled = system.enqueue("/jobs/a", "true", &[]);
    system.run(&["cancel", &cancelled]).code(0);
    system.enqueue("/jobs/a", "true", &["--expires", "2020-01-01T00:00:00Z"]);
    wait_until("it has expired", || system.stat("/jobs/a")["expired"] == 1);

    for (state, jobs) in [("completed", 2), ("cancelled", 1), ("expired", 1), ("dead", 1)] {
        let purge = ["purge", "/jobs/a", "--state", state, "--yes", "--json"];
        let fresh = [&purge[..], &["--older-than", "1h"]].concat();
        assert_eq!(json(system.run(&fresh))["done"], 0, "{state}");
        let dry = [&purge[..], &["--dry-run"]].concat();
        assert_eq!(json(system.run(&dry))["done"], jobs, "{state}");
        assert_eq!(system.stat("/jobs/a")[state], jobs, "{state}");
        let purged = system.run(&purge[..5]).code(0).stdout;
        assert!(purged.starts_with(&format!("{jobs} purged")), "{purged}");
        assert_eq!(system.stat("/jobs/a")[state], 0, "{state}");
    }
    assert_eq!(states(&system, "/jobs/**", &[]), ["completed"], "the other queue's");
    let ready = ["purge", "/jobs/a", "--state", "ready"];
    system.run(&ready).code(2).stderr_has(&["have not ended", "cancel them first"]);
}

#[test]
fn a_queue_stays_paused_until_every_pausing_pattern_is_resumed() {
    let system = System::up();
    let script = "sleep 0.2; cat";
    let _worker = system.spawn(&["work", "/**", "--", "sh", "-c", script]);
    let stat = |path: &str| system.stat(path);
    system.enqueue("/jobs/a", "first", &[]);
    wait_until("the worker is there", || stat("/jobs/a")["completed"] == 1);
    let later = system.enqueue("/jobs/a", "second", &["--delay", "700ms"]);

    let paused = json(system.run(&["pause", "/jobs/**", "--json"]));
    let here = &paused["confirmed"][0];
    assert_eq!((&here["queues"], &here["changed"]), (&1.into(), &true.into()), "{paused}");
    system.run(&["enqueue", "/jobs/new", "x"]).code(0);
    // It becomes due and waits, while the same worker takes from another queue.
    wait_until("it is due", || stat("/jobs/a")["ready"] == 1);
    let elsewhere = system.enqueue("/other/a", "x", &[]);
    system.run(&["job", &elsewhere, "--wait"]).code(0);
    assert_eq!(system.job(&later)["deliveries"], 0);
    let shown = system.run(&["stat"]).code(0).stdout;
    assert!(shown.contains("paused by") && shown.contains("/jobs/**"), "{shown}");
    assert_eq!(stat("/jobs/a")["paused_by"], serde_json::json!(["/jobs/**"]));
    let warned = system.run(&["check"]).code(0).stdout;
    assert!(warned.contains("/jobs/a") && warned.contains("paused"), "{warned}");

    // A pause also applies to queues created later.
    system.run(&["pause", "/orders/**"]).code(0);
    let shown = system.run(&["stat"]).code(0).stdout;
    assert!(shown.contains("paused: '/orders/**', which no queue here matches yet"), "{shown}");
    let stays = "error: '/orders/eu' stays paused by '/orders/**': longshore resume '/orders/**'";
    system.run(&["resume", "/orders/eu"]).code(1).stderr_has(&[stays]);
    system.run(&["resume", "/orders/**"]).code(0);

    // `resume` reports another pattern that still pauses the queue.
    system.run(&["pause", "/jobs/a"]).code(0);
    let some = "note: some of them stay paused by '/jobs/a': longshore resume /jobs/a";
    system.run(&["resume", "/jobs/**"]).code(0).stderr_has(&[some]);
    assert_eq!(system.job(&later)["state"], "ready");
    system.run(&["resume", "/jobs/nothing"]).code(0).stderr_has(&["was not paused"]);
    let resumed = json(system.run(&["resume", "/jobs/a", "--json"]));
    assert_eq!(resumed["confirmed"][0]["still_paused_by"], serde_json::json!([]));
    let began = Instant::now();
    system.run(&["job", &later, "--wait"]).code(0);
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    system.enqueue("/jobs/a", "x", &[]);
}

#[test]
fn a_queue_stays_closed_until_every_closing_pattern_is_opened() {
    let system = System::up();
    let first = system.enqueue("/jobs/a", "true", &[]);
    let closed = json(system.run(&["queue", "close", "/jobs/**", "--json"]));
    let here = &closed["confirmed"][0];
    assert_eq!((&here["queues"], &here["changed"]), (&1.into(), &true.into()), "{closed}");
    let remedy = ["QueueClosed", "longshore stat names it", "longshore queue open"];
    system.run(&["enqueue", "/jobs/a", "x"]).code(1).stderr_has(&remedy);
    system.run(&["enqueue", "/jobs/new", "x"]).code(1).stderr_has(&["QueueClosed"]);
    let shown = system.run(&["stat"]).code(0).stdout;
    assert!(shown.contains("closed by") && shown.contains("/jobs/**"), "{shown}");
    assert_eq!(system.stat("/jobs/a")["closed_by"], serde_json::json!(["/jobs/**"]));
    let warned = system.run(&["check"]).code(0).stdout;
    assert!(warned.contains("closed: '/jobs/**'"), "{warned}");
    // Existing jobs are still delivered.
    work(&system, "/jobs/a").code(0);
    assert_eq!(system.job(&first)["state"], "completed");
    system.run(&["queue", "close", "/jobs/a"]).code(0);
    system.run(&["queue", "open", "/jobs/**"]).code(0).stderr_has(&["stay closed by '/jobs/a'"]);
    system.run(&["enqueue", "/jobs/a", "x"]).code(1).stderr_has(&["QueueClosed"]);
    system.run(&["queue", "open", "/jobs/nothing"]).code(0).stderr_has(&["was not closed"]);
    system.run(&["queue", "open", "/jobs/a"]).code(0);
    system.enqueue("/jobs/a", "x", &[]);
}

#[test]
fn a_pause_survives_a_restart_and_work_reports_it() {
    let mut system = System::up();
    system.enqueue("/jobs/a", "true", &[]);
    system.run(&["pause", "/jobs/a"]).code(0);
    system.crash_and_restart();
    let mut worker = system.spawn(&["work", "/jobs/a", "--until-empty", "--", "cat"]);
    worker.wait_for_stderr("/jobs/a is paused and has jobs; waiting for them");
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
    system.run(&["resume", "/jobs/a"]).code(0);
    assert!(worker.ended().code(0).stdout.contains("1 completed"));
}

#[test]
fn control_characters_in_names_never_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "[publisher]\nname = \"\\u001b[31mred\"\n").unwrap();
    let mut up = longshore(&["up", "--json", "--replicas", "1"]);
    up.args(["--resolver-port", "0", "--publisher-port", "0", "--config"]).arg(file);
    up.arg("--data").arg(folder.path().join("data"));
    let system = System { service: Service::start(up), folder };
    let jobs = [0; 2].map(|_| system.enqueue("/jobs/a", "true", &["--delay", "1h"]));
    let publisher = system.service.text("publisher");
    for command in [
        &["cancel", &jobs[0]][..],
        &["cancel", "/jobs/a", "--dry-run"],
        &["job", &jobs[1]],
        &["pause", "/jobs/a"],
        &["resume", "/jobs/a"],
        &["publisher", "drain", publisher],
    ] {
        let shown = system.run(command).code(0).stdout;
        assert!(
            shown.contains("\\u{1b}[31mred") && !shown.contains('\x1b'),
            "{command:?}: {shown}"
        );
    }
}

#[test]
fn queue_settings_apply_to_existing_jobs_without_own_options() {
    let system = System::up();
    let default = system.enqueue("/jobs/a", "exit 1", &[]);
    let explicit = system.enqueue("/jobs/a", "exit 1", &["--max-attempts", "3", "--lease", "1m"]);
    let shown = |field: &str| [&default, &explicit].map(|name| system.job(name)[field].clone());
    assert_eq!(shown("max_attempts"), [25, 3]);

    let set = ["queue", "set", "/jobs/a", "--json", "--max-attempts", "2", "--lease", "2m"];
    let more = [
        "--run-timeout",
        "5m",
        "--backoff",
        "fixed:10ms",
        "--keep",
        "1h",
        "--keep-jobs",
        "1",
        "--keep-dead",
        "30d",
    ];
    let settings =
        json(system.run(&[&set[..], &more].concat()))["confirmed"][0]["settings"].clone();
    let expected = serde_json::json!({
        "max_attempts": 2, "lease_ms": 120_000, "run_timeout_ms": 300_000,
        "backoff": "fixed:10ms", "keep_ms": 3_600_000, "keep_jobs": 1,
        "keep_dead_ms": 2_592_000_000_u64,
    });
    assert_eq!(settings, expected);
    assert_eq!(json(system.run(&["queue", "show", "/jobs/a", "--json"]))["settings"], expected);
    assert_eq!(system.stat("/jobs/a")["settings"], expected);
    assert_eq!(shown("max_attempts"), [2, 3]);
    assert_eq!(shown("lease_ms"), [120_000, 60_000]);
    assert_eq!(shown("run_timeout_ms"), [300_000, 300_000]);
    work(&system, "/jobs/a").code(1);
    assert_eq!(shown("attempt"), [2, 3]);
    // With `--keep-jobs 1` one ended job is retained.
    for _ in 0..3 {
        system.enqueue("/jobs/a", "true", &[]);
    }
    work(&system, "/jobs/a").code(0);
    wait_until("one is retained", || system.stat("/jobs/a")["completed"] == 1);

    // One setting at a time leaves the others.
    let one = ["queue", "set", "/jobs/a", "--max-attempts", "7"];
    let printed = system.run(&one).code(0).stdout;
    assert!(printed.contains("max-attempts 7") && printed.contains("lease 2m"), "{printed}");
    system.run(&["queue", "reset", "/jobs/a"]).code(0);
    assert_eq!(
        json(system.run(&["queue", "show", "/jobs/a", "--json"]))["settings"],
        serde_json::json!({})
    );
    assert_eq!(shown("max_attempts"), [25, 3]);
    let table = system.run(&["queue", "show", "/jobs/a"]).code(0).stdout;
    assert!(table.contains("quartic") && !table.contains("the queue"), "{table}");

    system.run(&["queue", "set", "/jobs/a"]).code(2);
    system
        .run(&["queue", "show", "/jobs/nowhere"])
        .code(1)
        .stderr_has(&["there is no queue /jobs/nowhere"]);
    // `queue set` creates a missing queue.
    system.run(&["queue", "set", "/jobs/new", "--max-attempts", "1"]).code(0);
    assert_eq!(system.job(&system.enqueue("/jobs/new", "x", &[]))["max_attempts"], 1);
}

#[test]
fn actions_are_refused_with_the_jobs_state() {
    let system = System::up();
    let dead = fail(&system, "/jobs/a", "broken");
    let completed = system.enqueue("/jobs/a", "true", &[]);
    work(&system, "/jobs/a").code(0);
    let cancelled = system.enqueue("/jobs/a", "true", &[]);
    system.run(&["cancel", &cancelled]).code(0);
    let expired = system.enqueue("/jobs/a", "true", &["--expires", "2020-01-01T00:00:00Z"]);
    wait_until("it has expired", || system.job(&expired)["state"] == "expired");
    system.run(&["job", &expired, "--wait"]).code(1);
    let running = system.enqueue("/jobs/a", "true", &[]);
    let _worker = system.spawn(&["work", "/jobs/a", "--", "sleep", "20"]);
    wait_until("it runs", || system.job(&running)["state"] == "running");
    let ready = system.enqueue("/jobs/a", "true", &[]);
    let scheduled = system.enqueue("/jobs/a", "true", &["--delay", "1h"]);
    let prepared = system.enqueue("/jobs/a", "true", &["--prepare"]);

    let jobs = [
        ("dead", &dead),
        ("completed", &completed),
        ("cancelled", &cancelled),
        ("expired", &expired),
        ("running", &running),
        ("ready", &ready),
        ("scheduled", &scheduled),
        ("prepared", &prepared),
    ];
    let refused: [(&[&str], &[&str], &str); 4] = [
        (
            &["cancel"],
            &["dead", "completed", "cancelled", "expired"],
            "only jobs that have not ended",
        ),
        (
            &["dead", "revive"],
            &["completed", "cancelled", "expired", "running", "ready", "scheduled", "prepared"],
            "only dead jobs",
        ),
        (
            &["dead", "drop"],
            &["running", "ready", "scheduled", "prepared"],
            "only jobs that have ended",
        ),
        (
            &["confirm"],
            &["dead", "completed", "cancelled", "expired", "running", "ready", "scheduled"],
            "only prepared jobs",
        ),
    ];
    for (command, states, why) in refused {
        for (state, name) in jobs.iter().filter(|(state, _)| states.contains(state)) {
            let ended = system.run(&[command, &[name.as_str()]].concat()).code(1);
            ended.stderr_has(&[name, &format!("is {state};"), why]);
            let json = system.run(&[command, &[name.as_str(), "--json"]].concat()).code(1).json();
            let outcome = (&json["done"], &json["jobs"][0]["end"], &json["jobs"][0]["state"]);
            assert_eq!(outcome, (&0.into(), &"not_in_state".into(), &(*state).into()));
            assert_eq!(system.job(name)["state"], *state, "it was changed by {command:?}");
        }
    }
    let unknown = "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6";
    for command in [&["cancel"][..], &["dead", "revive"], &["dead", "drop"], &["confirm"]] {
        system
            .run(&[command, &[unknown]].concat())
            .code(1)
            .stderr_has(&["no publisher has", unknown]);
    }
    system.run(&["dead", "show", &ready]).code(1).stderr_has(&["not dead"]);
    // An action is applied to the suitable jobs of several.
    let mixed = system.run(&["cancel", &dead, &ready, unknown, &scheduled]).code(1);
    assert!(mixed.stdout.starts_with("2 cancelled"), "{mixed:?}");
    let mixed = mixed.stderr_has(&["is dead;", unknown]);
    assert_eq!(mixed.stderr.lines().count(), 2, "{mixed:?}");
    let mixed = system.run(&["dead", "drop", "--json", &dead, &running]).code(1).json();
    assert_eq!((&mixed["done"], &mixed["refused"]), (&1.into(), &1.into()));
}

#[test]
fn jobs_are_cancelled_by_pattern_and_state() {
    let system = System::up();
    system.enqueue("/jobs/a", "true", &[]);
    system.enqueue("/jobs/a", "true", &["--delay", "1h"]);
    system.enqueue("/jobs/b", "true", &["--delay", "1h"]);
    system.enqueue("/jobs/b", "true", &["--prepare"]);
    let cancel = |arguments: &[&str]| {
        json(system.run(&[&["cancel", "/jobs/**", "--yes", "--json"], arguments].concat()))["done"]
            .clone()
    };
    assert_eq!(cancel(&["--state", "scheduled", "--dry-run"]), 2);
    assert_eq!(cancel(&["--state", "scheduled"]), 2);
    assert_eq!(
        (&system.stat("/jobs/a")["ready"], &system.stat("/jobs/b")["prepared"]),
        (&1.into(), &1.into())
    );
    assert_eq!(cancel(&[]), 2);
    assert_eq!(states(&system, "/jobs/**", &[]), ["cancelled"; 4]);
}

/// The only worker that publishers list.
fn worker(system: &System) -> Value {
    let listed = json(system.run(&["workers", "ls", "--json"]));
    let workers = listed["workers"].as_array().unwrap();
    assert!(workers.len() < 2, "{listed}");
    workers.first().cloned().unwrap_or_default()
}

#[test]
fn a_quiet_worker_finishes_running_jobs_and_starts_none() {
    let system = System::up();
    let folder = system.folder.path().display().to_string();
    let script = format!(
        "id=$(cat); echo $id >> {folder}/begun; while ! test -e {folder}/$id; do sleep 0.01; done"
    );
    let begun = || std::fs::read_to_string(format!("{folder}/begun")).unwrap_or_default();
    let go_on = |id: &str| std::fs::write(format!("{folder}/{id}"), "").unwrap();
    for id in ["one", "two", "three"] {
        system.enqueue("/jobs/a", id, &[]);
    }
    let arguments = ["work", "/jobs/a", "--until-empty", "--name", "mail-1", "--json", "--"];
    let command = ["sh", "-c", &script];
    let mut working = system.spawn(&[&arguments[..], &command].concat());
    wait_until("the first job runs", || begun() == "one\n");
    let partial = system.run(&["workers", "quiet", "mail-2", "mail-*", "--dry-run"]).code(1);
    assert!(partial.stdout.starts_with("would be quiet: mail-1 "), "{partial:?}");
    partial.stderr_has(&["mail-2", "workers ls"]);
    system.run(&["workers", "quiet", "mail"]).code(1).stderr_has(&["mail"]);
    let before = worker(&system);
    assert_eq!((&before["quiet"], &before["leases"]), (&false.into(), &1.into()), "{before}");

    let quieted = json(system.run(&["workers", "quiet", "mail-*", "--json"]));
    let of = ["name", "session"].map(|field| &quieted["workers"][0][field]);
    assert_eq!(of, ["name", "session"].map(|field| &before[field]), "{quieted}");
    assert_eq!(quieted["workers"][0]["confirmed"].as_array().unwrap().len(), 1, "{quieted}");
    wait_until("the publisher lists it as quiet", || worker(&system)["quiet"] == true);
    let shown = system.run(&["workers", "ls"]).code(0).stdout;
    assert!(shown.lines().any(|line| line.starts_with("mail-1") && line.ends_with("quiet")));
    working.wait_for_stderr("this worker is quiet");
    let check = system.run(&["check"]).code(0).stdout;
    let warned = "2 jobs wait: every worker that takes from the queue is quiet: longshore workers \
                  resume --all";
    assert!(check.contains(warned), "{check}");
    let mut waiting = system.spawn(&["workers", "quiet", "mail-*", "--wait"]);
    assert!(waiting.line().starts_with("quiet: mail-1 "));
    go_on("one");
    waiting.ended().code(0);
    assert_eq!(worker(&system)["leases"], 0);
    let after = worker(&system);
    let can_get = (&after["credits"], &after["leases"]);
    assert_eq!((can_get, &after["quiet"]), ((&0.into(), &0.into()), &true.into()), "{after}");
    let left = system.stat("/jobs/a");
    assert_eq!((&left["ready"], &left["completed"]), (&2.into(), &1.into()), "{left}");
    // Another worker runs the remaining jobs, and the quiet one waits for the last.
    let script = format!("id=$(cat); echo other $id >> {folder}/begun");
    let other = ["work", "/jobs/a", "--name", "other", "--", "sh", "-c", &script];
    let other = system.spawn(&other);
    wait_until("another worker is done", || system.stat("/jobs/a")["completed"] == 3);
    drop(other);
    assert_eq!(begun(), "one\nother two\nother three\n");
    assert_eq!(working.ended().code(0).json()["completed"], 1, "nothing is left to wait for");
}

#[test]
fn resume_or_restart_ends_a_workers_quiet_mode() {
    let system = System::up();
    let arguments = ["work", "/jobs/a", "--name", "w", "--", "cat"];
    let working = system.spawn(&arguments);
    wait_until("the worker is linked", || worker(&system)["name"] == "w");
    let again = ["workers", "quiet", "--all"];
    for _ in 0..2 {
        let quieted = system.run(&again).code(0).stdout;
        assert!(quieted.starts_with("quiet: w "), "{quieted}");
    }
    let job = system.enqueue("/jobs/a", "x", &[]);
    assert_eq!(system.job(&job)["state"], "ready");
    let session = worker(&system)["session"].as_str().unwrap().to_owned();
    let resumed = system.run(&["workers", "resume", &session]).code(0).stdout;
    assert!(resumed.starts_with("resumed: w "), "{resumed}");
    system.run(&["job", &job, "--wait"]).code(0);

    system.run(&again).code(0);
    drop(working);
    wait_until("the worker is gone", || worker(&system).is_null());
    system.run(&again).code(1).stderr_has(&["no worker"]);
    let _working = system.spawn(&arguments);
    let job = system.enqueue("/jobs/a", "x", &[]);
    system.run(&["job", &job, "--wait"]).code(0);
    wait_until("it is listed, and not quiet", || worker(&system)["quiet"] == false);
}
