//! Links over real sockets.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod audit;
mod authorization;
mod common;
mod handshake;
mod jwts;
mod links;
mod memory;
mod tls;
mod tokens;
mod unix;
