//! Jobs in two steps: prepared, then confirmed; and waiting for their ends.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::limits::BATCH_JOBS_MAX;
use longshore_protocol::messages::work::{
    ActOutcome, Action, Answer, Request, RequestError, Selection,
};
use longshore_protocol::{JobId, JobState, NameError, NewJob, PublisherId};
use tokio::task::JoinSet;

use crate::outcome::{EnqueueError, Receipt};
use crate::producer::Producer;
use crate::queues::{
    JobEnd, PatientError, PatientRequest, Queues, Target, WaitError, deadline_after,
};

/// Why it is not known that a job was confirmed. After [`Away`](ConfirmError::Away) try again; the
/// others stay as they are.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfirmError {
    /// Its publisher does not have it, or no longer: it was dropped; or it was confirmed before,
    /// has ended and was kept for as long as it was to be; or the publisher's acknowledgements are
    /// not synced and it has lost it.
    #[error(
        "publisher {} does not have the job: it was dropped, or was confirmed before and has ended",
        .publisher.prefix()
    )]
    NotFound {
        /// The publisher.
        publisher: PublisherId,
    },
    /// It is in a state that is not to be confirmed: never prepared, cancelled before, or (dead)
    /// not confirmed within an hour; the last can be revived.
    #[error("the job at publisher {} is {state}; only a prepared one can be confirmed", .publisher.prefix())]
    NotInState {
        /// The publisher.
        publisher: PublisherId,
        /// The job's state.
        state: JobState,
    },
    /// Its publisher did not answer in time, and may have confirmed it or not. To confirm it again
    /// is safe; so it is safe to go on until an hour after it was prepared, when the publisher
    /// buries it as `unconfirmed`.
    #[error(
        "Unknown: publisher {} did not answer within {waited:?}, and may have confirmed the job or not: {why}",
        .publisher.prefix()
    )]
    Away {
        /// The publisher.
        publisher: PublisherId,
        /// How long it was tried.
        waited: Duration,
        /// What kept it from answering.
        why: String,
    },
    /// Its publisher cannot do it: it does not know the request, being of an older version, or
    /// cannot read its journal.
    #[error("publisher {} cannot confirm it: {why}", .publisher.prefix())]
    Refused {
        /// The publisher.
        publisher: PublisherId,
        /// Why.
        why: RequestError,
    },
    /// The producer's own name ([`ProducerOptions::name`](crate::ProducerOptions::name)) is empty,
    /// or has more than 128 bytes. Nothing was sent.
    #[error("the producer: {0}")]
    Name(NameError),
}

impl Producer {
    /// Enqueues a job that is not to run until [`Producer::confirm`] says so. Like
    /// [`Producer::enqueue`], whose errors and whose cancel safety it has.
    ///
    /// For a job that is to run if and only if a transaction of another system commits: prepare it,
    /// keep the receipt in the transaction, commit, confirm.
    ///
    /// ```no_run
    /// # use longshore_producer::{Producer, ProducerOptions, Receipt, new_job};
    /// # use longshore_protocol::Path;
    /// # struct Database;
    /// # impl Database {
    /// #     async fn begin(&self) -> Database { Database }
    /// #     async fn insert_order(&self, order: &str) {}
    /// #     async fn insert_unconfirmed(&self, receipt: &Receipt) {}
    /// #     async fn delete_unconfirmed(&self, receipt: &Receipt) {}
    /// #     async fn commit(&self) -> Result<(), std::io::Error> { Ok(()) }
    /// # }
    /// # async fn run(database: Database, producer: Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// let job = new_job(Path::new("/jobs/mail/confirmation")?, "order 17");
    /// let receipt = producer.prepare(job).await?;
    ///
    /// let transaction = database.begin().await;
    /// transaction.insert_order("order 17").await;
    /// // Who starts after a crash confirms the receipts that it finds in this table.
    /// transaction.insert_unconfirmed(&receipt).await;
    /// transaction.commit().await?;
    ///
    /// producer.confirm(&receipt).await?;
    /// database.delete_unconfirmed(&receipt).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A crash before the commit leaves a prepared job that never runs: after an hour it lies in
    /// the dead letters as `unconfirmed`. A crash after it leaves the receipt in the table, and
    /// confirming is repeated: confirming twice is confirming once. Without the table, too, nothing
    /// is lost silently: such a job is found among the dead letters, and reviving it lets it run.
    pub async fn prepare(&self, mut job: NewJob) -> Result<Receipt, EnqueueError> {
        job.options.prepared = true;
        self.enqueue(job).await
    }

