//! Disk space: what may be appended, what is reserved for compaction, and freeing space.

pub(crate) mod ballast;
pub(crate) mod budget;
pub(crate) mod removal;
