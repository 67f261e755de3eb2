//! The outcome of enqueued jobs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{
    BatchRefusal, Durability, EnqueueOutcome, JobId, JobRef, NameError, Path, PublisherId, Refusal,
    Runs,
};
use longshore_resolver::ReadError;

/// Proof that a publisher holds a job. Displays as its [`JobRef`]: eight hex digits of the
/// publisher's id, a colon, the job's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// The job and its publisher. With an idempotency key that a job has already, that job: its id
    /// may be another one.
    pub job: JobRef,
    /// The publisher already had the job: the same id or the same idempotency key, and the same
    /// payload. With a key, the job may have ended, or been deleted, since.
    pub existing: bool,
    /// The durability of the acknowledgement: with [`Durability::Fsync`] the job was synced to disk
    /// first.
    pub durability: Durability,
    /// Another publisher that may also hold the job: only with
    /// [`Failover::MayDuplicate`](crate::Failover::MayDuplicate).
    pub may_be_at: Option<PublisherId>,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.job.fmt(f)
    }
}

/// An option of a job is out of its range, so every publisher would refuse it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("BadOptions: {option} is {value}, outside {least} to {most}; set a value in this range")]
pub struct BadOption {
    /// The option, as in [`JobOptions`](longshore_protocol::JobOptions).
    pub option: &'static str,
    /// Its value. Times are in milliseconds; points in time count from 1970.
    pub value: u64,
    /// The least value.
    pub least: u64,
    /// The largest value.
    pub most: u64,
}

/// Why there is no receipt for a job. Every error but [`Unknown`](EnqueueError::Unknown) means that
/// no publisher has the job. With [`Failover::MayDuplicate`](crate::Failover::MayDuplicate),
/// [`Refused`](EnqueueError::Refused) only covers the publisher that it names: another one, which
/// went away, may hold the job.
///
/// | Error | What to do |
/// |---|---|
/// | `Name` | The producer's name is invalid: fix it where the producer is created. |
/// | `BadPayload`, `TooLarge`, `BadOption`, `Invalid`, `NotAtomic`, `PathRefused`, `IsValue` | Fix the job or the call: it would be refused again. |
/// | `NoPublisher` | No publisher has that path, or it has been away for minutes: check, then retry. |
/// | `NoHome`, `HomesDisagree` | Declare the same home at all publishers of the path. |
/// | `Resolver`, `NotSent`, `HomeAway` | Temporary: retry. |
/// | `Refused`, `BatchRefused` | [`Refusal`] and `protocol::BatchRefusal` document whether to retry. |
/// | `Unknown` | Look up the job by its id (`Queues::job`). A retry *with the same id* is idempotent at the same publisher, |
/// | | and a duplicate at another: if several have the path, use `Producer::to_publishers` with that one. |
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The producer's name ([`ProducerBuilder::name`](crate::ProducerBuilder::name)) is empty, or
    /// has more than 128 bytes. No link was made, and nothing was sent.
    #[error("the producer: {0}")]
    Name(#[from] NameError),
    /// The payload makes no job: the codec of its kind cannot encode it, or a parameter of the path
    /// is not one segment. Nothing was sent.
    #[error("the payload makes no job: {0}")]
    BadPayload(Arc<str>),
    /// The payload is over 16 MiB or the headers are over 8 KiB; the job was not sent. Store large
    /// data elsewhere, and enqueue its location.
    #[error("TooLarge: {what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// The oversized part: `payload` or `headers`.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// An option of the job is out of its range; the job was not sent.
    #[error(transparent)]
    BadOption(#[from] BadOption),
    /// The path cannot hold jobs; the job was not sent.
    #[error("{0}")]
    Invalid(Refusal),
    /// According to a replica with complete data, no publisher has the path or a default for it;
    /// the job was not sent.
    #[error(
        "nobody publishes {path}, and no publisher has a default for it; start one with: \
         longshore publisher run --path {path}, or with --default and a path above it"
    )]
    NoPublisher {
        /// The path.
        path: Path,
    },
    /// The path holds a live value, not a queue; the job was not sent. Use another path.
    #[error(
        "{path} is a live value of the publisher {publisher:?}; enqueue to another path, or stop \
         publishing the value"
    )]
    IsValue {
        /// The path.
        path: Path,
        /// The publisher's name.
        publisher: Arc<str>,
    },
    /// The resolver refuses the path; the job was not sent.
    #[error("the resolver refused {path}: {reason}")]
    PathRefused {
        /// The path.
        path: Path,
        /// The reason, for people.
        reason: Arc<str>,
    },
    /// No replica could be reached; the job was not sent.
    #[error("{path} could not be resolved: {error}")]
    Resolver {
        /// The path.
        path: Path,
        /// The error of each replica.
        error: Arc<ReadError>,
    },
    /// The path has several publishers and no home, and the job has an idempotency key, which is
    /// exact at one publisher only; the job was not sent.
    #[error(
        "NoHome: {path} has {why}, and idempotency keys are exact at one publisher only; declare \
         its home at all publishers: --home '{path}=NAME', or \"{path}\" = \"NAME\" below [homes]"
    )]
    NoHome {
        /// The path.
        path: Path,
        /// What it has instead of one home.
        why: Arc<str>,
    },
    /// The publishers of the path declare different homes for it, or two of them have the name of
    /// its home, and the job has an idempotency key; it was not sent.
    #[error(
        "HomesDisagree: {path} has {why}; declare the same home at all of them (longshore home ls \
         shows the declarations), and give each publisher its own name"
    )]
    HomesDisagree {
        /// The path.
        path: Path,
        /// The declarations, or the publishers with one name.
        why: Arc<str>,
    },
    /// The home of the job's path, the only publisher that may get a job with an idempotency key,
    /// did not take it within
    /// [`ProducerBuilder::answer_timeout`](crate::ProducerBuilder::answer_timeout). No publisher
    /// has it.
    #[error("HomeAway: the home of its path did not take the job within {waited:?}: {why}")]
    HomeAway {
        /// The time waited.
        waited: Duration,
        /// What it waited for.
        why: Arc<str>,
    },
    /// The publisher refused the job.
    #[error("publisher {} refused the job: {refusal}", .publisher.prefix())]
    Refused {
        /// The publisher.
        publisher: PublisherId,
        /// The reason, which documents what to do.
        refusal: Refusal,
    },
    /// The publisher refused the whole batch of the job.
    #[error("publisher {} refused the batch: {refusal}", .publisher.prefix())]
    BatchRefused {
        /// The publisher.
        publisher: PublisherId,
        /// The reason.
        refusal: BatchRefusal,
    },
    /// The publisher may or may not have the job: it was sent, and no answer arrived in time. Look
    /// it up there by its id.
    #[error(
        "Unknown: {} jobs may or may not be at publisher {}: {why}",
        .ids.len(), .publisher.prefix()
    )]
    Unknown {
        /// The publisher.
        publisher: PublisherId,
        /// All jobs of the batch, including this one: concurrent callers share batches.
        ids: Arc<[JobId]>,
        /// Why there is no answer.
        why: Arc<str>,
    },
    /// The job was not sent within
    /// [`ProducerBuilder::answer_timeout`](crate::ProducerBuilder::answer_timeout). No publisher
    /// has it.
    #[error("not sent within {waited:?}: {why}")]
    NotSent {
        /// The time waited.
        waited: Duration,
        /// What it waited for.
        why: Arc<str>,
    },
    /// The jobs of an atomic call do not fit into one batch of 10,000 jobs, 16 MiB of payload and
    /// 18 MiB encoded, or no publisher has all of their paths. None was sent.
    #[error("an atomic call must fit into one batch at one publisher: {0}")]
    NotAtomic(Arc<str>),
    /// The producer has ended; the job was not sent. Not returned while the program has a clone of
    /// the producer.
    #[error("the producer is closed")]
    Closed,
}

