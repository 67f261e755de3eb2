//! Kinds of jobs: a type that is a job's payload, the path where its jobs are enqueued, the options
//! that they have, and what their handler returns.
//!
//! - [`JobKind`] is the trait; `#[derive(JobKind)]` of the crate `longshore` implements it.
//! - [`Codec`] writes payloads and outputs; [`JsonCodec`] unless a kind names another.
//! - [`IntoJob`] is what a producer takes: a value of a kind, or a
//!   [`NewJob`](longshore_protocol::NewJob) made by hand.

mod codec;
mod into_job;
mod kind;
mod template;

pub use codec::{Codec, CodecError, JsonCodec};
pub use into_job::{IntoJob, JobNotMade};
pub use kind::JobKind;
pub use template::{ParameterError, fill, pattern};
