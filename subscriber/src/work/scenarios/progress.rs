//! Handlers that report progress, and handlers that exceed their run timeout.

use std::collections::BTreeMap;

use longshore_protocol::limits::PROGRESS_BYTES_MAX;
use longshore_protocol::messages::work::Progress;
use tower::Layer;

use super::fake_publisher::FakeLink;
use super::*;
use crate::middleware::on_error;

async fn progress(link: &mut FakeLink) -> Vec<(u64, u8, String)> {
    let reports = link.find(|message| match message {
        ToPublisher::Progress(reports) => Some(reports.clone()),
        _ => None,
    });
    let report = |Progress { token, percent, message }| (token.0, percent, message);
    reports.await.into_iter().map(report).collect()
}

#[tokio::test]
async fn only_the_latest_progress_of_each_job_is_sent() {
    let (handler, mut started_rx, go) = gated_handler();
    let limits = Limits { concurrency: 2, prefetch: 0, ..ONE_AT_A_TIME };
    let (mut publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    link.deliver(&[(1, "a"), (2, "b")]);
    let (one, two) =
        (within(started_rx.recv()).await.unwrap(), within(started_rx.recv()).await.unwrap());
    for percent in 1..=50 {
        one.progress(percent, "reading");
        two.progress(percent, format!("row {percent}"));
    }
    let both = [(1, 50, "reading".to_owned()), (2, 50, "row 50".to_owned())];
    // The link's thread may have sent the first reports before the last ones were made.
    let mut latest = BTreeMap::new();
    for _ in 0..2 {
        let sent = progress(&mut link).await;
        latest.extend(sent.into_iter().map(|report| (report.0, report)));
        if latest.values().eq(&both) {
            break;
        }
    }
    assert!(latest.values().eq(&both), "two messages have the latest of both: {latest:?}");
    one.progress(60, "");
    one.progress(255, "é".repeat(PROGRESS_BYTES_MAX));
    let cut = "é".repeat(PROGRESS_BYTES_MAX / 2);
    assert_eq!(progress(&mut link).await, [(1, 100, cut.clone())]);

    drop(link);
    let (mut link, _) = publisher.attach(1, &[]).await;
    let again = [(1, 100, cut), (2, 50, "row 50".to_owned())];
    assert_eq!(progress(&mut link).await, again, "a restarted publisher has no progress");
    go.add_permits(2);
    link.settle().await;
    one.progress(1, "of a job that has ended");
    two.progress(1, "of a job that has ended");
    worker.handle.drain();
    link.unsubscribe().await;
    assert!(!link.has_unread(|message| matches!(message, ToPublisher::Progress(_))));
}

#[tokio::test]
async fn a_run_timeout_cancels_the_attempt() {
    let (handler, mut started_rx, go) = gated_handler();
    let (_publisher, worker, mut link) = start_linked_worker(ONE_AT_A_TIME, handler).await;
    link.deliver(&[(1, "x")]);
    let ctx = within(started_rx.recv()).await.unwrap();
    link.revoke(Revoked::TimedOut, 1);
    assert_eq!(within(ctx.cancelled()).await, CancelReason::TimedOut);
    assert!(CancelReason::TimedOut.to_string().contains("longer than its run timeout"));
    go.add_permits(1);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(1, Verdict::Complete(None))]);
    link.answer(&batch, SettleOutcome::StaleToken);
    worker.until(|stats| stats.stale_refused == 1).await;
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.leases_revoked), (0, 1));
}

/// Its end panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

/// It awaits what is always ready, so it leaves no budget to a timer; and dropping it panics.
#[tokio::test]
async fn a_handler_that_spins_is_dropped_too_and_may_panic_then() {
    let (started, mut started_rx) = tokio::sync::mpsc::unbounded_channel();
    let spins = InPlace::new(move |job: Job<String>, _: JobContext| {
        let started = started.clone();
        async move {
            if job.payload == "spins" {
                let _bomb = Bomb;
                started.send(()).unwrap();
                loop {
                    tokio::task::coop::consume_budget().await;
                }
            }
            Ok(())
        }
    });
    let limits = Limits { cancel_grace: Duration::from_millis(50), ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(limits, spins).await;
    for token in 1..=2 {
        link.deliver(&[(token, "spins")]);
        within(started_rx.recv()).await.unwrap();
        link.revoke(Revoked::TimedOut, token);
        link.granted(1).await;
    }
    link.deliver(&[(3, "ends")]);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(3, Verdict::Complete(None))]);
    link.answer(&batch, SettleOutcome::Accepted);
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.panicked), (1, 2));
}

/// It would keep its place for ever: a hang becomes a crash.
#[tokio::test]
async fn a_handler_that_hangs_is_dropped_once_its_job_is_taken_away() {
    let (handler, mut started_rx, go) = gated_handler();
    let (fail, mut failures) = mpsc::unbounded_channel();
    let observed = on_error(move |context: &JobContext, failure: &JobFailure| {
        let JobFailure::Retry(error) = failure else { return };
        let _ = fail.send((context.token(), error.kind.clone()));
    });
    let handler = observed.layer(handler);
    let limits = Limits { cancel_grace: Duration::from_millis(50), ..ONE_AT_A_TIME };
    let (_publisher, worker, mut link) = start_linked_worker(limits, handler).await;
    for (token, reason) in
        [(1, Revoked::TimedOut), (2, Revoked::Cancelled), (3, Revoked::LeaseLost)]
    {
        link.deliver(&[(token, "x")]);
        let context = within(started_rx.recv()).await.unwrap();
        link.revoke(reason, token);
        within(context.cancelled()).await;
        // It does not look at its context, and waits for what does not come.
        link.granted(1).await;
    }
    link.deliver(&[(4, "x")]);
    within(started_rx.recv()).await.unwrap();
    go.add_permits(1);
    let batch = link.settle().await;
    assert_eq!(verdicts(&batch), [(4, Verdict::Complete(None))]);
    for token in 1..=3 {
        let (dropped, kind) = within(failures.recv()).await.unwrap();
        assert_eq!((dropped, &*kind), (Token(token), "Dropped"), "the observer hears of each");
    }
    assert!(failures.is_empty());
    link.answer(&batch, SettleOutcome::Accepted);
    worker.handle.drain();
    let report = worker.report().await;
    assert_eq!((report.completed, report.leases_revoked), (1, 3));
}
