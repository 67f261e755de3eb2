//! The types that most programs need: `use longshore::prelude::*;`. All of them are also at the
//! root of the crate. [`Path`](crate::Path) is only there: a glob import must not hide
//! `std::path::Path` behind a type that works differently.

pub use crate::{Cluster, JobKind, JobOptions, NewJob};
#[cfg(feature = "worker")]
pub use crate::{Job, JobContext, JobFailure, Json, Payload, State, Worker};
#[cfg(feature = "producer")]
pub use crate::{Producer, Queues, new_job};
