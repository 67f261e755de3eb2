//! Batches: jobs that others wait for together.

use crate::fields::codes;
use crate::id::JobId;
use crate::job::{EntryHead, NewJob};

codes! {
    /// A job that is a batch: no worker runs it. It is blocked until it is closed and its members
    /// have ended, and then ends itself: completed if all members completed, dead if one is dead,
    /// otherwise cancelled. Jobs [after](NewJob::after) it are its callbacks.
    #[derive(Default)]
    NewBatch, "kind of a batch" {
        /// It gets members until it is closed ([`Action::CloseBatch`]).
        ///
        /// [`Action::CloseBatch`]: crate::messages::work::Action::CloseBatch
        #[default]
        Open = 0, "open";
        /// Its members are the jobs that are enqueued with it, in one atomic batch of a producer:
        /// otherwise it is refused.
        Closed = 1, "closed";
    }
}

impl NewJob {
    /// Makes the job a batch, which jobs may [join](NewJob::in_batch). Its payload is for readers,
    /// and no worker runs it. It has no keys but an idempotency key, no parents, and no delay or
    /// time; it may expire, which cancels its members.
    #[must_use]
    pub fn batch(mut self, kind: NewBatch) -> NewJob {
        self.keys_mut().batch = Some(kind);
        self
    }

    /// Makes the job a member of a batch, which may be a batch itself, up to 8 deep. The batch is
    /// there before, like a [parent](NewJob::after); otherwise the job is refused
    /// ([`Refusal::ParentGone`](crate::Refusal::ParentGone)), and if the batch is closed or has
    /// ended, too ([`Refusal::BatchClosed`](crate::Refusal::BatchClosed)).
    #[must_use]
    pub fn in_batch(mut self, batch: JobId) -> NewJob {
        self.keys_mut().member_of = Some(batch);
        self
    }
}

impl EntryHead {
    /// What kind of a batch it is, if it is one.
    pub fn batch(&self) -> Option<NewBatch> {
        self.keys.as_ref()?.batch
    }

    /// The batch that it is a member of.
    #[inline]
    pub fn member_of(&self) -> Option<JobId> {
        self.keys.as_ref()?.member_of
    }
}
