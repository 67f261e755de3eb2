//! The types that most programs need: `use longshore::prelude::*;`. All of them are also at the
//! root of the crate.

pub use crate::{Cluster, JobKind, JobOptions, NewJob, Path};
#[cfg(feature = "worker")]
pub use crate::{Job, JobContext, JobFailure, Json, Payload, State, Worker};
#[cfg(feature = "producer")]
pub use crate::{Producer, Queues, new_job};
