//! Room on the disk: what may be appended, what compaction keeps for itself, and giving room back.

/// A file without content that keeps room for compaction.
pub(crate) mod ballast;
/// How many bytes may still be appended, and for what.
pub(crate) mod budget;
/// Removing files: their names first, then their room, in steps.
pub(crate) mod removal;
