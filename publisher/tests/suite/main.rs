//! A publisher over real links, and a client that sends any message.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod client;
mod follow;
mod homes;
mod idle;
mod links;
mod memory;
mod messages;
#[path = "../../../tests/pem.rs"]
#[allow(dead_code, unreachable_pub)]
mod pem;
mod permissions;
mod quotas;
mod refused_batches;
mod schedules;
mod terms;
mod values;
