//! What attackers do with jobs.

use bytes::Bytes;
use longshore::protocol::messages::work::{
    Answer, BatchBuilder, Checkpoint, Credit, Enqueued, FromPublisher, NewSettle, Request,
    SettleBatchBuilder, Sources, Subscribe, ToPublisher, Tokens,
};
use longshore::protocol::{
    BatchRefusal, CheckpointOutcome, EnqueueOutcome, JobId, NewJob, SettleOutcome, Token,
};
use longshore::{Glob, Path};

use super::peer::{Peer, framed};
use super::subscriptions::glob;
use super::{Surprise, expect};

impl Peer {
    /// Enqueues a job at each path.
    pub(super) async fn enqueue(&mut self, sequence: u64, paths: &[&str]) -> Result<(), Surprise> {
        let jobs = paths.iter().map(|path| job(path, JobId(rand::random())));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        self.created(sequence, &jobs).await
    }

    /// Enqueues jobs with these ids.
    pub(super) async fn enqueue_ids(
        &mut self,
        sequence: u64,
        path: &str,
        ids: &[JobId],
    ) -> Result<(), Surprise> {
        let jobs = ids.iter().map(|id| job(path, *id)).collect::<Result<Vec<_>, _>>()?;
        self.created(sequence, &jobs).await
    }

    async fn created(&mut self, sequence: u64, jobs: &[NewJob]) -> Result<(), Surprise> {
        let outcome = self.enqueued(sequence, jobs).await?;
        let all = |outcome: EnqueueOutcome| outcome == EnqueueOutcome::Created;
        let created = matches!(&outcome, Ok(outcomes) if outcomes.iter().copied().all(all));
        expect(created, || format!("jobs of Mallory's are refused: {outcome:?}"))
    }

    /// Enqueues jobs; their outcomes, or why all are refused.
    pub(super) async fn enqueued(
        &mut self,
        sequence: u64,
        jobs: &[NewJob],
    ) -> Result<Result<Vec<EnqueueOutcome>, BatchRefusal>, Surprise> {
        let mut batch = BatchBuilder::new();
        jobs.iter().for_each(|job| batch.push(job));
        let batch = batch.seal(false);
        self.send(&framed(|out| batch.encode(sequence, out))).await?;
        self.answer_of_publisher("Enqueued", |message| match message {
            FromPublisher::Enqueued(Enqueued { sequence: answered, outcome })
                if answered == sequence =>
            {
                Some(outcome.map(|outcomes| outcomes.iter().collect()))
            }
            _ => None,
        })
        .await
    }

    /// Subscribes to a queue, takes one job, and returns its token.
    pub(super) async fn take_job(
        &mut self,
        subscription: u32,
        path: &str,
    ) -> Result<Token, Surprise> {
        let sources = Sources::one(glob(path)?);
        let subscribe =
            ToPublisher::Subscribe(Subscribe { subscription, sources, handlers: 1_000 });
        self.tell_publisher(&subscribe).await?;
        self.tell_publisher(&ToPublisher::Credit(Credit { subscription, count: 1 })).await?;
        let token = self
            .answer_of_publisher("Deliver", |message| match message {
                FromPublisher::Deliver(deliver) => deliver.jobs.first().map(|job| job.token),
                _ => None,
            })
            .await?;
        self.tell_publisher(&ToPublisher::Unsubscribe(subscription)).await?;
        Ok(token)
    }

    /// Completes jobs; the outcomes.
    pub(super) async fn complete(
        &mut self,
        sequence: u64,
        tokens: &[Token],
    ) -> Result<Vec<SettleOutcome>, Surprise> {
        let mut batch = SettleBatchBuilder::new();
        tokens.iter().for_each(|token| batch.push(*token, &NewSettle::Complete { result: None }));
        let body = batch.seal(sequence);
        self.send(&framed(|out| SettleBatchBuilder::encode(&body, out))).await?;
        self.answer_of_publisher("Settled", |message| match message {
            FromPublisher::Settled(settled) if settled.sequence == sequence => {
                Some(settled.outcomes.iter().collect())
            }
            _ => None,
        })
        .await
    }

    /// Renews leases; those that are stale.
    pub(super) async fn renew(&mut self, tokens: &[Token]) -> Result<Vec<Token>, Surprise> {
        self.tell_publisher(&ToPublisher::Renew(Tokens(tokens.to_vec()))).await?;
        self.answer_of_publisher("Renewed", |message| match message {
            FromPublisher::Renewed { stale } => Some(stale.0),
            _ => None,
        })
        .await
    }

    /// Stores the first checkpoint of an attempt.
    pub(super) async fn checkpoint(&mut self, token: Token) -> Result<CheckpointOutcome, Surprise> {
        let body = Checkpoint::body_of(token, 1, &Bytes::from_static(b"mallory"));
        self.send(&framed(|out| Checkpoint::encode(&body, out))).await?;
        self.answer_of_publisher("Checkpointed", |message| match message {
            FromPublisher::Checkpointed(answer) if answer.token == token => Some(answer.outcome),
            _ => None,
        })
        .await
    }

    /// The number of jobs in queues.
    pub(super) async fn jobs(&mut self, pattern: Glob) -> Result<u64, Surprise> {
        match self.request(1, Request::Queues { pattern, cursor: 0 }).await? {
            Ok(Answer::Queues(page)) => {
                Ok(page.queues.iter().map(|queue| queue.counts.total()).sum())
            }
            other => Err(Surprise(format!("no queues: {other:?}"))),
        }
    }
}

/// A job of Mallory's.
pub(super) fn job(path: &str, id: JobId) -> Result<NewJob, Surprise> {
    let path = Path::new(path).map_err(|error| Surprise(error.to_string()))?;
    Ok(NewJob::new(path, id, &b"mallory"[..]))
}
