//! Unique jobs on the command line.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common::System;

#[test]
fn a_unique_job_is_kept_replaced_or_refused() {
    let system = System::up();
    let first = system.enqueue("/jobs/a", "1", &["--unique=report"]);
    let enqueue = |more: &[&str]| {
        let mut line = vec!["enqueue", "/jobs/a", "2", "--json", "--unique=report"];
        line.extend(more);
        system.run(&line)
    };
    let kept = enqueue(&[]).code(0).json();
    assert_eq!((kept["job"].as_str(), &kept["existing"]), (Some(first.as_str()), &1.into()));
    enqueue(&["--on-conflict", "refuse"]).code(1).stderr_has(&["NotUnique"]);
    let second = enqueue(&["--on-conflict", "replace"]).code(0).json();
    assert_eq!((&second["created"], &second["existing"]), (&1.into(), &0.into()));
    let new = system.run(&["job", second["job"].as_str().unwrap(), "--json"]).code(0).json();
    assert!(first.ends_with(new["replaces"].as_str().unwrap()), "{new}");
    assert_eq!(system.stat("/jobs/a")["ready"], 1);
    system.run(&["work", "/jobs/a", "--until-empty", "--", "true"]).code(0);
    assert_eq!(enqueue(&[]).code(0).json()["created"], 1, "the first has ended");
}

#[test]
fn lines_are_unique_by_their_payloads() {
    let system = System::up();
    let enqueue = ["enqueue", "/jobs/a", "--lines", "--unique", "--json"];
    let counts = system.run_with(&enqueue, b"a\nb\na\n").code(0).json();
    assert_eq!((&counts["created"], &counts["existing"]), (&2.into(), &1.into()));
}

#[test]
fn a_dead_job_is_not_revived_while_another_has_its_unique_key() {
    let system = System::up();
    let dead = system.enqueue("/jobs/a", "x", &["--unique"]);
    system.run(&["work", "/jobs/a", "--until-empty", "--", "sh", "-c", "exit 65"]).code(1);
    let holder = system.enqueue("/jobs/a", "x", &["--unique"]);
    let named = system.run(&["dead", "revive", &dead]).code(1);
    named.stderr_has(&[&holder, "has its unique key"]);
    let by_pattern = system.run(&["dead", "revive", "/jobs/a", "--json"]).code(1).json();
    assert_eq!((&by_pattern["done"], &by_pattern["refused"]), (&0.into(), &1.into()));
    system.run(&["cancel", &holder]).code(0);
    system.run(&["dead", "revive", &dead]).code(0);
}
