//! The memory of this process.

use std::fs;

/// Bytes of a page of memory with 4 KiB pages, as on most Linux machines; with larger pages the
/// result is too small by their factor.
const PAGE_BYTES: u64 = 4096;

/// Resident memory of this process, in bytes; 0 where it is unknown.
pub(super) fn resident_bytes() -> u64 {
    let Ok(text) = fs::read_to_string("/proc/self/statm") else { return 0 };
    let pages: Option<u64> = text.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}
