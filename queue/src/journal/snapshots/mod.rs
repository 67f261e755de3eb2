//! Snapshot files: `snapshots/IIIIIIIIIIIIIIIIIIII.snap` is the state after command `I`.
//!
//! ```text
//! .snap.new: header │ resume │ locations … │ state … │ end ─sync, read back─▶ renamed to .snap ─▶
//! directory synced
//! ```
//! A file of that name is complete and verified: the rename is the one moment from which it counts.

mod format;
mod head;
mod read;
mod runs;
mod write;

use std::io;
use std::path::PathBuf;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::format::with_blocks;
pub(crate) use self::format::{KIND_STATE, Resume};
pub(crate) use self::head::{SnapshotHead, head};
pub(crate) use self::read::{Checked, SnapshotFileError, SnapshotReader, check};
#[cfg(test)]
pub(crate) use self::write::Written;
pub(crate) use self::write::{WriteError, write};
use crate::journal::files::directory::Directory;
use crate::journal::space::removal;

/// The indexes of all snapshots, newest first.
pub(crate) fn list(directory: &Directory) -> io::Result<Vec<u64>> {
    let names = directory.files.list(&directory.snapshots_dir())?;
    let mut indexes: Vec<u64> =
        names.iter().filter_map(|name| Directory::snapshot_index_of(name)).collect();
    indexes.sort_unstable_by(|one, other| other.cmp(one));
    Ok(indexes)
}

/// Retires all snapshots but `retained`, durably; returns the files to be removed. The files that
/// only they need may be removed once this returns, not before.
pub(crate) fn retire_except(directory: &Directory, retained: &[u64]) -> io::Result<Vec<PathBuf>> {
    let others = list(directory)?.into_iter().filter(|other| !retained.contains(other));
    let paths = others.map(|other| directory.snapshot_path(other));
    let retired = removal::retire(&*directory.files, &directory.snapshots_dir(), paths)?;
    Ok(retired.into_iter().flatten().collect())
}