impl EnqueueError {
    /// True if a publisher may have the job ([`Unknown`](EnqueueError::Unknown)). All other errors
    /// mean that none has it, with the exception that [`EnqueueError`] documents.
    pub fn is_unknown(&self) -> bool {
        matches!(self, EnqueueError::Unknown { .. })
    }

    /// True if it applies to all jobs of the path, as long as it has no route.
    pub(crate) fn is_of_the_path(&self) -> bool {
        matches!(
            self,
            EnqueueError::NoPublisher { .. }
                | EnqueueError::IsValue { .. }
                | EnqueueError::PathRefused { .. }
                | EnqueueError::Resolver { .. }
                | EnqueueError::NoHome { .. }
                | EnqueueError::HomesDisagree { .. }
                | EnqueueError::HomeAway { .. }
                | EnqueueError::NotSent { .. }
        )
    }
}

/// What became of one of several jobs.
#[derive(Clone, PartialEq, Debug)]
pub struct EnqueueResult {
    /// The number of the job within its pipeline or its call: 0, 1, 2 …
    pub index: u64,
    /// The job's id.
    pub id: JobId,
    /// Its receipt, or the error.
    pub outcome: Result<Receipt, EnqueueError>,
}

/// The outcome of one batch.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchReceipt {
    pub(crate) ids: Arc<[JobId]>,
    /// The jobs' indices as runs: the first one, and their number.
    pub(crate) indices: Vec<(u64, u32)>,
    pub(crate) end: BatchOutcome,
}

