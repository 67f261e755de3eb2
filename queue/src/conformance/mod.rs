//! What every log and every store promises, as stories that any of them can be put through.

// A suite says what does not hold by a panic; it has no other business.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod log;
mod memory_log;
mod store;
#[cfg(test)]
mod tests;

pub use self::log::log_conformance;
pub use self::memory_log::{MemoryDisk, MemoryLog};
pub use self::store::{Opening, store_conformance};
