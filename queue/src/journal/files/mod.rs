//! The file system, and the directory of a journal.

/// The paths of a journal's files, and creating segments.
pub(crate) mod directory;
/// The file system operations that a journal needs.
pub(crate) mod disk;
/// The file that names the journal and its publisher.
pub(crate) mod identity;
/// The lock that prevents deletion during a copy.
pub(crate) mod pin;

pub(crate) use self::disk::{
    Disk, Files, JournalFile, LOCK_FILE, LockError, PinGuard, PinLock, is_unreadable,
    unless_unreadable,
};
