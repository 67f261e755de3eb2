//! Which faults were caught in which tree: kept in a file, one line for each, so that an
//! interrupted run goes on where it stopped.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context as _;

use super::mutant::Mutant;

/// The faults that were caught.
pub(crate) struct Verdicts {
    tree: u64,
    file: File,
    /// By digest of tree and fault.
    caught: BTreeMap<String, String>,
}

impl Verdicts {
    /// Reads the file, of which only what was found in this `tree` counts.
    pub(crate) fn open(path: &Path, tree: u64) -> anyhow::Result<Verdicts> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let caught = text.lines().filter_map(|line| line.split_once(' '));
        let caught = caught.map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Verdicts { tree, file, caught })
    }

    /// How this fault was caught, if it was.
    pub(crate) fn of(&self, mutant: &Mutant) -> Option<&str> {
        self.caught.get(&self.key(mutant)).map(String::as_str)
    }

    /// Remembers how it was.
    pub(crate) fn add(&mut self, mutant: &Mutant, text: &str) -> anyhow::Result<()> {
        let key = self.key(mutant);
        writeln!(self.file, "{key} {text}").context("cannot write the verdicts")?;
        self.caught.insert(key, text.to_owned());
        Ok(())
    }

    fn key(&self, mutant: &Mutant) -> String {
        let mut digest = DefaultHasher::new();
        (self.tree, mutant).hash(&mut digest);
        format!("{:016x}", digest.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_for_its_tree_and_its_fault_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("verdicts");
        let text = "breaks = 'x'\nfile = 'a.rs'\nfind = 'a'\nreplace = 'b'\n";
        let fault = Mutant::parse("m", text).unwrap();
        let other = Mutant::parse("n", text).unwrap();
        Verdicts::open(&path, 1).unwrap().add(&fault, "caught by a").unwrap();
        let again = Verdicts::open(&path, 1).unwrap();
        assert_eq!(again.of(&fault), Some("caught by a"));
        assert_eq!(again.of(&other), None);
        assert_eq!(Verdicts::open(&path, 2).unwrap().of(&fault), None);
    }
}
