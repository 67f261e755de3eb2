//! What a handler receives and returns, and handlers as tower services.

pub(super) mod adapters;
pub(super) mod attempts;
mod checkpoint;
pub(super) mod failure;
mod job;
pub(super) mod output;
pub(super) mod panic;
mod parents;
mod payload;
pub(super) mod service;

pub use adapters::{Blocking, InPlace};
pub use checkpoint::{Checkpoint, CheckpointError, CheckpointsError};
pub use failure::JobFailure;
pub use job::{CancelReason, Job, JobContext};
pub use output::{JobOutput, Json};
pub use parents::{
    PARENT_JOBS_MAX, PARENT_RESULTS_BYTES_MAX, ParentJob, ParentPage, Parents, ParentsError,
};
pub use payload::{FromPayload, PayloadError};
pub use service::{Completion, HandlerFailed, JobRequest, JobService};
