//! The types that most programs need: `use longshore::prelude::*;`. All of them are also at the
//! root of the crate. [`Path`](crate::Path), `State` and `Json` are only there: a glob import must
//! not hide `std::path::Path`, nor be hidden by axum's types of these names.

pub use crate::{After, Cluster, JobKind, JobOptions, NewJob};
#[cfg(feature = "worker")]
pub use crate::{Job, JobContext, JobFailure, Parents, Payload, Worker};
#[cfg(feature = "producer")]
pub use crate::{Producer, Queues, Workflow, new_job};
