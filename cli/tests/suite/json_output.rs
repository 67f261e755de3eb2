//! What each command prints with `--json` is what `docs/output.schema.json` defines. The harness
//! checks the output of every command of every test; here each runs at least once.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use std::path::Path;
use std::process::Command;

use common::output_checks::checked;
use common::{BackgroundCommand, CommandOutput, Service, System, longshore, run, schema};

/// The commands that only other tests run, with the source of those.
const ELSEWHERE: [(&str, &str); 7] = [
    // A test of its report: a run takes ten seconds.
    ("demo", include_str!("../../src/commands/demo/mod.rs")),
    ("bench backlog", include_str!("bench.rs")),
    ("bench e2e", include_str!("bench.rs")),
    ("bench latency", include_str!("bench.rs")),
    ("bench resolver", include_str!("bench.rs")),
    ("bench values", include_str!("bench.rs")),
    // A publisher has to be silent for a while.
    ("publisher forget", include_str!("known_publishers.rs")),
];

#[test]
fn every_command_prints_what_the_schema_defines() {
    let system = System::up();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let run_json = |line: &str| -> CommandOutput {
        let arguments: Vec<&str> = std::iter::once("--json").chain(line.split(' ')).collect();
        system.run(&arguments)
    };
    jobs(&system, &run_json);
    for line in [
        "stat",
        "check",
        "top --once",
        "queue ls",
        "queue show /jobs/a",
        "queue set /jobs/a --max-attempts 3 --backoff list:1s,5s",
        "queue reset /jobs/a --dry-run",
        "queue close /jobs/**",
        "queue open /jobs/**",
        "limit set smtp /jobs/a --concurrency 2 --rate 100/s --dry-run",
        "limit set smtp /jobs/a --concurrency 2 --rate 100/s",
        "limit ls",
        "limit rm smtp --dry-run",
        "limit rm smtp",
        "cron add nightly /jobs/a text --cron @daily --zone Europe/Berlin --dry-run",
        "cron add nightly /jobs/a text --cron @daily --zone Europe/Berlin",
        "cron ls",
        "cron next nightly",
        "cron run nightly --dry-run",
        "cron run nightly",
        "cron pause nightly",
        "cron resume nightly --dry-run",
        "cron rm nightly",
        "pause /jobs/a",
        "resume /jobs/a --dry-run",
        "resume --clock --dry-run",
        "resume --clock",
        "workers ls",
        "directory ls /jobs",
        "directory tree",
        "directory table /jobs",
        "directory resolve /jobs/a",
        "home ls",
        "directory watch /jobs/** --count 1",
        "resolver status",
        "resolver status --publishers",
        "publisher status",
        "config",
    ] {
        run_json(line).code(0);
    }
    // There is no worker.
    for line in ["workers quiet --all --dry-run", "workers resume w"] {
        run_json(line).code(1);
    }
    batches(&system, &run_json);
    services(&system, &run_json);
    values(&system, &run_json);
    let (data, copy) = (system.service.text("data"), text(&system.folder.path().join("copy")));
    for line in [&format!("stat {data}"), &format!("copy {data} {copy}")] {
        run_json(&format!("journal {line}")).code(0);
    }
    // Not of a directory in use.
    for line in ["verify", "dump"] {
        run_json(&format!("journal {line} {copy}")).code(0);
    }
    let tls = text(&system.folder.path().join("tls"));
    for line in ["ca --dir TLS", "issue a --host a.test --dir TLS", "show TLS/ca.pem TLS/a.pem"] {
        run_json(&format!("cert {}", line.replace("TLS", &tls))).code(0);
    }
    let tokens = text(&system.folder.path().join("tokens.toml"));
    for line in ["create a --expires 1d", "ls", "revoke a"] {
        run_json(&format!("token {line} --file {tokens}")).code(0);
    }
    let policy = system.folder.path().join("policy.toml");
    let rule = "[[allow]]\nwho = [\"cn:a\"]\ndo = [\"act\"]\npaths = [\"/a/**\"]\n";
    std::fs::write(&policy, rule).unwrap();
    let policy = text(&policy);
    run_json(&format!("access check cn:a act /a/b --policy {policy}")).code(0);
    run_json(&format!("access show cn:a --policy {policy}")).code(0);
    let audit = system.folder.path().join("audit.jsonl");
    let record = longshore_access::AuditRecord {
        time_unix_ms: 0,
        server: String::new(),
        identity: String::new(),
        address: String::new(),
        action: "open the log",
        target: String::new(),
        detail: String::new(),
        outcome: longshore_access::AuditOutcome::Allowed,
        left_out: 0,
    };
    let line = longshore_access::AuditChain::default().begin_file(&record);
    std::fs::write(&audit, line).unwrap();
    run_json(&format!("access audit {}", text(&audit))).code(0);
    let home = text(&system.folder.path().join("home"));
    for line in ["add here --resolver a:1", "use here", "ls", "show", "rm here"] {
        let arguments: Vec<&str> =
            ["--json", "context"].into_iter().chain(line.split(' ')).collect();
        let mut command: Command = longshore(&arguments);
        command.env("XDG_CONFIG_HOME", &home);
        run(command, b"").code(0);
    }

    let checked = checked().clone();
    let is_elsewhere = |command: &str| {
        let quoted = format!("\"{}\"", command.replace(' ', "\", \""));
        let has = |(name, source): &(&str, &str)| *name == command && source.contains(&quoted);
        ELSEWHERE.iter().any(has)
    };
    let left: Vec<&str> = schema::commands()
        .filter(|command| !checked.contains(*command) && !is_elsewhere(command))
        .collect();
    assert_eq!(left, [""; 0], "no test checks the output of these");
}

