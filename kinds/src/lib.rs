//! Kinds of jobs. A kind is the type of a payload, with the queue and the options of its jobs, and
//! the type that their handler returns.
//!
//! - [`JobKind`] is the trait; `#[derive(JobKind)]` of the crate `longshore` implements it.
//! - [`Codec`] encodes payloads and outputs; [`JsonCodec`] is the default.
//! - [`IntoJob`] is what a producer accepts: a value of a kind, or a
//!   [`NewJob`](longshore_protocol::NewJob).

mod codec;
mod into_job;
mod kind;
mod template;

pub use codec::{Codec, CodecError, JsonCodec};
pub use into_job::{BadPayload, IntoJob};
pub use kind::{After, JobKind};
pub use template::{ParameterError, fill, pattern};
