//! The write-ahead log: the bytes of segments and records, commits, and reading back.

/// A cache of verified blocks of bodies.
pub(crate) mod block_cache;
/// The commit watermark: how far commits have come, in its own file.
pub(crate) mod commit_watermark;
/// The bytes of a segment.
pub(crate) mod format;
/// Derives a damaged header from the records.
pub(crate) mod header_proof;
/// Where each record lies. Pure.
pub(crate) mod locations;
/// The files to sync before the commit watermark.
pub(crate) mod pending_sync;
/// The progress of a journal, shared by its threads.
pub(crate) mod progress;
/// The bytes of a record.
pub(crate) mod record;
/// Reading one record.
pub(crate) mod record_reader;
/// The records of an open journal, from any thread.
pub(crate) mod records;
/// Reads the records of one file in sequence, also past invalid ones.
pub(crate) mod walk;
/// Commits: one write and one sync for everything since the last one.
pub(crate) mod writer;
