//! Checkpoints, as handlers see them: what an attempt leaves behind for the attempts after it.

use bytes::Bytes;
use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;
use longshore_protocol::messages::work::RequestError;

use crate::{CancelReason, JobContext};

/// Something durable that an earlier attempt at a job has left behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The attempt that left it. Two runs may have the same number, one of them given back: a
    /// release, a snooze, a worker that stopped.
    pub attempt: u16,
    /// Its number within that run, from 1.
    pub sequence: u64,
    /// When its publisher stored it: the publisher's clock, in milliseconds since 1970.
    pub at: u64,
    /// What was left.
    pub bytes: Bytes,
}

/// Why a checkpoint was not stored.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is too large; nothing was sent. Store the large thing elsewhere, and here where it is.
    #[error("a checkpoint of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have: 65,536.
        limit: usize,
    },
    /// The handler is to stop, and this attempt stores no more. The checkpoint may have been stored
    /// before that.
    #[error("no checkpoint: {0}")]
    Lost(CancelReason),
    /// The handler of that attempt has returned, or its worker has stopped.
    #[error("no checkpoint: the attempt has ended")]
    FinishedJob,
    /// The publisher lacks an earlier checkpoint of this attempt that it had taken: without the
    /// durability `fsync`, it has lost the last of what it had in a power cut. This attempt can
    /// store no more; fail it, and the next one can.
    #[error(
        "the publisher has lost an earlier checkpoint of this attempt: its acknowledgements are not synced"
    )]
    Gap,
    /// The publisher's disk is short of room. Try again later: it resumes by itself; checkpoints of
    /// at most 4 KiB are taken all the same.
    #[error("the publisher's disk has no room for checkpoints over 4 KiB; try again later")]
    NoSpace,
}

/// Why the checkpoints of earlier attempts cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointsError {
    /// The handler is to stop, and this attempt is told no more.
    #[error("checkpoints are not to be read any more: {0}")]
    Lost(CancelReason),
    /// The handler of that attempt has returned, or its worker has stopped.
    #[error("checkpoints are not to be read any more: the attempt has ended")]
    FinishedJob,
    /// The publisher has them and does not give them, as when it cannot read its journal. Fail the
    /// attempt: the next one asks again.
    #[error("the checkpoints cannot be read: {0}")]
    Refused(RequestError),
}

/// One job's checkpoints. All of these wait for the job's publisher, over reconnects, for as long
/// as the lease is held; a handler that is told to stop because its worker does
/// ([`CancelReason::Shutdown`]) can still leave one. Calls for one job take turns, in the order in
/// which they began to wait.
impl JobContext {
    /// Leaves something for later attempts at this job: at most 65,536 bytes, durable when this
    /// returns (as durable as the publisher's other acknowledgements). Gives its number: 1, 2, 3 …
    /// within this delivery.
    ///
    /// A checkpoint whose answer is lost is sent again with the same number, and stored once. Of
    /// one job the newest 64 are kept, and of those the newest that together have at most 1 MiB,
    /// for as long as the job is.
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
    /// Cancel safe in this sense: what a call that was dropped before it returned was to store may
    /// be stored all the same, now or later, whole and once, or not at all; whatever is left after
    /// it is stored after it.
    pub async fn checkpoint(&self, bytes: impl Into<Bytes>) -> Result<u64, CheckpointError> {
        let bytes = within_limit(bytes.into())?;
        let _turn = self.signal.turn.lock().await;
        let session = self.signal.session.upgrade().ok_or(CheckpointError::FinishedJob)?;
        let answer = session.checkpoint(self, bytes)?;
        drop(session);
        answer.await.unwrap_or(Err(CheckpointError::FinishedJob))
    }

    /// [`JobContext::checkpoint`] for a handler that blocks its thread.
    ///
    /// # Panics
    ///
    /// Within an asynchronous handler, whose thread is not to be blocked.
    pub fn checkpoint_blocking(&self, bytes: impl Into<Bytes>) -> Result<u64, CheckpointError> {
        let bytes = within_limit(bytes.into())?;
        let _turn = self.signal.turn.blocking_lock();
        let session = self.signal.session.upgrade().ok_or(CheckpointError::FinishedJob)?;
        let answer = session.checkpoint(self, bytes)?;
        drop(session);
        answer.blocking_recv().unwrap_or(Err(CheckpointError::FinishedJob))
    }

    /// What earlier attempts at this job have left, oldest first, those given back among them; what
    /// this delivery itself has left is not told. Where there is nothing, nobody is asked. Cancel
    /// safe.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, CheckpointsError> {
        if self.earlier == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.signal.turn.lock().await;
        let session = self.signal.session.upgrade().ok_or(CheckpointsError::FinishedJob)?;
        let answer = session.checkpoints(self)?;
        drop(session);
        answer.await.unwrap_or(Err(CheckpointsError::FinishedJob))
    }

    /// [`JobContext::checkpoints`] for a handler that blocks its thread.
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
    /// Within an asynchronous handler, whose thread is not to be blocked.
    pub fn checkpoints_blocking(&self) -> Result<Vec<Checkpoint>, CheckpointsError> {
        if self.earlier == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.signal.turn.blocking_lock();
        let session = self.signal.session.upgrade().ok_or(CheckpointsError::FinishedJob)?;
        let answer = session.checkpoints(self)?;
        drop(session);
        answer.blocking_recv().unwrap_or(Err(CheckpointsError::FinishedJob))
    }
}

/// Refused before anything is sent: it is this attempt's mistake, and needs no publisher to say so.
fn within_limit(bytes: Bytes) -> Result<Bytes, CheckpointError> {
    match bytes.len() {
        0..=CHECKPOINT_BYTES_MAX => Ok(bytes),
        over => Err(CheckpointError::TooLarge { bytes: over, limit: CHECKPOINT_BYTES_MAX }),
    }
}
