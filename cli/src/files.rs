//! Small files: read up to a limit, and replaced in one step.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// The mode of new files: only their owner reads them.
const PRIVATE_MODE: u32 = 0o600;

/// Reads a file of at most so many bytes.
pub(crate) fn read_bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => {
            let why = format!("it has more than {bytes_max} bytes");
            Err(io::Error::new(ErrorKind::FileTooLarge, why))
        }
        false => Ok(bytes),
    }
}

/// Reads a text of at most so many bytes.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read_bytes(path, bytes_max)?)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The folder of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// The file that a path leads to, through links; the path itself, if there is none yet.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        found => found,
    }
}

/// A nameless new file in a folder, with its bytes on disk and never open to others than the mode
/// allows.
pub(crate) fn written(folder: &Path, text: &str, mode: u32) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix(".longshore-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Replaces a file in one step: readers and power cuts see the old text or the new one. A new file
/// is its owner's alone; one that exists keeps its owner, group and mode, by which a service may
/// read it. Its folder is made if it is missing.
pub(crate) fn replace(file: &Path, text: &str) -> io::Result<()> {
    Replacement::prepare(file, text, PRIVATE_MODE)?.finish()
}

/// A file that is about to replace another, or to be made with a mode of its own.
pub(crate) struct Replacement {
    new: NamedTempFile,
    file: PathBuf,
}

impl Replacement {
    /// Writes the text to the disk, beside the file, with the owner and mode that it will have.
    pub(crate) fn prepare(file: &Path, text: &str, mode: u32) -> io::Result<Replacement> {
        let file = real_path(file)?;
        let folder = folder_of(&file);
        fs::create_dir_all(folder)?;
        // Private until it has its owner.
        let new = written(folder, text, PRIVATE_MODE)?;
        match fs::metadata(&file) {
            Ok(old) => {
                let now = new.as_file().metadata()?;
                if (old.uid(), old.gid()) != (now.uid(), now.gid()) {
                    fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
                }
                new.as_file().set_permissions(old.permissions())?;
            }
            Err(why) if why.kind() == ErrorKind::NotFound => {
                new.as_file().set_permissions(Permissions::from_mode(mode))?;
            }
            Err(why) => return Err(why),
        }
        Ok(Replacement { new, file })
    }

    /// Gives it the name of the file.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.new.persist(&self.file).map_err(|error| error.error)?;
        File::open(folder_of(&self.file))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_mode_and_the_link_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("new/file"), folder.path().join("link"));
        let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        replace(&file, "one").unwrap();
        assert_eq!((mode(), read_text(&file, 3).unwrap().as_str()), (0o600, "one"));
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, "three").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((mode(), read_text(&link, 5).unwrap().as_str()), (0o640, "three"));
        let names = fs::read_dir(folder.path().join("new")).unwrap();
        assert_eq!(names.count(), 1, "a temporary file is left");
        assert_eq!(read_text(&file, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
