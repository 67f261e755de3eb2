//! What the tests of the protocol share. Each test file uses a part of it.
#![allow(dead_code, unreachable_pub, clippy::panic)]

pub mod bodies;
pub mod golden;
pub mod samples;
