//! The sessions in `docs/JOBS.md`, run line by line against a real system: what the page shows is
//! what the program prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::System;

/// A command of a session, and what the page says of it.
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
        let mut told = String::new();
        if code != step.code {
            writeln!(told, "exit code {code}, not {}", step.code).unwrap();
        }
        if !fits(&step.prints, &printed) {
            writeln!(told, "the page says:\n{}", step.prints.join("\n")).unwrap();
        }
        assert!(told.is_empty(), "$ {}\n{told}it prints:\n{}", step.command, printed.join("\n"));
    }
}

/// Runs a command in a shell, as somebody would who reads the page. Both outputs, in their order.
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

/// A line with single blanks: how wide a column is depends on what stands in it.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// True when the lines are as the page has them. A line `…` stands for any lines, `…` in a line for
/// any text.
fn fits(says: &[String], printed: &[String]) -> bool {
    match says.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, others)| line_fits(line, first) && fits(rest, others)),
    }
}

fn line_fits(says: &str, printed: &str) -> bool {
    match says.split_once('…') {
        None => says == printed,
        Some((before, after)) => printed.strip_prefix(before).is_some_and(|rest| {
            let state = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            state.into_iter().any(|at| line_fits(after, &rest[at..]))
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
