//! Handlers that store checkpoints, and those that read the checkpoints of earlier attempts.

use futures_util::future::join;
use longshore_protocol::messages::work::{
    Answer, CheckpointInfo, Checkpointed, Delivery, Request, RequestError,
};
use longshore_protocol::{CheckpointOutcome, NewJob};

use super::fake_publisher::{FakeLink, delivery};
use super::*;
use crate::{Checkpoint, CheckpointError, CheckpointsError};

/// Token, number, and bytes of the next checkpoint.
async fn checkpoint(link: &mut FakeLink) -> (u64, u64, Bytes) {
    let checkpoint = link.find(|message| match message {
        ToPublisher::Checkpoint(checkpoint) => Some(checkpoint.clone()),
        _ => None,
    });
    let read = checkpoint.await;
    let bytes = read.body().slice(read.at as usize..(read.at + read.length) as usize);
    (read.token.0, read.sequence, bytes)
}

fn answer(link: &FakeLink, token: u64, sequence: u64, outcome: CheckpointOutcome) {
    link.send(FromPublisher::Checkpointed(Checkpointed { token: Token(token), sequence, outcome }));
}

/// The number of the next checkpoint query, and its token.
async fn checkpoint_query(link: &mut FakeLink) -> (u64, u64) {
    let checkpoint_query = link.find(|message| match message {
        ToPublisher::Request { id, request: Request::Checkpoints { token } } => {
            Some((*id, token.0))
        }
        _ => None,
    });
    checkpoint_query.await
}

fn stored_checkpoint(attempt: u16, sequence: u64, bytes: &'static str) -> CheckpointInfo {
    let (at, length) = (1_700_000_000_000, bytes.len() as u64);
    CheckpointInfo { attempt, sequence, at, length, bytes: Some(bytes.into()) }
}

/// A worker with one job. Returns the job's context, and a semaphore that lets the handler return.
async fn start_with_one_job(
    publisher: &mut FakePublisher,
    job: Delivery,
) -> (RunningWorker, FakeLink, JobContext, Arc<tokio::sync::Semaphore>) {
    let (handler, mut started_rx, go) = gated_handler();
    let worker = start_worker(ONE_AT_A_TIME, &[publisher], handler);
    let (mut link, _) = publisher.attach(1, &[]).await;
    link.granted(1).await;
    link.deliver_all([job]);
    let ctx = within(started_rx.recv()).await.unwrap();
    (worker, link, ctx, go)
}

#[tokio::test]
async fn a_checkpoint_returns_its_number_once_stored() {
    let (_publisher, worker, mut link) = start_linked_worker(
        ONE_AT_A_TIME,
        handler(|_: Job<Bytes>, ctx: JobContext| async move {
            let first = ctx.checkpoint("half").await?;
            let second = ctx.checkpoint(vec![7; 64 * 1024]).await?;
            Ok(format!("{first} {second}"))
        }),
    )
    .await;
    link.deliver(&[(11, "x")]);
    assert_eq!(checkpoint(&mut link).await, (11, 1, "half".into()));
    assert_eq!(worker.session.stats().checkpoints, 0);
    answer(&link, 11, 1, CheckpointOutcome::Accepted);
    assert_eq!(checkpoint(&mut link).await, (11, 2, vec![7; 64 * 1024].into()));
    assert!(!link.has_unread(|message| matches!(message, ToPublisher::Settle(_))), "it waits");
    answer(&link, 11, 2, CheckpointOutcome::Accepted);
    let batch = link.settle().await;
    let [(11, Verdict::Complete(Some(span)))] = verdicts(&batch)[..] else { panic!("{batch:?}") };
    assert_eq!(&batch.body()[span.at as usize..][..span.length as usize], b"1 2");
    assert_eq!(worker.session.stats().checkpoints, 2);
}

