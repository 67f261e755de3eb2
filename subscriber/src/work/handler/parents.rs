//! The jobs that a job waited for: how they ended, and their results.

use std::marker::PhantomData;

use bytes::Bytes;
use longshore_kinds::{Codec, CodecError, JobKind, ParameterError};
use longshore_protocol::messages::work::{JobInfo, RequestError};
use longshore_protocol::{Glob, JobId, JobState, Parent, Path};

use crate::work::lease_host::ParentsAnswer;
use crate::{CancelReason, CheckpointsError, JobContext};

/// Most jobs that [`JobContext::parent_jobs`] and [`Parents`] read of one parent.
pub const PARENT_JOBS_MAX: usize = 10_000;
/// Most bytes of their results.
pub const PARENT_RESULTS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A job that another one waited for, or a member of a batch that it waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParentJob {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub path: Path,
    /// How it ended. It may have been revived since.
    pub state: JobState,
    /// Its result, if it completed and keeps one.
    pub result: Option<Bytes>,
    /// True of a batch, which has no result.
    pub is_batch: bool,
}

/// Why the parents of a job cannot be read. All but `Lost` and `Ended` fail the attempt as other
/// errors do; retries help against `Refused`.
#[derive(Debug, thiserror::Error)]
pub enum ParentsError {
    /// The handler was cancelled, and this attempt reads no more.
    #[error("parents cannot be read any more: {0}")]
    Lost(CancelReason),
    /// The handler of that attempt has returned, or its worker has stopped.
    #[error("parents cannot be read any more: the attempt has ended")]
    Ended,
    /// The publisher cannot return them, for example because it cannot read its journal.
    #[error("the parents cannot be read: {0}")]
    Refused(RequestError),
    /// The parent, or members of it, are no longer known: they ended longer ago than their queue
    /// keeps jobs, or its number of ended jobs was reached, or they were dropped or replaced.
    #[error(
        "the publisher no longer knows all of parent {0}: its queue keeps ended jobs for a shorter \
         time, or fewer of them, or it was dropped or replaced; keep more of them for longer \
         (longshore queue set --keep, --keep-jobs)"
    )]
    Forgotten(JobId),
    /// There are more than 10,000 jobs, or more than 64 MiB of results. Read them page by page
    /// ([`JobContext::parent_page`]).
    #[error("parent {0} has more than 10,000 jobs or 64 MiB of results; read it page by page")]
    TooMany(JobId),
    /// The job completed without a result: it does not keep one (`keep_result`).
    #[error("parent {0} completed without a result; its kind needs keep_result")]
    NoResult(JobId),
    /// The result does not decode as the output of its kind.
    #[error("the result of parent {job} does not decode: {error}")]
    NotDecoded {
        /// The parent.
        job: JobId,
        /// Why.
        error: CodecError,
    },
    /// [`Parents::output`] found none, or several.
    #[error("{0} parents of the kind have completed; expected one")]
    NotOne(usize),
    /// The kind's path is none.
    #[error(transparent)]
    Path(#[from] ParameterError),
}

impl From<CheckpointsError> for ParentsError {
    fn from(error: CheckpointsError) -> ParentsError {
        match error {
            CheckpointsError::Lost(why) => ParentsError::Lost(why),
            CheckpointsError::Ended => ParentsError::Ended,
            CheckpointsError::Refused(why) => ParentsError::Refused(why),
        }
    }
}

/// A page of a parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParentPage {
    /// The jobs: on the first page the parent itself first.
    pub jobs: Vec<ParentJob>,
    /// Where the next page begins.
    pub next: Option<u64>,
}

impl JobContext {
    /// The jobs that it waited for, as its producer named them; empty for most jobs.
    pub fn parents(&self) -> &[Parent] {
        self.parents.as_deref().unwrap_or_default()
    }

    /// A parent of the job and, if it is a batch, its members and theirs, by their ids. Waits for
    /// the publisher, over reconnects, as long as the lease is held. Cancel safe.
    pub async fn parent_jobs(&self, parent: JobId) -> Result<Vec<ParentJob>, ParentsError> {
        let (mut jobs, mut bytes, mut next) = (Vec::new(), 0, Some(0));
        let mut found = Found::default();
        while let Some(cursor) = next {
            let (page, following) = self.read_parents(parent, cursor).await?;
            next = following;
            for job in page {
                found.add(&job, job.id == parent);
                bytes += job.result.as_ref().map_or(0, Bytes::len);
                jobs.push(parent_job(job));
            }
            // The parent itself is no member.
            if jobs.len() > PARENT_JOBS_MAX + 1 || bytes > PARENT_RESULTS_BYTES_MAX {
                return Err(ParentsError::TooMany(parent));
            }
        }
        if !found.is_whole() {
            return Err(ParentsError::Forgotten(parent));
        }
        jobs.sort_unstable_by_key(|job| job.id);
        Ok(jobs)
    }

