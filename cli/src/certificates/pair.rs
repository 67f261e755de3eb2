//! A certificate and its private key as two files, which replace others only where that is asked.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::failure::{Failure, FailureKind};
use crate::files::{Replacement, folder_of, written};

/// Only their owner reads keys; everyone may read certificates.
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;

/// The files NAME.pem and NAME.key in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    pub(crate) fn new(folder: &Path, name: &str) -> Pair {
        let file = |extension: &str| folder.join(format!("{name}.{extension}"));
        Pair { certificate: file("pem"), key: file("key") }
    }

    /// An error if one of the files exists.
    pub(crate) fn check_absent(&self) -> Result<(), Failure> {
        for file in [&self.key, &self.certificate] {
            match fs::symlink_metadata(file) {
                Ok(_) => return Err(exists(file)),
                Err(why) if why.kind() == ErrorKind::NotFound => {}
                Err(why) => return Err(failed(file, &why)),
            }
        }
        Ok(())
    }

    /// Writes both, or, after an error, none. The folder is made if it is missing.
    ///
    /// Both get their names only when their bytes are on disk, so that a crash leaves no half of a
    /// file, and no other user can read the key at any moment.
    pub(crate) fn write(&self, certificate: &str, key: &str) -> Result<(), Failure> {
        let folder = folder_of(&self.key);
        fs::create_dir_all(folder).map_err(|why| failed(folder, &why))?;
        let new_key = written(folder, key, KEY_MODE).map_err(|why| failed(&self.key, &why))?;
        let new_certificate = written(folder, certificate, CERTIFICATE_MODE)
            .map_err(|why| failed(&self.certificate, &why))?;
        persist(new_key, &self.key)?;
        let rest = persist(new_certificate, &self.certificate).and_then(|()| {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|why| {
                let _ = fs::remove_file(&self.certificate);
                failed(folder, &why)
            })
        });
        rest.inspect_err(|_| {
            let _ = fs::remove_file(&self.key);
        })
    }

    /// Writes both over what is there, each in one step. What is there keeps its owner, group and
    /// mode, by which a service may read the key. A service that reads between the two finds a
    /// certificate of another key, keeps what it has, and reads again.
    pub(crate) fn replace(&self, certificate: &str, key: &str) -> Result<(), Failure> {
        let prepare = |file: &Path, text, mode| {
            Replacement::prepare(file, text, mode).map_err(|why| failed(file, &why))
        };
        // A full disk, or another owner, is found before any of them is replaced.
        let new_key = prepare(&self.key, key, KEY_MODE)?;
        let new_certificate = prepare(&self.certificate, certificate, CERTIFICATE_MODE)?;
        new_key.finish().map_err(|why| failed(&self.key, &why))?;
        new_certificate.finish().map_err(|why| failed(&self.certificate, &why))
    }
}

fn persist(new: NamedTempFile, file: &Path) -> Result<(), Failure> {
    match new.persist_noclobber(file) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(exists(file)),
        Err(error) => Err(failed(file, &error.error)),
    }
}

fn exists(file: &Path) -> Failure {
    let message = format!("{} exists already; nothing was written", file.display());
    Failure::new(FailureKind::Failed, message).with_hint(
        "remove it if nothing uses it any more, or choose another folder or name; cert issue \
             --replace renews a certificate, not an authority",
    )
}

fn failed(file: &Path, why: &io::Error) -> Failure {
    Failure::new(FailureKind::Failed, format!("cannot write {}: {why}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_pair_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("new/tls");
        let pair = Pair::new(&inner, "a");
        pair.check_absent().unwrap();
        pair.write("certificate", "key").unwrap();
        assert_eq!(fs::read_to_string(&pair.key).unwrap(), "key");
        assert_eq!(fs::read_to_string(&pair.certificate).unwrap(), "certificate");
        assert_eq!(fs::metadata(&pair.key).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(files(&inner), ["a.key", "a.pem"]);
        assert!(pair.check_absent().unwrap_err().message.contains("a.key exists"));
        // The second file fails: the first one is taken back, and nothing else is left.
        fs::remove_file(&pair.key).unwrap();
        let error = pair.write("other", "other").unwrap_err();
        assert!(error.message.contains("a.pem exists"), "{error}");
        assert_eq!(fs::read_to_string(&pair.certificate).unwrap(), "certificate");
        assert_eq!(files(&inner), ["a.pem"]);
        // The first file fails.
        fs::rename(&pair.certificate, &pair.key).unwrap();
        assert!(pair.write("other", "other").unwrap_err().message.contains("a.key exists"));
        assert_eq!(fs::read_to_string(&pair.key).unwrap(), "certificate");
        assert_eq!(files(&inner), ["a.key"]);
    }

    #[test]
    fn a_replaced_pair_keeps_its_modes_and_a_new_one_has_those_of_every_pair() {
        let folder = tempfile::tempdir().unwrap();
        let pair = Pair::new(folder.path(), "a");
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
        pair.replace("one", "one").unwrap();
        assert_eq!((mode(&pair.key), mode(&pair.certificate)), (0o600, 0o644));
        fs::set_permissions(&pair.key, fs::Permissions::from_mode(0o640)).unwrap();
        pair.replace("two", "two").unwrap();
        assert_eq!((mode(&pair.key), mode(&pair.certificate)), (0o640, 0o644));
        assert_eq!(fs::read_to_string(&pair.key).unwrap(), "two");
        assert_eq!(fs::read_to_string(&pair.certificate).unwrap(), "two");
        assert_eq!(files(folder.path()), ["a.key", "a.pem"]);
    }

    #[test]
    fn a_dangling_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let pair = Pair::new(folder.path(), "a");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &pair.key).unwrap();
        assert!(pair.check_absent().is_err());
        assert!(pair.write("certificate", "key").is_err());
        assert_eq!(files(folder.path()), ["a.key"]);
    }
}
