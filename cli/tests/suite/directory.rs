//! Commands that read the directory: lists, trees, tables, resolution and watches.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use common::harness::Harness;
use common::{BackgroundCommand, System};
use rustix::process::Signal;
use serde_json::{Value, json};

fn next(watch: &mut BackgroundCommand) -> Value {
    let line = watch.line();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// The next event of the watch about a path.
fn of_path(watch: &mut BackgroundCommand) -> (String, String) {
    loop {
        let value = next(watch);
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        if matches!(text("event").as_str(), "now" | "gone") {
            return (text("event"), text("path"));
        }
    }
}

fn event(event: &str, path: &str) -> (String, String) {
    (event.to_owned(), path.to_owned())
}

#[test]
fn publishers_and_queues_are_listed_with_what_they_take() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    system.enqueue("/jobs/b", "x", &[]);
    system.run(&["queue", "set", "/jobs/a", "--max-attempts", "3"]).code(0);
    system.run(&["queue", "close", "/jobs/b"]).code(0);
    system.run(&["pause", "/jobs/b"]).code(0);
    let shown = system.run(&["queue", "ls"]).code(0).stdout;
    let rows: Vec<String> =
        shown.lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "queue waiting running takes defaults",
        "/jobs/a 1 0 jobs max-attempts 3",
        "/jobs/b 1 0 no jobs; closed and paused nothing is set",
    ];
    assert_eq!(rows, expected);
    let listed = system.run(&["queue", "ls", "/jobs/b", "--json"]).code(0).json();
    let [queue] = &listed["queues"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!(queue["closed_by"], json!(["/jobs/b"]));
    assert_eq!(system.run(&["jobs", "--json"]).code(0).json_lines().len(), 2);

    let json = system.run(&["publisher", "status", "--json"]).code(0).json();
    let name = json["publishers"][0]["name"].as_str().unwrap().to_owned();
    let status = |takes: &str| {
        let shown = system.run(&["publisher", "status"]).code(0).stdout;
        let row = shown.lines().nth(1).unwrap();
        assert!(row.starts_with(&name) && row.ends_with(takes), "{shown}");
        shown
    };
    status("yes");
    system.run(&["publisher", "drain", &name]).code(0);
    assert!(status("no").contains("it is drained, and accepts no new jobs"));
    let json = system.run(&["publisher", "status", "--json"]).code(0).json();
    let publisher = &json["publishers"][0];
    assert_eq!((&publisher["jobs"], &publisher["draining"]), (&json!(2), &json!(true)));

    for noun in ["resolver", "publisher", "queue", "value", "directory", "home"] {
        system.run(&[noun]).code(2).stderr_has(&["Usage:", "Commands:"]);
        assert!(system.run(&["help", noun]).code(0).stdout.contains("Examples:"));
    }
}

#[test]
fn the_directory_is_shown_as_a_list_a_tree_and_a_table() {
    let system = System::up();
    for path in ["/jobs/east/mail", "/jobs/east/sha", "/jobs/west/mail", "/jobs/east"] {
        system.enqueue(path, "x", &[]);
    }
    let shown = system.run(&["directory", "tree", "/jobs"]).code(0).stdout;
    let names: Vec<String> = shown
        .lines()
        .map(|line| line.trim_end().rsplit_once("  ").map_or(line, |(name, _)| name.trim_end()))
        .map(str::to_owned)
        .collect();
    assert_eq!(names, ["path", "east", "  mail", "  sha", "west", "  mail"], "{shown}");
    let is = |line: usize| shown.lines().nth(line).unwrap().split_whitespace().last().unwrap();
    assert_eq!([is(1), is(2), is(4)], ["queue", "queue", "folder"]);

    let tree = system.run(&["directory", "tree", "/jobs", "--depth", "1", "--json"]).code(0).json();
    let paths: Vec<_> = tree["paths"].as_array().unwrap().iter().collect();
    let paths: Vec<_> = paths.iter().map(|p| [&p["path"], &p["depth"], &p["queue"]]).collect();
    assert_eq!(json!(paths), json!([["/jobs/east", 1, true], ["/jobs/west", 1, false]]));
    assert_eq!(tree["complete"], true);

    let table = system.run(&["directory", "table", "/jobs", "--json"]).code(0).json();
    assert_eq!(table["rows"], json!(["east", "west"]));
    let columns = json!([{ "name": "mail", "rows": 2 }, { "name": "sha", "rows": 1 }]);
    assert_eq!((&table["columns"], &table["complete"]), (&columns, &json!(true)));
    let shown = system.run(&["directory", "table", "/jobs"]).code(0).stdout;
    assert_eq!(shown, "row\neast\nwest\n\ncolumn  rows\nmail       2\nsha        1\n");

    let resolved = system.run(&["directory", "resolve", "/jobs/east", "--json"]).code(0).json();
    let publisher = &resolved["paths"][0]["publishers"][0];
    let terms = ["kind", "priority", "weight", "home"].map(|field| &publisher[field]);
    assert_eq!(terms, [&json!("queue"), &json!(0), &json!(100), &Value::Null]);

    let known = system.run(&["resolver", "status", "--publishers", "--json"]).code(0).json();
    let publisher = &known["replicas"][0]["publishers"][0];
    assert_eq!(
        (&publisher["missing"], publisher["registrations"].as_u64()),
        (&Value::Null, Some(7))
    );
    let status = system.run(&["resolver", "status", "--json"]).code(0).json();
    let metrics = &status["replicas"][0];
    assert_eq!((&metrics["hidden"], &metrics["warming_left_ms"]), (&json!(0), &json!(0)));
    assert!(metrics["watches_max"].as_u64() > Some(0), "{metrics}");
    let requests = |kind: &str| metrics["requests"][kind].as_u64();
    assert!(requests("resolve") > Some(0) && requests("announce") > Some(0), "{metrics}");
    assert!(
        metrics["reads"].as_u64() > requests("resolve") && metrics["writes"].as_u64() > Some(0)
    );
    let shown = system.run(&["resolver", "status"]).code(0).stdout;
    assert!(shown.contains("requests"), "{shown}");
    assert!(["slowest", "MiB", "at most"].iter().all(|word| shown.contains(word)), "{shown}");
}

