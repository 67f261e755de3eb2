//! Runs the console sessions of the pages against a real system, and compares the output.
#![allow(clippy::unwrap_used, clippy::panic, reason = "its helpers are tests, too")]

use crate::common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::{Service, System};

/// A service that a page starts in a further terminal.
const SERVICE: &str = "longshore publisher run ";

/// A command of a session with the output and exit code on the page.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    prints: Vec<String>,
    code: i32,
}

#[test]
fn sessions_of_the_readme_print_what_it_shows() {
    replay(include_str!("../../../README.md"), 4);
}

#[test]
fn sessions_of_the_tutorial_print_what_it_shows() {
    replay(include_str!("../../../docs/TUTORIAL.md"), 14);
}

#[test]
fn sessions_about_jobs_print_what_the_page_shows() {
    replay(include_str!("../../../docs/JOBS.md"), 15);
}

/// Runs the steps of a page, at least so many.
#[test]
fn sessions_about_workflows_print_what_the_page_shows() {
    replay(include_str!("../../../docs/WORKFLOWS.md"), 10);
}

fn replay(page: &str, at_least: usize) {
    let steps = sessions(page);
    assert!(steps.len() >= at_least, "the page has {} steps", steps.len());
    let system = System::up();
    let home = tempfile::tempdir().unwrap();
    let mut services = Vec::new();
    for step in &steps {
        if step.command.starts_with(SERVICE) {
            let mut command = shell(&format!("exec {} --json", step.command), &system, home.path());
            command.env("LONGSHORE_LOG", "off");
            services.push(Service::start(command));
            continue;
        }
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
    let output = shell(&format!("{{ {}\n}} 2>&1", step.command), system, folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // A busy machine takes long enough for a line about the progress.
    let printed = text.lines().filter(|line| !line.starts_with("working: "));
    (output.status.code().unwrap_or(-1), printed.map(words).collect())
}

/// A shell with the program in its path.
fn shell(script: &str, system: &System, folder: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_longshore")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program.display()))
        .env("LONGSHORE_RESOLVERS", system.resolver())
        .env("HOME", "/nonexistent")
        .env_remove("LONGSHORE_CONFIG");
    command
}

/// The commands of all blocks marked as `console`, and the services of those marked as `sh`.
fn sessions(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.split("\n```").skip(1) {
        let Some((kind, block)) = block.split_once('\n') else { continue };
        if kind == "sh" {
            let services = block.lines().filter(|line| line.starts_with(SERVICE));
            steps.extend(services.map(|line| Step {
                command: line.to_owned(),
                prints: Vec::new(),
                code: 0,
            }));
        }
        if kind != "console" {
            continue;
        }
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

/// A line with single blanks, because column widths depend on the content, and without receipts.
fn words(line: &str) -> String {
    let is_receipt = |word: &&str| word.len() == 45 && word.as_bytes()[8] == b':';
    let shown = |word| if is_receipt(&word) { "…:…" } else { word };
    line.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")
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
