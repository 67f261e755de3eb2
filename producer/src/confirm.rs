//! Two-phase enqueueing: preparing and confirming jobs. Also waiting for their ends.

use std::time::Duration;

use hashbrown::HashMap;
use longshore_kinds::{IntoJob, JobKind};
use longshore_protocol::limits::BATCH_JOBS_MAX;
use longshore_protocol::messages::work::{
    ActOutcome, Action, Answer, Request, RequestError, Selection,
};
use longshore_protocol::{JobId, JobState, NameError, PublisherId};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::enqueue::{Enqueue, ResultError};
use crate::outcome::Receipt;
use crate::producer::Producer;
use crate::queues::{
    JobEnd, JobLocator, PatientError, PatientRequest, Queues, QueuesError, Target, WaitError,
    deadline_after,
};

/// The least time of an error after a request: zero means that there was none.
const ASKED_MIN: Duration = Duration::from_millis(1);

/// Why a job may not be confirmed. Retry after [`Away`](ConfirmError::Away); the other errors are
/// final.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfirmError {
    /// The publisher does not have the job, or no longer: it was dropped, or it was confirmed
    /// before and its retention is over, or the publisher lost it because its acknowledgements are
    /// not synced.
    #[error(
        "publisher {} does not have the job: it was dropped, or was confirmed before and has ended",
        .publisher.prefix()
    )]
    NotFound {
        /// The publisher.
        publisher: PublisherId,
    },
    /// The job's state does not allow it: it was never prepared, was cancelled, or was not
    /// confirmed within an hour (dead; it can be revived).
    #[error(
        "the job at publisher {} is {state}; only a prepared one can be confirmed",
        .publisher.prefix()
    )]
    NotInState {
        /// The publisher.
        publisher: PublisherId,
        /// The job's state.
        state: JobState,
    },
    /// The publisher did not answer in time, and may or may not have confirmed the job; or it was
    /// not asked. A retry is safe until an hour after the job was prepared, when the publisher
    /// buries it as `unconfirmed`.
    #[error("{}", away(.publisher, *.waited, .why))]
    Away {
        /// The publisher.
        publisher: PublisherId,
        /// How long it was tried; 0 if it was not asked.
        waited: Duration,
        /// Why the publisher did not answer.
        why: String,
    },
    /// The publisher cannot confirm, now or later: it is of an older version and does not know the
    /// request, or cannot read its journal.
    #[error("publisher {} cannot confirm it: {why}", .publisher.prefix())]
    Refused {
        /// The publisher.
        publisher: PublisherId,
        /// The reason.
        why: RequestError,
    },
    /// The producer's name ([`ProducerBuilder::name`](crate::ProducerBuilder::name)) is empty, or
    /// has more than 128 bytes. Nothing was sent.
    #[error("the producer: {0}")]
    Name(NameError),
}

fn away(publisher: &PublisherId, waited: Duration, why: &str) -> String {
    let publisher = publisher.prefix();
    match waited.is_zero() {
        true => format!("publisher {publisher} was not asked to confirm the job: {why}"),
        false => format!(
            "Unknown: publisher {publisher} did not answer within {waited:?}, and may or may not \
             have confirmed the job: {why}"
        ),
    }
}

