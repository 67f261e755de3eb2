//! Control of whole queues: pauses, settings, drains, and the clock. All requests are idempotent:
//! if an answer is lost, the request is retried until the request timeout.

use longshore_protocol::messages::work::{Answer, PauseReport, Request};
use longshore_protocol::{Gate, Glob, JobLimit, Path, QueueSettings, Refusal};

use super::answers::{PublisherAnswers, QueuesError};
use super::client::Queues;
use super::requester::everything;

impl Queues {
    /// Stops deliveries of matching queues, present and future, at every publisher that could have
    /// some. They still accept jobs. The answers list the publishers that confirmed; at a missing
    /// one, deliveries may continue. Idempotent. Not cancel safe: if the future is dropped,
    /// publishers may have received the request.
    pub async fn pause(&self, pattern: Glob) -> Result<PublisherAnswers<PauseReport>, QueuesError> {
        self.stop(Gate::Delivery, pattern, true).await
    }

    /// Removes the pause with exactly this pattern. A queue that other pauses match stays paused:
    /// [`PauseReport::still_by`] lists them. Not cancel safe: if the future is dropped, publishers
    /// may have received the request.
    pub async fn resume(
        &self,
        pattern: Glob,
    ) -> Result<PublisherAnswers<PauseReport>, QueuesError> {
        self.stop(Gate::Delivery, pattern, false).await
    }

    /// Closes matching queues to new jobs: each job is refused with [`Refusal::QueueClosed`]. They
    /// still deliver. Otherwise like [`pause`](Queues::pause).
    pub async fn close(&self, pattern: Glob) -> Result<PublisherAnswers<PauseReport>, QueuesError> {
        self.stop(Gate::Enqueue, pattern, true).await
    }

    /// Removes the closing with exactly this pattern. Otherwise like [`resume`](Queues::resume).
    pub async fn open(&self, pattern: Glob) -> Result<PublisherAnswers<PauseReport>, QueuesError> {
        self.stop(Gate::Enqueue, pattern, false).await
    }

    async fn stop(
        &self,
        gate: Gate,
        pattern: Glob,
        paused: bool,
    ) -> Result<PublisherAnswers<PauseReport>, QueuesError> {
        let request = Request::Pause { gate, pattern: pattern.clone(), paused };
        self.request_all(&pattern, request, |answer| match answer {
            Answer::Paused(report) => Some(report),
            _ => None,
        })
        .await
    }

    /// Sets a limit of jobs at every publisher: adds it, or changes the one of its name. Each
    /// publisher answers whether anything has changed, and counts its own queues only, present and
    /// future. Idempotent. Not cancel safe: if the future is dropped, publishers may have received
    /// the request.
    pub async fn set_limit(&self, limit: JobLimit) -> Result<PublisherAnswers<bool>, QueuesError> {
        self.request_all(&everything(), Request::SetLimit { limit }, limit_set).await
    }

    /// Removes the limit of that name at every publisher. Each answers whether it had one. Not
    /// cancel safe: if the future is dropped, publishers may have received the request.
    pub async fn remove_limit(&self, name: &str) -> Result<PublisherAnswers<bool>, QueuesError> {
        let request = Request::RemoveLimit { name: name.to_owned() };
        self.request_all(&everything(), request, limit_set).await
    }

    /// The limits of jobs of every publisher.
    pub async fn limits(&self) -> Result<PublisherAnswers<Vec<JobLimit>>, QueuesError> {
        self.request_all(&everything(), Request::Limits, |answer| match answer {
            Answer::Limits(limits) => Some(limits),
            _ => None,
        })
        .await
    }

    /// Makes every publisher refuse new jobs, or accept them again: producers send jobs to other
    /// publishers of the path, and existing jobs continue. Meant for a single publisher:
    /// [`to_publishers`](Queues::to_publishers). Persists over restarts until it is reversed. Not
    /// cancel safe: if the future is dropped, publishers may have received the request.
    pub async fn drain(&self, draining: bool) -> Result<PublisherAnswers<()>, QueuesError> {
        self.request_all(&everything(), Request::Drain { draining }, |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
        .await
    }

    /// Changes a queue's settings at every publisher that could have it; with `reset`, all other
    /// settings return to their defaults. Each publisher answers with its resulting settings, or
    /// with the reason why it refuses the queue. Applies to existing jobs, too. Idempotent. Not
    /// cancel safe: if the future is dropped, publishers may have received the request.
    pub async fn configure(
        &self,
        path: Path,
        changes: QueueSettings,
        reset: bool,
    ) -> Result<PublisherAnswers<Result<QueueSettings, Refusal>>, QueuesError> {
        // Paths contain no glob metacharacters.
        let pattern = Glob::new(path.as_str()).unwrap_or_else(|_| everything());
        let request = Request::Configure { path, changes, reset };
        self.request_all(&pattern, request, |answer| match answer {
            Answer::Configured(result) => Some(result),
            _ => None,
        })
        .await
    }

    /// Confirms every publisher's wall clock after a jump ([`PublisherStatus::clock_held`]): jobs
    /// that wait for a wall-clock time continue. Not cancel safe: if the future is dropped,
    /// publishers may have received the request.
    ///
    /// [`PublisherStatus::clock_held`]: longshore_protocol::messages::work::PublisherStatus::clock_held
    pub async fn confirm_clock(&self) -> Result<PublisherAnswers<()>, QueuesError> {
        self.request_all(&everything(), Request::ConfirmClock, |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
        .await
    }
}

fn limit_set(answer: Answer) -> Option<bool> {
    match answer {
        Answer::LimitSet(changed) => Some(changed),
        _ => None,
    }
}
