//! A read-only file system: inspection gets no other.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::super::files::{Files, JournalFile, LockError, PinGuard, PinLock};

/// Opens files only for reading, and refuses every change.
pub(super) struct ReadOnly(pub(super) Arc<dyn Files>);

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Files for ReadOnly {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        self.0.open_to_read(path)
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn JournalFile>> {
        self.0.open_to_read(path)
    }

    fn create(&self, _: &Path) -> io::Result<Arc<dyn JournalFile>> {
        refused()
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn is_copy_on_write(&self, dir: &Path) -> io::Result<bool> {
        self.0.is_copy_on_write(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.0.free_bytes(dir)
    }

    fn lock(&self, _: &Path) -> Result<Box<dyn Send + Sync>, LockError> {
        Err(LockError::Io(io::ErrorKind::ReadOnlyFilesystem.into()))
    }

    fn holder(&self, dir: &Path) -> io::Result<Option<String>> {
        self.0.holder(dir)
    }

    fn pin(&self, _: &Path, _: PinLock) -> io::Result<Option<Box<dyn PinGuard>>> {
        refused()
    }
}
