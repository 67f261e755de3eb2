//! A planted fault: which text it replaces, and which test must detect it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

/// The command that must fail, for mutants that name none.
const DEFAULT_TEST: &str = "cargo test --package longshore-queue --lib";

/// One planted fault, as its file defines it.
#[derive(Clone, Debug, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// The file's name without its extension.
    #[serde(skip)]
    pub(crate) name: String,
    /// The guarantee that the fault breaks.
    pub(crate) breaks: String,
    /// The file to change, relative to the repository's root.
    pub(crate) file: String,
    /// Text that the file contains exactly once.
    pub(crate) find: String,
    /// The replacement.
    pub(crate) replace: String,
    /// The command that must fail, with its words separated by spaces.
    #[serde(default = "default_test")]
    pub(crate) test: String,
}

fn default_test() -> String {
    DEFAULT_TEST.to_owned()
}

impl Mutant {
    pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Mutant> {
        let mut mutant: Mutant = toml::from_str(text).with_context(|| format!("mutant {name}"))?;
        name.clone_into(&mut mutant.name);
        ensure!(!mutant.breaks.trim().is_empty(), "mutant {name}: 'breaks' is empty");
        ensure!(!mutant.find.trim().is_empty(), "mutant {name}: 'find' is empty");
        ensure!(mutant.find != mutant.replace, "mutant {name}: 'find' and 'replace' are equal");
        ensure!(
            mutant.words().first() == Some(&"cargo"),
            "mutant {name}: '{}' is not a cargo command",
            mutant.test
        );
        ensure!(!mutant.package().is_empty(), "mutant {name}: 'test' has no --package");
        let (default, file) = (mutant.test == DEFAULT_TEST, &mutant.file);
        ensure!(
            !default || file.starts_with("queue/"),
            "mutant {name}: {file} is not of the queue, whose tests are the default; write 'test'"
        );
        Ok(mutant)
    }

    /// Every mutant of a folder, by name.
    pub(crate) fn all(folder: &Path) -> anyhow::Result<Vec<Mutant>> {
        let mut mutants = Vec::new();
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let text = std::fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                mutants.push(Mutant::parse(name, &text)?);
            }
        }
        mutants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(mutants)
    }

    /// The text with the fault planted. Fails if `text` does not contain the text to replace
    /// exactly once.
    pub(crate) fn apply(&self, text: &str) -> anyhow::Result<String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            0 => bail!("stale: {} no longer contains the text", self.file),
            n => bail!("stale: {} contains the text {n} times", self.file),
        }
    }

    /// Like [`Mutant::apply`], with the text of the file below `root`.
    pub(crate) fn apply_below(&self, root: &Path) -> anyhow::Result<String> {
        let file = root.join(&self.file);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("stale: cannot read {}", self.file))?;
        self.apply(&text)
    }

    /// True if one of these files defines the fault or is in the crate that it breaks.
    pub(crate) fn is_affected_by(&self, files: &BTreeSet<String>) -> bool {
        let own = format!("xtask/mutants/{}.toml", self.name);
        let in_crate = |file: &String| file.split('/').next() == self.file.split('/').next();
        files.contains(&own) || files.iter().any(in_crate)
    }

    /// The package whose tests must fail.
    pub(crate) fn package(&self) -> &str {
        let words = self.test.split_whitespace();
        words.skip_while(|word| *word != "--package").nth(1).unwrap_or_default()
    }

    /// The words of the command that must fail.
    pub(crate) fn words(&self) -> Vec<&str> {
        self.test.split_whitespace().collect()
    }
}

/// The command that builds what `test` runs without running it. A fault that does not compile does
/// not count as caught.
pub(crate) fn build_only<'a>(test: &[&'a str]) -> Vec<&'a str> {
    let end = test.iter().position(|word| *word == "--").unwrap_or(test.len());
    let mut words = test[..end].to_vec();
    words.push("--no-run");
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(find: &str, replace: &str) -> Mutant {
        let text =
            format!("breaks = 'x'\nfile = 'queue/a.rs'\nfind = '{find}'\nreplace = '{replace}'\n");
        Mutant::parse("m", &text).unwrap()
    }

    #[test]
    fn a_mutant_replaces_its_text_once() {
        let mutant = mutant("sync()?;", "");
        assert_eq!(mutant.apply("a; sync()?; b").unwrap(), "a;  b");
        assert_eq!(mutant.words(), ["cargo", "test", "--package", "longshore-queue", "--lib"]);
    }

    #[test]
    fn changes_to_its_crate_or_file_select_a_mutant() {
        let mut mutant = mutant("a", "b");
        mutant.file = "queue/src/a.rs".to_owned();
        let affected_by = |file: &str| mutant.is_affected_by(&BTreeSet::from([file.to_owned()]));
        assert!(affected_by("queue/src/b.rs") && affected_by("xtask/mutants/m.toml"));
        assert!(!affected_by("queues/src/b.rs") && !affected_by("xtask/mutants/n.toml"));
    }

    #[test]
    fn missing_or_repeated_text_makes_a_mutant_stale() {
        let mutant = mutant("sync()?;", "");
        for text in ["nothing", "sync()?; sync()?;"] {
            let error = mutant.apply(text).unwrap_err().to_string();
            assert!(error.starts_with("stale: queue/a.rs"), "{error}");
        }
    }

    #[test]
    fn invalid_mutants_are_refused() {
        for text in [
            "breaks = 'x'\nfile = 'queue/a'\nfind = 'x'\nreplace = 'x'",
            "breaks = ' '\nfile = 'queue/a'\nfind = 'x'\nreplace = 'y'",
            "breaks = 'x'\nfile = 'queue/a'\nfind = ''\nreplace = 'y'",
            "breaks = 'x'\nfile = 'queue/a'\nfind = 'x'\nreplace = 'y'\ntest = 'rm -r x'",
            "breaks = 'x'\nfile = 'queue/a'\nfind = 'x'\nreplace = 'y'\ntest = 'cargo test'",
            "breaks = 'x'\nfile = 'queue/a'\nfind = 'x'\nreplace = 'y'\nunknown = 1",
            "file = 'queue/a'\nfind = 'x'\nreplace = 'y'",
            "breaks = 'x'\nfile = 'access/a'\nfind = 'x'\nreplace = 'y'",
        ] {
            assert!(Mutant::parse("m", text).is_err(), "{text}");
        }
    }

    #[test]
    fn build_only_drops_test_arguments() {
        let words = build_only(&["cargo", "test", "--lib", "--", "--exact", "name"]);
        assert_eq!(words, ["cargo", "test", "--lib", "--no-run"]);
        assert_eq!(build_only(&["cargo", "test"]), ["cargo", "test", "--no-run"]);
    }
}