    /// The page of a parent that begins at `cursor`, 0 for the first one: up to 100 jobs and 4 MiB,
    /// or one job. A page may be empty without being the last. For parents that are too large for
    /// [`JobContext::parent_jobs`]. Cancel safe.
    pub async fn parent_page(
        &self,
        parent: JobId,
        cursor: u64,
    ) -> Result<ParentPage, ParentsError> {
        let (jobs, next) = self.read_parents(parent, cursor).await?;
        Ok(ParentPage { jobs: jobs.into_iter().map(parent_job).collect(), next })
    }

    async fn read_parents(
        &self,
        parent: JobId,
        cursor: u64,
    ) -> Result<(Vec<JobInfo>, Option<u64>), ParentsError> {
        let _turn = self.signal.turn.lock().await;
        let session = self.signal.session.upgrade().ok_or(ParentsError::Ended)?;
        let answer: ParentsAnswer = session.parent_jobs(self, parent, cursor)?;
        drop(session);
        let page = answer.await.unwrap_or(Err(CheckpointsError::Ended))?;
        Ok((page.jobs, page.next))
    }
}

/// What the pages of a parent have.
#[derive(Default)]
struct Found {
    /// The parent itself is among them.
    is_known: bool,
    /// Members that have completed, as the batches count them.
    expected: u64,
    /// Members that have completed, or may complete before the page of their batch.
    listed: u64,
}

impl Found {
    fn add(&mut self, job: &JobInfo, is_parent: bool) {
        self.is_known |= is_parent;
        self.expected += job.batch.map_or(0, |batch| batch.completed);
        let may_count = job.state == JobState::Completed || !job.state.is_end();
        self.listed += u64::from(!is_parent && may_count);
    }

    /// Nothing of it is forgotten. While it runs, nothing of it can be.
    fn is_whole(&self) -> bool {
        self.is_known && self.listed >= self.expected
    }
}

fn parent_job(job: JobInfo) -> ParentJob {
    let JobInfo { id, path, state, result, batch, .. } = job;
    ParentJob { id, path, state, result, is_batch: batch.is_some() }
}

/// The outputs of the parents of the kind `K`: an argument of a handler. Of a batch, those of its
/// members.
///
/// ```
/// # mod longshore { pub use longshore_subscriber::*; pub use longshore_kinds::*; }
/// # use longshore::{JobKind, JsonCodec, Parents, Payload};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Count;
/// # impl JobKind for Count {
/// #     const PATH: &'static str = "/count";
/// #     type Output = u64;
/// #     type Codec = JsonCodec;
/// #     fn path(&self) -> Result<longshore_protocol::Path, longshore::ParameterError> {
/// #         unimplemented!()
/// #     }
/// # }
/// # type Sum = Count;
/// async fn sum(_: Payload<Sum>, counts: Parents<Count>) -> anyhow::Result<u64> {
///     Ok(counts.outputs().await?.into_iter().sum())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Parents<K> {
    context: JobContext,
    kind: PhantomData<fn() -> K>,
}

impl<K: JobKind> Parents<K> {
    pub(crate) fn of(context: &JobContext) -> Parents<K> {
        Parents { context: context.clone(), kind: PhantomData }
    }

    /// The outputs of all that have completed, by the order of their parents, and within a batch by
    /// their ids, which a workflow gives out in the order of its items. At most 10,000
    /// jobs and 64 MiB of each parent. Cancel safe.
    pub async fn outputs(&self) -> Result<Vec<K::Output>, ParentsError> {
        let pattern: Glob = K::pattern()?;
        let mut outputs = Vec::new();
        for parent in self.context.parents() {
            for job in self.context.parent_jobs(parent.job).await? {
                if job.is_batch || job.state != JobState::Completed || !pattern.matches(&job.path) {
                    continue;
                }
                let result = job.result.ok_or(ParentsError::NoResult(job.id))?;
                let output = <K::Codec as Codec<K::Output>>::decode(&result);
                outputs
                    .push(output.map_err(|error| ParentsError::NotDecoded { job: job.id, error })?);
            }
        }
        Ok(outputs)
    }

    /// The output of the only one that has completed. Cancel safe.
    pub async fn output(&self) -> Result<K::Output, ParentsError> {
        let mut outputs = self.outputs().await?;
        match outputs.pop() {
            Some(output) if outputs.is_empty() => Ok(output),
            one => Err(ParentsError::NotOne(outputs.len() + usize::from(one.is_some()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::work::BatchInfo;

    use super::*;

    #[test]
    fn a_batch_that_runs_while_it_is_read_is_whole() {
        let info = |state| JobInfo::new(JobId([1; 16]), "/a".parse().unwrap(), state);
        let batch = |state, completed| {
            let batch = Some(BatchInfo { completed, ..BatchInfo::default() });
            JobInfo { batch, ..info(state) }
        };
        let is_whole = |members: &[JobState], batch: JobInfo| {
            let mut found = Found::default();
            members.iter().for_each(|&state| found.add(&info(state), false));
            found.add(&batch, true);
            found.is_whole()
        };
        // Its member ran when its page was read, and has completed since.
        assert!(is_whole(&[JobState::Running], batch(JobState::Blocked, 1)));
        assert!(is_whole(&[JobState::Completed, JobState::Dead], batch(JobState::Dead, 1)));
        assert!(!is_whole(&[JobState::Completed], batch(JobState::Completed, 2)));
        assert!(!Found::default().is_whole());
    }
}
