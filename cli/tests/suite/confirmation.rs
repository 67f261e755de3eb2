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

    let (code, shown) = Terminal::start(system.command(&["--json", "cancel", "/**"]), 80).ended();
    assert!(code == 2 && shown.contains("--yes") && !shown.contains("[y/N]"), "{shown}");

    let mut terminal = Terminal::start(system.command(&cancel), 80);
    let at = system.resolver();
    let asked = "cancel 3 jobs of queues that match '/jobs/**' at the resolver";
    terminal.wait_for(&format!("{asked} {at}? [y/N] "));
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
    let dead = system.enqueue("/jobs/a", "exit 65", &[]);
    system.enqueue("/jobs/a", "true", &[]);
    let work = ["work", "/jobs/a", "--until-empty", "--", "sh", "-c", "eval \"$(cat)\""];
    system.run(&work).code(1);
    let scheduled = system.enqueue("/jobs/a", "true", &["--delay", "1h"]);
    let prepared = system.enqueue("/jobs/a", "true", &["--prepare"]);
    system.run(&["pause", "/jobs/b"]).code(0);
    system.run(&["queue", "close", "/jobs/c"]).code(0);
    system.run(&["queue", "set", "/jobs/a", "--lease", "2m"]).code(0);
    let state = || {
        let stat = system.run(&["stat", "--json"]).code(0).json();
        let mut jobs = system.run(&["jobs", "/**", "--json"]).code(0).json_lines();
        for job in &mut jobs {
            // Computed at each answer from the time that is left: it may differ by a millisecond.
            job.as_object_mut().unwrap().remove("due_at");
        }
        let of_queues = ["queues", "paused", "closed"].map(|key| stat[key].clone());
        (jobs, of_queues, stat["publishers"][0]["draining"].clone())
    };
    let before = state();
    for (command, expected) in [
        (&["pause", "/jobs/**"][..], "would be paused '/jobs/**': 1 queue at"),
        (&["resume", "/jobs/b"], "would be resumed '/jobs/b': 0 queues at"),
        (&["resume", "--clock"], "no publisher waits"),
        (&["queue", "close", "/jobs/*"], "would be closed '/jobs/*': 1 queue at"),
        (&["queue", "open", "/jobs/c"], "would be opened '/jobs/c': 0 queues at"),
        (&["queue", "set", "/jobs/a", "--max-attempts", "3"], "would have max-attempts 3"),
        (&["queue", "reset", "/jobs/a"], "would have nothing is set at"),
        (&["cancel", &scheduled], "1 would be cancelled"),
        (&["cancel", "/jobs/a"], "2 would be cancelled"),
        (&["confirm", &prepared], "1 would be confirmed"),
        (&["purge", "/jobs/a", "--state", "completed"], "1 would be purged"),
        (&["dead", "revive", &dead], "1 would be revived"),
        (&["dead", "revive", "/jobs/a"], "1 would be revived"),
        (&["dead", "revive", "/jobs/a", "--rate", "9"], "1 would be revived"),
        (&["dead", "revive", &dead, "--payload", "x"], "would be replaced"),
        (&["dead", "drop", &dead], "1 would be dropped"),
        (&["dead", "drop", "/jobs/a"], "1 would be dropped"),
        (&["publisher", "drain", &publisher(&system)], "would accept no new jobs; 2 jobs would"),
    ] {
        let ended = system.run(&[command, &["--dry-run"]].concat());
        assert!(ended.code == 0 && ended.stdout.contains(expected), "{command:?}: {ended:?}");
        assert_eq!(state(), before, "{command:?}");
    }
    let opened = system.run(&["queue", "open", "/jobs/a", "--dry-run"]).code(0);
    opened.stderr_has(&["'/jobs/a' was not closed"]);
    system.enqueue("/jobs/a", "true", &[]);
}

/// The id of the only publisher.
#[allow(clippy::unwrap_used, reason = "a test helper")]
fn publisher(system: &System) -> String {
    let status = system.run(&["publisher", "status", "--json"]).code(0).json();
    status["publishers"][0]["publisher"].as_str().unwrap().to_owned()
}
