//! `cargo xtask mutants`: plants faults, one after another, and demands that the suite fails on
//! each.
//!
//! A fault is a file in `xtask/mutants/`. It is planted in a copy of the tree that has a build
//! folder of its own, both kept between runs. So are the verdicts: a run that was interrupted
//! goes on where it stopped, for every fault whose crates are the same.

mod copy;
mod mutant;
mod run;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use self::mutant::{Mutant, build_only};
use self::run::{Ended, Verdict, run};
use self::verdicts::Verdicts;
use crate::test::{seconds, target};

/// How long a suite may take with a fault in it: this, plus …
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// … this many times what it takes without one.
const HANGS_AFTER_TIMES: u32 = 5;

/// What was asked for.
#[derive(Default, PartialEq, Eq, Debug)]
struct Asked {
    list: bool,
    only: Vec<String>,
    /// Only faults of crates that have changed since this revision.
    since: Option<String>,
}

/// The command, with what stands behind its name.
pub(crate) fn command(arguments: &[&str]) -> ExitCode {
    let done = Asked::parse(arguments).and_then(|asked| {
        let mut mutants = asked.choose(Mutant::all(&folder())?)?;
        if let Some(revision) = &asked.since {
            let touched = touched_since(&root(), revision)?;
            mutants.retain(|mutant| mutant.is_touched_by(&touched));
        }
        if asked.list { Ok(list(&mutants)) } else { try_all(&mutants) }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Asked {
    fn parse(arguments: &[&str]) -> anyhow::Result<Asked> {
        let mut asked = Asked::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => asked.list = true,
                "--only" => asked.only.push((*words.next().context("--only NAME")?).to_owned()),
                "--since" => asked.since = Some((*words.next().context("--since REV")?).to_owned()),
                other => bail!("'{other}' is not understood: --list, --only NAME, --since REV"),
            }
        }
        Ok(asked)
    }

    fn choose(&self, all: Vec<Mutant>) -> anyhow::Result<Vec<Mutant>> {
        if let Some(name) = self.only.iter().find(|name| all.iter().all(|m| &m.name != *name)) {
            bail!("there is no mutant '{name}': cargo xtask mutants --list");
        }
        let asked_for = |m: &Mutant| self.only.is_empty() || self.only.contains(&m.name);
        Ok(all.into_iter().filter(asked_for).collect())
    }
}

/// The repository's folder.
pub(crate) fn root() -> PathBuf {
    // This crate's folder lies in the repository's.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn folder() -> PathBuf {
    root().join("xtask/mutants")
}

/// The files that differ from `revision`, from the root of the repository.
fn touched_since(root: &Path, revision: &str) -> anyhow::Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["diff", "--name-only", "--no-renames", revision, "--"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git cannot compare with {revision}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Says of each whether its place is still there, once. Builds nothing.
fn list(mutants: &[Mutant]) -> bool {
    let mut all = true;
    for mutant in mutants {
        let state = match mutant.apply_below(&root()) {
            Ok(_) => "applies".to_owned(),
            Err(error) => {
                all = false;
                error.to_string()
            }
        };
        println!("{:<34} {:<8}  {}", mutant.name, state, mutant.breaks.trim());
    }
    all
}

/// Where faults are planted and built.
struct Bed {
    tree: PathBuf,
    target: PathBuf,
    logs: PathBuf,
    /// What suites take that find nothing, and why one is of no use, by command.
    suites: BTreeMap<String, Result<Duration, String>>,
}

fn try_all(mutants: &[Mutant]) -> anyhow::Result<bool> {
    let above = target()?.join("mutants");
    let mut bed = Bed {
        tree: above.join("tree"),
        target: above.join("target"),
        logs: above.join("logs"),
        suites: BTreeMap::new(),
    };
    let digests = copy::refresh(&root(), &bed.tree)?;
    fs::create_dir_all(&bed.logs)?;
    let mut verdicts = Verdicts::open(&above.join("verdicts"), &bed.tree, digests)?;
    // All suites without a fault first: each needs the sound tree built only once.
    let open: Vec<&Mutant> = mutants.iter().filter(|m| verdicts.of(m).is_none()).collect();
    for mutant in &open {
        // What fails here is reported with its fault.
        let _ = bed.passes_without(&mutant.test)?;
    }
    let mut lines = Vec::new();
    let mut not_caught = 0;
    for mutant in mutants {
        let began = Instant::now();
        let text = match verdicts.of(mutant) {
            Some(known) => format!("{known} (known)"),
            None => {
                let verdict = bed.verdict(mutant)?;
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
        println!("every one of {} planted faults was caught", lines.len());
    } else {
        println!("{not_caught} of {} planted faults were NOT caught", lines.len());
    }
    println!("what the suites printed: {}", bed.logs.display());
    Ok(not_caught == 0)
}

impl Bed {
    fn verdict(&mut self, mutant: &Mutant) -> anyhow::Result<Verdict> {
        let faulty = match mutant.apply_below(&self.tree) {
            Ok(faulty) => faulty,
            Err(error) => return Ok(Verdict::NotTried(error.to_string())),
        };
        let usual = match self.passes_without(&mutant.test)? {
            Ok(usual) => usual,
            Err(why) => return Ok(Verdict::NotTried(why)),
        };
        let file = self.tree.join(&mutant.file);
        let sound = fs::read(&file)?;
        fs::write(&file, faulty).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("── {}: {}", mutant.name, mutant.breaks.trim());
        let verdict = self.try_one(mutant, HANGS_AFTER + usual * HANGS_AFTER_TIMES);
        fs::write(&file, sound).with_context(|| format!("cannot restore {}", file.display()))?;
        verdict
    }

    fn try_one(&self, mutant: &Mutant, within: Duration) -> anyhow::Result<Verdict> {
        let log = self.logs.join(format!("{}.log", mutant.name));
        let words = mutant.words();
        if self.run(&build_only(&words), &log, None)? != Ended::Well {
            let why = format!("it does not compile, see {}", log.display());
            return Ok(Verdict::NotTried(why));
        }
        let ended = self.run(&words, &log, Some(within))?;
        Ok(Verdict::of(ended, &String::from_utf8_lossy(&fs::read(&log)?)))
    }

    /// How long a suite takes without any fault. One that fails then says nothing with one.
    fn passes_without(&mut self, test: &str) -> anyhow::Result<Result<Duration, String>> {
        if let Some(known) = self.suites.get(test) {
            return Ok(known.clone());
        }
        eprintln!("── without a fault: {test}");
        let words: Vec<&str> = test.split_whitespace().collect();
        let log = self.logs.join(format!("without-a-fault-{}.log", self.suites.len()));
        let built = self.run(&build_only(&words), &log, None)?;
        let began = Instant::now();
        let passes = if built == Ended::Well && self.run(&words, &log, None)? == Ended::Well {
            Ok(began.elapsed())
        } else {
            Err(format!("'{test}' fails without a fault, see {}", log.display()))
        };
        self.suites.insert(test.to_owned(), passes.clone());
        Ok(passes)
    }

    fn run(&self, words: &[&str], log: &Path, within: Option<Duration>) -> anyhow::Result<Ended> {
        run(words, &self.tree, &self.target, log, within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood() {
        let asked = Asked::parse(&["--list", "--only", "a", "--only", "b"]).unwrap();
        let only = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(asked, Asked { list: true, only, since: None });
        assert_eq!(Asked::parse(&["--since", "v1"]).unwrap().since.as_deref(), Some("v1"));
        assert!(Asked::parse(&["--only"]).is_err());
        assert!(Asked::parse(&["a"]).is_err());
    }

    #[test]
    fn a_name_that_is_none_is_an_error_and_none_means_all() {
        let all = Mutant::all(&folder()).unwrap();
        let names = |chosen: Vec<Mutant>| chosen.into_iter().map(|m| m.name).collect::<Vec<_>>();
        let one = Asked { only: vec![all[0].name.clone()], ..Asked::default() };
        assert_eq!(names(one.choose(all.clone()).unwrap()), [all[0].name.as_str()]);
        assert_eq!(Asked::default().choose(all.clone()).unwrap().len(), all.len());
        let none = Asked { only: vec!["none".to_owned()], ..Asked::default() };
        assert!(none.choose(all).is_err());
    }
}
