//! Tests of the public interface of access control: arbitrary input.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic)]

mod bodies;
mod fuzz_bodies;
