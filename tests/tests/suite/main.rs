//! Tests of whole systems in one process, with real sockets and files.

#[path = "../../long.rs"]
mod long;

mod jobs_document;
mod jobs_whole;
mod live_values;
mod main_job;
mod many_publishers;
mod one_id;
mod protocol_document;
