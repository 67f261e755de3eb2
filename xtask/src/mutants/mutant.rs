//! A planted fault: what is exchanged where, and what has to notice.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

/// What has to fail, where a mutant does not say it.
const USUAL_TEST: &str = "cargo test --package longshore-queue --lib";

/// One planted fault, as its file has it.
#[derive(Clone, Debug, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// The file's name without its ending.
    #[serde(skip)]
    pub(crate) name: String,
    /// The guarantee that no longer holds with it.
    pub(crate) breaks: String,
    /// The file that is changed, from the root of the repository.
    pub(crate) file: String,
    /// Text that is there exactly once.
    pub(crate) find: String,
    /// What stands there instead.
    pub(crate) replace: String,
    /// The command that has to fail, its words parted by blanks.
    #[serde(default = "usual_test")]
    pub(crate) test: String,
}

fn usual_test() -> String {
    USUAL_TEST.to_owned()
}

impl Mutant {
    pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Mutant> {
        let mut mutant: Mutant = toml::from_str(text).with_context(|| format!("mutant {name}"))?;
        name.clone_into(&mut mutant.name);
        ensure!(!mutant.breaks.trim().is_empty(), "mutant {name}: says not what it breaks");
        ensure!(!mutant.find.trim().is_empty(), "mutant {name}: nothing to find");
        ensure!(mutant.find != mutant.replace, "mutant {name}: changes nothing");
        ensure!(
            mutant.words().first() == Some(&"cargo"),
            "mutant {name}: '{}' is no command of cargo's",
            mutant.test
        );
        ensure!(!mutant.package().is_empty(), "mutant {name}: its test names no --package");
        Ok(mutant)
    }

    /// Every mutant of a folder, by name.
    pub(crate) fn all(folder: &Path) -> anyhow::Result<Vec<Mutant>> {
        let mut mutants = Vec::new();
        let listed = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        for entry in listed {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            if path.extension().is_some_and(|ending| ending == "toml") {
                let text = std::fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                mutants.push(Mutant::parse(name, &text)?);
            }
        }
        mutants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(mutants)
    }

    /// The text with the fault in it. An error if the code has moved on and the place is no longer
    /// there, or no longer one.
    pub(crate) fn apply(&self, text: &str) -> anyhow::Result<String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            0 => bail!("stale: {} has no such text any more", self.file),
            n => bail!("stale: {} has that text {n} times", self.file),
        }
    }

    /// The same, with the file's text below `root`.
    pub(crate) fn apply_below(&self, root: &Path) -> anyhow::Result<String> {
        let file = root.join(&self.file);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("stale: cannot read {}", self.file))?;
        self.apply(&text)
    }

    /// True if one of these files is the fault's own, or lies in the crate that it breaks.
    pub(crate) fn is_touched_by(&self, files: &BTreeSet<String>) -> bool {
        let own = format!("xtask/mutants/{}.toml", self.name);
        let in_crate = |file: &String| file.split('/').next() == self.file.split('/').next();
        files.contains(&own) || files.iter().any(in_crate)
    }

    /// The package whose tests have to fail.
    pub(crate) fn package(&self) -> &str {
        let words = self.test.split_whitespace();
        words.skip_while(|word| *word != "--package").nth(1).unwrap_or_default()
    }

    /// The words of the command that has to fail.
    pub(crate) fn words(&self) -> Vec<&str> {
        self.test.split_whitespace().collect()
    }
}

/// The command that only builds what `test` runs: a fault that does not compile is no fault that
/// was noticed.
pub(crate) fn build_only<'a>(test: &[&'a str]) -> Vec<&'a str> {
    let own = test.iter().position(|word| *word == "--").unwrap_or(test.len());
    let mut words = test[..own].to_vec();
    words.push("--no-run");
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(find: &str, replace: &str) -> Mutant {
        let text = format!("breaks = 'x'\nfile = 'a.rs'\nfind = '{find}'\nreplace = '{replace}'\n");
        Mutant::parse("m", &text).unwrap()
    }

    #[test]
    fn the_text_is_exchanged_where_it_stands_once() {
        let mutant = mutant("sync()?;", "");
        assert_eq!(mutant.apply("a; sync()?; b").unwrap(), "a;  b");
        assert_eq!(mutant.words(), ["cargo", "test", "--package", "longshore-queue", "--lib"]);
    }

    #[test]
    fn a_fault_is_touched_by_its_crate_and_by_its_own_file() {
        let mut mutant = mutant("a", "b");
        mutant.file = "queue/src/a.rs".to_owned();
        let touched = |file: &str| mutant.is_touched_by(&BTreeSet::from([file.to_owned()]));
        assert!(touched("queue/src/b.rs") && touched("xtask/mutants/m.toml"));
        assert!(!touched("queues/src/b.rs") && !touched("xtask/mutants/n.toml"));
    }

    #[test]
    fn a_place_that_is_gone_or_not_the_only_one_is_stale() {
        let mutant = mutant("sync()?;", "");
        for text in ["nothing", "sync()?; sync()?;"] {
            let error = mutant.apply(text).unwrap_err().to_string();
            assert!(error.starts_with("stale: a.rs"), "{error}");
        }
    }

    #[test]
    fn what_cannot_break_anything_is_refused() {
        for text in [
            "breaks = 'x'\nfile = 'a'\nfind = 'x'\nreplace = 'x'",
            "breaks = ' '\nfile = 'a'\nfind = 'x'\nreplace = 'y'",
            "breaks = 'x'\nfile = 'a'\nfind = ''\nreplace = 'y'",
            "breaks = 'x'\nfile = 'a'\nfind = 'x'\nreplace = 'y'\ntest = 'rm -r x'",
            "breaks = 'x'\nfile = 'a'\nfind = 'x'\nreplace = 'y'\ntest = 'cargo test'",
            "breaks = 'x'\nfile = 'a'\nfind = 'x'\nreplace = 'y'\nunknown = 1",
            "file = 'a'\nfind = 'x'\nreplace = 'y'",
        ] {
            assert!(Mutant::parse("m", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_build_has_no_words_for_the_tests_themselves() {
        let words = build_only(&["cargo", "test", "--lib", "--", "--exact", "name"]);
        assert_eq!(words, ["cargo", "test", "--lib", "--no-run"]);
        assert_eq!(build_only(&["cargo", "test"]), ["cargo", "test", "--no-run"]);
    }
}
