//! Waiting for the end of a job.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::messages::work::{Answer, JobInfo, RequestError};
use longshore_protocol::{DeathReason, JobError, JobState};
use tokio::time::sleep;

use super::answers::{JobLookupError, QueuesError};
use super::client::Queues;
use super::job_name::JobName;
use super::requester::{PatientError, PatientRequest, Target};
use super::retry::{RetryBackoff, deadline_after};

/// How a job ended.
#[derive(Clone, PartialEq, Debug)]
pub enum JobEnd {
    /// It was done.
    Completed {
        /// What its worker said at the end, if the job was to keep that
        /// ([`JobOptions::keep_result`]) and there was something.
        ///
        /// [`JobOptions::keep_result`]: longshore_protocol::JobOptions::keep_result
        result: Option<Bytes>,
    },
    /// It is in the dead letters. It may be revived, and end another time.
    Dead {
        /// Why.
        reason: DeathReason,
        /// Its last attempt's error, if it had one.
        error: Option<JobError>,
    },
    /// A user cancelled it.
    Cancelled,
    /// No attempt had begun by the time it was to expire.
    Expired,
    /// Its publisher does not have it, or no longer: it was dropped, or had ended and was kept for
    /// as long as it was to be. How it ended is not known any more.
    Gone,
}

/// Why the end of a job is not known.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum WaitError {
    /// It had not ended when the caller's time was over, as far as its publisher could be asked.
    /// Wait again, if it is still wanted.
    #[error("no end within {waited:?}{}", away_suffix(.away.as_deref()))]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// What kept the publisher from answering, if it was away at last or was not found. None:
        /// it was there, and the job had not ended.
        away: Option<String>,
    },
    /// A bare id, which no publisher is known to have; or nobody could be asked.
    #[error(transparent)]
    Lookup(#[from] JobLookupError),
    /// The publisher cannot tell.
    #[error("the publisher cannot tell of it: {0}")]
    Refused(RequestError),
}

fn away_suffix(away: Option<&str>) -> String {
    away.map_or(String::new(), |why| format!("; its publisher is away or was not found: {why}"))
}

impl Queues {
    /// Waits until a job has ended, at most for `limit` (what is over 10 years counts as 10 years);
    /// over disconnects and restarts of its publisher, which is asked again whenever it can be
    /// reached. A bare id is looked for first, at every publisher: one that all of them answer they
    /// do not have is [`JobLookupError::NotFound`] at once.
    ///
    /// Any number may wait at the same time; those at one publisher share a link. Past 10,000 of
    /// them, the next one is asked after one of these is told. Cancel safe: dropping the future
    /// tells the publisher that nobody waits any more.
    pub async fn wait(&self, name: &JobName, limit: Duration) -> Result<JobEnd, WaitError> {
        let (began, time_up) = (Instant::now(), deadline_after(limit));
        let target = match &name.publisher {
            Some(prefix) => Target::Prefix(prefix.clone()),
            None => {
                let mut away = None;
                let found = tokio::time::timeout_at(time_up, self.locate(name, &mut away)).await;
                match found {
                    Ok(target) => target?,
                    Err(_) => return Err(timed_out(began, away)),
                }
            }
        };
        self.wait_at(&target, name, began, limit).await
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
        name: &JobName,
        began: Instant,
        limit: Duration,
    ) -> Result<JobEnd, WaitError> {
        let time_up = deadline_after(limit.saturating_sub(began.elapsed()));
        let mut backoff = RetryBackoff::default();
        loop {
            let answer = self
                .requester
                .request_until(target, PatientRequest::JobEnd(name.id), time_up)
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
                Err(PatientError::Name(error)) => {
                    return Err(JobLookupError::from(QueuesError::from(error)).into());
                }
            }
            // It was revived, or the publisher answers what nobody asked.
            let _ = tokio::time::timeout_at(time_up, sleep(backoff.next())).await;
        }
    }

    /// The publisher that has the job; asks again while one that could have it does not answer.
    /// What kept it from finding it last is in `away`.
    async fn locate(
        &self,
        name: &JobName,
        away: &mut Option<String>,
    ) -> Result<Target, JobLookupError> {
        let mut backoff = RetryBackoff::default();
        loop {
            match self.job(name).await {
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

fn timed_out(began: Instant, away: Option<String>) -> WaitError {
    WaitError::TimedOut { waited: began.elapsed(), away }
}

/// None for a job that has not ended.
fn end_of(job: JobInfo) -> Option<JobEnd> {
    Some(match job.state {
        JobState::Completed => JobEnd::Completed { result: job.result },
        JobState::Dead => {
            // A publisher says why of every dead one.
            let reason = job.death.unwrap_or(DeathReason::AttemptsExhausted);
            JobEnd::Dead { reason, error: job.error }
        }
        JobState::Cancelled => JobEnd::Cancelled,
        JobState::Expired => JobEnd::Expired,
        JobState::Prepared | JobState::Scheduled | JobState::Ready | JobState::Running => {
            return None;
        }
    })
}
