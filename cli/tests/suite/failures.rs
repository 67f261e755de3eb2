//! Errors as JSON, exit codes, and timeouts.

use crate::common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{System, longshore, run};
use serde_json::Value;

/// The error line of standard error.
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test helper")]
#[track_caller]
fn error(stderr: &str) -> Value {
    let lines: Vec<Value> =
        stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = lines.iter().rfind(|line| line["error"].is_object());
    error.unwrap_or_else(|| panic!("no error in {stderr}"))["error"].clone()
}

#[test]
fn each_failure_is_one_line_of_json_with_a_code_and_an_exit_code() {
    let system = System::up();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let to_closed = ["--json", "--resolver", &closed];
    let unknown = "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6";
    let elsewhere = |arguments: &[&str]| run(longshore(arguments), b"");
    for (ended, code, exit, message) in [
        (elsewhere(&["purge", "/a", "--json"]), "usage", 2, "--state"),
        (elsewhere(&["queue", "--json"]), "usage", 2, "subcommand"),
        (elsewhere(&["--json", "no-such"]), "usage", 2, "unrecognized subcommand 'no-such'"),
        (elsewhere(&["stat", "--json", "--timeout", "soon"]), "usage", 2, "soon"),
        (
            elsewhere(&["work", "/a", "--json", "--timeout", "1s", "--", "cat"]),
            "usage",
            2,
            "--timeout",
        ),
        (elsewhere(&["stat", "--json", "--config", "/no/such"]), "configuration", 2, "/no/such"),
        (elsewhere(&[&["stat"][..], &to_closed].concat()), "unreachable", 3, &closed),
        (
            elsewhere(&[&["enqueue", "/a", "x"][..], &to_closed, &["--timeout", "400ms"]].concat()),
            "timed_out",
            3,
            "",
        ),
        (system.run(&["job", unknown, "--json"]), "not_found", 1, unknown),
        (system.run(&["stat", "/no/such", "--json"]), "not_found", 1, "no queue /no/such"),
        (system.run(&["cancel", unknown, "--json"]), "failed", 1, ""),
        (system.run(&["tail", "--json", "--timeout", "50ms"]), "timed_out", 3, "50ms"),
    ] {
        let error = error(&ended.stderr);
        assert_eq!((&error["code"], ended.code), (&code.into(), exit), "{ended:?}");
        assert!(error["message"].as_str().unwrap().contains(message), "{ended:?}");
    }
    // What follows `--` belongs to the command.
    let text = elsewhere(&["work", "--", "cat", "--json"]).code(2).stderr;
    assert!(text.starts_with("error: "), "{text}");
}

#[test]
fn an_unreachable_resolver_is_reported_within_three_seconds_by_every_command() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // The system accepts connections for it, as for a stopped process.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let id = "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6";
    let commands: [&[&str]; 21] = [
        &["stat"],
        &["jobs"],
        &["job", id],
        &["dead", "ls"],
        &["cancel", id],
        &["cancel", "/a", "--yes"],
        &["purge", "/a", "--state", "dead", "--yes"],
        &["pause", "/a"],
        &["queue", "ls"],
        &["queue", "set", "/a", "--max-attempts", "3", "--dry-run"],
        &["workers", "ls"],
        &["workers", "quiet", "--all", "--wait"],
        &["directory", "tree"],
        &["resolver", "status"],
        &["publisher", "status"],
        &["publisher", "drain", "p", "--wait"],
        &["publisher", "forget", "p", "--yes"],
        // These wait, and report that they do.
        &["enqueue", "/a", "text"],
        &["job", id, "--wait"],
        &["tail"],
        &["value", "subscribe", "/a"],
    ];
    let began = Instant::now();
    let start = |(arguments, replica): (&&[&'static str], &String)| {
        let mut command = longshore(arguments);
        command.args(["--resolver", replica]);
        (common::BackgroundCommand::start(command), replica.clone(), arguments.to_vec())
    };
    let of_each = |replica| commands.iter().zip(std::iter::repeat(replica)).map(start);
    let running: Vec<_> = [&closed, &silent].into_iter().flat_map(of_each).collect();
    for (mut running, replica, arguments) in running {
        let line = running.wait_for_stderr(&replica);
        // Beside a busy machine 42 processes start slowly; those that wait would wait for ever.
        assert!(began.elapsed() < Duration::from_secs(20), "{arguments:?}: {line}");
    }
}

#[test]
fn a_silent_replica_is_left_for_the_next_within_seconds() {
    let system = System::up();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("{},{}", listener.local_addr().unwrap(), system.resolver());
    // Each begins with a replica at random.
    let list = ["directory", "ls", "--timeout", "6s", "--resolver", &both];
    let listing: Vec<_> = (0..6).map(|_| system.spawn(&list)).collect();
    listing.into_iter().for_each(|listing| _ = listing.ended().code(0));
}

#[test]
fn logs_are_json_if_the_flag_or_the_configuration_asks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "log_format = 'json'\n").unwrap();
    let start = |with: &[&str]| {
        let mut command = longshore(&["resolver", "run", "--listen", "127.0.0.1:0", "--fresh"]);
        command.args(["--log", "debug"]).args(with);
        common::BackgroundCommand::start(command)
    };
    let config = ["--config", file.to_str().unwrap()];
    for with in [&["--log-format", "json"][..], &config, &["--json"]] {
        let line = start(with).wait_for_stderr("{");
        let event: Value = serde_json::from_str(&line).unwrap();
        assert!(event["level"].is_string() && event["message"].is_string(), "{line}");
    }
    let bad = longshore(&["stat", "--log-format", "xml"]);
    run(bad, b"").code(2).stderr_has(&["'xml' is not a log format", "text or json"]);
}
