//! The file system, and the directory of a journal.

pub(crate) mod directory;
pub(crate) mod disk;
pub(crate) mod identity;
pub(crate) mod pin;

pub(crate) use self::disk::{
    Disk, Files, JournalFile, LOCK_FILE, LockError, PinGuard, PinLock, UNREADABLE, is_out_of_files,
    is_unreadable, unless_unreadable,
};
