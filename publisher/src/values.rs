//! Live values.
mod core;
pub mod limits;
