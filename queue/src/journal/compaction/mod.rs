//! Compaction cycles: each writes a snapshot, copies live records out of old segments, and removes
//! obsolete files.

pub(crate) mod compacted;
pub(crate) mod compactor;
pub(crate) mod compactor_thread;
pub(crate) mod pace;
pub(crate) mod paced_file;
pub(crate) mod plan;
pub(crate) mod rewrite;
