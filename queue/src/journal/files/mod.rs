//! The file system, and the directory of a journal.

/// Where a journal's files are, and how new segments come to be.
pub(crate) mod directory;
/// The few things that a journal asks of a file system.
pub(crate) mod disk;
/// Whose directory this is.
pub(crate) mod identity;
/// While somebody copies a directory that is in use, nothing in it is deleted.
pub(crate) mod pin;

pub(crate) use self::disk::{
    Disk, Files, JournalFile, LOCK_FILE, LockError, PinGuard, PinLock, is_unreadable,
    unless_unreadable,
};
