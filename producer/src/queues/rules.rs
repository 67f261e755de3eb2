//! What holds for whole queues: pauses, settings, and the clock that they go by. Each of these may be said again: a lost answer is
//! asked for again until the time for a request is over.

use longshore_protocol::messages::work::{Answer, PauseReport, Request};
use longshore_protocol::{Glob, Path, QueueSettings, Refusal};

use super::{Gathered, Queues, QueuesError, everything};

impl Queues {
    /// Has the queues that match take and deliver nothing, those that there are and those that there will be, at every
    /// publisher that could have some. The answers name the publishers that confirmed; at one that is missing, the queues
    /// may go on. Pausing what is paused changes nothing. Not cancel safe: of a call that was dropped, publishers may have
    /// been told.
    pub async fn pause(&self, pattern: Glob) -> Result<Gathered<PauseReport>, QueuesError> {
        self.set_paused(pattern, true).await
    }

    /// Takes back a pause of just this pattern. A queue that others match stays paused: [`PauseReport::still_paused_by`]
    /// says which. Not cancel safe: of a call that was dropped, publishers may have been told.
    pub async fn resume(&self, pattern: Glob) -> Result<Gathered<PauseReport>, QueuesError> {
        self.set_paused(pattern, false).await
    }

    async fn set_paused(
        &self,
        pattern: Glob,
        paused: bool,
    ) -> Result<Gathered<PauseReport>, QueuesError> {
        let request = Request::Pause { pattern: pattern.clone(), paused };
        self.ask_all(&pattern, request, |answer| match answer {
            Answer::Paused(report) => Some(report),
            _ => None,
        })
        .await
    }

    /// Changes a queue's settings at every publisher that could have it; with `reset`, what is not among the changes goes
    /// back to its default. Each answers with the settings that hold there now, or with why it does not take the queue.
    /// Holds for jobs that are there already, too. Said again, it changes nothing. Not cancel safe: of a call that was
    /// dropped, publishers may have been told.
    pub async fn configure(
        &self,
        path: Path,
        changes: QueueSettings,
        reset: bool,
    ) -> Result<Gathered<Result<QueueSettings, Refusal>>, QueuesError> {
        // A path has none of the characters that mean something in a glob.
        let pattern = Glob::new(path.as_str()).unwrap_or_else(|_| everything());
        let request = Request::Configure { path, changes, reset };
        self.ask_all(&pattern, request, |answer| match answer {
            Answer::Configured(result) => Some(result),
            _ => None,
        })
        .await
    }

    /// Tells every publisher that its wall clock is right though it jumped ([`PublisherStatus::clock_held`]): what waits for
    /// a time of the wall clock goes on. Not cancel safe: of a call that was dropped, publishers may have been told.
    ///
    /// [`PublisherStatus::clock_held`]: longshore_protocol::messages::work::PublisherStatus::clock_held
    pub async fn confirm_clock(&self) -> Result<Gathered<()>, QueuesError> {
        self.ask_all(&everything(), Request::ConfirmClock, |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
        .await
    }
}
