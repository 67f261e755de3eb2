//! Inspects a journal from outside: its content, its integrity, its records, and copies. Nothing
//! here writes to the inspected directory.
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
pub use crate::journal::compaction::compacted::CompactedPart;

/// Bytes of one read: the disk serves a publisher's commits in between.
const CHUNK_BYTES: usize = 1024 * 1024;

/// A progress callback: bytes done, and approximate bytes in all. Called on the reading thread.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

fn disk() -> Arc<dyn Files> {
    Arc::new(Disk)
}

/// A file's name within its directory.
fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
