//! The files that hold snapshots: `snapshots/IIIIIIIIIIIIIIIIIIII.snap`, the state after command `I`.
//!
//! ```text
//! .snap.new: header │ resume │ locations … │ state … │ end ─sync, read back─▶ renamed to .snap ─▶ directory synced
//! ```
//! A file of that name is whole and was checked: the rename is the one moment from which it counts.

mod format;
mod head;
mod read;
mod runs;
mod write;

use std::io;

pub(crate) use self::format::{KIND_STATE, Resume};
pub(crate) use self::head::{Head, head};
pub(crate) use self::read::{Checked, SnapshotFileError, SnapshotReader, check, told_epoch};
#[cfg(test)]
pub(crate) use self::write::Written;
pub(crate) use self::write::{WriteError, write};
use super::directory::Directory;

/// The last commands that there are snapshots of, the newest first.
pub(crate) fn list(directory: &Directory) -> io::Result<Vec<u64>> {
    let names = directory.files.list(&directory.snapshots_dir())?;
    let mut indexes: Vec<u64> =
        names.iter().filter_map(|name| Directory::snapshot_index_of(name)).collect();
    indexes.sort_unstable_by(|one, other| other.cmp(one));
    Ok(indexes)
}

/// Removes all snapshots but that of `index`, so that they stay removed; gives how many there were. What only they need may
/// go once this returns, and not before.
pub(crate) fn remove_others(directory: &Directory, index: u64) -> io::Result<usize> {
    let mut others = list(directory)?;
    others.retain(|&other| other != index);
    for &other in &others {
        directory.files.remove(&directory.snapshot_path(other))?;
    }
    if !others.is_empty() {
        directory.files.sync_dir(&directory.snapshots_dir())?;
    }
    Ok(others.len())
}
