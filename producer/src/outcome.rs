//! What becomes of jobs that were enqueued.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{
    BatchRefusal, Durability, EnqueueOutcome, JobId, JobRef, NameError, Path, PublisherId, Refusal,
    Runs,
};
use longshore_resolver::ReadError;

/// Proof that a publisher holds a job. Printed as its [`JobRef`]: eight hex digits of the
/// publisher's id, a colon, the job's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// The job, at the publisher that holds it.
    pub job: JobRef,
    /// The publisher had it already: the same id, the same payload.
    pub existing: bool,
    /// How durable the publisher's word is: with [`Durability::Fsync`] the job was synced to its
    /// disk before this was said.
    pub durability: Durability,
    /// Another publisher that may hold the job too: only with
    /// [`Failover::MayDuplicate`](crate::Failover::MayDuplicate).
    pub may_be_at: Option<PublisherId>,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.job.fmt(f)
    }
}

/// Why there is no receipt for a job. Every one but [`Unknown`](EnqueueError::Unknown) says that
/// the job is nowhere; with [`Failover::MayDuplicate`](crate::Failover::MayDuplicate),
/// [`Refused`](EnqueueError::Refused) speaks for the publisher that it names alone: another, which
/// went away, may hold the job.
///
/// | What | What to do |
/// |---|---|
/// | `Name` | The producer's own name is wrong, and nothing can be sent under it: mend it where the producer is made. |
/// | `TooLarge`, `Invalid`, `NotAtomic`, `PathRefused`, `IsValue` | The job or the call is wrong: it would be refused again. Mend it. |
/// | `NoPublisher` | Nobody is set up for that path, or its publisher has been away for minutes: look, then try again. |
/// | `Resolver`, `NotSent` | It was away: try again. |
/// | `Refused`, `BatchRefused` | [`Refusal`] and `protocol::BatchRefusal` say for each whether to try again. |
/// | `Unknown` | Ask for the job by its id (`Queues::job`). Enqueued again *with the same id*, it is the same job at the same publisher, |
/// | | and a second one at another: where several have the path, use `Producer::to_publishers` with that one. |
/// | `ReceiptsUnread` | Nothing reads receipts: read them, then send the job again. |
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The producer's name ([`ProducerOptions::name`](crate::ProducerOptions::name)) is empty, or
    /// has more than 128 bytes. No link is made under it, and nothing was sent.
    #[error("the producer: {0}")]
    Name(#[from] NameError),
    /// The payload is over 16 MiB or the headers are over 8 KiB; it was not sent. Keep the large
    /// thing elsewhere, and pass where it is.
    #[error("TooLarge: {what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// What of it: `payload` or `headers`.
        what: &'static str,
        /// How many bytes that has.
        bytes: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The job's path cannot hold jobs, or an option is out of its range
    /// ([`JobOptions`](longshore_protocol::JobOptions) has the ranges); it was not sent.
    #[error("{0}")]
    Invalid(Refusal),
    /// Nobody publishes the path, and nobody has a default for it, as a replica that knows
    /// everything says; it was not sent.
    #[error(
        "nobody publishes {path}, and no publisher has a default for it; start one with: longshore publisher --path {path}, \
         or with --default and a path above it"
    )]
    NoPublisher {
        /// The path.
        path: Path,
    },
    /// The path holds a live value, and no queue; the job was not sent. Use another path.
    #[error(
        "{path} is a live value of the publisher {publisher:?}; enqueue to another path, or stop publishing the value"
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
        /// Why, for people.
        reason: Arc<str>,
    },
    /// The resolver could not be asked; the job was not sent.
    #[error("{path} could not be resolved: {error}")]
    Resolver {
        /// The path.
        path: Path,
        /// Every replica and why.
        error: Arc<ReadError>,
    },
    /// The publisher refused the job, and has nothing of it.
    #[error("publisher {} refused the job: {refusal}", .publisher.prefix())]
    Refused {
        /// The publisher.
        publisher: PublisherId,
        /// Why, and what to do.
        refusal: Refusal,
    },
    /// The publisher refused the batch that the job was in; none of it was taken.
    #[error("publisher {} refused the batch: {refusal}", .publisher.prefix())]
    BatchRefused {
        /// The publisher.
        publisher: PublisherId,
        /// Why.
        refusal: BatchRefusal,
    },
    /// The job may be at this publisher or not: it was sent, and no answer came in time. Its id can
    /// be asked for there.
    #[error("Unknown: {} jobs may be at publisher {} or not: {why}", .ids.len(), .publisher.prefix())]
    Unknown {
        /// The publisher.
        publisher: PublisherId,
        /// All jobs of that batch, this one among them: callers at the same time share batches.
        ids: Arc<[JobId]>,
        /// Why there is no answer.
        why: Arc<str>,
    },
    /// The job was not sent within its time
    /// ([`ProducerOptions::answer_timeout`](crate::ProducerOptions::answer_timeout)). It is
    /// nowhere.
    #[error("not sent within {waited:?}: {why}")]
    NotSent {
        /// How long it waited.
        waited: Duration,
        /// What it waited for.
        why: Arc<str>,
    },
    /// The jobs of an atomic batch cannot be one batch: together they are over 10,000 jobs, 16 MiB
    /// of payload or 18 MiB encoded, or no publisher has all of their paths. None was sent.
    #[error("an atomic batch goes to one publisher as one batch: {0}")]
    NotAtomic(Arc<str>),
    /// As many receipts wait to be read as may, and none was read within the producer's
    /// `answer_timeout`; the job was not sent.
    #[error("{limit} receipts wait to be read; read them while sending")]
    ReceiptsUnread {
        /// The most.
        limit: usize,
    },
    /// The producer has ended; the job was not sent. Not to be seen by a program that holds the
    /// producer.
    #[error("the producer is closed")]
    Closed,
}

