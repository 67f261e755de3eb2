//! Disk space: what may be appended, what is reserved for compaction, and freeing space.

/// The file that reserves space for compaction.
pub(crate) mod ballast;
/// How many bytes may still be appended, and for what.
pub(crate) mod budget;
/// Removes files: their names first, then their blocks, in steps.
pub(crate) mod removal;
