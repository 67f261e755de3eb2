//! `PIN`: a lock file. While a directory in use is copied, nothing in it is deleted.
//!
//! Copies take the lock shared. The compactor takes it exclusively before it deletes anything,
//! without waiting: if a copy runs, a later cycle deletes. Once the disk has been short for a
//! minute, or is below the low watermark, the compactor unlinks the file and locks a new one.
//! Copies with the old lock detect that and fail.

use std::io;
use std::path::Path;

use crate::journal::files::{Files, PinGuard, PinLock};

/// The name of the file. It has no content.
pub(crate) const PIN_FILE: &str = "PIN";

/// The right to read files that nobody deletes, or to delete some; ends when dropped.
pub(crate) struct Pin {
    lock: Box<dyn PinGuard>,
}

impl Pin {
    /// Prevents deletion. Waits for a running deletion.
    pub(crate) fn to_read(files: &dyn Files, dir: &Path) -> io::Result<Pin> {
        let lock = files.pin(&dir.join(PIN_FILE), PinLock::Shared)?;
        // A shared lock waits, so there is one.
        lock.map(|lock| Pin { lock }).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Permits deletion; none while a copy reads.
    pub(crate) fn to_delete(files: &dyn Files, dir: &Path) -> io::Result<Option<Pin>> {
        let path = dir.join(PIN_FILE);
        let lock = match files.pin(&path, PinLock::IdleContext) {
            // Another user's copy has made it, as root's may: the directory is this one's.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                files.remove(&path)?;
                files.pin(&path, PinLock::IdleContext)
            }
            lock => lock,
        };
        Ok(lock?.map(|lock| Pin { lock }))
    }

    /// Permits deletion even if copies read: their locks become invalid. None if another copy has
    /// begun since.
    pub(crate) fn to_delete_from_readers(files: &dyn Files, dir: &Path) -> io::Result<Option<Pin>> {
        match files.remove(&dir.join(PIN_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Pin::to_delete(files, dir),
        }
    }

    /// Whether the lock still prevents deletion.
    pub(crate) fn is_valid(&self) -> io::Result<bool> {
        self.lock.is_valid()
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;
    use crate::journal::files::Disk;
    use crate::journal::simulated_disk::SimulatedDisk;

    fn assert_readers_and_deleter_exclude_each_other(files: &dyn Files, dir: &Path) {
        let deleting = Pin::to_delete(files, dir).unwrap().unwrap();
        assert!(Pin::to_delete(files, dir).unwrap().is_none());
        drop(deleting);
        let (one, other) = (Pin::to_read(files, dir).unwrap(), Pin::to_read(files, dir).unwrap());
        assert!(Pin::to_delete(files, dir).unwrap().is_none());
        drop(one);
        assert!(Pin::to_delete(files, dir).unwrap().is_none(), "one reader remains");
        drop(other);
        assert!(Pin::to_delete(files, dir).unwrap().is_some());
        // Until the compactor stops waiting for readers.
        let reading = Pin::to_read(files, dir).unwrap();
        assert!(reading.is_valid().unwrap());
        let deleting = Pin::to_delete_from_readers(files, dir).unwrap().unwrap();
        assert!(deleting.is_valid().unwrap() && !reading.is_valid().unwrap());
        drop(reading);
        assert!(Pin::to_delete(files, dir).unwrap().is_none(), "the old lock is not the new one");
        drop(deleting);
        assert!(Pin::to_read(files, dir).unwrap().is_valid().unwrap());
    }

    #[test]
    fn shared_pins_exclude_deletion() {
        let dir = tempdir().unwrap();
        assert_readers_and_deleter_exclude_each_other(&Disk, dir.path());
        assert_readers_and_deleter_exclude_each_other(
            &SimulatedDisk::default(),
            Path::new("/data"),
        );
    }
}