#[test]
fn watch_prints_a_snapshot_then_changes_until_stopped() {
    let system = System::up();
    system.enqueue("/jobs/a", "x", &[]);
    for signal in [Signal::TERM, Signal::INT] {
        let mut watch = system.spawn(&["directory", "watch", "/jobs/**", "/other/*", "--json"]);
        assert_eq!(next(&mut watch)["event"], "snapshot_begins");
        let first = next(&mut watch);
        let fields = ["event", "path", "queue", "value", "default"].map(|field| &first[field]);
        let expected = [json!("now"), json!("/jobs/a"), json!(true), json!(false), json!(false)];
        assert_eq!(fields, expected.each_ref());
        let new = format!("/other/{}", signal.as_raw());
        if signal == Signal::INT {
            assert_eq!(of_path(&mut watch), event("now", "/other/15"));
        }
        let whole = next(&mut watch);
        assert_eq!((&whole["event"], &whole["complete"]), (&json!("whole"), &json!(true)));
        system.enqueue("/elsewhere/a", "x", &[]);
        system.enqueue(&new, "x", &[]);
        assert_eq!(of_path(&mut watch), event("now", &new));
        watch.send(signal);
        watch.ended().code(0);
    }
    let mut watch = system.spawn(&["directory", "watch", "/jobs/**", "--count", "1"]);
    let line = watch.line();
    assert!(line.ends_with("  /jobs/a  queue\n"), "{line:?}");
    watch.ended().code(0).stderr_has(&["following replica"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watch_fails_over_and_prints_only_differences() {
    let mut harness = Harness::start_with(2, 1, None).await;
    harness.run(&["enqueue", "/jobs/a", "x"]).code(0);
    let mut watch =
        BackgroundCommand::start(harness.command(&["directory", "watch", "/jobs/**", "--json"]));
    let begins = next(&mut watch);
    assert_eq!(of_path(&mut watch), event("now", "/jobs/a"));
    let followed = begins["replica"].as_str().unwrap().to_owned();
    let at = harness.replicas.iter().position(|one| one.address().to_string() == followed).unwrap();
    harness.replicas[at].kill();
    let other = loop {
        let value = next(&mut watch);
        assert!(!matches!(value["event"].as_str(), Some("now" | "gone")), "no difference: {value}");
        if value["event"] == "snapshot_begins" {
            break value;
        }
    };
    assert_ne!(other["replica"], begins["replica"]);
    harness.run(&["enqueue", "/jobs/b", "x"]).code(0);
    assert_eq!(of_path(&mut watch), event("now", "/jobs/b"));
    // The paths of a publisher that is silent for a writer_ttl disappear until it returns.
    harness.kill_publisher();
    let gone = [of_path(&mut watch), of_path(&mut watch)];
    assert_eq!(gone, [event("gone", "/jobs/a"), event("gone", "/jobs/b")]);
    harness.restart_publisher();
    let back = [of_path(&mut watch), of_path(&mut watch)];
    assert_eq!(back, [event("now", "/jobs/a"), event("now", "/jobs/b")]);
}
