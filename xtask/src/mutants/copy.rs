//! A copy of the source tree. Faults are planted there; the tree itself never changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Makes `to` contain exactly the files of `from` that git tracks or would add. Unchanged files
/// keep their modification times, so that Cargo rebuilds only what changed. Returns a digest of
/// each top-level folder, and one of the root's own files under the empty name.
pub(crate) fn refresh(from: &Path, to: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let files = git_files(from)?;
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut digests: BTreeMap<String, DefaultHasher> = BTreeMap::new();
    for file in &files {
        let (source, copy) = (from.join(file), to.join(file));
        let bytes = fs::read(&source).with_context(|| format!("{}", source.display()))?;
        let folder = file.parent().and_then(|parent| parent.iter().next()).unwrap_or_default();
        let digest = digests.entry(folder.to_string_lossy().into_owned()).or_default();
        (file, &bytes).hash(digest);
        if fs::read(&copy).is_ok_and(|existing| existing == bytes) {
            continue;
        }
        if let Some(folder) = copy.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&copy, bytes).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    let mut extra = Vec::new();
    find_extra(to, Path::new(""), &files, &mut extra)?;
    for file in extra {
        fs::remove_file(to.join(file))?;
    }
    Ok(digests.into_iter().map(|(folder, digest)| (folder, digest.finish())).collect())
}

/// The existing files of the tree that git tracks or would add.
fn git_files(tree: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(tree)
        .output()
        .context("cannot run git")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git cannot list {}: {stderr}", tree.display());
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // Git still lists files whose deletion is not committed.
    Ok(files.filter(|file| tree.join(file).is_file()).collect())
}

/// Adds to `extra` the files below `below` that are not in `files`.
fn find_extra(
    root: &Path,
    below: &Path,
    files: &BTreeSet<PathBuf>,
    extra: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            find_extra(root, &path, files, extra)?;
        } else if !files.contains(&path) {
            extra.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(tree: &Path, arguments: &[&str]) {
        let status = Command::new("git").args(arguments).current_dir(tree).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn a_refresh_reverts_changes_to_the_copy() {
        let (tree, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (tree.path(), copy.path());
        git(from, &["init", "--quiet"]);
        fs::create_dir(from.join("src")).unwrap();
        for (file, text) in [("src/a.rs", "a"), ("b.rs", "b"), (".gitignore", "target\n")] {
            fs::write(from.join(file), text).unwrap();
        }
        fs::create_dir(from.join("target")).unwrap();
        fs::write(from.join("target/large"), "").unwrap();
        let digest = refresh(from, to).unwrap();
        assert_eq!(refresh(from, to).unwrap(), digest);
        assert_eq!(fs::read_to_string(to.join("src/a.rs")).unwrap(), "a");
        assert!(!to.join("target").exists());
        let modified = fs::metadata(to.join("b.rs")).unwrap().modified().unwrap();

        fs::write(to.join("src/a.rs"), "broken").unwrap();
        fs::write(to.join("left"), "over").unwrap();
        git(from, &["add", "."]);
        fs::remove_file(from.join(".gitignore")).unwrap();
        fs::remove_dir_all(from.join("target")).unwrap();
        let digest = refresh(from, to).unwrap();
        assert_eq!(refresh(from, to).unwrap(), digest);
        assert_eq!(fs::read_to_string(to.join("src/a.rs")).unwrap(), "a");
        assert!(!to.join("left").exists() && !to.join(".gitignore").exists());
        assert_eq!(fs::metadata(to.join("b.rs")).unwrap().modified().unwrap(), modified);
    }
}
