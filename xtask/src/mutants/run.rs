//! Runs a suite against a planted fault, and says whether it noticed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// How often a running command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often what it printed is.
const READ_EVERY: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Well,
    Badly,
    /// It had not ended when its time was up, and was killed.
    Hung,
}

/// What became of a planted fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The suite failed, and these tests told why.
    Caught(Vec<String>),
    /// The suite did not come to its end.
    Hung,
    /// The suite passed as if nothing were wrong.
    Survived,
    /// It could not be tried, which is as bad.
    NotTried(String),
}

impl Verdict {
    /// Of a fault that was built, by how its suite ended and what it printed.
    pub(crate) fn of(ended: Ended, printed: &str) -> Verdict {
        match ended {
            Ended::Well => Verdict::Survived,
            Ended::Hung => Verdict::Hung,
            Ended::Badly => Verdict::Caught(failed_tests(printed)),
        }
    }

    pub(crate) fn is_caught(&self) -> bool {
        matches!(self, Verdict::Caught(_) | Verdict::Hung)
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Verdict::Caught(tests) => match &tests[..] {
                [] => "caught: the run failed".to_owned(),
                [one] => format!("caught by {one}"),
                [one, rest @ ..] => format!("caught by {one} and {} more", rest.len()),
            },
            Verdict::Hung => "caught: the tests hung".to_owned(),
            Verdict::Survived => "SURVIVED".to_owned(),
            Verdict::NotTried(why) => format!("NOT TRIED: {why}"),
        }
    }
}

/// The names in libtest's lines `test NAME ... FAILED`.
fn failed_tests(printed: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    printed.lines().filter_map(name).collect()
}

/// Runs a command in `folder`; everything that it prints goes to `log`. With a time `within` which
/// it is to end, it is ended at the first test that fails, too: one is enough, and the others may
/// hang.
pub(crate) fn run(
    words: &[&str],
    folder: &Path,
    target: &Path,
    log: &Path,
    within: Option<Duration>,
) -> anyhow::Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let (program, arguments) = words.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_TERM_PROGRESS_WHEN", "never")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // What hangs is ended with all that it started.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", words.join(" ")))?;
    let began = Instant::now();
    let mut read_at = began;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Ended::Well } else { Ended::Badly });
        }
        if within.is_some() && read_at.elapsed() >= READ_EVERY {
            read_at = Instant::now();
            if !failed_tests(&String::from_utf8_lossy(&fs::read(log)?)).is_empty() {
                kill_group(&mut child)?;
                return Ok(Ended::Badly);
            }
        }
        if within.is_some_and(|within| began.elapsed() >= within) {
            kill_group(&mut child)?;
            return Ok(Ended::Hung);
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn kill_group(child: &mut Child) -> anyhow::Result<()> {
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-KILL", "--", &group]).status().context("cannot run kill")?;
    // The group's leader, should the group not have been reached.
    let _ = child.kill();
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_suite_that_passes_lets_a_fault_survive() {
        let printed = "test a::b ... ok\ntest a::c ... FAILED\ntest a::d ... FAILED\n\nfailures:\n";
        let caught = Verdict::of(Ended::Badly, printed);
        assert_eq!(caught, Verdict::Caught(vec!["a::c".to_owned(), "a::d".to_owned()]));
        assert_eq!(caught.text(), "caught by a::c and 1 more");
        assert!(Verdict::of(Ended::Badly, "").is_caught());
        assert!(Verdict::of(Ended::Hung, "").is_caught());
        assert!(!Verdict::of(Ended::Well, printed).is_caught());
        assert!(!Verdict::NotTried("stale".to_owned()).is_caught());
    }

    #[test]
    fn a_command_ends_well_badly_or_when_its_time_is_up() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let ended = |words: &[&str], within| {
            run(words, folder.path(), folder.path(), &log, Some(Duration::from_secs(within)))
        };
        assert_eq!(ended(&["true"], 60).unwrap(), Ended::Well);
        assert_eq!(ended(&["false"], 60).unwrap(), Ended::Badly);
        assert_eq!(ended(&["sleep", "600"], 0).unwrap(), Ended::Hung);
        assert!(ended(&["no-such-program"], 60).is_err());
        let fails_and_hangs = ["sh", "-c", "echo 'test a ... FAILED'; sleep 600"];
        assert_eq!(ended(&fails_and_hangs, 300).unwrap(), Ended::Badly);
    }
}
