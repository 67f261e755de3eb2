//! `cargo xtask test`: every check that a change must pass.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::cargo::{cargo, without_package};
use crate::mutants::root;
use crate::report::Report;

/// How many of the slowest tests to print.
const SLOWEST: usize = 20;

/// The numbers of cases that randomized suites run with `--long`. Their defaults are smaller.
const LONG: [(&str, &str); 9] = [
    ("LONGSHORE_LONG", "1"),
    ("LONGSHORE_MODEL_CASES", "100000"),
    ("LONGSHORE_POWER_CUTS", "10000"),
    ("LONGSHORE_BIT_FLIPS", "10000"),
    ("LONGSHORE_SHORTAGES", "3000"),
    ("LONGSHORE_WORKED_OFF", "300"),
    ("LONGSHORE_UNSYNCED_CUTS", "5000"),
    ("LONGSHORE_LOSSES", "2000"),
    ("LONGSHORE_ROTTEN_SNAPSHOTS", "2000"),
];

/// One check.
struct Step {
    name: &'static str,
    command: Vec<String>,
    environment: &'static [(&'static str, &'static str)],
}

impl Step {
    fn cargo(name: &'static str, arguments: &str) -> Step {
        let words = std::iter::once("cargo").chain(arguments.split(' '));
        Step { name, command: words.map(str::to_owned).collect(), environment: &[] }
    }

    /// Runs the command; its output goes to the terminal.
    fn run(&self) -> anyhow::Result<bool> {
        eprintln!("\n── {}: {}", self.name, self.command.join(" "));
        let (program, arguments) = self.command.split_at(1);
        let mut command = without_package(&program[0]);
        // Logs should contain no progress bars.
        command.args(arguments).env("CARGO_TERM_PROGRESS_WHEN", "never");
        command.envs(self.environment.iter().copied());
        Ok(command.status()?.success())
    }
}

fn steps(long: bool) -> Vec<Step> {
    let tests = "nextest run --workspace --all-targets --locked";
    let tests = if long {
        let tests = Step::cargo("tests", &format!("{tests} --profile long"));
        Step { environment: &LONG, ..tests }
    } else {
        Step::cargo("tests", tests)
    };
    vec![
        Step::cargo("formatting", "fmt --all --check"),
        Step::cargo("planted faults apply", "xtask mutants --list"),
        Step::cargo("clippy", "clippy --workspace --all-targets --locked -- --deny warnings"),
        Step::cargo("a worker alone", "check -p longshore --no-default-features --features worker"),
        Step::cargo(
            "the least program",
            "clippy -p longshore-cli --no-default-features --locked -- --deny warnings",
        ),
        // These are separate workspaces. Without netidx, which needs Kerberos.
        Step::cargo("fuzz compiles", "check --manifest-path fuzz/Cargo.toml --target-dir target"),
        Step::cargo(
            "bench compiles",
            "check --manifest-path bench/Cargo.toml --no-default-features --target-dir target",
        ),
        tests,
        Step::cargo("costs are as counted", "xtask count"),
        Step::cargo("doc tests", "test --workspace --doc --locked"),
    ]
}

/// Runs every step, even after a failure, so that one run shows all failures.
pub(crate) fn run_all(long: bool) -> anyhow::Result<bool> {
    require_nextest()?;
    // Their tests pass without them, and nextest hides what those print.
    for program in ["tmux", "zsh"] {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("NOT TESTED: {program} is not installed, so its tests are skipped");
        }
    }
    let xml = reports().join(if long { "long" } else { "default" }).join("tests.xml");
    // If the tests do not compile, an old report must not be used.
    let _ = fs::remove_file(&xml);
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut failed = 0;
    for step in steps(long) {
        let began = Instant::now();
        let verdict = match step.run() {
            Ok(true) => "ok".to_owned(),
            Ok(false) => "FAILED".to_owned(),
            Err(error) => format!("FAILED: {error}"),
        };
        failed += u32::from(verdict != "ok");
        lines.push(format!("{:<22} {:>7}  {verdict}", step.name, seconds(began.elapsed())));
    }
    let report = Report::parse(&fs::read_to_string(&xml).unwrap_or_default());
    println!("\nthe {SLOWEST} slowest tests");
    for (name, time) in report.slowest(SLOWEST) {
        println!("{:>9}  {name}", seconds(*time));
    }
    println!("\n{}", lines.join("\n"));
    println!("{:<22} {:>7}", "all", seconds(started.elapsed()));
    let (passed, broken) = (report.passed(), report.failed().len());
    if failed == 0 {
        println!("test result: ok. {passed} passed; {broken} failed");
    } else {
        let of = lines.len();
        println!("test result: FAILED. {passed} passed; {broken} failed; {failed} of {of} steps");
    }
    Ok(failed == 0)
}

/// Fails with instructions if cargo-nextest is not installed.
pub(crate) fn require_nextest() -> anyhow::Result<()> {
    let found = cargo().args(["nextest", "--version"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    bail!("cargo-nextest is not installed, run: cargo install --locked cargo-nextest");
}

/// Where nextest writes its reports, wherever Cargo's build folder is.
pub(crate) fn reports() -> PathBuf {
    root().join("target/nextest")
}

/// Cargo's build folder.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    let folder = std::env::var_os("CARGO_TARGET_DIR");
    Ok(std::path::absolute(folder.map_or_else(|| root().join("target"), PathBuf::from))?)
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
