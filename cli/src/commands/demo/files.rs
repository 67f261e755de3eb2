//! The files that a demo works on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Every regular file below `folder`, in the order of its names. Symbolic links are not followed. What cannot be looked
/// into is told to `skipped`.
pub(crate) fn regular_files(
    folder: &Path,
    skipped: &mut dyn FnMut(&Path, &io::Error),
) -> anyhow::Result<Vec<PathBuf>> {
    let about =
        fs::metadata(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    if !about.is_dir() {
        bail!("{} is not a folder", folder.display());
    }
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                skipped(&folder, &error);
                continue;
            }
        };
        for entry in entries {
            let kind = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
            match kind {
                Ok((path, kind)) if kind.is_dir() => folders.push(path),
                Ok((path, kind)) if kind.is_file() => files.push(path),
                Ok(_) => {}
                Err(error) => skipped(&folder, &error),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// What cargo has unpacked of this project's own dependencies; without it, the folder of the project.
pub(crate) fn default_folder() -> PathBuf {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cargo"))
    });
    cargo
        .map(|cargo| cargo.join("registry/src"))
        .filter(|sources| sources.is_dir())
        .unwrap_or_else(|| PathBuf::from("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_depth_and_links_are_not_followed() {
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
