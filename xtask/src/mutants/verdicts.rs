//! A file of the faults that were caught, each with the state of the crates that its test builds. A
//! run after an interrupted one skips them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::mutant::Mutant;

/// The faults that were caught.
pub(crate) struct Verdicts {
    tree: PathBuf,
    /// By top-level folder of the tree.
    digests: BTreeMap<String, u64>,
    file: File,
    /// By digest of the fault and the crates that its test builds.
    caught: BTreeMap<String, String>,
}

impl Verdicts {
    /// Reads the file. Its verdicts apply only to faults whose crates have the same `digests`.
    pub(crate) fn open(
        path: &Path,
        tree: &Path,
        digests: BTreeMap<String, u64>,
    ) -> anyhow::Result<Verdicts> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let caught = text.lines().filter_map(|line| line.split_once(' '));
        let caught = caught.map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Verdicts { tree: tree.to_owned(), digests, file, caught })
    }

    /// How this fault was caught, if it was.
    pub(crate) fn of(&self, mutant: &Mutant) -> Option<&str> {
        self.caught.get(&self.key(mutant)).map(String::as_str)
    }

    /// Saves how the fault was caught.
    pub(crate) fn add(&mut self, mutant: &Mutant, text: &str) -> anyhow::Result<()> {
        let key = self.key(mutant);
        writeln!(self.file, "{key} {text}").context("cannot write the verdicts")?;
        self.caught.insert(key, text.to_owned());
        Ok(())
    }

    fn key(&self, mutant: &Mutant) -> String {
        let mut digest = DefaultHasher::new();
        mutant.hash(&mut digest);
        let mut folders = BTreeSet::from([String::new()]);
        add_with_dependencies(&self.tree, mutant.package(), &mut folders);
        folders.iter().for_each(|folder| self.digests.get(folder).hash(&mut digest));
        format!("{:016x}", digest.finish())
    }
}

/// Adds the folders of a package of the workspace and of all its dependencies there.
fn add_with_dependencies(tree: &Path, package: &str, folders: &mut BTreeSet<String>) {
    // `longshore-queue` is in `queue`, `longshore` in `longshore`.
    let folder = package.strip_prefix("longshore-").unwrap_or(package);
    if !folders.insert(folder.to_owned()) {
        return;
    }
    let manifest = std::fs::read_to_string(tree.join(folder).join("Cargo.toml"));
    for line in manifest.unwrap_or_default().lines().filter(|line| line.starts_with("longshore")) {
        let name = line.split(['.', ' ', '=']).next().unwrap_or(line);
        add_with_dependencies(tree, name, folders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_depend_on_the_fault_and_its_crates() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path();
        for (package, dependency) in [("queue", "protocol"), ("cli", "queue"), ("protocol", "")] {
            std::fs::create_dir(tree.join(package)).unwrap();
            let manifest = format!("[dependencies]\nlongshore-{dependency}.workspace = true\n");
            std::fs::write(tree.join(package).join("Cargo.toml"), manifest).unwrap();
        }
        let path = tree.join("verdicts");
        let text = "breaks = 'x'\nfile = 'queue/a.rs'\nfind = 'a'\nreplace = 'b'\n";
        let fault = Mutant::parse("m", text).unwrap();
        let other = Mutant::parse("n", &text.replace('x', "y")).unwrap();
        let digests = |protocol, queue, cli| {
            let all = [("protocol", protocol), ("queue", queue), ("cli", cli)];
            all.map(|(folder, digest)| (folder.to_owned(), digest)).into()
        };
        let open = |digests| Verdicts::open(&path, tree, digests).unwrap();
        open(digests(1, 2, 3)).add(&fault, "caught by a").unwrap();
        assert_eq!(open(digests(1, 2, 3)).of(&fault), Some("caught by a"));
        assert_eq!(open(digests(1, 2, 4)).of(&fault), Some("caught by a"), "cli is not built");
        assert_eq!(open(digests(1, 2, 3)).of(&other), None);
        for changed in [digests(0, 2, 3), digests(1, 0, 3)] {
            assert_eq!(open(changed).of(&fault), None);
        }
    }
}
