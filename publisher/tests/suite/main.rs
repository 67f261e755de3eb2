//! A publisher over real links, and a client that sends any message.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod client;
mod follow;
mod idle;
mod links;
mod memory;
mod messages;
mod permissions;
mod terms;
mod values;
