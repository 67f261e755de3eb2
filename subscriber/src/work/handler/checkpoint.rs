//! Checkpoints: what an attempt stores for the attempts after it.

use bytes::Bytes;
use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;
use longshore_protocol::messages::work::RequestError;

use crate::{CancelReason, JobContext};

/// A durable checkpoint of an earlier attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The attempt that stored it. Two runs may have the same number if one of them was released or
    /// snoozed, or its worker stopped.
    pub attempt: u16,
    /// Its number within that run, from 1.
    pub sequence: u64,
    /// When its publisher stored it: the publisher's clock, in milliseconds since 1970.
    pub at: u64,
    /// The content.
    pub bytes: Bytes,
}

/// Why a checkpoint was not stored.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is too large; nothing was sent. Store large data elsewhere, and its location here.
    #[error("a checkpoint of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The limit: 65,536 bytes.
        limit: usize,
    },
    /// The handler was cancelled, and this attempt stores no more. The checkpoint may have been
    /// stored before.
    #[error("no checkpoint: {0}")]
    Lost(CancelReason),
    /// The handler of that attempt has returned, or its worker has stopped.
    #[error("no checkpoint: the attempt has ended")]
    Ended,
    /// The publisher has lost an earlier checkpoint of this attempt: without the durability
    /// `fsync`, a power cut loses the latest ones. This attempt can store no more; fail it, and the
    /// next one can.
    #[error(
        "the publisher has lost an earlier checkpoint of this attempt: its acknowledgements are \
         not synced"
    )]
    Gap,
    /// The publisher's disk is short of space. Retry later: it recovers by itself. Checkpoints of
    /// at most 4 KiB are still accepted.
    #[error("the publisher's disk has no space for checkpoints over 4 KiB; retry later")]
    NoSpace,
}

/// Why the checkpoints of earlier attempts cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointsError {
    /// The handler was cancelled, and this attempt reads no more.
    #[error("checkpoints cannot be read any more: {0}")]
    Lost(CancelReason),
    /// The handler of that attempt has returned, or its worker has stopped.
    #[error("checkpoints cannot be read any more: the attempt has ended")]
    Ended,
    /// The publisher cannot return them, for example because it cannot read its journal. Fail the
    /// attempt: the next one can try again.
    #[error("the checkpoints cannot be read: {0}")]
    Refused(RequestError),
}

/// The checkpoints of a job. All of these calls wait for the job's publisher, over reconnects, as
/// long as the lease is held. A handler that is cancelled because its worker stops
/// ([`CancelReason::Shutdown`]) can still store one. Calls for one job are served in the order of
/// their start.
impl JobContext {
    /// Stores a checkpoint for later attempts at this job: at most 65,536 bytes, as durable when
    /// this returns as the publisher's other acknowledgements. Returns its number within this
    /// delivery: 1, 2, 3 …
    ///
    /// A checkpoint whose answer is lost is sent again with the same number, and stored once. The
    /// publisher retains the newest 64 of a job, and of those the newest that together have at most
    /// 1 MiB, as long as it retains the job.
    ///
    /// ```
    /// # mod longshore { pub use longshore_subscriber::*; }
    /// use longshore::{Job, JobContext, JobFailure};
    ///
    /// async fn import(job: Job<Vec<u64>>, ctx: JobContext) -> Result<(), JobFailure> {
    ///     let done = match ctx.checkpoints().await?.last() {
    ///         Some(checkpoint) => serde_json::from_slice(&checkpoint.bytes)?,
    ///         None => 0,
    ///     };
    ///     for (row, number) in job.payload.iter().enumerate().skip(done) {
    ///         println!("{number}");
    ///         ctx.checkpoint(serde_json::to_vec(&(row + 1))?).await?;
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = import;
    /// ```
    ///
    /// If the future is dropped, the checkpoint may still be stored, now or later, whole and once,
    /// or not at all; later checkpoints are stored after it.
    pub async fn checkpoint(&self, bytes: impl Into<Bytes>) -> Result<u64, CheckpointError> {
        let bytes = within_limit(bytes.into())?;
        let _turn = self.signal.turn.lock().await;
        let session = self.signal.session.upgrade().ok_or(CheckpointError::Ended)?;
        let answer = session.checkpoint(self, bytes)?;
        drop(session);
        answer.await.unwrap_or(Err(CheckpointError::Ended))
    }

    /// [`JobContext::checkpoint`] for blocking handlers.
    ///
    /// # Panics
    ///
    /// Panics within an asynchronous handler, whose thread must not block.
    pub fn checkpoint_blocking(&self, bytes: impl Into<Bytes>) -> Result<u64, CheckpointError> {
        let bytes = within_limit(bytes.into())?;
        let _turn = self.signal.turn.blocking_lock();
        let session = self.signal.session.upgrade().ok_or(CheckpointError::Ended)?;
        let answer = session.checkpoint(self, bytes)?;
        drop(session);
        answer.blocking_recv().unwrap_or(Err(CheckpointError::Ended))
    }

    /// Returns the checkpoints of earlier attempts at this job, oldest first, including released
    /// attempts. Checkpoints of this delivery are not among them. Sends no request if there are
    /// none. Cancel safe.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, CheckpointsError> {
        if self.earlier == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.signal.turn.lock().await;
        let session = self.signal.session.upgrade().ok_or(CheckpointsError::Ended)?;
        let answer = session.checkpoints(self)?;
        drop(session);
        answer.await.unwrap_or(Err(CheckpointsError::Ended))
    }

    /// [`JobContext::checkpoints`] for blocking handlers.
    ///
    /// ```
    /// # mod longshore { pub use longshore_subscriber::*; }
    /// use longshore::{Job, JobContext, JobFailure};
    ///
    /// fn render(job: Job<String>, ctx: JobContext) -> Result<(), JobFailure> {
    ///     if ctx.checkpoints_blocking()?.is_empty() {
    ///         println!("layout of {}", job.payload);
    ///         ctx.checkpoint_blocking("laid out")?;
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = render;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics within an asynchronous handler, whose thread must not block.
    pub fn checkpoints_blocking(&self) -> Result<Vec<Checkpoint>, CheckpointsError> {
        if self.earlier == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.signal.turn.blocking_lock();
        let session = self.signal.session.upgrade().ok_or(CheckpointsError::Ended)?;
        let answer = session.checkpoints(self)?;
        drop(session);
        answer.blocking_recv().unwrap_or(Err(CheckpointsError::Ended))
    }
}

/// Checks the size before anything is sent: no publisher is needed to refuse it.
fn within_limit(bytes: Bytes) -> Result<Bytes, CheckpointError> {
    match bytes.len() {
        0..=CHECKPOINT_BYTES_MAX => Ok(bytes),
        over => Err(CheckpointError::TooLarge { bytes: over, limit: CHECKPOINT_BYTES_MAX }),
    }
}
