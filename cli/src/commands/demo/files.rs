//! The files that the demo hashes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use walkdir::WalkDir;

/// Lists every regular file below `folder`, sorted by name. Symbolic links are not followed.
/// Unreadable entries are passed to `skipped`.
pub(crate) fn regular_files(
    folder: &Path,
    skipped: &mut dyn FnMut(&Path, &io::Error),
) -> anyhow::Result<Vec<PathBuf>> {
    let metadata =
        fs::metadata(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    if !metadata.is_dir() {
        bail!("{} is not a folder", folder.display());
    }
    let mut files = Vec::new();
    for entry in WalkDir::new(folder) {
        match entry {
            Ok(entry) if entry.file_type().is_file() => files.push(entry.into_path()),
            Ok(_) => {}
            Err(error) => {
                let path = error.path().unwrap_or(folder).to_owned();
                skipped(&path, &io::Error::from(error));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The dependencies of a project, as cargo has unpacked them.
#[derive(Debug)]
pub(crate) struct Dependencies {
    /// The lock file that lists them.
    pub(crate) lock: PathBuf,
    /// The folder of each dependency.
    pub(crate) folders: Vec<PathBuf>,
}

/// The dependencies in the nearest `Cargo.lock` at or above `start`, as unpacked below `cargo`,
/// cargo's home. Packages of other projects are left out.
pub(crate) fn dependencies(start: &Path, cargo: Option<&Path>) -> anyhow::Result<Dependencies> {
    let hint = "name the folder whose files are to be hashed: longshore demo DIR";
    let lock =
        start.ancestors().map(|folder| folder.join("Cargo.lock")).find(|lock| lock.is_file());
    let lock = lock.with_context(|| {
        format!("there is no Cargo.lock at or above {}; {hint}", start.display())
    })?;
    let text =
        fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let listed: toml::Table =
        toml::from_str(&text).with_context(|| format!("cannot read {}", lock.display()))?;
    let packages = listed.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let named = packages.filter_map(|package| {
        // The project's own packages have no source.
        package.get("source")?;
        let text = |key| package.get(key)?.as_str();
        Some(format!("{}-{}", text("name")?, text("version")?))
    });
    let sources = cargo.map(|cargo| cargo.join("registry/src"));
    let registries: Vec<PathBuf> = sources
        .and_then(|sources| fs::read_dir(sources).ok())
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let mut folders: Vec<PathBuf> = named
        .flat_map(|name| {
            registries.iter().map(move |registry| registry.join(&name)).collect::<Vec<_>>()
        })
        .filter(|folder| folder.is_dir())
        .collect();
    folders.sort();
    if folders.is_empty() {
        bail!("cargo has unpacked no dependency of {}; {hint}", lock.display());
    }
    Ok(Dependencies { lock, folders })
}

/// The directory of cargo's downloads.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cargo"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locked_dependencies_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (project, cargo) = (folder.path().join("project/deep"), folder.path().join("cargo"));
        fs::create_dir_all(&project).unwrap();
        let none = dependencies(&project, Some(&cargo)).unwrap_err().to_string();
        assert!(none.contains("no Cargo.lock") && none.contains("longshore demo DIR"), "{none}");
        let lock = folder.path().join("project/Cargo.lock");
        let source = "source = \"registry+https://index\"";
        let package = |name: &str, source: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n{source}\n")
        };
        let text = [package("own", ""), package("b", source), package("a", source)].concat();
        fs::write(&lock, text).unwrap();
        let none = dependencies(&project, Some(&cargo)).unwrap_err().to_string();
        assert!(none.contains("unpacked no dependency"), "{none}");
        let registry = cargo.join("registry/src/index-1");
        for name in ["a-1.0.0", "b-1.0.0", "a-2.0.0", "own-1.0.0", "others-1.0.0"] {
            fs::create_dir_all(registry.join(name)).unwrap();
        }
        let found = dependencies(&project, Some(&cargo)).unwrap();
        assert_eq!(found.folders, [registry.join("a-1.0.0"), registry.join("b-1.0.0")]);
        assert_eq!(found.lock, lock);
    }

    #[test]
    fn files_are_listed_recursively_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("deep down")).unwrap();
        fs::write(root.join("b"), "").unwrap();
        fs::write(root.join("deep down/a 'quoted'\nname"), "").unwrap();
        std::os::unix::fs::symlink(root, root.join("deep down/loop")).unwrap();
        let files = regular_files(root, &mut |_, error| panic!("{error}")).unwrap();
        assert_eq!(files, [root.join("b"), root.join("deep down/a 'quoted'\nname")]);
    }
}
