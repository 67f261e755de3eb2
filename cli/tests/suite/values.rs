//! Live values on the command line: publish, subscribe, write.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::io::Write;
use std::process::{Child, Command, Stdio};

use common::{BackgroundCommand, System};
use rustix::process::Signal;
use serde_json::{Value, json};

fn next(command: &mut BackgroundCommand) -> Value {
    let line = command.line();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Reads updates up to an expected one.
fn read_until(command: &mut BackgroundCommand, wanted: &Value) {
    loop {
        let update = next(command);
        if update == *wanted {
            return;
        }
    }
}

fn update(path: &str, value: impl Into<Value>) -> Value {
    json!({ "path": path, "value": value.into() })
}

#[test]
fn subscribe_resumes_when_the_publisher_returns() {
    let system = System::up();
    let mut follow = system.spawn(&["value", "subscribe", "/values/a", "--json"]);
    follow.wait_for_stderr("/values/a: nobody publishes a value at this path");
    let mut publish =
        system.spawn(&["value", "publish", "/values/a", "{\"n\": 1, \"name\": \"é\"}", "--json"]);
    assert_eq!(next(&mut publish)["ready"], "publish");
    assert_eq!(next(&mut follow), update("/values/a", json!({ "n": 1, "name": "é" })));
    let once = system.run(&["value", "subscribe", "/values/a", "--once"]).code(0).stdout;
    assert_eq!(once, "/values/a {\"n\":1,\"name\":\"é\"}\n");

    publish.send(Signal::INT);
    publish.ended().code(0);
    let mut publish = system.spawn(&["value", "publish", "/values/a", "a text", "--json"]);
    assert_eq!(next(&mut publish)["path"], "/values/a");
    read_until(&mut follow, &update("/values/a", "a text"));
    follow.send(Signal::TERM);
    follow.ended().code(0);
}

/// Starts `publish` with lines on its standard input.
fn publish_lines(system: &System, path: &str) -> Child {
    let mut command: Command = system.command(&["value", "publish", path, "-", "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn each_input_line_becomes_the_value() {
    let system = System::up();
    let mut publish = publish_lines(&system, "/values/lines");
    let mut input = publish.stdin.take().unwrap();
    input.write_all(b"1\n").unwrap();
    let mut follow =
        system.spawn(&["value", "subscribe", "/values/lines", "--json", "--count", "3"]);
    assert_eq!(next(&mut follow), update("/values/lines", 1));
    input.write_all(b"two\n").unwrap();
    assert_eq!(next(&mut follow), update("/values/lines", "two"));
    input.write_all(b"[3]").unwrap();
    drop(input);
    assert_eq!(next(&mut follow), update("/values/lines", json!([3])));
    follow.ended().code(0);
    let once = system.run(&["value", "subscribe", "/values/lines", "--once", "--json"]).code(0);
    assert_eq!(once.json(), update("/values/lines", json!([3])));
    publish.kill().unwrap();
    publish.wait().unwrap();

    let nothing =
        common::run(system.command(&["value", "publish", "/values/none", "--lines"]), b"");
    nothing.code(1).stderr_has(&["no line"]);
}

#[test]
fn a_pattern_subscription_follows_new_and_removed_values() {
    let system = System::up();
    let none = system.run(&["value", "subscribe", "/values/**", "--once"]).code(1);
    none.stderr_has(&["no publisher has a value that matches '/values/**'"]);
    let mut follow = system.spawn(&["value", "subscribe", "/values/**", "--json"]);
    let first = system.spawn(&["value", "publish", "/values/a/b", "1"]);
    assert_eq!(next(&mut follow), update("/values/a/b", 1));
    let _second = system.spawn(&["value", "publish", "/values/c", "2"]);
    let _other = system.spawn(&["value", "publish", "/others/c", "3"]);
    assert_eq!(next(&mut follow), update("/values/c", 2));
    let mut lines =
        system.run(&["value", "subscribe", "/values/**", "--once", "--json"]).code(0).json_lines();
    lines.sort_by_key(|line| line["path"].to_string());
    assert_eq!(lines, [update("/values/a/b", 1), update("/values/c", 2)]);
    first.send(Signal::INT);
    first.ended().code(0);
    let _again = system.spawn(&["value", "publish", "/values/a/b", "4"]);
    read_until(&mut follow, &update("/values/a/b", 4));
}

#[test]
fn a_write_is_accepted_or_refused_by_exit_code() {
    let system = System::up();
    let mut writable =
        system.spawn(&["value", "publish", "/values/w", "off", "--writable", "--json"]);
    assert_eq!(next(&mut writable)["ready"], "publish");
    let mut fixed = system.spawn(&["value", "publish", "/values/f", "off", "--json"]);
    assert_eq!(next(&mut fixed)["ready"], "publish");
    let written = system.run(&["value", "write", "/values/w", "on"]).code(0);
    assert_eq!(written.stdout, "/values/w accepted it\n");
    let now = system.run(&["value", "subscribe", "/values/w", "--once", "--json"]).code(0).json();
    assert_eq!(now, update("/values/w", "on"));
    let refused = system.run(&["value", "write", "/values/f", "on", "--within", "2s"]).code(1);
    assert!(refused.stderr.starts_with("error: "), "{refused:?}");
    system.run(&["value", "write", "/values/none", "on", "--within", "500ms"]).code(1);
}

#[test]
fn reserved_paths_cannot_be_published() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    system.run(&["value", "publish", "/sys/mine", "1"]).code(1).stderr_has(&["Longshore's own"]);
    system.run(&["value", "publish", "/", "1"]).code(1).stderr_has(&["below the root"]);
    // A publisher of values only is not expected to answer queries about queues.
    let mut publish = system.spawn(&["value", "publish", "/jobs/value", "1", "--json"]);
    assert_eq!(next(&mut publish)["ready"], "publish");
    let stat = system.run(&["stat", "--json"]).code(0).json();
    assert_eq!(stat["missing"], json!([]));
    assert_eq!(stat["queues"][0]["path"], "/jobs/a");
}
