//! What holds for whole queues: pauses, settings, and the clock that they go by. Each of these may
//! be said again: a lost answer is asked for again until the time for a request is over.

use longshore_protocol::messages::work::{Answer, PauseReport, Request};
use longshore_protocol::{Gate, Glob, Path, QueueSettings, Refusal};

use super::answers::{Gathered, QueuesError};
use super::client::Queues;
use super::requester::everything;

impl Queues {
    /// Stops deliveries of the queues that match, those that there are and those that there will
    /// be, at every publisher that could have some. They go on accepting jobs. The answers name the
    /// publishers that confirmed; at one that is missing, the queues may go on. Pausing what is
    /// paused changes nothing. Not cancel safe: of a call that was dropped, publishers may have
    /// received the request.
    pub async fn pause(&self, pattern: Glob) -> Result<Gathered<PauseReport>, QueuesError> {
        self.stop(Gate::Delivery, pattern, true).await
    }

    /// Ends the pause of just this pattern. A queue that others match stays paused:
    /// [`PauseReport::still_by`] names them. Not cancel safe: of a call that was dropped,
    /// publishers may have received the request.
    pub async fn resume(&self, pattern: Glob) -> Result<Gathered<PauseReport>, QueuesError> {
        self.stop(Gate::Delivery, pattern, false).await
    }

    /// Closes the queues that match to new jobs: each is refused as [`Refusal::QueueClosed`]. They
    /// go on delivering what they have. Otherwise as [`pause`](Queues::pause).
    pub async fn close(&self, pattern: Glob) -> Result<Gathered<PauseReport>, QueuesError> {
        self.stop(Gate::Enqueue, pattern, true).await
    }

    /// Ends the closing of just this pattern. Otherwise as [`resume`](Queues::resume).
    pub async fn open(&self, pattern: Glob) -> Result<Gathered<PauseReport>, QueuesError> {
        self.stop(Gate::Enqueue, pattern, false).await
    }

    async fn stop(
        &self,
        gate: Gate,
        pattern: Glob,
        paused: bool,
    ) -> Result<Gathered<PauseReport>, QueuesError> {
        let request = Request::Pause { gate, pattern: pattern.clone(), paused };
        self.request_all(&pattern, request, |answer| match answer {
            Answer::Paused(report) => Some(report),
            _ => None,
        })
        .await
    }

    /// Has every publisher that is asked take no new jobs, or take them again: producers send
    /// theirs to others that serve the path, and what is there goes on. Meant for one:
    /// [`to_publishers`](Queues::to_publishers). Holds over restarts, until the contrary is asked
    /// for. Not cancel safe: of a call that was dropped, publishers may have received the request.
    pub async fn drain(&self, draining: bool) -> Result<Gathered<()>, QueuesError> {
        self.request_all(&everything(), Request::Drain { draining }, |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
        .await
    }

    /// Changes a queue's settings at every publisher that could have it; with `reset`, what is not
    /// among the changes goes back to its default. Each answers with the settings that hold there
    /// now, or with why it does not take the queue. Holds for jobs that are there already, too.
    /// Said again, it changes nothing. Not cancel safe: of a call that was dropped, publishers may
    /// have been told.
    pub async fn configure(
        &self,
        path: Path,
        changes: QueueSettings,
        reset: bool,
    ) -> Result<Gathered<Result<QueueSettings, Refusal>>, QueuesError> {
        // A path has none of the characters that mean something in a glob.
        let pattern = Glob::new(path.as_str()).unwrap_or_else(|_| everything());
        let request = Request::Configure { path, changes, reset };
        self.request_all(&pattern, request, |answer| match answer {
            Answer::Configured(result) => Some(result),
            _ => None,
        })
        .await
    }

    /// Tells every publisher that its wall clock is right though it jumped
    /// ([`PublisherStatus::clock_held`]): what waits for a time of the wall clock goes on. Not
    /// cancel safe: of a call that was dropped, publishers may have been told.
    ///
    /// [`PublisherStatus::clock_held`]: longshore_protocol::messages::work::PublisherStatus::clock_held
    pub async fn confirm_clock(&self) -> Result<Gathered<()>, QueuesError> {
        self.request_all(&everything(), Request::ConfirmClock, |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
        .await
    }
}
