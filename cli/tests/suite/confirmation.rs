//! Commands that destroy ask on a terminal, and need `--yes` elsewhere; dry runs change nothing.

use crate::common;

use common::System;
use common::terminal::Terminal;

#[test]
fn what_a_pattern_destroys_is_confirmed_on_a_terminal_or_with_yes() {
    let system = System::up();
    for _ in 0..3 {
        system.enqueue("/jobs/a", "true", &["--delay", "1h"]);
    }
    let scheduled = || system.stat("/jobs/a")["scheduled"].clone();
    let cancel = ["cancel", "/jobs/**"];

    let refused = system.run(&cancel).code(2).stderr_has(&["no terminal to ask on", "--yes"]);
    assert_eq!(refused.stdout, "");
    let json = system.run(&[&cancel[..], &["--json"]].concat()).code(2).stderr;
    let error: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(error["error"]["code"], "unconfirmed");
    assert!(error["error"]["hint"].as_str().unwrap().contains("--yes"), "{json}");
    for command in [&["purge", "/**", "--state", "dead"][..], &["dead", "drop", "/**"]] {
        system.run(command).code(2).stderr_has(&["--yes"]);
    }
    assert_eq!(scheduled(), 3);

    let mut terminal = Terminal::start(system.command(&cancel), 80);
    terminal.wait_for("cancel 3 jobs of queues that match '/jobs/**'? [y/N] ");
    terminal.type_line("n");
    let (code, shown) = terminal.ended();
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("not confirmed: nothing was changed"), "{shown}");
    assert_eq!(scheduled(), 3);

    let mut terminal = Terminal::start(system.command(&cancel), 80);
    terminal.wait_for("[y/N] ");
    terminal.type_line("y");
    let (code, shown) = terminal.ended();
    assert!(code == 0 && shown.contains("3 cancelled"), "{shown}");
    // Nothing is left to ask about.
    let (code, shown) = Terminal::start(system.command(&cancel), 80).ended();
    assert!(code == 0 && !shown.contains("[y/N]"), "{shown}");
    let purge = ["purge", "/jobs/a", "--state", "cancelled", "--yes"];
    assert!(system.run(&purge).code(0).stdout.starts_with("3 purged"));
}

#[test]
fn dry_runs_of_every_act_change_nothing() {
    let system = System::up();
    let job = system.enqueue("/jobs/a", "true", &["--delay", "1h"]);
    system.run(&["pause", "/jobs/b"]).code(0);
    let before = (system.stat("/jobs/a"), system.run(&["stat", "--json"]).json()["paused"].clone());
    for (command, expected) in [
        (&["pause", "/jobs/**"][..], "would be paused '/jobs/**': 1 queue at"),
        (&["resume", "/jobs/b"], "would be resumed '/jobs/b': 0 queues at"),
        (&["resume", "--clock"], "no publisher waits"),
        (&["queue", "close", "/jobs/*"], "would be closed '/jobs/*': 1 queue at"),
        (&["queue", "set", "/jobs/a", "--max-attempts", "3"], "would have max-attempts 3 at"),
        (&["queue", "reset", "/jobs/a"], "would have nothing is set at"),
        (&["cancel", &job], "1 would be cancelled"),
        (&["cancel", "/jobs/a"], "1 would be cancelled"),
        (&["confirm", &job], "0 would be confirmed"),
        (&["purge", "/jobs/a", "--state", "dead"], "0 would be purged"),
        (&["dead", "revive", "/jobs/a"], "0 would be revived"),
        (&["dead", "drop", "/jobs/a"], "0 would be dropped"),
        (&["publisher", "drain", &publisher(&system)], "would accept no new jobs; 1 job would"),
    ] {
        let ended = system.run(&[command, &["--dry-run"]].concat());
        assert!(ended.stdout.contains(expected), "{command:?}: {ended:?}");
    }
    let opened = system.run(&["queue", "open", "/jobs/a", "--dry-run"]).code(0);
    opened.stderr_has(&["'/jobs/a' was not closed"]);
    let after = (system.stat("/jobs/a"), system.run(&["stat", "--json"]).json()["paused"].clone());
    assert_eq!(before, after);
    system.enqueue("/jobs/a", "true", &[]);
}

/// The id of the only publisher.
#[allow(clippy::unwrap_used, reason = "a test helper")]
fn publisher(system: &System) -> String {
    let status = system.run(&["publisher", "status", "--json"]).code(0).json();
    status["publishers"][0]["publisher"].as_str().unwrap().to_owned()
}