impl Producer {
    /// Enqueues a job that does not run before [`Producer::confirm`]. Errors and cancel safety are
    /// those of [`Producer::enqueue`].
    ///
    /// Use this for a job that must run if and only if a transaction of another system commits:
    /// prepare it, store the receipt in the transaction, commit, confirm.
    ///
    /// ```no_run
    /// # use longshore_producer::{Producer, ProducerBuilder, Receipt, new_job};
    /// # use longshore_protocol::Path;
    /// # struct Database;
    /// # impl Database {
    /// #     async fn begin(&self) -> Database { Database }
    /// #     async fn insert_order(&self, order: &str) {}
    /// #     async fn insert_unconfirmed(&self, receipt: &Receipt) {}
    /// #     async fn delete_unconfirmed(&self, receipt: &Receipt) {}
    /// #     async fn commit(&self) -> Result<(), std::io::Error> { Ok(()) }
    /// # }
    /// # async fn run(
    /// #     database: Database,
    /// #     producer: Producer,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let job = new_job(Path::new("/jobs/mail/confirmation")?, "order 17");
    /// let receipt = producer.prepare(job).await?;
    ///
    /// let transaction = database.begin().await;
    /// transaction.insert_order("order 17").await;
    /// // After a crash the program confirms the receipts in this table.
    /// transaction.insert_unconfirmed(&receipt).await;
    /// transaction.commit().await?;
    ///
    /// producer.confirm(&receipt).await?;
    /// database.delete_unconfirmed(&receipt).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A crash before the commit leaves a prepared job that never runs: after an hour the publisher
    /// buries it as `unconfirmed`. A crash after the commit leaves the receipt in the table, and
    /// the program confirms again: confirming is idempotent. Without such a table no job is lost
    /// silently either: it is among the dead letters, and can be revived.
    pub fn prepare<J: IntoJob>(&self, job: J) -> Enqueue<'_, J> {
        self.enqueue(job).prepared()
    }

    /// Lets a prepared job run, at the publisher that its receipt names; its delay counts from
    /// then. Retries for at most the producer's `answer_timeout`, over reconnects and restarts of
    /// the publisher. Confirming again is safe and returns `Ok` in any later state, as long as the
    /// job is retained. Not cancel safe: if the future is dropped, the job may or may not be
    /// confirmed; confirm it again.
    pub async fn confirm(&self, receipt: &Receipt) -> Result<(), ConfirmError> {
        let outcomes = self.confirm_all(std::slice::from_ref(receipt)).await;
        outcomes.into_iter().next().unwrap_or(Err(aborted(receipt, self.answer_timeout())))
    }

    /// Confirms many jobs, up to 10,000 with one request. Returns one outcome per receipt, in
    /// order, after at most the producer's `answer_timeout`. See [`Producer::confirm`]: if the
    /// future is dropped, each of them may or may not be confirmed.
    pub async fn confirm_all(&self, receipts: &[Receipt]) -> Vec<Result<(), ConfirmError>> {
        let mut by_publisher: HashMap<PublisherId, Vec<(usize, JobId)>> = HashMap::new();
        for (index, receipt) in receipts.iter().enumerate() {
            by_publisher.entry(receipt.job.publisher).or_default().push((index, receipt.job.id));
        }
        let deadline = deadline_after(self.answer_timeout());
        let mut tasks = JoinSet::new();
        for (publisher, jobs) in by_publisher {
            let queues = self.queues().clone();
            tasks.spawn(async move {
                let mut outcomes = Vec::with_capacity(jobs.len());
                let mut parts = jobs.chunks(BATCH_JOBS_MAX);
                for part in parts.by_ref() {
                    let ids = part.iter().map(|&(_, id)| id).collect();
                    let confirmed = confirm_at(&queues, publisher, ids, deadline).await;
                    outcomes.extend(part.iter().map(|&(index, _)| index).zip(confirmed));
                    if Instant::now() >= deadline {
                        break;
                    }
                }
                let late = || Err(not_asked(publisher, "the time was over".to_owned()));
                outcomes.extend(parts.flatten().map(|&(index, _)| (index, late())));
                outcomes
            });
        }
        let waited = self.answer_timeout();
        let mut outcomes: Vec<_> =
            receipts.iter().map(|receipt| Err(aborted(receipt, waited))).collect();
        while let Some(joined) = tasks.join_next().await {
            for (index, outcome) in joined.unwrap_or_default() {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Waits until a job has ended, at most for `limit`, over disconnects and restarts of the
    /// publisher that its receipt names. Only a job that requested it retains its result. See
    /// [`Queues::wait`]. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use longshore_producer::{JobEnd, Producer, ProducerBuilder, new_job};
    /// # use longshore_protocol::Path;
    /// # async fn run(producer: Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut job = new_job(Path::new("/jobs/square")?, "12");
    /// job.options.keep_result = true;
    /// let receipt = producer.enqueue(job).await?;
    /// match producer.wait(&receipt, Duration::from_secs(60)).await? {
    ///     JobEnd::Completed { result } => println!("done: {result:?}"),
    ///     JobEnd::Dead { reason, error } => println!("dead, {reason}: {error:?}"),
    ///     end => println!("{end:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self, receipt: &Receipt, limit: Duration) -> Result<JobEnd, WaitError> {
        self.queues().wait_at_id(receipt.job, limit).await
    }

    /// Waits for the output of a job of kind `K` that was enqueued before, also by another program:
    /// see [`Queues::result`]. Cancel safe.
    pub async fn result<K: JobKind>(
        &self,
        job: impl Into<JobLocator>,
        limit: Duration,
    ) -> Result<K::Output, ResultError> {
        self.queues().result::<K>(job, limit).await
    }
}

/// The outcome of a job whose task ended early: it may have sent the request.
fn aborted(receipt: &Receipt, waited: Duration) -> ConfirmError {
    let (publisher, waited) = (receipt.job.publisher, waited.max(ASKED_MIN));
    ConfirmError::Away { publisher, waited, why: "the request was aborted".to_owned() }
}

fn not_asked(publisher: PublisherId, why: String) -> ConfirmError {
    ConfirmError::Away { publisher, waited: Duration::ZERO, why }
}

/// Confirms at one publisher, with one request.
async fn confirm_at(
    queues: &Queues,
    publisher: PublisherId,
    ids: Vec<JobId>,
    deadline: Instant,
) -> Vec<Result<(), ConfirmError>> {
    let (count, began) = (ids.len(), Instant::now());
    let selection = Selection::Ids(ids);
    let request = Request::Act { action: Action::Confirm, selection, pace: None, dry_run: false };
    let target = Target::Id(publisher);
    let error = match queues
        .request_until(&target, PatientRequest::Request(&request), deadline)
        .await
    {
        Ok(Answer::Acted(report)) if report.outcomes.len() == count => {
            let one = |outcome| match outcome {
                ActOutcome::Done => Ok(()),
                ActOutcome::NotInState(state) => Err(ConfirmError::NotInState { publisher, state }),
                ActOutcome::Unknown => Err(ConfirmError::NotFound { publisher }),
                // An answer to a revival.
                ActOutcome::NotUnique(_) => {
                    Err(ConfirmError::Refused { publisher, why: RequestError::Unknown })
                }
            };
            return report.outcomes.iter().map(one).collect();
        }
        Ok(_) => ConfirmError::Refused { publisher, why: RequestError::Unknown },
        Err(PatientError::Refused(why)) => ConfirmError::Refused { publisher, why },
        Err(PatientError::Unsent(QueuesError::Name(error))) => ConfirmError::Name(error),
        Err(PatientError::Unsent(error)) => not_asked(publisher, error.to_string()),
        Err(PatientError::TimedOut { away }) => ConfirmError::Away {
            publisher,
            waited: began.elapsed().max(ASKED_MIN),
            why: away.unwrap_or_else(|| "it did not answer".to_owned()),
        },
    };
    vec![Err(error); count]
}
