//! Looking at a journal from outside: what it holds, whether it is whole, its records one by one, a
//! copy of it. Nothing here writes to the directory that is looked at.
//!
//! ```text
//! at rest: stat │ verify │ dump          in use, too: stat │ dump │ copy
//! ```

mod copy;
mod dump;
mod error;
mod findings;
mod read_only;
mod segments;
mod source;
mod stat;
mod verify;

use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
pub(crate) use self::copy::copy_on;
#[cfg(test)]
pub(super) use self::stat::stat_on;
#[cfg(test)]
pub(super) use self::verify::verify_on;

pub use self::copy::{Copied, copy};
pub use self::dump::{Dump, DumpOptions, Dumped};
pub use self::error::InspectError;
pub use self::findings::{Effect, Finding};
pub use self::segments::SegmentKind;
pub use self::stat::{JournalStat, SegmentStat, SnapshotStat, stat};
pub use self::verify::{Verified, verify};
use super::files::{Disk, Files};
pub use crate::journal::compaction::compacted::CarriedPart;

/// Bytes read at a time: a disk that a publisher commits to serves it in between.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Told now and then how far something is: bytes done, and about how many there are in all. Called
/// on the thread that reads.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

fn disk() -> Arc<dyn Files> {
    Arc::new(Disk)
}

/// The name of a file, for people: within its directory.
fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