#[tokio::test]
async fn a_checkpoint_without_an_answer_is_resent_and_counts_once() {
    let mut publisher = FakePublisher::start(1).await;
    let (worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, delivery(1)).await;
    let storing = tokio::spawn({
        let ctx = ctx.clone();
        async move { ctx.checkpoint("a").await }
    });
    assert_eq!(checkpoint(&mut link).await, (1, 1, "a".into()));
    drop(link);
    let (link, resumed) = publisher.attach(1, &[]).await;
    assert_eq!(resumed, [1]);
    drop(link);
    let (mut link, _) = publisher.attach(1, &[]).await;
    assert_eq!(checkpoint(&mut link).await, (1, 1, "a".into()));
    answer(&link, 1, 1, CheckpointOutcome::Accepted);
    answer(&link, 1, 1, CheckpointOutcome::Accepted);
    assert_eq!(within(storing).await.unwrap(), Ok(1));
    let (second, ()) = within(join(ctx.checkpoint("b"), async {
        assert_eq!(checkpoint(&mut link).await, (1, 2, "b".into()));
        answer(&link, 1, 2, CheckpointOutcome::Accepted);
    }))
    .await;
    assert_eq!(second, Ok(2));
    assert_eq!(worker.session.stats().checkpoints, 2);
}

#[tokio::test]
async fn a_stale_checkpoint_cancels_its_context() {
    let mut publisher = FakePublisher::start(1).await;
    let (worker, mut link, ctx, go) = start_with_one_job(&mut publisher, delivery(1)).await;
    let refused = join(ctx.checkpoint("late"), async {
        checkpoint(&mut link).await;
        answer(&link, 1, 1, CheckpointOutcome::StaleToken);
    });
    let lost = Err(CheckpointError::Lost(CancelReason::LeaseLost));
    assert_eq!(within(refused).await.0, lost);
    assert_eq!(ctx.cancel_reason(), Some(CancelReason::LeaseLost));
    assert_eq!(ctx.checkpoint("later still").await, lost);
    let stats = worker.session.stats();
    assert_eq!((stats.stale_refused, stats.leases_revoked, stats.checkpoints), (1, 1, 0));
    go.add_permits(1);
    let batch = link.settle().await;
    link.answer(&batch, SettleOutcome::StaleToken);
    worker.until(|stats| stats.stale_refused == 2).await;
    assert!(!link.has_unread(|message| matches!(message, ToPublisher::Checkpoint(_))));
}

#[tokio::test]
async fn losing_the_lease_ends_checkpoint_waits() {
    for (revoked, reason) in [
        (Revoked::Cancelled, CancelReason::Cancelled),
        (Revoked::TimedOut, CancelReason::TimedOut),
        (Revoked::LeaseLost, CancelReason::LeaseLost),
    ] {
        let mut publisher = FakePublisher::start(1).await;
        let (_worker, mut link, ctx, go) = start_with_one_job(&mut publisher, delivery(1)).await;
        let waiting = join(ctx.checkpoint("a"), ctx.checkpoint("b"));
        let (both, ()) = within(join(waiting, async {
            checkpoint(&mut link).await;
            link.revoke(revoked, 1);
        }))
        .await;
        let lost = Err(CheckpointError::Lost(reason));
        assert_eq!(both, (lost.clone(), lost.clone()));
        drop(link);
        let (mut link, resumed) = publisher.attach(1, &[]).await;
        assert!(resumed.is_empty());
        go.add_permits(1);
        link.settle().await;
        assert!(!link.has_unread(|message| matches!(message, ToPublisher::Checkpoint(_))));
    }
}

