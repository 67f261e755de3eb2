//! Replicas and their clients over real sockets.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod common;
mod hostile_replicas;
mod limits;
#[path = "../../../tests/long.rs"]
mod long;
mod minimal_clients;
mod watches_at_size;
