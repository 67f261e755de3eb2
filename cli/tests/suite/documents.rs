//! Runs the console sessions in `docs/JOBS.md` against a real system, and compares the output with
//! the page.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::System;

/// A command of a session with the output and exit code on the page.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    prints: Vec<String>,
    code: i32,
}

#[test]
fn documented_sessions_print_what_the_page_shows() {
    let page = include_str!("../../../docs/JOBS.md");
    let steps = sessions(page);
    assert!(steps.len() > 15, "the page has sessions: {}", steps.len());
    let system = System::up();
    let home = tempfile::tempdir().unwrap();
    for step in &steps {
        let (code, printed) = run(step, &system, home.path());
        let mut differences = String::new();
        if code != step.code {
            writeln!(differences, "exit code {code}, not {}", step.code).unwrap();
        }
        if !fits(&step.prints, &printed) {
            writeln!(differences, "the page shows:\n{}", step.prints.join("\n")).unwrap();
        }
        assert!(
            differences.is_empty(),
            "$ {}\n{differences}it prints:\n{}",
            step.command,
            printed.join("\n")
        );
    }
}

/// Runs a command in a shell. Returns the exit code and both outputs interleaved.
fn run(step: &Step, system: &System, folder: &Path) -> (i32, Vec<String>) {
    let program = Path::new(env!("CARGO_BIN_EXE_longshore")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-c", &format!("{{ {}\n}} 2>&1", step.command)])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program.display()))
        .env("LONGSHORE_RESOLVERS", system.resolver())
        .env("HOME", "/nonexistent")
        .env_remove("LONGSHORE_CONFIG")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap_or(-1), text.lines().map(words).collect())
}

/// The commands of all blocks marked as `console`.
fn sessions(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        let (block, _) = block.split_once("\n```").unwrap();
        for line in block.lines() {
            let code = line.strip_prefix("[exit ").and_then(|rest| rest.strip_suffix(']'));
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    let command = command.to_owned();
                    steps.push(Step { command, prints: Vec::new(), code: 0 });
                }
                (None, Some(step)) => match code {
                    Some(code) => step.code = code.parse().unwrap(),
                    None => step.prints.push(words(line)),
                },
                (None, None) => panic!("a session begins with a command: {line}"),
            }
        }
    }
    steps
}

/// A line with single blanks, because column widths depend on the content.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Compares output with the page. A line `…` matches any lines, `…` within a line any text.
fn fits(expected: &[String], printed: &[String]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, others)| line_fits(line, first) && fits(rest, others)),
    }
}

fn line_fits(expected: &str, printed: &str) -> bool {
    match expected.split_once('…') {
        None => expected == printed,
        Some((before, after)) => printed.strip_prefix(before).is_some_and(|rest| {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.into_iter().any(|at| line_fits(after, &rest[at..]))
        }),
    }
}

#[test]
fn differing_session_output_is_detected() {
    let steps = sessions("x\n```console\n$ one\na …\n$ two\n[exit 1]\n```\n");
    assert_eq!(steps.len(), 2);
    assert_eq!((steps[0].code, steps[1].code), (0, 1));
    let lines = |text: &str| text.lines().map(words).collect::<Vec<_>>();
    assert!(fits(&steps[0].prints, &lines("a    b")));
    assert!(!fits(&steps[0].prints, &lines("b")));
    assert!(!fits(&steps[0].prints, &lines("a b\nc")));
    assert!(fits(&lines("…\nz"), &lines("x\ny\nz")));
    assert!(!fits(&lines("…\nz"), &lines("x\ny")));
    assert!(line_fits("a…c", "abbc") && !line_fits("a…c", "abb"));
}
