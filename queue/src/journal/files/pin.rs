//! `PIN`: while somebody copies a directory that is in use, nothing in it is deleted.
//!
//! Whoever copies holds it together with others who do. The cleaner takes it alone before it
//! deletes anything, and does not wait for it: what it would have deleted goes with a later cycle.
//! Only once the disk has been short for a minute, or is below the low watermark, it removes the
//! file's name and takes a new one: the copies that hold the old one find that out, and fail.

use std::io;
use std::path::Path;

use crate::journal::files::{Files, PinGuard, PinLock};

/// The name of the file. It has no content.
pub(crate) const PIN_FILE: &str = "PIN";

/// The right to read files in peace, or to delete some; ends with this value.
pub(crate) struct Pin {
    lock: Box<dyn PinGuard>,
}

impl Pin {
    /// Nothing is deleted from now on. Waits for a deletion that is under way.
    pub(crate) fn to_read(files: &dyn Files, dir: &Path) -> io::Result<Pin> {
        let lock = files.pin(&dir.join(PIN_FILE), PinLock::Shared)?;
        // A lock that is shared is waited for.
        lock.map(|lock| Pin { lock }).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Files may be deleted from now on; none while somebody reads.
    pub(crate) fn to_delete(files: &dyn Files, dir: &Path) -> io::Result<Option<Pin>> {
        let lock = files.pin(&dir.join(PIN_FILE), PinLock::IdleContext)?;
        Ok(lock.map(|lock| Pin { lock }))
    }

    /// The same, whoever reads: what they have is worth nothing from now on. None if somebody has
    /// begun to read since.
    pub(crate) fn to_delete_from_readers(files: &dyn Files, dir: &Path) -> io::Result<Option<Pin>> {
        match files.remove(&dir.join(PIN_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Pin::to_delete(files, dir),
        }
    }

    /// Whether nothing was deleted since.
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
        assert!(Pin::to_delete(files, dir).unwrap().is_none(), "one still reads");
        drop(other);
        assert!(Pin::to_delete(files, dir).unwrap().is_some());
        // Until nobody waits for readers any more.
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