    /// Lets a prepared job run, at the publisher that its receipt names; its delay counts from
    /// then. Tried for as long as the producer's `answer_timeout` allows, over reconnects and
    /// restarts of the publisher. Confirming again is safe and is `Ok`, whatever has become of the
    /// job since, for as long as it is kept. Not cancel safe: of a call that was dropped, the job
    /// may be confirmed or not; confirm it again.
    pub async fn confirm(&self, receipt: &Receipt) -> Result<(), ConfirmError> {
        let outcomes = self.confirm_all(std::slice::from_ref(receipt)).await;
        outcomes.into_iter().next().unwrap_or(Err(not_asked(receipt)))
    }

    /// Confirms many jobs, up to 10,000 with one request; one outcome per receipt, in order. See
    /// [`Producer::confirm`]: of a call that was dropped, each of them may be confirmed or not.
    pub async fn confirm_all(&self, receipts: &[Receipt]) -> Vec<Result<(), ConfirmError>> {
        let mut by_publisher: HashMap<PublisherId, Vec<(usize, JobId)>> = HashMap::new();
        for (index, receipt) in receipts.iter().enumerate() {
            by_publisher.entry(receipt.job.publisher).or_default().push((index, receipt.job.id));
        }
        let mut tasks = JoinSet::new();
        for (publisher, jobs) in by_publisher {
            let (queues, limit) = (self.queues().clone(), self.answer_timeout());
            tasks.spawn(async move {
                let mut outcomes = Vec::with_capacity(jobs.len());
                for part in jobs.chunks(BATCH_JOBS_MAX) {
                    let ids = part.iter().map(|&(_, id)| id).collect();
                    let confirmed = confirm_at(&queues, publisher, ids, limit).await;
                    outcomes.extend(part.iter().map(|&(index, _)| index).zip(confirmed));
                }
                outcomes
            });
        }
        let mut outcomes: Vec<_> = receipts.iter().map(|receipt| Err(not_asked(receipt))).collect();
        while let Some(notify) = tasks.join_next().await {
            for (index, outcome) in notify.unwrap_or_default() {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Waits until a job has ended, at most for `limit`: over disconnects and restarts of the
    /// publisher that its receipt names. A result is there only for a job that asked for it. See
    /// [`Queues::wait`]. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use longshore_producer::{JobEnd, Producer, ProducerOptions, new_job};
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
}

/// What is known of a job before its publisher has spoken.
fn not_asked(receipt: &Receipt) -> ConfirmError {
    let publisher = receipt.job.publisher;
    ConfirmError::Away { publisher, waited: Duration::ZERO, why: "it was not asked".into() }
}

/// Confirms at one publisher, no more than one request may name.
async fn confirm_at(
    queues: &Queues,
    publisher: PublisherId,
    ids: Vec<JobId>,
    limit: Duration,
) -> Vec<Result<(), ConfirmError>> {
    let (count, began) = (ids.len(), Instant::now());
    let selection = Selection::Ids(ids);
    let request = Request::Act { action: Action::Confirm, selection, pace: None, dry_run: false };
    let target = Target::Id(publisher);
    let error = match queues
        .request_until(&target, PatientRequest::Request(&request), deadline_after(limit))
        .await
    {
        Ok(Answer::Acted(report)) if report.outcomes.len() == count => {
            let one = |outcome| match outcome {
                ActOutcome::Done => Ok(()),
                ActOutcome::NotInState(state) => Err(ConfirmError::NotInState { publisher, state }),
                ActOutcome::Unknown => Err(ConfirmError::NotFound { publisher }),
            };
            return report.outcomes.iter().map(one).collect();
        }
        Ok(_) => ConfirmError::Refused { publisher, why: RequestError::Unknown },
        Err(PatientError::Refused(why)) => ConfirmError::Refused { publisher, why },
        Err(PatientError::Name(error)) => ConfirmError::Name(error),
        Err(PatientError::TimedOut { away }) => ConfirmError::Away {
            publisher,
            waited: began.elapsed(),
            why: away.unwrap_or_else(|| "it did not answer".to_owned()),
        },
    };
    vec![Err(error); count]
}
