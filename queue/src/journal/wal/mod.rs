//! The write-ahead log: the bytes of segments and records, commits, and reading back.

/// Blocks of bodies that were read and checked, retained for a while.
pub(crate) mod block_cache;
/// How far commits have come, in a file of its own.
pub(crate) mod commit_watermark;
/// The bytes of a segment.
pub(crate) mod format;
/// What a damaged header was.
pub(crate) mod header_proof;
/// Where each record lies. Pure.
pub(crate) mod locations;
/// What the commit watermark waits for.
pub(crate) mod pending_sync;
/// How far a journal has come, for everyone beside its writer.
pub(crate) mod progress;
/// The bytes of a record.
pub(crate) mod record;
/// Reading one record.
pub(crate) mod record_reader;
/// The records of an open journal, from any thread.
pub(crate) mod records;
/// Reading the records of one file, in order and past what is not whole.
pub(crate) mod walk;
/// Commits: one write and one sync for all that came since the last one.
pub(crate) mod writer;
