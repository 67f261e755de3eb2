//! Waiting for the ends of jobs.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_kinds::{Codec, JobKind};
use longshore_protocol::messages::work::{Answer, JobInfo, RequestError};
use longshore_protocol::{DeathReason, JobError, JobState};
use tokio::time::sleep;

use super::answers::{JobLookupError, QueuesError};
use super::client::Queues;
use super::job_locator::JobLocator;
use super::requester::{PatientError, PatientRequest, Target};
use super::retry::{RetryBackoff, deadline_after};
use crate::enqueue::ResultError;

/// The end of a job.
#[derive(Clone, PartialEq, Debug)]
pub enum JobEnd {
    /// The job was completed.
    Completed {
        /// The worker's result, if there is one and the job retains it
        /// ([`JobOptions::keep_result`]).
        ///
        /// [`JobOptions::keep_result`]: longshore_protocol::JobOptions::keep_result
        result: Option<Bytes>,
    },
    /// The job is among the dead letters. It may be revived, and end again.
    Dead {
        /// The reason.
        reason: DeathReason,
        /// The error of its last attempt, if it had one.
        error: Option<JobError>,
    },
    /// A user cancelled the job.
    Cancelled,
    /// It still waited at its expiry.
    Expired,
    /// The publisher does not have the job, or no longer: it was dropped, or its retention is over.
    /// How it ended is unknown.
    Gone,
}

/// Why the end of a job is unknown.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum WaitError {
    /// The job had not ended within the limit, by the last answer of its publisher. Wait again if
    /// it is still needed.
    #[error("no end within {waited:?}{}", away_suffix(.away.as_deref()))]
    TimedOut {
        /// The time waited.
        waited: Duration,
        /// Why the publisher was unreachable or not found at the end. `None` if it was reachable
        /// and the job had not ended.
        away: Option<String>,
    },
    /// No publisher is known to have this bare id, or no request reached a publisher.
    #[error(transparent)]
    Lookup(#[from] JobLookupError),
    /// The publisher refused the request.
    #[error("the publisher refused the request: {0}")]
    Refused(RequestError),
}

fn away_suffix(away: Option<&str>) -> String {
    away.map_or(String::new(), |why| format!("; its publisher is away or was not found: {why}"))
}

impl Queues {
    /// Waits until a job has ended, at most for `limit` (over 10 years counts as 10 years).
    /// Continues over disconnects and restarts of its publisher. A bare id is looked up at every
    /// publisher first: if none of them has it, this is [`JobLookupError::NotFound`] at once.
    ///
    /// Any number of calls may wait concurrently; those at one publisher share a link, and beyond
    /// 10,000 they queue. Cancel safe: dropping the future cancels the wait at the publisher.
    pub async fn wait(
        &self,
        job: impl Into<JobLocator>,
        limit: Duration,
    ) -> Result<JobEnd, WaitError> {
        let locator = &job.into();
        let (began, deadline) = (Instant::now(), deadline_after(limit));
        let target = match &locator.publisher {
            Some(prefix) => Target::Prefix(prefix.clone()),
            None => {
                let mut away = Some("it was not found in time".to_owned());
                let found =
                    tokio::time::timeout_at(deadline, self.locate(locator, &mut away)).await;
                match found {
                    Ok(target) => target?,
                    Err(_) => return Err(timed_out(began, away)),
                }
            }
        };
        self.wait_at(&target, locator, began, limit).await
    }

    /// Waits for the output of a job of kind `K`, by its receipt, its id or its name: at most for
    /// `limit`, as [`Queues::wait`] does. The job must retain its result
    /// ([`Enqueue::keep_result`](crate::Enqueue::keep_result), or its kind). Cancel safe.
    pub async fn result<K: JobKind>(
        &self,
        job: impl Into<JobLocator>,
        limit: Duration,
    ) -> Result<K::Output, ResultError> {
        let job = job.into();
        match self.wait(&job, limit).await {
            Ok(end) => output::<K>(job, end),
            Err(error) => Err(ResultError::Wait { job, error }),
        }
    }

    pub(crate) async fn wait_at_id(
        &self,
        job: longshore_protocol::JobRef,
        limit: Duration,
    ) -> Result<JobEnd, WaitError> {
        self.wait_at(&Target::Id(job.publisher), &job.into(), Instant::now(), limit).await
    }

    async fn wait_at(
        &self,
        target: &Target,
        locator: &JobLocator,
        began: Instant,
        limit: Duration,
    ) -> Result<JobEnd, WaitError> {
        let deadline = deadline_after(limit.saturating_sub(began.elapsed()));
        let mut backoff = RetryBackoff::default();
        loop {
            let answer = self
                .requester
                .request_until(target, PatientRequest::JobEnd(locator.id), deadline)
                .await;
            match answer {
                Ok((_, Answer::Job(None))) => return Ok(JobEnd::Gone),
                Ok((_, Answer::Job(Some(job)))) => {
                    if let Some(end) = end_of(*job) {
                        return Ok(end);
                    }
                }
                Ok(_) => {}
                Err(PatientError::TimedOut { away }) => return Err(timed_out(began, away)),
                Err(PatientError::Refused(why)) => return Err(WaitError::Refused(why)),
                Err(PatientError::Unsent(error)) => return Err(JobLookupError::from(error).into()),
            }
            // The job was revived, or the publisher sent an unexpected answer.
            let _ = tokio::time::timeout_at(deadline, sleep(backoff.next())).await;
        }
    }

    /// Finds the publisher of the job; retries while some publishers do not answer. Stores the last
    /// error in `away`.
    async fn locate(
        &self,
        locator: &JobLocator,
        away: &mut Option<String>,
    ) -> Result<Target, JobLookupError> {
        let mut backoff = RetryBackoff::default();
        loop {
            match self.job(locator).await {
                Ok(found) => return Ok(Target::Id(found.publisher.id)),
                Err(
                    why @ (JobLookupError::Unknown { .. }
                    | JobLookupError::Queues(QueuesError::Resolver(_))),
                ) => {
                    *away = Some(why.to_string());
                    sleep(backoff.next()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The output of a job of kind `K` that has ended.
pub(crate) fn output<K: JobKind>(job: JobLocator, end: JobEnd) -> Result<K::Output, ResultError> {
    match end {
        JobEnd::Completed { result: Some(result) } => {
            <K::Codec as Codec<K::Output>>::decode(&result)
                .map_err(|error| ResultError::Output { job, error })
        }
        JobEnd::Completed { result: None } => Err(ResultError::NoResult { job }),
        end => Err(ResultError::Ended { job, end }),
    }
}

fn timed_out(began: Instant, away: Option<String>) -> WaitError {
    WaitError::TimedOut { waited: began.elapsed(), away }
}

/// `None` if the job has not ended.
fn end_of(job: JobInfo) -> Option<JobEnd> {
    Some(match job.state {
        JobState::Completed => JobEnd::Completed { result: job.result },
        JobState::Dead => {
            // Publishers report a reason for every dead job.
            let reason = job.death.unwrap_or(DeathReason::AttemptsExhausted);
            JobEnd::Dead { reason, error: job.error }
        }
        JobState::Cancelled => JobEnd::Cancelled,
        JobState::Expired => JobEnd::Expired,
        JobState::Prepared
        | JobState::Scheduled
        | JobState::Blocked
        | JobState::Ready
        | JobState::Running => return None,
    })
}
