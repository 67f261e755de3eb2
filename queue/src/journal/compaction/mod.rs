//! Compaction cycles: each writes a snapshot, copies live records out of old segments, and removes
//! obsolete files.

/// The body of a compacted record.
pub(crate) mod compacted;
/// One cycle, from its snapshot to the removal of obsolete files.
pub(crate) mod compactor;
/// The compactor's thread, and when a cycle is due.
pub(crate) mod compactor_thread;
/// How fast a cycle goes beside the commits. Pure.
pub(crate) mod pace;
/// A file that is written in chunks, each of them synced.
pub(crate) mod paced_file;
/// Which segments to compact and remove. Pure.
pub(crate) mod plan;
/// Copies the live parts of segments into a compacted file.
pub(crate) mod rewrite;
