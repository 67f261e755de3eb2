//! Longshore's chores. `cargo xtask test` runs everything that has to hold before a change is taken.

mod bench;
mod mutants;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const USAGE: &str = "\
cargo xtask test                               formatting, clippy, all tests (they run the examples) and doc tests
cargo xtask mutants [--list] [--only NAME]… [--since REV]
                                               plants faults one after another; the suite has to fail on each
cargo xtask bench resolver [OPTION]…           Longshore's resolver beside netidx's; --help tells the options
cargo xtask bench values [OPTION]…             Longshore's live values beside netidx's";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["test"] => test(),
        ["mutants", ref asked @ ..] => mutants::command(asked),
        ["bench", "resolver" | "values", ..] => bench::command(&words[1..]),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// One thing that has to hold.
struct Step {
    name: String,
    command: Vec<String>,
}

impl Step {
    fn cargo(name: &str, arguments: &str) -> Step {
        let words = std::iter::once("cargo").chain(arguments.split(' '));
        Step { name: name.to_owned(), command: words.map(str::to_owned).collect() }
    }

    /// Runs it, its output shown as it comes.
    fn run(&self) -> anyhow::Result<bool> {
        eprintln!("\n── {}: {}", self.name, self.command.join(" "));
        let (program, arguments) = self.command.split_at(1);
        let mut command = Command::new(&program[0]);
        // Colour and progress are for terminals; what a log keeps is plain.
        command.args(arguments).env("CARGO_TERM_PROGRESS_WHEN", "never");
        Ok(command.status()?.success())
    }
}

fn steps() -> Vec<Step> {
    vec![
        Step::cargo("formatting", "fmt --all --check"),
        Step::cargo("planted faults apply", "xtask mutants --list"),
        Step::cargo("clippy", "clippy --workspace --all-targets --locked -- --deny warnings"),
        Step::cargo("a worker alone", "check -p longshore --no-default-features --features worker"),
        // Of their own workspaces; without the peer, which wants Kerberos.
        Step::cargo("fuzz compiles", "check --manifest-path fuzz/Cargo.toml --target-dir target"),
        Step::cargo(
            "bench compiles",
            "check --manifest-path bench/Cargo.toml --no-default-features --target-dir target",
        ),
        Step::cargo("tests", "test --workspace --all-targets --locked --no-fail-fast"),
        Step::cargo("doc tests", "test --workspace --doc --locked"),
    ]
}

/// Runs every step, also after one has failed: one run tells everything that is wrong.
fn test() -> ExitCode {
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut failed = 0;
    for step in steps() {
        let began = Instant::now();
        let verdict = match step.run() {
            Ok(true) => "ok".to_owned(),
            Ok(false) => "FAILED".to_owned(),
            Err(error) => format!("FAILED: {error}"),
        };
        failed += u32::from(verdict != "ok");
        lines.push(format!("{:<22} {:>7}  {verdict}", step.name, seconds(began.elapsed())));
    }
    println!("\n{}", lines.join("\n"));
    println!("{:<22} {:>7}", "all", seconds(started.elapsed()));
    if failed == 0 {
        println!("test result: ok");
        ExitCode::SUCCESS
    } else {
        println!("test result: FAILED, {failed} of {} steps", lines.len());
        ExitCode::FAILURE
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
