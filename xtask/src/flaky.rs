//! `cargo xtask flaky`: repeats all tests in random order on a busy machine. A test that fails here
//! and passes alone depends on other tests or on timing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::cargo::cargo;
use crate::mutants::root;
use crate::report::Report;
use crate::test::{reports, require_nextest};

/// Tests are ordered by the last letter of their names. Each round draws a priority per letter.
const LETTERS: std::ops::RangeInclusive<char> = 'a'..='z';

/// Repeats all tests for this long.
pub(crate) fn repeat(minutes: u64) -> anyhow::Result<bool> {
    require_nextest()?;
    build()?;
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

/// Builds the tests: what compiles needs no busy machine.
fn build() -> anyhow::Result<()> {
    let status = cargo()
        .args(["nextest", "run", "--workspace", "--all-targets", "--locked", "--no-run"])
        .env("CARGO_TERM_PROGRESS_WHEN", "never")
        .status()?;
    ensure!(status.success(), "the tests do not compile");
    Ok(())
}

/// Runs every test once; returns the names of those that failed.
fn round(number: u32) -> anyhow::Result<Vec<String>> {
    let folder = reports();
    fs::create_dir_all(&folder)?;
    let config = folder.join("flaky.toml");
    let shared = fs::read_to_string(root().join(".config/nextest.toml"))?;
    fs::write(&config, shared + &random_profile(random))?;
    let xml = folder.join("flaky/tests.xml");
    let _ = fs::remove_file(&xml);
    eprintln!("\n── round {number}, ordered by {}", config.display());
    let busy = BusyThreads::start();
    let mut tests = cargo();
    tests.args(["nextest", "run", "--workspace", "--all-targets", "--locked"]);
    tests.args(["--profile", "flaky", "--config-file"]).arg(&config);
    let status = tests.env("CARGO_TERM_PROGRESS_WHEN", "never").status()?;
    drop(busy);
    let report = Report::parse(&fs::read_to_string(&xml).context("the tests did not run")?);
    if report.failed().is_empty() && !status.success() {
        bail!("the run failed but reports no failed test");
    }
    Ok(report.failed().to_vec())
}

/// A nextest profile with a random order and a random number of parallel tests.
fn random_profile(mut random: impl FnMut(u64) -> u64) -> String {
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

/// A random number below `bound`.
fn random(bound: u64) -> u64 {
    RandomState::new().build_hasher().finish() % bound
}

/// One spinning thread per core, so that tests compete for processor time.
struct BusyThreads {
    threads: Vec<thread::JoinHandle<()>>,
}

static STOPPED: AtomicBool = AtomicBool::new(false);

impl BusyThreads {
    fn start() -> BusyThreads {
        STOPPED.store(false, Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = || {
            while !STOPPED.load(Relaxed) {
                spin_loop();
            }
        };
        BusyThreads { threads: (0..cores).map(|_| thread::spawn(spin)).collect() }
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        STOPPED.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A spinning thread cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_gets_a_valid_nextest_priority() {
        for drawn in [0, 200] {
            let text = random_profile(|bound| drawn.min(bound - 1));
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