/// The outcome of a batch, for all of its jobs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum BatchOutcome {
    Answered {
        publisher: PublisherId,
        durability: Durability,
        outcomes: Runs<EnqueueOutcome>,
        may_be_at: Option<PublisherId>,
    },
    Unknown {
        publisher: PublisherId,
        why: Arc<str>,
    },
    /// Never sent, or refused as a whole.
    Failed(EnqueueError),
}

impl BatchReceipt {
    /// The number of jobs.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True if there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The number of accepted jobs: created, or existing before. Takes time per run of equal
    /// outcomes, not per job.
    pub fn accepted(&self) -> usize {
        match &self.end {
            BatchOutcome::Answered { outcomes, .. } => outcomes
                .runs()
                .iter()
                .filter(|(outcome, _)| !matches!(outcome, EnqueueOutcome::Refused(_)))
                .map(|&(_, count)| count as usize)
                .sum(),
            BatchOutcome::Unknown { .. } | BatchOutcome::Failed(_) => 0,
        }
    }

    /// The publisher that answered, if one did.
    pub fn publisher(&self) -> Option<PublisherId> {
        match &self.end {
            BatchOutcome::Answered { publisher, .. } => Some(*publisher),
            BatchOutcome::Unknown { .. } | BatchOutcome::Failed(_) => None,
        }
    }

    /// The outcome of each job, in the order of the batch.
    pub fn iter(&self) -> impl Iterator<Item = EnqueueResult> + '_ {
        let indices =
            self.indices.iter().flat_map(|&(first, count)| first..first + u64::from(count));
        let outcomes: Box<dyn Iterator<Item = Result<Receipt, EnqueueError>> + '_> = match &self.end
        {
            BatchOutcome::Answered { outcomes, .. } => Box::new(
                outcomes
                    .iter()
                    .enumerate()
                    .map(move |(index, outcome)| self.outcome_of(index, outcome)),
            ),
            _ => Box::new(std::iter::repeat_with(|| self.outcome(0))),
        };
        self.ids.iter().zip(indices).zip(outcomes).map(|((&id, index), outcome)| EnqueueResult {
            index,
            id,
            outcome,
        })
    }

    /// The outcome of the job at `index`.
    pub(crate) fn outcome(&self, index: usize) -> Result<Receipt, EnqueueError> {
        match &self.end {
            BatchOutcome::Answered { outcomes, .. } => match outcomes.iter().nth(index) {
                Some(outcome) => self.outcome_of(index, outcome),
                // The state machine has checked the number of outcomes.
                None => Err(EnqueueError::Closed),
            },
            BatchOutcome::Unknown { publisher, why } => Err(EnqueueError::Unknown {
                publisher: *publisher,
                ids: self.ids.clone(),
                why: why.clone(),
            }),
            BatchOutcome::Failed(error) => Err(error.clone()),
        }
    }

    fn outcome_of(&self, index: usize, outcome: EnqueueOutcome) -> Result<Receipt, EnqueueError> {
        let BatchOutcome::Answered { publisher, durability, may_be_at, .. } = &self.end else {
            return Err(EnqueueError::Closed);
        };
        let own = self.ids[index];
        let (id, existing) = match outcome {
            EnqueueOutcome::Created => (own, false),
            EnqueueOutcome::Existing => (own, true),
            EnqueueOutcome::ExistingKey(id) => (id, true),
            EnqueueOutcome::Refused(refusal) => {
                let refused = EnqueueError::Refused { publisher: *publisher, refusal };
                let Some(first) = *may_be_at else { return Err(refused) };
                // The first publisher may have the job, and has not answered.
                let ids = Arc::from([own]);
                let why = refused.to_string().into();
                return Err(EnqueueError::Unknown { publisher: first, ids, why });
            }
        };
        Ok(Receipt {
            job: JobRef { publisher: *publisher, id },
            existing,
            durability: *durability,
            may_be_at: *may_be_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_elsewhere_leaves_the_job_unknown() {
        let (first, second) = (PublisherId([1; 16]), PublisherId([2; 16]));
        let id = JobId::default();
        let receipt = |may_be_at| BatchReceipt {
            ids: [id].into(),
            indices: vec![(0, 1)],
            end: BatchOutcome::Answered {
                publisher: second,
                durability: Durability::Fsync,
                outcomes: Runs::all(EnqueueOutcome::Refused(Refusal::NoSpace), 1),
                may_be_at,
            },
        };
        let refused = EnqueueError::Refused { publisher: second, refusal: Refusal::NoSpace };
        let why = refused.to_string().into();
        let unknown = EnqueueError::Unknown { publisher: first, ids: [id].into(), why };
        assert_eq!(receipt(None).outcome(0), Err(refused));
        assert_eq!(receipt(Some(first)).outcome(0), Err(unknown.clone()));
        let outcome = receipt(Some(first)).iter().next().map(|job| job.outcome);
        assert_eq!(outcome, Some(Err(unknown)));
    }
}