#[tokio::test]
async fn without_a_link_a_checkpoint_waits_until_the_lease_ends() {
    let mut publisher = FakePublisher::start(1).await;
    let job = Delivery { lease_ms: 300, ..delivery(1) };
    let (_worker, link, ctx, _go) = start_with_one_job(&mut publisher, job).await;
    drop((link, publisher));
    let lost = within(ctx.checkpoint("a")).await;
    assert_eq!(lost, Err(CheckpointError::Lost(CancelReason::LeaseLost)));
    assert_eq!(ctx.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn an_oversized_checkpoint_is_refused_locally() {
    let mut publisher = FakePublisher::start(1).await;
    let (_worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, delivery(1)).await;
    let refused = ctx.checkpoint(vec![0; 65_537]).await;
    assert_eq!(refused, Err(CheckpointError::TooLarge { bytes: 65_537, limit: 65_536 }));
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("65537") && text.contains("65536"), "{text}");
    let (stored, ()) = within(join(ctx.checkpoint("small"), async {
        assert_eq!(checkpoint(&mut link).await, (1, 1, "small".into()));
        answer(&link, 1, 1, CheckpointOutcome::Accepted);
    }))
    .await;
    assert_eq!(stored, Ok(1));
}

#[tokio::test]
async fn checkpoint_calls_of_one_job_are_serialized() {
    let mut publisher = FakePublisher::start(1).await;
    let (worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, delivery(1)).await;
    let timed_out = tokio::time::timeout(Duration::ZERO, ctx.checkpoint("timed out")).await;
    assert!(timed_out.is_err());
    let calls = join(ctx.checkpoint("second"), ctx.checkpoint("third"));
    let (numbers, ()) = within(join(calls, async {
        for (sequence, bytes) in [(1, "timed out"), (2, "second"), (3, "third")] {
            assert_eq!(checkpoint(&mut link).await, (1, sequence, bytes.into()));
            let more = link.has_unread(|message| matches!(message, ToPublisher::Checkpoint(_)));
            assert!(!more, "one at a time");
            answer(&link, 1, sequence, CheckpointOutcome::Accepted);
        }
    }))
    .await;
    assert_eq!(numbers, (Ok(2), Ok(3)));
    assert_eq!(worker.session.stats().checkpoints, 3);
}

#[tokio::test]
async fn a_checkpoint_gap_is_reported_and_changes_nothing_else() {
    let mut publisher = FakePublisher::start(1).await;
    let (worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, delivery(1)).await;
    let (refused, ()) = within(join(ctx.checkpoint("x"), async {
        checkpoint(&mut link).await;
        answer(&link, 1, 1, CheckpointOutcome::Gap);
    }))
    .await;
    assert_eq!(refused, Err(CheckpointError::Gap));
    assert!(!ctx.is_cancelled());
    assert_eq!(worker.session.stats().stale_refused, 0);
}

#[tokio::test]
async fn a_context_is_unusable_after_its_handler_returns() {
    let mut publisher = FakePublisher::start(1).await;
    let job = Delivery { checkpoints: 1, ..delivery(1) };
    let (worker, mut link, ctx, go) = start_with_one_job(&mut publisher, job).await;
    go.add_permits(1);
    link.settle().await;
    assert_eq!(ctx.checkpoint("x").await, Err(CheckpointError::Ended));
    assert_eq!(ctx.checkpoints().await, Err(CheckpointsError::Ended));
    drop(worker);
    assert_eq!(ctx.checkpoint("x").await, Err(CheckpointError::Ended));
}

#[tokio::test]
async fn an_unawaited_checkpoint_ends_with_the_attempt() {
    let mut publisher = FakePublisher::start(1).await;
    let (worker, mut link, ctx, go) = start_with_one_job(&mut publisher, delivery(1)).await;
    let unawaited = tokio::spawn(async move { ctx.checkpoint("left behind").await });
    checkpoint(&mut link).await;
    go.add_permits(1);
    let batch = link.settle().await;
    assert_eq!(within(unawaited).await.unwrap(), Err(CheckpointError::Ended));
    drop(link);
    let (mut link, resumed) = publisher.attach(1, &[]).await;
    assert_eq!(resumed, [1], "its settle is unanswered");
    assert_eq!(link.settle().await, batch);
    let again = link.has_unread(|message| matches!(message, ToPublisher::Checkpoint(_)));
    assert!(!again, "it would be refused as stale");
    answer(&link, 1, 1, CheckpointOutcome::Accepted);
    link.accept(&batch);
    worker.until(|stats| stats.completed == 1).await;
    assert_eq!(worker.session.stats().checkpoints, 0);
}

#[tokio::test]
async fn a_stopping_worker_still_stores_checkpoints() {
    let handler = handler(|_: Job<Bytes>, ctx: JobContext| async move {
        ctx.cancelled().await;
        ctx.checkpoint("as far as it came").await?;
        Err::<(), _>(JobFailure::Release)
    });
    let cancel_grace = Duration::from_secs(25);
    let (_publisher, worker, mut link) = start_linked_worker(
        Limits { grace: Duration::ZERO, cancel_grace, ..ONE_AT_A_TIME },
        handler,
    )
    .await;
    link.deliver(&[(1, "x")]);
    link.started().await;
    worker.until(|stats| stats.running == 1).await;
    worker.handle.drain();
    assert_eq!(checkpoint(&mut link).await, (1, 1, "as far as it came".into()));
    answer(&link, 1, 1, CheckpointOutcome::Accepted);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Release)]);
    link.accept(&batch);
    let report = worker.report().await;
    assert_eq!((report.checkpoints, report.released), (1, 1));
}