impl EnqueueError {
    /// True when the job may be at a publisher all the same ([`Unknown`](EnqueueError::Unknown)).
    /// Every other error says that it is nowhere, as far as [`EnqueueError`] has it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, EnqueueError::Unknown { .. })
    }
}

/// A job's number within its pipeline, or its place within its call: 0, 1, 2 …
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobTicket(pub u64);

/// What became of one job of many.
#[derive(Clone, PartialEq, Debug)]
pub struct JobReceipt {
    /// Which one.
    pub ticket: JobTicket,
    /// Its id.
    pub id: JobId,
    /// Its receipt, or why there is none.
    pub outcome: Result<Receipt, EnqueueError>,
}

/// What became of one batch.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchReceipt {
    pub(crate) ids: Arc<[JobId]>,
    /// Tickets of the jobs in runs: the first, and how many.
    pub(crate) tickets: Vec<(u64, u32)>,
    pub(crate) end: BatchOutcome,
}

/// How a batch ended, for all of its jobs.
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
    /// Nowhere: never sent, or refused as a whole.
    Failed(EnqueueError),
}

impl BatchReceipt {
    /// How many jobs are in it.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// How many of its jobs a publisher holds, new or not. Costs nothing per job.
    pub fn held(&self) -> usize {
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

    /// The publisher that answered; none when nobody did.
    pub fn publisher(&self) -> Option<PublisherId> {
        match &self.end {
            BatchOutcome::Answered { publisher, .. } => Some(*publisher),
            BatchOutcome::Unknown { .. } | BatchOutcome::Failed(_) => None,
        }
    }

    /// What became of each job, in the order of its tickets within the batch.
    pub fn iter(&self) -> impl Iterator<Item = JobReceipt> + '_ {
        let tickets =
            self.tickets.iter().flat_map(|&(first, count)| first..first + u64::from(count));
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
        self.ids.iter().zip(tickets).zip(outcomes).map(|((&id, ticket), outcome)| JobReceipt {
            ticket: JobTicket(ticket),
            id,
            outcome,
        })
    }

    /// What became of the job at `index`.
    pub(crate) fn outcome(&self, index: usize) -> Result<Receipt, EnqueueError> {
        match &self.end {
            BatchOutcome::Answered { outcomes, .. } => match outcomes.iter().nth(index) {
                Some(outcome) => self.outcome_of(index, outcome),
                // The core has compared the number of outcomes with the number of jobs.
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
        let existing = match outcome {
            EnqueueOutcome::Created => false,
            EnqueueOutcome::Existing => true,
            EnqueueOutcome::Refused(refusal) => {
                let refused = EnqueueError::Refused { publisher: *publisher, refusal };
                let Some(first) = *may_be_at else { return Err(refused) };
                // That one had it before, and has not answered.
                let ids = Arc::from([self.ids[index]]);
                let why = refused.to_string().into();
                return Err(EnqueueError::Unknown { publisher: first, ids, why });
            }
        };
        Ok(Receipt {
            job: JobRef { publisher: *publisher, id: self.ids[index] },
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
    fn a_job_that_another_publisher_refuses_may_still_be_at_the_first() {
        let (first, second) = (PublisherId([1; 16]), PublisherId([2; 16]));
        let id = JobId::default();
        let receipt = |may_be_at| BatchReceipt {
            ids: [id].into(),
            tickets: vec![(0, 1)],
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
