//! What a job's context asks of the side that holds its lease: a worker's session, or a test.

use std::time::Duration;

use bytes::Bytes;
use longshore_protocol::JobId;
use longshore_protocol::messages::work::JobsPage;
use tokio::sync::oneshot;

use crate::work::session::WorkerSession;
use crate::{Checkpoint, CheckpointError, CheckpointsError, JobContext};

/// Receives the answer to a checkpoint: its number.
pub type StoreAnswer = oneshot::Receiver<Result<u64, CheckpointError>>;
/// Receives the checkpoints of earlier attempts.
pub type ReadAnswer = oneshot::Receiver<Result<Vec<Checkpoint>, CheckpointsError>>;
/// Receives a page of a job's parents.
pub type ParentsAnswer = oneshot::Receiver<Result<JobsPage, CheckpointsError>>;

/// Holds the leases of jobs that run.
pub trait LeaseHost: Send + Sync {
    /// Until when a lease that ends at `ends` is certain to hold at the publisher. Both count from
    /// the host's start.
    fn deadline(&self, context: &JobContext, ends: Duration) -> Duration;

    /// The job's signal has progress to send.
    fn progress(&self, context: &JobContext);

    /// Stores a checkpoint.
    fn checkpoint(
        &self,
        context: &JobContext,
        bytes: Bytes,
    ) -> Result<StoreAnswer, CheckpointError>;

    /// Requests the checkpoints of earlier attempts.
    fn checkpoints(&self, context: &JobContext) -> Result<ReadAnswer, CheckpointsError>;

    /// Requests a page of a parent of the job, and of its members if it is a batch.
    fn parent_jobs(
        &self,
        context: &JobContext,
        parent: JobId,
        cursor: u64,
    ) -> Result<ParentsAnswer, CheckpointsError>;
}

impl LeaseHost for WorkerSession {
    fn deadline(&self, context: &JobContext, ends: Duration) -> Duration {
        self.deadline(context.slot_id, ends)
    }

    fn progress(&self, context: &JobContext) {
        self.progress(context.slot_id, context.token);
    }

    fn checkpoint(
        &self,
        context: &JobContext,
        bytes: Bytes,
    ) -> Result<StoreAnswer, CheckpointError> {
        self.checkpoint(context, bytes)
    }

    fn checkpoints(&self, context: &JobContext) -> Result<ReadAnswer, CheckpointsError> {
        self.checkpoints(context)
    }

    fn parent_jobs(
        &self,
        context: &JobContext,
        parent: JobId,
        cursor: u64,
    ) -> Result<ParentsAnswer, CheckpointsError> {
        self.parent_jobs(context, parent, cursor)
    }
}
