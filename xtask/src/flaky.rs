//! `cargo xtask flaky`: every test again and again, in random order, beside a busy machine. A test
//! that fails here and not alone depends on its neighbours or on the clock.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::hint::spin_loop;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::mutants::root;
use crate::report::Report;
use crate::test::{require_nextest, target};

/// How long it goes on unless `--minutes` asks for something else; the last round is finished.
const MINUTES: u64 = 60;
/// Tests are ordered by the last letter of their names, each of which has a priority drawn anew.
const LETTERS: std::ops::RangeInclusive<char> = 'a'..='z';

pub(crate) fn command(arguments: &[&str]) -> ExitCode {
    match run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> anyhow::Result<bool> {
    let minutes = match arguments {
        [] => MINUTES,
        ["--minutes", number] => number.parse().with_context(|| format!("--minutes {number}"))?,
        _ => bail!("understood is: --minutes NUMBER"),
    };
    require_nextest()?;
    let (until, mut rounds) = (Instant::now() + Duration::from_secs(minutes * 60), 0);
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    while rounds == 0 || Instant::now() < until {
        rounds += 1;
        for name in round(rounds)? {
            *failures.entry(name).or_default() += 1;
        }
    }
    for (name, times) in &failures {
        println!("{times:>4} of {rounds}  {name}");
    }
    println!("{} tests failed in {rounds} rounds", failures.len());
    Ok(failures.is_empty())
}

/// Runs every test once; returns the names of those that failed.
fn round(number: u32) -> anyhow::Result<Vec<String>> {
    let folder = target()?.join("nextest");
    fs::create_dir_all(&folder)?;
    let config = folder.join("flaky.toml");
    let usual = fs::read_to_string(root().join(".config/nextest.toml"))?;
    fs::write(&config, usual + &shuffled(random))?;
    let xml = folder.join("flaky/tests.xml");
    let _ = fs::remove_file(&xml);
    eprintln!("\n── round {number}, ordered by {}", config.display());
    let busy = Busy::begin();
    let mut tests = Command::new("cargo");
    tests.args(["nextest", "run", "--workspace", "--all-targets", "--locked"]);
    tests.args(["--profile", "flaky", "--config-file"]).arg(&config);
    let status = tests.env("CARGO_TERM_PROGRESS_WHEN", "never").status()?;
    drop(busy);
    let report = Report::parse(&fs::read_to_string(&xml).context("the tests did not run")?);
    if report.failed().is_empty() && !status.success() {
        bail!("the run failed, and names no test");
    }
    Ok(report.failed().to_vec())
}

/// A profile of nextest's with a random order and a random number of tests at once.
fn shuffled(mut random: impl FnMut(u64) -> u64) -> String {
    let mut text = format!("\n[profile.flaky]\ntest-threads = {}\n", 2 + random(7));
    for letter in LETTERS {
        let priority = i64::try_from(random(201)).unwrap_or(0) - 100;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[profile.flaky.overrides]]\nfilter = 'test(/{letter}$/)'\npriority = {priority}\n"
        );
    }
    text
}

/// A number below `bound`.
fn random(bound: u64) -> u64 {
    RandomState::new().build_hasher().finish() % bound
}

/// One thread for each core that does nothing but take its time.
struct Busy {
    threads: Vec<thread::JoinHandle<()>>,
}

static ENDED: AtomicBool = AtomicBool::new(false);

impl Busy {
    fn begin() -> Busy {
        ENDED.store(false, Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = || {
            while !ENDED.load(Relaxed) {
                spin_loop();
            }
        };
        Busy { threads: (0..cores).map(|_| thread::spawn(spin)).collect() }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        ENDED.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // It only spins, and cannot have panicked.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_has_a_priority_that_nextest_takes() {
        for drawn in [0, 200] {
            let text = shuffled(|bound| drawn.min(bound - 1));
            let config: toml::Table = toml::from_str(&text).unwrap();
            let flaky = &config["profile"]["flaky"];
            assert!((2..=8).contains(&flaky["test-threads"].as_integer().unwrap()));
            let overrides = flaky["overrides"].as_array().unwrap();
            assert_eq!(overrides.len(), 26);
            let priority = overrides[0]["priority"].as_integer().unwrap();
            assert!([-100, 100].contains(&priority));
        }
    }
}
