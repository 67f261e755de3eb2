//! Tests of whole systems in one process, with real sockets and files.

#[path = "../../long.rs"]
mod long;

mod duplicate_ids;
mod homes;
mod job_lifecycle;
mod live_values;
mod many_kinds;
mod many_publishers;
mod protocol_document;
mod random_graphs;
mod recipes;
mod secured_system;
mod spinning_handler;
