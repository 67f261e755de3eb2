//! What most programs need: `use longshore::prelude::*;`

pub use crate::{
    Cluster, Job, JobContext, JobFailure, JobOptions, Json, NewJob, Path, Producer,
    ProducerOptions, Queues, Worker, WorkerOptions, new_job,
};