/// Jobs in all states.
fn jobs(system: &System, run_json: &dyn Fn(&str) -> CommandOutput) {
    let mut tail = system.spawn(&["--json", "tail", "--snapshot", "--count", "1"]);
    tail.wait_for_stderr("following");
    let job = system.enqueue("/jobs/a", "x", &["--header", "a=b", "--expires", "1h"]);
    tail.ended().code(0);
    let prepared = system.enqueue("/jobs/p", "x", &["--prepare"]);
    let dead = system.enqueue("/jobs/dead", "x", &["--max-attempts", "1"]);
    let work = ["work", "/jobs/dead", "--until-empty", "--json", "--", "false"];
    system.run(&work).code(1);
    for line in [
        "jobs",
        "dead ls",
        "dead groups",
        format!("job {job}").as_str(),
        format!("confirm {prepared}").as_str(),
        format!("cancel {prepared}").as_str(),
        "cancel /jobs/p --dry-run",
        "purge /jobs/p --state cancelled --yes",
        format!("dead show {dead}").as_str(),
        format!("dead revive {dead} --dry-run").as_str(),
        format!("dead revive {dead} --payload y --dry-run").as_str(),
        "dead revive /jobs/dead --dry-run",
        format!("dead revive {dead} --payload y").as_str(),
        "dead drop /jobs/dead --yes",
    ] {
        run_json(line).code(0);
    }
    run_json(&format!("cancel {prepared}")).code(1);
}

/// A replica, and a second publisher.
fn services(system: &System, run_json: &dyn Fn(&str) -> CommandOutput) {
    let replica = ["resolver", "run", "--json", "--listen", "127.0.0.1:0", "--fresh"];
    let _replica = Service::start(longshore(&replica));
    let listen = ["--listen", "127.0.0.1:0", "--default", "/second", "--name", "second"];
    let mut second = system.command(&["publisher", "run", "--json"]);
    second.args(listen).arg("--data").arg(system.folder.path().join("second"));
    let _second = Service::start(second);
    for option in ["--dry-run", "--undo", "--wait"] {
        run_json(&format!("publisher drain second {option}")).code(0);
    }
}

fn batches(system: &System, run_json: &dyn Fn(&str) -> CommandOutput) {
    let opened = system.run(&["batch", "new", "/batches/a", "one"]);
    let batch = opened.stdout.trim().to_owned();
    run_json("batch new /batches/a two").code(0);
    run_json(&format!("enqueue /batches/a member --batch {batch}")).code(0);
    run_json("batch ls").code(0);
    run_json(&format!("batch show {batch}")).code(0);
    run_json(&format!("jobs --batch {batch}")).code(0);
    run_json(&format!("batch close {batch}")).code(0);
    run_json(&format!("batch cancel {batch}")).code(0);
    run_json(&format!("batch retry {batch}")).code(1);
}

fn values(system: &System, run_json: &dyn Fn(&str) -> CommandOutput) {
    let arguments = ["value", "publish", "/values/w", "off", "--writable", "--json"];
    let mut publish: BackgroundCommand = system.spawn(&arguments);
    publish.line();
    run_json("value write /values/w on").code(0);
    run_json("value subscribe /values/w --once").code(0);
}
