//! The files that hold snapshots: `snapshots/IIIIIIIIIIIIIIIIIIII.snap`, the state after command
//! `I`.
//!
//! ```text
//! .snap.new: header │ resume │ locations … │ state … │ end ─sync, read back─▶ renamed to .snap ─▶
//! directory synced
//! ```
//! A file of that name is whole and was checked: the rename is the one moment from which it counts.

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
pub(crate) use self::head::{Head, head};
pub(crate) use self::read::{Checked, SnapshotFileError, SnapshotReader, check};
#[cfg(test)]
pub(crate) use self::write::Written;
pub(crate) use self::write::{WriteError, write};
use crate::journal::files::directory::Directory;
use crate::journal::space::removal;

/// The last commands that there are snapshots of, the newest first.
pub(crate) fn list(directory: &Directory) -> io::Result<Vec<u64>> {
    let names = directory.files.list(&directory.snapshots_dir())?;
    let mut indexes: Vec<u64> =
        names.iter().filter_map(|name| Directory::snapshot_index_of(name)).collect();
    indexes.sort_unstable_by(|one, other| other.cmp(one));
    Ok(indexes)
}

/// All snapshots but those of `kept` count no more, for good; gives what is to be removed of them.
/// What only they need may go once this returns, and not before.
pub(crate) fn retire_others(directory: &Directory, kept: &[u64]) -> io::Result<Vec<PathBuf>> {
    let others = list(directory)?.into_iter().filter(|other| !kept.contains(other));
    let paths = others.map(|other| directory.snapshot_path(other));
    let retired = removal::retire(&*directory.files, &directory.snapshots_dir(), paths)?;
    Ok(retired.into_iter().flatten().collect())
}
