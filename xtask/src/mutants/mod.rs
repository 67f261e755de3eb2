//! `cargo xtask mutants`: plants one fault at a time and requires that the suite fails on it.
//!
//! A fault is a file in `xtask/mutants/`. It is planted in a copy of the tree with its own build
//! folder. The copy, the builds and the verdicts are reused: a run after an interrupted one skips
//! every caught fault whose crates are unchanged.

mod copy;
mod mutant;
mod run;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use self::mutant::{Mutant, build_only};
use self::run::{RunResult, Verdict, run};
use self::verdicts::Verdicts;
use crate::test::{seconds, target};

/// A suite with a planted fault may take this long, plus …
const TIMEOUT_BASE: Duration = Duration::from_secs(60);
/// … this many times its duration without the fault.
const TIMEOUT_FACTOR: u32 = 5;

/// Which faults, and what to do with them.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Only check that the text of each is still there
    #[arg(long)]
    list: bool,
    /// Only this one
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only faults in crates that changed since this revision
    #[arg(long, value_name = "REV")]
    since: Option<String>,
}

/// Tries or lists the selected faults.
pub(crate) fn run_selected(options: &Options) -> anyhow::Result<bool> {
    let mut mutants = options.choose(Mutant::all(&folder())?)?;
    if let Some(revision) = &options.since {
        let changed = files_changed_since(&root(), revision)?;
        mutants.retain(|mutant| mutant.is_affected_by(&changed));
    }
    if options.list { Ok(list(&mutants)) } else { try_all(&mutants) }
}

impl Options {
    fn choose(&self, all: Vec<Mutant>) -> anyhow::Result<Vec<Mutant>> {
        if let Some(name) = self.only.iter().find(|name| all.iter().all(|m| &m.name != *name)) {
            bail!("no mutant '{name}', see cargo xtask mutants --list");
        }
        let is_selected = |m: &Mutant| self.only.is_empty() || self.only.contains(&m.name);
        Ok(all.into_iter().filter(is_selected).collect())
    }
}

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    // This crate is a top-level folder of the repository.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn folder() -> PathBuf {
    root().join("xtask/mutants")
}

