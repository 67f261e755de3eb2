//! Quieting workers, at every publisher that they are linked to.

use longshore_protocol::messages::work::{Answer, QuietedWorker, Request, WorkerPattern};

use super::answers::{PublisherAnswers, QueuesError};
use super::client::Queues;
use super::requester::everything;

impl Queues {
    /// Requests quiet from the workers that any of the patterns matches (at most 64), or with
    /// `quiet` false ends it. A quiet worker releases jobs that have not begun, continues running
    /// ones, and stays linked. It is quiet at every publisher until it is resumed or its process
    /// ends. With `dry_run`, publishers only report the matching workers.
    ///
    /// Each publisher answers once its linked workers have confirmed, or after 5 s: a worker that
    /// confirmed starts no job afterwards. Idempotent. Not cancel safe: if the future is dropped,
    /// workers may have received the request.
    pub async fn quiet_workers(
        &self,
        workers: Vec<WorkerPattern>,
        quiet: bool,
        dry_run: bool,
    ) -> Result<PublisherAnswers<Vec<QuietedWorker>>, QueuesError> {
        let request = Request::Quiet { workers, quiet, dry_run };
        self.request_all(&everything(), request, |answer| match answer {
            Answer::Quieted(workers) => Some(workers),
            _ => None,
        })
        .await
    }
}
