//! Workers that are to begin no job for a while, asked at every publisher that they are linked to.

use longshore_protocol::messages::work::{Answer, QuietedWorker, Request, WorkerPattern};

use super::answers::{Gathered, QueuesError};
use super::client::Queues;
use super::requester::everything;

impl Queues {
    /// Asks the workers that any of the patterns means (at most 64) to begin no job, or with
    /// `quiet` false to go on. A quiet worker gives back what it has not begun, goes on with what
    /// it runs, and stays linked; it is quiet at every publisher until it is asked to go on or its
    /// process ends. With `dry_run`, publishers only say which workers are meant.
    ///
    /// Each publisher answers for the workers that are linked to it, once they have said so
    /// themselves or 5 s are over: a worker that confirmed begins nothing since. Said again, it
    /// changes nothing. Not cancel safe: of a call that was dropped, workers may have been told.
    pub async fn quiet_workers(
        &self,
        workers: Vec<WorkerPattern>,
        quiet: bool,
        dry_run: bool,
    ) -> Result<Gathered<Vec<QuietedWorker>>, QueuesError> {
        let request = Request::Quiet { workers, quiet, dry_run };
        self.request_all(&everything(), request, |answer| match answer {
            Answer::Quieted(workers) => Some(workers),
            _ => None,
        })
        .await
    }
}
