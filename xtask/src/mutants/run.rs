//! Runs a suite with a planted fault and decides whether the suite caught it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cargo::without_package;

/// How often to check whether a command has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How often to check its output for failed tests.
const LOG_READ_INTERVAL: Duration = Duration::from_secs(1);

/// Enough cases to find each planted fault; `cargo xtask test` runs fewer.
const CASES: [(&str, &str); 4] = [
    ("LONGSHORE_MODEL_CASES", "1000"),
    ("LONGSHORE_POWER_CUTS", "3000"),
    ("LONGSHORE_UNSYNCED_CUTS", "500"),
    ("LONGSHORE_WORKED_OFF", "15"),
];

/// Compiling takes most of the time: unoptimised and incrementally, a seventh. The faults are
/// caught as well by slower tests, which end at the first failure.
const UNOPTIMISED: [&str; 3] = [
    "--config=profile.test.package.longshore-protocol.opt-level=0",
    "--config=profile.test.package.longshore-queue.opt-level=0",
    "--config=profile.test.package.longshore-resolver.opt-level=0",
];

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunResult {
    Passed,
    Failed,
    /// The command was killed after its timeout.
    TimedOut,
}

/// The outcome of a planted fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The suite failed, in these tests.
    Caught(Vec<String>),
    /// The suite did not finish in time.
    Hung,
    /// The suite passed despite the fault.
    Survived,
    /// The fault could not be tested, which counts as not caught.
    NotTried(String),
}

/// What cargo prints of a test process that aborted.
const ABORTED: &str = "(signal: 6, SIGABRT";

impl Verdict {
    /// The verdict on a fault that compiles, from the result and output of its suite.
    pub(crate) fn of(result: RunResult, output: &str) -> Verdict {
        match result {
            RunResult::Passed => Verdict::Survived,
            RunResult::TimedOut => Verdict::Hung,
            // The disk may have been full, for instance.
            RunResult::Failed if failed_tests(output).is_empty() && !output.contains(ABORTED) => {
                Verdict::NotTried("the run failed without a failed test".to_owned())
            }
            RunResult::Failed => Verdict::Caught(failed_tests(output)),
        }
    }

    pub(crate) fn is_caught(&self) -> bool {
        matches!(self, Verdict::Caught(_) | Verdict::Hung)
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Verdict::Caught(tests) => match &tests[..] {
                [] => "caught: a test's process aborted".to_owned(),
                [one] => format!("caught by {one}"),
                [one, rest @ ..] => format!("caught by {one} and {} more", rest.len()),
            },
            Verdict::Hung => "caught: the tests timed out".to_owned(),
            Verdict::Survived => "SURVIVED".to_owned(),
            Verdict::NotTried(why) => format!("NOT TRIED: {why}"),
        }
    }
}

/// The names in libtest's lines `test NAME ... FAILED`.
fn failed_tests(output: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    output.lines().filter_map(name).collect()
}

/// Runs a command in `folder` and writes its output to `log`. With a `timeout`, it also ends the
/// command at the first failed test: one failure is enough, and the other tests may hang.
pub(crate) fn run(
    words: &[&str],
    folder: &Path,
    target: &Path,
    log: &Path,
    timeout: Option<Duration>,
) -> anyhow::Result<RunResult> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let (program, arguments) = words.split_first().context("no command")?;
    let mut command = without_package(program);
    if *program == "cargo" {
        command.args(UNOPTIMISED);
    }
    let mut child = command
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_TERM_PROGRESS_WHEN", "never")
        .env("CARGO_INCREMENTAL", "1")
        .envs(CASES.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // So that a command that hangs can be killed with all its child processes.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", words.join(" ")))?;
    let began = Instant::now();
    let mut read_at = began;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { RunResult::Passed } else { RunResult::Failed });
        }
        if timeout.is_some() && read_at.elapsed() >= LOG_READ_INTERVAL {
            read_at = Instant::now();
            if !failed_tests(&String::from_utf8_lossy(&fs::read(log)?)).is_empty() {
                kill_group(&mut child)?;
                return Ok(RunResult::Failed);
            }
        }
        if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
            kill_group(&mut child)?;
            return Ok(RunResult::TimedOut);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn kill_group(child: &mut Child) -> anyhow::Result<()> {
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-KILL", "--", &group]).status().context("cannot run kill")?;
    // In case killing the group failed, this kills at least its leader.
    let _ = child.kill();
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_survives_only_if_the_suite_passes() {
        let output = "test a::b ... ok\ntest a::c ... FAILED\ntest a::d ... FAILED\n\nfailures:\n";
        let caught = Verdict::of(RunResult::Failed, output);
        assert_eq!(caught, Verdict::Caught(vec!["a::c".to_owned(), "a::d".to_owned()]));
        assert_eq!(caught.text(), "caught by a::c and 1 more");
        assert!(!Verdict::of(RunResult::Failed, "").is_caught());
        let aborted = "process didn't exit successfully: `x` (signal: 6, SIGABRT: process abort)";
        assert!(Verdict::of(RunResult::Failed, aborted).is_caught());
        assert!(Verdict::of(RunResult::TimedOut, "").is_caught());
        assert!(!Verdict::of(RunResult::Passed, output).is_caught());
        assert!(!Verdict::NotTried("stale".to_owned()).is_caught());
    }

    #[test]
    fn a_run_passes_fails_or_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let result = |words: &[&str], seconds| {
            run(words, folder.path(), folder.path(), &log, Some(Duration::from_secs(seconds)))
        };
        assert_eq!(result(&["true"], 60).unwrap(), RunResult::Passed);
        assert_eq!(result(&["false"], 60).unwrap(), RunResult::Failed);
        assert_eq!(result(&["sleep", "600"], 0).unwrap(), RunResult::TimedOut);
        assert!(result(&["no-such-program"], 60).is_err());
        let fails_and_hangs = ["sh", "-c", "echo 'test a ... FAILED'; sleep 600"];
        assert_eq!(result(&fails_and_hangs, 300).unwrap(), RunResult::Failed);
    }
}