/// The files that differ from `revision`, as paths relative to the root.
fn files_changed_since(root: &Path, revision: &str) -> anyhow::Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["diff", "--name-only", "--no-renames", revision, "--"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git cannot compare with {revision}: {stderr}");
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Prints for each mutant whether it still applies. Builds nothing.
fn list(mutants: &[Mutant]) -> bool {
    let mut all_apply = true;
    for mutant in mutants {
        let state = match mutant.apply_below(&root()) {
            Ok(_) => "applies".to_owned(),
            Err(error) => {
                all_apply = false;
                error.to_string()
            }
        };
        println!("{:<34} {:<8}  {}", mutant.name, state, mutant.breaks.trim());
    }
    all_apply
}

/// Plants faults in a copy of the tree, and builds and tests them there.
struct MutantRunner {
    tree: PathBuf,
    target: PathBuf,
    logs: PathBuf,
    /// By command: how long the suite takes without a fault, or why it fails.
    suites: BTreeMap<String, Result<Duration, String>>,
}

fn try_all(mutants: &[Mutant]) -> anyhow::Result<bool> {
    let above = target()?.join("mutants");
    let mut runner = MutantRunner {
        tree: above.join("tree"),
        target: above.join("target"),
        logs: above.join("logs"),
        suites: BTreeMap::new(),
    };
    let digests = copy::refresh(&root(), &runner.tree)?;
    fs::create_dir_all(&runner.logs)?;
    let mut verdicts = Verdicts::open(&above.join("verdicts"), &runner.tree, digests)?;
    // All suites first run without a fault, so that the unchanged tree is built only once.
    let open: Vec<&Mutant> = mutants.iter().filter(|m| verdicts.of(m).is_none()).collect();
    for mutant in &open {
        // A failure here is reported with each fault.
        let _ = runner.baseline(&mutant.test)?;
    }
    let mut lines = Vec::new();
    let mut not_caught = 0;
    for mutant in mutants {
        let began = Instant::now();
        let text = match verdicts.of(mutant) {
            Some(known) => format!("{known} (known)"),
            None => {
                let verdict = runner.verdict(mutant)?;
                not_caught += usize::from(!verdict.is_caught());
                if verdict.is_caught() {
                    verdicts.add(mutant, &verdict.text())?;
                }
                verdict.text()
            }
        };
        let time = seconds(began.elapsed());
        let line = format!("{:<34} {time:>8}  {text}", mutant.name);
        eprintln!("{line}");
        lines.push(line);
    }
    println!("\n{}", lines.join("\n"));
    if not_caught == 0 {
        println!("all {} planted faults were caught", lines.len());
    } else {
        println!("{not_caught} of {} planted faults were NOT caught", lines.len());
    }
    println!("output of the suites: {}", runner.logs.display());
    Ok(not_caught == 0)
}

impl MutantRunner {
    fn verdict(&mut self, mutant: &Mutant) -> anyhow::Result<Verdict> {
        let faulty = match mutant.apply_below(&self.tree) {
            Ok(faulty) => faulty,
            Err(error) => return Ok(Verdict::NotTried(error.to_string())),
        };
        let baseline = match self.baseline(&mutant.test)? {
            Ok(baseline) => baseline,
            Err(why) => return Ok(Verdict::NotTried(why)),
        };
        let file = self.tree.join(&mutant.file);
        let original = fs::read(&file)?;
        fs::write(&file, faulty).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("── {}: {}", mutant.name, mutant.breaks.trim());
        let verdict = self.run_with_fault(mutant, TIMEOUT_BASE + baseline * TIMEOUT_FACTOR);
        fs::write(&file, original).with_context(|| format!("cannot restore {}", file.display()))?;
        verdict
    }

    fn run_with_fault(&self, mutant: &Mutant, timeout: Duration) -> anyhow::Result<Verdict> {
        let log = self.logs.join(format!("{}.log", mutant.name));
        let words = mutant.words();
        if self.run(&build_only(&words), &log, None)? != RunResult::Passed {
            let why = format!("does not compile, see {}", log.display());
            return Ok(Verdict::NotTried(why));
        }
        let result = self.run(&words, &log, Some(timeout))?;
        Ok(Verdict::of(result, &String::from_utf8_lossy(&fs::read(&log)?)))
    }

    /// How long a suite takes without a fault. A suite that fails here cannot catch one.
    fn baseline(&mut self, test: &str) -> anyhow::Result<Result<Duration, String>> {
        if let Some(known) = self.suites.get(test) {
            return Ok(known.clone());
        }
        eprintln!("── without a fault: {test}");
        let words: Vec<&str> = test.split_whitespace().collect();
        let log = self.logs.join(format!("without-a-fault-{}.log", self.suites.len()));
        let built = self.run(&build_only(&words), &log, None)?;
        let began = Instant::now();
        let result =
            if built == RunResult::Passed && self.run(&words, &log, None)? == RunResult::Passed {
                Ok(began.elapsed())
            } else {
                Err(format!("'{test}' fails without a fault, see {}", log.display()))
            };
        self.suites.insert(test.to_owned(), result.clone());
        Ok(result)
    }

    fn run(
        &self,
        words: &[&str],
        log: &Path,
        timeout: Option<Duration>,
    ) -> anyhow::Result<RunResult> {
        run(words, &self.tree, &self.target, log, timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_errors_and_no_name_selects_all() {
        let all = Mutant::all(&folder()).unwrap();
        let names = |chosen: Vec<Mutant>| chosen.into_iter().map(|m| m.name).collect::<Vec<_>>();
        let one = Options { only: vec![all[0].name.clone()], ..Options::default() };
        assert_eq!(names(one.choose(all.clone()).unwrap()), [all[0].name.as_str()]);
        assert_eq!(Options::default().choose(all.clone()).unwrap().len(), all.len());
        let none = Options { only: vec!["none".to_owned()], ..Options::default() };
        assert!(none.choose(all).is_err());
    }
}
