//! Cycles: a snapshot, what is still wanted of old segments, and the removal of the rest.

/// The body of a compacted record.
pub(crate) mod compacted;
/// One cycle, from its snapshot to the removal of what it makes needless.
pub(crate) mod compactor;
/// The compactor's thread, and when a cycle is due.
pub(crate) mod compactor_thread;
/// How fast a cycle goes beside the commits. Pure.
pub(crate) mod pace;
/// A file that is written in pieces, each of them synced.
pub(crate) mod paced_file;
/// Which segments to give up. Pure.
pub(crate) mod plan;
/// Writing what is still wanted of segments that are given up.
pub(crate) mod rewrite;
