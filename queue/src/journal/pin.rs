//! `PIN`: while somebody copies a directory that is in use, nothing in it is deleted.
//!
//! Whoever copies holds it together with others who do. The cleaner takes it alone before it deletes anything, and does not
//! wait for it: what it would have deleted goes with a later cycle.

use std::io;
use std::path::Path;

use super::files::{Files, PinLock};

/// The name of the file. It has no content.
pub(crate) const PIN_FILE: &str = "PIN";

/// The right to read files in peace, or to delete some; ends with this value.
pub(crate) struct Pin {
    _lock: Box<dyn Send + Sync>,
}

impl Pin {
    /// Nothing is deleted from now on. Waits for a deletion that is under way.
    pub(crate) fn to_read(files: &dyn Files, dir: &Path) -> io::Result<Pin> {
        let lock = files.pin(&dir.join(PIN_FILE), PinLock::Shared)?;
        // A lock that is shared is waited for.
        lock.map(|lock| Pin { _lock: lock }).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Files may be deleted from now on; none while somebody reads.
    pub(crate) fn to_delete(files: &dyn Files, dir: &Path) -> io::Result<Option<Pin>> {
        let lock = files.pin(&dir.join(PIN_FILE), PinLock::Alone)?;
        Ok(lock.map(|lock| Pin { _lock: lock }))
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::super::files::Disk;
    use super::super::simulated_disk::SimulatedDisk;
    use super::*;

    fn readers_and_the_cleaner_keep_each_other_out(files: &dyn Files, dir: &Path) {
        let deleting = Pin::to_delete(files, dir).unwrap().unwrap();
        assert!(Pin::to_delete(files, dir).unwrap().is_none());
        drop(deleting);
        let (one, other) = (Pin::to_read(files, dir).unwrap(), Pin::to_read(files, dir).unwrap());
        assert!(Pin::to_delete(files, dir).unwrap().is_none());
        drop(one);
        assert!(Pin::to_delete(files, dir).unwrap().is_none(), "one still reads");
        drop(other);
        assert!(Pin::to_delete(files, dir).unwrap().is_some());
    }

    #[test]
    fn nothing_is_deleted_while_anybody_reads() {
        let dir = tempdir().unwrap();
        readers_and_the_cleaner_keep_each_other_out(&Disk, dir.path());
        readers_and_the_cleaner_keep_each_other_out(&SimulatedDisk::default(), Path::new("/data"));
    }
}
