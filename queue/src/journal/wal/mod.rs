//! The write-ahead log: the bytes of segments and records, commits, and reading back.

pub(crate) mod block_cache;
pub(crate) mod commit_watermark;
pub(crate) mod format;
pub(crate) mod header_proof;
pub(crate) mod locations;
pub(crate) mod pending_watermark;
pub(crate) mod progress;
pub(crate) mod record;
pub(crate) mod record_reader;
pub(crate) mod records;
pub(crate) mod walk;
pub(crate) mod writer;