#[tokio::test]
async fn only_checkpoints_of_earlier_deliveries_are_read() {
    let mut publisher = FakePublisher::start(1).await;
    let job = Delivery { attempt: 2, deliveries: 2, checkpoints: 2, ..delivery(1) };
    let (_worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, job).await;
    let (read, ()) = within(join(ctx.checkpoints(), async {
        let (id, token) = checkpoint_query(&mut link).await;
        assert_eq!(token, 1);
        let capture = vec![stored_checkpoint(1, 1, "a"), stored_checkpoint(1, 2, "b")];
        link.send(FromPublisher::Answer { id, answer: Ok(Answer::Checkpoints(capture)) });
    }))
    .await;
    let earlier = |sequence, bytes: &'static str| Checkpoint {
        attempt: 1,
        sequence,
        at: 1_700_000_000_000,
        bytes: bytes.into(),
    };
    assert_eq!(read, Ok(vec![earlier(1, "a"), earlier(2, "b")]));

    let (read, ()) = within(join(join(ctx.checkpoint("c"), ctx.checkpoints()), async {
        checkpoint(&mut link).await;
        answer(&link, 1, 1, CheckpointOutcome::Accepted);
        let (first, _) = checkpoint_query(&mut link).await;
        drop(link);
        let (mut link, _) = publisher.attach(1, &[]).await;
        let (id, _) = checkpoint_query(&mut link).await;
        assert_ne!(id, first);
        let capture = vec![
            stored_checkpoint(1, 1, "a"),
            stored_checkpoint(1, 2, "b"),
            stored_checkpoint(2, 1, "c"),
        ];
        link.send(FromPublisher::Answer { id: first, answer: Err(RequestError::Unreadable) });
        link.send(FromPublisher::Answer { id, answer: Ok(Answer::Checkpoints(capture)) });
    }))
    .await;
    assert_eq!(read, (Ok(1), Ok(vec![earlier(1, "a"), earlier(2, "b")])));
}

#[tokio::test]
async fn no_query_is_sent_without_earlier_checkpoints() {
    let mut publisher = FakePublisher::start(1).await;
    let (_worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, delivery(1)).await;
    assert_eq!(ctx.checkpoints().await, Ok(vec![]));
    let (_, ()) = within(join(ctx.checkpoint("x"), async {
        checkpoint(&mut link).await;
        answer(&link, 1, 1, CheckpointOutcome::Accepted);
    }))
    .await;
    assert_eq!(ctx.checkpoints().await, Ok(vec![]), "own checkpoints are not earlier ones");
    assert!(!link.has_unread(|message| matches!(message, ToPublisher::Request { .. })));
}

#[tokio::test]
async fn a_stale_checkpoint_query_cancels_its_context() {
    let mut publisher = FakePublisher::start(1).await;
    let job = Delivery { attempt: 2, deliveries: 2, checkpoints: 1, ..delivery(1) };
    let (worker, mut link, ctx, _go) = start_with_one_job(&mut publisher, job).await;
    for (error, expected) in [
        (RequestError::Unreadable, CheckpointsError::Refused(RequestError::Unreadable)),
        (RequestError::StaleToken, CheckpointsError::Lost(CancelReason::LeaseLost)),
    ] {
        assert!(!ctx.is_cancelled());
        let (read, ()) = within(join(ctx.checkpoints(), async {
            let (id, _) = checkpoint_query(&mut link).await;
            link.send(FromPublisher::Answer { id, answer: Err(error) });
        }))
        .await;
        assert_eq!(read, Err(expected));
    }
    assert_eq!(ctx.cancel_reason(), Some(CancelReason::LeaseLost));
    assert_eq!(worker.session.stats().stale_refused, 1);
}

