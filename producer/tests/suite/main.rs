//! Producers and tools against scripted publishers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actions;
mod confirm;
mod enqueue;
mod enqueue_all;
mod fake;
mod feed;
mod pipeline;
mod queues;
mod wait;
