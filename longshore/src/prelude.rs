//! The types that most programs need: `use longshore::prelude::*;`. All of them are also at the
//! root of the crate.

pub use crate::{Cluster, JobOptions, NewJob, Path};
#[cfg(feature = "worker")]
pub use crate::{Job, JobContext, JobFailure, Json, Worker, WorkerOptions};
#[cfg(feature = "producer")]
pub use crate::{Producer, ProducerOptions, Queues, new_job};