#[tokio::test]
async fn blocking_handlers_read_and_store_checkpoints() {
    let (_publisher, worker, mut link) = start_linked_worker(
        ONE_AT_A_TIME,
        Blocking::new(|_: Job<Bytes>, ctx: JobContext| {
            let earlier = ctx.checkpoints_blocking()?;
            let number = ctx.checkpoint_blocking(format!("after {}", earlier.len()))?;
            Ok(number.to_string())
        }),
    )
    .await;
    link.deliver_all([Delivery { attempt: 2, deliveries: 2, checkpoints: 1, ..delivery(1) }]);
    let (id, _) = checkpoint_query(&mut link).await;
    let capture = vec![stored_checkpoint(1, 1, "a")];
    link.send(FromPublisher::Answer { id, answer: Ok(Answer::Checkpoints(capture)) });
    assert_eq!(checkpoint(&mut link).await, (1, 1, "after 1".into()));
    answer(&link, 1, 1, CheckpointOutcome::Accepted);
    let batch = link.settle().await;
    assert!(matches!(verdicts(&batch)[..], [(1, Verdict::Complete(Some(_)))]));
    drop(worker);
}

#[tokio::test]
async fn releasing_a_job_ends_its_blocking_wait() {
    let (ended, mut end) = mpsc::unbounded_channel();
    let (_publisher, worker, mut link) = start_linked_worker(
        Limits { grace: Duration::ZERO, cancel_grace: Duration::ZERO, ..ONE_AT_A_TIME },
        Blocking::new(move |_: Job<Bytes>, ctx: JobContext| {
            let _ = ended.send(ctx.checkpoint_blocking("never answered"));
            Ok(())
        }),
    )
    .await;
    link.deliver(&[(1, "x")]);
    checkpoint(&mut link).await;
    worker.handle.drain();
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Release)]);
    let lost = CheckpointError::Lost(CancelReason::Shutdown);
    assert_eq!(within(end.recv()).await, Some(Err(lost)), "though the worker has not ended");
    link.accept(&batch);
    assert_eq!(worker.report().await.released, 1);
}

#[tokio::test]
async fn a_stopped_worker_leaves_no_thread_waiting() {
    let (ended, mut end) = mpsc::unbounded_channel();
    let (_publisher, worker, mut link) = start_linked_worker(
        ONE_AT_A_TIME,
        Blocking::new(move |_: Job<Bytes>, ctx: JobContext| {
            let _ = ended.send(ctx.checkpoint_blocking("never answered"));
            Ok(())
        }),
    )
    .await;
    link.deliver(&[(1, "x")]);
    checkpoint(&mut link).await;
    let session = worker.session.clone();
    worker.handle.stop_now();
    worker.report().await;
    assert_eq!(within(end.recv()).await, Some(Err(CheckpointError::Ended)));
    drop(session);
}

#[tokio::test]
async fn a_context_has_the_producers_max_attempts() {
    let mut publisher = FakePublisher::start(1).await;
    let path = longshore_protocol::Path::new("/jobs/x").unwrap();
    let mut job = NewJob::new(path, longshore_protocol::JobId([9; 16]), "x");
    job.options.max_attempts = Some(3);
    let mut out = longshore_protocol::FrameWriter::new();
    job.encode_entry_head(&mut out);
    out.put(&job.payload);
    let received = Delivery { entry: out.into_body(), ..delivery(1) };
    let (_worker, _link, ctx, _go) = start_with_one_job(&mut publisher, received).await;
    assert_eq!(ctx.max_attempts(), Some(3));
    let mut publisher = FakePublisher::start(2).await;
    let (_worker, _link, ctx, _go) = start_with_one_job(&mut publisher, delivery(1)).await;
    assert_eq!(ctx.max_attempts(), None);
}
